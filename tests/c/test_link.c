/* SPDX-License-Identifier: Apache-2.0 */
#include "virtual/link.h"

#include "check.h"

static struct mrc_link make_link(struct mrc_link_config config) {
  return (struct mrc_link){.config = config, .prng.state = 7};
}

TEST(test_pass__a_perfect_link_only_delays) {
  struct mrc_link link = make_link((struct mrc_link_config){.delay_ns = 50});
  for (uint64_t now_ns = 1000; now_ns < 1003; now_ns++) {
    const struct mrc_link_fate fate = mrc_link_pass(&link, 1500, now_ns);
    CHECK_EQ(fate.copies, 1);
    CHECK_EQ(fate.at_ns[0], now_ns + 50);
    CHECK(!fate.ce && !fate.corrupt && !fate.trimmed);
  }
  CHECK_EQ(mrc_link_backlog(&link, 1003), 0);
}

/* 8 Gbit/s: a byte a nanosecond. A packet of 1000 bytes comes every 600 ns; the queue holds 2000
   bytes and marks above 1000. Inputs left, fate right. */
TEST(test_pass__rate_queue_and_mark) {
  static const struct {
    uint64_t now_ns, backlog_before;
    int copies;
    uint64_t at_ns;
    bool ce;
  } rows[] = {
      {0, 0, 1, 1100, false},       {600, 400, 1, 2100, false},
      {1200, 800, 1, 3100, false},  {1800, 1200, 0, 0, false}, /* 1200 + 1000 do not fit */
      {2000, 1000, 1, 4100, false}, {2001, 1999, 0, 0, false},
      {2600, 1400, 0, 0, false},    {3000, 1000, 1, 5100, false},
      {4500, 500, 1, 6100, false},  {7000, 0, 1, 8100, false}, /* the link was idle */
  };
  struct mrc_link link = make_link((struct mrc_link_config){
      .rate_bps = 8000000000, .queue_bytes = 2000, .ecn_bytes = 1000, .delay_ns = 100});
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_link_backlog(&link, rows[i].now_ns), rows[i].backlog_before);
    const struct mrc_link_fate fate = mrc_link_pass(&link, 1000, rows[i].now_ns);
    CHECK_EQ(fate.copies, rows[i].copies);
    if (fate.copies) CHECK_EQ(fate.at_ns[0], rows[i].at_ns);
    CHECK_EQ(fate.ce, rows[i].ce);
  }
  CHECK_EQ(link.overflowed, 3);
  link.config.queue_bytes = 0;
  CHECK(!mrc_link_pass(&link, 1000, 7001).ce); /* 999 bytes wait */
  CHECK(mrc_link_pass(&link, 1000, 7001).ce);
  CHECK_EQ(link.marked, 1);
}

/* With trimming, a full queue loses no packet: trimmed packets go ahead of the waiting ones. */
TEST(test_pass__trims_instead_of_dropping) {
  struct mrc_link link = make_link((struct mrc_link_config){
      .rate_bps = 8000000000, .queue_bytes = 1500, .trim = true, .delay_ns = 100});
  CHECK(!mrc_link_pass(&link, 1000, 0).trimmed);
  const struct mrc_link_fate fate = mrc_link_pass(&link, 1000, 0);
  CHECK(fate.trimmed);
  CHECK_EQ(fate.copies, 1);
  CHECK_EQ(fate.at_ns[0], 100);
  CHECK_EQ(mrc_link_backlog(&link, 0), 1000);
}

/* Which of ten packets of 100 bytes arrive, the first one leftmost. */
TEST(test_pass__exact_losses) {
  static const struct {
    struct mrc_link_config config;
    const char *arrives;
  } rows[] = {
      {{.loss_mask = 0}, "1111111111"},
      {{.loss_mask = 1ull << 2 | 3ull << 5}, "1101100111"},
      {{.lose_n = 2, .lose_of = 5}, "0011100111"},
      {{.lose_n = 5, .lose_of = 5}, "0000000000"},
      {{.silent = true}, "0000000000"},
      {{.mtu_bytes = 100}, "1111111111"},
      {{.mtu_bytes = 99}, "0000000000"},
      {{.loss_ppm = 1000000}, "0000000000"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct mrc_link link = make_link(rows[i].config);
    char arrives[11] = {0};
    for (int k = 0; k < 10; k++)
      arrives[k] = mrc_link_pass(&link, 100, 0).copies ? '1' : '0';
    CHECK_STR_EQ(arrives, rows[i].arrives);
  }
}

TEST(test_pass__the_mask_repeats_after_64) {
  struct mrc_link link = make_link((struct mrc_link_config){.loss_mask = 1ull << 63});
  for (int k = 1; k <= 256; k++)
    CHECK_EQ(mrc_link_pass(&link, 1, 0).copies, k % 64 != 0);
  CHECK_EQ(link.lost, 4);
}

TEST(test_pass__chance_is_about_what_it_says) {
  struct mrc_link link = make_link((struct mrc_link_config){.loss_ppm = 100000,
                                                            .duplicate_ppm = 200000,
                                                            .corrupt_ppm = 300000,
                                                            .reorder_ppm = 400000,
                                                            .reorder_ns = 1000});
  int lost = 0, doubled = 0, corrupt = 0, late = 0;
  for (int k = 0; k < 10000; k++) {
    const struct mrc_link_fate fate = mrc_link_pass(&link, 1, 0);
    lost += fate.copies == 0;
    doubled += fate.copies == 2;
    corrupt += fate.corrupt;
    late += fate.copies && fate.at_ns[0] > 0;
    CHECK(fate.at_ns[0] <= 1000);
    if (fate.copies == 2) CHECK_EQ(fate.at_ns[1], 1000);
  }
  CHECK(lost > 900 && lost < 1100);
  CHECK(doubled > 1650 && doubled < 1950);
  CHECK(corrupt > 2500 && corrupt < 2900);
  CHECK(late > 3400 && late < 3800);
}
