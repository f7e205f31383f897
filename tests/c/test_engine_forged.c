/* SPDX-License-Identifier: Apache-2.0 */
/* Packets that nobody of ours sent: strangers, lies, excess and garbage. Each is dropped for its
   reason, or ends the QP that asked for it, and nothing else. */
#include "forge.h"
#include "sim/connect.h"

static const uint8_t forged[4] = {0x11, 0x22, 0x33, 0x44};

static void test_receive__drops_the_stranger(void) {
  struct mrc_pair *p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 64);
  struct forge forge = make_forge(p, end, forged);
  forge.wire.dest_qpn ^= 1;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_QPN);
  forge = make_forge(p, end, forged);
  mrc_address_make(forge.meta.src, 6, 2, 1, 0); /* another host, with the right QPN and rkey */
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
  forge = make_forge(p, end, forged);
  forge.wire.psn = 0x800;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_PSN_WINDOW);
  forge.wire.psn = MRC_PSN_MASK; /* just behind the window */
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_DUPLICATE);
  run_for(p, 5 * MS);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
  mrc_pair_destroy(p);
}

/* The QP takes data in RTR and RTS only. */
static void test_receive__drops_in_the_wrong_state(void) {
  struct mrc_pair *p = open_pair();
  int end = mrc_pair_create_qp(p, &(struct mrc_pair_qp_config){.memory_bytes = 64});
  struct forge forge = make_forge(p, end, forged);
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_QP_STATE);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  mrc_pair_modify(p, p->ends[end]->peer, MRC_QP_RTR);
  CHECK_EQ(send_forge(p, &forge), 0);
  CHECK_MEM_EQ(audit_of(p, end)->target, forged, 4);
  mrc_pair_destroy(p);
}

/* Answers to what was never asked: of unsent PSNs, of unknown probes, with absurd offsets. */
static void test_receive__drops_false_answers(void) {
  struct mrc_pair *p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 10 * MTU);
  int peer = p->ends[end]->peer;
  CHECK_EQ(mrc_pair_write(p, peer, 4 * MTU), 0); /* host 1 sends PSNs from rq_psn on */
  CHECK(mrc_pair_finish(p, 10 * MS));
  uint32_t next = mrc_psn_add(p->ends[peer]->attr.sq_psn, 4);
  struct forge forge = make_forge(p, end, forged);
  forge.wire = (struct mrc_wire){.opcode = MRC_OP_SACK, .dest_qpn = forge.wire.dest_qpn};
  forge.wire.psn = forge.wire.sack.cum_psn = next;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_ACK_UNSENT);
  forge.wire.psn = forge.wire.sack.cum_psn = mrc_psn_sub(next, 1);
  forge.wire.sack.sack_offset = 1;
  forge.wire.sack.bitmap = 1ull << 5;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_ACK_UNSENT);
  forge.wire.sack.bitmap = 0;
  forge.wire.sack.pr = true; /* no probe is out */
  forge.wire.sack.ack_psn_offset = 77;
  send_forge(p, &forge);
  forge.wire = (struct mrc_wire){.opcode = MRC_OP_ENDPOINT_RESPONSE,
                                 .dest_qpn = MRC_ENDPOINT_QPN,
                                 .psn = 5,
                                 .endpoint.op = MRC_ENDPOINT_EV_PROBE};
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_UNKNOWN_ID);
  CHECK_EQ(mrc_pair_write(p, peer, MTU), 0);
  CHECK(mrc_pair_finish(p, 10 * MS));
  CHECK_EQ(succeeded(p, peer), 2);
  CHECK_EQ(retransmitted(p, peer), 0);
  mrc_pair_destroy(p);
}

/* More immediates than agreed, from a peer that does not keep to it. */
static void test_receive__too_many_immediates(void) {
  struct mrc_pair *p = open_pair();
  int end = open_qp(p, .memory_bytes = 64, .max_wimm = 4);
  struct forge forge = make_forge(p, end, forged);
  forge.wire.opcode = MRC_OP_WRITE_ONLY_IMM;
  for (uint32_t i = 0; i < 5; i++) {
    forge.wire.psn = i + 1; /* PSN 0 never comes, so none can be delivered */
    forge.wire.rqmsn = (uint16_t)i;
    forge.wire.msn = (uint16_t)(i + 1);
    CHECK_EQ(send_forge(p, &forge), i < 4 ? 0 : MRC_DROP_WIMM_LIMIT);
  }
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_ERROR);
  mrc_pair_destroy(p);
}

/* Random bytes, and good packets with random bytes in them: dropped, nothing else. */
static void test_receive__survives_garbage(void) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 1u << 18, .timeout = 14);
  struct mrc_prng prng = {.state = 5};
  struct forge forge = make_forge(p, end, forged);
  CHECK_EQ(mrc_pair_write_imm(p, end, 1u << 18), 0);
  for (int i = 0; i < 5000; i++) {
    uint8_t bytes[80];
    size_t n = mrc_prng_below(&prng, sizeof bytes + 1);
    for (size_t k = 0; k < n; k++)
      bytes[k] = (uint8_t)mrc_prng_next(&prng);
    CHECK(mrc_pair_forge(p, 1, bytes, n, &forge.meta) > 0);
    if (i % 100 == 0) mrc_pair_step(p, p->now_ns + 10 * US);
  }
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(succeeded(p, end), 1);
  mrc_pair_destroy(p);
}

/* A port of host 1 that does not exist, and an endpoint operation for a QP. */
static void test_receive__drops_what_has_no_place(void) {
  struct mrc_pair *p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 64);
  struct forge forge = make_forge(p, end, forged);
  forge.meta.port = 0;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_PORT);
  forge.meta.port = 3;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_PORT);
  forge.meta.port = 1;
  uint8_t bytes[MRC_MAX_HEADER] = {0};
  forge.wire = (struct mrc_wire){.opcode = MRC_OP_ENDPOINT_REQUEST,
                                 .dest_qpn = MRC_ENDPOINT_QPN,
                                 .endpoint.op = MRC_ENDPOINT_EV_PROBE};
  const size_t n = mrc_wire_encode(&forge.wire, bytes);
  bytes[7] ^= 1; /* another QP than 2 */
  CHECK_EQ(mrc_pair_forge(p, 1, bytes, n + MRC_ICRC_BYTES, &forge.meta), MRC_DROP_FIELD);
  uint64_t drops[MRC_DROP_COUNT];
  CHECK_EQ(mrc_engine_drops(p->hosts[1].engine, drops, MRC_DROP_COUNT), MRC_DROP_COUNT);
  CHECK_EQ(drops[MRC_DROP_PORT], 2);
  CHECK_EQ(drops[MRC_DROP_FIELD], 1);
  mrc_pair_destroy(p);
}

/* A packet longer than its message, and an Only that is not all of it. */
static void test_receive__a_message_that_cannot_be(void) {
  for (int i = 0; i < 2; i++) {
    CHECK_ROW(i);
    struct mrc_pair *p = open_pair(.planes = 2);
    int end = open_qp(p, .memory_bytes = 64);
    struct forge forge = make_forge(p, end, forged);
    forge.wire.opcode = i ? MRC_OP_WRITE_ONLY : MRC_OP_WRITE_FIRST;
    forge.wire.dma_bytes = i ? 5 : 3;
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_LENGTH);
    CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
    CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
    mrc_pair_destroy(p);
  }
}

/* What a NAK or a fatal NACK says becomes the status of the oldest work request. */
static void test_receive__refusals_of_the_peer(void) {
  static const struct {
    uint8_t syndrome; /* of an ACK; 0: a NACK with UNEXP_EVENT */
    uint8_t status;
  } rows[] = {
      {MRC_SYNDROME_NAK_INV_REQ, MRC_WC_REM_INV_REQ_ERR},
      {MRC_SYNDROME_NAK_REM_ACCESS, MRC_WC_REM_ACCESS_ERR},
      {MRC_SYNDROME_NAK_REM_OP, MRC_WC_REM_OP_ERR},
      {0, MRC_WC_REM_OP_ERR},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct mrc_pair *p = open_pair();
    int end = open_qp(p, .memory_bytes = 64);
    int peer = p->ends[end]->peer;
    struct forge forge = make_forge(p, end, forged);
    mrc_pair_silence(p, 1, true);
    for (int k = 0; k < 2; k++)
      CHECK_EQ(mrc_pair_write(p, peer, 0), 0);
    run_for(p, PATH_DELAY);
    forge.wire = (struct mrc_wire){
        .opcode = MRC_OP_ACK, .dest_qpn = p->ends[peer]->qpn, .aeth.syndrome = rows[i].syndrome};
    if (rows[i].syndrome == 0) {
      forge.wire.opcode = MRC_OP_NACK;
      forge.wire.psn = p->ends[peer]->attr.sq_psn;
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
    mrc_pair_destroy(p);
  }
}

static struct forge make_request(struct mrc_pair *p, int end, uint8_t op, uint32_t mask) {
  struct forge forge = make_forge(p, end, forged);
  forge.wire = (struct mrc_wire){.opcode = MRC_OP_ENDPOINT_REQUEST,
                                 .dest_qpn = MRC_ENDPOINT_QPN,
                                 .psn = 7,
                                 .endpoint = {.op = op, .port_status_mask = mask}};
  return forge;
}

/* Nobody but a peer is answered, and a peer not without bound: no traffic can be reflected. */
static void test_request__answers_peers_and_only_so_many(void) {
  struct mrc_pair *p = open_pair();
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
  mrc_pair_destroy(p);
}

/* Answers that wait when their QP is destroyed are forgotten with it. */
static void test_request__of_a_qp_that_goes(void) {
  struct mrc_pair *p = open_pair();
  int end = open_qp(p);
  struct forge forge = make_request(p, end, MRC_ENDPOINT_EV_PROBE, 0);
  for (int i = 0; i < 10; i++)
    CHECK_EQ(send_forge(p, &forge), 0);
  mrc_pair_destroy_qp(p, p->ends[end]->peer);
  run_for(p, MS);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_EV_ANSWERS), 0);
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
  mrc_pair_destroy(p);
}

/* Answers to another peer, here the host itself, stay when a QP goes; the oldest one, too. */
static void test_request__of_a_qp_that_stays(void) {
  struct mrc_pair *p = open_pair();
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
  mrc_pair_destroy(p);
}

/* The peer says that its port 2 is down: every QP with that peer leaves the plane, until it is up.
 */
static void test_request__port_status(void) {
  struct mrc_pair *p = open_pair(.planes = 2);
  int first = open_qp(p, .memory_bytes = 1u << 20), second = open_qp(p, .memory_bytes = 1u << 20);
  struct forge forge = make_request(p, first, MRC_ENDPOINT_PORT_STATUS, 1);
  CHECK_EQ(send_forge(p, &forge), 0);
  for (int i = 0; i < 2; i++) {
    int peer = p->ends[i ? second : first]->peer;
    CHECK_EQ(mrc_pair_write(p, peer, 100 * MTU), 0);
    CHECK(mrc_pair_finish(p, 50 * MS));
    CHECK_EQ(mrc_pair_info(p, peer).planes[1].packets, 0);
  }
  forge.wire.endpoint.port_status_mask = 3;
  CHECK_EQ(send_forge(p, &forge), 0);
  run_for(p, 20 * MS); /* until probes have confirmed it */
  CHECK_EQ(mrc_pair_write(p, p->ends[first]->peer, 400 * MTU), 0);
  CHECK(mrc_pair_finish(p, 50 * MS));
  CHECK(mrc_pair_info(p, p->ends[first]->peer).planes[1].packets > 100);
  mrc_pair_destroy(p);
}

CHECK_MAIN(RUN(test_receive__drops_the_stranger), RUN(test_receive__drops_in_the_wrong_state),
           RUN(test_receive__drops_false_answers), RUN(test_receive__too_many_immediates),
           RUN(test_receive__survives_garbage), RUN(test_receive__drops_what_has_no_place),
           RUN(test_receive__a_message_that_cannot_be), RUN(test_receive__refusals_of_the_peer),
           RUN(test_request__answers_peers_and_only_so_many), RUN(test_request__of_a_qp_that_goes),
           RUN(test_request__of_a_qp_that_stays), RUN(test_request__port_status))
