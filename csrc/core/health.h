/* SPDX-License-Identifier: Apache-2.0 */
/* The health of EVs, planes and ports, as the controller hears of it. */
#ifndef MRC_CORE_HEALTH_H
#define MRC_CORE_HEALTH_H

#include "qp.h"

/* Tells the controller about an EV. */
void mrc_health_report_ev(struct mrc_services *services, const struct mrc_qp *qp, uint16_t ev,
                          enum mrc_event_reason reason);
/* Tells the controller whether a plane is trusted (MRC_EVENT_PLANE), or a port of it, ours or the
   peer's, is up (MRC_EVENT_PORT). */
void mrc_health_report_plane(struct mrc_services *services, const struct mrc_qp *qp, uint32_t plane,
                             enum mrc_event_type type, bool alive, enum mrc_event_reason reason);
/* An EV lost a packet, or somebody calls it bad: it goes, and probes decide on its return. */
void mrc_health_distrust_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                            enum mrc_event_reason reason, uint64_t now_ns);
/* It was wrong to distrust the EV. */
void mrc_health_trust_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                         enum mrc_event_reason reason);

#endif
