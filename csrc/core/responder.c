/* SPDX-License-Identifier: Apache-2.0 */
#include "responder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "burst.h"

#define NACK_INTERVAL_NS 1000000ull /* of out-of-window NACKs, and of repeated NAKs, at least */
#define SACK_MIN_ADD_BYTES 1024u    /* what a small packet counts towards the SACK threshold */

int mrc_responder_init(struct mrc_qp *qp) {
  struct mrc_responder *resp = &qp->resp;
  const uint32_t size = mrc_ceil_pow2(qp->attr.max_wimm);
  *resp = (struct mrc_responder){.wimms = calloc(size, sizeof *resp->wimms),
                                 .wimm_mask = size - 1,
                                 .sack_deadline_ns = MRC_NEVER};
  if (resp->wimms == NULL) return -ENOMEM;
  resp->mpr = qp->attr.mpr;
  return mrc_rxwin_init(&resp->win, qp->attr.mpr);
}

void mrc_responder_free(struct mrc_qp *qp) {
  free(qp->resp.wimms);
  mrc_rxwin_free(&qp->resp.win);
}

/* The EV as it was seen on the wire. */
static uint32_t ev_of(const struct mrc_meta *meta) {
  return (uint32_t)meta->sport << 16 | (meta->flow_label & 0xFFFF);
}

/* One SACK stands for all that came by a plane: the requester knows which EV each packet took. Only
   a mark says something of its EV that the bitmap does not. */
static bool shares_a_sack(const struct mrc_sack_trigger *t, uint8_t port, uint8_t m, uint32_t ev) {
  return !t->pr && t->port == port && t->m == m && (m == MRC_M_NONE || t->ev == ev);
}

static struct mrc_sack_trigger *new_trigger(struct mrc_responder *resp, uint64_t now_ns) {
  if (resp->n_triggers < MRC_MAX_TRIGGERS)
    resp->n_triggers++;
  else
    resp->sack_now = true; /* what the last one stood for is reported with no trigger of its own */
  struct mrc_sack_trigger *trigger = &resp->triggers[resp->n_triggers - 1];
  trigger->words = 0;
  trigger->first_ns = now_ns;
  trigger->now = false;
  return trigger;
}

/* Remembers that this packet wants a SACK; of those that share one the newest stands for it. Fields
   are written one by one where they stay: a copy would wait until all of them had left the core. */
static struct mrc_sack_trigger *trigger(const struct mrc_engine *engine, struct mrc_responder *resp,
                                        const struct mrc_wire *packet, const struct mrc_meta *meta,
                                        bool pr) {
  const uint8_t m = meta->ecn == 3 ? MRC_M_SKIP_ONCE : MRC_M_NONE;
  const uint32_t ev = ev_of(meta);
  struct mrc_sack_trigger *found = NULL;
  for (int i = resp->n_triggers - 1; i >= 0 && found == NULL && !pr; i--)
    if (shares_a_sack(&resp->triggers[i], meta->port, m, ev)) found = &resp->triggers[i];
  if (found == NULL) found = new_trigger(resp, engine->now_ns);
  found->arrived_ns = meta->arrived_ns;
  found->psn = packet->psn;
  found->ev = ev;
  found->tx_timestamp = packet->tx_timestamp;
  found->port = meta->port;
  found->m = m;
  found->pr = pr;
  resp->arrived_ns = meta->arrived_ns;
  resp->last_port = meta->port;
  return found;
}

static void queue_nack(struct mrc_qp *qp, const struct mrc_wire *packet,
                       const struct mrc_meta *meta, uint8_t reason) {
  struct mrc_responder *resp = &qp->resp;
  if (resp->n_nacks == MRC_MAX_NACKS) return;
  resp->nacks[resp->n_nacks++] = (struct mrc_nack_out){.psn = packet->psn,
                                                       .ev = ev_of(meta),
                                                       .tx_timestamp = packet->tx_timestamp,
                                                       .reason = reason,
                                                       .port = meta->port};
}

/* Ends the QP because of what the peer asked; the NAK tells it why. */
static int refuse(struct mrc_engine *engine, struct mrc_qp *qp, uint8_t syndrome, uint8_t status,
                  enum mrc_drop reason, const struct mrc_wire *packet,
                  const struct mrc_meta *meta) {
  qp->resp.nak_syndrome = syndrome;
  qp->resp.ack_wanted = true;
  qp->resp.last_port = meta->port;
  mrc_qp_fail(engine, qp, status, MRC_WC_WR_FLUSH_ERR);
  mrc_qp_touch_to_answer(engine, qp);
  return mrc_drop(engine, reason, qp->qpn, packet->payload_bytes);
}

/* What arrived of the message that ends with this immediate: all packets before it are of one size.
   The length in its headers is only what the peer says. */
static uint32_t message_bytes(const struct mrc_responder *resp, const struct mrc_wimm *wimm) {
  const uint64_t before = mrc_psn_sub(wimm->psn, resp->message_psn);
  return (uint32_t)mrc_min_u64(before * resp->part_bytes + wimm->bytes, UINT32_MAX);
}

/* Hands an immediate to the CQ; false when it has no room for it now. */
static bool deliver(struct mrc_engine *engine, struct mrc_qp *qp, struct mrc_wimm *wimm) {
  struct mrc_responder *resp = &qp->resp;
  if (resp->wimm_unpolled == qp->attr.max_wimm || !mrc_cq_promise_delivery(&engine->cq))
    return false;
  const struct mrc_wc wc = {.wr_id = resp->next_rqmsn,
                            .qpn = qp->qpn,
                            .imm = wimm->imm,
                            .bytes = message_bytes(resp, wimm),
                            .status = MRC_WC_SUCCESS,
                            .opcode = MRC_WC_RECV_IMM};
  mrc_cq_push(&engine->cq, &wc);
  mrc_trace(engine, MRC_TRACE_IMMEDIATE, qp->qpn, wimm->imm, wc.bytes);
  *wimm = (struct mrc_wimm){0};
  resp->next_rqmsn++;
  resp->wimm_unpolled++;
  return true;
}

/* Moves the cumulative PSN as far as it goes. It stops at a hole, and at an immediate for which the
   CQ has no room: the sender's window then closes by itself (there is no RNR). */
static void advance(struct mrc_engine *engine, struct mrc_qp *qp) {
  struct mrc_responder *resp = &qp->resp;
  bool held = false;
  while (mrc_rxwin_ready(&resp->win)) {
    if (mrc_rxwin_ready_is_last(&resp->win)) {
      struct mrc_wimm *wimm = &resp->wimms[resp->next_rqmsn & resp->wimm_mask];
      if (wimm->present && wimm->psn == resp->win.next_psn && !deliver(engine, qp, wimm)) {
        held = true;
        break;
      }
      resp->message_psn = mrc_psn_add(resp->win.next_psn, 1);
      resp->done_msn = (resp->done_msn + 1) & 0xFFFFFF;
      resp->ack_wanted = true;
    }
    mrc_rxwin_advance(&resp->win);
  }
  if (held && !mrc_node_joined(&qp->held)) mrc_count(engine, MRC_COUNTER_WIMM_HELD, 1);
  if (held)
    mrc_list_append(&engine->held, &qp->held);
  else
    mrc_node_leave(&qp->held);
}

bool mrc_responder_resume(struct mrc_engine *engine, struct mrc_qp *qp) {
  const uint32_t before = qp->resp.win.next_psn;
  advance(engine, qp);
  if (qp->resp.win.next_psn == before) return false;
  qp->resp.sack_now = true;
  mrc_qp_touch_to_answer(engine, qp);
  return true;
}

/* Checks the immediate's number and keeps it until its turn. */
static bool stash(struct mrc_qp *qp, const struct mrc_wire *packet) {
  struct mrc_responder *resp = &qp->resp;
  const uint16_t ahead = (uint16_t)(packet->rqmsn - (uint16_t)resp->next_rqmsn);
  if (ahead >= qp->attr.max_wimm) return false;
  struct mrc_wimm *wimm = &resp->wimms[(resp->next_rqmsn + ahead) & resp->wimm_mask];
  if (wimm->present) return false;
  *wimm = (struct mrc_wimm){.imm = packet->imm,
                            .bytes = packet->payload_bytes,
                            .psn = packet->psn & MRC_PSN_MASK,
                            .present = 1};
  return true;
}

static int on_duplicate(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_wire *packet,
                        const struct mrc_meta *meta) {
  trigger(engine, &qp->resp, packet, meta, false)->now = true;
  qp->resp.ack_wanted = true; /* the transport ACK may be what got lost */
  mrc_count(engine, MRC_COUNTER_RX_DUPLICATES, 1);
  mrc_qp_touch_to_answer(engine, qp);
  return mrc_drop(engine, MRC_DROP_DUPLICATE, qp->qpn, packet->payload_bytes);
}

static int on_beyond(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_wire *packet,
                     const struct mrc_meta *meta, uint64_t now_ns) {
  if (now_ns - qp->resp.nack_ns >= NACK_INTERVAL_NS || qp->resp.nack_ns == 0) {
    qp->resp.nack_ns = now_ns;
    queue_nack(qp, packet, meta, MRC_NACK_PSN_OOR_WINDOW);
    mrc_qp_touch_to_answer(engine, qp);
  }
  return mrc_drop(engine, MRC_DROP_PSN_WINDOW, qp->qpn, packet->payload_bytes);
}

/* Whether something is due now, and does not wait for more to report. */
static bool owes_answer(const struct mrc_engine *engine, const struct mrc_responder *resp,
                        bool now) {
  return now || resp->ack_wanted || resp->sack_now ||
         resp->unsacked_bytes >= engine->config.sack_threshold_bytes;
}

/* Decides when the packet just placed is reported. */
static void want_sack(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_wire *packet,
                      const struct mrc_meta *meta) {
  struct mrc_responder *resp = &qp->resp;
  struct mrc_sack_trigger *news = trigger(engine, resp, packet, meta, false);
  news->words |= mrc_rxwin_word(&resp->win, packet->psn);
  news->now |= news->m != MRC_M_NONE || packet->rtx || packet->ack_req;
  resp->unsacked_bytes += mrc_max_u32(packet->payload_bytes, SACK_MIN_ADD_BYTES);
  if (resp->sack_deadline_ns == MRC_NEVER)
    resp->sack_deadline_ns = news->first_ns + engine->config.sack_delay_ns;
  if (owes_answer(engine, resp, news->now))
    mrc_qp_touch_to_answer(engine, qp);
  else
    mrc_qp_touch(engine, qp);
}

/* Whether a packet that is not the last of its message has the size of all such. */
static bool is_part(struct mrc_responder *resp, const struct mrc_wire *packet) {
  if (resp->part_bytes == 0) resp->part_bytes = packet->payload_bytes;
  return packet->payload_bytes == resp->part_bytes;
}

int mrc_responder_on_data(struct mrc_engine *engine, struct mrc_qp *qp,
                          const struct mrc_wire *packet, const struct mrc_meta *meta,
                          uint64_t now_ns) {
  struct mrc_responder *resp = &qp->resp;
  const enum mrc_rx_verdict verdict = mrc_rxwin_judge(&resp->win, packet->psn);
  if (verdict == MRC_RX_DUPLICATE) return on_duplicate(engine, qp, packet, meta);
  if (verdict == MRC_RX_BEYOND) return on_beyond(engine, qp, packet, meta, now_ns);
  /* Nobody posts a WRITE of no bytes. It needs no rkey, and would take the PSN of a true packet. */
  if (packet->payload_bytes == 0 && !mrc_opcode_has_imm(packet->opcode))
    return mrc_drop(engine, MRC_DROP_LENGTH, qp->qpn, 0);
  if (packet->payload_bytes > 0 &&
      mrc_mr_find(&engine->mrs, packet->rkey, packet->va, packet->payload_bytes,
                  MRC_ACCESS_REMOTE_WRITE) == NULL)
    return refuse(engine, qp, MRC_SYNDROME_NAK_REM_ACCESS, MRC_WC_REM_ACCESS_ERR, MRC_DROP_ACCESS,
                  packet, meta);
  if (!mrc_opcode_is_last(packet->opcode) && !is_part(resp, packet))
    return mrc_drop(engine, MRC_DROP_LENGTH, qp->qpn, packet->payload_bytes);
  if (mrc_opcode_has_imm(packet->opcode) && !stash(qp, packet))
    return refuse(engine, qp, MRC_SYNDROME_NAK_INV_REQ, MRC_WC_REM_INV_REQ_ERR, MRC_DROP_WIMM_LIMIT,
                  packet, meta);
  if (packet->payload_bytes > 0)
    memcpy((void *)(uintptr_t)packet->va, packet->payload, packet->payload_bytes);
  mrc_rxwin_add(&resp->win, packet->psn, mrc_opcode_is_last(packet->opcode));
  mrc_trace(engine, MRC_TRACE_PLACE, qp->qpn, packet->psn, packet->payload_bytes);
  mrc_count(engine, MRC_COUNTER_RX_DATA, 1);
  mrc_count(engine, MRC_COUNTER_RX_BYTES, packet->payload_bytes);
  if (resp->recorded) mrc_count(engine, MRC_COUNTER_RX_RECORDED, packet->payload_bytes);
  resp->bytes_received += packet->payload_bytes;
  qp->planes[meta->port - 1].packets_received++;
  qp->planes[meta->port - 1].bytes_received += packet->payload_bytes;
  advance(engine, qp);
  want_sack(engine, qp, packet, meta);
  return MRC_DROP_NONE;
}

int mrc_responder_on_trimmed(struct mrc_engine *engine, struct mrc_qp *qp,
                             const struct mrc_wire *packet, const struct mrc_meta *meta) {
  if (mrc_rxwin_judge(&qp->resp.win, packet->psn) == MRC_RX_NEW) {
    const bool last_hop = meta->trimmed == MRC_TRIMMED_LASTHOP;
    queue_nack(qp, packet, meta, last_hop ? MRC_NACK_TRIMMED_LASTHOP : MRC_NACK_TRIMMED);
    mrc_qp_touch_to_answer(engine, qp);
  }
  return mrc_drop(engine, MRC_DROP_TRIMMED, qp->qpn, 0);
}

int mrc_responder_on_probe(struct mrc_engine *engine, struct mrc_qp *qp,
                           const struct mrc_wire *packet, const struct mrc_meta *meta) {
  struct mrc_sack_trigger *news = trigger(engine, &qp->resp, packet, meta, true);
  news->psn = mrc_psn_sub(qp->resp.win.next_psn, 1);
  news->probe_id = packet->probe.probe_id;
  news->tx_timestamp = packet->probe.tx_timestamp;
  news->now = true;
  qp->resp.ack_wanted = true;
  mrc_qp_touch_to_answer(engine, qp);
  return MRC_DROP_NONE;
}

void mrc_responder_on_error_packet(struct mrc_engine *engine, struct mrc_qp *qp,
                                   const struct mrc_meta *meta, uint64_t now_ns) {
  struct mrc_responder *resp = &qp->resp;
  if (resp->nak_syndrome == 0) return;
  if (now_ns - resp->nack_ns < NACK_INTERVAL_NS && resp->nack_ns != 0) return;
  resp->nack_ns = now_ns;
  resp->last_port = meta->port;
  resp->ack_wanted = true;
  mrc_qp_touch_to_answer(engine, qp);
}

uint64_t mrc_responder_deadline(const struct mrc_qp *qp) { return qp->resp.sack_deadline_ns; }
