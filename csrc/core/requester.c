/* SPDX-License-Identifier: Apache-2.0 */
/* Work requests in, acknowledgements in, completions out. Sending is in requester_tx.c. */
#include "requester.h"

#include <errno.h>
#include <stdlib.h>

#include "loss.h"
#include "windows.h"

/* How far back an acknowledgement may be, in PSNs: further than any window over the slowest plane,
   and a small part of all PSNs, from which each QP draws its first. */
#define STALE_PSNS 65536

int mrc_requester_init(struct mrc_qp *qp, uint32_t planes) {
  struct mrc_requester *req = &qp->req;
  const uint32_t size = mrc_ceil_pow2(qp->attr.sq_depth);
  *req = (struct mrc_requester){.sq = calloc(size, sizeof *req->sq), .sq_mask = size - 1};
  if (req->sq == NULL) return -ENOMEM;
  return mrc_txwin_init(&req->win, 1, planes); /* in its size at RTS */
}

void mrc_requester_free(struct mrc_qp *qp) {
  free(qp->req.sq);
  mrc_txwin_free(&qp->req.win);
}

int mrc_requester_start(struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  const struct mrc_qp_attr *attr = &qp->attr;
  if (attr->path_mtu < MRC_MIN_MTU || attr->path_mtu > MRC_MAX_MTU || attr->path_mtu % 4 != 0)
    return -EINVAL;
  if (attr->peer_mpr < MRC_MPR_UNIT || attr->peer_mpr > MRC_RXWIN_MAX_PSNS) return -EINVAL;
  if (attr->peer_max_wimm == 0 || attr->timeout < 1 || attr->timeout > 24) return -EINVAL;
  if (attr->retry_linear > 7 || attr->retry_exp > 25) return -EINVAL;
  if (attr->sq_psn > MRC_PSN_MASK || attr->plane_shares > MRC_SHARES_EQUAL) return -EINVAL;
  const uint32_t psns = mrc_min_u32(attr->peer_mpr, attr->mpr);
  int error = mrc_windows_start(qp, psns);
  /* NSCC is made for switches that trim: there what is late stands in a queue, and is not lost. */
  if (error == 0 && attr->cc == MRC_CC_NSCC) error = mrc_evset_tell_late(&qp->evset);
  if (error != 0) return error;
  struct mrc_txwin win;
  error = mrc_txwin_init(&win, psns, req->win.planes);
  if (error != 0) return error;
  mrc_txwin_free(&req->win);
  req->win = win;
  mrc_txwin_start(&req->win, attr->sq_psn);
  req->peer_next_psn = attr->sq_psn;
  req->peer_mpr = attr->peer_mpr;
  req->progress_ns = now_ns;
  req->probe_wait_ns = mrc_loss_patience_ns(qp);
  return 0;
}

bool mrc_requester_is_busy(const struct mrc_qp *qp) {
  /* A work request is done when the transport ACK says so, later than its last SACK. */
  return qp->req.sq_head != qp->req.sq_tail;
}

int mrc_requester_post(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_wr *wr,
                       uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  if (wr->opcode > MRC_WR_WRITE_IMM) return -EINVAL;
  if (wr->opcode == MRC_WR_WRITE && wr->bytes == 0) return -EINVAL; /* the peer drops it */
  if (qp->state != MRC_QP_RTS) return -EPERM;
  if (req->sq_used == qp->attr.sq_depth) return -ENOBUFS;
  struct mrc_mr *mr = NULL;
  if (wr->bytes > 0) {
    mr = mrc_mr_find(&engine->mrs, wr->lkey, wr->local, wr->bytes, MRC_ACCESS_LOCAL_READ);
    if (mr == NULL) return -EACCES;
    if (wr->va + wr->bytes < wr->va) return -EINVAL;
  }
  if (!mrc_cq_promise_post(&engine->cq)) return -ENOBUFS;
  if (!mrc_requester_is_busy(qp)) {
    req->progress_ns = now_ns;
    req->probed_ns = now_ns;
    mrc_plane_compare(engine, qp, now_ns);
  }
  if (mr != NULL) mr->refs++;
  struct mrc_wqe *wqe = &req->sq[req->sq_tail & req->sq_mask];
  *wqe = (struct mrc_wqe){.wr_id = wr->wr_id,
                          .local = wr->local,
                          .va = wr->va,
                          .mr = mr == NULL ? MRC_MR_NONE : (uint32_t)(mr - engine->mrs.mrs),
                          .rkey = wr->rkey,
                          .bytes = wr->bytes,
                          .imm = wr->imm,
                          .opcode = wr->opcode,
                          .rqmsn = req->next_rqmsn};
  if (wr->opcode == MRC_WR_WRITE_IMM) req->next_rqmsn++;
  req->unsent_bytes += wr->bytes;
  req->sq_tail++;
  req->sq_used++;
  mrc_qp_touch(engine, qp);
  return 0;
}

/* Whether packets of that work request have a PSN. */
static bool is_opened(const struct mrc_requester *req, uint32_t index) {
  const int32_t ahead = (int32_t)(index - req->sq_send);
  return ahead < 0 || (ahead == 0 && req->opened > 0);
}

/* Completes the oldest work request. */
static void complete(struct mrc_engine *engine, struct mrc_qp *qp, uint8_t status) {
  struct mrc_requester *req = &qp->req;
  mrc_assert(req->sq_head != req->sq_tail);
  const struct mrc_wqe *wqe = &req->sq[req->sq_head & req->sq_mask];
  if (wqe->mr != MRC_MR_NONE) {
    struct mrc_mr *mr = &engine->mrs.mrs[wqe->mr];
    mrc_assert(mr->refs > 0);
    mr->refs--;
  }
  const bool imm = wqe->opcode == MRC_WR_WRITE_IMM;
  if (imm && is_opened(req, req->sq_head)) {
    mrc_assert(req->wimm_inflight > 0);
    req->wimm_inflight--;
  }
  const struct mrc_wc wc = {.wr_id = wqe->wr_id,
                            .qpn = qp->qpn,
                            .bytes = wqe->bytes,
                            .status = status,
                            .opcode = imm ? MRC_WC_WRITE_IMM : MRC_WC_WRITE};
  mrc_cq_push(&engine->cq, &wc);
  mrc_trace(engine, MRC_TRACE_COMPLETE, qp->qpn, wqe->wr_id, status);
  req->sq_head++;
}

void mrc_requester_flush(struct mrc_engine *engine, struct mrc_qp *qp, uint8_t status) {
  struct mrc_requester *req = &qp->req;
  while (req->sq_head != req->sq_tail) {
    complete(engine, qp, status);
    status = MRC_WC_WR_FLUSH_ERR;
  }
  req->sq_send = req->sq_tail;
  req->opened = 0;
  req->unsent_bytes = 0;
  req->probe.outstanding = req->probe.wanted = false;
  mrc_txwin_clear(&req->win);
}

/* Whether this acknowledgement is of the original, although the packet was sent again: the answer
   came sooner than any answer to the retransmission could. */
static bool is_of_original(const struct mrc_qp *qp, const struct mrc_txslot *slot,
                           uint64_t now_ns) {
  if (slot->state == MRC_TX_LOST) return true;
  if (slot->tries < 2 || slot->ev_lost == MRC_TX_NONE) return false;
  return now_ns - slot->sent_ns < qp->planes[slot->plane].rtt.base_ns / 2;
}

/* Whether this acknowledgement tells when and where the packet got through. Of one that was sent
   again it may be the original that arrived, as long as the answer comes no later than answers
   usually do. */
static bool is_evidence(const struct mrc_qp *qp, const struct mrc_txslot *slot, uint64_t now_ns) {
  return slot->tries < 2 || now_ns - slot->sent_ns >= qp->planes[slot->plane].rtt.smooth_ns;
}

/* The plane delivered something that was sent at `sent_ns`. */
static void on_delivered(struct mrc_plane *plane, uint64_t sent_ns, uint64_t now_ns) {
  plane->rack_ns = mrc_max_u64(plane->rack_ns, sent_ns);
  plane->heard_ns = now_ns;
  plane->doubted_ns = 0;
  plane->strikes = 0;
}

/* One PSN was received by the peer; returns the bytes that this newly acknowledges, which stand at
   their plane as well. */
static uint32_t acknowledge(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t psn,
                            uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  const struct mrc_txslot slot = *mrc_txwin_slot(&req->win, psn);
  if (slot.state == MRC_TX_ACKED || slot.state == MRC_TX_UNSENT) return 0;
  mrc_txwin_on_acked(&req->win, psn);
  const bool original = is_of_original(qp, &slot, now_ns);
  const bool evidence = !original && is_evidence(qp, &slot, now_ns);
  mrc_txwin_slot(&req->win, psn)->of_original = slot.state == MRC_TX_INFLIGHT && !evidence;
  if (original) mrc_loss_on_spurious(engine, qp, &slot, psn);
  struct mrc_plane *plane = &qp->planes[slot.plane];
  if (evidence) {
    on_delivered(plane, slot.sent_ns, now_ns);
    mrc_evset_on_delivered(&qp->evset, slot.ev, slot.sent_ns, plane->rack_ns);
  } else {
    mrc_evset_on_missed(&qp->evset, slot.ev); /* nothing of its trial is under way any more */
  }
  req->bytes_acked += slot.bytes;
  plane->newly_acked_bytes += slot.bytes;
  req->acked_planes |= 1u << slot.plane;
  return slot.bytes;
}

/* Whether an acknowledgement up to `cum_psn` is too far back for a packet of this QP, however slow
   its plane: it is of an earlier QP that had this number. */
static bool is_stale(const struct mrc_txwin *win, uint32_t cum_psn) {
  return mrc_psn_sub(win->next_psn, mrc_psn_add(cum_psn, 1)) > STALE_PSNS;
}

/* Whether a PSN up to `last_psn` never left: a peer that acknowledges it lies. */
static bool names_unsent(const struct mrc_txwin *win, uint32_t last_psn) {
  if (win->n_tosend == 0) return false;
  for (uint32_t psn = win->una_psn; !mrc_psn_before(last_psn, psn); psn = mrc_psn_add(psn, 1))
    if (mrc_txwin_slot(win, psn)->state == MRC_TX_UNSENT) return true;
  return false;
}

static void on_progress(struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  req->progress_ns = now_ns;
  req->timeouts = 0;
  req->refused = false;
}

/* A round trip of something that left on this EV. */
static void on_rtt(struct mrc_qp *qp, uint16_t ev, uint64_t rtt_ns, struct mrc_cc_ack *ack) {
  const uint32_t plane = qp->evset.evs[ev].port - 1u;
  mrc_rtt_smooth(&qp->evset.evs[ev].rtt_ns, rtt_ns);
  mrc_rtt_sample(&qp->planes[plane].rtt, rtt_ns);
  mrc_rtt_sample(&qp->req.rtt, rtt_ns);
  ack->rtt_ns = rtt_ns;
  ack->base_rtt_ns = qp->planes[plane].rtt.base_ns;
  ack->smooth_rtt_ns = qp->planes[plane].rtt.smooth_ns;
  ack->plane = plane;
}

/* Round trip of what was sent at `sent_ns`; 0 when the reflected timestamp makes no sense. The peer
   shifted it by its service time, which is taken off: what remains is the network. The timestamp
   measures only that, so that its 16 bits limit the service time and not the round trip. */
static uint64_t round_trip_ns(const struct mrc_meta *meta, uint16_t reflected, uint64_t sent_ns) {
  const uint16_t service_units = (uint16_t)(reflected - mrc_timestamp(sent_ns));
  const uint64_t service_ns = (uint64_t)service_units << 10;
  const uint64_t whole_ns = meta->arrived_ns > sent_ns ? meta->arrived_ns - sent_ns : 0;
  if (service_units > INT16_MAX || service_ns > whole_ns) return 0;
  return mrc_max_u64(whole_ns - service_ns, 1);
}

/* The answer to the reliability probe stands for a packet sent when the probe was. */
static void on_probe_answer(struct mrc_engine *engine, struct mrc_qp *qp,
                            const struct mrc_sack *sack, const struct mrc_meta *meta,
                            struct mrc_cc_ack *ack, uint64_t now_ns) {
  struct mrc_reliability_probe *probe = &qp->req.probe;
  const uint16_t id = (uint16_t)sack->ack_psn_offset;
  if (!probe->outstanding || probe->id != id) return;
  probe->outstanding = false;
  on_delivered(&qp->planes[probe->plane], probe->sent_ns, now_ns);
  mrc_evset_on_delivered(&qp->evset, probe->ev, probe->sent_ns, qp->planes[probe->plane].rack_ns);
  const uint64_t rtt_ns = round_trip_ns(meta, sack->tx_timestamp, probe->sent_ns);
  if (rtt_ns != 0) on_rtt(qp, probe->ev, rtt_ns, ack);
  on_progress(qp, now_ns);
  mrc_trace(engine, MRC_TRACE_PROBE_IN, qp->qpn, id, rtt_ns);
}

/* The triggering packet gives a round trip when it was sent only once. It may be acknowledged
   already, by another SACK that came with this one: what was sent stands in its slot until the ring
   of slots comes around. */
static void on_trigger(struct mrc_qp *qp, const struct mrc_sack *sack, const struct mrc_meta *meta,
                       struct mrc_cc_ack *ack) {
  const struct mrc_txwin *win = &qp->req.win;
  const uint32_t psn = (sack->cum_psn + (uint32_t)(int32_t)sack->ack_psn_offset) & MRC_PSN_MASK;
  const uint32_t ago = mrc_psn_sub(win->next_psn, psn);
  if (ago == 0 || ago > win->mask + 1) return;
  const struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
  if (slot->tries != 1 || slot->state == MRC_TX_LOST) return;
  mrc_assert(slot->ev < qp->evset.n);
  /* A SACK that repeats an old trigger may have kept it for longer than its timestamp can say. */
  const bool old = meta->arrived_ns - slot->sent_ns > (uint64_t)INT16_MAX << 10;
  if (slot->state != MRC_TX_INFLIGHT && old) return;
  const uint64_t rtt_ns = round_trip_ns(meta, sack->tx_timestamp, slot->sent_ns);
  if (rtt_ns != 0) on_rtt(qp, slot->ev, rtt_ns, ack);
}

/* When that which triggered the SACK left on this EV; 0 when it is not known. */
static uint64_t trigger_sent_ns(const struct mrc_qp *qp, const struct mrc_sack *sack, uint16_t ev) {
  const struct mrc_txwin *win = &qp->req.win;
  if (sack->pr) return 0;
  const uint32_t psn = (sack->cum_psn + (uint32_t)(int32_t)sack->ack_psn_offset) & MRC_PSN_MASK;
  const uint32_t ago = mrc_psn_sub(win->next_psn, psn);
  if (ago == 0 || ago > win->mask + 1) return 0;
  const struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
  return slot->ev == ev && slot->state != MRC_TX_LOST ? slot->sent_ns : 0;
}

/* What the SACK says of the EV that it reflects, which tells the plane that it is about. */
static void on_ev_feedback(struct mrc_engine *engine, struct mrc_qp *qp,
                           const struct mrc_sack *sack, struct mrc_cc_ack *ack, uint64_t now_ns) {
  const uint16_t ev = mrc_evset_find(&qp->evset, sack->ev);
  if (ev == MRC_EV_NONE) return;
  if (ack->rtt_ns == 0) ack->plane = qp->evset.evs[ev].port - 1u;
  if (sack->m == MRC_M_ALWAYS_SKIP) {
    mrc_loss_distrust_ev(engine, qp, ev, MRC_REASON_PEER, now_ns);
    return;
  }
  const uint64_t sent_ns = trigger_sent_ns(qp, sack, ev);
  if (sack->m == MRC_M_NONE)
    mrc_evset_on_clear(&qp->evset, ev, sent_ns, now_ns);
  else if (mrc_evset_on_skip(&qp->evset, ev, sent_ns, now_ns))
    mrc_loss_report_ev(engine, qp, ev, MRC_REASON_PEER);
}

/* Acknowledges everything up to the cumulative PSN and in the bitmap; returns the new bytes. */
static uint64_t take_acks(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t cum_psn,
                          uint32_t base, uint64_t bitmap, uint64_t now_ns) {
  struct mrc_txwin *win = &qp->req.win;
  uint64_t bytes = 0;
  while (win->una_psn != win->next_psn && !mrc_psn_before(cum_psn, win->una_psn))
    bytes += acknowledge(engine, qp, win->una_psn, now_ns);
  for (uint64_t bits = bitmap; bits != 0; bits &= bits - 1) {
    const uint32_t psn = mrc_psn_add(base, (uint32_t)__builtin_ctzll(bits));
    if (mrc_txwin_holds(win, psn)) bytes += acknowledge(engine, qp, psn, now_ns);
  }
  return bytes;
}

/* A window that the peer narrows pauses us; what has left stays as it is. An older SACK, which a
   newer one passed on another plane, says nothing of it. */
static void on_peer_mpr(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_sack *sack) {
  struct mrc_requester *req = &qp->req;
  if (qp->attr.dynamic_mpr == 0 || sack->mpr == 0) return;
  if (mrc_psn_before(mrc_psn_add(sack->cum_psn, 1), req->peer_next_psn)) return;
  const uint32_t psns = mrc_min_u32((uint32_t)sack->mpr * MRC_MPR_UNIT, qp->attr.peer_mpr);
  if (psns == req->peer_mpr) return;
  mrc_trace(engine, MRC_TRACE_PEER_MPR, qp->qpn, req->peer_mpr, psns);
  req->peer_mpr = psns;
}

int mrc_requester_on_sack(struct mrc_engine *engine, struct mrc_qp *qp,
                          const struct mrc_wire *packet, const struct mrc_meta *meta,
                          uint64_t now_ns) {
  const struct mrc_sack *sack = &packet->sack;
  struct mrc_requester *req = &qp->req;
  struct mrc_txwin *win = &req->win;
  const uint32_t base = (sack->cum_psn + (uint32_t)(int32_t)sack->sack_offset) & MRC_PSN_MASK;
  const uint32_t top = sack->bitmap == 0
                           ? sack->cum_psn
                           : mrc_psn_add(base, 63 - (uint32_t)__builtin_clzll(sack->bitmap));
  if (!mrc_psn_before(sack->cum_psn, win->next_psn) || !mrc_psn_before(top, win->next_psn) ||
      names_unsent(win, sack->cum_psn))
    return mrc_drop(engine, MRC_DROP_ACK_UNSENT, qp->qpn, 0);
  if (is_stale(win, sack->cum_psn)) return mrc_drop(engine, MRC_DROP_STALE, qp->qpn, 0);
  mrc_count(engine, MRC_COUNTER_RX_SACKS, 1);
  mrc_trace(engine, MRC_TRACE_SACK_IN, qp->qpn, sack->cum_psn, sack->bitmap);
  struct mrc_cc_ack ack = {.plane = mrc_qp_first_plane(qp),
                           .ce = sack->m == MRC_M_SKIP_ONCE,
                           .restore_window = sack->restore_cwnd,
                           .penalty = sack->rcv_cwnd_pen};
  if (sack->pr)
    on_probe_answer(engine, qp, sack, meta, &ack, now_ns);
  else
    on_trigger(qp, sack, meta, &ack);
  on_ev_feedback(engine, qp, sack, &ack, now_ns);
  const uint64_t bytes = take_acks(engine, qp, sack->cum_psn, base, sack->bitmap, now_ns);
  const uint32_t next = mrc_psn_add(sack->cum_psn, 1);
  if (mrc_psn_before(req->peer_next_psn, next)) req->peer_next_psn = next;
  on_peer_mpr(engine, qp, sack);
  if (bytes > 0) {
    on_progress(qp, now_ns);
    req->probe_wait_ns = mrc_loss_patience_ns(qp);
  }
  mrc_windows_on_ack(engine, qp, &ack, now_ns);
  if (now_ns - req->quick.compared_ns >= qp->noise_ns / 4) mrc_plane_compare(engine, qp, now_ns);
  mrc_loss_on_holes(engine, qp, base, sack->bitmap, now_ns);
  mrc_qp_touch(engine, qp); /* loss by time is looked at when all that came has been taken */
  return MRC_DROP_NONE;
}

int mrc_requester_on_nack(struct mrc_engine *engine, struct mrc_qp *qp,
                          const struct mrc_wire *packet, uint64_t now_ns) {
  const struct mrc_nack *nack = &packet->nack;
  struct mrc_txwin *win = &qp->req.win;
  if (!mrc_txwin_holds(win, nack->nack_psn)) return mrc_drop(engine, MRC_DROP_STALE, qp->qpn, 0);
  struct mrc_txslot *slot = mrc_txwin_slot(win, nack->nack_psn);
  if (slot->state != MRC_TX_INFLIGHT || qp->evset.evs[slot->ev].value != nack->ev)
    return mrc_drop(engine, MRC_DROP_STALE, qp->qpn, 0);
  mrc_count(engine, MRC_COUNTER_RX_NACKS, 1);
  mrc_trace(engine, MRC_TRACE_NACK_IN, qp->qpn, nack->nack_psn, nack->reason);
  /* The path is no dead one. */
  mrc_evset_on_delivered(&qp->evset, slot->ev, 0, qp->planes[slot->plane].rack_ns);
  if (nack->reason == MRC_NACK_UNEXP_EVENT) {
    mrc_qp_fail(engine, qp, MRC_WC_REM_OP_ERR, MRC_WC_REM_OP_ERR);
    return MRC_DROP_NONE;
  }
  const bool trimmed = nack->reason == MRC_NACK_TRIMMED || nack->reason == MRC_NACK_TRIMMED_LASTHOP;
  const uint32_t bytes = slot->bytes, plane = slot->plane;
  if (nack->reason == MRC_NACK_TRIMMED &&
      mrc_evset_on_skip(&qp->evset, slot->ev, slot->sent_ns, now_ns))
    mrc_loss_report_ev(engine, qp, slot->ev, MRC_REASON_PEER);
  mrc_loss_mark(engine, qp, nack->nack_psn, MRC_COUNTER_LOST_BY_NACK, now_ns);
  if (!trimmed) mrc_loss_on_refusal(engine, qp, nack->nack_psn);
  if (trimmed) {
    const struct mrc_cc_loss loss = {.cause = MRC_CC_LOSS_TRIMMED,
                                     .bytes = bytes,
                                     .inflight_bytes = mrc_qp_inflight_bytes(qp, plane)};
    mrc_cc_on_loss(mrc_qp_cc(qp, plane), &loss, now_ns);
  }
  mrc_qp_touch(engine, qp);
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

/* Completed messages have arrived whole, whether or not their SACKs did. */
static void take_whole_messages(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t last_psn,
                                uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  struct mrc_cc_ack ack = {.plane = mrc_qp_first_plane(qp)};
  if (take_acks(engine, qp, last_psn, 0, 0, now_ns) > 0)
    mrc_windows_on_ack(engine, qp, &ack, now_ns);
  const uint32_t next = mrc_psn_add(last_psn, 1);
  if (mrc_psn_before(req->peer_next_psn, next)) req->peer_next_psn = next;
}

/* Whether a responder can have failed where its NAK says: what it had received by then ends within
   what is in flight, or just before. */
static bool may_have_failed_at(const struct mrc_txwin *win, uint32_t cum_psn) {
  return mrc_psn_sub(mrc_psn_add(cum_psn, 1), win->una_psn) <= mrc_txwin_outstanding(win);
}

int mrc_requester_on_ack(struct mrc_engine *engine, struct mrc_qp *qp,
                         const struct mrc_wire *packet, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  const uint32_t done = (packet->aeth.msn - req->acked_msn) & 0xFFFFFF;
  if (done >= 1u << 23 || is_stale(&req->win, packet->psn))
    return mrc_drop(engine, MRC_DROP_STALE, qp->qpn, 0);
  const bool nak = packet->aeth.syndrome != MRC_SYNDROME_ACK;
  if (nak && !may_have_failed_at(&req->win, packet->psn))
    return mrc_drop(engine, MRC_DROP_STALE, qp->qpn, 0);
  if (done > req->sq_send - req->sq_head) return mrc_drop(engine, MRC_DROP_ACK_UNSENT, qp->qpn, 0);
  if (done > 0) {
    const struct mrc_wqe *newest = &req->sq[(req->sq_head + done - 1) & req->sq_mask];
    const uint32_t last_psn =
        mrc_psn_add(newest->first_psn, mrc_wqe_packets(newest, qp->attr.path_mtu) - 1);
    /* When SACKs came and ACKs did not, the message may lie so far back that its PSNs look new. */
    if (mrc_txwin_holds(&req->win, last_psn)) {
      if (names_unsent(&req->win, last_psn))
        return mrc_drop(engine, MRC_DROP_ACK_UNSENT, qp->qpn, 0);
      take_whole_messages(engine, qp, last_psn, now_ns);
    }
  }
  mrc_count(engine, MRC_COUNTER_RX_ACKS, 1);
  mrc_trace(engine, MRC_TRACE_ACK_IN, qp->qpn, packet->aeth.syndrome, packet->aeth.msn);
  for (uint32_t i = 0; i < done; i++)
    complete(engine, qp, MRC_WC_SUCCESS);
  req->acked_msn = packet->aeth.msn & 0xFFFFFF;
  if (done > 0) on_progress(qp, now_ns);
  if (nak) {
    const uint8_t status = status_of(packet->aeth.syndrome);
    mrc_qp_fail(engine, qp, status, status);
  }
  mrc_qp_touch(engine, qp);
  return MRC_DROP_NONE;
}
