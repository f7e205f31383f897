/* SPDX-License-Identifier: Apache-2.0 */
#include "share.h"

bool mrc_share_judge(struct mrc_share *share, uint64_t bytes, uint64_t others_bytes,
                     uint32_t n_others) {
  mrc_assert(n_others > 0);
  const uint64_t percent = others_bytes == 0 ? MRC_SHARE_MAX_PERCENT
                                             : mrc_mul_div(bytes, 100ull * n_others, others_bytes);
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

bool mrc_share_is_bulk(const struct mrc_share_sum *sum, uint32_t n_planes, uint32_t mtu_bytes) {
  if (sum->bytes < (uint64_t)n_planes * MRC_SHARE_MIN_PACKETS * mtu_bytes) return false;
  return sum->backed_bytes >= sum->bytes / 4 * 3;
}

/* Queues an event for every QP of the peer that uses the plane. */
static void report(struct mrc_services *services, const struct mrc_peer *peer, uint32_t plane) {
  const struct mrc_share *share = &peer->shares[plane];
  for (const struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next) {
    if (qp->state != MRC_QP_RTS || (qp->evset.plane_mask >> plane & 1) == 0) continue;
    if (qp->attr.rts.plane_shares == MRC_SHARES_EQUAL) continue;
    mrc_trace(services, MRC_TRACE_PLANE_SHARE, qp->qpn, mrc_port_of(plane), share->percent);
    const struct mrc_event event = {.type = MRC_EVENT_PLANE_SHARE,
                                    .qpn = qp->qpn,
                                    .port = mrc_port_of(plane),
                                    .status = !share->slow,
                                    .result = (int32_t)share->percent,
                                    .reason = MRC_REASON_DELIVERY};
    mrc_event_push(services, &event);
  }
}

/* The QP of the peer that carried most in this period. */
static const struct mrc_qp *busiest(const struct mrc_peer *peer) {
  const struct mrc_qp *found = peer->qps;
  for (const struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next)
    if (qp->req.share.bytes > found->req.share.bytes) found = qp;
  return found;
}

/* Compares the planes of the busiest QP, summed over all QPs that use the same planes. */
static void compare(struct mrc_services *services, struct mrc_peer *peer) {
  const struct mrc_qp *first = busiest(peer);
  const uint32_t live = mrc_qp_alive_planes(services, first);
  const uint32_t n_planes = (uint32_t)__builtin_popcount(live);
  struct mrc_share_sum sum = {0};
  uint64_t carried[MRC_MAX_PORTS] = {0};
  for (const struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next) {
    if (qp->req.share.bytes == 0 || mrc_qp_alive_planes(services, qp) != live) continue;
    sum.backed_bytes += qp->req.share.backed_bytes;
    MRC_EACH_BIT(plane, live) {
      carried[plane] += qp->planes[plane].share_acked_bytes;
      sum.bytes += qp->planes[plane].share_acked_bytes;
    }
  }
  if (n_planes < 2 || !mrc_share_is_bulk(&sum, n_planes, first->attr.rts.path_mtu)) return;
  MRC_EACH_BIT(plane, live) {
    const uint64_t others_bytes = sum.bytes - carried[plane];
    if (mrc_share_judge(&peer->shares[plane], carried[plane], others_bytes, n_planes - 1))
      report(services, peer, plane);
  }
}

/* The base round trip of the shortest plane; UINT64_MAX: unknown. On a slow plane, the base round
   trip may be mostly the time that its packets take on the wire. */
static uint64_t shortest_rtt_ns(const struct mrc_qp *qp) {
  uint64_t shortest_ns = UINT64_MAX;
  MRC_EACH_BIT(index, qp->evset.plane_mask) {
    const struct mrc_plane *plane = &qp->planes[index];
    if (!plane->suspended && plane->rtt.base_ns != 0)
      shortest_ns = mrc_min_u64(shortest_ns, plane->rtt.base_ns);
  }
  return shortest_ns;
}

static void begin_period(struct mrc_peer *peer, uint32_t noise_ns, uint64_t now_ns) {
  uint64_t rtt_ns = UINT64_MAX;
  for (struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next) {
    qp->req.share = (struct mrc_share_sum){0};
    MRC_EACH_BIT(plane, qp->evset.plane_mask)
      qp->planes[plane].share_acked_bytes = 0;
    rtt_ns = mrc_min_u64(rtt_ns, shortest_rtt_ns(qp));
  }
  uint64_t period_ns = mrc_floor_ns(MRC_SHARE_PERIOD_NS, noise_ns);
  if (rtt_ns != UINT64_MAX) period_ns = mrc_max_u64(period_ns, MRC_SHARE_ROUNDS * rtt_ns);
  peer->share = (struct mrc_share_period){.end_ns = now_ns + period_ns, .whole = true};
}

void mrc_share_on_acked(struct mrc_services *services, struct mrc_qp *qp, uint64_t bytes,
                        uint64_t now_ns) {
  if (qp->attr.rts.plane_shares == MRC_SHARES_EQUAL) return;
  struct mrc_share_sum *sum = &qp->req.share;
  sum->bytes += bytes;
  if (qp->req.unsent_bytes > 0) sum->backed_bytes += bytes;
  struct mrc_peer *peer = qp->peer;
  if (now_ns < peer->share.end_ns) return;
  if (peer->share.whole) compare(services, peer);
  begin_period(peer, qp->noise_ns, now_ns);
}

void mrc_share_forget(struct mrc_qp *qp, uint32_t plane) {
  for (const struct mrc_qp *other = qp->peer->qps; other != NULL; other = other->peer_next)
    if (other != qp && !other->planes[plane].suspended &&
        other->planes[plane].share_acked_bytes > 0)
      return;
  qp->peer->shares[plane] = (struct mrc_share){0};
  qp->peer->share = (struct mrc_share_period){0};
}

struct mrc_share mrc_share_of(const struct mrc_qp *qp, uint32_t plane) {
  if (qp->peer == NULL || qp->attr.rts.plane_shares == MRC_SHARES_EQUAL)
    return (struct mrc_share){0};
  return qp->peer->shares[plane];
}
