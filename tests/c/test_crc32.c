/* SPDX-License-Identifier: Apache-2.0 */
#include "core/crc.h"

#include "check.h"

#define P 0xEDB88320u /* the polynomial, bit-reversed, without x^32 */

enum { BYTES = 2500, MARGIN = 64 };

static uint8_t bytes[BYTES + MARGIN];

static void fill(void) {
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = (uint8_t)(i * 151 + (i >> 8) * 29 + 7);
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
  CHECK_EQ(mrc_crc32(0x1234, bytes, 0), 0x1234);
}

TEST(test_crc32__every_length) {
  fill();
  for (size_t n = 0; n <= BYTES; n += n < 700 ? 1 : 37) {
    CHECK_ROW(n);
    CHECK_EQ(mrc_crc32(0xC0FFEE00u + (uint32_t)n, bytes + n % 5, n),
             reference(0xC0FFEE00u + (uint32_t)n, bytes + n % 5, n));
  }
}

TEST(test_crc32__calls_chain) {
  fill();
  const uint32_t whole = reference(0, bytes, 1500);
  for (size_t cut = 0; cut <= 1500; cut += 13) {
    CHECK_ROW(cut);
    CHECK_EQ(mrc_crc32(mrc_crc32(0, bytes, cut), bytes + cut, 1500 - cut), whole);
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
      memcpy(begin, bytes, head);
      const uint32_t crc = mrc_crc32_copy(77, begin + head, head, bytes + 9, n);
      CHECK_EQ(memcmp(begin + head, bytes + 9, n), 0);
      CHECK_EQ(memcmp(begin, bytes, head), 0);
      for (size_t i = 0; i < MARGIN; i++)
        CHECK(to[i] == 0xA5 && begin[head + n + i] == 0xA5);
      CHECK_EQ(crc, reference(reference(77, bytes, head), bytes + 9, n));
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
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(factor(rows[i].distance - 32), rows[i].minus);
    CHECK_EQ(factor(rows[i].distance + 32), rows[i].plus);
  }
  CHECK_EQ(factor(64), 0x163cd6124);
}
