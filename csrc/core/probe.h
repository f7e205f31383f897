/* SPDX-License-Identifier: Apache-2.0 */
/* The reliability probe of a QP: it asks the peer for all that has arrived. EV probes, which test a
   path, are another thing: see ev_probe.h. */
#ifndef MRC_CORE_PROBE_H
#define MRC_CORE_PROBE_H

#include "qp.h"

/* Sends the probe: first where a packet is overdue, for an answer proves it lost; then the planes
   take turns, so that a dead one cannot swallow every probe. False when the transmit is full. */
bool mrc_probe_send(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* Its answer stands for a packet sent when the probe was. */
void mrc_probe_on_answer(struct mrc_services *services, struct mrc_qp *qp,
                         const struct mrc_sack *sack, const struct mrc_meta *meta,
                         struct mrc_cc_ack *ack, uint64_t now_ns);

#endif
