/* SPDX-License-Identifier: Apache-2.0 */
/* Which planes are quick, which answer late, and which are limited: they deliver far less than the
   others. */
#pragma once

#include "core/qp.h"

/* Compares the planes. Call it after new measurements and when work begins. */
void mrc_quick_compare(const struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* The time that an answer from this plane takes now, without the reverse queue, which says nothing
   about our data. While nothing is in flight the plane's own queue drains: what was measured above
   the time of a packet that found the plane empty halves again and again. 0: unknown, or measured
   so long ago that the plane is tried again because it may have recovered. */
uint64_t mrc_quick_answer_ns(const struct mrc_qp *qp, uint32_t plane, uint64_t now_ns);
/* Whether the plane answers much later than the quickest one, or is limited. */
bool mrc_quick_is_slow(const struct mrc_qp *qp, uint32_t plane);
static inline bool mrc_quick_is_limited(const struct mrc_qp *qp, uint32_t plane) {
  return qp->attr.rts.plane_shares != MRC_SHARES_EQUAL &&
         (qp->choice.quick.limited >> plane & 1) != 0;
}
/* How long a limited plane takes for what it has in flight, and `bytes` more; without its base RTT.
 */
uint64_t mrc_quick_queue_ns(const struct mrc_qp *qp, uint32_t plane, uint32_t bytes);
/* The time after sending at which an answer from the quickest other plane is overdue; MRC_NEVER if
   no other plane was measured. */
uint64_t mrc_quick_others_overdue_ns(const struct mrc_services *services, const struct mrc_qp *qp,
                                     uint32_t plane);
