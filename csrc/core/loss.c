/* SPDX-License-Identifier: Apache-2.0 */
#include "loss.h"

#include "reinject.h"
#include "requester.h"

#define DOUBT_ROUNDS 2 /* answers long before a plane that owes some is silent */

void mrc_loss_report_ev(struct mrc_engine *engine, struct mrc_qp *qp, uint16_t index,
                        enum mrc_event_reason reason) {
  const struct mrc_ev *ev = &qp->evset.evs[index];
  mrc_trace(engine, MRC_TRACE_EV_STATE, qp->qpn, index, ev->state);
  if (ev->state == MRC_EV_SKIP) return; /* the controller knows GOOD, ASSUMED_BAD and DENIED only */
  const struct mrc_event event = {.type = MRC_EVENT_EV_STATE,
                                  .qpn = qp->qpn,
                                  .ev_index = index,
                                  .port = ev->port,
                                  .status = ev->state,
                                  .reason = reason};
  mrc_event_push(engine, &event);
}

static void report_plane(struct mrc_engine *engine, const struct mrc_qp *qp, uint32_t plane,
                         enum mrc_event_type type, bool alive, enum mrc_event_reason reason) {
  const struct mrc_event event = {.type = type,
                                  .qpn = qp->qpn,
                                  .port = (uint8_t)(plane + 1),
                                  .status = alive,
                                  .reason = reason};
  mrc_event_push(engine, &event);
}

void mrc_loss_report_port(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t plane, bool up,
                          enum mrc_event_reason reason) {
  report_plane(engine, qp, plane, MRC_EVENT_PORT, up, reason);
}

void mrc_loss_distrust_ev(struct mrc_engine *engine, struct mrc_qp *qp, uint16_t ev,
                          enum mrc_event_reason reason, uint64_t now_ns) {
  uint16_t back;
  if (!mrc_evset_on_loss(&qp->evset, ev, &back, now_ns)) return;
  mrc_count(engine, MRC_COUNTER_EVS_BAD, 1);
  mrc_loss_report_ev(engine, qp, ev, reason);
  if (back != MRC_EV_NONE) mrc_loss_report_ev(engine, qp, back, MRC_REASON_FLOOR);
  qp->ev_probe_ns = mrc_min_u64(qp->ev_probe_ns, qp->evset.evs[ev].probation.next_ns);
}

void mrc_loss_mark(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t psn, enum mrc_counter why,
                   uint64_t now_ns) {
  struct mrc_txslot *slot = mrc_txwin_slot(&qp->req.win, psn);
  struct mrc_plane *plane = &qp->planes[slot->plane];
  mrc_txwin_on_lost(&qp->req.win, psn);
  mrc_evset_on_missed(&qp->evset, slot->ev);
  slot->by_timeout = why == MRC_COUNTER_LOST_BY_TIMEOUT;
  slot->by_time = why == MRC_COUNTER_LOST_BY_TIME;
  slot->reinjected = false;
  plane->lost++;
  qp->evset.evs[slot->ev].lost++;
  mrc_count(engine, why, 1);
  mrc_trace(engine, MRC_TRACE_LOST, qp->qpn, psn, why);
  if (why == MRC_COUNTER_LOST_BY_TIMEOUT || why == MRC_COUNTER_LOST_BY_NACK) return;
  /* Untrimmed loss means a failed path to MRC, whose switches trim. Ordinary queues overflow: a
     loss while the plane's delay stands high is taken for that. */
  const uint64_t delay_ns = mrc_rtt_delay_ns(&plane->rtt);
  struct mrc_cc *cc = mrc_qp_cc(qp, slot->plane);
  const bool overflow = !plane->suspended && mrc_cc_is_congestion(cc, delay_ns);
  const struct mrc_cc_loss loss = {.cause = overflow ? MRC_CC_LOSS_OVERFLOW : MRC_CC_LOSS_PATH,
                                   .bytes = slot->bytes,
                                   .inflight_bytes = mrc_qp_inflight_bytes(qp, slot->plane)};
  mrc_cc_on_loss(cc, &loss, now_ns);
  if (plane->suspended) return; /* the plane is to blame, not this EV */
  if (overflow) {
    mrc_count(engine, MRC_COUNTER_LOST_TO_CONGESTION, 1);
    if (mrc_evset_on_skip(&qp->evset, slot->ev, slot->sent_ns, now_ns))
      mrc_loss_report_ev(engine, qp, slot->ev, MRC_REASON_LOSS);
    return;
  }
  mrc_loss_distrust_ev(engine, qp, slot->ev, MRC_REASON_LOSS, now_ns);
}

static void trust_ev(struct mrc_engine *engine, struct mrc_qp *qp, uint16_t ev,
                     enum mrc_event_reason reason) {
  if (qp->evset.evs[ev].state != MRC_EV_ASSUMED_BAD) return;
  if (mrc_evset_on_trust(&qp->evset, ev)) mrc_loss_report_ev(engine, qp, ev, reason);
}

void mrc_loss_on_spurious(struct mrc_engine *engine, struct mrc_qp *qp,
                          const struct mrc_txslot *slot, uint32_t psn) {
  mrc_assert(slot->ev_lost != MRC_TX_NONE);
  qp->req.packets_spurious++;
  mrc_count(engine, MRC_COUNTER_SPURIOUS, 1);
  mrc_trace(engine, MRC_TRACE_SPURIOUS, qp->qpn, psn, slot->ev_lost);
  if (slot->reinjected) return; /* nobody was blamed */
  if (slot->by_timeout) {
    /* The peer was late, the network is as it was. */
    for (uint32_t planes = qp->evset.plane_mask; planes != 0; planes &= planes - 1)
      mrc_cc_on_spurious_timeout(&qp->planes[__builtin_ctz(planes)].cc);
    return;
  }
  struct mrc_plane *plane = &qp->planes[qp->evset.evs[slot->ev_lost].port - 1];
  const uint64_t least_ns = mrc_floor_ns(MRC_LOSS_REORDER_FLOOR_NS / 4, qp->noise_ns);
  mrc_guard_grow(slot->by_time ? &plane->spread : &plane->reorder, least_ns,
                 4 * mrc_max_u64(plane->rtt.smooth_ns, 1), engine->now_ns);
  trust_ev(engine, qp, slot->ev_lost, MRC_REASON_SPURIOUS);
}

/* Notes the newest packet per EV that this SACK shows as received. What it shows of an original
   says nothing about the EV on which that packet was sent again. */
static void note_received(struct mrc_engine *engine, const struct mrc_qp *qp, uint32_t base,
                          uint64_t bitmap) {
  const struct mrc_txwin *win = &qp->req.win;
  engine->sack_serial++;
  for (uint64_t bits = bitmap; bits != 0; bits &= bits - 1) {
    const uint32_t psn = mrc_psn_add(base, (uint32_t)__builtin_ctzll(bits));
    if (!mrc_txwin_holds(win, psn)) continue;
    const struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
    if (slot->state != MRC_TX_ACKED || slot->of_original) continue;
    struct mrc_sacked *newest = &engine->sacked[slot->ev];
    if (newest->serial == engine->sack_serial && !mrc_txslot_after(slot, &win->slots[newest->slot]))
      continue;
    *newest =
        (struct mrc_sacked){.serial = engine->sack_serial, .slot = (uint16_t)(slot - win->slots)};
  }
}

/* Paths are FIFO: what left on an EV before something that arrived is lost. The guard is for hosts
   that have shown that their receive side reorders. */
static bool lost_by_order(const struct mrc_engine *engine, const struct mrc_qp *qp,
                          const struct mrc_txslot *slot, uint64_t now_ns) {
  const struct mrc_sacked *newest = &engine->sacked[slot->ev];
  if (newest->serial != engine->sack_serial ||
      !mrc_txslot_after(&qp->req.win.slots[newest->slot], slot))
    return false;
  const struct mrc_plane *plane = &qp->planes[slot->plane];
  const uint64_t guard_ns = mrc_guard_ns(&plane->reorder, now_ns);
  return guard_ns == 0 || now_ns >= slot->sent_ns + plane->rtt.smooth_ns + guard_ns;
}

void mrc_loss_on_holes(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t base, uint64_t bitmap,
                       uint64_t now_ns) {
  if (bitmap == 0) return;
  const struct mrc_txwin *win = &qp->req.win;
  const uint32_t top = 63 - (uint32_t)__builtin_clzll(bitmap);
  uint64_t holes = ~bitmap & ((1ull << top) - 1);
  if (holes == 0) return;
  note_received(engine, qp, base, bitmap);
  for (; holes != 0; holes &= holes - 1) {
    const uint32_t psn = mrc_psn_add(base, (uint32_t)__builtin_ctzll(holes));
    if (!mrc_txwin_holds(win, psn)) continue;
    const struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
    if (slot->state == MRC_TX_INFLIGHT && lost_by_order(engine, qp, slot, now_ns))
      mrc_loss_mark(engine, qp, psn, MRC_COUNTER_LOST_BY_ORDER, now_ns);
  }
}

/* Loss by time compares send times with send times, never with the clock: when a host stalls, its
   answers are late all together, and nothing is lost. What is missing is then missing beside things
   that were sent a good while later and did arrive. */

/* By how much the ways of one plane may differ. */
static uint64_t spread_ns(const struct mrc_qp *qp, const struct mrc_plane *plane, uint64_t now_ns) {
  const uint64_t floor_ns = mrc_floor_ns(MRC_LOSS_REORDER_FLOOR_NS, qp->noise_ns);
  const uint64_t spread = mrc_max_u64(floor_ns, plane->rtt.smooth_ns / 2);
  return mrc_max_u64(spread, 2 * plane->rtt.var_ns) + mrc_guard_ns(&plane->spread, now_ns) +
         mrc_guard_ns(&plane->reorder, now_ns);
}

/* Whether something sent clearly later on the same plane arrived. */
static bool is_late(const struct mrc_qp *qp, const struct mrc_txslot *slot, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[slot->plane];
  return plane->rack_ns > slot->sent_ns + spread_ns(qp, plane, now_ns);
}

/* Whether that which is late is lost. Where switches trim it may stand in a queue, however long;
   but not when something that left clearly later on the same EV arrived, nor when the EV is not
   heard any more while the others deliver what left its round trip later, and theirs. */
static bool lost_by_time(const struct mrc_qp *qp, const struct mrc_txslot *late, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[late->plane];
  if (qp->evset.racks == NULL) return true;
  const struct mrc_ev_rack *rack = &qp->evset.racks[late->ev];
  const uint64_t spread = spread_ns(qp, plane, now_ns);
  if (rack->newest_ns > late->sent_ns + spread) return true;
  const uint64_t heard_ns = mrc_max_u64(late->sent_ns, rack->heard_ns);
  const uint64_t answers_ns = plane->rtt.smooth_ns + qp->evset.evs[late->ev].rtt_ns;
  return plane->rack_ns > heard_ns + spread + answers_ns;
}

/* The oldest packet in flight on the plane that is lost by time, or that is late on an EV which is
   not avoided yet; 0 when there is none. */
static const struct mrc_txslot *find_missing(const struct mrc_qp *qp, uint32_t plane,
                                             uint64_t now_ns) {
  const struct mrc_txwin *win = &qp->req.win;
  const uint64_t rack_ns = qp->planes[plane].rack_ns;
  for (uint16_t at = win->lists[plane].oldest; at != MRC_TX_NONE; at = win->slots[at].newer) {
    const struct mrc_txslot *slot = &win->slots[at];
    if (!is_late(qp, slot, now_ns)) return NULL;
    if (lost_by_time(qp, slot, now_ns)) return slot;
    const uint64_t late_ns = rack_ns - slot->sent_ns;
    if (mrc_evset_can_avoid(&qp->evset, slot->ev, slot->sent_ns, late_ns)) return slot;
  }
  return NULL;
}

/* Whether other planes delivered what was sent clearly later, and this one delivered nothing in all
   that time. One that goes on delivering is slow, and not silent. */
static bool lost_by_silence(const struct mrc_qp *qp, uint32_t index,
                            const struct mrc_txslot *oldest, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[index];
  const uint64_t since_ns = mrc_max_u64(oldest->sent_ns, plane->rack_ns);
  const bool known = mrc_rtt_known(&plane->rtt);
  const uint64_t overdue_ns = mrc_rtt_overdue_ns(known ? &plane->rtt : &qp->req.rtt, 0);
  const uint64_t floor_ns = mrc_floor_ns(MRC_LOSS_SILENCE_FLOOR_NS, qp->noise_ns);
  uint64_t patience_ns = mrc_max_u64(floor_ns, overdue_ns) + mrc_guard_ns(&plane->reorder, now_ns);
  if (!known) /* it may be much longer than the others, but the local timeout was chosen for it */
    patience_ns = mrc_max_u64(
        patience_ns, mrc_min_u64(MRC_LOSS_SKEW * overdue_ns, (1024ull << qp->attr.timeout) / 4));
  for (uint32_t planes = qp->evset.plane_mask & ~(1u << index); planes != 0; planes &= planes - 1) {
    const struct mrc_plane *other = &qp->planes[__builtin_ctz(planes)];
    const bool later = other->rack_ns > since_ns + patience_ns;
    if (later && other->heard_ns > plane->heard_ns + patience_ns) return true;
  }
  return false;
}

/* Takes the burst in flight that begins with this packet for lost. */
static void lose_burst(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_txslot *first,
                       enum mrc_counter why, uint64_t now_ns) {
  const struct mrc_txwin *win = &qp->req.win;
  const uint16_t ev = first->ev;
  const uint64_t sent_ns = first->sent_ns;
  for (uint16_t at = (uint16_t)(first - win->slots), next;
       at != MRC_TX_NONE && win->slots[at].ev == ev && win->slots[at].sent_ns == sent_ns;
       at = next) {
    next = win->slots[at].newer;
    mrc_loss_mark(engine, qp, mrc_txwin_psn_of(win, at), why, now_ns);
  }
}

void mrc_loss_suspend_plane(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t index,
                            enum mrc_event_reason reason, uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  struct mrc_txlist *list = &qp->req.win.lists[index];
  if (plane->suspended) return;
  plane->suspended = true;
  mrc_share_forget(qp, index);
  mrc_count(engine, MRC_COUNTER_PLANES_SUSPENDED, 1);
  mrc_trace(engine, MRC_TRACE_PLANE_SUSPEND, qp->qpn, index + 1, list->bytes);
  while (list->oldest != MRC_TX_NONE)
    mrc_loss_mark(engine, qp, mrc_txwin_psn_of(&qp->req.win, list->oldest),
                  MRC_COUNTER_LOST_BY_SILENCE, now_ns);
  /* EVs blamed since the plane was last heard fell with it: the plane is on probation, not they. */
  for (uint16_t i = 0; i < qp->evset.planes[index].n; i++) {
    const uint16_t ev = qp->evset.planes[index].order[i];
    if (qp->evset.evs[ev].bad_since_ns >= plane->heard_ns)
      trust_ev(engine, qp, ev, MRC_REASON_PLANE);
  }
  mrc_probation_on_failure(&plane->probation, qp->noise_ns, now_ns);
  qp->ev_probe_ns = mrc_min_u64(qp->ev_probe_ns, plane->probation.next_ns);
  report_plane(engine, qp, index, MRC_EVENT_PLANE, false, reason);
}

void mrc_loss_on_peer_port_down(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t index,
                                uint64_t now_ns) {
  mrc_loss_suspend_plane(engine, qp, index, MRC_REASON_PEER_PORT, now_ns);
  mrc_probation_on_hearsay(&qp->planes[index].probation, qp->noise_ns, now_ns);
}

void mrc_loss_retry_plane(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t index,
                          uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  if (plane->suspended) mrc_probation_on_mend(&plane->probation, now_ns);
  qp->ev_probe_ns = 0;
  mrc_qp_touch(engine, qp);
}

void mrc_loss_resume_plane(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t index,
                           enum mrc_event_reason reason) {
  struct mrc_plane *plane = &qp->planes[index];
  if (!plane->suspended) return;
  if (plane->peer_down || !(engine->ports_up >> index & 1)) return; /* not before the port is up */
  plane->suspended = false;
  mrc_share_forget(qp, index);
  plane->strikes = 0;
  plane->probation.next_ns = MRC_NEVER;
  mrc_count(engine, MRC_COUNTER_PLANES_RESUMED, 1);
  mrc_trace(engine, MRC_TRACE_PLANE_RESUME, qp->qpn, index + 1, plane->probation.relapses);
  report_plane(engine, qp, index, MRC_EVENT_PLANE, true, reason);
  mrc_qp_touch(engine, qp);
}

/* Whether a plane from which packets were taken away has not been heard since, for a few times as
   long as its answers take, while others were. */
static bool stays_silent(const struct mrc_qp *qp, uint32_t index) {
  const struct mrc_plane *plane = &qp->planes[index];
  if (plane->doubted_ns == 0 || plane->suspended) return false;
  const uint64_t floor_ns = mrc_floor_ns(MRC_LOSS_SILENCE_FLOOR_NS, qp->noise_ns);
  const uint64_t patience_ns = DOUBT_ROUNDS * mrc_rtt_overdue_ns(&plane->rtt, floor_ns);
  for (uint32_t planes = qp->evset.plane_mask & ~(1u << index); planes != 0; planes &= planes - 1)
    if (qp->planes[__builtin_ctz(planes)].heard_ns > plane->doubted_ns + patience_ns) return true;
  return false;
}

static void detect_plane(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t index,
                         uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  const struct mrc_txwin *win = &qp->req.win;
  const struct mrc_txlist *list = &win->lists[index];
  if (stays_silent(qp, index))
    mrc_loss_suspend_plane(engine, qp, index, MRC_REASON_SILENCE, now_ns);
  while (list->oldest != MRC_TX_NONE) {
    const struct mrc_txslot *oldest = &win->slots[list->oldest];
    const struct mrc_txslot *missing = find_missing(qp, index, now_ns);
    if (missing != NULL && lost_by_time(qp, missing, now_ns)) {
      lose_burst(engine, qp, missing, MRC_COUNTER_LOST_BY_TIME, now_ns);
    } else if (missing != NULL) {
      if (mrc_evset_on_late(&qp->evset, missing->ev, now_ns))
        mrc_loss_report_ev(engine, qp, missing->ev, MRC_REASON_LOSS);
    } else if (lost_by_silence(qp, index, oldest, now_ns)) {
      lose_burst(engine, qp, oldest, MRC_COUNTER_LOST_BY_SILENCE, now_ns);
      if (++plane->strikes >= MRC_LOSS_STRIKES)
        mrc_loss_suspend_plane(engine, qp, index, MRC_REASON_SILENCE, now_ns);
    } else {
      return;
    }
  }
}

static void detect(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns) {
  for (uint32_t planes = qp->evset.plane_mask; planes != 0; planes &= planes - 1)
    detect_plane(engine, qp, (uint32_t)__builtin_ctz(planes), now_ns);
  mrc_reinject_on_deadline(engine, qp, now_ns);
}

/* The local timeout: fixed for the linear tries, then doubling. */
static uint64_t timeout_ns(const struct mrc_qp *qp) {
  const struct mrc_requester *req = &qp->req;
  const uint64_t base =
      mrc_max_u64(1024ull << qp->attr.timeout,
                  mrc_rtt_known(&req->rtt) ? 2 * mrc_rtt_overdue_ns(&req->rtt, 0) : 0);
  const uint32_t tries = req->timeouts;
  return tries < qp->attr.retry_linear ? base
                                       : base << mrc_min_u32(tries - qp->attr.retry_linear, 24);
}

static bool retries_exhausted(const struct mrc_qp *qp) {
  if (qp->attr.retry_exp == 25) return false;
  return qp->req.timeouts > (uint32_t)qp->attr.retry_linear + qp->attr.retry_exp;
}

void mrc_loss_on_refusal(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t psn) {
  struct mrc_requester *req = &qp->req;
  /* The whole window may be refused in one round trip: only the packet that was first counts. */
  if (req->refused && req->refused_psn != psn) return;
  req->refused = true;
  req->refused_psn = psn;
  req->timeouts++;
  if (retries_exhausted(qp)) mrc_qp_fail(engine, qp, MRC_WC_RETRY_EXC_ERR, MRC_WC_RETRY_EXC_ERR);
}

static uint64_t timeout_deadline_ns(const struct mrc_qp *qp) {
  return qp->req.progress_ns + timeout_ns(qp);
}

/* Whether others delivered something sent after all that this plane delivered, and after its oldest
   packet in flight: it is then the plane that fails, and not the peer or all the network. */
static bool falls_behind(const struct mrc_qp *qp, uint32_t index) {
  const struct mrc_txlist *list = &qp->req.win.lists[index];
  uint64_t since_ns = qp->planes[index].rack_ns;
  if (list->oldest != MRC_TX_NONE)
    since_ns = mrc_max_u64(since_ns, qp->req.win.slots[list->oldest].sent_ns);
  else if (!qp->planes[index].suspended)
    return false; /* nothing was sent on it: nothing is missing */
  for (uint32_t planes = qp->evset.plane_mask & ~(1u << index); planes != 0; planes &= planes - 1)
    if (qp->planes[__builtin_ctz(planes)].rack_ns > since_ns) return true;
  return false;
}

/* The local timeout for one plane. At the first expiry the others may still know better; at the
   next nothing is known any more, and every plane may be tried. */
static void time_out_plane(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t index,
                           uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  const struct mrc_txlist *list = &qp->req.win.lists[index];
  const bool behind = qp->req.timeouts == 1 && falls_behind(qp, index);
  if (behind && !plane->suspended && ++plane->strikes >= MRC_LOSS_STRIKES)
    mrc_loss_suspend_plane(engine, qp, index, MRC_REASON_SILENCE, now_ns);
  while (list->oldest != MRC_TX_NONE)
    mrc_loss_mark(engine, qp, mrc_txwin_psn_of(&qp->req.win, list->oldest),
                  MRC_COUNTER_LOST_BY_TIMEOUT, now_ns);
  if (!behind) mrc_loss_resume_plane(engine, qp, index, MRC_REASON_TIMEOUT);
}

/* Everything in flight may be lost. */
static void on_timeout(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  req->timeouts++;
  mrc_count(engine, MRC_COUNTER_TIMEOUTS, 1);
  if (retries_exhausted(qp)) {
    mrc_qp_fail(engine, qp, MRC_WC_RETRY_EXC_ERR, MRC_WC_RETRY_EXC_ERR);
    return;
  }
  mrc_trace(engine, MRC_TRACE_TIMEOUT, qp->qpn, req->timeouts, timeout_ns(qp));
  for (uint32_t planes = qp->evset.plane_mask; planes != 0; planes &= planes - 1) {
    const uint32_t plane = (uint32_t)__builtin_ctz(planes);
    time_out_plane(engine, qp, plane, now_ns);
    mrc_cc_on_timeout(&qp->planes[plane].cc);
  }
  req->progress_ns = now_ns; /* the next interval starts here */
  req->probe.wanted = true;
  req->probed_ns = now_ns;
}

/* Usually when nothing is heard at all; earlier when others are, but the window of PSNs is closed
   by a packet whose answer is overdue: then nothing that is sent later can prove it lost. */
static uint64_t probe_deadline_ns(const struct mrc_qp *qp) {
  const struct mrc_requester *req = &qp->req;
  const uint64_t silent_ns = mrc_max_u64(req->progress_ns, req->probed_ns) + req->probe_wait_ns;
  const struct mrc_txslot *oldest = mrc_reinject_awaited(qp);
  if (oldest == NULL || req->sq_send == req->sq_tail) return silent_ns;
  const struct mrc_rtt *rtt = &qp->planes[oldest->plane].rtt;
  if (!mrc_rtt_known(rtt)) return silent_ns;
  const uint64_t spare_ns = mrc_max_u64(rtt->smooth_ns / 4, rtt->var_ns);
  const uint64_t closed_ns = mrc_max_u64(oldest->sent_ns, req->probed_ns) + rtt->smooth_ns +
                             mrc_max_u64(spare_ns, mrc_floor_ns(MRC_PROBE_FLOOR_NS, qp->noise_ns));
  return mrc_min_u64(silent_ns, closed_ns);
}

void mrc_loss_on_deadline(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  if (qp->state != MRC_QP_RTS || !mrc_requester_is_busy(qp)) return;
  detect(engine, qp, now_ns);
  if (now_ns >= timeout_deadline_ns(qp)) {
    on_timeout(engine, qp, now_ns);
  } else if (now_ns >= probe_deadline_ns(qp)) {
    req->probe.wanted = true;
    req->probed_ns = now_ns;
    /* never sooner than an answer can come: a new probe takes the place of the last */
    const uint64_t longest_ns = mrc_max_u64(1024ull << qp->attr.timeout, mrc_loss_patience_ns(qp));
    req->probe_wait_ns = mrc_min_u64(2 * req->probe_wait_ns, longest_ns);
  }
  mrc_qp_touch(engine, qp);
}

uint64_t mrc_loss_deadline(const struct mrc_engine *engine, const struct mrc_qp *qp,
                           uint64_t now_ns) {
  if (qp->state != MRC_QP_RTS || !mrc_requester_is_busy(qp)) return MRC_NEVER;
  for (uint32_t planes = qp->evset.plane_mask; planes != 0; planes &= planes - 1) {
    const uint32_t plane = (uint32_t)__builtin_ctz(planes);
    const struct mrc_txwin *win = &qp->req.win;
    if (win->lists[plane].oldest == MRC_TX_NONE) continue;
    const struct mrc_txslot *oldest = &win->slots[win->lists[plane].oldest];
    if (find_missing(qp, plane, now_ns) != NULL || lost_by_silence(qp, plane, oldest, now_ns))
      return 0;
  }
  const uint64_t next_ns = mrc_min_u64(timeout_deadline_ns(qp), probe_deadline_ns(qp));
  return mrc_min_u64(next_ns, mrc_reinject_deadline(engine, qp));
}
