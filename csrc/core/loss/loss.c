/* SPDX-License-Identifier: Apache-2.0 */
#include "loss.h"

#include "health.h"

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

void mrc_loss_mark(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn,
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

void mrc_loss_on_spurious(struct mrc_services *services, struct mrc_qp *qp,
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
