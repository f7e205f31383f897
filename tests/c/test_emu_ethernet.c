/* SPDX-License-Identifier: Apache-2.0 */
#include "emu/ethernet.h"

#include <arpa/inet.h>

#include "check.h"
#include "core/base.h"
#include "core/wire.h"

enum { OUTER = 14, INNER = 54, UDP = 94, PAYLOAD = 102, SRH = 40, ROOM = 2048, ECT0 = 2, CE = 3 };

static struct mrc_frame_pool pool;

static void put_u16(uint8_t *at, uint32_t value) {
  at[0] = (uint8_t)(value >> 8);
  at[1] = (uint8_t)value;
}

static uint32_t get_u16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }

/* The sum of RFC 1071, a byte at a time: 0xFFFF for a datagram with a right checksum. */
static uint32_t checked_sum(const uint8_t *inner, uint32_t udp_bytes) {
  uint32_t sum = 17 + udp_bytes;
  for (uint32_t i = 8; i < 40 + udp_bytes; i++)
    sum += i % 2 ? inner[i] : (uint32_t)inner[i] << 8;
  while (sum >> 16)
    sum = (sum & 0xFFFF) + (sum >> 16);
  return sum;
}

/* A packet of a host in plane 1: fcbb:1:100:201:e000::, ECT(0), inside it UDP with a payload that
   begins with an opcode; its checksum is the sum of the pseudo header alone. */
static struct mrc_frame *make(uint8_t opcode, uint32_t payload_bytes) {
  static const uint8_t carrier[16] = {0xFC, 0xBB, 0, 1, 1, 0, 2, 1, 0xE0};
  pool.room_bytes = mrc_ethernet_room_bytes(ROOM);
  struct mrc_frame *packet = mrc_frame_pool_get(&pool);
  struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  memset(bytes->at, 0, ROOM);
  bytes->n = PAYLOAD + payload_bytes;
  put_u16(bytes->at + 12, 0x86DD);
  for (int at = OUTER; at <= INNER; at += INNER - OUTER) {
    put_u16(bytes->at + at, 0x6000 | ECT0 << 4 | 0x1);
    put_u16(bytes->at + at + 2, 0x2345); /* flow label 12345 */
    put_u16(bytes->at + at + 4, bytes->n - (uint32_t)at - 40);
    bytes->at[at + 7] = 64;
  }
  bytes->at[OUTER + 6] = 41;
  bytes->at[INNER + 6] = 17;
  memcpy(bytes->at + OUTER + 24, carrier, sizeof carrier);
  put_u16(bytes->at + INNER + 24, 0xFD00);
  put_u16(bytes->at + UDP + 4, 8 + payload_bytes);
  uint32_t pseudo = 0xFD00 + 17 + 8 + payload_bytes;
  put_u16(bytes->at + UDP + 6, (pseudo & 0xFFFF) + (pseudo >> 16));
  for (uint32_t i = 0; i < payload_bytes; i++)
    bytes->at[PAYLOAD + i] = (uint8_t)(i * 7);
  bytes->at[PAYLOAD] = opcode;
  return packet;
}

TEST(test_finish__any_length) {
  for (uint32_t n = 1; n < 70; n++) {
    CHECK_ROW((int)n);
    struct mrc_frame *packet = make(MRC_OP_WRITE_MIDDLE, n);
    CHECK(mrc_ethernet_finish(packet));
    CHECK_EQ(checked_sum(mrc_ethernet_of(packet)->at + INNER, 8 + n), 0xFFFF);
  }
  mrc_frame_pool_free(&pool);
}

TEST(test_finish__neither_udp_nor_tcp) {
  struct mrc_frame *packet = make(MRC_OP_WRITE_MIDDLE, 100);
  mrc_ethernet_of(packet)->at[INNER + 6] = 58; /* ICMPv6 */
  CHECK(!mrc_ethernet_finish(packet));
  mrc_frame_pool_free(&pool);
}

TEST(test_read__describes_the_packet) {
  static const struct {
    uint8_t opcode, ecn;
    uint32_t payload_bytes;
    uint32_t header_bytes;
    bool control;
  } rows[] = {
      {MRC_OP_WRITE_MIDDLE, ECT0, 1000, 64, false},
      {MRC_OP_WRITE_ONLY, ECT0, 40, 40, false},
      {MRC_OP_SACK, 0, 60, 60, true},
      {MRC_OP_PROBE, ECT0, 40, 40, false}, /* in the data class, so switches may mark it */
      {0x45, 0, 1000, 0, false},           /* not an MRC opcode */
  };
  for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
    CHECK_ROW(i);
    struct mrc_frame *packet = make(rows[i].opcode, rows[i].payload_bytes);
    struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
    put_u16(bytes->at + OUTER, 0x6001 | (uint32_t)rows[i].ecn << 4);
    CHECK(mrc_ethernet_read(packet, 0xFCBB, 0));
    CHECK(packet->usids == 0x01000201E0000000ull);
    CHECK_EQ(packet->flow_label, 0x12345);
    CHECK_EQ(packet->ecn, rows[i].ecn);
    CHECK_EQ(packet->header_bytes, rows[i].header_bytes);
    CHECK_EQ(mrc_frame_udp_bytes(packet), rows[i].payload_bytes);
    CHECK_EQ(packet->control, rows[i].control);
    CHECK_EQ(bytes->udp_at, UDP);
  }
  mrc_frame_pool_free(&pool);
}

/* Each row spoils one byte or truncates the packet. */
TEST(test_read__refuses) {
  static const struct {
    uint32_t at;
    uint8_t value;
    uint32_t n;
  } rows[] = {
      {12, 0x08, 0},         /* Ethernet type is not IPv6 */
      {OUTER, 0x40, 0},      /* IP version is not 6 */
      {OUTER + 4, 0xFF, 0},  /* longer than the packet */
      {OUTER + 24, 0xFD, 0}, /* destination is no carrier */
      {OUTER + 27, 2, 0},    /* carrier of another plane */
      {0, 0, 53},            /* half a header */
      {0, 0, 0},
  };
  const int n_rows = (int)(sizeof rows / sizeof *rows);
  for (int i = 0; i < n_rows; i++) {
    CHECK_ROW(i);
    struct mrc_frame *packet = make(MRC_OP_WRITE_MIDDLE, 500);
    struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
    bytes->at[rows[i].at] = rows[i].value;
    if (rows[i].n) bytes->n = rows[i].n;
    CHECK_EQ(mrc_ethernet_read(packet, 0xFCBB, 0), i == n_rows - 1);
  }
  mrc_frame_pool_free(&pool);
}

static struct mrc_frame *read_one(uint32_t payload_bytes) {
  struct mrc_frame *packet = make(MRC_OP_WRITE_MIDDLE, payload_bytes);
  CHECK(mrc_ethernet_finish(packet));
  CHECK(mrc_ethernet_read(packet, 0xFCBB, 0));
  return packet;
}

TEST(test_write__usids_hop_limit_and_mark) {
  struct mrc_frame *packet = read_one(500);
  const struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  packet->usids = 0xE000ull << 48;
  packet->usids_beyond = 0x12345678;
  packet->switches = 3;
  packet->ecn = CE;
  CHECK(mrc_ethernet_write(packet, 0));
  static const uint8_t dst[16] = {0xFC, 0xBB, 0, 1, 0xE0, 0,    0,    0,
                                  0,    0,    0, 0, 0x12, 0x34, 0x56, 0x78};
  CHECK_MEM_EQ(bytes->at + OUTER + 24, dst, 16);
  CHECK_EQ(bytes->at[OUTER + 7], 61);
  CHECK_EQ(get_u16(bytes->at + OUTER), 0x6031); /* CE outside: the host copies it inside */
  CHECK_EQ(get_u16(bytes->at + INNER), 0x6021);
  CHECK_EQ(bytes->n, PAYLOAD + 500);
  CHECK_EQ(checked_sum(bytes->at + INNER, 508), 0xFFFF);
  mrc_frame_pool_free(&pool);
}

/* Inserts a segment routing header with two carriers behind the outer header. */
static struct mrc_frame *make_with_srh(uint8_t left) {
  static const uint8_t segments[] = {
      0xFC, 0xBB, 0, 1, 0xE0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* the last one */
      0xFC, 0xBB, 0, 1, 2,    1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
  };
  const uint8_t head[] = {41, sizeof segments / 8, 4, left, 1};
  struct mrc_frame *packet = make(MRC_OP_WRITE_MIDDLE, 500);
  struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  memmove(bytes->at + INNER + SRH, bytes->at + INNER, bytes->n - INNER);
  memset(bytes->at + INNER, 0, SRH);
  memcpy(bytes->at + INNER, head, sizeof head);
  memcpy(bytes->at + INNER + SRH - sizeof segments, segments, sizeof segments);
  bytes->n += SRH;
  put_u16(bytes->at + OUTER + 4, bytes->n - OUTER - 40);
  bytes->at[OUTER + 6] = 43;
  return packet;
}

TEST(test_next_carrier__in_turn) {
  struct mrc_frame *packet = make_with_srh(2);
  const struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  CHECK(mrc_ethernet_finish(packet));
  CHECK(mrc_ethernet_read(packet, 0xFCBB, 0));
  CHECK_EQ(bytes->udp_at, UDP + SRH);
  CHECK_EQ(mrc_frame_udp_bytes(packet), 500 + SRH);
  mrc_ethernet_next_carrier(packet);
  CHECK(packet->usids == 0x0201ull << 48);
  mrc_ethernet_next_carrier(packet);
  CHECK(packet->usids == 0xE001ull << 48);
  packet->usids = 0;
  mrc_ethernet_next_carrier(packet); /* none is left */
  CHECK(packet->usids == 0);
  packet->payload_bytes = 0;
  packet->trimmed = MRC_TRIMMED;
  CHECK(mrc_ethernet_write(packet, 0));
  CHECK_EQ(bytes->n, PAYLOAD + SRH + 64);
  CHECK_EQ(get_u16(bytes->at + OUTER + 4), SRH + 40 + 8 + 64);
  CHECK_EQ(get_u16(bytes->at + INNER + SRH + 4), 8 + 64);
  CHECK_EQ(checked_sum(bytes->at + INNER + SRH, 8 + 64), 0xFFFF);
  mrc_frame_pool_free(&pool);
}

/* Each row spoils one byte. */
TEST(test_next_carrier__refuses) {
  static const struct {
    uint32_t at;
    uint8_t value;
  } rows[] = {
      {OUTER + 6, 60},     /* destination options */
      {INNER + 1, 2},      /* room for one segment */
      {INNER + 1, 0xFF},   /* longer than the packet */
      {INNER + 2, 3},      /* another routing header */
      {INNER + 3, 0},      /* no segment left */
      {INNER + 3, 3},      /* more segments left than there are */
      {INNER + 4, 2},      /* a last segment that has no room */
      {INNER + 8 + 19, 2}, /* a carrier of plane 2 */
  };
  for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
    CHECK_ROW(i);
    struct mrc_frame *packet = make_with_srh(2);
    mrc_ethernet_of(packet)->at[rows[i].at] = rows[i].value;
    CHECK(mrc_ethernet_read(packet, 0xFCBB, 0));
    packet->usids = 0;
    mrc_ethernet_next_carrier(packet);
    CHECK(packet->usids == 0);
  }
  mrc_frame_pool_free(&pool);
}

TEST(test_write__no_hops_left) {
  struct mrc_frame *packet = read_one(500);
  packet->switches = 64;
  CHECK(!mrc_ethernet_write(packet, 0));
  mrc_frame_pool_free(&pool);
}

TEST(test_write__trimmed) {
  struct mrc_dscps usual = {0};
  CHECK(mrc_dscps_fill(&usual));
  static const uint8_t dscps[] = {[MRC_TRIMMED] = MRC_DSCP_TRIMMED,
                                  [MRC_TRIMMED_LASTHOP] = MRC_DSCP_TRIMMED_LAST};
  for (uint8_t trimmed = MRC_TRIMMED; trimmed <= MRC_TRIMMED_LASTHOP; trimmed++) {
    CHECK_ROW(trimmed);
    struct mrc_frame *packet = read_one(500);
    const struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
    packet->payload_bytes = 0;
    packet->trimmed = trimmed;
    CHECK(mrc_ethernet_write(packet, 0));
    CHECK_EQ(bytes->n, PAYLOAD + 64);
    CHECK_EQ(get_u16(bytes->at + OUTER + 4), 40 + 8 + 64);
    CHECK_EQ(get_u16(bytes->at + INNER + 4), 8 + 64);
    CHECK_EQ(get_u16(bytes->at + UDP + 4), 8 + 64);
    CHECK_EQ(checked_sum(bytes->at + INNER, 8 + 64), 0xFFFF);
    for (int at = OUTER; at <= INNER; at += INNER - OUTER) {
      const uint32_t tclass = get_u16(bytes->at + at) >> 4 & 0xFF;
      CHECK_EQ(tclass, (uint32_t)dscps[trimmed] << 2 | ECT0);
      CHECK_EQ(mrc_dscp_trimmed(&usual, tclass), trimmed);
    }
  }
  mrc_frame_pool_free(&pool);
}

TEST(test_write__damage_is_seen_by_the_checksum) {
  for (uint32_t random = 0; random < 100; random++) {
    struct mrc_frame *packet = read_one(77);
    packet->corrupt = true;
    CHECK(mrc_ethernet_write(packet, random * 977));
    CHECK(checked_sum(mrc_ethernet_of(packet)->at + INNER, 8 + 77) != 0xFFFF);
  }
  mrc_frame_pool_free(&pool);
}

/* For any bytes: read nothing beyond the packet, and never make it longer. */
TEST(test_any_bytes) {
  struct mrc_prng prng = {.state = 5};
  for (int i = 0; i < 20000; i++) {
    struct mrc_frame *packet =
        i % 2 ? make_with_srh(2) : make(MRC_OP_WRITE_MIDDLE, mrc_prng_below(&prng, 300));
    struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
    for (uint32_t n = mrc_prng_below(&prng, 4); n > 0; n--)
      bytes->at[mrc_prng_below(&prng, PAYLOAD + 2)] = (uint8_t)mrc_prng_next(&prng);
    if (mrc_prng_below(&prng, 2)) bytes->n = mrc_prng_below(&prng, bytes->n + 1);
    const uint32_t before = bytes->n;
    (void)mrc_ethernet_finish(packet);
    if (mrc_ethernet_read(packet, 0xFCBB, 0)) {
      mrc_ethernet_next_carrier(packet);
      packet->corrupt = mrc_prng_below(&prng, 2);
      if (packet->header_bytes > 0 && packet->payload_bytes > 0) packet->trimmed = MRC_TRIMMED;
      (void)mrc_ethernet_write(packet, (uint32_t)mrc_prng_next(&prng));
    }
    CHECK(bytes->n <= before);
    mrc_frame_pool_put(&pool, packet);
  }
  mrc_frame_pool_free(&pool);
}

TEST(test_copy__has_bytes_of_its_own) {
  struct mrc_frame *packet = read_one(500);
  struct mrc_frame *copy = mrc_frame_pool_copy(&pool, packet);
  CHECK_MEM_EQ(mrc_ethernet_of(copy)->at, mrc_ethernet_of(packet)->at, PAYLOAD + 500);
  mrc_ethernet_of(copy)->at[PAYLOAD]++;
  CHECK_EQ(mrc_ethernet_of(packet)->at[PAYLOAD], MRC_OP_WRITE_MIDDLE);
  mrc_frame_pool_free(&pool);
}
