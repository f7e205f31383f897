/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariant: a sealed QP takes no packet but those that its peer has sealed, as they were; whatever
 * else arrives is dropped, changes no memory, and does not end the QP.
 *
 * The input is a byte of configuration and a stream of operations: a packet of any bytes, or one
 * that the peer seals, with some of its bytes changed.
 */
#include <stdbool.h>
#include <string.h>

#include "core/base.h"
#include "core/seal.h"
#include "fuzz.h"
#include "mrc.h"
#include "virtual/sealer.h"

enum { QPN = 0x100, PEER_QPN = 0x200, MEMORY = 4096, RKEY = 2, MOST = 512 };
#define SPORT 50001u

static struct fuzz_input input;
static uint8_t target[MEMORY], expected[MEMORY];

static uint64_t take(size_t n) { return fuzz_take(&input, n); }

static const struct mrc_meta from_peer = {.src = {0xFD, [15] = 1},
                                          .dst = {0xFD, [15] = 2},
                                          .sport = SPORT,
                                          .dport = MRC_UDP_PORT,
                                          .family = 6,
                                          .port = 1};

static mrc_engine *start(const struct mrc_seal_attr *seal) {
  const struct mrc_engine_config config = {
      .seed = 1, .max_qps = 1, .trace_entries = 64, .seal_epoch_bits = 6, .aead = &mrc_sealer};
  const struct mrc_qp_attr attr = {
      .create = {.qpn = QPN, .sq_depth = 1, .mpr = 128, .max_wimm = 1},
      .rtr = {.dest_qpn = PEER_QPN},
      .rts = {.path_mtu = 256, .peer_mpr = 128, .peer_max_wimm = 1, .timeout = 14}};
  const struct mrc_ev_attr ev = {.src = {0xFD, [15] = 2},
                                 .dst = {0xFD, [15] = 1},
                                 .ev = 50002u << 16,
                                 .dport = MRC_UDP_PORT,
                                 .port = 1,
                                 .family = 6};
  const struct mrc_peer_source source = {.address = {0xFD, [15] = 1}, .sport = SPORT};
  mrc_engine *engine = mrc_engine_create(&config);
  mrc_assert(engine != NULL);
  mrc_assert(mrc_mr_register(engine, (uintptr_t)target, MEMORY, RKEY, MRC_ACCESS_REMOTE_WRITE, 0) ==
             0);
  mrc_assert(mrc_qp_create(engine, &attr.create) == 0);
  mrc_assert(mrc_qp_modify(engine, QPN, MRC_QP_INIT, NULL, NULL, 1) == 0);
  mrc_assert(mrc_qp_set_seal(engine, QPN, seal) == 0);
  mrc_assert(mrc_qp_set_evs(engine, QPN, &ev, 1) == 0);
  mrc_assert(mrc_qp_set_peer(engine, QPN, &source, 1) == 0);
  mrc_assert(mrc_qp_modify(engine, QPN, MRC_QP_RTR, &attr.rtr, NULL, 1) == 0);
  mrc_assert(mrc_qp_modify(engine, QPN, MRC_QP_RTS, NULL, &attr.rts, 1) == 0);
  return engine;
}

/* The peer's next write of one packet, sealed; returns its size. */
static size_t seal_write(struct mrc_seal *seal, uint32_t psn, uint8_t *packet) {
  const uint32_t n = (uint32_t)take(1), at = (uint32_t)take(1) * 8;
  uint8_t payload[256], header[MRC_MAX_HEADER], trailer[32];
  memset(payload, (uint8_t)take(1), sizeof payload);
  if (n == 0) return 0;
  const struct mrc_wire wire = {.opcode = MRC_OP_WRITE_ONLY,
                                .sealed = true,
                                .pad = (uint8_t)(-n & 3u),
                                .dest_qpn = QPN,
                                .psn = psn,
                                .rqmsn = (uint16_t)psn,
                                .va = (uintptr_t)target + at,
                                .rkey = RKEY,
                                .dma_bytes = n};
  const struct mrc_sealing sealing = {.header = header,
                                      .header_bytes = (uint32_t)mrc_wire_encode(&wire, header),
                                      .payload = payload,
                                      .payload_bytes = n,
                                      .pad = wire.pad,
                                      .ev = SPORT << 16};
  const size_t covered = sealing.header_bytes + n;
  memcpy(packet, header, sealing.header_bytes);
  memcpy(packet + sealing.header_bytes, payload, n);
  mrc_seal_close(seal, &sealing, trailer, seal->mode == MRC_SEAL_AEAD ? packet : NULL);
  if (seal->mode == MRC_SEAL_AUTH) memcpy(packet + covered, trailer, wire.pad + MRC_SEALED_BYTES);
  memset(expected + at, payload[0], n); /* if it is accepted */
  return covered + wire.pad + MRC_SEALED_BYTES;
}

static int receive(mrc_engine *engine, uint8_t *packet, size_t n) {
  return mrc_engine_receive(engine, packet, n, n, &from_peer, 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  input = (struct fuzz_input){data, size};
  memset(target, 0, sizeof target);
  memset(expected, 0, sizeof expected);
  const struct mrc_seal_attr ours = {
      .mode = take(1) & 1 ? MRC_SEAL_AEAD : MRC_SEAL_AUTH, .peer_qpn = PEER_QPN, .send = {1}};
  struct mrc_seal_attr theirs = {.mode = ours.mode, .peer_qpn = QPN};
  memcpy(theirs.receive, ours.send, sizeof theirs.receive);
  mrc_engine *engine = start(&ours);
  struct mrc_seal *peer = mrc_seal_new(&mrc_sealer, PEER_QPN, &theirs, 6);
  uint8_t packet[MOST], whole[MOST], before[MEMORY];
  for (uint32_t psn = 0; input.n > 0;) {
    const uint8_t operation = (uint8_t)take(1);
    memcpy(before, expected, sizeof before);
    size_t n = operation & 1 ? seal_write(peer, psn, packet) : 0;
    const bool sealed = n > 0;
    if (!sealed) n = take(1);
    for (size_t i = 0; i < n && !sealed; i++)
      packet[i] = (uint8_t)take(1);
    memcpy(whole, packet, n);
    for (uint32_t flips = operation >> 1 & 3; flips > 0 && n > 0; flips--) {
      const uint8_t bits = (uint8_t)take(1);
      packet[take(2) % n] ^= bits;
    }
    const bool valid = sealed && memcmp(packet, whole, n) == 0;
    const int drop = receive(engine, packet, n);
    mrc_assert((drop == MRC_DROP_NONE) == valid);
    psn += valid;
    if (!valid) memcpy(expected, before, sizeof expected);
    mrc_assert(memcmp(target, expected, sizeof target) == 0);
  }
  struct mrc_qp_info info;
  mrc_assert(mrc_qp_query(engine, QPN, &info) == 0 && info.state == MRC_QP_RTS);
  mrc_seal_free(peer);
  mrc_engine_destroy(engine);
  return 0;
}
