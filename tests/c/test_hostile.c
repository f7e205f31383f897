/* SPDX-License-Identifier: Apache-2.0 */
#include "forge.h"

#include "core/engine.h"
#include "core/qp.h"
#include "pair/connect.h"
#include "scenario.h"

/* ---- forged packets ---- */

/* Forged packets: from strangers, with false fields, too many, or garbage. The engine drops each
   with its reason, or fails only the QP that the packet addresses. */

TEST(test_receive__drops_the_stranger) {
  PAIR p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 64);
  struct forge forge = make_forge(p, end);
  forge.wire.dest_qpn ^= 1;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_QPN);
  forge = make_forge(p, end);
  mrc_address_make(forge.meta.src, 6, 2, 1, 0); /* another host, with the right QPN and rkey */
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
  forge = make_forge(p, end);
  forge.meta.sport++; /* another process of the peer's host */
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
  forge.meta.sport = mrc_address_sport(2, 0); /* a source port of the peer, with another address */
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
  forge = make_forge(p, end);
  forge.wire.psn = 0x800;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_PSN_WINDOW);
  forge.wire.psn = MRC_PSN_MASK; /* just behind the window */
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_DUPLICATE);
  run_for(p, 5 * MS);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
}

/* The QP accepts data in RTR and RTS only. */
TEST(test_receive__drops_in_the_wrong_state) {
  PAIR p = open_pair();
  int end = mrc_pair_create_qp(p, &(struct mrc_pair_qp_config){.memory_bytes = 64});
  struct forge forge = make_forge(p, end);
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_QP_STATE);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  mrc_pair_modify(p, p->ends[end]->peer, MRC_QP_RTR);
  CHECK_EQ(send_forge(p, &forge), 0);
  CHECK_MEM_EQ(audit_of(p, end)->target, four, 4);
}

/* Answers without a request: for unsent PSNs, for unknown probes, with absurd offsets. */
TEST(test_receive__drops_false_answers) {
  PAIR p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 10 * MTU);
  int peer = p->ends[end]->peer;
  WRITE_AND_WAIT(p, peer, 4 * MTU, 10 * MS); /* host 1 sends PSNs from rq_psn on */
  uint32_t next = mrc_psn_add(p->ends[peer]->attr.rts.sq_psn, 4);
  struct forge forge = make_forge(p, end);
  set_wire(forge, .opcode = MRC_OP_SACK);
  forge.wire.psn = forge.wire.sack.cum_psn = next;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_ACK_UNSENT);
  forge.wire.psn = forge.wire.sack.cum_psn = mrc_psn_sub(next, 1);
  forge.wire.sack.sack_offset = 1;
  forge.wire.sack.bitmap = 1ull << 5;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_ACK_UNSENT);
  forge.wire.sack.bitmap = 0;
  forge.wire.sack.pr = true; /* no probe is outstanding */
  forge.wire.sack.ack_psn_offset = 77;
  send_forge(p, &forge);
  set_wire(forge, .opcode = MRC_OP_ENDPOINT_RESPONSE, .dest_qpn = MRC_ENDPOINT_QPN, .psn = 5,
           .endpoint.op = MRC_ENDPOINT_EV_PROBE);
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_UNKNOWN_ID);
  WRITE_AND_WAIT(p, peer, MTU, 10 * MS);
  CHECK_EQ(succeeded(p, peer), 2);
  CHECK_EQ(retransmitted(p, peer), 0);
}

/* The peer sends more immediates than agreed. */
TEST(test_receive__too_many_immediates) {
  PAIR p = open_pair();
  int end = open_qp(p, .memory_bytes = 64, .max_wimm = 4);
  struct forge forge = make_forge(p, end);
  forge.wire.opcode = MRC_OP_WRITE_ONLY_IMM;
  for (uint32_t i = 0; i < 5; i++) {
    forge.wire.psn = i + 1; /* PSN 0 never comes, so none can be delivered */
    forge.wire.rqmsn = (uint16_t)i;
    forge.wire.msn = (uint16_t)(i + 1);
    CHECK_EQ(send_forge(p, &forge), i < 4 ? 0 : MRC_DROP_WIMM_LIMIT);
  }
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_ERROR);
}

/* An immediate reports the bytes of its message that arrived, not the length that the peer claims:
   packets that do not end a message have one of two sizes. */
TEST(test_receive__an_immediate_tells_what_arrived) {
  static const struct {
    uint8_t opcode;
    uint32_t bytes, claimed;
    int drop;
  } rows[] = {
      {MRC_OP_WRITE_FIRST, 4, 1u << 30, MRC_DROP_NONE},
      {MRC_OP_WRITE_MIDDLE, 3, 1u << 30, MRC_DROP_NONE},
      {MRC_OP_WRITE_MIDDLE, 2, 1u << 30, MRC_DROP_LENGTH},
      {MRC_OP_WRITE_MIDDLE, 4, 1u << 30, MRC_DROP_NONE},
      {MRC_OP_WRITE_LAST_IMM, 2, 1u << 30, MRC_DROP_NONE}, /* 13 bytes */
      {MRC_OP_WRITE_ONLY_IMM, 3, 3, MRC_DROP_NONE},
      {MRC_OP_WRITE_MIDDLE, 4, 5, MRC_DROP_NONE},
      {MRC_OP_WRITE_LAST, 1, 5, MRC_DROP_NONE},
      {MRC_OP_WRITE_FIRST, 4, 5, MRC_DROP_NONE},
      {MRC_OP_WRITE_LAST_IMM, 4, 5, MRC_DROP_NONE}, /* 8 bytes */
      {MRC_OP_WRITE_ONLY_IMM, 0, 0, MRC_DROP_NONE},
  };
  static const uint32_t arrived[] = {13, 3, 8, 0};
  PAIR p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64);
  struct forge forge = make_forge(p, end);
  p->hosts[1].stops_polling = true;
  EACH_ROW(i, rows) {
    forge.wire.opcode = rows[i].opcode;
    forge.wire.payload_bytes = rows[i].bytes;
    forge.wire.pad = -rows[i].bytes & 3;
    forge.wire.dma_bytes = rows[i].claimed;
    CHECK_EQ(send_forge(p, &forge), rows[i].drop);
    if (rows[i].drop != MRC_DROP_NONE) continue;
    forge.wire.psn++;
    if (mrc_opcode_has_imm(rows[i].opcode)) forge.wire.rqmsn++;
  }
  struct mrc_wc wcs[8];
  CHECK_EQ(mrc_cq_poll(p->hosts[1].engine, wcs, 8), 4);
  EACH_OF(size_t, i, 0, 4)
    CHECK_EQ(wcs[i].bytes, arrived[i]);
}

/* Host 1 drops packets for a port that does not exist. */
TEST(test_receive__drops_what_has_no_place) {
  PAIR p = open_pair(.planes = 2);
  struct forge forge = make_forge(p, open_qp(p, .memory_bytes = 64));
  forge.meta.port = 0;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_PORT);
  forge.meta.port = 3;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_PORT);
  CHECK_EQ(dropped(p, 1, MRC_DROP_PORT), 2);
}

/* The responder sends at most one NACK a millisecond for packets beyond the window. */
TEST(test_receive__few_nacks_for_what_is_beyond) {
  PAIR p = open_pair();
  struct forge forge = make_forge(p, open_qp(p, .memory_bytes = 4096, .mpr = 128));
  forge.wire.psn = 4096;
  for (int i = 0; i < 250; i++) {
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_PSN_WINDOW);
    run_for(p, 10 * US);
  }
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_NACKS), 3);
}

/* The reason in a NAK or a fatal NACK becomes the status of the oldest work request. */
TEST(test_receive__refusals_of_the_peer) {
  static const struct {
    uint8_t syndrome; /* of an ACK; 0 stands for a NACK with UNEXP_EVENT */
    uint8_t status;
  } rows[] = {
      {MRC_SYNDROME_NAK_INV_REQ, MRC_WC_REM_INV_REQ_ERR},
      {MRC_SYNDROME_NAK_REM_ACCESS, MRC_WC_REM_ACCESS_ERR},
      {MRC_SYNDROME_NAK_REM_OP, MRC_WC_REM_OP_ERR},
      {0, MRC_WC_REM_OP_ERR},
  };
  EACH_ROW(i, rows) {
    PAIR p = open_pair();
    int end = open_qp(p, .memory_bytes = 64);
    int peer = p->ends[end]->peer;
    struct forge forge = make_forge(p, end);
    mrc_pair_silence(p, 1, true);
    for (int k = 0; k < 2; k++)
      CHECK_EQ(mrc_pair_write_imm(p, peer, 0), 0);
    run_for(p, PATH_DELAY);
    set_wire(forge, .opcode = MRC_OP_ACK, .aeth.syndrome = rows[i].syndrome);
    if (rows[i].syndrome == 0) {
      forge.wire.opcode = MRC_OP_NACK;
      forge.wire.psn = p->ends[peer]->attr.rts.sq_psn;
      forge.wire.nack = (struct mrc_nack){
          .reason = MRC_NACK_UNEXP_EVENT,
          .nack_psn = forge.wire.psn,
          .ev = (uint32_t)mrc_address_sport(1, 0) << 16 | mrc_address_label(6, 1, 0),
          .cc_type = 2};
    }
    CHECK_EQ(send_forge(p, &forge), 0);
    CHECK(mrc_pair_finish(p, MS));
    CHECK_EQ(audit_of(p, peer)->statuses[rows[i].status], 1);
    CHECK_EQ(audit_of(p, peer)->statuses[MRC_WC_WR_FLUSH_ERR], 1);
  }
}

/* A NAK ends a QP only if its PSN is one that the peer may have received last: from the PSN before
   the oldest in flight to the newest. */
TEST(test_receive__a_nak_names_the_window) {
  static const struct {
    uint32_t packets; /* in flight */
    int32_t psn;      /* of the NAK, from the oldest in flight */
    int drop;
  } rows[] = {
      {0, -1, MRC_DROP_NONE},  {0, -2, MRC_DROP_STALE},     {0, 0, MRC_DROP_STALE},
      {4, -1, MRC_DROP_NONE},  {4, 3, MRC_DROP_NONE},       {4, 4, MRC_DROP_STALE},
      {4, -2, MRC_DROP_STALE}, {4, -65536, MRC_DROP_STALE},
  };
  EACH_ROW(i, rows) {
    PAIR p = open_pair();
    const int end = open_qp(p, .memory_bytes = 4 * MTU), peer = p->ends[end]->peer;
    struct forge forge = make_forge(p, end);
    mrc_pair_silence(p, 1, true);
    if (rows[i].packets > 0) CHECK_EQ(mrc_pair_write(p, peer, rows[i].packets * MTU), 0);
    run_for(p, PATH_DELAY);
    set_wire(forge, .opcode = MRC_OP_ACK,
             .psn = (p->ends[peer]->attr.rts.sq_psn + (uint32_t)rows[i].psn) & MRC_PSN_MASK,
             .aeth.syndrome = MRC_SYNDROME_NAK_REM_OP);
    CHECK_EQ(send_forge(p, &forge), rows[i].drop);
    CHECK_EQ(mrc_pair_info(p, peer).state,
             rows[i].drop == MRC_DROP_NONE ? MRC_QP_ERROR : MRC_QP_RTS);
  }
}

/* A WRITE of no bytes needs no rkey, so a forged one must not take the PSN of the true packet. */
TEST(test_receive__a_write_of_nothing_takes_no_psn) {
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = 4 * MTU);
  struct forge forge = make_forge(p, end);
  forge.wire.va = forge.wire.rkey = forge.wire.payload_bytes = forge.wire.dma_bytes = 0;
  for (forge.wire.psn = 0; forge.wire.psn < 4; forge.wire.psn++)
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_LENGTH);
  write_many(p, end, MTU, 4);
  CHECK(mrc_pair_finish(p, 50 * MS));
  CHECK_EQ(succeeded(p, end), 4);
  CHECK_MEM_EQ(audit_of(p, end)->target, audit_of(p, end)->source, 4 * MTU);
}

static struct forge make_request(struct mrc_pair *p, int end, uint8_t op, uint32_t mask) {
  struct forge forge = make_forge(p, end);
  set_wire(forge, .opcode = MRC_OP_ENDPOINT_REQUEST, .dest_qpn = MRC_ENDPOINT_QPN, .psn = 7,
           .endpoint = {.op = op, .port_status_mask = mask});
  return forge;
}

/* The engine answers peers only, and a limited number of requests, so that it cannot be used to
   reflect traffic. */
TEST(test_request__answers_peers_and_only_so_many) {
  PAIR p = open_pair();
  int end = open_qp(p);
  struct forge forge = make_request(p, end, MRC_ENDPOINT_EV_PROBE, 0);
  for (int i = 0; i < MRC_MAX_ANSWERS; i++)
    CHECK_EQ(send_forge(p, &forge), 0);
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_RATE);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_ANSWERS_DROPPED), 1);
  run_for(p, MS);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_EV_ANSWERS), MRC_MAX_ANSWERS);
  forge.meta.sport++;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
  mrc_address_make(forge.meta.src, 6, 5, 1, 0);
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
}

/* The engine checks the source of a packet before it computes the ICRC. */
TEST(test_request__no_icrc_for_strangers) {
  static const uint8_t opcodes[] = {MRC_OP_ENDPOINT_REQUEST, MRC_OP_ENDPOINT_RESPONSE};
  PAIR p = open_pair();
  struct forge forge = make_request(p, open_qp(p), MRC_ENDPOINT_EV_PROBE, 0);
  EACH_OF(size_t, i, 0, sizeof opcodes) {
    uint8_t bytes[MRC_MAX_HEADER + MRC_ICRC_BYTES] = {0};
    forge.wire.opcode = opcodes[i];
    const size_t n = mrc_wire_encode(&forge.wire, bytes) + MRC_ICRC_BYTES;
    struct mrc_meta meta = forge.meta;
    CHECK_EQ(mrc_pair_forge(p, 1, bytes, n, &meta), MRC_DROP_ICRC);
    meta.sport++;
    CHECK_EQ(mrc_pair_forge(p, 1, bytes, n, &meta), MRC_DROP_SOURCE);
  }
}

/* When a QP is destroyed, its waiting answers are dropped. */
TEST(test_request__of_a_qp_that_goes) {
  PAIR p = open_pair();
  int end = open_qp(p);
  struct forge forge = make_request(p, end, MRC_ENDPOINT_EV_PROBE, 0);
  for (int i = 0; i < 10; i++)
    CHECK_EQ(send_forge(p, &forge), 0);
  mrc_pair_destroy_qp(p, p->ends[end]->peer);
  run_for(p, MS);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_EV_ANSWERS), 0);
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
}

/* When a QP is destroyed, the waiting answers to another peer (here the host itself) stay, the
   oldest one included. */
TEST(test_request__of_a_qp_that_stays) {
  PAIR p = open_pair();
  int end = open_qp(p);
  open_qp(p, .from = 1, .to = 1);
  struct forge forge = make_request(p, end, MRC_ENDPOINT_EV_PROBE, 0), other = forge;
  mrc_address_make(other.meta.src, 6, 1, 1, 0);
  CHECK_EQ(send_forge(p, &other), 0);
  for (int i = 0; i < 10; i++)
    CHECK_EQ(send_forge(p, &forge), 0);
  mrc_pair_destroy_qp(p, p->ends[end]->peer);
  run_for(p, MS);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_EV_ANSWERS), 1);
}

/* A status mask is invalid if it reports the port down that delivered it, alone or with all others.
 */
TEST(test_request__port_status_that_cannot_be) {
  static const struct {
    uint8_t port;
    uint32_t mask;
    int drop;
  } rows[] = {
      {1, 0, MRC_DROP_PORT_STATUS},   {2, 0, MRC_DROP_PORT_STATUS},
      {1, 2, MRC_DROP_PORT_STATUS},   {2, 1, MRC_DROP_PORT_STATUS},
      {1, ~1u, MRC_DROP_PORT_STATUS}, {1, 1u << 31, MRC_DROP_PORT_STATUS},
      {2, 2, MRC_DROP_NONE},          {1, 1, MRC_DROP_NONE},
      {1, UINT32_MAX, MRC_DROP_NONE},
  };
  PAIR p = open_pair(.planes = 2);
  const int first = open_qp(p);
  const struct mrc_peer *peer =
      mrc_qps_find(&p->hosts[1].engine->qps, p->ends[p->ends[first]->peer]->qpn)->peer;
  EACH_ROW(i, rows) {
    struct forge forge = make_request(p, first, MRC_ENDPOINT_PORT_STATUS, rows[i].mask);
    const uint32_t before = peer->ports_up;
    forge.meta.port = rows[i].port;
    CHECK_EQ(send_forge(p, &forge), rows[i].drop);
    CHECK_EQ(peer->ports_up, rows[i].drop == MRC_DROP_NONE ? rows[i].mask : before);
    CHECK_EQ(p->hosts[1].engine->endpoint.answers.n, rows[i].drop == MRC_DROP_NONE);
    run_for(p, 10 * US); /* the answer */
  }
}

/* A forged packet reports all other ports down, and the ports answer probes: transfers go on, every
   QP uses its planes again within 0.2 s, and a true status counts as a change again. */
TEST(test_request__a_false_port_status_heals) {
  enum { QPS = 2, PLANES = 4 };
  PAIR p = open_pair(.planes = PLANES, .paths = 2);
  int ends[QPS];
  for (int i = 0; i < QPS; i++)
    ends[i] = open_qp(p, .memory_bytes = 1u << 20);
  struct forge forge = make_request(p, ends[0], MRC_ENDPOINT_PORT_STATUS, 1);
  EACH_OF(int, lie, 0, 3) {
    CHECK_EQ(send_forge(p, &forge), 0);
    for (int i = 0; i < QPS; i++)
      CHECK_EQ(mrc_pair_write(p, p->ends[ends[i]]->peer, 100 * MTU), 0);
    CHECK(mrc_pair_finish(p, 50 * MS));
    CHECK_EQ(n_reasons(p, 1, MRC_EVENT_PORT, 0, MRC_REASON_PEER_PORT),
             (lie + 1) * QPS * (PLANES - 1));
    run_for(p, 200 * MS);
    CHECK_EQ(n_reasons(p, 1, MRC_EVENT_PORT, 1, MRC_REASON_PEER_PORT),
             (lie + 1) * QPS * (PLANES - 1));
    for (int i = 0; i < QPS; i++)
      for (int plane = 0; plane < PLANES; plane++)
        CHECK_EQ(mrc_pair_info(p, p->ends[ends[i]]->peer).planes[plane].suspended, 0);
  }
}

/* ---- a hostile peer ---- */

/* A hostile peer within a QP, one test for each false message: no invariant breaks, no queue grows,
   a counter counts it, and valid traffic goes on. */

/* The victim is host 1's requester: it has `packets` in flight, and they will not arrive. */
static struct mrc_pair *open_victim(uint32_t packets, int *end, int *victim) {
  struct mrc_pair *p = open_pair(.planes = 2);
  *end = open_qp(p, .memory_bytes = 64 * MTU, .sq_psn = 5, .dynamic_mpr = 1);
  *victim = p->ends[*end]->peer;
  if (packets == 0) return p;
  mrc_pair_silence(p, 1, true);
  mrc_pair_silence(p, 2, true);
  CHECK_EQ(mrc_pair_write(p, *victim, packets * MTU), 0);
  mrc_pair_run(p, p->now_ns + US);
  return p;
}

static struct forge make_sack(struct mrc_pair *p, int end, uint32_t cum_psn) {
  struct forge forge = make_forge(p, end);
  set_wire(forge, .opcode = MRC_OP_SACK, .psn = cum_psn,
           .sack = {.cum_psn = cum_psn, .sack_offset = 1});
  return forge;
}

/* The peer sends valid packets again: everything completes. */
static void check_recovers(struct mrc_pair *p, int victim, uint64_t writes) {
  mrc_pair_silence(p, 1, false);
  mrc_pair_silence(p, 2, false);
  CHECK(mrc_pair_finish(p, SECOND));
  CHECK_EQ(succeeded(p, victim), writes);
}

/* Eight packets are in flight. A SACK for PSNs beyond them is refused as a whole; a SACK for PSNs
   before them is stale. Neither acknowledges a byte. */
TEST(test_hostile__sacks_for_packets_never_sent) {
  static const struct {
    int32_t cum; /* relative to the first PSN in flight */
    int16_t offset;
    uint64_t bitmap;
    int drop;
  } rows[] = {
      {8, 1, 0, MRC_DROP_ACK_UNSENT},                  /* the next PSN */
      {-1, 9, 1, MRC_DROP_ACK_UNSENT},                 /* the same, in the bitmap */
      {-1, 1, 1ull << 63 | 1, MRC_DROP_ACK_UNSENT},    /* one PSN beyond suffices */
      {-1, INT16_MAX, 1, MRC_DROP_ACK_UNSENT},         /* as far as an offset reaches */
      {(1 << 23) - 1, 1, 0, MRC_DROP_ACK_UNSENT},      /* as far ahead as a PSN may be */
      {-1 - (1 << 22), 1, UINT64_MAX, MRC_DROP_STALE}, /* long ago */
      {-1, INT16_MIN, UINT64_MAX, MRC_DROP_NONE},      /* the bits are stale */
      {-1 - (1 << 22), INT16_MAX, UINT64_MAX, MRC_DROP_STALE},
  };
  EACH_ROW(i, rows) {
    int end, victim;
    PAIR p = open_victim(8, &end, &victim);
    const struct mrc_txwin *win = &inside(p, victim)->req.win;
    CHECK_EQ(mrc_txwin_outstanding(win), 8);
    struct forge forge = make_sack(p, end, (win->una_psn + (uint32_t)rows[i].cum) & MRC_PSN_MASK);
    forge.wire.sack.sack_offset = rows[i].offset;
    forge.wire.sack.bitmap = rows[i].bitmap;
    const uint64_t drops = p->hosts[1].drops[MRC_DROP_ACK_UNSENT];
    const uint64_t taken = counter(p, 1, MRC_COUNTER_RX_SACKS);
    for (int k = 0; k < 100; k++)
      CHECK_EQ(send_forge(p, &forge), rows[i].drop);
    const bool refused = rows[i].drop != MRC_DROP_NONE;
    CHECK_EQ(dropped(p, 1, MRC_DROP_ACK_UNSENT) - drops,
             rows[i].drop == MRC_DROP_ACK_UNSENT ? 100 : 0);
    CHECK_EQ(counter(p, 1, MRC_COUNTER_RX_SACKS) - taken, refused ? 0 : 100);
    CHECK_EQ(mrc_pair_info(p, victim).acknowledged_bytes, 0);
    CHECK_EQ(win->inflight_bytes, 8 * MTU);
    check_recovers(p, victim, 1);
  }
}

/* Valid SACKs grant a window smaller than the packets in flight, then no window field, then the old
   window. The requester revokes nothing in flight, sends nothing beyond the grant, and never
   exceeds the agreed window. */
TEST(test_hostile__windows_that_shrink) {
  static const struct {
    uint8_t mpr;
    uint32_t granted;
  } rows[] = {{1, 128}, {255, 1024}, {1, 128}, {0, 128}, {8, 1024}, {9, 1024}, {1, 128}};
  int end, victim;
  PAIR p = open_pair();
  end = open_qp(p, .memory_bytes = 600 * MTU, .dynamic_mpr = 1, .cc = MRC_CC_NULL);
  victim = p->ends[end]->peer;
  prove_paths(p->hosts[1].engine, p->ends[victim]->qpn);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, victim, 300 * MTU), 0);
  run_for(p, US);
  const struct mrc_txwin *win = &inside(p, victim)->req.win;
  CHECK_EQ(mrc_txwin_outstanding(win), 300);
  EACH_ROW(i, rows) {
    struct forge forge = make_sack(p, end, mrc_psn_sub(win->una_psn, 1));
    forge.wire.sack.mpr = rows[i].mpr;
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_NONE);
    CHECK_EQ(mrc_pair_info(p, victim).peer_mpr, rows[i].granted);
    CHECK_EQ(mrc_txwin_outstanding(win), 300);
    CHECK_EQ(win->inflight_bytes, 300 * MTU);
  }
  CHECK_EQ(counter(p, 1, MRC_COUNTER_RX_SACKS), sizeof rows / sizeof rows[0]);
  CHECK_EQ(mrc_pair_write(p, victim, 300 * MTU), 0);
  run_for(p, US);
  CHECK_EQ(mrc_txwin_outstanding(win), 300); /* 128 are granted */
  mrc_pair_silence(p, 1, false);
  CHECK(mrc_pair_finish(p, 2 * SECOND));
  CHECK_EQ(succeeded(p, victim), 2);
}

/* The first wrong rkey ends the QP, so an attacker has one guess a QP. */
TEST(test_hostile__rkeys_guessed) {
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = 64), other = open_qp(p, .memory_bytes = 4 * MTU);
  struct forge forge = make_forge(p, end);
  const uint32_t rkey = forge.wire.rkey;
  for (uint32_t guess = 0; guess < 1000; guess++) {
    forge.wire.rkey = rkey ^ (guess + 1);
    forge.wire.psn = guess;
    CHECK_EQ(send_forge(p, &forge), guess == 0 ? MRC_DROP_ACCESS : MRC_DROP_QP_STATE);
  }
  forge.wire.rkey = rkey; /* too late */
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_QP_STATE);
  CHECK_EQ(dropped(p, 1, MRC_DROP_ACCESS), 1);
  CHECK_EQ(dropped(p, 1, MRC_DROP_QP_STATE), 1000);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_ERROR);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).status, MRC_WC_REM_ACCESS_ERR);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_RX_DATA), 0);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  WRITE_AND_WAIT(p, other, 4 * MTU, 50 * MS); /* other QPs go on */
  CHECK_EQ(succeeded(p, other), 1);
}

/* Ranges outside the region or the address space are refused before a byte is placed. */
TEST(test_hostile__lengths_that_overflow) {
  enum { BYTES = 64 };
  static const struct {
    int64_t from_start; /* of the region; with `wraps`, of the address space's end */
    bool wraps;
    uint32_t dma_bytes;
    int drop;
  } rows[] = {
      {BYTES - 4, false, 4, MRC_DROP_NONE}, /* the last four bytes */
      {BYTES - 3, false, 4, MRC_DROP_ACCESS},
      {BYTES, false, 4, MRC_DROP_ACCESS},
      {-1, false, 4, MRC_DROP_ACCESS},
      {-4, true, 4, MRC_DROP_ACCESS}, /* its end is address 0 */
      {-2, true, 4, MRC_DROP_ACCESS}, /* and beyond */
      {-1, true, 4, MRC_DROP_ACCESS},
      {0, false, UINT32_MAX, MRC_DROP_LENGTH}, /* an Only that is longer than its packet */
  };
  EACH_ROW(i, rows) {
    PAIR p = open_pair(.planes = 2);
    const int end = open_qp(p, .memory_bytes = BYTES);
    uint8_t expected[BYTES];
    memset(expected, MRC_AUDIT_FILL, BYTES);
    if (rows[i].drop == MRC_DROP_NONE) memcpy(expected + BYTES - 4, four, 4);
    struct forge forge = make_forge(p, end);
    forge.wire.va = (rows[i].wraps ? 0 : forge.wire.va) + (uint64_t)rows[i].from_start;
    forge.wire.dma_bytes = rows[i].dma_bytes;
    CHECK_EQ(send_forge(p, &forge), rows[i].drop);
    CHECK_MEM_EQ(audit_of(p, end)->target, expected, BYTES);
    if (rows[i].drop != MRC_DROP_NONE) CHECK_EQ(dropped(p, 1, rows[i].drop), 1);
  }
}

/* Feedback on EVs that never carried the packet, or do not exist, changes no EV. */
TEST(test_hostile__ev_echoes_never_used) {
  int end, victim;
  PAIR p = open_victim(8, &end, &victim);
  const struct mrc_txwin *win = &inside(p, victim)->req.win;
  const struct mrc_evset *set = &inside(p, victim)->evset;
  const uint32_t value = set->evs[0].value;
  const uint64_t taken = counter(p, 1, MRC_COUNTER_RX_SACKS);
  struct forge sack = make_sack(p, end, mrc_psn_sub(win->una_psn, 1));
  for (uint32_t i = 0; i < 1000; i++) {
    sack.wire.sack.ev = i % 2 ? value + 1 + i : i * 0x01000193u ^ 0x80000000u;
    sack.wire.sack.m = i % 4 < 2 ? MRC_M_SKIP_ONCE : MRC_M_ALWAYS_SKIP;
    CHECK(*mrc_evset_find(set, sack.wire.sack.ev) == MRC_EV_NONE);
    CHECK_EQ(send_forge(p, &sack), MRC_DROP_NONE);
  }
  for (uint16_t i = 0; i < set->n; i++)
    CHECK_EQ(set->evs[i].state, MRC_EV_GOOD);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_RX_SACKS) - taken, 1000);
  struct forge nack = make_sack(p, end, win->una_psn);
  nack.wire.opcode = MRC_OP_NACK;
  nack.wire.nack = (struct mrc_nack){
      .reason = MRC_NACK_TRIMMED, .nack_psn = win->una_psn, .ev = value ^ 0x7FFF, .cc_type = 2};
  for (int i = 0; i < 100; i++)
    CHECK_EQ(send_forge(p, &nack), MRC_DROP_STALE);
  CHECK_EQ(dropped(p, 1, MRC_DROP_STALE), 100);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_LOST_BY_NACK), 0);
  CHECK_EQ(win->inflight_bytes, 8 * MTU);
  check_recovers(p, victim, 1);
}

/* A thousand of each false message in one QP: the engine must not allocate; it queues no more than
   its rings hold and sends few answers. */
TEST(test_hostile__answers_stay_bounded) {
  PAIR p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64, .mpr = 128);
  struct forge forge = make_forge(p, end);
  for (uint32_t i = 0; i < 1000; i++) {
    forge.wire.psn = 128 + i;
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_PSN_WINDOW);
    forge.wire.psn = mrc_psn_sub(0, 1 + i);
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_DUPLICATE);
  }
  const struct mrc_responder *resp = &inside(p, p->ends[end]->peer)->resp;
  CHECK(resp->n_nacks <= MRC_MAX_NACKS && resp->n_triggers <= MRC_MAX_TRIGGERS);
  run_for(p, US);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_NACKS), 1);
  CHECK(counter(p, 1, MRC_COUNTER_TX_SACKS) <= MRC_MAX_TRIGGERS);
}

/* ---- an earlier QP ---- */

/* A new QP has the QPN of an old one: packets still in flight to the old QP change nothing. */

enum { APART = 1 << 20 }; /* first PSNs of two QPs, random, so almost always far apart */

/* Host 1 has two packets in flight and a reliability probe outstanding; it receives only forged
   packets from host 0. */
static int open_waiting(struct mrc_pair *p) {
  const int end = open_qp(p, .memory_bytes = 64 * MTU);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, p->ends[end]->peer, 2 * MTU), 0);
  while (!inside(p, p->ends[end]->peer)->req.probe.outstanding)
    run_for(p, 100 * US);
  return end;
}

/* A packet of host 0's old QP, `away` PSNs from the current PSN of the new QP. */
static struct forge stale(struct mrc_pair *p, int end, enum mrc_opcode opcode, uint32_t away) {
  const struct mrc_requester *req = &inside(p, p->ends[end]->peer)->req;
  const uint32_t psn = mrc_psn_add(req->win.una_psn, away);
  struct forge forge = make_forge(p, end);
  const uint32_t ev = inside(p, p->ends[end]->peer)->evset.evs[0].value;
  const struct mrc_wire data = forge.wire;
  set_wire(forge, .opcode = opcode, .psn = psn);
  if (opcode == MRC_OP_WRITE_ONLY) {
    forge.wire = data;
    forge.wire.psn = mrc_psn_add(data.psn, away);
  } else if (opcode == MRC_OP_SACK) {
    forge.wire.sack = (struct mrc_sack){.cum_psn = psn,
                                        .sack_offset = 1,
                                        .bitmap = 0xF,
                                        .m = MRC_M_ALWAYS_SKIP,
                                        .ev = ev,
                                        .mpr = 1,
                                        .restore_cwnd = true};
  } else if (opcode == MRC_OP_ACK) {
    forge.wire.aeth.syndrome = MRC_SYNDROME_ACK;
  } else if (opcode == MRC_OP_NACK) {
    forge.wire.nack =
        (struct mrc_nack){.reason = MRC_NACK_UNEXP_EVENT, .ev = ev, .nack_psn = psn, .cc_type = 2};
  }
  return forge;
}

/* The packet changes nothing but counters and the trace. */
static void check_unchanged(struct mrc_pair *p, int end, struct forge forge) {
  struct mrc_qp *qp = inside(p, p->ends[end]->peer);
  static struct mrc_qp before;
  before = *qp;
  const uint8_t ev_state = qp->evset.evs[0].state;
  const int drop = send_forge(p, &forge);
  CHECK(drop == MRC_DROP_STALE || drop == MRC_DROP_ACK_UNSENT || drop == MRC_DROP_PSN_WINDOW ||
        drop == MRC_DROP_DUPLICATE);
  CHECK_EQ(qp->state, MRC_QP_RTS);
  CHECK_MEM_EQ(&qp->req, &before.req, sizeof qp->req);
  CHECK_MEM_EQ(&qp->resp.win, &before.resp.win, sizeof qp->resp.win);
  CHECK_EQ(qp->resp.received_bytes, before.resp.received_bytes);
  CHECK_EQ(qp->evset.evs[0].state, ev_state);
}

TEST(test_stale__packets_change_nothing) {
  static const enum mrc_opcode opcodes[] = {MRC_OP_WRITE_ONLY, MRC_OP_SACK, MRC_OP_NACK,
                                            MRC_OP_ACK};
  static const uint32_t away[] = {APART, -APART & MRC_PSN_MASK};
  EACH_OF(size_t, row, 0, 2 * sizeof opcodes / sizeof opcodes[0]) {
    PAIR p = open_pair();
    const int end = open_waiting(p);
    check_unchanged(p, end, stale(p, end, opcodes[row / 2], away[row % 2]));
  }
}

/* An old acknowledgement may have a plausible message number, and an old answer a plausible probe
   id. An old NAK would end the QP. */
TEST(test_stale__acks_and_probe_answers_with_likely_numbers) {
  EACH_OF(int, row, 0, 3) {
    PAIR p = open_pair();
    const int end = open_waiting(p);
    const struct mrc_requester *req = &inside(p, p->ends[end]->peer)->req;
    struct forge forge = stale(p, end, row == 2 ? MRC_OP_SACK : MRC_OP_ACK, -APART & MRC_PSN_MASK);
    if (row == 2) {
      forge.wire.sack.pr = true;
      forge.wire.sack.ack_psn_offset = (int16_t)req->probe.id;
    } else {
      forge.wire.aeth.syndrome = row == 0 ? MRC_SYNDROME_ACK : MRC_SYNDROME_NAK_REM_OP;
      forge.wire.aeth.msn = req->acked_msn + (row == 0);
    }
    check_unchanged(p, end, forge);
  }
}

/* An old probe is answered and has no other effect. */
TEST(test_stale__probe_is_answered_and_forgotten) {
  PAIR p = open_pair();
  const int end = open_waiting(p);
  struct mrc_qp *qp = inside(p, p->ends[end]->peer);
  const struct forge forge = stale(p, end, MRC_OP_PROBE, 0);
  static struct mrc_qp before;
  before = *qp;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_NONE);
  CHECK_MEM_EQ(&qp->req, &before.req, sizeof qp->req);
  CHECK_MEM_EQ(&qp->resp.win, &before.resp.win, sizeof qp->resp.win);
  CHECK_EQ(qp->state, MRC_QP_RTS);
}
