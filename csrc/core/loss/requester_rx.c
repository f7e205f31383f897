/* SPDX-License-Identifier: Apache-2.0 */
#include "requester_rx.h"

#include "acks.h"
#include "core/send/windows.h"
#include "core/windows.h"
#include "health.h"
#include "timeout.h"

int mrc_requester_on_nack(struct mrc_services *services, struct mrc_qp *qp,
                          const struct mrc_wire *wire, uint64_t now_ns) {
  const struct mrc_nack *nack = &wire->nack;
  struct mrc_txwin *win = &qp->req.win;
  if (!mrc_txwin_holds(win, nack->nack_psn)) return mrc_drop(services, MRC_DROP_STALE, qp->qpn, 0);
  struct mrc_txslot *slot = mrc_txwin_slot(win, nack->nack_psn);
  if (slot->state != MRC_TX_INFLIGHT || qp->evset.evs[slot->ev].value != nack->ev)
    return mrc_drop(services, MRC_DROP_STALE, qp->qpn, 0);
  mrc_count(services, MRC_COUNTER_RX_NACKS, 1);
  mrc_trace(services, MRC_TRACE_NACK_IN, qp->qpn, nack->nack_psn, nack->reason);
  /* The NACK proves that the path is alive. */
  mrc_evset_on_delivered(&qp->evset, slot->ev, 0, qp->planes[slot->plane].rack_ns);
  if (nack->reason == MRC_NACK_UNEXP_EVENT) {
    mrc_qp_fail(services, qp, MRC_WC_REM_OP_ERR, MRC_WC_REM_OP_ERR);
    return MRC_DROP_NONE;
  }
  const bool trimmed = nack->reason == MRC_NACK_TRIMMED || nack->reason == MRC_NACK_TRIMMED_LASTHOP;
  const uint32_t bytes = slot->bytes, plane = slot->plane;
  if (nack->reason == MRC_NACK_TRIMMED &&
      mrc_evset_on_skip(&qp->evset, slot->ev, slot->sent_ns, now_ns))
    mrc_health_report_ev(services, qp, slot->ev, MRC_REASON_PEER);
  mrc_health_on_lost(services, qp, nack->nack_psn, MRC_COUNTER_LOST_BY_NACK, now_ns);
  if (trimmed) {
    const struct mrc_cc_loss loss = {.cause = MRC_CC_LOSS_TRIMMED,
                                     .bytes = bytes,
                                     .inflight_bytes = mrc_qp_inflight_bytes(qp, plane)};
    mrc_cc_on_loss(mrc_qp_cc(qp, plane), &loss, now_ns);
  } else {
    mrc_timeout_on_refusal(services, qp, nack->nack_psn);
  }
  mrc_qp_touch(services, qp);
  return MRC_DROP_NONE;
}

static uint8_t status_of(uint8_t syndrome) {
  switch (syndrome) {
    case MRC_SYNDROME_NAK_INV_REQ:
      return MRC_WC_REM_INV_REQ_ERR;
    case MRC_SYNDROME_NAK_REM_ACCESS:
      return MRC_WC_REM_ACCESS_ERR;
    default:
      return MRC_WC_REM_OP_ERR;
  }
}

/* Completed messages have arrived whole, even if their SACKs were lost. */
static void take_whole_messages(struct mrc_services *services, struct mrc_qp *qp, uint32_t last_psn,
                                uint64_t now_ns) {
  struct mrc_cc_ack ack = {.plane = mrc_qp_first_plane(qp)};
  if (mrc_acks_take(services, qp, last_psn, 0, 0, now_ns) > 0)
    mrc_windows_on_ack(services, qp, &ack, now_ns);
  mrc_requester_on_cumulative(&qp->req, mrc_psn_add(last_psn, 1));
}

/* Whether the cumulative PSN of a NAK is plausible: it is outstanding, or just before the oldest
   outstanding PSN. */
static bool may_have_failed_at(const struct mrc_txwin *win, uint32_t cum_psn) {
  return mrc_psn_sub(mrc_psn_add(cum_psn, 1), win->una_psn) <= mrc_txwin_outstanding(win);
}

int mrc_requester_on_ack(struct mrc_services *services, struct mrc_qp *qp,
                         const struct mrc_wire *wire, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  const uint32_t done = (wire->aeth.msn - req->acked_msn) & 0xFFFFFF;
  if (done >= 1u << 23 || mrc_acks_is_stale(&req->win, wire->psn))
    return mrc_drop(services, MRC_DROP_STALE, qp->qpn, 0);
  const bool nak = wire->aeth.syndrome != MRC_SYNDROME_ACK;
  if (nak && !may_have_failed_at(&req->win, wire->psn))
    return mrc_drop(services, MRC_DROP_STALE, qp->qpn, 0);
  if (done > req->sq_send - req->sq_head)
    return mrc_drop(services, MRC_DROP_ACK_UNSENT, qp->qpn, 0);
  if (done > 0) {
    const struct mrc_wqe *newest = &req->sq[(req->sq_head + done - 1) & req->sq_mask];
    const uint32_t last_psn =
        mrc_psn_add(newest->first_psn, mrc_parts(newest->bytes, mrc_wqe_part_bytes(newest)) - 1);
    /* If SACKs arrived and ACKs were lost, the message may be so old that its PSNs look new. */
    if (mrc_txwin_holds(&req->win, last_psn)) {
      if (mrc_acks_names_unsent(&req->win, last_psn))
        return mrc_drop(services, MRC_DROP_ACK_UNSENT, qp->qpn, 0);
      take_whole_messages(services, qp, last_psn, now_ns);
    }
  }
  mrc_count(services, MRC_COUNTER_RX_ACKS, 1);
  mrc_trace(services, MRC_TRACE_ACK_IN, qp->qpn, wire->aeth.syndrome, wire->aeth.msn);
  for (uint32_t i = 0; i < done; i++)
    mrc_requester_complete(services, &qp->req, qp->qpn, MRC_WC_SUCCESS);
  req->acked_msn = wire->aeth.msn & 0xFFFFFF;
  if (done > 0) mrc_requester_on_progress(&qp->req, now_ns);
  if (nak) {
    const uint8_t status = status_of(wire->aeth.syndrome);
    mrc_qp_fail(services, qp, status, status);
  }
  mrc_qp_touch(services, qp);
  return MRC_DROP_NONE;
}
