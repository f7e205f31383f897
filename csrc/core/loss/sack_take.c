/* SPDX-License-Identifier: Apache-2.0 */
#include "sack_take.h"

#include "acks.h"
#include "core/send/quick.h"
#include "core/send/windows.h"
#include "detect.h"
#include "health.h"
#include "timeout.h"

/* The slot of the packet that triggered the SACK, or 0. Another SACK may have acknowledged the
   packet already: its slot remains valid until the ring of slots reuses it. */
static const struct mrc_txslot *trigger_slot(const struct mrc_txwin *win,
                                             const struct mrc_sack *sack) {
  const uint32_t psn = (sack->cum_psn + (uint32_t)(int32_t)sack->ack_psn_offset) & MRC_PSN_MASK;
  return mrc_txwin_remembers(win, psn) ? mrc_txwin_slot(win, psn) : NULL;
}

/* How long the SACK waited in the reverse direction; 0 if it has no send time. In a long round trip
   the wait could exceed the range of the timestamps, which would corrupt the shortest way back. */
static uint64_t waited_ns(struct mrc_qp *qp, const struct mrc_sack *sack,
                          const struct mrc_meta *meta, uint64_t rtt_ns) {
  if (sack->cc_type != MRC_CC_TYPE_TIMES || rtt_ns > MRC_TIMESTAMP_MOST_NS) return 0;
  return mrc_reverse_queue_ns(&qp->planes[mrc_plane_of(meta->port)].reverse_queue,
                              sack->sent_timestamp, meta->arrived_ns);
}

/* A packet and its SACK waited for this long in the hosts, on purpose up to the delay of SACKs. The
   rest of it is the wait in the sockets of a busy host. The next wait may be twice as long. */
static void on_host_wait(const struct mrc_services *services, struct mrc_qp *qp, uint64_t wait_ns) {
  const uint64_t most_ns = mrc_floor_ns(MRC_TIMESTAMP_MOST_NS, qp->noise_ns);
  const uint64_t busy_ns = wait_ns - mrc_min_u64(wait_ns, services->config.sack_delay_ns);
  mrc_guard_cover(&qp->req.host_waits, mrc_min_u64(2 * busy_ns, most_ns), services->now_ns);
}

/* The triggering packet gives a round trip when it was sent only once; 0: it gives none. */
static uint64_t on_trigger(const struct mrc_services *services, struct mrc_qp *qp,
                           const struct mrc_sack *sack, const struct mrc_meta *meta,
                           struct mrc_cc_ack *ack) {
  const struct mrc_txslot *slot = trigger_slot(&qp->req.win, sack);
  if (slot == NULL || slot->tries != 1) return 0;
  mrc_assert(slot->ev < qp->evset.n);
  /* A SACK may repeat a trigger that is too old for the range of its timestamp. */
  const bool old = meta->arrived_ns - slot->sent_ns > MRC_TIMESTAMP_MOST_NS;
  if (slot->state != MRC_TX_INFLIGHT && old) return 0;
  const uint64_t rtt_ns = mrc_acks_round_trip_ns(meta, sack->tx_timestamp, slot->sent_ns);
  if (rtt_ns == 0) return 0;
  on_host_wait(services, qp, services->now_ns - slot->sent_ns - rtt_ns);
  if (slot->state == MRC_TX_LOST) return 0;
  mrc_acks_on_rtt(qp, slot->ev, rtt_ns, ack);
  ack->reverse_ns = waited_ns(qp, sack, meta, rtt_ns);
  mrc_plane_on_answer(&qp->planes[slot->plane], slot->sent_ns,
                      rtt_ns - mrc_min_u64(ack->reverse_ns, rtt_ns));
  return rtt_ns;
}

/* The SACK reports all that the plane of its trigger delivered until then, and of other planes what
   its bitmap happens to show. So packets that left before the trigger on its plane are late. */
static void on_report(struct mrc_qp *qp, const struct mrc_sack *sack) {
  const struct mrc_txslot *slot = sack->pr ? NULL : trigger_slot(&qp->req.win, sack);
  if (slot == NULL || slot->state != MRC_TX_ACKED || slot->of_original) return;
  mrc_plane_on_reported(&qp->planes[slot->plane], slot->sent_ns);
}

/* When the packet that triggered the SACK left on this EV; 0: unknown. */
static uint64_t trigger_sent_ns(const struct mrc_qp *qp, const struct mrc_sack *sack, uint16_t ev) {
  const struct mrc_txslot *slot = sack->pr ? NULL : trigger_slot(&qp->req.win, sack);
  return slot != NULL && slot->ev == ev && slot->state != MRC_TX_LOST ? slot->sent_ns : 0;
}

/* Handles the SACK's report on the EV that it reflects. This EV also names the SACK's plane. */
static void on_ev_feedback(struct mrc_services *services, struct mrc_qp *qp,
                           const struct mrc_sack *sack, struct mrc_cc_ack *ack, uint64_t rtt_ns,
                           uint64_t now_ns) {
  const uint16_t ev = mrc_evset_find(&qp->evset, sack->ev);
  if (ev == MRC_EV_NONE) return;
  const uint32_t plane = mrc_evset_plane_of(&qp->evset, ev);
  if (ack->rtt_ns == 0) ack->plane = plane;
  qp->planes[plane].doubted_ns = 0; /* also a packet that was sent again elsewhere proves it */
  if (sack->m == MRC_M_ALWAYS_SKIP) {
    mrc_health_distrust_ev(services, qp, ev, MRC_REASON_PEER, now_ns);
    return;
  }
  const uint64_t sent_ns = trigger_sent_ns(qp, sack, ev);
  if (sack->m == MRC_M_NONE)
    mrc_evset_on_clear(&qp->evset, ev, sent_ns, rtt_ns, now_ns);
  else if (mrc_evset_on_skip(&qp->evset, ev, sent_ns, now_ns))
    mrc_health_report_ev(services, qp, ev, MRC_REASON_PEER);
}

/* A narrower window of the peer only delays new packets. A SACK that was overtaken by a newer one
   on another plane is ignored here: its MPR is out of date. */
static void on_peer_mpr(struct mrc_services *services, struct mrc_qp *qp,
                        const struct mrc_sack *sack) {
  struct mrc_requester *req = &qp->req;
  if (qp->attr.rtr.dynamic_mpr == 0 || sack->mpr == 0) return;
  if (mrc_psn_before(mrc_psn_add(sack->cum_psn, 1), req->peer_next_psn)) return;
  const uint32_t psns = mrc_min_u32((uint32_t)sack->mpr * MRC_MPR_UNIT, qp->attr.rts.peer_mpr);
  if (psns == req->peer_mpr) return;
  mrc_trace(services, MRC_TRACE_PEER_MPR, qp->qpn, req->peer_mpr, psns);
  req->peer_mpr = psns;
}

/* MRC_DROP_NONE, or why the SACK is wrong: it names unsent PSNs, or belongs to an earlier QP. */
static enum mrc_drop doubt(const struct mrc_txwin *win, const struct mrc_sack *sack,
                           uint32_t base) {
  const uint32_t top = sack->bitmap == 0
                           ? sack->cum_psn
                           : mrc_psn_add(base, 63 - (uint32_t)__builtin_clzll(sack->bitmap));
  if (!mrc_psn_before(sack->cum_psn, win->next_psn) || !mrc_psn_before(top, win->next_psn) ||
      mrc_acks_names_unsent(win, sack->cum_psn))
    return MRC_DROP_ACK_UNSENT;
  return mrc_acks_is_stale(win, sack->cum_psn) ? MRC_DROP_STALE : MRC_DROP_NONE;
}

int mrc_sack_take(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                  const struct mrc_meta *meta, uint64_t now_ns) {
  const struct mrc_sack *sack = &wire->sack;
  struct mrc_requester *req = &qp->req;
  const uint32_t base = (sack->cum_psn + (uint32_t)(int32_t)sack->sack_offset) & MRC_PSN_MASK;
  const enum mrc_drop reason = doubt(&req->win, sack, base);
  if (reason != MRC_DROP_NONE) return mrc_drop(services, reason, qp->qpn, 0);
  mrc_count(services, MRC_COUNTER_RX_SACKS, 1);
  mrc_trace(services, MRC_TRACE_SACK_IN, qp->qpn, sack->cum_psn, sack->bitmap);
  struct mrc_cc_ack ack = {.plane = mrc_qp_first_plane(qp),
                           .ce = sack->m == MRC_M_SKIP_ONCE,
                           .restore_window = sack->restore_cwnd,
                           .penalty = sack->rcv_cwnd_pen};
  uint64_t rtt_ns = 0;
  if (sack->pr)
    mrc_timeout_on_answer(services, qp, sack, meta, &ack, now_ns);
  else
    rtt_ns = on_trigger(services, qp, sack, meta, &ack);
  on_ev_feedback(services, qp, sack, &ack, rtt_ns, now_ns);
  const uint64_t bytes = mrc_acks_take(services, qp, sack->cum_psn, base, sack->bitmap, now_ns);
  on_report(qp, sack);
  mrc_requester_on_cumulative(req, mrc_psn_add(sack->cum_psn, 1));
  on_peer_mpr(services, qp, sack);
  if (bytes > 0) {
    mrc_requester_on_progress(&qp->req, now_ns);
    req->probe_wait_ns = mrc_timeout_patience_ns(qp, now_ns);
  }
  mrc_windows_on_ack(services, qp, &ack, now_ns);
  if (now_ns - qp->choice.quick.compared_ns >= qp->noise_ns / 4)
    mrc_quick_compare(services, qp, now_ns);
  mrc_detect_holes(services, qp, base, sack->bitmap, now_ns);
  mrc_qp_touch(services, qp); /* checks loss by time after all received packets */
  return MRC_DROP_NONE;
}
