/* SPDX-License-Identifier: Apache-2.0 */
#include "spray.h"

#include "core/base.h"
#include "quick.h"

#define LEAD_BYTES 262144 /* how far the shares of two planes may differ */

void mrc_spray_start(struct mrc_qp *qp) {
  struct mrc_prng prng = {.state = qp->qpn};
  const uint32_t planes = qp->evset.plane_mask;
  const uint32_t n = (uint32_t)__builtin_popcount(planes);
  uint32_t turn = mrc_prng_below(&prng, n);
  MRC_EACH_BIT(plane, planes) {
    qp->planes[plane].share_bytes = turn; /* a few bytes decide between equal shares */
    turn = turn + 1 < n ? turn + 1 : 0;
  }
  qp->choice.sharing = planes;
}

/* ---- equal shares: MRC's own rule ---- */

/* A plane with a full socket holds the others back until the socket drains, up to a time limit. */
static bool holds_others_back(const struct mrc_services *services, uint32_t plane) {
  return services->now_ns - services->ports.blocked_ns[plane] < MRC_BLOCKED_PATIENCE_NS;
}

/* The planes that take equal shares now. A plane with a socket that stays full is left out. */
static uint32_t sharing_planes(const struct mrc_services *services, uint32_t planes) {
  uint32_t sharing = planes & ~services->ports.blocked;
  MRC_EACH_BIT(plane, planes & services->ports.blocked)
    if (holds_others_back(services, plane)) sharing |= 1u << plane;
  return sharing;
}

void mrc_spray_level(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes) {
  const uint32_t sharing = sharing_planes(services, planes);
  const uint32_t stayed = sharing & qp->choice.sharing;
  qp->choice.sharing = sharing;
  if (stayed == sharing) return;
  uint64_t least = UINT64_MAX, most = 0;
  MRC_EACH_BIT(plane, qp->evset.plane_mask) {
    const uint64_t share = qp->planes[plane].share_bytes;
    if ((stayed >> plane & 1) != 0) least = mrc_min_u64(least, share);
    most = mrc_max_u64(most, share);
  }
  const uint64_t level = stayed != 0 ? least : most;
  MRC_EACH_BIT(plane, sharing & ~stayed)
    qp->planes[plane].share_bytes = mrc_max_u64(qp->planes[plane].share_bytes, level);
}

/* The plane with the smallest share; -1 when its window has no room, or when it would run too far
   ahead of a plane with a full socket. */
static int choose_equal(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes,
                        uint32_t bytes) {
  int best = -1;
  uint64_t least_blocked = UINT64_MAX;
  MRC_EACH_BIT(plane, planes) {
    const uint64_t share = qp->planes[plane].share_bytes;
    if ((services->ports.blocked >> plane & 1) == 0) {
      if (best < 0 || share < qp->planes[best].share_bytes) best = (int)plane;
    } else if (holds_others_back(services, plane)) {
      least_blocked = mrc_min_u64(least_blocked, share);
    }
  }
  if (best < 0 || !mrc_qp_has_room(qp, (uint32_t)best, bytes)) return -1;
  if (least_blocked != UINT64_MAX && qp->planes[best].share_bytes > least_blocked + LEAD_BYTES)
    return -1;
  return best;
}

/* ---- measured shares: the windows of the planes set the limits ---- */

static uint64_t may_send_bytes(const struct mrc_qp *qp) {
  const uint64_t psns = mrc_requester_window_left(&qp->req) / 4 * 3; /* a reserve must remain */
  return mrc_min_u64(qp->req.unsent_bytes, psns * qp->attr.rts.path_mtu);
}

/* The limited planes in `planes` that might deliver `bytes` later than the others deliver all data
   that may be sent. Rates are known roughly, so a limited plane must finish well before. */
static uint32_t late_planes(const struct mrc_qp *qp, uint32_t planes, uint32_t bytes) {
  const uint32_t limited = planes & qp->choice.quick.limited;
  if (limited == 0) return 0;
  uint64_t others_bytes = may_send_bytes(qp), others_rate = 0;
  MRC_EACH_BIT(plane, planes & ~limited) {
    const uint64_t takes_ns = mrc_delivery_takes_ns(&qp->planes[plane].delivery);
    if (takes_ns == 0) continue;
    others_bytes += qp->req.win.lists[plane].bytes;
    others_rate += ((uint64_t)MRC_DELIVERY_BYTES << 20) / takes_ns;
  }
  if (others_rate == 0) return 0;
  const uint64_t others_ns = (others_bytes << 20) / others_rate;
  uint32_t late = 0;
  MRC_EACH_BIT(plane, limited) {
    if (qp->planes[plane].rtt.base_ns + mrc_quick_queue_ns(qp, plane, bytes) + qp->noise_ns >
        others_ns / 4 * 3)
      late |= 1u << plane;
  }
  return late;
}

/* The planes in `planes`, none of them quick, on which a packet arrives before the quick planes
   could finish all data that may be sent. So short messages, the ends of long messages and the
   shared window of PSNs do not wait for the slowest plane. */
static uint32_t worth_it(const struct mrc_qp *qp, uint32_t planes, uint64_t now_ns) {
  const struct mrc_quick *quick = &qp->choice.quick;
  const uint64_t may_bytes = may_send_bytes(qp);
  uint64_t inflight_bytes = 1; /* on the quick planes: they carry it in answer_ns */
  MRC_EACH_BIT(plane, quick->planes)
    inflight_bytes += qp->req.win.lists[plane].bytes;
  const uint64_t rounds = 1 + may_bytes / inflight_bytes;
  uint32_t worth = 0;
  const uint64_t limit_ns = rounds * quick->answer_ns + qp->noise_ns;
  MRC_EACH_BIT(plane, planes)
    if (mrc_quick_answer_ns(qp, plane, now_ns) <= limit_ns) worth |= 1u << plane;
  return worth;
}

/* The plane with the smallest share among those with room; -1: none. */
static int least_given(const struct mrc_qp *qp, uint32_t planes, uint32_t bytes) {
  int best = -1;
  MRC_EACH_BIT(plane, planes) {
    if (best >= 0 && qp->planes[plane].share_bytes >= qp->planes[best].share_bytes) continue;
    if (mrc_qp_has_room(qp, plane, bytes)) best = (int)plane;
  }
  return best;
}

/* Whether a plane has more in flight than another one, each relative to its window. Windows that
   differ less than twofold do not show that one plane is faster. */
static bool is_ahead(const struct mrc_qp *qp, uint32_t plane, uint32_t other) {
  const uint64_t bytes = qp->req.win.lists[plane].bytes, others = qp->req.win.lists[other].bytes;
  const uint64_t cwnd = mrc_qp_const_cc(qp, plane)->cwnd_bytes;
  const uint64_t others_cwnd = mrc_qp_const_cc(qp, other)->cwnd_bytes;
  if (cwnd < 2 * others_cwnd && others_cwnd < 2 * cwnd) return bytes > others;
  return bytes * others_cwnd > others * cwnd;
}

/* Whether another plane should take the next burst as soon as its socket has drained. Otherwise, at
   the end of the data, the plane that drained first would take all that is left and finish last. */
static bool waits_for_another(const struct mrc_services *services, const struct mrc_qp *qp,
                              uint32_t plane, uint32_t planes) {
  const struct mrc_txwin *win = &qp->req.win;
  if ((planes & services->ports.blocked) == 0) return false;
  if (mrc_requester_left_bytes(&qp->req, qp->attr.rts.path_mtu) >= win->inflight_bytes)
    return false;
  if (win->n_tosend > 0 && mrc_txwin_slot(win, mrc_txwin_first_tosend(win))->state == MRC_TX_LOST)
    return false;
  MRC_EACH_BIT(other, planes & services->ports.blocked)
    if (holds_others_back(services, other) && is_ahead(qp, plane, other)) return true;
  return false;
}

/* Quick planes come first. A plane does not make up for data that it could not carry. */
static int choose_measured(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes,
                           uint32_t bytes) {
  const uint32_t usable = planes & ~services->ports.blocked & ~late_planes(qp, planes, bytes);
  const uint32_t slow =
      (planes & qp->choice.quick.planes) != 0 ? usable & ~qp->choice.quick.planes : 0;
  int best = least_given(qp, usable & ~slow, bytes);
  if (best < 0 && slow != 0) best = least_given(qp, worth_it(qp, slow, services->now_ns), bytes);
  if (best < 0) return -1;
  if (waits_for_another(services, qp, (uint32_t)best, planes & qp->choice.quick.planes)) return -1;
  struct mrc_plane *chosen = &qp->planes[best];
  if (chosen->share_bytes + LEAD_BYTES < qp->choice.most_share_bytes)
    chosen->share_bytes = qp->choice.most_share_bytes - LEAD_BYTES;
  return best;
}

int mrc_spray_choose(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes,
                     uint32_t bytes) {
  if (qp->attr.rts.plane_shares == MRC_SHARES_EQUAL)
    return choose_equal(services, qp, planes, bytes);
  return choose_measured(services, qp, planes, bytes);
}

void mrc_spray_take_back(struct mrc_qp *qp, uint32_t index, uint32_t bytes) {
  struct mrc_plane *plane = &qp->planes[index];
  plane->share_bytes -= mrc_min_u64(plane->share_bytes, bytes);
}
