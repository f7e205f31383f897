/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors come from tests/wire/reference.py, which reproduces a packet captured from a
   ConnectX-4 Lx; tests/wire/test_icrc.py compares the two implementations on many more packets. */
#include "core/crc.h"

#include "check.h"

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
  for (size_t cut = 0; cut < sizeof bytes; cut++) {
    CHECK_ROW(cut);
    const uint32_t crc = mrc_crc32(mrc_icrc_begin(&v6, sizeof bytes + 4), bytes, cut);
    CHECK_EQ(mrc_crc32(crc, bytes + cut, sizeof bytes - cut), expected);
  }
  for (int value = 1; value < 256; value++) {
    CHECK_ROW(value);
    bytes[4] = (uint8_t)value;
    CHECK_EQ(icrc(&v6, bytes, sizeof bytes), expected);
  }
}

TEST(test_header__covers_everything_but_the_variant_byte) {
  uint8_t bytes[sizeof cnp];
  uint32_t expected = icrc(&v6, cnp, sizeof cnp);
  for (size_t i = 0; i < sizeof cnp; i++) {
    CHECK_ROW(i);
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
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    CHECK_ROW(i);
    CHECK(icrc(&others[i], cnp, sizeof cnp) != expected);
  }
  CHECK(mrc_icrc_begin(&v6, 32) != mrc_icrc_begin(&v6, 33));
}

TEST(test_store__little_endian) {
  uint8_t out[4];
  mrc_icrc_store(0x78563412, out);
  CHECK_MEM_EQ(out, "\x12\x34\x56\x78", 4);
}
