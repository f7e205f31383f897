/* SPDX-License-Identifier: Apache-2.0 */
#include "detect.h"

#include "health.h"

#define SLOW_TIMES 2   /* times the longer round trip of a slow path, until its silence tells */
#define DOUBT_ROUNDS 2 /* times an overdue answer, until a plane that owes answers is silent */

/* Notes the newest packet of each EV among the packets that this SACK shows as received. If the
   original of a packet arrived, that says nothing about the EV of its retransmission. */
static void note_order(struct mrc_order *order, const struct mrc_txwin *win, uint32_t base,
                       uint64_t bitmap) {
  order->serial++;
  for (uint64_t bits = bitmap; bits != 0; bits &= bits - 1) {
    const uint32_t psn = mrc_psn_add(base, (uint32_t)__builtin_ctzll(bits));
    if (!mrc_txwin_holds(win, psn)) continue;
    const struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
    if (slot->state != MRC_TX_ACKED || slot->of_original) continue;
    struct mrc_newest *newest = &order->newest[slot->ev];
    if (newest->serial == order->serial && !mrc_txslot_after(slot, &win->slots[newest->slot]))
      continue;
    *newest = (struct mrc_newest){.serial = order->serial, .slot = (uint16_t)(slot - win->slots)};
  }
}

/* Whether the SACK shows a packet that was sent after this one on the same EV. */
static bool was_passed(const struct mrc_order *order, const struct mrc_txwin *win,
                       const struct mrc_txslot *slot) {
  const struct mrc_newest *newest = &order->newest[slot->ev];
  return newest->serial == order->serial && mrc_txslot_after(&win->slots[newest->slot], slot);
}

/* Paths are FIFO: a packet is lost if a packet sent later on the same EV arrived. The guard is for
   hosts whose receive side has reordered packets. */
static bool lost_by_order(const struct mrc_services *services, const struct mrc_qp *qp,
                          const struct mrc_txslot *slot, uint64_t now_ns) {
  if (!was_passed(&services->arena.scratch->order, &qp->req.win, slot)) return false;
  const struct mrc_plane *plane = &qp->planes[slot->plane];
  const uint64_t guard_ns = mrc_guard_ns(&plane->reorder, now_ns);
  return guard_ns == 0 || now_ns >= slot->sent_ns + plane->rtt.smooth_ns + guard_ns;
}

void mrc_detect_holes(struct mrc_services *services, struct mrc_qp *qp, uint32_t base,
                      uint64_t bitmap, uint64_t now_ns) {
  if (bitmap == 0) return;
  const struct mrc_txwin *win = &qp->req.win;
  const uint32_t top = 63 - (uint32_t)__builtin_clzll(bitmap);
  uint64_t holes = ~bitmap & ((1ull << top) - 1);
  if (holes == 0) return;
  note_order(&services->arena.scratch->order, win, base, bitmap);
  for (; holes != 0; holes &= holes - 1) {
    const uint32_t psn = mrc_psn_add(base, (uint32_t)__builtin_ctzll(holes));
    if (!mrc_txwin_holds(win, psn)) continue;
    const struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
    if (slot->state == MRC_TX_INFLIGHT && lost_by_order(services, qp, slot, now_ns))
      mrc_health_on_lost(services, qp, psn, MRC_COUNTER_LOST_BY_ORDER, now_ns);
  }
}

/* Loss by time compares send times with send times, never with the clock: a stalled host delays
   every answer although nothing is lost. A packet is missing only if packets that were sent much
   later have arrived. */

/* By how much the delays of the paths of one plane may differ. */
static uint64_t spread_ns(const struct mrc_qp *qp, const struct mrc_plane *plane, uint64_t now_ns) {
  const uint64_t floor_ns = mrc_floor_ns(MRC_LOSS_REORDER_FLOOR_NS, qp->noise_ns);
  const uint64_t spread = mrc_max_u64(floor_ns, plane->rtt.smooth_ns / 2);
  return mrc_max_u64(spread, 2 * plane->rtt.var_ns) + mrc_guard_ns(&plane->spread, now_ns) +
         mrc_guard_ns(&plane->reorder, now_ns);
}

/* The send time up to which the peer has told what this plane delivered. What another plane's SACK
   shows of this plane counts later, when an own SACK would be overdue: until then the report on the
   packets before it may still be on its way. Own SACKs are missing when their path is dead. */
static uint64_t told_ns(const struct mrc_qp *qp, const struct mrc_plane *plane, uint64_t now_ns) {
  const uint64_t overdue_ns = mrc_qp_overdue_ns(qp, &plane->rtt, 2ull * qp->noise_ns, now_ns);
  return mrc_max_u64(plane->reported_ns, plane->rack_ns - mrc_min_u64(plane->rack_ns, overdue_ns));
}

/* Whether the peer told of a packet that was sent on the same plane later than this one by the
   spread. */
static bool is_late(const struct mrc_qp *qp, const struct mrc_txslot *slot, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[slot->plane];
  return told_ns(qp, plane, now_ns) > slot->sent_ns + spread_ns(qp, plane, now_ns);
}

/* By how much more than the spread an EV that delivers nothing may be late. A path with a longer
   round trip than its plane has a queue, which may grow. NSCC requires switches that trim: they may
   hold a packet in a queue for any time. */
static uint64_t slack_ns(const struct mrc_qp *qp, const struct mrc_plane *plane, uint16_t ev) {
  const uint64_t rtt_ns = qp->evset.evs[ev].rtt_ns, usual_ns = plane->rtt.smooth_ns;
  if (!qp->evset.by_delay) return usual_ns + rtt_ns;
  return SLOW_TIMES * (rtt_ns - mrc_min_u64(rtt_ns, usual_ns));
}

/* Whether a late packet is lost, or its path is only slow. It is lost if a packet sent later by the
   spread on the same EV arrived. It is also lost if the EV delivers nothing, while the plane
   delivers packets sent later by the spread and the slack. */
static bool lost_by_time(const struct mrc_qp *qp, const struct mrc_txslot *late, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[late->plane];
  const struct mrc_ev_rack *rack = &qp->evset.racks[late->ev];
  const uint64_t spread = spread_ns(qp, plane, now_ns);
  if (rack->newest_ns > late->sent_ns + spread) return true;
  const uint64_t heard_ns = mrc_max_u64(late->sent_ns, rack->heard_ns);
  return told_ns(qp, plane, now_ns) > heard_ns + spread + slack_ns(qp, plane, late->ev);
}

/* The oldest packet in flight on the plane that is lost by time, or late on an EV that can still be
   avoided; 0 if there is none. */
static const struct mrc_txslot *find_missing(const struct mrc_qp *qp, uint32_t plane,
                                             uint64_t now_ns) {
  const struct mrc_txwin *win = &qp->req.win;
  const uint64_t newest_ns = told_ns(qp, &qp->planes[plane], now_ns);
  for (uint16_t at = win->lists[plane].oldest; at != MRC_TX_NONE; at = win->slots[at].newer) {
    const struct mrc_txslot *slot = &win->slots[at];
    if (!is_late(qp, slot, now_ns)) return NULL;
    if (lost_by_time(qp, slot, now_ns)) return slot;
    const uint64_t late_ns = newest_ns - slot->sent_ns;
    if (mrc_evset_can_avoid(&qp->evset, slot->ev, slot->sent_ns, late_ns)) return slot;
  }
  return NULL;
}

/* How much later another plane must have sent a packet that arrived, to prove this plane silent. */
static uint64_t silence_ns(const struct mrc_qp *qp, const struct mrc_plane *plane,
                           uint64_t now_ns) {
  const bool known = mrc_rtt_known(&plane->rtt);
  const uint64_t overdue_ns = mrc_qp_overdue_ns(qp, known ? &plane->rtt : &qp->req.rtt, 0, now_ns);
  const uint64_t floor_ns = mrc_floor_ns(MRC_LOSS_SILENCE_FLOOR_NS, qp->noise_ns);
  uint64_t patience_ns = mrc_max_u64(floor_ns, overdue_ns) + mrc_guard_ns(&plane->reorder, now_ns);
  if (!known) /* it may be much longer than the others, but not longer than the local timeout */
    patience_ns = mrc_max_u64(patience_ns, mrc_min_u64(MRC_LOSS_SKEW * overdue_ns,
                                                       (1024ull << qp->attr.rts.timeout) / 4));
  return patience_ns;
}

uint64_t mrc_detect_silent_ns(const struct mrc_qp *qp, const struct mrc_txslot *oldest,
                              uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[oldest->plane];
  const uint64_t since_ns = mrc_max_u64(oldest->sent_ns, plane->rack_ns);
  return mrc_max_u64(since_ns, plane->heard_ns) + silence_ns(qp, plane, now_ns) + 1;
}

/* Whether the plane delivered nothing, while another plane delivered packets that were sent much
   later. A plane that keeps delivering is slow, not silent. */
static bool lost_by_silence(const struct mrc_qp *qp, uint32_t index,
                            const struct mrc_txslot *oldest, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[index];
  const uint64_t since_ns = mrc_max_u64(oldest->sent_ns, plane->rack_ns);
  const uint64_t patience_ns = silence_ns(qp, plane, now_ns);
  MRC_EACH_BIT(at, qp->evset.plane_mask & ~(1u << index)) {
    const struct mrc_plane *other = &qp->planes[at];
    const bool later = other->rack_ns > since_ns + patience_ns;
    if (later && other->heard_ns > plane->heard_ns + patience_ns) return true;
  }
  return false;
}

/* Declares the burst lost that begins with this packet in flight. */
static void lose_burst(struct mrc_services *services, struct mrc_qp *qp,
                       const struct mrc_txslot *first, enum mrc_counter why, uint64_t now_ns) {
  const struct mrc_txwin *win = &qp->req.win;
  const uint16_t ev = first->ev;
  const uint64_t sent_ns = first->sent_ns;
  for (uint16_t at = (uint16_t)(first - win->slots), next;
       at != MRC_TX_NONE && win->slots[at].ev == ev && win->slots[at].sent_ns == sent_ns;
       at = next) {
    next = win->slots[at].newer;
    mrc_health_on_lost(services, qp, mrc_txwin_psn_of(win, at), why, now_ns);
  }
}

/* Whether a plane has delivered nothing since its packets were sent again elsewhere, for
   DOUBT_ROUNDS times an overdue answer, while other planes delivered. */
static bool stays_silent(const struct mrc_qp *qp, uint32_t index, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[index];
  if (plane->doubted_ns == 0 || plane->suspended) return false;
  const uint64_t floor_ns = mrc_floor_ns(MRC_LOSS_SILENCE_FLOOR_NS, qp->noise_ns);
  const uint64_t patience_ns = DOUBT_ROUNDS * mrc_qp_overdue_ns(qp, &plane->rtt, floor_ns, now_ns);
  MRC_EACH_BIT(other, qp->evset.plane_mask & ~(1u << index))
    if (qp->planes[other].heard_ns > plane->doubted_ns + patience_ns) return true;
  return false;
}

static void detect_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                         uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  const struct mrc_txwin *win = &qp->req.win;
  const struct mrc_txlist *list = &win->lists[index];
  if (stays_silent(qp, index, now_ns))
    mrc_health_suspend_plane(services, qp, index, MRC_REASON_SILENCE, now_ns);
  while (list->oldest != MRC_TX_NONE) {
    const struct mrc_txslot *oldest = &win->slots[list->oldest];
    const struct mrc_txslot *missing = find_missing(qp, index, now_ns);
    if (missing != NULL && lost_by_time(qp, missing, now_ns)) {
      lose_burst(services, qp, missing, MRC_COUNTER_LOST_BY_TIME, now_ns);
    } else if (missing != NULL) {
      if (mrc_evset_on_late(&qp->evset, missing->ev, now_ns))
        mrc_health_report_ev(services, qp, missing->ev, MRC_REASON_LOSS);
    } else if (lost_by_silence(qp, index, oldest, now_ns)) {
      lose_burst(services, qp, oldest, MRC_COUNTER_LOST_BY_SILENCE, now_ns);
      if (++plane->strikes >= MRC_LOSS_STRIKES)
        mrc_health_suspend_plane(services, qp, index, MRC_REASON_SILENCE, now_ns);
    } else {
      return;
    }
  }
}

void mrc_detect_planes(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  MRC_EACH_BIT(plane, qp->evset.plane_mask)
    detect_plane(services, qp, plane, now_ns);
}

bool mrc_detect_is_due(const struct mrc_qp *qp, uint64_t now_ns) {
  const struct mrc_txwin *win = &qp->req.win;
  MRC_EACH_BIT(plane, qp->evset.plane_mask) {
    if (win->lists[plane].oldest == MRC_TX_NONE) continue;
    const struct mrc_txslot *oldest = &win->slots[win->lists[plane].oldest];
    if (find_missing(qp, plane, now_ns) != NULL || lost_by_silence(qp, plane, oldest, now_ns))
      return true;
  }
  return false;
}
