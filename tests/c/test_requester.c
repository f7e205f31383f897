/* SPDX-License-Identifier: Apache-2.0 */
#include "core/windows.h"

#include "check.h"

#define KIB 1024u
#define MIB (KIB * KIB)

TEST(test_part__even_where_bursts_run_on) {
  static const struct {
    uint32_t bytes, path_mtu, part;
  } rows[] = {
      {0, 8844, 8844},          {1, 8844, 8844},
      {8844, 8844, 8844},       {8845, 8844, 8844}, /* an odd size ends its burst */
      {16 * KIB, 8844, 8192},   {64 * KIB, 8844, 8192},
      {128 * KIB, 8844, 8192},  {512 * KIB, 8844, 8844}, /* nine bursts either way */
      {MIB, 8844, 8844},        {64 * KIB, 4096, 4096},
      {4 * KIB, 1444, 1024},  /* 60 packets a burst instead of 3 */
      {64 * KIB, 1444, 1444}, /* a third more packets at most */
      {UINT32_MAX, 8844, 8844}, {UINT32_MAX, 256, 256},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_part_bytes(rows[i].bytes, rows[i].path_mtu, MRC_BURST_BYTES), rows[i].part);
  }
}

/* Whatever the sizes: the part is legal, and even parts add up to the message. */
TEST(test_part__is_legal) {
  for (uint32_t path_mtu = 256; path_mtu <= 16384; path_mtu += 124)
    for (uint32_t bytes = 1; bytes < 400000; bytes += 256)
      for (uint32_t burst_bytes = 300; burst_bytes < 70000; burst_bytes += 20011) {
        const uint32_t part = mrc_part_bytes(bytes, path_mtu, burst_bytes);
        CHECK(part > 0 && part <= path_mtu && part % 4 == 0);
        CHECK(part == path_mtu || (bytes % part == 0 && part > path_mtu / 2));
        CHECK(3 * mrc_parts(bytes, part) <= 4 * mrc_parts(bytes, path_mtu));
      }
}
