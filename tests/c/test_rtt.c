/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paths.h"

#include "check.h"

/* RFC 6298: alpha 1/8, beta 1/4; the variation is updated before the smoothed value. */
TEST(test_sample__follows_rfc_6298) {
  static const struct {
    uint64_t sample, smooth, var, base;
  } rows[] = {
      {800, 800, 400, 800}, {800, 800, 300, 800}, {1600, 900, 425, 800},
      {100, 800, 518, 100}, {0, 700, 588, 1}, /* 0 ns counts as 1 ns, to be a valid sample */
  };
  struct mrc_rtt rtt = {0};
  CHECK(!mrc_rtt_known(&rtt));
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    mrc_rtt_sample(&rtt, rows[i].sample);
    CHECK_EQ(rtt.smooth_ns, rows[i].smooth);
    CHECK_EQ(rtt.var_ns, rows[i].var);
    CHECK_EQ(rtt.base_ns, rows[i].base);
  }
}

TEST(test_overdue__variation_or_the_floor) {
  const struct mrc_rtt rtt = {.smooth_ns = 1000, .var_ns = 100};
  CHECK_EQ(mrc_rtt_overdue_ns(&rtt, 0), 1400);
  CHECK_EQ(mrc_rtt_overdue_ns(&rtt, 400), 1400);
  CHECK_EQ(mrc_rtt_overdue_ns(&rtt, 500), 1500);
}
