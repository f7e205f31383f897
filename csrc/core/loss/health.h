/* SPDX-License-Identifier: Apache-2.0 */
/* Reports the health of EVs, planes and ports to the controller. */
#ifndef MRC_CORE_HEALTH_H
#define MRC_CORE_HEALTH_H

#include "core/qp/qp.h"

/* Reports the state of an EV (MRC_EVENT_EV_STATE). */
void mrc_health_report_ev(struct mrc_services *services, const struct mrc_qp *qp, uint16_t ev,
                          enum mrc_event_reason reason);
/* Reports whether a plane carries data (MRC_EVENT_PLANE), or whether its port on this host or on
   the peer is up (MRC_EVENT_PORT). */
void mrc_health_report_plane(struct mrc_services *services, const struct mrc_qp *qp, uint32_t plane,
                             enum mrc_event_type type, bool alive, enum mrc_event_reason reason);
/* The EV lost a packet or was reported as bad: it becomes ASSUMED_BAD until probes are answered. */
void mrc_health_distrust_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                            enum mrc_event_reason reason, uint64_t now_ns);
/* The EV was distrusted wrongly: it becomes GOOD again. */
void mrc_health_trust_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                         enum mrc_event_reason reason);

#endif
