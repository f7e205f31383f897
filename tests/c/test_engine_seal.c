/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed QPs: bytes arrive as on plain ones, and of what others change, forge or send again nothing
   has an effect. The simulated cipher asserts that no nonce is used twice. */
#include <stdlib.h>

#include "forge.h"
#include "pair/connect.h"
#include "pair/datagram.h"
#include "virtual/sealer.h"

enum { MODES = 2, TAP = 4096 };

static const uint8_t forged[4] = {0x11, 0x22, 0x33, 0x44};
static struct mrc_datagram *tap[TAP];

static void start_tap(struct mrc_pair *p) {
  p->tap = tap;
  p->tap_room = TAP;
}

static void free_tap(struct mrc_pair *p) {
  for (int i = 0; i < p->n_tapped; i++)
    free(tap[i]);
}

/* A packet that was seen on the way arrives at its destination. */
static int arrive(struct mrc_pair *p, const struct mrc_datagram *packet) {
  return mrc_pair_forge(p, packet->to, packet->bytes, packet->n, &packet->meta);
}

TEST(test_seal__writes_arrive) {
  for (int row = 0; row < 2 * MODES; row++) {
    CHECK_ROW(row);
    struct mrc_pair *p = open_pair(.planes = 2, .family = row & 1 ? 4 : 6);
    const int end = open_qp(p, .memory_bytes = 200 * MTU, .seal = (uint8_t)(1 + row / 2));
    CHECK_EQ(mrc_pair_write(p, end, 100 * MTU + 3), 0);
    CHECK_EQ(mrc_pair_write_imm(p, end, 7), 0);
    CHECK_EQ(mrc_pair_write_imm(p, end, 0), 0);
    CHECK(mrc_pair_finish(p, 50 * MS));
    CHECK_EQ(succeeded(p, end), 3);
    CHECK_EQ(retransmitted(p, end), 0);
    mrc_pair_destroy(p);
  }
}

/* Losses, copies and flipped bits; refused sends number their packets anew. */
TEST(test_seal__a_bad_network) {
  for (uint8_t mode = 1; mode <= MODES; mode++) {
    CHECK_ROW(mode);
    struct mrc_pair *p =
        open_pair(.planes = 4, .paths = 4, .driver.refuse_one_in = 4, .path.delay_ns = 20 * US,
                  .path.loss_ppm = 20000, .path.duplicate_ppm = 50000, .path.corrupt_ppm = 20000,
                  .path.reorder_ppm = 100000, .path.reorder_ns = 50 * US);
    const int end = open_qp(p, .memory_bytes = 4000 * MTU, .seal = mode, .retry_exp = 25);
    for (int i = 0; i < 20; i++)
      CHECK_EQ(mrc_pair_write_imm(p, end, 100 * MTU + (uint32_t)i), 0);
    CHECK(mrc_pair_finish(p, 60 * SECOND));
    CHECK_EQ(succeeded(p, end), 20);
    CHECK(p->hosts[1].drops[MRC_DROP_SEAL] > 10);
    CHECK_EQ(p->hosts[1].drops[MRC_DROP_ICRC], 0);
    mrc_pair_destroy(p);
  }
}

/* Keys change every 64 packets, far more often than packets overtake each other. */
TEST(test_seal__over_many_epochs) {
  struct mrc_pair *p = open_pair(.planes = 2, .engine.seal_epoch_bits = 6);
  const int end = open_qp(p, .memory_bytes = 5000 * MTU, .seal = MRC_SEAL_AEAD, .mpr = 128);
  for (int i = 0; i < 100; i++) {
    CHECK_EQ(mrc_pair_write(p, end, 48 * MTU), 0);
    CHECK(mrc_pair_finish(p, 50 * MS));
  }
  CHECK_EQ(succeeded(p, end), 100);
  CHECK_EQ(p->hosts[1].drops[MRC_DROP_REPLAY], 0);
  mrc_pair_destroy(p);
}

TEST(test_seal__plain_packets_are_nothing) {
  struct mrc_pair *p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64, .seal = MRC_SEAL_AEAD);
  struct forge forge = make_forge(p, end, forged);
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SEAL);
  forge.wire.opcode = MRC_OP_ACK;
  forge.wire.aeth.syndrome = MRC_SYNDROME_NAK_REM_OP;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SEAL);
  forge.wire = (struct mrc_wire){
      .opcode = MRC_OP_ENDPOINT_REQUEST,
      .dest_qpn = MRC_ENDPOINT_QPN,
      .endpoint = {.op = MRC_ENDPOINT_PORT_STATUS, .port_status_mask = 1, .tsr = true}};
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
  run_for(p, 5 * MS);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
  mrc_pair_destroy(p);
}

TEST(test_seal__sealed_packets_for_a_plain_qp_are_nothing) {
  struct mrc_pair *p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64);
  struct forge forge = make_forge(p, end, forged);
  uint8_t bytes[FORGE_BYTES + MRC_SEALED_BYTES] = {0};
  forge.wire.sealed = true;
  const size_t n = encode_forge(&forge, bytes) - MRC_ICRC_BYTES + MRC_SEALED_BYTES;
  CHECK_EQ(mrc_pair_forge(p, 1, bytes, n, &forge.meta), MRC_DROP_SEAL);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  mrc_pair_destroy(p);
}

/* Every packet of a session with every byte changed, in turn: none is accepted. Nothing of it has
   arrived before, so that none is a duplicate. */
TEST(test_seal__no_byte_can_be_changed) {
  for (uint8_t mode = 1; mode <= MODES; mode++) {
    CHECK_ROW(mode);
    struct mrc_pair *p = open_pair(.planes = 2);
    const int end = open_qp(p, .memory_bytes = 64 * MTU, .seal = mode, .path_mtu = 256);
    audit_of(p, end)->unwatched = audit_of(p, p->ends[end]->peer)->unwatched = true;
    start_tap(p);
    CHECK_EQ(mrc_pair_write_imm(p, end, 300), 0);
    CHECK(mrc_pair_finish(p, 50 * MS));
    CHECK(p->n_tapped >= 4); /* two data packets and their answers */
    for (int i = 0; i < p->n_tapped; i++) {
      for (uint32_t at = 0; at < tap[i]->n; at++) {
        tap[i]->bytes[at] ^= 0x20;
        const int drop = arrive(p, tap[i]);
        CHECK(drop != MRC_DROP_NONE && drop != MRC_DROP_DUPLICATE && drop != MRC_DROP_STALE);
        tap[i]->bytes[at] ^= 0x20;
      }
    }
    CHECK_EQ(mrc_pair_info(p, end).state, MRC_QP_RTS);
    CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
    free_tap(p);
    mrc_pair_destroy(p);
  }
}

/* The EV is covered too: a packet that was moved to another path of the peer is refused. */
TEST(test_seal__a_packet_keeps_its_ev) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 64, .seal = MRC_SEAL_AUTH);
  audit_of(p, end)->unwatched = audit_of(p, p->ends[end]->peer)->unwatched = true;
  start_tap(p);
  CHECK_EQ(mrc_pair_write(p, end, 64), 0);
  CHECK(mrc_pair_finish(p, 50 * MS));
  for (int i = 0; i < p->n_tapped; i++) {
    tap[i]->meta.flow_label ^= 1;
    CHECK_EQ(arrive(p, tap[i]), MRC_DROP_SEAL);
  }
  free_tap(p);
  mrc_pair_destroy(p);
}

static struct mrc_qp_info state_of(const struct mrc_pair *p, int end) {
  return mrc_pair_info(p, end);
}

/* All packets of a session arrive once more, in order and backwards, while the QP is idle and while
   it works: nothing is placed, completed, blamed or reported twice. */
TEST(test_seal__what_arrives_again_changes_nothing) {
  for (int row = 0; row < 4; row++) {
    CHECK_ROW(row);
    struct mrc_pair *p = open_pair(.planes = 2);
    const int end = open_qp(p, .memory_bytes = 400 * MTU, .seal = MRC_SEAL_AEAD);
    const int peer = p->ends[end]->peer;
    start_tap(p);
    lose_data(p, 5, 3);
    mrc_pair_port_up(p, 0, 2, false);
    CHECK_EQ(mrc_pair_write_imm(p, end, 40 * MTU), 0);
    CHECK(mrc_pair_finish(p, 100 * MS));
    mrc_pair_port_up(p, 0, 2, true);
    run_for(p, 100 * MS);
    const int n = p->n_tapped;
    p->tap_room = 0;
    if (row & 1) CHECK_EQ(mrc_pair_write_imm(p, end, 100 * MTU), 0);
    const struct mrc_qp_info before = state_of(p, end), peers = state_of(p, peer);
    const int events = p->hosts[0].n_events + p->hosts[1].n_events;
    for (int i = 0; i < n; i++)
      arrive(p, tap[row & 2 ? n - 1 - i : i]);
    CHECK_EQ(state_of(p, end).retransmitted_packets, before.retransmitted_packets);
    CHECK_EQ(state_of(p, peer).received_bytes, peers.received_bytes);
    CHECK_EQ(p->hosts[0].n_events + p->hosts[1].n_events, events);
    CHECK(mrc_pair_finish(p, 100 * MS));
    run_for(p, 100 * MS);
    CHECK_EQ(succeeded(p, end), row & 1 ? 2 : 1);
    CHECK_EQ(mrc_pair_info(p, end).state, MRC_QP_RTS);
    p->n_tapped = n;
    free_tap(p);
    mrc_pair_destroy(p);
  }
}

/* A lap of PSNs later an old packet would be new again, but its epoch is over. */
TEST(test_seal__old_packets_are_refused) {
  struct mrc_pair *p = open_pair(.engine.seal_epoch_bits = 6);
  const int end = open_qp(p, .memory_bytes = 500 * MTU, .seal = MRC_SEAL_AEAD, .mpr = 128);
  start_tap(p);
  CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
  CHECK(mrc_pair_finish(p, 50 * MS));
  const int n = p->n_tapped;
  p->tap_room = 0;
  for (int i = 0; i < 10; i++) {
    CHECK_EQ(mrc_pair_write(p, end, 40 * MTU), 0);
    CHECK(mrc_pair_finish(p, 50 * MS));
  }
  for (int i = 0; i < n; i++)
    if (tap[i]->to == 1) CHECK_EQ(arrive(p, tap[i]), MRC_DROP_REPLAY);
  p->n_tapped = n;
  free_tap(p);
  mrc_pair_destroy(p);
}

/* Probes and port states of a sealed QP are sealed as well, before the QP may send. */
TEST(test_seal__paths_are_proved) {
  struct mrc_pair *p = open_pair(.planes = 3, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 40 * MTU, .seal = MRC_SEAL_AEAD, .probe = true);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_TX_EV_PROBES), 6);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PROBE, 0), 6);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 50 * MS);
  CHECK_EQ(n_reasons(p, 1, MRC_EVENT_PORT, 0, MRC_REASON_PEER_PORT), 1);
  CHECK_EQ(mrc_pair_write(p, end, 40 * MTU), 0);
  CHECK(mrc_pair_finish(p, 50 * MS));
  mrc_pair_destroy(p);
}

/* A sealed and a plain QP between the same hosts; the plain one says nothing for the sealed one. */
TEST(test_seal__beside_a_plain_qp) {
  struct mrc_pair *p = open_pair(.planes = 2);
  const int sealed = open_qp(p, .memory_bytes = 40 * MTU, .seal = MRC_SEAL_AEAD);
  const int plain = open_qp(p, .memory_bytes = 40 * MTU);
  struct forge forge = make_forge(p, plain, forged);
  forge.wire = (struct mrc_wire){
      .opcode = MRC_OP_ENDPOINT_REQUEST,
      .dest_qpn = MRC_ENDPOINT_QPN,
      .endpoint = {.op = MRC_ENDPOINT_PORT_STATUS, .port_status_mask = 1, .tsr = true}};
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_NONE); /* believed of the plain one, until proved */
  run_for(p, MS);
  CHECK_EQ(n_reasons(p, 1, MRC_EVENT_PORT, 0, MRC_REASON_PEER_PORT), 1);
  audit_of(p, plain)->unwatched = false;
  CHECK_EQ(mrc_pair_write(p, sealed, 40 * MTU), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  mrc_pair_destroy(p);
}

TEST(test_set_seal__arguments) {
  const struct mrc_engine_config plain = {.seed = 1};
  const struct mrc_qp_create_attr qp = {.qpn = 7, .sq_depth = 1, .mpr = 128, .max_wimm = 1};
  struct mrc_seal_attr attr = {.mode = MRC_SEAL_AEAD, .peer_qpn = 9};
  mrc_engine *engine = mrc_engine_create(&plain);
  CHECK_EQ(mrc_qp_create(engine, &qp), 0);
  CHECK_EQ(mrc_qp_set_seal(engine, 8, &attr), -ENOENT);
  CHECK_EQ(mrc_qp_set_seal(engine, 7, &attr), -EINVAL); /* in RESET */
  CHECK_EQ(mrc_qp_modify(engine, 7, MRC_QP_INIT, NULL, NULL, 0), 0);
  CHECK_EQ(mrc_qp_set_seal(engine, 7, &attr), -ENOTSUP);
  mrc_engine_destroy(engine);
  const struct mrc_engine_config able = {.seed = 1, .aead = &mrc_sealer, .seal_epoch_bits = 10};
  engine = mrc_engine_create(&able);
  CHECK_EQ(mrc_qp_create(engine, &qp), 0);
  CHECK_EQ(mrc_qp_modify(engine, 7, MRC_QP_INIT, NULL, NULL, 0), 0);
  attr.mode = MRC_SEAL_NONE;
  CHECK_EQ(mrc_qp_set_seal(engine, 7, &attr), -EINVAL);
  attr.mode = MRC_SEAL_AEAD;
  attr.peer_qpn = MRC_ENDPOINT_QPN;
  CHECK_EQ(mrc_qp_set_seal(engine, 7, &attr), -EINVAL);
  attr.peer_qpn = 9;
  CHECK_EQ(mrc_qp_set_seal(engine, 7, &attr), 0);
  CHECK_EQ(mrc_qp_set_seal(engine, 7, &attr), -EINVAL); /* once */
  mrc_engine_destroy(engine);
}
