/* SPDX-License-Identifier: Apache-2.0 */
#include "core/timeout.h"

#include "core/loss.h"
#include "core/send.h"

#define MAX_REINJECTIONS 3 /* of one packet */

/* ---- the local timeout ---- */

/* The local timeout: fixed for the linear tries, then doubling. */
static uint64_t timeout_ns(const struct mrc_qp *qp, uint64_t now_ns) {
  const struct mrc_txwin *win = &qp->req.win;
  /* The time after which the answer to the oldest packet is overdue. Its plane may be much slower
     than the planes that most round trips come from. */
  uint64_t overdue_ns =
      mrc_rtt_known(&qp->req.rtt) ? mrc_qp_overdue_ns(qp, &qp->req.rtt, 0, now_ns) : 0;
  const struct mrc_txslot *oldest = mrc_txwin_slot(win, win->una_psn);
  if (win->una_psn != win->next_psn && oldest->state == MRC_TX_INFLIGHT) {
    const struct mrc_rtt *rtt = &qp->planes[oldest->plane].rtt;
    if (mrc_rtt_known(rtt))
      overdue_ns = mrc_max_u64(overdue_ns, mrc_qp_overdue_ns(qp, rtt, 0, now_ns));
  }
  const uint64_t base = mrc_max_u64(1024ull << qp->attr.rts.timeout, 2 * overdue_ns);
  const uint32_t tries = qp->req.timeouts;
  return tries < qp->attr.rts.retry_linear
             ? base
             : base << mrc_min_u32(tries - qp->attr.rts.retry_linear, 24);
}

/* Whether another plane delivered a packet sent after all that this plane delivered and after its
   oldest packet in flight. Then this plane has failed, and not the peer or the whole network. */
static bool falls_behind(const struct mrc_qp *qp, uint32_t index) {
  const struct mrc_txlist *list = &qp->req.win.lists[index];
  uint64_t since_ns = qp->planes[index].rack_ns;
  if (list->oldest != MRC_TX_NONE)
    since_ns = mrc_max_u64(since_ns, qp->req.win.slots[list->oldest].sent_ns);
  else if (!qp->planes[index].suspended)
    return false; /* nothing in flight: nothing is missing */
  MRC_EACH_BIT(other, qp->evset.plane_mask & ~(1u << index))
    if (qp->planes[other].rack_ns > since_ns) return true;
  return false;
}

/* The local timeout for one plane. At the first timeout, other planes may show that this one fails.
   At the next timeout that evidence is out of date, and every plane is tried again. */
static void time_out_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                           uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  const struct mrc_txlist *list = &qp->req.win.lists[index];
  const bool behind = qp->req.timeouts == 1 && falls_behind(qp, index);
  if (behind && !plane->suspended && ++plane->strikes >= MRC_LOSS_STRIKES)
    mrc_health_suspend_plane(services, qp, index, MRC_REASON_SILENCE, now_ns);
  while (list->oldest != MRC_TX_NONE)
    mrc_loss_declare(services, qp, mrc_txwin_psn_of(&qp->req.win, list->oldest),
                     MRC_COUNTER_LOST_BY_TIMEOUT, now_ns);
  if (!behind) mrc_health_resume_plane(services, qp, index, MRC_REASON_TIMEOUT);
}

/* Everything in flight may be lost. */
static void on_timeout(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  req->timeouts++;
  mrc_count(services, MRC_COUNTER_TIMEOUTS, 1);
  if (mrc_qp_has_no_retry_left(qp)) {
    mrc_qp_fail(services, qp, MRC_WC_RETRY_EXC_ERR, MRC_WC_RETRY_EXC_ERR);
    return;
  }
  mrc_trace(services, MRC_TRACE_TIMEOUT, qp->qpn, req->timeouts, timeout_ns(qp, now_ns));
  MRC_EACH_BIT(plane, qp->evset.plane_mask) {
    time_out_plane(services, qp, plane, now_ns);
    mrc_cc_on_timeout(&qp->planes[plane].cc);
  }
  req->progress_ns = now_ns; /* the next interval starts here */
  req->probe.wanted = true;
  req->probed_ns = now_ns;
}

/* ---- the reliability probe ---- */

/* The plane whose oldest packet in flight was sent first; a plane of the QP in any case. */
static uint32_t most_overdue_plane(const struct mrc_qp *qp) {
  const struct mrc_txwin *win = &qp->req.win;
  uint32_t worst = (uint32_t)__builtin_ctz(qp->evset.plane_mask);
  uint64_t first_ns = UINT64_MAX;
  MRC_EACH_BIT(plane, qp->evset.plane_mask) {
    const uint16_t oldest = win->lists[plane].oldest;
    if (oldest == MRC_TX_NONE || win->slots[oldest].sent_ns >= first_ns) continue;
    first_ns = win->slots[oldest].sent_ns;
    worst = plane;
  }
  return worst;
}

/* The other planes that are idle at the end of the data, as a mask: they have delivered their
   part. */
static uint32_t idle_planes(const struct mrc_services *services, const struct mrc_qp *qp,
                            const struct mrc_txslot *oldest) {
  const struct mrc_txwin *win = &qp->req.win;
  uint32_t idle = 0;
  if (!mrc_requester_has_opened_all(&qp->req) || win->n_tosend > 0) return 0;
  MRC_EACH_BIT(other, mrc_qp_eligible_planes(services, qp) & ~(1u << oldest->plane))
    if (win->lists[other].oldest == MRC_TX_NONE && qp->planes[other].strikes == 0)
      idle |= 1u << other;
  return idle;
}

/* The plane of a first probe: the most overdue one, so that the answer shows what was lost there.
   If that plane may be silent, another one: its answer is the proof. */
static uint32_t first_probed_plane(const struct mrc_services *services, const struct mrc_qp *qp,
                                   uint64_t now_ns) {
  const uint32_t overdue = most_overdue_plane(qp);
  if (qp->req.win.lists[overdue].oldest == MRC_TX_NONE) return overdue;
  const struct mrc_txslot *oldest = &qp->req.win.slots[qp->req.win.lists[overdue].oldest];
  const uint32_t idle = idle_planes(services, qp, oldest);
  if (idle != 0 && now_ns >= mrc_loss_silent_ns(qp, oldest, now_ns))
    return (uint32_t)__builtin_ctz(idle);
  const bool probed = qp->req.probe.sent_ns > oldest->sent_ns;
  return probed || !falls_behind(qp, overdue) ? overdue : overdue + 1;
}

bool mrc_timeout_send_probe(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_reliability_probe *probe = &qp->req.probe;
  const uint32_t planes = mrc_qp_eligible_planes(services, qp) & ~services->ports.blocked;
  if (planes == 0) return true;
  uint32_t plane =
      probe->outstanding ? probe->plane + 1u : first_probed_plane(services, qp, now_ns);
  while ((planes >> plane % MRC_MAX_PORTS & 1) == 0)
    plane++; /* ends: one bit of the mask is set */
  const uint16_t ev = mrc_evset_any(&qp->evset, plane % MRC_MAX_PORTS);
  struct mrc_burst *burst =
      mrc_burst_open(services, qp, ev, mrc_tclass_control(services, MRC_ECN_CAPABLE));
  if (burst == NULL) return false;
  *probe = (struct mrc_reliability_probe){.sent_ns = now_ns,
                                          .id = (uint16_t)(probe->id + 1),
                                          .ev = ev,
                                          .plane = (uint8_t)mrc_plane_of(burst->port),
                                          .outstanding = true};
  struct mrc_wire wire = {.opcode = MRC_OP_PROBE,
                          .dest_qpn = qp->attr.rtr.dest_qpn,
                          .probe = {.probe_id = probe->id,
                                    .spdcid = (uint16_t)qp->qpn,
                                    .dpdcid = (uint16_t)qp->attr.rtr.dest_qpn,
                                    .tx_timestamp = mrc_timestamp(now_ns),
                                    .tsr = true}};
  mrc_burst_add(services, burst, &wire, MRC_KIND_PROBE, 0, mrc_qp_has_icrc(qp));
  mrc_trace(services, MRC_TRACE_PROBE_OUT, qp->qpn, probe->id, probe->plane);
  return true;
}

/* Usually due when no plane is heard. Due earlier when no later packet can be sent to prove a
   packet lost whose answer is overdue: it has closed the window of PSNs, or other planes have
   delivered their part of the last data. */
static uint64_t probe_deadline_ns(const struct mrc_services *services, const struct mrc_qp *qp,
                                  uint64_t now_ns) {
  const struct mrc_requester *req = &qp->req;
  const uint64_t silent_ns = mrc_max_u64(req->progress_ns, req->probed_ns) + req->probe_wait_ns;
  const struct mrc_txslot *oldest = mrc_requester_awaited(&qp->req, &qp->attr.rts);
  if (oldest == NULL) return silent_ns;
  if (mrc_requester_has_opened_all(req)) {
    const uint64_t proves_ns = mrc_loss_silent_ns(qp, oldest, now_ns);
    if (req->probed_ns >= proves_ns || idle_planes(services, qp, oldest) == 0) return silent_ns;
    return mrc_min_u64(silent_ns, proves_ns);
  }
  const struct mrc_rtt *rtt = &qp->planes[oldest->plane].rtt;
  if (!mrc_rtt_known(rtt)) return silent_ns;
  const uint64_t spare_ns = mrc_max_u64(rtt->smooth_ns / 4, rtt->var_ns);
  const uint64_t closed_ns = mrc_max_u64(oldest->sent_ns, req->probed_ns) + rtt->smooth_ns +
                             mrc_max_u64(spare_ns, mrc_floor_ns(MRC_PROBE_FLOOR_NS, qp->noise_ns));
  return mrc_min_u64(silent_ns, closed_ns);
}

/* ---- the packet that blocks all others, on a slow plane ---- */

/* The time after which a packet on a slow plane is late: the quickest plane would have delivered it
   by then. MRC_NEVER when its plane is not slow. */
static uint64_t late_ns(const struct mrc_services *services, const struct mrc_qp *qp,
                        const struct mrc_txslot *oldest) {
  if (!mrc_quick_is_slow(qp, oldest->plane)) return MRC_NEVER;
  return mrc_quick_others_overdue_ns(services, qp, oldest->plane);
}

/* Whether a limited plane holds up the end of the data: an idle plane would deliver its packets
   sooner than its queue does. */
static bool holds_up_end(const struct mrc_services *services, const struct mrc_qp *qp,
                         const struct mrc_txslot *oldest) {
  if (!mrc_quick_is_limited(qp, oldest->plane)) return false;
  uint64_t idle_ns = UINT64_MAX;
  MRC_EACH_BIT(other, idle_planes(services, qp, oldest) & ~qp->choice.quick.limited)
    idle_ns = mrc_min_u64(idle_ns, qp->planes[other].rtt.base_ns);
  if (idle_ns == UINT64_MAX) return false;
  const uint64_t way_ns = qp->planes[oldest->plane].rtt.base_ns * 3 / 2;
  return mrc_quick_queue_ns(qp, oldest->plane, 0) > 2 * idle_ns + way_ns + qp->noise_ns;
}

/* When the blocking packet is sent again on another plane. With more data to send, that is when the
   quickest plane would have delivered it. At the end of the data, a plane with a long path but no
   queue does not count as late. The wait doubles each time, at most MAX_REINJECTIONS times. */
static uint64_t reinject_deadline_ns(const struct mrc_services *services, const struct mrc_qp *qp) {
  const struct mrc_txslot *oldest = mrc_requester_awaited(&qp->req, &qp->attr.rts);
  if (oldest == NULL || oldest->tries > MAX_REINJECTIONS) return MRC_NEVER;
  if (holds_up_end(services, qp, oldest)) return oldest->sent_ns;
  const uint64_t wait_ns = late_ns(services, qp, oldest);
  if (wait_ns == MRC_NEVER) return MRC_NEVER;
  const bool at_end = mrc_requester_has_opened_all(&qp->req);
  const uint64_t way_ns = at_end ? qp->planes[oldest->plane].rtt.base_ns * 3 / 2 : 0;
  return oldest->sent_ns + (mrc_max_u64(wait_ns, way_ns) << (oldest->tries - 1));
}

/* Sends packets of the blocking plane again on another plane: the oldest burst, or at the end of
   the data all. */
static void reinject(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_txwin *win = &qp->req.win;
  const struct mrc_txslot oldest = *mrc_txwin_slot(win, win->una_psn);
  struct mrc_plane *plane = &qp->planes[oldest.plane];
  const bool all = holds_up_end(services, qp, &oldest);
  if (plane->doubted_ns == 0) plane->doubted_ns = now_ns;
  for (uint32_t psn = win->una_psn; mrc_txwin_holds(win, psn); psn = mrc_psn_add(psn, 1)) {
    struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
    const bool ours = slot->state == MRC_TX_INFLIGHT && slot->plane == oldest.plane;
    if (all && !ours) continue;
    if (!all && (!ours || slot->ev != oldest.ev || slot->sent_ns != oldest.sent_ns)) return;
    mrc_delivery_on_late(&plane->delivery, slot->bytes, now_ns);
    slot->reinjected = true;
    mrc_txwin_on_lost(win, psn);
    mrc_evset_on_missed(&qp->evset, slot->ev);
    mrc_count(services, MRC_COUNTER_REINJECTED, 1);
    mrc_trace(services, MRC_TRACE_REINJECT, qp->qpn, psn, slot->ev);
  }
}

/* Shrinks the congestion window of a slow plane: packets in its queue hold up the window of PSNs
   that all planes share. */
static void relieve_window(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  const struct mrc_txslot *oldest = mrc_requester_awaited(&qp->req, &qp->attr.rts);
  if (oldest == NULL || mrc_requester_has_opened_all(&qp->req)) return;
  const uint64_t wait_ns = late_ns(services, qp, oldest);
  if (wait_ns == MRC_NEVER || now_ns < oldest->sent_ns + wait_ns) return;
  const struct mrc_cc_loss loss = {.cause = MRC_CC_LOSS_LATE,
                                   .bytes = oldest->bytes,
                                   .inflight_bytes = mrc_qp_inflight_bytes(qp, oldest->plane)};
  mrc_cc_on_loss(mrc_qp_cc(qp, oldest->plane), &loss, now_ns);
}

/* ---- time ---- */

void mrc_timeout_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  if (qp->state != MRC_QP_RTS || !mrc_requester_is_busy(&qp->req)) return;
  mrc_loss_on_time(services, qp, now_ns);
  relieve_window(services, qp, now_ns);
  if (now_ns >= reinject_deadline_ns(services, qp)) reinject(services, qp, now_ns);
  if (now_ns >= qp->req.progress_ns + timeout_ns(qp, now_ns)) {
    on_timeout(services, qp, now_ns);
  } else if (now_ns >= probe_deadline_ns(services, qp, now_ns)) {
    req->probe.wanted = true;
    req->probed_ns = now_ns;
    /* The wait covers the time of an answer, because a new probe replaces the last one. */
    const uint64_t longest_ns =
        mrc_max_u64(1024ull << qp->attr.rts.timeout, mrc_loss_patience_ns(qp, now_ns));
    /* Twice the time would be too long where every other probe or answer is lost: the mean wait
       would have no bound but the longest. */
    req->probe_wait_ns = mrc_min_u64(3 * req->probe_wait_ns / 2, longest_ns);
  }
  mrc_qp_touch(services, qp);
}

uint64_t mrc_timeout_deadline(const struct mrc_services *services, const struct mrc_qp *qp,
                              uint64_t now_ns) {
  if (qp->state != MRC_QP_RTS || !mrc_requester_is_busy(&qp->req)) return MRC_NEVER;
  if (mrc_loss_is_due(qp, now_ns)) return 0;
  const uint64_t next_ns = mrc_min_u64(qp->req.progress_ns + timeout_ns(qp, now_ns),
                                       probe_deadline_ns(services, qp, now_ns));
  return mrc_min_u64(next_ns, reinject_deadline_ns(services, qp));
}
