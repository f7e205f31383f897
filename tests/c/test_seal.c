/* SPDX-License-Identifier: Apache-2.0 */
#include "forge.h"

#include <endian.h>
#include <errno.h>

#include "core/base.h"
#include "core/seal.h"
#include "pair/connect.h"
#include "virtual/sealer.h"

/* ---- sealed QPs ---- */

/* Sealed QPs: bytes arrive as on plain ones, and of what others change, forge or send again nothing
   has an effect. The simulated cipher asserts that no nonce is used twice. */

enum { MODES = 2 };

/* A packet that was seen on the way arrives at its destination. */
static int arrive(struct mrc_pair *p, const struct mrc_datagram *packet) {
  return mrc_pair_forge(p, packet->to, packet->bytes, packet->n, &packet->meta);
}

TEST(test_seal__writes_arrive) {
  EACH_OF(int, row, 0, 2 * MODES) {
    PAIR p = open_pair(.planes = 2, .family = row & 1 ? 4 : 6);
    const int end = open_qp(p, .memory_bytes = 200 * MTU, .seal = (uint8_t)(1 + row / 2));
    CHECK_EQ(mrc_pair_write(p, end, 100 * MTU + 3), 0);
    CHECK_EQ(mrc_pair_write_imm(p, end, 7), 0);
    WRITE_IMM_AND_WAIT(p, end, 0, 50 * MS);
    CHECK_EQ(succeeded(p, end), 3);
    CHECK_EQ(retransmitted(p, end), 0);
  }
}

/* Losses, copies and flipped bits; refused sends number their packets anew. */
TEST(test_seal__a_bad_network) {
  EACH_OF(uint8_t, mode, 1, MODES + 1) {
    PAIR p =
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
  }
}

/* Keys change every 64 packets, far more often than packets overtake each other. */
TEST(test_seal__over_many_epochs) {
  PAIR p = open_pair(.planes = 2, .engine.seal_epoch_bits = 6);
  const int end = open_qp(p, .memory_bytes = 5000 * MTU, .seal = MRC_SEAL_AEAD, .mpr = 128);
  for (int i = 0; i < 100; i++)
    WRITE_AND_WAIT(p, end, 48 * MTU, 50 * MS);
  CHECK_EQ(succeeded(p, end), 100);
  CHECK_EQ(p->hosts[1].drops[MRC_DROP_REPLAY], 0);
}

TEST(test_seal__plain_packets_are_nothing) {
  PAIR p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64, .seal = MRC_SEAL_AEAD);
  struct forge forge = make_forge(p, end);
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SEAL);
  forge.wire.opcode = MRC_OP_ACK;
  forge.wire.aeth.syndrome = MRC_SYNDROME_NAK_REM_OP;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SEAL);
  set_wire(forge, .opcode = MRC_OP_ENDPOINT_REQUEST, .dest_qpn = MRC_ENDPOINT_QPN,
           .endpoint = {.op = MRC_ENDPOINT_PORT_STATUS, .port_status_mask = 1, .tsr = true});
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
  run_for(p, 5 * MS);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
}

TEST(test_seal__sealed_packets_for_a_plain_qp_are_nothing) {
  PAIR p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64);
  struct forge forge = make_forge(p, end);
  uint8_t bytes[FORGE_BYTES + MRC_SEALED_BYTES] = {0};
  forge.wire.sealed = true;
  const size_t n = encode_forge(&forge, bytes) - MRC_ICRC_BYTES + MRC_SEALED_BYTES;
  CHECK_EQ(mrc_pair_forge(p, 1, bytes, n, &forge.meta), MRC_DROP_SEAL);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
}

/* Every packet of a session with every byte changed, in turn: none is accepted. Nothing of it has
   arrived before, so that none is a duplicate. */
TEST(test_seal__no_byte_can_be_changed) {
  EACH_OF(uint8_t, mode, 1, MODES + 1) {
    PAIR p = open_pair(.planes = 2);
    const int end = open_qp(p, .memory_bytes = 64 * MTU, .seal = mode, .path_mtu = 256);
    audit_of(p, end)->unwatched = audit_of(p, p->ends[end]->peer)->unwatched = true;
    p->tap_room = MRC_PAIR_TAP;
    WRITE_IMM_AND_WAIT(p, end, 300, 50 * MS);
    CHECK(p->n_tapped >= 4); /* two data packets and their answers */
    for (int i = 0; i < p->n_tapped; i++) {
      for (uint32_t at = 0; at < p->tap[i]->n; at++) {
        p->tap[i]->bytes[at] ^= 0x20;
        const int drop = arrive(p, p->tap[i]);
        CHECK(drop != MRC_DROP_NONE && drop != MRC_DROP_DUPLICATE && drop != MRC_DROP_STALE);
        p->tap[i]->bytes[at] ^= 0x20;
      }
    }
    CHECK_EQ(mrc_pair_info(p, end).state, MRC_QP_RTS);
    CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
  }
}

/* The EV is covered too: a packet that was moved to another path of the peer is refused. */
TEST(test_seal__a_packet_keeps_its_ev) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 64, .seal = MRC_SEAL_AUTH);
  audit_of(p, end)->unwatched = audit_of(p, p->ends[end]->peer)->unwatched = true;
  p->tap_room = MRC_PAIR_TAP;
  WRITE_AND_WAIT(p, end, 64, 50 * MS);
  for (int i = 0; i < p->n_tapped; i++) {
    p->tap[i]->meta.flow_label ^= 1;
    CHECK_EQ(arrive(p, p->tap[i]), MRC_DROP_SEAL);
  }
}

/* All packets of a session arrive once more, in order and backwards, while the QP is idle and while
   it works: nothing is placed, completed, blamed or reported twice. */
TEST(test_seal__what_arrives_again_changes_nothing) {
  EACH_OF(int, row, 0, 4) {
    PAIR p = open_pair(.planes = 2);
    const int end = open_qp(p, .memory_bytes = 400 * MTU, .seal = MRC_SEAL_AEAD);
    const int peer = p->ends[end]->peer;
    p->tap_room = MRC_PAIR_TAP;
    lose_data(p, 5, 3);
    mrc_pair_port_up(p, 0, 2, false);
    WRITE_IMM_AND_WAIT(p, end, 40 * MTU, 100 * MS);
    mrc_pair_port_up(p, 0, 2, true);
    run_for(p, 100 * MS);
    const int n = p->n_tapped;
    p->tap_room = 0;
    if (row & 1) CHECK_EQ(mrc_pair_write_imm(p, end, 100 * MTU), 0);
    const struct mrc_qp_info before = mrc_pair_info(p, end), peers = mrc_pair_info(p, peer);
    const int events = p->hosts[0].n_events + p->hosts[1].n_events;
    for (int i = 0; i < n; i++)
      arrive(p, p->tap[row & 2 ? n - 1 - i : i]);
    CHECK_EQ(mrc_pair_info(p, end).retransmitted_packets, before.retransmitted_packets);
    CHECK_EQ(mrc_pair_info(p, peer).received_bytes, peers.received_bytes);
    CHECK_EQ(p->hosts[0].n_events + p->hosts[1].n_events, events);
    CHECK(mrc_pair_finish(p, 100 * MS));
    run_for(p, 100 * MS);
    CHECK_EQ(succeeded(p, end), row & 1 ? 2 : 1);
    CHECK_EQ(mrc_pair_info(p, end).state, MRC_QP_RTS);
  }
}

/* A lap of PSNs later an old packet would be new again, but its epoch is over. */
TEST(test_seal__old_packets_are_refused) {
  PAIR p = open_pair(.engine.seal_epoch_bits = 6);
  const int end = open_qp(p, .memory_bytes = 500 * MTU, .seal = MRC_SEAL_AEAD, .mpr = 128);
  p->tap_room = MRC_PAIR_TAP;
  WRITE_AND_WAIT(p, end, MTU, 50 * MS);
  const int n = p->n_tapped;
  p->tap_room = 0;
  for (int i = 0; i < 10; i++)
    WRITE_AND_WAIT(p, end, 40 * MTU, 50 * MS);
  for (int i = 0; i < n; i++)
    if (p->tap[i]->to == 1) CHECK_EQ(arrive(p, p->tap[i]), MRC_DROP_REPLAY);
}

/* Probes and port states of a sealed QP are sealed as well, before the QP may send. */
TEST(test_seal__paths_are_proved) {
  PAIR p = open_pair(.planes = 3, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 40 * MTU, .seal = MRC_SEAL_AEAD, .probe = true);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_TX_EV_PROBES), 6);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PROBE, 0), 6);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 50 * MS);
  CHECK_EQ(n_reasons(p, 1, MRC_EVENT_PORT, 0, MRC_REASON_PEER_PORT), 1);
  WRITE_AND_WAIT(p, end, 40 * MTU, 50 * MS);
}

/* A sealed and a plain QP between the same hosts; the plain one says nothing for the sealed one. */
TEST(test_seal__beside_a_plain_qp) {
  PAIR p = open_pair(.planes = 2);
  const int sealed = open_qp(p, .memory_bytes = 40 * MTU, .seal = MRC_SEAL_AEAD);
  const int plain = open_qp(p, .memory_bytes = 40 * MTU);
  struct forge forge = make_forge(p, plain);
  set_wire(forge, .opcode = MRC_OP_ENDPOINT_REQUEST, .dest_qpn = MRC_ENDPOINT_QPN,
           .endpoint = {.op = MRC_ENDPOINT_PORT_STATUS, .port_status_mask = 1, .tsr = true});
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_NONE); /* believed of the plain one, until proved */
  run_for(p, MS);
  CHECK_EQ(n_reasons(p, 1, MRC_EVENT_PORT, 0, MRC_REASON_PEER_PORT), 1);
  audit_of(p, plain)->unwatched = false;
  WRITE_AND_WAIT(p, sealed, 40 * MTU, 100 * MS);
}

TEST(test_set_seal__arguments) {
  const struct mrc_engine_config plain = {.seed = 1};
  const struct mrc_qp_create_attr qp = {.qpn = 7, .sq_depth = 1, .mpr = 128, .max_wimm = 1};
  struct mrc_seal_attr attr = {.mode = MRC_SEAL_AEAD, .peer_qpn = 9};
  ENGINE engine = mrc_engine_create(&plain);
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
}

/* ---- attacks ---- */

/* Attacks on sealed QPs by who knows all numbers in the headers but no key. */

enum { FORGERIES = 100000, MOST_BYTES = 256 };

/* A trimmed packet has lost its tag, so it is a hint only: the window asks for the packets again,
   and the true ones count. */
TEST(test_trimmed__forged_ones_are_hints) {
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = 100 * MTU, .seal = MRC_SEAL_AEAD);
  struct forge forge = make_forge(p, end);
  forge.wire.sealed = true;
  forge.meta.trimmed = true;
  for (uint32_t psn = 0; psn < 50; psn++) {
    forge.wire.psn = psn;
    uint8_t bytes[MOST_BYTES];
    const size_t n = mrc_wire_encode(&forge.wire, bytes);
    CHECK_EQ(mrc_pair_forge(p, 1, bytes, n, &forge.meta), MRC_DROP_TRIMMED);
  }
  run_for(p, MS);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).received_bytes, 0);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  WRITE_AND_WAIT(p, end, 100 * MTU, 100 * MS);
  CHECK_EQ(succeeded(p, end), 1);
  CHECK_EQ(mrc_pair_info(p, end).state, MRC_QP_RTS);
}

/* An acknowledgement sealed by `out`, and what `in` says of it. */
static size_t seal_ack(struct mrc_seal *out, uint8_t *bytes) {
  const struct mrc_wire wire = {
      .opcode = MRC_OP_ACK, .dest_qpn = 9, .sealed = true, .aeth.syndrome = MRC_SYNDROME_ACK};
  const size_t n = mrc_wire_encode(&wire, bytes);
  const struct mrc_sealing packet = {.header = bytes, .header_bytes = (uint32_t)n};
  mrc_seal_close(out, &packet, bytes + n, NULL);
  return n + MRC_SEALED_BYTES;
}

static int open_ack_at(struct mrc_seal *in, const uint8_t *bytes, size_t n, uint64_t now_ns) {
  uint8_t arrived[MOST_BYTES];
  struct mrc_wire wire;
  uint64_t counter;
  memcpy(arrived, bytes, n);
  CHECK_EQ(mrc_wire_decode(arrived, n, false, &wire), 0);
  return mrc_seal_open(in, arrived, n, 0, &wire, &counter, now_ns);
}

static int open_ack(struct mrc_seal *in, const uint8_t *bytes, size_t n) {
  return open_ack_at(in, bytes, n, SECOND);
}

/* The auditor of nonces remembers fewer than this test skips. */
static void mac_anything(void *key, const uint8_t *nonce, const struct mrc_part parts[3],
                         uint8_t *tag) {
  (void)key, (void)nonce, (void)parts;
  memset(tag, 7, MRC_TAG_BYTES);
}

static bool check_last(void *key, const uint8_t *nonce, struct mrc_part whole, const uint8_t *tag) {
  (void)key, (void)nonce, (void)whole;
  return tag[MRC_TAG_BYTES - 1] == 7;
}

/* The seal of one end: of QP 8, which sends, or of QP 9. It is freed at the end of the block. */
#define SEAL FREED_BY(free_seal) struct mrc_seal
static struct mrc_seal *open_seal(const struct mrc_aead *aead, uint32_t qpn, uint32_t epoch_bits) {
  const uint8_t send = qpn == 8 ? 1 : 2;
  const struct mrc_seal_attr attr = {
      .mode = MRC_SEAL_AUTH, .peer_qpn = 17 - qpn, .send = {send}, .receive = {3 - send}};
  struct mrc_seal *seal = mrc_seal_new(aead, qpn, &attr, epoch_bits);
  CHECK(seal != NULL);
  return seal;
}

static void free_seal(struct mrc_seal **seal) { mrc_seal_free(*seal); }

/* Within an epoch the distance of the counter alone makes a packet too old: long before the PSNs
   come round. */
TEST(test_replay__ends_at_its_distance) {
  struct mrc_aead aead = mrc_sealer;
  aead.mac = mac_anything;
  aead.check = check_last;
  SEAL *out = open_seal(&aead, 8, 30), *in = open_seal(&aead, 9, 30);
  uint8_t first[MOST_BYTES], second[MOST_BYTES], newest[MOST_BYTES];
  const size_t n = seal_ack(out, first);
  seal_ack(out, second);
  CHECK_EQ(open_ack(in, first, n), 0);
  CHECK_EQ(open_ack(in, first, n), 0); /* acknowledgements may be repeated */
  out->sent = MRC_SEAL_REPLAY;
  seal_ack(out, newest);
  CHECK_EQ(open_ack(in, newest, n), 0);
  CHECK_EQ(open_ack(in, first, n), MRC_DROP_REPLAY);
  CHECK_EQ(open_ack(in, second, n), 0);
  newest[n - 1] ^= 1; /* a forgery moves no limit */
  CHECK_EQ(open_ack(in, newest, n), MRC_DROP_SEAL);
  out->sent = 1 << 29;
  seal_ack(out, newest);
  newest[n - 1] ^= 1;
  CHECK_EQ(open_ack(in, newest, n), MRC_DROP_SEAL);
  CHECK_EQ(open_ack(in, second, n), 0);
}

static int n_hashes;

static void counting_hash(const uint8_t *message, size_t n, uint8_t digest[MRC_DIGEST_BYTES]) {
  n_hashes++;
  mrc_sealer.hash(message, n, digest);
}

/* All packets of whole epochs got lost, so that the receiver has no key of the next ones. */
TEST(test_epochs__that_were_lost) {
  for (uint32_t lost = 1; lost <= 300; lost += 13) {
    CHECK_ROW((int)lost);
    SEAL *out = open_seal(&mrc_sealer, 8, 6), *in = open_seal(&mrc_sealer, 9, 6);
    uint8_t bytes[MOST_BYTES], before[MOST_BYTES];
    uint64_t now_ns = SECOND;
    size_t n = seal_ack(out, bytes);
    CHECK_EQ(open_ack_at(in, bytes, n, now_ns), 0);
    for (uint32_t i = 1; i < 64 * lost; i++)
      n = seal_ack(out, before);
    n = seal_ack(out, bytes);
    if (lost > 2)
      CHECK_EQ(open_ack_at(in, bytes, n, now_ns), MRC_DROP_REPLAY); /* too many for now */
    now_ns += 64 * lost * MRC_SEAL_PACKET_NS;
    CHECK_EQ(open_ack_at(in, bytes, n, now_ns), 0);
    if (lost > 2) CHECK_EQ(open_ack_at(in, before, n, now_ns), MRC_DROP_REPLAY); /* it has no key */
    for (int i = 0; i < 200; i++) {                                              /* as ever */
      n = seal_ack(out, bytes);
      CHECK_EQ(open_ack_at(in, bytes, n, now_ns), 0);
    }
  }
}

/* The receiver skips epochs and never has their keys. Memory without a key holds zeros, which
   everybody knows. */
TEST(test_epochs__without_a_key) {
  EACH_OF(uint32_t, lost, 2, 7) {
    SEAL *out = open_seal(&mrc_sealer, 8, 6), *in = open_seal(&mrc_sealer, 9, 6);
    uint8_t bytes[MOST_BYTES];
    size_t n = seal_ack(out, bytes);
    CHECK_EQ(open_ack_at(in, bytes, n, SECOND), 0);
    for (uint32_t i = 0; i < 64 * lost; i++)
      n = seal_ack(out, bytes);
    CHECK_EQ(open_ack_at(in, bytes, n, 2 * SECOND), 0);
    void *zeros = mrc_sealer.reserve(mrc_sealer.key_bytes);
    const uint64_t counter = 64 * lost - 1; /* the last one of the epoch before */
    const struct mrc_seal_stamp seal = {.mode = MRC_SEAL_AUTH, .qpn = 9, .counter = counter};
    mrc_seal_encode(&seal, bytes + n - MRC_SEALED_BYTES);
    const uint64_t nonce[2] = {htobe64(counter) << 32, htobe64(counter) >> 32};
    const struct mrc_part parts[3] = {{bytes, n - MRC_TAG_BYTES}};
    mrc_sealer.mac(zeros, (const uint8_t *)nonce, parts, bytes + n - MRC_TAG_BYTES);
    CHECK(open_ack_at(in, bytes, n, 2 * SECOND) != 0);
    mrc_sealer.release(zeros, mrc_sealer.key_bytes);
  }
}

/* Replays of an old packet do not keep the receiver from the epoch of its sender. */
TEST(test_epochs__that_were_lost_beside_replays) {
  enum { LOST = 100, REPLAYS = 100 };
  SEAL *out = open_seal(&mrc_sealer, 8, 6), *in = open_seal(&mrc_sealer, 9, 6);
  uint8_t old[MOST_BYTES], bytes[MOST_BYTES];
  size_t n = seal_ack(out, old);
  uint64_t now_ns = SECOND;
  for (uint32_t i = 0; i < 64 * LOST; i++)
    seal_ack(out, bytes);
  for (int i = 0; i < REPLAYS; i++, now_ns += 64 * LOST * MRC_SEAL_PACKET_NS / REPLAYS)
    CHECK_EQ(open_ack_at(in, old, n, now_ns), 0);
  CHECK_EQ(open_ack_at(in, bytes, n, now_ns), 0);
}

/* Anybody can name a later epoch: that costs a few looks a second, and changes nothing. */
TEST(test_epochs__that_are_invented) {
  struct mrc_aead aead = mrc_sealer;
  aead.hash = counting_hash;
  SEAL *out = open_seal(&aead, 8, MRC_SEAL_EPOCH_BITS),
       *in = open_seal(&aead, 9, MRC_SEAL_EPOCH_BITS);
  uint8_t good[MOST_BYTES], forged[MOST_BYTES];
  uint64_t now_ns = SECOND;
  const size_t n = seal_ack(out, good);
  CHECK_EQ(open_ack_at(in, good, n, now_ns), 0);
  n_hashes = 0;
  struct mrc_prng prng = {1};
  for (int i = 0; i < FORGERIES; i++, now_ns += 10000) { /* a second in all */
    memcpy(forged, good, n);
    const struct mrc_seal_stamp seal = {
        .mode = MRC_SEAL_AUTH, .qpn = 9, .counter = mrc_prng_next(&prng) >> 16};
    mrc_seal_encode(&seal, forged + n - MRC_SEALED_BYTES);
    CHECK(open_ack_at(in, forged, n, now_ns) != 0);
    if (i % 100 == 0) CHECK_EQ(open_ack_at(in, good, n, now_ns), 0);
  }
  CHECK(n_hashes <= 5 * 6 * 2); /* three keys of two hashes, of the next epochs only */
  now_ns += 100 * SECOND;       /* now it may have come far */
  n_hashes = 0;
  const struct mrc_seal_stamp far = {
      .mode = MRC_SEAL_AUTH, .qpn = 9, .counter = (uint64_t)900 << MRC_SEAL_EPOCH_BITS};
  mrc_seal_encode(&far, forged + n - MRC_SEALED_BYTES);
  for (int i = 0; i < 1000; i++)
    CHECK(open_ack_at(in, forged, n, now_ns) != 0);
  CHECK(n_hashes > 0 && n_hashes <= 2 * (900 + 3));
  CHECK_EQ(open_ack_at(in, good, n, now_ns), 0);
}
