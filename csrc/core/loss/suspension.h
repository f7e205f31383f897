/* SPDX-License-Identifier: Apache-2.0 */
/* Suspends a whole plane, and ends the suspension. */
#ifndef MRC_CORE_SUSPENSION_H
#define MRC_CORE_SUSPENSION_H

#include "core/qp/qp.h"

/* All packets in flight on the plane count as lost. Probes decide when the plane returns. */
void mrc_suspension_begin(struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                          enum mrc_event_reason reason, uint64_t now_ns);
/* The peer reported its port of this plane down. The report may be forged, so probes check it, at
   the longest spacing. */
void mrc_suspension_on_peer_port_down(struct mrc_services *services, struct mrc_qp *qp,
                                      uint32_t plane, uint64_t now_ns);
/* The cause of the suspension is over: the next probe is due at once. */
void mrc_suspension_retry(struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                          uint64_t now_ns);
/* The plane answered its probes, or is tried again. Reports the reason to the controller. */
void mrc_suspension_end(struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                        enum mrc_event_reason reason);

#endif
