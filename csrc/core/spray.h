/* SPDX-License-Identifier: Apache-2.0 */
/* Which plane the next burst takes: equal shares, or what the windows of the planes allow. */
#ifndef MRC_CORE_SPRAY_H
#define MRC_CORE_SPRAY_H

#include "qp.h"

/* Before a choice: of all planes that may be chosen, those that come back, whatever kept them away,
   start level with those that stayed and do not make up for what they missed. When none has stayed,
   all start level. */
void mrc_spray_level(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes);
/* The plane of the next burst, whose first packet has `bytes`; -1 when none may be sent on now.
   `planes`: those with an EV to send on. */
int mrc_spray_choose(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes,
                     uint32_t bytes);
/* A packet of `bytes` goes to the plane; or it does not, for the kernel refused it. */
static inline void mrc_spray_give(struct mrc_qp *qp, uint32_t index, uint32_t bytes) {
  struct mrc_plane *plane = &qp->planes[index];
  plane->share_bytes += bytes;
  qp->choice.most_share_bytes = mrc_max_u64(qp->choice.most_share_bytes, plane->share_bytes);
}
void mrc_spray_take_back(struct mrc_qp *qp, uint32_t plane, uint32_t bytes);

/* Compares the planes; to be called with news of them, and when work begins. */
void mrc_spray_compare(const struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* How long an answer from the quickest plane other than this one takes at most; MRC_NEVER when
   there is none, or none was measured. */
uint64_t mrc_spray_others_overdue_ns(const struct mrc_services *services, const struct mrc_qp *qp,
                                     uint32_t plane);
/* Whether the plane answers much later than the quickest one. */
bool mrc_spray_is_slow(const struct mrc_qp *qp, uint32_t plane);

#endif
