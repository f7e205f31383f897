/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire.h"

#include <stdlib.h>

#include "check.h"
#include "core/base.h"

enum { ROOM = 128 };

/* One valid packet of each opcode, and of the variants that change the length or the layout. */
static const struct mrc_wire samples[] = {
    {.opcode = MRC_OP_WRITE_FIRST, .dma_bytes = 4096, .payload_bytes = 4, .psn = 0xFFFFFF},
    {.opcode = MRC_OP_WRITE_MIDDLE, .dma_bytes = 4096, .payload_bytes = 4, .ts = true},
    {.opcode = MRC_OP_WRITE_LAST, .dma_bytes = 4096, .payload_bytes = 1, .pad = 3, .rtx = true},
    {.opcode = MRC_OP_WRITE_LAST_IMM, .dma_bytes = 4096, .payload_bytes = 2, .pad = 2, .imm = 7},
    {.opcode = MRC_OP_WRITE_ONLY},
    {.opcode = MRC_OP_WRITE_ONLY, .dma_bytes = 5, .payload_bytes = 5, .pad = 3, .ack_req = true},
    {.opcode = MRC_OP_WRITE_ONLY_IMM, .ts = true, .tsr = true, .imm = 0xFFFFFFFF},
    {.opcode = MRC_OP_ACK, .aeth = {MRC_SYNDROME_ACK, 0xFFFFFF}},
    {.opcode = MRC_OP_ENDPOINT_REQUEST, .dest_qpn = MRC_ENDPOINT_QPN, .psn = 0xFFFF},
    {.opcode = MRC_OP_ENDPOINT_RESPONSE, .dest_qpn = MRC_ENDPOINT_QPN, .endpoint = {.op = 1}},
    {.opcode = MRC_OP_SACK, .sack = {.ack_psn_offset = -1, .bitmap = UINT64_MAX}},
    {.opcode = MRC_OP_SACK, .sack = {.cc_type = MRC_CC_TYPE_TIMES, .sent_timestamp = 0xFFFF}},
    {.opcode = MRC_OP_NACK, .nack = {.reason = MRC_NACK_NO_RESOURCE, .cc_type = 2}},
    {.opcode = MRC_OP_PROBE, .probe = {.probe_id = 0xFFFF, .tsr = true}},
};
enum { SAMPLES = sizeof samples / sizeof samples[0] };

static const struct mrc_wire ev_probe = {.opcode = MRC_OP_ENDPOINT_REQUEST,
                                         .dest_qpn = MRC_ENDPOINT_QPN,
                                         .endpoint = {.op = MRC_ENDPOINT_EV_PROBE}};

/* The whole UDP payload: headers, payload of 0xA5, pad and ICRC of zeros. */
static size_t build(const struct mrc_wire *packet, uint8_t out[ROOM]) {
  memset(out, 0, ROOM);
  size_t header = mrc_wire_encode(packet, out);
  memset(out + header, 0xA5, packet->payload_bytes);
  return header + packet->payload_bytes + packet->pad + MRC_ICRC_BYTES;
}

/* Decodes a copy of exactly n bytes, so that the address sanitizer sees any read beyond them. */
static int decode(const uint8_t *bytes, size_t n, bool trimmed, struct mrc_wire *packet) {
  uint8_t *copy = malloc(n + 1); /* the byte before the packet; malloc(0) may give nothing */
  memcpy(copy + 1, bytes, n);
  int drop = mrc_wire_decode(copy + 1, n, trimmed, packet);
  if (drop == 0 && packet->payload != NULL)
    packet->payload = bytes + (packet->payload - (copy + 1));
  free(copy);
  return drop;
}

static int drop_of(const uint8_t *bytes, size_t n) {
  struct mrc_wire packet;
  return decode(bytes, n, false, &packet);
}

/* ---- Lengths ---- */

/* Every kind of packet and its fields: tests/wire/test_wire.py. */

TEST(test_decode__every_shorter_length_is_refused) {
  EACH_OF(size_t, i, 0, SAMPLES) {
    uint8_t bytes[ROOM];
    size_t n = build(&samples[i], bytes);
    size_t least = n - samples[i].payload_bytes - samples[i].pad;
    for (size_t shorter = 0; shorter < n; shorter++)
      CHECK_EQ(drop_of(bytes, shorter), shorter < least ? MRC_DROP_SHORT : MRC_DROP_LENGTH);
  }
}

TEST(test_decode__trailing_bytes_are_refused) {
  EACH_OF(size_t, i, 0, SAMPLES) {
    uint8_t bytes[ROOM];
    size_t n = build(&samples[i], bytes);
    bool part = mrc_opcode_is_data(samples[i].opcode) && samples[i].opcode < MRC_OP_WRITE_ONLY;
    for (size_t extra = 1; extra <= 8; extra++) {
      bool longer_part = part && extra % 4 == 0; /* still shorter than its message */
      CHECK_EQ(drop_of(bytes, n + extra), longer_part ? MRC_DROP_NONE : MRC_DROP_LENGTH);
    }
  }
}

TEST(test_decode__ev_probe_may_be_padded) {
  uint8_t bytes[ROOM];
  struct mrc_wire packet;
  size_t n = build(&ev_probe, bytes);
  for (size_t extra = 0; n + extra <= ROOM; extra++) {
    CHECK_EQ(decode(bytes, n + extra, false, &packet), MRC_DROP_NONE);
    CHECK_EQ(packet.payload_bytes, extra);
    CHECK_EQ(packet.endpoint.op, MRC_ENDPOINT_EV_PROBE);
  }
}

/* ---- Payload rules ---- */

TEST(test_decode__payload_fits_opcode_and_message) {
  static const struct {
    uint8_t opcode;
    uint32_t dma_bytes, payload_bytes;
    uint8_t pad;
    int drop;
  } rows[] = {
      {MRC_OP_WRITE_FIRST, 8, 4, 0, MRC_DROP_NONE},
      {MRC_OP_WRITE_FIRST, 8, 0, 0, MRC_DROP_LENGTH},
      {MRC_OP_WRITE_FIRST, 8, 8, 0, MRC_DROP_LENGTH}, /* a whole message must be an Only */
      {MRC_OP_WRITE_FIRST, 0, 4, 0, MRC_DROP_LENGTH},
      {MRC_OP_WRITE_MIDDLE, 8, 4, 0, MRC_DROP_NONE},
      {MRC_OP_WRITE_MIDDLE, 8, 0, 0, MRC_DROP_LENGTH},
      {MRC_OP_WRITE_LAST, 8, 1, 3, MRC_DROP_NONE},
      {MRC_OP_WRITE_LAST, 8, 0, 0, MRC_DROP_LENGTH},
      {MRC_OP_WRITE_LAST_IMM, 8, 7, 1, MRC_DROP_NONE},
      {MRC_OP_WRITE_LAST_IMM, 8, 0, 0, MRC_DROP_LENGTH},
      {MRC_OP_WRITE_ONLY, 0, 0, 0, MRC_DROP_NONE},
      {MRC_OP_WRITE_ONLY, 1, 0, 0, MRC_DROP_LENGTH},
      {MRC_OP_WRITE_ONLY, 6, 6, 2, MRC_DROP_NONE},
      {MRC_OP_WRITE_ONLY, 5, 6, 2, MRC_DROP_LENGTH},
      {MRC_OP_WRITE_ONLY, 7, 6, 2, MRC_DROP_LENGTH},
      {MRC_OP_WRITE_ONLY, 6, 6, 1, MRC_DROP_LENGTH}, /* the pad does not end on a word */
      {MRC_OP_WRITE_ONLY, UINT32_MAX, 4, 0, MRC_DROP_LENGTH},
      {MRC_OP_WRITE_ONLY_IMM, 0, 0, 0, MRC_DROP_NONE},
      {MRC_OP_WRITE_ONLY_IMM, 3, 3, 1, MRC_DROP_NONE},
  };
  EACH_ROW(i, rows) {
    uint8_t bytes[ROOM];
    size_t n = build(&(struct mrc_wire){.opcode = rows[i].opcode,
                                        .dma_bytes = rows[i].dma_bytes,
                                        .payload_bytes = rows[i].payload_bytes,
                                        .pad = rows[i].pad},
                     bytes);
    CHECK_EQ(drop_of(bytes, n), rows[i].drop);
  }
}

/* The message length equals the wrapped payload length of "minus pad" bytes. */
TEST(test_decode__pad_longer_than_the_payload) {
  EACH_OF(uint32_t, pad, 1, 4) {
    uint8_t bytes[ROOM];
    size_t n = build(&(struct mrc_wire){.opcode = MRC_OP_WRITE_ONLY, .dma_bytes = -pad}, bytes);
    bytes[1] = (uint8_t)(pad << 4);
    CHECK_EQ(drop_of(bytes, n), MRC_DROP_LENGTH);
  }
}

/* ---- Fields ---- */

static const struct mrc_wire *sample_of(uint8_t opcode) {
  for (size_t i = 0; i < SAMPLES; i++) {
    if (samples[i].opcode == opcode) return &samples[i];
  }
  return NULL;
}

/* Each byte for which the format forbids values. Offsets are from the start of the BTH. */
TEST(test_decode__forbidden_values) {
  static const struct {
    uint8_t opcode, offset, value;
    int drop;
  } rows[] = {
      {MRC_OP_WRITE_ONLY, 0, 0x0A, MRC_DROP_OPCODE}, /* a write of RC */
      {MRC_OP_WRITE_ONLY, 0, 0xC5, MRC_DROP_OPCODE},
      {MRC_OP_WRITE_ONLY, 0, 0xCC, MRC_DROP_OPCODE},
      {MRC_OP_WRITE_ONLY, 0, 0xDF, MRC_DROP_OPCODE},
      {MRC_OP_WRITE_ONLY, 0, 0xEA, MRC_DROP_OPCODE}, /* the opcode class after MRC's */
      {MRC_OP_WRITE_ONLY, 1, 0x01, MRC_DROP_SHORT},  /* sealed: too short for that */
      {MRC_OP_WRITE_ONLY, 1, 0x02, MRC_DROP_VERSION},
      {MRC_OP_WRITE_ONLY, 1, 0x04, MRC_DROP_VERSION},
      {MRC_OP_WRITE_ONLY, 1, 0x08, MRC_DROP_VERSION},
      {MRC_OP_WRITE_ONLY, 2, 0x7F, MRC_DROP_PKEY},
      {MRC_OP_WRITE_ONLY, 3, 0xFE, MRC_DROP_PKEY},
      {MRC_OP_WRITE_MIDDLE, 19, 0x00, MRC_DROP_FIELD}, /* ftype of the TSETH */
      {MRC_OP_WRITE_MIDDLE, 19, 0x02, MRC_DROP_FIELD},
      {MRC_OP_WRITE_MIDDLE, 19, 0x05, MRC_DROP_FIELD},
      {MRC_OP_WRITE_MIDDLE, 19, 0x09, MRC_DROP_FIELD},
      {MRC_OP_ACK, 1, 0x10, MRC_DROP_FIELD},  /* a pad without a payload */
      {MRC_OP_ACK, 8, 0x10, MRC_DROP_FIELD},  /* a TSETH where none is allowed */
      {MRC_OP_ACK, 12, 0x00, MRC_DROP_FIELD}, /* an ACK with credits */
      {MRC_OP_ACK, 12, 0x20, MRC_DROP_FIELD}, /* RNR, which MRC has not */
      {MRC_OP_ACK, 12, 0x60, MRC_DROP_FIELD}, /* PSN sequence error, nor that */
      {MRC_OP_ACK, 12, 0x64, MRC_DROP_FIELD},
      {MRC_OP_ACK, 12, 0x61, MRC_DROP_NONE},
      {MRC_OP_ACK, 12, 0x63, MRC_DROP_NONE},
      {MRC_OP_ENDPOINT_REQUEST, 7, 3, MRC_DROP_FIELD}, /* not to QPN 2 */
      {MRC_OP_ENDPOINT_REQUEST, 13, 2, MRC_DROP_FIELD},
      {MRC_OP_ENDPOINT_REQUEST, 13, 3, MRC_DROP_FIELD},
      {MRC_OP_ENDPOINT_REQUEST, 27, 0, MRC_DROP_FIELD},
      {MRC_OP_ENDPOINT_RESPONSE, 7, 0, MRC_DROP_FIELD},
      {MRC_OP_ENDPOINT_RESPONSE, 13, 0x08, MRC_DROP_FIELD},
      {MRC_OP_ENDPOINT_RESPONSE, 13, 0x0C, MRC_DROP_FIELD},
      {MRC_OP_ENDPOINT_RESPONSE, 13, 0x64, MRC_DROP_FIELD}, /* m = 3 */
      {MRC_OP_ENDPOINT_RESPONSE, 13, 0x44, MRC_DROP_NONE},
      {MRC_OP_SACK, 8, 0x10, MRC_DROP_FIELD},
      {MRC_OP_SACK, 12, 0x01, MRC_DROP_FIELD}, /* type and next header */
      {MRC_OP_SACK, 12, 0x10, MRC_DROP_FIELD},
      {MRC_OP_SACK, 13, 0x80, MRC_DROP_FIELD},
      {MRC_OP_SACK, 13, 0x60, MRC_DROP_FIELD}, /* m = 3 */
      {MRC_OP_SACK, 13, 0x40, MRC_DROP_NONE},
      {MRC_OP_SACK, 28, 0x10, MRC_DROP_FIELD}, /* neither NSCC's CC_STATE nor ours */
      {MRC_OP_SACK, 28, 0xE0, MRC_DROP_FIELD},
      {MRC_OP_SACK, 28, 0xF0, MRC_DROP_NONE},
      {MRC_OP_NACK, 14, 0x00, MRC_DROP_FIELD},
      {MRC_OP_NACK, 14, 0x03, MRC_DROP_FIELD},
      {MRC_OP_NACK, 14, 0x18, MRC_DROP_FIELD},
      {MRC_OP_NACK, 14, 0x1A, MRC_DROP_FIELD},
      {MRC_OP_NACK, 14, 0x19, MRC_DROP_NONE},
      {MRC_OP_NACK, 28, 0x00, MRC_DROP_FIELD},
      {MRC_OP_PROBE, 27, 0x03, MRC_DROP_FIELD},
  };
  EACH_ROW(i, rows) {
    uint8_t bytes[ROOM];
    size_t n = build(sample_of(rows[i].opcode), bytes);
    bytes[rows[i].offset] = rows[i].value;
    CHECK_EQ(drop_of(bytes, n), rows[i].drop);
  }
}

TEST(test_decode__every_other_opcode_is_refused) {
  uint8_t bytes[ROOM];
  build(&samples[0], bytes);
  int known = 0;
  for (int opcode = 0; opcode < 256; opcode++) {
    bytes[0] = (uint8_t)opcode;
    bool ours = sample_of((uint8_t)opcode) != NULL;
    known += ours;
    CHECK_ROW(opcode);
    CHECK_EQ(drop_of(bytes, 12) == MRC_DROP_OPCODE, !ours);
  }
  CHECK_EQ(known, 12);
}

/* The decoder ignores reserved bits and the BTH byte that changes in flight. */
TEST(test_decode__reserved_bits_are_ignored) {
  static const struct {
    uint8_t opcode, offset, bits;
  } rows[] = {
      {MRC_OP_WRITE_ONLY, 4, 0xFF},
      {MRC_OP_WRITE_ONLY, 8, 0x4F},
      {MRC_OP_WRITE_MIDDLE, 18, 0x7F},
      {MRC_OP_WRITE_MIDDLE, 19, 0xF0},
      {MRC_OP_SACK, 13, 0x1D},
      {MRC_OP_SACK, 24, 0xFF},
      {MRC_OP_SACK, 42, 0x80},
      {MRC_OP_NACK, 12, 0xFF},
      {MRC_OP_NACK, 24, 0xFF},
      {MRC_OP_NACK, 29, 0xFF},
      {MRC_OP_PROBE, 14, 0xFF},
      {MRC_OP_PROBE, 18, 0xFF},
      {MRC_OP_PROBE, 19, 0xFF},
      {MRC_OP_ENDPOINT_REQUEST, 9, 0xFF},
      {MRC_OP_ENDPOINT_REQUEST, 13, 0xFC},
      {MRC_OP_ENDPOINT_REQUEST, 20, 0xFF},
      {MRC_OP_ENDPOINT_RESPONSE, 9, 0xFF},
      {MRC_OP_ENDPOINT_RESPONSE, 13, 0x93},
      {MRC_OP_ENDPOINT_RESPONSE, 16, 0xFF},
      {MRC_OP_ENDPOINT_RESPONSE, 42, 0xFF},
  };
  EACH_ROW(i, rows) {
    uint8_t bytes[ROOM];
    uint8_t again[ROOM];
    struct mrc_wire packet;
    size_t n = build(sample_of(rows[i].opcode), bytes);
    bytes[rows[i].offset] |= rows[i].bits;
    CHECK_EQ(decode(bytes, n, false, &packet), MRC_DROP_NONE);
    build(sample_of(rows[i].opcode), bytes);
    CHECK_EQ(build(&packet, again), n);
    CHECK_MEM_EQ(again, bytes, n);
  }
}

/* ---- Trimmed packets ---- */

/* A trimmed packet of data requires METH and TSETH, another one all its headers. */
static size_t least_of_trimmed(const struct mrc_wire *wire, size_t header) {
  if (!mrc_opcode_is_data(wire->opcode)) return header;
  return MRC_BTH_BYTES + MRC_METH_BYTES + (wire->ts ? MRC_TSETH_BYTES : 0u);
}

TEST(test_decode__trimmed_anywhere_behind_the_message_numbers) {
  EACH_OF(size_t, i, 0, SAMPLES) {
    uint8_t bytes[ROOM];
    struct mrc_wire packet;
    size_t n = build(&samples[i], bytes);
    size_t header = mrc_wire_encode(&samples[i], bytes);
    for (size_t length = 0; length <= n; length++) {
      const bool enough = length >= least_of_trimmed(&samples[i], header);
      CHECK_EQ(decode(bytes, length, true, &packet), enough ? MRC_DROP_NONE : MRC_DROP_SHORT);
      if (!enough) continue;
      CHECK_EQ(packet.payload_bytes, 0);
      CHECK_EQ(packet.psn, samples[i].psn);
      if (!mrc_opcode_is_data(packet.opcode)) continue;
      CHECK_EQ(packet.msn, samples[i].msn);
      CHECK_EQ(packet.tx_timestamp, samples[i].tx_timestamp);
      CHECK_EQ(packet.va, length < header ? 0 : samples[i].va);
    }
  }
}

/* ---- Opcodes ---- */

TEST(test_opcode_predicates__truth_table) {
  static const struct {
    uint8_t opcode;
    bool data, imm;
  } rows[] = {
      {MRC_OP_WRITE_FIRST, true, false}, {MRC_OP_WRITE_MIDDLE, true, false},
      {MRC_OP_WRITE_LAST, true, false},  {MRC_OP_WRITE_LAST_IMM, true, true},
      {MRC_OP_WRITE_ONLY, true, false},  {MRC_OP_WRITE_ONLY_IMM, true, true},
  };
  EACH_ROW(i, rows) {
    CHECK_EQ(mrc_opcode_is_data(rows[i].opcode), rows[i].data);
    CHECK_EQ(mrc_opcode_has_imm(rows[i].opcode), rows[i].imm);
  }
  CHECK(!mrc_opcode_is_data(MRC_OP_WRITE_FIRST - 1));
  CHECK(!mrc_opcode_is_data(MRC_OP_WRITE_ONLY_IMM + 1));
  CHECK(!mrc_opcode_is_data(MRC_OP_ACK));
}
