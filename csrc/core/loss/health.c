/* SPDX-License-Identifier: Apache-2.0 */
#include "health.h"

#include "core/qp.h"

/* ---- reports, and the trust in EVs ---- */

void mrc_health_report_ev(struct mrc_services *services, const struct mrc_qp *qp, uint16_t index,
                          enum mrc_event_reason reason) {
  const struct mrc_ev *ev = &qp->evset.evs[index];
  mrc_trace(services, MRC_TRACE_EV_STATE, qp->qpn, index, ev->state);
  if (ev->state == MRC_EV_SKIP) return; /* events report only GOOD, ASSUMED_BAD and DENIED */
  const struct mrc_event event = {.type = MRC_EVENT_EV_STATE,
                                  .qpn = qp->qpn,
                                  .ev_index = index,
                                  .port = ev->port,
                                  .status = ev->state,
                                  .reason = reason};
  mrc_event_push(services, &event);
}

void mrc_health_report_plane(struct mrc_services *services, const struct mrc_qp *qp, uint32_t plane,
                             enum mrc_event_type type, bool alive, enum mrc_event_reason reason) {
  const struct mrc_event event = {
      .type = type, .qpn = qp->qpn, .port = mrc_port_of(plane), .status = alive, .reason = reason};
  mrc_event_push(services, &event);
}

void mrc_health_distrust_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                            enum mrc_event_reason reason, uint64_t now_ns) {
  uint16_t back;
  if (!mrc_evset_on_loss(&qp->evset, ev, &back, now_ns)) return;
  mrc_count(services, MRC_COUNTER_EVS_BAD, 1);
  mrc_health_report_ev(services, qp, ev, reason);
  if (back != MRC_EV_NONE) mrc_health_report_ev(services, qp, back, MRC_REASON_FLOOR);
  qp->ev_probe_ns = mrc_min_u64(qp->ev_probe_ns, qp->evset.evs[ev].probation.next_ns);
}

void mrc_health_trust_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                         enum mrc_event_reason reason) {
  if (qp->evset.evs[ev].state != MRC_EV_ASSUMED_BAD) return;
  if (mrc_evset_on_trust(&qp->evset, ev)) mrc_health_report_ev(services, qp, ev, reason);
}

/* ---- lost packets ---- */

/* The network lost the packet. Reports the loss to congestion control. Then the EV becomes
   ASSUMED_BAD; or, if the loss counts as congestion, it sits out a turn. */
static void blame(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_txslot *slot,
                  enum mrc_counter why, uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[slot->plane];
  /* MRC's switches trim, so a packet lost without a trim means a failed path there. Ordinary queues
     overflow, so a loss while the plane's delay is high counts as overflow. */
  const uint64_t delay_ns = mrc_rtt_delay_ns(&plane->rtt);
  struct mrc_cc *cc = mrc_qp_cc(qp, slot->plane);
  const bool overflow = !plane->suspended && mrc_cc_is_congestion(cc, delay_ns);
  const struct mrc_cc_loss loss = {.cause = overflow ? MRC_CC_LOSS_OVERFLOW : MRC_CC_LOSS_PATH,
                                   .bytes = slot->bytes,
                                   .inflight_bytes = mrc_qp_inflight_bytes(qp, slot->plane)};
  mrc_cc_on_loss(cc, &loss, now_ns);
  if (plane->suspended) return; /* the plane is to blame, not this EV */
  if (overflow) {
    mrc_count(services, MRC_COUNTER_LOST_TO_CONGESTION, 1);
    if (mrc_evset_on_skip(&qp->evset, slot->ev, slot->sent_ns, now_ns))
      mrc_health_report_ev(services, qp, slot->ev, MRC_REASON_LOSS);
    return;
  }
  if (why != MRC_COUNTER_LOST_BY_SILENCE)
    mrc_delivery_on_lost(&plane->delivery, slot->sent_ns, &plane->rtt);
  mrc_health_distrust_ev(services, qp, slot->ev, MRC_REASON_LOSS, now_ns);
}

void mrc_health_on_lost(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn,
                        enum mrc_counter why, uint64_t now_ns) {
  struct mrc_txslot *slot = mrc_txwin_slot(&qp->req.win, psn);
  mrc_txwin_on_lost(&qp->req.win, psn);
  mrc_evset_on_missed(&qp->evset, slot->ev);
  slot->by_timeout = why == MRC_COUNTER_LOST_BY_TIMEOUT;
  slot->by_time = why == MRC_COUNTER_LOST_BY_TIME;
  slot->reinjected = false;
  qp->planes[slot->plane].lost++;
  qp->evset.evs[slot->ev].lost++;
  mrc_count(services, why, 1);
  mrc_trace(services, MRC_TRACE_LOST, qp->qpn, psn, why);
  if (why != MRC_COUNTER_LOST_BY_TIMEOUT && why != MRC_COUNTER_LOST_BY_NACK)
    blame(services, qp, slot, why, now_ns);
}

void mrc_health_on_spurious(struct mrc_services *services, struct mrc_qp *qp,
                            const struct mrc_txslot *slot, uint32_t psn) {
  mrc_assert(slot->ev_lost != MRC_TX_NONE);
  qp->req.spurious_packets++;
  mrc_count(services, MRC_COUNTER_SPURIOUS, 1);
  mrc_trace(services, MRC_TRACE_SPURIOUS, qp->qpn, psn, slot->ev_lost);
  if (slot->reinjected) return; /* neither an EV nor a plane was blamed */
  if (slot->by_timeout) {
    /* The peer answered late; the network has not changed. */
    MRC_EACH_BIT(plane, qp->evset.plane_mask)
      mrc_cc_on_spurious_timeout(&qp->planes[plane].cc);
    return;
  }
  struct mrc_plane *plane = &qp->planes[mrc_evset_plane_of(&qp->evset, slot->ev_lost)];
  const uint64_t least_ns = mrc_floor_ns(MRC_LOSS_REORDER_FLOOR_NS / 4, qp->noise_ns);
  mrc_delivery_on_spurious(&plane->delivery);
  mrc_guard_grow(slot->by_time ? &plane->spread : &plane->reorder, least_ns,
                 4 * mrc_max_u64(plane->rtt.smooth_ns, 1), services->now_ns);
  mrc_health_trust_ev(services, qp, slot->ev_lost, MRC_REASON_SPURIOUS);
}

/* ---- planes ---- */

void mrc_health_suspend_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                              enum mrc_event_reason reason, uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  struct mrc_txlist *list = &qp->req.win.lists[index];
  if (plane->suspended) return;
  mrc_plane_suspend(plane, qp->noise_ns, now_ns);
  mrc_share_forget(qp, index);
  mrc_count(services, MRC_COUNTER_PLANES_SUSPENDED, 1);
  mrc_trace(services, MRC_TRACE_PLANE_SUSPEND, qp->qpn, mrc_port_of(index), list->bytes);
  while (list->oldest != MRC_TX_NONE)
    mrc_health_on_lost(services, qp, mrc_txwin_psn_of(&qp->req.win, list->oldest),
                       MRC_COUNTER_LOST_BY_SILENCE, now_ns);
  /* Trust the EVs again that turned bad after the plane was last heard: the plane is now on
     probation instead. What they delivered before proves nothing: when the plane resumes, some of
     them may still be dead, and one burst of each is enough to tell. */
  for (uint16_t i = 0; i < qp->evset.planes[index].n; i++) {
    const uint16_t ev = qp->evset.planes[index].order[i];
    qp->evset.evs[ev].proven = false;
    if (qp->evset.evs[ev].bad_since_ns >= plane->heard_ns)
      mrc_health_trust_ev(services, qp, ev, MRC_REASON_PLANE);
  }
  qp->ev_probe_ns = mrc_min_u64(qp->ev_probe_ns, plane->probation.next_ns);
  mrc_health_report_plane(services, qp, index, MRC_EVENT_PLANE, false, reason);
}

void mrc_health_on_peer_port_down(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                                  uint64_t now_ns) {
  mrc_health_suspend_plane(services, qp, index, MRC_REASON_PEER_PORT, now_ns);
  mrc_probation_on_hearsay(&qp->planes[index].probation, qp->noise_ns, now_ns);
}

void mrc_health_retry_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                            uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  if (plane->suspended) mrc_probation_on_mend(&plane->probation, now_ns);
  qp->ev_probe_ns = 0;
  mrc_qp_touch(services, qp);
}

void mrc_health_resume_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                             enum mrc_event_reason reason) {
  struct mrc_plane *plane = &qp->planes[index];
  if (!plane->suspended) return;
  if (plane->peer_down || !mrc_port_is_up(&services->ports, index))
    return; /* not before both ports are up */
  mrc_plane_resume(plane);
  mrc_share_forget(qp, index);
  mrc_count(services, MRC_COUNTER_PLANES_RESUMED, 1);
  mrc_trace(services, MRC_TRACE_PLANE_RESUME, qp->qpn, mrc_port_of(index),
            plane->probation.relapses);
  mrc_health_report_plane(services, qp, index, MRC_EVENT_PLANE, true, reason);
  mrc_qp_touch(services, qp);
}
