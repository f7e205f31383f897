/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors come from tests/wire/reference.py, which reproduces a packet captured from a
   ConnectX-4 Lx; tests/wire/test_icrc.py compares the two on many more. */
#include "core/icrc.h"

#include "check.h"

static const uint8_t v4_src[16] = {[10] = 0xFF, 0xFF, 10, 0, 17, 1};
static const uint8_t v4_dst[16] = {[10] = 0xFF, 0xFF, 10, 0, 18, 1};
static const uint8_t v6_src[16] = {0xFD, [3] = 0x0A, [15] = 1};          /* fd00:a::1 */
static const uint8_t v6_dst[16] = {0xFD, [3] = 0x0A, [5] = 1, [13] = 1}; /* fd00:a:1::1:0 */

static const struct mrc_icrc_flow v4 = {v4_src, v4_dst, 0, 4791, 4};
static const struct mrc_icrc_flow v6 = {v6_src, v6_dst, 0xC001, 4791, 6};

/* A congestion notification: BTH with BECN set, and 16 bytes of zeros. */
static const uint8_t cnp[28] = {0x81, 0x00, 0xFF, 0xFF, 0x40, 0x00, 0x01, 0x18};

static uint32_t icrc(const struct mrc_icrc_flow *flow, const uint8_t *bytes, size_t n,
                     size_t header_bytes) {
  uint32_t crc = mrc_icrc_header(mrc_icrc_begin(flow, n + 4), bytes, header_bytes);
  return mrc_icrc_update(crc, bytes + header_bytes, n - header_bytes);
}

static void test_begin__known_vectors(void) {
  CHECK_EQ(icrc(&v4, cnp, sizeof cnp, sizeof cnp), 0xC9356894);
  CHECK_EQ(icrc(&v6, cnp, sizeof cnp, sizeof cnp), 0xF41A2F21);
}

static void test_header__any_split_gives_the_same(void) {
  uint8_t bytes[200];
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = (uint8_t)(i * 37 + 11);
  uint32_t expected = icrc(&v6, bytes, sizeof bytes, MRC_ICRC_MAX_HEADER);
  for (size_t header = 5; header < MRC_ICRC_MAX_HEADER; header++) {
    CHECK_ROW(header);
    CHECK_EQ(icrc(&v6, bytes, sizeof bytes, header), expected);
  }
  const uint32_t begun = mrc_icrc_begin(&v6, sizeof bytes + 4);
  CHECK_EQ(mrc_icrc_packet(begun, bytes, sizeof bytes), expected);
}

static void test_header__covers_everything_but_the_variant_byte(void) {
  uint8_t bytes[sizeof cnp];
  uint32_t expected = icrc(&v6, cnp, sizeof cnp, 12);
  for (size_t i = 0; i < sizeof cnp; i++) {
    CHECK_ROW(i);
    memcpy(bytes, cnp, sizeof cnp);
    bytes[i] ^= 0x10;
    bool same = icrc(&v6, bytes, sizeof bytes, 12) == expected;
    CHECK_EQ(same, i == 4);
  }
}

static void test_begin__covers_addresses_ports_and_length(void) {
  static const struct mrc_icrc_flow others[] = {
      {v6_dst, v6_dst, 0xC001, 4791, 6}, {v6_src, v6_src, 0xC001, 4791, 6},
      {v6_dst, v6_src, 0xC001, 4791, 6}, {v6_src, v6_dst, 0xC002, 4791, 6},
      {v6_src, v6_dst, 0xC001, 4971, 6}, {v6_src, v6_dst, 0xC001, 4791, 4},
  };
  uint32_t expected = icrc(&v6, cnp, sizeof cnp, 12);
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    CHECK_ROW(i);
    CHECK(icrc(&others[i], cnp, sizeof cnp, 12) != expected);
  }
  CHECK(mrc_icrc_begin(&v6, 32) != mrc_icrc_begin(&v6, 33));
}

static void test_update__nothing_changes_nothing(void) {
  CHECK_EQ(mrc_icrc_update(0x12345678, NULL, 0), 0x12345678);
  CHECK_EQ(mrc_icrc_update(0x12345678, cnp, 0), 0x12345678);
}

static void test_update__check_value_of_crc32(void) {
  CHECK_EQ(mrc_icrc_update(0, (const uint8_t *)"123456789", 9), 0xCBF43926);
}

static void test_store__little_endian(void) {
  uint8_t out[4];
  mrc_icrc_store(0x78563412, out);
  CHECK_MEM_EQ(out, "\x12\x34\x56\x78", 4);
}

static void test_library__is_named(void) {
#if MRC_HAVE_ISAL
  CHECK_STR_EQ(mrc_icrc_library(), "ISA-L");
#else
  CHECK_STR_EQ(mrc_icrc_library(), "zlib");
#endif
}

CHECK_MAIN(RUN(test_begin__known_vectors), RUN(test_header__any_split_gives_the_same),
           RUN(test_header__covers_everything_but_the_variant_byte),
           RUN(test_begin__covers_addresses_ports_and_length),
           RUN(test_update__nothing_changes_nothing), RUN(test_update__check_value_of_crc32),
           RUN(test_store__little_endian), RUN(test_library__is_named))
