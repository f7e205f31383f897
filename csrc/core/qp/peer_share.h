/* SPDX-License-Identifier: Apache-2.0 */
/* Compares how much each plane to a peer carries, period by period, and reports slow planes in
   events. The QPs to one peer are summed up: they share the planes, and a plane that another QP
   fills is not slow. spray.c decides which plane a burst takes. */
#ifndef MRC_CORE_PEER_SHARE_H
#define MRC_CORE_PEER_SHARE_H

#include "peer.h"

/* `bytes` were acknowledged, and share_acked_bytes of their planes already include them. At the end
   of a period, compares the planes and reports each plane that became slow or is no longer slow.
   Does nothing with equal shares. */
void mrc_peer_share_on_acked(struct mrc_services *services, struct mrc_qp *qp, uint64_t bytes,
                             uint64_t now_ns);
/* The QP leaves the plane or returns to it. Unless other QPs use the plane, its verdict is cleared
   and a new period begins. */
void mrc_peer_share_forget(struct mrc_qp *qp, uint32_t plane);
/* The verdict on a plane of the QP. */
struct mrc_share mrc_peer_share_of(const struct mrc_qp *qp, uint32_t plane);

#endif
