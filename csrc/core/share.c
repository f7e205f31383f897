/* SPDX-License-Identifier: Apache-2.0 */
#include "share.h"

#include "engine.h"

bool mrc_share_judge(struct mrc_share *share, uint64_t others_bytes, uint32_t n_others) {
  mrc_assert(n_others > 0);
  const uint64_t percent = others_bytes == 0
                               ? MRC_SHARE_MAX_PERCENT
                               : mrc_mul_div(share->bytes, 100ull * n_others, others_bytes);
  share->compared = true;
  share->percent = (uint32_t)mrc_min_u64(percent, MRC_SHARE_MAX_PERCENT);
  const bool against = share->slow ? share->percent > MRC_SHARE_FAIR_PERCENT
                                   : share->percent < MRC_SHARE_SLOW_PERCENT;
  share->against = against ? share->against + 1 : 0;
  if (share->against < MRC_SHARE_PERIODS) return false;
  share->against = 0;
  share->slow = !share->slow;
  return true;
}

bool mrc_share_is_bulk(const struct mrc_share_period *period, uint32_t mtu_bytes) {
  const uint64_t planes = (uint64_t)__builtin_popcount(period->planes);
  if (period->bytes < planes * MRC_SHARE_MIN_PACKETS * mtu_bytes) return false;
  return period->backed_bytes >= period->bytes / 4 * 3;
}

/* Planes that carry data now. */
static uint32_t live_planes(const struct mrc_engine *engine, const struct mrc_qp *qp) {
  uint32_t live = 0;
  for (uint32_t rest = qp->evset.plane_mask & engine->ports_up; rest != 0; rest &= rest - 1) {
    const uint32_t index = (uint32_t)__builtin_ctz(rest);
    const struct mrc_plane *plane = &qp->planes[index];
    if (plane->suspended || plane->peer_down || qp->evset.planes[index].n_active == 0) continue;
    live |= rest & -rest;
  }
  return live;
}

static void begin_period(struct mrc_qp *qp, uint32_t live, uint64_t now_ns) {
  uint64_t longest_ns = 0;
  for (uint32_t rest = qp->evset.plane_mask; rest != 0; rest &= rest - 1) {
    struct mrc_plane *plane = &qp->planes[__builtin_ctz(rest)];
    plane->share.bytes = 0;
    if ((live & rest & -rest) != 0) longest_ns = mrc_max_u64(longest_ns, plane->rtt.base_ns);
  }
  const uint64_t period_ns =
      mrc_max_u64(mrc_floor_ns(MRC_SHARE_PERIOD_NS, qp->noise_ns), MRC_SHARE_ROUNDS * longest_ns);
  qp->req.share = (struct mrc_share_period){.end_ns = now_ns + period_ns, .planes = live};
}

static void report(struct mrc_engine *engine, const struct mrc_qp *qp, uint32_t plane) {
  const struct mrc_share *share = &qp->planes[plane].share;
  mrc_trace(engine, MRC_TRACE_PLANE_SHARE, qp->qpn, plane + 1, share->percent);
  const struct mrc_event event = {.type = MRC_EVENT_PLANE_SHARE,
                                  .qpn = qp->qpn,
                                  .port = (uint8_t)(plane + 1),
                                  .status = !share->slow,
                                  .result = (int32_t)share->percent,
                                  .reason = MRC_REASON_DELIVERY};
  mrc_event_push(engine, &event);
}

static void compare(struct mrc_engine *engine, struct mrc_qp *qp) {
  const struct mrc_share_period *period = &qp->req.share;
  const uint32_t n_others = (uint32_t)__builtin_popcount(period->planes) - 1;
  for (uint32_t rest = period->planes; rest != 0; rest &= rest - 1) {
    const uint32_t plane = (uint32_t)__builtin_ctz(rest);
    struct mrc_share *share = &qp->planes[plane].share;
    mrc_assert(share->bytes <= period->bytes);
    if (mrc_share_judge(share, period->bytes - share->bytes, n_others)) report(engine, qp, plane);
  }
}

void mrc_share_on_acked(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t bytes,
                        uint64_t now_ns) {
  if (qp->attr.plane_shares == MRC_SHARES_EQUAL) return;
  struct mrc_share_period *period = &qp->req.share;
  period->bytes += bytes;
  if (qp->req.unsent_bytes > 0) period->backed_bytes += bytes;
  if (now_ns < period->end_ns) return;
  const uint32_t live = live_planes(engine, qp);
  const bool same = live == period->planes && __builtin_popcount(live) > 1;
  if (same && mrc_share_is_bulk(period, qp->attr.path_mtu)) compare(engine, qp);
  begin_period(qp, live, now_ns);
}

void mrc_share_forget(struct mrc_qp *qp, uint32_t plane) {
  qp->planes[plane].share = (struct mrc_share){0};
  qp->req.share.planes = 0;
  qp->req.share.end_ns = 0;
}
