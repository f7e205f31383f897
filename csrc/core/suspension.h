/* SPDX-License-Identifier: Apache-2.0 */
/* A plane is suspended as a whole, and comes back. */
#ifndef MRC_CORE_SUSPENSION_H
#define MRC_CORE_SUSPENSION_H

#include "qp.h"

/* All that is in flight there is lost; probes decide on its return. */
void mrc_suspension_begin(struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                          enum mrc_event_reason reason, uint64_t now_ns);
/* The peer says that its port of this plane is down. Nobody signs that: probes ask, at their
   slowest, whether it holds. */
void mrc_suspension_on_peer_port_down(struct mrc_services *services, struct mrc_qp *qp,
                                      uint32_t plane, uint64_t now_ns);
/* What suspended the plane is over: it is probed without further waiting. */
void mrc_suspension_retry(struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                          uint64_t now_ns);
/* A plane answers its probes again, or is tried again; the controller is told the reason. */
void mrc_suspension_end(struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                        enum mrc_event_reason reason);

#endif
