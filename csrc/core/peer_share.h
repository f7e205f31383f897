/* SPDX-License-Identifier: Apache-2.0 */
/* How much each plane to a peer carries beside the others, compared over periods, and the event
   that names a slow plane. QPs to one peer are summed up: they share the planes, and what one of
   them finds taken by another is no news. Which plane a burst takes is decided in spray.c. */
#ifndef MRC_CORE_PEER_SHARE_H
#define MRC_CORE_PEER_SHARE_H

#include "peer.h"

/* `bytes` were acknowledged, which stand at their planes too. Compares the planes at the end of a
   period and tells the controller which became slow, or is no longer. With equal shares there is
   nothing to compare. */
void mrc_peer_share_on_acked(struct mrc_services *services, struct mrc_qp *qp, uint64_t bytes,
                             uint64_t now_ns);
/* The QP leaves the plane, or is back: unless others use it meanwhile, the plane starts afresh, in
   a new period. */
void mrc_peer_share_forget(struct mrc_qp *qp, uint32_t plane);
/* The verdict on a plane of the QP. */
struct mrc_share mrc_peer_share_of(const struct mrc_qp *qp, uint32_t plane);

#endif
