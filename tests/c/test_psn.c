/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base.h"

#include "check.h"

TEST(test_add_sub__wrap_at_24_bits) {
  static const struct {
    uint32_t psn, n, sum, difference;
  } rows[] = {
      {0, 0, 0, 0},
      {0, 1, 1, 0xFFFFFF},
      {1, 1, 2, 0},
      {0xFFFFFF, 1, 0, 0xFFFFFE},
      {0xFFFFFF, 0, 0xFFFFFF, 0xFFFFFF},
      {0xFFFF00, 0x200, 0x100, 0xFFFD00},
      {0x800000, 0x800000, 0, 0},
      {5, 0x1000005, 10, 0}, /* a step beyond the space wraps as often as it must */
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_psn_add(rows[i].psn, rows[i].n), rows[i].sum);
    CHECK_EQ(mrc_psn_sub(rows[i].psn, rows[i].n), rows[i].difference);
  }
}

TEST(test_diff_before__half_the_space) {
  static const struct {
    uint32_t a, b;
    int32_t diff;
    bool before;
  } rows[] = {
      {0, 0, 0, false},
      {1, 0, 1, false},
      {0, 1, -1, true},
      {0, 0xFFFFFF, 1, false}, /* just wrapped */
      {0xFFFFFF, 0, -1, true},
      {0x7FFFFF, 0, 0x7FFFFF, false}, /* the farthest ahead */
      {0x800000, 0, -0x800000, true}, /* half the space away counts as behind, in both directions */
      {0, 0x800000, -0x800000, true},
      {0x800001, 0, -0x7FFFFF, true},
      {0xFFFF80, 0x7F, -0xFF, true},
      {0x7F, 0xFFFF80, 0xFF, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_psn_diff(rows[i].a, rows[i].b), rows[i].diff);
    CHECK_EQ(mrc_psn_before(rows[i].a, rows[i].b), rows[i].before);
  }
}

TEST(test_in__half_open) {
  static const struct {
    uint32_t psn, first, n;
    bool in;
  } rows[] = {
      {10, 10, 0, false}, /* the empty range */
      {10, 10, 1, true},
      {11, 10, 1, false},
      {9, 10, 128, false},
      {137, 10, 128, true},
      {138, 10, 128, false},
      {0xFFFFFF, 0xFFFFF0, 32, true}, /* across the wrap */
      {0, 0xFFFFF0, 32, true},
      {0x0F, 0xFFFFF0, 32, true},
      {0x10, 0xFFFFF0, 32, false},
      {0xFFFFEF, 0xFFFFF0, 32, false},
      {0x7FFFFE, 0, 0x7FFFFF, true},
      {0x7FFFFF, 0, 0x7FFFFF, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_psn_in(rows[i].psn, rows[i].first, rows[i].n), rows[i].in);
  }
}

TEST(test_add_diff__are_inverse) {
  for (uint32_t psn = 0; psn <= MRC_PSN_MASK; psn += 0x10101) {
    for (uint32_t n = 0; n < 0x800000; n += 0x7FFF) {
      CHECK_EQ(mrc_psn_diff(mrc_psn_add(psn, n), psn), (int32_t)n);
      CHECK_EQ(mrc_psn_sub(mrc_psn_add(psn, n), n), psn);
    }
  }
}
