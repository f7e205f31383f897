/* SPDX-License-Identifier: Apache-2.0 */
#include "quick.h"

#define OLD_NS 500000000ull        /* older measurements are ignored */
#define IDLE_HALVES_NS 50000000ull /* of an idle plane */
#define LIMITED 4                  /* a plane this much slower, or worse, is limited */

uint64_t mrc_quick_answer_ns(const struct mrc_qp *qp, uint32_t index, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[index];
  const uint64_t ago_ns = now_ns - plane->heard_ns;
  if (ago_ns > OLD_NS) return 0;
  const bool idle = qp->req.win.lists[index].oldest == MRC_TX_NONE;
  const uint64_t faded_ns = plane->answer_ns >> (idle ? ago_ns / IDLE_HALVES_NS : 0);
  return mrc_max_u64(
      faded_ns, mrc_min_u64(plane->answer_ns, mrc_max_u64(plane->empty_ns, plane->rtt.base_ns)));
}

/* The planes that take LIMITED times as long as the fastest one for the same bytes, or lose LIMITED
   times as many bursts as the best one. A plane that was limited remains so until it is half as
   bad, because the rates of the others vary too. What packets may wait in busy hosts is no lack of
   rate: many QPs in turn make each other wait. */
static uint32_t limited_planes(const struct mrc_qp *qp, uint32_t planes, uint64_t now_ns) {
  uint64_t least_ns = UINT64_MAX;
  uint32_t least_losses = MRC_DELIVERY_ALL, limited = 0;
  const uint64_t longest_wait_ns = mrc_guard_ns(&qp->req.host_waits, now_ns) / 2;
  MRC_EACH_BIT(index, planes) {
    const struct mrc_delivery *delivery = &qp->planes[index].delivery;
    const uint64_t takes_ns = mrc_delivery_takes_ns(delivery);
    if (takes_ns != 0) least_ns = mrc_min_u64(least_ns, takes_ns);
    least_losses = mrc_min_u32(least_losses, delivery->losses);
  }
  if (least_ns == UINT64_MAX) return 0;
  MRC_EACH_BIT(index, planes) {
    const struct mrc_plane *plane = &qp->planes[index];
    const uint32_t times = mrc_quick_is_limited(qp, index) ? LIMITED / 2 : LIMITED;
    const uint64_t limit_ns = times * (least_ns + qp->noise_ns) + longest_wait_ns;
    if (mrc_delivery_takes_ns(&plane->delivery) > limit_ns ||
        (mrc_delivery_is_lossy(&plane->delivery) && plane->delivery.losses > times * least_losses))
      limited |= 1u << index;
  }
  return limited != planes ? limited : 0;
}

void mrc_quick_compare(const struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_quick quick = {.answer_ns = UINT64_MAX, .compared_ns = now_ns};
  const uint32_t planes = mrc_qp_eligible_planes(services, qp);
  MRC_EACH_BIT(plane, planes)
    mrc_delivery_forget(&qp->planes[plane].delivery, OLD_NS, now_ns);
  quick.limited = limited_planes(qp, planes, now_ns);
  MRC_EACH_BIT(plane, planes & ~quick.limited) {
    const uint64_t ns = mrc_quick_answer_ns(qp, plane, now_ns);
    if (ns != 0) quick.answer_ns = mrc_min_u64(quick.answer_ns, ns);
  }
  if (quick.answer_ns == UINT64_MAX) quick.answer_ns = 0;
  const uint64_t limit_ns = 2 * quick.answer_ns + qp->noise_ns;
  MRC_EACH_BIT(plane, planes)
    if (mrc_quick_answer_ns(qp, plane, now_ns) <= limit_ns) quick.planes |= 1u << plane;
  qp->choice.quick = quick;
}

bool mrc_quick_is_slow(const struct mrc_qp *qp, uint32_t plane) {
  if (qp->attr.rts.plane_shares == MRC_SHARES_EQUAL) return false; /* all planes carry the same */
  if (mrc_quick_is_limited(qp, plane)) return true;
  return qp->choice.quick.planes != 0 && (qp->choice.quick.planes >> plane & 1) == 0;
}

uint64_t mrc_quick_others_overdue_ns(const struct mrc_services *services, const struct mrc_qp *qp,
                                     uint32_t plane) {
  uint64_t overdue_ns = MRC_NEVER;
  MRC_EACH_BIT(other, mrc_qp_eligible_planes(services, qp) & ~(1u << plane)) {
    const struct mrc_rtt *rtt = &qp->planes[other].rtt;
    if (mrc_rtt_known(rtt))
      overdue_ns = mrc_min_u64(overdue_ns,
                               mrc_qp_overdue_ns(qp, rtt, 2ull * qp->noise_ns, services->now_ns));
  }
  return overdue_ns;
}

uint64_t mrc_quick_queue_ns(const struct mrc_qp *qp, uint32_t index, uint32_t bytes) {
  const struct mrc_plane *plane = &qp->planes[index];
  const uint64_t ahead_bytes = qp->req.win.lists[index].bytes + bytes;
  const uint64_t takes_ns = mrc_delivery_takes_ns(&plane->delivery);
  const uint64_t resend_ns = mrc_delivery_is_lossy(&plane->delivery)
                                 ? 2 * mrc_rtt_overdue_ns(&qp->req.rtt, 2ull * qp->noise_ns)
                                 : 0;
  return resend_ns + mrc_mul_div(ahead_bytes, takes_ns, MRC_DELIVERY_BYTES);
}
