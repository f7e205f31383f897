/* SPDX-License-Identifier: Apache-2.0 */
#include "core/crc.h"

#include "check.h"

/* ---- CRC-32 ---- */

#define P 0xEDB88320u /* the polynomial, bit-reversed, without x^32 */

enum { BYTES = 2500, MARGIN = 64 };

static uint8_t input[BYTES + MARGIN];

static void fill(void) {
  for (size_t i = 0; i < sizeof input; i++)
    input[i] = (uint8_t)(i * 151 + (i >> 8) * 29 + 7);
}

/* Bit by bit. */
static uint32_t reference(uint32_t crc, const uint8_t *from, size_t n) {
  crc = ~crc;
  for (size_t i = 0; i < n; i++) {
    crc ^= from[i];
    for (int bit = 0; bit < 8; bit++)
      crc = crc >> 1 ^ (crc & 1 ? P : 0);
  }
  return ~crc;
}

TEST(test_crc32__the_check_value) {
  CHECK_EQ(mrc_crc32(0, (const uint8_t *)"123456789", 9), 0xCBF43926u);
  CHECK_EQ(mrc_crc32(0x1234, input, 0), 0x1234);
}

TEST(test_crc32__every_length) {
  fill();
  for (size_t n = 0; n <= BYTES; n += n < 700 ? 1 : 37) {
    CHECK_ROW(n);
    CHECK_EQ(mrc_crc32(0xC0FFEE00u + (uint32_t)n, input + n % 5, n),
             reference(0xC0FFEE00u + (uint32_t)n, input + n % 5, n));
  }
}

TEST(test_crc32__calls_chain) {
  fill();
  const uint32_t whole = reference(0, input, 1500);
  for (size_t cut = 0; cut <= 1500; cut += 13) {
    CHECK_ROW(cut);
    CHECK_EQ(mrc_crc32(mrc_crc32(0, input, cut), input + cut, 1500 - cut), whole);
  }
}

/* A header precedes the copy; the copy writes nothing outside its bytes. */
TEST(test_crc32_copy__every_length_and_head) {
  static const size_t heads[] = {0, 1, 3, 44, 48, 63, 64, 100, 200};
  static uint8_t to[BYTES + 3 * MARGIN + 200];
  fill();
  for (size_t k = 0; k < sizeof heads / sizeof heads[0]; k++) {
    const size_t head = heads[k];
    for (size_t n = 0; n <= BYTES - MARGIN; n += n < 400 ? 1 : 61) {
      CHECK_ROW(head * 10000 + n);
      uint8_t *begin = to + MARGIN;
      memset(to, 0xA5, sizeof to);
      memcpy(begin, input, head);
      const uint32_t crc = mrc_crc32_copy(77, begin + head, head, input + 9, n);
      CHECK_EQ(memcmp(begin + head, input + 9, n), 0);
      CHECK_EQ(memcmp(begin, input, head), 0);
      for (size_t i = 0; i < MARGIN; i++)
        CHECK(to[i] == 0xA5 && begin[head + n + i] == 0xA5);
      CHECK_EQ(crc, reference(reference(77, input, head), input + 9, n));
    }
  }
}

/* ---- the factors ---- */

/* x^n mod P, bit-reversed, times x. */
static uint64_t factor(uint32_t n) {
  uint32_t power = 0x80000000u; /* 1 */
  for (uint32_t i = 0; i < n; i++)
    power = power >> 1 ^ (power & 1 ? P : 0);
  return (uint64_t)power << 1;
}

TEST(test_factors__as_derived) {
  static const struct {
    uint32_t distance;
    uint64_t minus;
    uint64_t plus;
  } rows[] = {
      {128, 0x0ccaa009e, 0x1751997d0},  {256, 0x15a546366, 0x0f1da05aa},
      {384, 0x174359406, 0x03db1ecdc},  {512, 0x1c6e41596, 0x154442bd4},
      {1024, 0x14a7fe880, 0x1e88ef372}, {1536, 0x12e958ac4, 0x1821d8bc0},
      {2048, 0x1322d1430, 0x11542778a},
  };
  EACH_ROW(i, rows) {
    CHECK_EQ(factor(rows[i].distance - 32), rows[i].minus);
    CHECK_EQ(factor(rows[i].distance + 32), rows[i].plus);
  }
  CHECK_EQ(factor(64), 0x163cd6124);
}

/* ---- ICRC ---- */

/* The vectors come from tests/wire/reference.py, which reproduces a packet captured from a
   ConnectX-4 Lx; tests/wire/test_wire.py compares the two implementations on many more packets. */

static const uint8_t v4_src[16] = {[10] = 0xFF, 0xFF, 10, 0, 17, 1};
static const uint8_t v4_dst[16] = {[10] = 0xFF, 0xFF, 10, 0, 18, 1};
static const uint8_t v6_src[16] = {0xFD, [3] = 0x0A, [15] = 1};          /* fd00:a::1 */
static const uint8_t v6_dst[16] = {0xFD, [3] = 0x0A, [5] = 1, [13] = 1}; /* fd00:a:1::1:0 */

static const struct mrc_icrc_flow v4 = {v4_src, v4_dst, 0, 4791, 4};
static const struct mrc_icrc_flow v6 = {v6_src, v6_dst, 0xC001, 4791, 6};

/* A congestion notification: BTH with BECN set, and 16 bytes of zeros. */
static const uint8_t cnp[28] = {0x81, 0x00, 0xFF, 0xFF, 0x40, 0x00, 0x01, 0x18};

static uint32_t icrc(const struct mrc_icrc_flow *flow, const uint8_t *bytes, size_t n) {
  return mrc_icrc_packet(mrc_icrc_begin(flow, n + 4), bytes, n);
}

TEST(test_begin__known_vectors) {
  CHECK_EQ(icrc(&v4, cnp, sizeof cnp), 0xC9356894);
  CHECK_EQ(icrc(&v6, cnp, sizeof cnp), 0xF41A2F21);
}

TEST(test_begin__plain_crcs_go_on_from_there) {
  uint8_t bytes[200];
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = (uint8_t)(i * 37 + 11);
  bytes[4] = 0;
  const uint32_t expected = icrc(&v6, bytes, sizeof bytes);
  EACH_OF(size_t, cut, 0, sizeof bytes) {
    const uint32_t crc = mrc_crc32(mrc_icrc_begin(&v6, sizeof bytes + 4), bytes, cut);
    CHECK_EQ(mrc_crc32(crc, bytes + cut, sizeof bytes - cut), expected);
  }
  EACH_OF(int, value, 1, 256) {
    bytes[4] = (uint8_t)value;
    CHECK_EQ(icrc(&v6, bytes, sizeof bytes), expected);
  }
}

TEST(test_header__covers_everything_but_the_variant_byte) {
  uint8_t bytes[sizeof cnp];
  uint32_t expected = icrc(&v6, cnp, sizeof cnp);
  EACH_OF(size_t, i, 0, sizeof cnp) {
    memcpy(bytes, cnp, sizeof cnp);
    bytes[i] ^= 0x10;
    bool same = icrc(&v6, bytes, sizeof bytes) == expected;
    CHECK_EQ(same, i == 4);
  }
}

TEST(test_begin__covers_addresses_ports_and_length) {
  static const struct mrc_icrc_flow others[] = {
      {v6_dst, v6_dst, 0xC001, 4791, 6}, {v6_src, v6_src, 0xC001, 4791, 6},
      {v6_dst, v6_src, 0xC001, 4791, 6}, {v6_src, v6_dst, 0xC002, 4791, 6},
      {v6_src, v6_dst, 0xC001, 4971, 6}, {v6_src, v6_dst, 0xC001, 4791, 4},
  };
  uint32_t expected = icrc(&v6, cnp, sizeof cnp);
  EACH_ROW(i, others)
    CHECK(icrc(&others[i], cnp, sizeof cnp) != expected);
  CHECK(mrc_icrc_begin(&v6, 32) != mrc_icrc_begin(&v6, 33));
}
