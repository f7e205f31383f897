/* SPDX-License-Identifier: Apache-2.0 */
#include "responder_rx.h"

#include <string.h>

#include "reverse.h"
#include "sack_send.h"

#define MIN_SACK_BYTES 1024u        /* smaller packets count as this towards the SACK threshold */
#define NACK_INTERVAL_NS 1000000ull /* least interval of out-of-window NACKs and repeated NAKs */

/* Advances the cumulative PSN. It stops at a missing PSN, and at an immediate for which the CQ has
   no room: the requester's window then closes by itself (there is no RNR). */
static void advance(struct mrc_services *services, struct mrc_qp *qp) {
  struct mrc_responder *resp = &qp->resp;
  bool waits = false;
  while (mrc_rxwin_ready(&resp->win)) {
    uint32_t others, n = mrc_rxwin_run(&resp->win, &others);
    if (n > 0) {
      resp->message_bytes += (uint64_t)(n - others) * resp->part_bytes[0];
      resp->message_bytes += (uint64_t)others * resp->part_bytes[1];
    } else {
      const struct mrc_wimm *wimm = mrc_responder_next_wimm(resp);
      if (wimm != NULL && wimm->psn == resp->win.next_psn &&
          !mrc_responder_deliver(services, resp, qp->qpn, qp->attr.create.max_wimm)) {
        waits = true;
        break;
      }
      resp->message_bytes = 0;
      resp->done_msn = (resp->done_msn + 1) & 0xFFFFFF;
      resp->ack_wanted = true;
      n = 1;
    }
    mrc_rxwin_advance(&resp->win, n);
  }
  if (waits && !mrc_node_joined(&qp->nodes.cq_waiting))
    mrc_count(services, MRC_COUNTER_WIMM_HELD, 1);
  if (waits)
    mrc_list_append(&services->ready.cq_waiting, &qp->nodes.cq_waiting);
  else
    mrc_node_leave(&qp->nodes.cq_waiting);
}

/* Retries an immediate that waits for the CQ; returns whether the cumulative PSN advanced. */
static bool resume(struct mrc_services *services, struct mrc_qp *qp) {
  const uint32_t before = qp->resp.win.next_psn;
  advance(services, qp);
  if (qp->resp.win.next_psn == before) return false;
  qp->resp.sack_now = true;
  mrc_qp_touch_to_answer(services, qp);
  return true;
}

/* Visits each waiting QP once. A QP that advanced and still waits goes behind the others. */
void mrc_responder_on_cq_room(struct mrc_services *services) {
  struct mrc_node *const list = &services->ready.cq_waiting;
  const struct mrc_node *const last = list->prev;
  struct mrc_node *at = list, *next = list->next;
  while (at != last) {
    at = next;
    next = at->next;
    const bool went_on = resume(services, MRC_NODE_OWNER(at, struct mrc_qp, nodes.cq_waiting));
    if (!went_on || !mrc_node_joined(at)) continue;
    mrc_node_leave(at);
    mrc_list_append(list, at);
  }
}

/* Fails the QP because of an invalid request, after the packets before it; the NAK gives the peer
   the reason. */
static int refuse(struct mrc_services *services, struct mrc_qp *qp, uint8_t syndrome,
                  uint8_t status, enum mrc_drop reason, const struct mrc_wire *wire,
                  const struct mrc_meta *meta) {
  mrc_responder_account(services, qp, meta);
  qp->resp.nak_syndrome = syndrome;
  qp->resp.ack_wanted = true;
  qp->resp.last_port = meta->port;
  mrc_qp_fail(services, qp, status, MRC_WC_WR_FLUSH_ERR);
  mrc_qp_touch_to_answer(services, qp);
  return mrc_drop(services, reason, qp->qpn, wire->payload_bytes);
}

static int on_duplicate(struct mrc_services *services, struct mrc_qp *qp,
                        const struct mrc_wire *wire, const struct mrc_meta *meta) {
  mrc_responder_trigger(&qp->resp, wire->psn, wire->tx_timestamp, meta, false, services->now_ns)
      ->now = true;
  qp->resp.ack_wanted = true; /* the transport ACK may have been lost */
  mrc_count(services, MRC_COUNTER_RX_DUPLICATES, 1);
  mrc_qp_touch_to_answer(services, qp);
  return mrc_drop(services, MRC_DROP_DUPLICATE, qp->qpn, wire->payload_bytes);
}

static int on_beyond(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                     const struct mrc_meta *meta, uint64_t now_ns) {
  const bool silent = mrc_services_reads(services, MRC_READING_C4_A);
  if (!silent && (now_ns - qp->resp.nack_ns >= NACK_INTERVAL_NS || qp->resp.nack_ns == 0)) {
    qp->resp.nack_ns = now_ns;
    mrc_responder_queue_nack(&qp->resp, wire, meta, MRC_NACK_PSN_OOR_WINDOW);
    mrc_qp_touch_to_answer(services, qp);
  }
  return mrc_drop(services, MRC_DROP_PSN_WINDOW, qp->qpn, wire->payload_bytes);
}

int mrc_responder_on_data(struct mrc_services *services, struct mrc_qp *qp,
                          const struct mrc_wire *wire, const struct mrc_meta *meta,
                          uint64_t now_ns) {
  struct mrc_responder *resp = &qp->resp;
  const enum mrc_rx_verdict verdict = mrc_rxwin_judge(&resp->win, wire->psn);
  if (verdict == MRC_RX_DUPLICATE) return on_duplicate(services, qp, wire, meta);
  if (verdict == MRC_RX_BEYOND) return on_beyond(services, qp, wire, meta, now_ns);
  /* No requester sends an empty WRITE without an immediate. It needs no rkey, so a forged one could
     take the PSN of a real packet. */
  if (wire->payload_bytes == 0 && !mrc_opcode_has_imm(wire->opcode))
    return mrc_drop(services, MRC_DROP_LENGTH, qp->qpn, 0);
  if (wire->payload_bytes > 0 &&
      mrc_mr_find(&services->mrs, wire->rkey, wire->va, wire->payload_bytes,
                  MRC_ACCESS_REMOTE_WRITE, qp->attr.create.domain) == NULL)
    return refuse(services, qp, MRC_SYNDROME_NAK_REM_ACCESS, MRC_WC_REM_ACCESS_ERR, MRC_DROP_ACCESS,
                  wire, meta);
  const bool last = mrc_opcode_is_last(wire->opcode);
  bool other = false;
  if (!last && !mrc_responder_is_part(resp, wire, &other))
    return mrc_drop(services, MRC_DROP_LENGTH, qp->qpn, wire->payload_bytes);
  if (mrc_opcode_has_imm(wire->opcode) &&
      !mrc_responder_stash(&qp->resp, qp->attr.create.max_wimm, wire))
    return refuse(services, qp, MRC_SYNDROME_NAK_INV_REQ, MRC_WC_REM_INV_REQ_ERR,
                  MRC_DROP_WIMM_LIMIT, wire, meta);
  if (wire->payload_bytes > 0)
    memcpy((void *)(uintptr_t)wire->va, wire->payload, wire->payload_bytes);
  mrc_rxwin_add(&resp->win, wire->psn, last, other);
  struct mrc_arrivals *arrivals = &resp->arrivals;
  arrivals->words |= mrc_rxwin_word(&resp->win, wire->psn);
  arrivals->bytes += wire->payload_bytes;
  arrivals->packets++;
  arrivals->psn = wire->psn;
  arrivals->sack_bytes += mrc_max_u32(wire->payload_bytes, MIN_SACK_BYTES);
  arrivals->tx_timestamp = wire->tx_timestamp;
  arrivals->now |= wire->rtx || wire->ack_req;
  return MRC_DROP_NONE;
}

void mrc_responder_account(struct mrc_services *services, struct mrc_qp *qp,
                           const struct mrc_meta *meta) {
  struct mrc_responder *resp = &qp->resp;
  const struct mrc_arrivals arrivals = resp->arrivals;
  if (arrivals.packets == 0) return;
  resp->arrivals = (struct mrc_arrivals){0};
  mrc_trace(services, MRC_TRACE_PLACE, qp->qpn, arrivals.psn, arrivals.bytes);
  mrc_count(services, MRC_COUNTER_RX_DATA, arrivals.packets);
  mrc_count(services, MRC_COUNTER_RX_BYTES, arrivals.bytes);
  if (resp->recorded) mrc_count(services, MRC_COUNTER_RX_RECORDED, arrivals.bytes);
  resp->received_bytes += arrivals.bytes;
  qp->planes[mrc_plane_of(meta->port)].received_packets += arrivals.packets;
  qp->planes[mrc_plane_of(meta->port)].received_bytes += arrivals.bytes;
  advance(services, qp);
  mrc_sack_want(services, qp, &arrivals, meta);
}

int mrc_responder_on_trimmed(struct mrc_services *services, struct mrc_qp *qp,
                             const struct mrc_wire *wire, const struct mrc_meta *meta) {
  const bool answers = wire->payload != NULL || !mrc_services_reads(services, MRC_READING_G10_B);
  if (answers && mrc_rxwin_judge(&qp->resp.win, wire->psn) == MRC_RX_NEW) {
    const bool last_hop = meta->trimmed == MRC_TRIMMED_LASTHOP;
    mrc_responder_queue_nack(&qp->resp, wire, meta,
                             last_hop ? MRC_NACK_TRIMMED_LASTHOP : MRC_NACK_TRIMMED);
    mrc_qp_touch_to_answer(services, qp);
  }
  return mrc_drop(services, MRC_DROP_TRIMMED, qp->qpn, 0);
}

int mrc_responder_on_probe(struct mrc_services *services, struct mrc_qp *qp,
                           const struct mrc_wire *wire, const struct mrc_meta *meta) {
  struct mrc_sack_trigger *news =
      mrc_responder_trigger(&qp->resp, wire->psn, 0, meta, true, services->now_ns);
  news->psn = mrc_psn_sub(qp->resp.win.next_psn, 1);
  news->probe_id = wire->probe.probe_id;
  news->tx_timestamp = wire->probe.tx_timestamp;
  news->now = true;
  qp->resp.ack_wanted = true;
  mrc_reverse_on_request(qp);
  mrc_qp_touch_to_answer(services, qp);
  return MRC_DROP_NONE;
}

void mrc_responder_on_error_packet(struct mrc_services *services, struct mrc_qp *qp,
                                   const struct mrc_meta *meta, uint64_t now_ns) {
  struct mrc_responder *resp = &qp->resp;
  if (resp->nak_syndrome == 0) return;
  if (now_ns - resp->nack_ns < NACK_INTERVAL_NS && resp->nack_ns != 0) return;
  resp->nack_ns = now_ns;
  resp->last_port = meta->port;
  resp->ack_wanted = true;
  mrc_qp_touch_to_answer(services, qp);
}
