/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the plane of the next burst: by equal shares, or by the windows of the planes. */
#pragma once

#include "core/qp.h"

/* In RTS. Equal shares are taken in an order that follows from the QPN: otherwise the first
   packets of all QPs would meet on one. */
void mrc_spray_start(struct mrc_qp *qp);
/* Call it before a choice, with all planes that may be chosen. A plane that returns starts with the
   smallest share of the planes that stayed, so it does not make up for its absence. If none stayed,
   all start with the same share. */
void mrc_spray_level(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes);
/* The plane of the next burst, whose first packet has `bytes`; -1 when no plane can send now.
   `planes`: those with a usable EV. */
int mrc_spray_choose(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes,
                     uint32_t bytes);
/* Adds a packet of `bytes` to the plane's share, or takes it back if the kernel refused it. */
static inline void mrc_spray_give(struct mrc_qp *qp, uint32_t index, uint32_t bytes) {
  struct mrc_plane *plane = &qp->planes[index];
  plane->share_bytes += bytes;
  qp->choice.most_share_bytes = mrc_max_u64(qp->choice.most_share_bytes, plane->share_bytes);
}
void mrc_spray_take_back(struct mrc_qp *qp, uint32_t plane, uint32_t bytes);
