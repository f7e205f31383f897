/* SPDX-License-Identifier: Apache-2.0 */
#include "acks.h"

#include "health.h"

/* An acknowledgement further back than this is stale. The limit exceeds any window, even over the
   slowest plane. It is a small part of all 2^24 PSNs, and the first PSN of a QP is random, so that
   few acknowledgements of an earlier QP fall within it. */
#define STALE_PSNS 65536

/* Whether the original transmission arrived, although the packet was declared lost or sent again:
   the answer came sooner than any answer to a retransmission could. */
static bool is_of_original(const struct mrc_qp *qp, const struct mrc_txslot *slot,
                           uint64_t now_ns) {
  if (slot->state == MRC_TX_LOST) return true;
  if (slot->tries < 2 || slot->ev_lost == MRC_TX_NONE) return false;
  return now_ns - slot->sent_ns < qp->planes[slot->plane].rtt.base_ns / 2;
}

/* Whether this acknowledgement shows which transmission arrived. If the packet was sent again, an
   answer within the usual round trip may still belong to the original. */
static bool is_evidence(const struct mrc_qp *qp, const struct mrc_txslot *slot, uint64_t now_ns) {
  return slot->tries < 2 || now_ns - slot->sent_ns >= qp->planes[slot->plane].rtt.smooth_ns;
}

/* The peer received one PSN. Returns the bytes newly acknowledged, and also adds them to
   newly_acked_bytes of their plane. */
static uint32_t acknowledge(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn,
                            uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  const struct mrc_txslot slot = *mrc_txwin_slot(&req->win, psn);
  if (slot.state == MRC_TX_ACKED || slot.state == MRC_TX_UNSENT) return 0;
  mrc_txwin_on_acked(&req->win, psn);
  const bool original = is_of_original(qp, &slot, now_ns);
  const bool evidence = !original && is_evidence(qp, &slot, now_ns);
  mrc_txwin_slot(&req->win, psn)->of_original = slot.state == MRC_TX_INFLIGHT && !evidence;
  if (original) mrc_health_on_spurious(services, qp, &slot, psn);
  struct mrc_plane *plane = &qp->planes[slot.plane];
  if (evidence) {
    mrc_plane_on_delivered(plane, slot.sent_ns, now_ns);
    mrc_evset_on_delivered(&qp->evset, slot.ev, slot.sent_ns, plane->rack_ns);
  } else {
    mrc_evset_on_missed(&qp->evset, slot.ev); /* ends a trial without a result */
  }
  req->acknowledged_bytes += slot.bytes;
  plane->newly_acked_bytes += slot.bytes;
  req->acked_planes |= 1u << slot.plane;
  return slot.bytes;
}

uint64_t mrc_acks_take(struct mrc_services *services, struct mrc_qp *qp, uint32_t cum_psn,
                       uint32_t base, uint64_t bitmap, uint64_t now_ns) {
  struct mrc_txwin *win = &qp->req.win;
  uint64_t bytes = 0;
  while (win->una_psn != win->next_psn && !mrc_psn_before(cum_psn, win->una_psn))
    bytes += acknowledge(services, qp, win->una_psn, now_ns);
  for (uint64_t bits = bitmap; bits != 0; bits &= bits - 1) {
    const uint32_t psn = mrc_psn_add(base, (uint32_t)__builtin_ctzll(bits));
    if (mrc_txwin_holds(win, psn)) bytes += acknowledge(services, qp, psn, now_ns);
  }
  return bytes;
}

bool mrc_acks_is_stale(const struct mrc_txwin *win, uint32_t cum_psn) {
  return mrc_psn_sub(win->next_psn, mrc_psn_add(cum_psn, 1)) > STALE_PSNS;
}

bool mrc_acks_names_unsent(const struct mrc_txwin *win, uint32_t last_psn) {
  if (win->n_tosend == 0) return false;
  for (uint32_t psn = win->una_psn; !mrc_psn_before(last_psn, psn); psn = mrc_psn_add(psn, 1))
    if (mrc_txwin_slot(win, psn)->state == MRC_TX_UNSENT) return true;
  return false;
}

uint64_t mrc_acks_round_trip_ns(const struct mrc_meta *meta, uint16_t reflected, uint64_t sent_ns) {
  const uint16_t service_units = (uint16_t)(reflected - mrc_timestamp(sent_ns));
  const uint64_t service_ns = (uint64_t)service_units << 10;
  const uint64_t whole_ns = meta->arrived_ns > sent_ns ? meta->arrived_ns - sent_ns : 0;
  if (service_units > INT16_MAX || service_ns > whole_ns) return 0;
  return mrc_max_u64(whole_ns - service_ns, 1);
}

void mrc_acks_on_rtt(struct mrc_qp *qp, uint16_t ev, uint64_t rtt_ns, struct mrc_cc_ack *ack) {
  const uint32_t plane = mrc_evset_plane_of(&qp->evset, ev);
  mrc_rtt_smooth(&qp->evset.evs[ev].rtt_ns, rtt_ns);
  if (mrc_evset_is_slow(&qp->evset, ev, rtt_ns)) return;
  mrc_rtt_sample(&qp->planes[plane].rtt, rtt_ns);
  mrc_rtt_sample(&qp->req.rtt, rtt_ns);
  ack->rtt_ns = rtt_ns;
  ack->base_rtt_ns = qp->planes[plane].rtt.base_ns;
  ack->smooth_rtt_ns = qp->planes[plane].rtt.smooth_ns;
  ack->plane = plane;
}
