/* SPDX-License-Identifier: Apache-2.0 */
/* The route of a datagram through the engine that receives it, up to the answers. The functions
   stand in the order of these stages; helpers stand before the function that uses them.

   1. A driver hands on packets that arrived together: mrc_engine_receive takes one after the other.
   2. A packet is decoded (wire.c). Endpoint packets leave for endpoint.c.
   3. Its QP is found; the packet must come from a source of the QP's peer.
   4. ICRC or seal are checked, and a sealed packet is decrypted (crc.c, seal.c).
   5. It goes to its QP: SACKs, NACKs and transport ACKs leave for loss.c.
   6. Data are judged by the window (windows.c), checked against the registered memory and placed.
      A trimmed packet and one beyond the window give NACKs, a duplicate gives a SACK.
   7. After the last packet for a QP the cumulative PSN advances over all of them, immediates
      complete in their order, and it is decided when a SACK is due.
   8. At the QP's turn (schedule.c) NACKs, SACKs and the transport ACK leave as bursts (send.c), on
      EVs that qp.c chooses. What the kernel refuses is due again. */
#include "core/receive.h"

#include <endian.h>
#include <string.h>

#include "core/engine.h"
#include "core/loss.h"
#include "core/send.h"
#include "core/wire.h"

#define MIN_SACK_BYTES 1024u        /* smaller packets count as this towards the SACK threshold */
#define NACK_INTERVAL_NS 1000000ull /* least interval of out-of-window NACKs and repeated NAKs */
#define MOST_NOISES 4 /* the most that many QPs delay a SACK: timers of the peer bear it */
#define PENALTY 64    /* of 128: a window's worth of SACKs halves the peer's window */

/* What packets that arrived together have in common. */
struct arrival {
  const struct mrc_meta *meta;
  struct mrc_qp *qp;         /* of the last packet; NULL: unknown */
  const struct mrc_meta *at; /* `meta` as that QP sees it: the port is the number of the plane, and
                                a source port that a NAT has changed is as the peer sent it */
  struct mrc_meta changed;   /* memory of `at` where the two differ */
  bool astray;               /* from the NAT of the peer, but not from the port that is known */
  bool hashed;               /* the engine's ICRC prefix is that of `meta` */
};

static int to_qp(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                 const struct mrc_meta *meta, uint64_t now_ns);
static void account(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_meta *meta);

/* ---- 2. a packet of the endpoint ---- */

static bool icrc_is_good(struct mrc_engine *engine, const uint8_t *packet, size_t bytes,
                         struct arrival *arrival) {
  const struct mrc_meta *meta = arrival->meta;
  struct mrc_icrc_prefix *last = &engine->icrc_prefix;
  const bool same = bytes == last->bytes &&
                    (arrival->hashed || (meta->sport == last->sport && meta->dport == last->dport &&
                                         meta->family == last->family &&
                                         memcmp(meta->src, last->src, sizeof last->src) == 0 &&
                                         memcmp(meta->dst, last->dst, sizeof last->dst) == 0));
  if (!same) {
    const struct mrc_icrc_flow flow = {.src = meta->src,
                                       .dst = meta->dst,
                                       .sport = meta->sport,
                                       .dport = meta->dport,
                                       .family = meta->family};
    *last = (struct mrc_icrc_prefix){.sport = meta->sport,
                                     .dport = meta->dport,
                                     .family = meta->family,
                                     .crc = mrc_icrc_begin(&flow, bytes),
                                     .bytes = bytes};
    memcpy(last->src, meta->src, sizeof last->src);
    memcpy(last->dst, meta->dst, sizeof last->dst);
  }
  arrival->hashed = true;
  mrc_assert(bytes >= MRC_ICRC_BYTES);
  const size_t covered = bytes - MRC_ICRC_BYTES;
  uint32_t icrc;
  memcpy(&icrc, packet + covered, sizeof icrc);
  return le32toh(icrc) == mrc_icrc_packet(last->crc, packet, covered);
}

static int receive_sealed_endpoint(struct mrc_engine *engine, struct mrc_wire *wire,
                                   const struct mrc_meta *meta, uint8_t *packet, size_t bytes,
                                   uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  uint64_t counter;
  const struct mrc_peers *peers = &engine->endpoint.peers;
  struct mrc_meta inner = *meta;
  struct mrc_qp *qp = NULL; /* whose key seals it; a trimmed one may lack its seal */
  if (!meta->trimmed)
    qp = mrc_qps_find(&engine->qps, mrc_seal_decode(packet + bytes - MRC_SEALED_BYTES).qpn);
  const bool sealed = qp != NULL && qp->seal != NULL;
  const bool known = sealed && mrc_peer_knows(peers, qp->peer, meta->src, meta->sport);
  const bool masked = sealed && mrc_peer_undo_nat(qp->peer, &inner);
  if (!known && !masked) return mrc_drop(services, MRC_DROP_SOURCE, wire->dest_qpn, bytes);
  const uint64_t newest = qp->seal->newest;
  const int reason =
      mrc_seal_open(qp->seal, packet, bytes, mrc_meta_ev(&inner), wire, &counter, now_ns);
  if (reason != MRC_DROP_NONE) return mrc_drop(services, (enum mrc_drop)reason, qp->qpn, bytes);
  if (!known && counter < newest) return mrc_drop(services, MRC_DROP_SOURCE, qp->qpn, bytes);
  if (!known) qp->peer->nat.sport = meta->sport;
  meta = &inner;
  if (wire->opcode == MRC_OP_ENDPOINT_REQUEST && wire->endpoint.op == MRC_ENDPOINT_PORT_STATUS) {
    if (counter < qp->seal->status) return mrc_drop(services, MRC_DROP_REPLAY, qp->qpn, bytes);
    qp->seal->status = counter + 1;
  }
  return mrc_endpoint_receive(services, &engine->endpoint, wire, meta, qp, now_ns);
}

/* The packets that follow are for this QP; false if they do not come from its peer. */
static bool turn_to(const struct mrc_engine *engine, struct arrival *arrival, struct mrc_qp *qp) {
  const struct mrc_peers *peers = &engine->endpoint.peers;
  const struct mrc_meta *meta = arrival->meta;
  struct mrc_meta *at = &arrival->changed;
  arrival->astray = !mrc_peer_knows(peers, qp->peer, meta->src, meta->sport);
  arrival->qp = qp;
  arrival->at = meta;
  if (qp->peer == NULL) return false; /* it failed before it had one */
  if (qp->evset.crossed == 0 && qp->peer->nat.is_nat == 0) return !arrival->astray;
  *at = *meta;
  arrival->at = at;
  const bool masked = mrc_peer_undo_nat(qp->peer, at);
  if (qp->evset.crossed != 0)
    at->port = mrc_port_of(mrc_evset_plane_from(&qp->evset, mrc_plane_of(at->port), at->src));
  return masked || !arrival->astray;
}

static MRC_RARE int receive_endpoint(struct mrc_engine *engine, struct arrival *arrival,
                                     struct mrc_wire *wire, uint8_t *packet, size_t bytes,
                                     uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  const struct mrc_meta *meta = arrival->meta;
  if (arrival->qp != NULL) account(services, arrival->qp, arrival->at);
  arrival->qp = NULL;
  if (wire->opcode == MRC_OP_ENDPOINT_RESPONSE &&
      (services->config.readings & MRC_READING_C6_B) != 0) {
    wire->endpoint.op = wire->endpoint.lifted_op; /* an unknown one fits no request */
    wire->endpoint.m = MRC_M_NONE;                /* in this reading its place is not known */
  }
  if (wire->sealed) return receive_sealed_endpoint(engine, wire, meta, packet, bytes, now_ns);
  if (mrc_peers_find(&engine->endpoint.peers, meta->src, meta->sport, true, 0) == 0)
    return mrc_drop(services, MRC_DROP_SOURCE, wire->dest_qpn, bytes);
  if (!icrc_is_good(engine, packet, bytes, arrival))
    return mrc_drop(services, MRC_DROP_ICRC, wire->dest_qpn, bytes);
  return mrc_endpoint_receive(services, &engine->endpoint, wire, meta, NULL, now_ns);
}

/* ---- 1. to 5.: from the datagram to the QP ---- */

/* Cheap checks come first, so that a flood of invalid packets costs neither CRC nor cipher. */
static int receive(struct mrc_engine *engine, struct arrival *arrival, uint8_t *packet,
                   size_t bytes, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  const struct mrc_meta *meta = arrival->meta;
  struct mrc_wire wire;
  int reason = mrc_wire_decode(packet, bytes, meta->trimmed, &wire);
  if (reason != MRC_DROP_NONE) return mrc_drop(services, (enum mrc_drop)reason, 0, bytes);
  if (meta->ecn == 3) mrc_count(services, MRC_COUNTER_RX_CE, 1);
  if (wire.opcode == MRC_OP_ENDPOINT_REQUEST || wire.opcode == MRC_OP_ENDPOINT_RESPONSE)
    return receive_endpoint(engine, arrival, &wire, packet, bytes, now_ns);
  if (arrival->qp == NULL || arrival->qp->qpn != wire.dest_qpn) { /* 3. the QP */
    if (arrival->qp != NULL) account(services, arrival->qp, arrival->at);
    arrival->qp = NULL;
    struct mrc_qp *qp = mrc_qps_find(&engine->qps, wire.dest_qpn);
    if (qp == NULL) return mrc_drop(services, MRC_DROP_QPN, wire.dest_qpn, bytes);
    if (!mrc_node_joined(&qp->nodes.ready))
      mrc_qp_prefetch(qp); /* the first packet since its last turn */
    if (qp->state < MRC_QP_RTR) return mrc_drop(services, MRC_DROP_QP_STATE, qp->qpn, bytes);
    if (!turn_to(engine, arrival, qp)) {
      arrival->qp = NULL;
      return mrc_drop(services, MRC_DROP_SOURCE, qp->qpn, bytes);
    }
  }
  meta = arrival->at;
  /* 4. ICRC or seal. What a switch has cut off has neither: only a hint to send again. */
  struct mrc_qp *qp = arrival->qp;
  uint64_t counter;
  const uint64_t newest = qp->seal != NULL ? qp->seal->newest : 0;
  if (wire.sealed != (qp->seal != NULL))
    reason = MRC_DROP_SEAL;
  else if (meta->trimmed && mrc_opcode_is_data(wire.opcode))
    reason = arrival->astray ? MRC_DROP_SOURCE : MRC_DROP_NONE;
  else if (qp->seal != NULL)
    reason = mrc_seal_open(qp->seal, packet, bytes, mrc_meta_ev(meta), &wire, &counter, now_ns);
  else if (qp->attr.rtr.integrity == MRC_INTEGRITY_ICRC &&
           !icrc_is_good(engine, packet, bytes, arrival))
    reason = MRC_DROP_ICRC;
  if (reason == MRC_DROP_NONE && arrival->astray) { /* it is sealed: no other QP has a NAT */
    /* A packet that is not the newest may have been sent again by somebody else. */
    if (counter < newest) return mrc_drop(services, MRC_DROP_SOURCE, qp->qpn, bytes);
    qp->peer->nat.sport = arrival->meta->sport;
    arrival->astray = false;
  }
  if (reason != MRC_DROP_NONE)
    return mrc_drop(services, (enum mrc_drop)reason, wire.dest_qpn, bytes);
  /* The peer answers by the readings of this engine. */
  if (wire.opcode == MRC_OP_SACK) wire.sack.ev = mrc_services_ev(services, wire.sack.ev);
  if (wire.opcode == MRC_OP_NACK) wire.nack.ev = mrc_services_ev(services, wire.nack.ev);
  return to_qp(services, qp, &wire, arrival->at, now_ns);
}

int mrc_engine_receive(struct mrc_engine *engine, uint8_t *packets, size_t bytes,
                       size_t packet_bytes, const struct mrc_meta *meta, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  mrc_assert(!engine->committing && (packet_bytes > 0 || bytes == 0));
  services->now_ns = now_ns;
  if (meta->overflowed) services->overflow_ns = now_ns;
  const bool known_port = meta->port >= 1 && meta->port <= services->config.ports;
  struct mrc_meta dated;
  if (meta->arrived_ns == 0 || meta->arrived_ns > now_ns) { /* unknown, or in the future */
    dated = *meta;
    dated.arrived_ns = now_ns;
    meta = &dated;
  }
  struct arrival arrival = {.meta = meta};
  size_t offset = 0;
  int reason;
  do { /* an empty datagram is a packet too: it counts as too short */
    const size_t left = bytes - offset, n = packet_bytes < left ? packet_bytes : left;
    const size_t after = left - n;
    if (after > 0) {
      /* Header and trailer of the next packet: both are read before the rest, which the CPU then
         fetches by itself. */
      const uint8_t *next = packets + offset + n;
      const size_t next_bytes = packet_bytes < after ? packet_bytes : after;
      __builtin_prefetch(next);
      if (next_bytes >= MRC_SEALED_BYTES) {
        __builtin_prefetch(next + next_bytes - MRC_SEALED_BYTES);
        __builtin_prefetch(next + next_bytes - 1);
      }
    }
    mrc_count(services, MRC_COUNTER_RX_PACKETS, 1);
    reason = known_port ? receive(engine, &arrival, packets + offset, n, now_ns)
                        : mrc_drop(services, MRC_DROP_PORT, 0, n);
    offset += n;
  } while (offset < bytes);
  if (arrival.qp != NULL) account(services, arrival.qp, arrival.at);
  return reason;
}

/* ---- 6. data are placed ---- */

/* Fails the QP because of an invalid request, after the packets before it; the NAK gives the peer
   the reason. */
static MRC_RARE int refuse(struct mrc_services *services, struct mrc_qp *qp, uint8_t syndrome,
                           uint8_t status, enum mrc_drop reason, const struct mrc_wire *wire,
                           const struct mrc_meta *meta) {
  account(services, qp, meta);
  qp->resp.nak_syndrome = syndrome;
  qp->resp.ack_wanted = true;
  qp->resp.last_port = meta->port;
  mrc_qp_fail(services, qp, status, MRC_WC_WR_FLUSH_ERR);
  mrc_qp_touch_to_answer(services, qp);
  return mrc_drop(services, reason, qp->qpn, wire->payload_bytes);
}

static MRC_RARE int on_duplicate(struct mrc_services *services, struct mrc_qp *qp,
                                 const struct mrc_wire *wire, const struct mrc_meta *meta) {
  mrc_responder_trigger(&qp->resp, wire->psn, wire->tx_timestamp, meta, false, services->now_ns)
      ->now = true;
  qp->resp.ack_wanted = true; /* the transport ACK may have been lost */
  qp->resp.ack_each |= !wire->rtx && (services->config.readings & MRC_READING_S5_B) == 0;
  mrc_count(services, MRC_COUNTER_RX_DUPLICATES, 1);
  mrc_qp_touch_to_answer(services, qp);
  return mrc_drop(services, MRC_DROP_DUPLICATE, qp->qpn, wire->payload_bytes);
}

static MRC_RARE int on_beyond(struct mrc_services *services, struct mrc_qp *qp,
                              const struct mrc_wire *wire, const struct mrc_meta *meta,
                              uint64_t now_ns) {
  const bool silent = (services->config.readings & MRC_READING_C4_A) != 0;
  if (!silent && (now_ns - qp->resp.nack_ns >= NACK_INTERVAL_NS || qp->resp.nack_ns == 0)) {
    qp->resp.nack_ns = now_ns;
    mrc_responder_queue_nack(&qp->resp, wire, meta, MRC_NACK_PSN_OOR_WINDOW);
    mrc_qp_touch_to_answer(services, qp);
  }
  return mrc_drop(services, MRC_DROP_PSN_WINDOW, qp->qpn, wire->payload_bytes);
}

/* Places a data packet with a good ICRC or seal from the peer. 0 or a drop reason. */
static int on_data(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                   const struct mrc_meta *meta, uint64_t now_ns) {
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
  /* A packet that does not end a message has one of the two sizes of such packets on its QP, so one
     bit for each PSN tells how much arrived. */
  const bool last = wire->opcode >= MRC_OP_WRITE_LAST;
  int size = 0;
  for (; !last && size < 2; size++) {
    if (resp->part_bytes[size] == 0) resp->part_bytes[size] = wire->payload_bytes;
    if (wire->payload_bytes == resp->part_bytes[size]) break;
  }
  if (size == 2) return mrc_drop(services, MRC_DROP_LENGTH, qp->qpn, wire->payload_bytes);
  if (mrc_opcode_has_imm(wire->opcode) &&
      !mrc_responder_stash(&qp->resp, qp->attr.create.max_wimm, wire))
    return refuse(services, qp, MRC_SYNDROME_NAK_INV_REQ, MRC_WC_REM_INV_REQ_ERR,
                  MRC_DROP_WIMM_LIMIT, wire, meta);
  if (wire->payload_bytes > 0)
    memcpy((void *)(uintptr_t)wire->va, wire->payload, wire->payload_bytes);
  mrc_rxwin_add(&resp->win, wire->psn, last, size == 1);
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

/* A data packet whose payload a switch has trimmed. 0 or a drop reason. */
static int on_trimmed(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                      const struct mrc_meta *meta) {
  const bool answers =
      wire->payload != NULL || (services->config.readings & MRC_READING_G10_B) == 0;
  if (answers && mrc_rxwin_judge(&qp->resp.win, wire->psn) == MRC_RX_NEW) {
    const bool last_hop = meta->trimmed == MRC_TRIMMED_LASTHOP;
    mrc_responder_queue_nack(&qp->resp, wire, meta,
                             last_hop ? MRC_NACK_TRIMMED_LASTHOP : MRC_NACK_TRIMMED);
    mrc_qp_touch_to_answer(services, qp);
  }
  return mrc_drop(services, MRC_DROP_TRIMMED, qp->qpn, 0);
}

/* A reliability probe. 0 or a drop reason. */
static int on_probe(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                    const struct mrc_meta *meta) {
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

/* A packet for a QP in ERROR: sends the NAK again. */
static MRC_RARE void on_error_packet(struct mrc_services *services, struct mrc_qp *qp,
                                     const struct mrc_meta *meta, uint64_t now_ns) {
  struct mrc_responder *resp = &qp->resp;
  if (resp->nak_syndrome == 0) return;
  if (now_ns - resp->nack_ns < NACK_INTERVAL_NS && resp->nack_ns != 0) return;
  resp->nack_ns = now_ns;
  resp->last_port = meta->port;
  resp->ack_wanted = true;
  mrc_qp_touch_to_answer(services, qp);
}

static int to_qp(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                 const struct mrc_meta *meta, uint64_t now_ns) {
  if (qp->state == MRC_QP_ERROR) {
    on_error_packet(services, qp, meta, now_ns);
    return mrc_drop(services, MRC_DROP_QP_STATE, qp->qpn, 0);
  }
  if (mrc_opcode_is_data(wire->opcode) && !meta->trimmed)
    return on_data(services, qp, wire, meta, now_ns);
  account(services, qp, meta);
  if (mrc_opcode_is_data(wire->opcode)) return on_trimmed(services, qp, wire, meta);
  if (wire->opcode == MRC_OP_PROBE) return on_probe(services, qp, wire, meta);
  if (qp->state != MRC_QP_RTS) return mrc_drop(services, MRC_DROP_QP_STATE, qp->qpn, 0);
  switch (wire->opcode) {
    case MRC_OP_SACK:
      return mrc_loss_on_sack(services, qp, wire, meta, now_ns);
    case MRC_OP_NACK:
      return mrc_loss_on_nack(services, qp, wire, now_ns);
    default:
      mrc_assert(wire->opcode == MRC_OP_ACK);
      return mrc_loss_on_ack(services, qp, wire, now_ns);
  }
}

/* ---- 7. what arrived is accounted for ---- */

/* Advances the cumulative PSN. It stops at a missing PSN, and at an immediate for which the CQ has
   no room: the requester's window then closes by itself (there is no RNR). */
static void advance(struct mrc_services *services, struct mrc_qp *qp) {
  struct mrc_responder *resp = &qp->resp;
  bool waits = false;
  while (mrc_bitmap_test(&resp->win.received, resp->win.next_psn)) {
    uint32_t others, n = mrc_rxwin_run(&resp->win, &others);
    if (n > 0) {
      resp->message_bytes += (uint64_t)(n - others) * resp->part_bytes[0];
      resp->message_bytes += (uint64_t)others * resp->part_bytes[1];
    } else {
      /* The next immediate, if it has come and this message is its own. */
      const struct mrc_wimm *wimm = &resp->wimms[resp->next_rqmsn & resp->wimm_mask];
      if (mrc_bitmap_test(&resp->waiting, resp->next_rqmsn) && wimm->psn == resp->win.next_psn &&
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

/* Visits each waiting QP once. A QP that advanced and still waits goes behind the others. */
void mrc_responder_on_cq_room(struct mrc_services *services) {
  struct mrc_node *const list = &services->ready.cq_waiting;
  const struct mrc_node *const last = list->prev;
  struct mrc_node *at = list, *next = list->next;
  while (at != last) {
    at = next;
    next = at->next;
    struct mrc_qp *qp = MRC_NODE_OWNER(at, struct mrc_qp, nodes.cq_waiting);
    const uint32_t before = qp->resp.win.next_psn;
    advance(services, qp);
    if (qp->resp.win.next_psn == before) continue;
    qp->resp.sack_now = true;
    mrc_qp_touch_to_answer(services, qp);
    if (!mrc_node_joined(at)) continue;
    mrc_node_leave(at);
    mrc_list_append(list, at);
  }
}

/* When news that began at `first_ns` is due. */
static uint64_t due_ns(const struct mrc_services *services, uint64_t first_ns) {
  const struct mrc_engine_config *config = &services->config;
  const uint64_t most_ns = mrc_max_u64(config->sack_delay_ns, MOST_NOISES * config->noise_ns);
  const uint64_t delay_ns = (uint64_t)mrc_services_crowd(services) * config->sack_delay_ns;
  return first_ns + mrc_min_u64(delay_ns, most_ns);
}

/* Accounts for the data packets placed since the last call, which all came with `meta`: advances
   the cumulative PSN, completes immediates, decides when a SACK is due. */
static void account(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_meta *meta) {
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
  /* When these packets are reported. */
  struct mrc_sack_trigger *news = mrc_responder_trigger(resp, arrivals.psn, arrivals.tx_timestamp,
                                                        meta, false, services->now_ns);
  news->news_words |= arrivals.words;
  if ((services->config.readings & MRC_READING_S4_B) != 0 &&
      mrc_marked_take(&resp->marked, news->ev, arrivals.packets, news->m != MRC_M_NONE))
    news->m = MRC_M_ALWAYS_SKIP;
  news->now |= news->m != MRC_M_NONE || arrivals.now;
  resp->unsacked_bytes += arrivals.sack_bytes;
  if (resp->sack_deadline_ns == MRC_NEVER)
    mrc_responder_set_deadline(services, resp, due_ns(services, news->first_ns));
  if (news->now || resp->ack_wanted || resp->sack_now ||
      resp->unsacked_bytes >= services->config.sack_threshold_bytes)
    mrc_qp_touch_to_answer(services, qp);
  else
    mrc_qp_touch(services, qp);
}

/* ---- 8. answers ---- */

/* Sends the NACKs that wait, at least one. */
static bool flush_nacks(struct mrc_services *services, struct mrc_qp *qp) {
  struct mrc_responder *resp = &qp->resp;
  struct mrc_burst *burst = NULL;
  do {
    const struct mrc_nack_out *nack = &resp->nacks[resp->n_nacks - 1];
    if (burst == NULL || mrc_port_of(mrc_qp_plane_of(qp, burst)) != nack->port ||
        !mrc_arena_has_room(&services->arena, burst)) {
      const uint16_t ev = mrc_reverse_choose(services, qp, nack->port);
      burst = ev == MRC_EV_NONE
                  ? NULL
                  : mrc_burst_open(services, qp, ev, services->config.dscps.control, MRC_ECN_NONE);
    }
    if (burst == NULL) return false;
    struct mrc_wire wire = {.opcode = MRC_OP_NACK,
                            .dest_qpn = qp->attr.rtr.dest_qpn,
                            .psn = nack->psn,
                            .nack = {.reason = nack->reason,
                                     .ev = mrc_services_ev(services, nack->ev),
                                     .spdcid = (uint16_t)qp->qpn,
                                     .dpdcid = (uint16_t)qp->attr.rtr.dest_qpn,
                                     .nack_psn = nack->psn,
                                     .cc_type = MRC_CC_TYPE_NACK,
                                     .tx_timestamp = nack->tx_timestamp}};
    mrc_burst_add(services, burst, &wire, MRC_KIND_NACK, resp->n_nacks - 1u);
    mrc_trace(services, MRC_TRACE_NACK_OUT, qp->qpn, nack->psn, nack->reason);
    resp->n_nacks--;
  } while (resp->n_nacks > 0);
  return true;
}

static void add_sack(struct mrc_services *services, struct mrc_burst *burst, struct mrc_qp *qp,
                     const struct mrc_sack_trigger *t, uint32_t base, uint64_t bitmap) {
  const struct mrc_rxwin *win = &qp->resp.win;
  const uint32_t cum_psn = mrc_psn_sub(win->next_psn, 1);
  /* Adds the time that the packet waited here to the reflected timestamp. After a wait of more than
     15 bits the SACK gives the peer no round trip. */
  const uint64_t waited_units = (services->now_ns - t->arrived_ns) >> 10;
  const uint16_t service_time = (services->config.readings & MRC_READING_G15_B) != 0
                                    ? 0
                                    : (uint16_t)mrc_min_u64(waited_units, INT16_MAX + 1);
  const int32_t out_of_order = mrc_psn_diff(win->end_psn, win->next_psn);
  /* Packets were dropped here because this host is too slow. The peer does not see that as a delay:
     round trips are without the wait in our sockets. So SACKs reduce its window for a round trip.
   */
  const struct mrc_rtt *rtt = qp->reverse.rtt.smooth_ns != 0 ? &qp->reverse.rtt : &qp->req.rtt;
  const uint64_t span_ns = rtt->smooth_ns != 0 ? rtt->base_ns : services->config.noise_ns;
  const bool late =
      services->overflow_ns != 0 && services->now_ns - services->overflow_ns < span_ns;
  struct mrc_wire wire = {
      .opcode = MRC_OP_SACK,
      .dest_qpn = qp->attr.rtr.dest_qpn,
      .psn = cum_psn,
      .sack = {
          .ack_psn_offset = t->pr ? (int16_t)t->probe_id : (int16_t)mrc_psn_diff(t->psn, cum_psn),
          .m = t->m,
          .pr = t->pr,
          .ev = mrc_services_ev(services, t->ev),
          .spdcid = (uint16_t)qp->qpn,
          .dpdcid = (uint16_t)qp->attr.rtr.dest_qpn,
          .cum_psn = cum_psn,
          .cc_type = qp->attr.rtr.sack_times != 0 ? MRC_CC_TYPE_TIMES : MRC_CC_TYPE_NSCC,
          .mpr = qp->attr.rtr.dynamic_mpr != 0 ? (uint8_t)(qp->resp.mpr / MRC_MPR_UNIT) : 0,
          .sack_offset = (int16_t)mrc_psn_diff(base, cum_psn),
          .bitmap = bitmap,
          .tx_timestamp = (uint16_t)(t->tx_timestamp + service_time),
          .ooo_count = (uint16_t)(out_of_order > 0 ? out_of_order : 0),
          .sent_timestamp = mrc_timestamp(services->now_ns),
          .rcv_cwnd_pen = late ? PENALTY : 0,
          .rcvd_bytes = (uint32_t)((qp->resp.received_bytes + 255) / 256) & 0xFFFFFF}};
  mrc_burst_add(services, burst, &wire, MRC_KIND_SACK, base);
  mrc_trace(services, MRC_TRACE_SACK_OUT, qp->qpn, cum_psn, bitmap);
  qp->resp.unsacked_bytes -=
      mrc_min_u32(qp->resp.unsacked_bytes, services->config.sack_threshold_bytes);
}

static void add_ack(struct mrc_services *services, struct mrc_qp *qp, struct mrc_burst *burst) {
  struct mrc_responder *resp = &qp->resp;
  const uint8_t syndrome = resp->nak_syndrome != 0 ? resp->nak_syndrome : MRC_SYNDROME_ACK;
  struct mrc_wire wire = {.opcode = MRC_OP_ACK,
                          .dest_qpn = qp->attr.rtr.dest_qpn,
                          .psn = mrc_psn_sub(resp->win.next_psn, 1),
                          .aeth = {.syndrome = syndrome, .msn = resp->done_msn}};
  mrc_burst_add(services, burst, &wire, MRC_KIND_ACK, 0);
  mrc_trace(services, MRC_TRACE_ACK_OUT, qp->qpn, syndrome, resp->done_msn);
  resp->ack_wanted = false;
}

/* The SACKs due for packets that came in on one plane, in one burst, on this plane: a slow plane
   must not delay the reports of a fast plane, because the requester would count the late packets as
   lost. */
static bool flush_plane(struct mrc_services *services, struct mrc_qp *qp, uint8_t port) {
  struct mrc_responder *resp = &qp->resp;
  const uint16_t ev = mrc_reverse_choose(services, qp, port);
  struct mrc_burst *burst =
      ev == MRC_EV_NONE
          ? NULL
          : mrc_burst_open(services, qp, ev, services->config.dscps.control, MRC_ECN_NONE);
  if (burst == NULL) return false;
  uint8_t kept = 0;
  for (uint8_t i = 0; i < resp->n_triggers; i++) {
    const struct mrc_sack_trigger t = resp->triggers[i];
    if (t.port != port || (burst->n_packets > 0 && !mrc_arena_has_room(&services->arena, burst))) {
      resp->triggers[kept++] = t;
      continue;
    }
    if (t.pr) { /* the answer to a reliability probe: the bitmap of the whole window */
      uint32_t base = resp->win.next_psn;
      do {
        add_sack(services, burst, qp, &t, base, mrc_rxwin_view(&resp->win, base));
        base = mrc_psn_add(base, 64);
      } while (mrc_psn_diff(base, resp->win.end_psn) < 0 &&
               mrc_arena_has_room(&services->arena, burst));
    } else {
      uint64_t news_words = t.news_words;
      do {
        uint32_t base;
        const uint64_t bitmap = mrc_rxwin_report(&resp->win, &news_words, &base);
        add_sack(services, burst, qp, &t, base, bitmap);
      } while (news_words != 0 && mrc_arena_has_room(&services->arena, burst));
    }
    resp->last_trigger = t;
    resp->last_trigger.pr = false;
    resp->last_trigger.m = MRC_M_NONE;
  }
  resp->n_triggers = kept;
  mrc_assert(burst->n_packets > 0);
  if (resp->ack_each && mrc_arena_has_room(&services->arena, burst)) add_ack(services, qp, burst);
  return true;
}

/* Sends all news, with or without a trigger. */
static bool flush_all(struct mrc_services *services, struct mrc_qp *qp) {
  struct mrc_responder *resp = &qp->resp;
  do {
    if (resp->n_triggers == 0) {
      resp->last_trigger.news_words = resp->win.unreported; /* news whose trigger is gone */
      resp->triggers[resp->n_triggers++] = resp->last_trigger;
    }
    if (!flush_plane(services, qp, resp->triggers[0].port)) return false;
  } while (resp->n_triggers > 0 || mrc_rxwin_has_news(&resp->win));
  resp->sack_now = false;
  return true;
}

bool mrc_responder_transmit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  const int first_burst = services->arena.n_bursts;
  struct mrc_responder *resp = &qp->resp;
  if (qp->state != MRC_QP_ERROR) {
    if (resp->n_nacks > 0 && !flush_nacks(services, qp)) return false;
    if (now_ns >= resp->sack_deadline_ns) resp->sack_now = true;
  }
  if (qp->state != MRC_QP_ERROR && resp->last_port != 0) {
    if (resp->sack_now && !flush_all(services, qp)) return false;
    for (;;) { /* SACKs that are due: once enough bytes have arrived, the planes take turns */
      const bool enough = resp->unsacked_bytes >= services->config.sack_threshold_bytes;
      int due = 0;
      while (due < resp->n_triggers && !resp->triggers[due].now)
        due++;
      if (due == resp->n_triggers) due = 0;
      if (resp->n_triggers == 0 || !(resp->triggers[due].now || enough)) break;
      if (!flush_plane(services, qp, resp->triggers[due].port)) return false;
    }
    if (resp->n_triggers == 0) resp->unsacked_bytes = 0;
    mrc_responder_set_deadline(
        services, resp,
        resp->n_triggers == 0 ? MRC_NEVER : due_ns(services, resp->triggers[0].first_ns));
  }
  /* The transport ACK goes to the last burst of this visit if it fits, else to a new burst. */
  resp->ack_each = false;
  if (!resp->ack_wanted) return true;
  const bool hole = mrc_psn_diff(resp->win.end_psn, resp->win.next_psn) > 0;
  if (hole && resp->nak_syndrome == 0 && (services->config.readings & MRC_READING_S5_B) != 0) {
    resp->ack_wanted = false;
    return true;
  }
  struct mrc_burst *burst = NULL;
  if (services->arena.n_bursts > first_burst) {
    burst = &services->arena.bursts[services->arena.n_bursts - 1];
    if (!mrc_arena_has_room(&services->arena, burst)) burst = NULL;
  }
  if (burst == NULL) {
    const uint16_t ev = mrc_reverse_choose(services, qp, resp->last_port);
    if (ev != MRC_EV_NONE)
      burst = mrc_burst_open(services, qp, ev, services->config.dscps.control, MRC_ECN_NONE);
  }
  if (burst == NULL) return false;
  add_ack(services, qp, burst);
  return true;
}

void mrc_responder_on_refused(struct mrc_services *services, struct mrc_qp *qp,
                              const struct mrc_packet *packet) {
  if (packet->_kind == MRC_KIND_ACK) qp->resp.ack_wanted = true;
  if (packet->_kind == MRC_KIND_SACK) {
    qp->resp.sack_now = true;
    mrc_rxwin_on_refused(&qp->resp.win, packet->_slot);
  }
  /* No NACK was queued since the transmit, so the slots still hold the sent ones. The last one sent
     comes back first. */
  if (packet->_kind == MRC_KIND_NACK)
    qp->resp.nacks[qp->resp.n_nacks++] = qp->resp.nacks[packet->_slot];
  mrc_qp_touch_to_answer(services, qp);
}
