/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base.h"

#include "check.h"

#define BITS 128

TEST(test_set_clear__touch_one_bit_of_the_ring) {
  uint64_t words[BITS / 64] = {0};
  struct mrc_bitmap map = {.words = words, .mask = BITS - 1};
  static const uint32_t psns[] = {0, 1, 63, 64, 127, 128, 0xFFFFFF};
  for (size_t i = 0; i < sizeof psns / sizeof psns[0]; i++) {
    CHECK_ROW(i);
    mrc_bitmap_set(&map, psns[i]);
    CHECK(mrc_bitmap_test(&map, psns[i]));
    CHECK(mrc_bitmap_test(&map, psns[i] + BITS)); /* one ring further lies the same bit */
    CHECK_EQ(__builtin_popcountll(words[0]) + __builtin_popcountll(words[1]), 1);
    mrc_bitmap_clear(&map, psns[i]);
    CHECK_EQ(words[0] | words[1], 0);
  }
}

TEST(test_extract__is_lsb_first_and_wraps) {
  uint64_t words[BITS / 64] = {0};
  struct mrc_bitmap map = {.words = words, .mask = BITS - 1};
  mrc_bitmap_set(&map, 3);
  mrc_bitmap_set(&map, 70);
  static const struct {
    uint32_t psn;
    uint64_t bits;
  } rows[] = {
      {0, 1ull << 3},   {3, 1},
      {4, 0},                                  /* 70 is 66 after 4 */
      {7, 1ull << 63},                         /* over the edge of a word */
      {64, 1ull << 6},  {70, 1 | 1ull << 61},  /* and round to 3 */
      {127, 1ull << 4}, {0xFFFFFF, 1ull << 4}, /* the ring wraps with the PSN */
      {128 + 3, 1},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_bitmap_extract(&map, rows[i].psn), rows[i].bits);
  }
}

TEST(test_find__stops_at_n) {
  uint64_t words[BITS / 64] = {0};
  struct mrc_bitmap map = {.words = words, .mask = BITS - 1};
  mrc_bitmap_set(&map, 100);
  static const struct {
    uint32_t psn, n, distance;
  } rows[] = {
      {100, 1, 0},   {100, 0, 0},   {99, 1, 1},      {99, 2, 1},      {0, 100, 100},
      {0, 101, 100}, {0, 128, 100}, {101, 127, 127}, {101, 128, 127},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_bitmap_find(&map, rows[i].psn, rows[i].n), rows[i].distance);
  }
}
