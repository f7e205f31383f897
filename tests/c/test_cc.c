/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cc.h"

#include <errno.h>

#include "check.h"

enum { MTU = 4096, MS = 1000000, BASE_RTT = 100000 };
#define MAX_BYTES (64ull << 20)

static const struct mrc_cc_loss overflow = {.cause = MRC_CC_LOSS_OVERFLOW, .bytes = MTU};

static struct mrc_cc open_cc(uint8_t kind, uint64_t max_bytes) {
  struct mrc_cc cc;
  const struct mrc_cc_config config = {
      .kind = kind, .mtu_bytes = MTU, .max_bytes = max_bytes, .planes = 1};
  CHECK_EQ(mrc_cc_init(&cc, &config), 0);
  return cc;
}

/* By delay, in slow start. */
static struct mrc_cc by_delay(void) { return open_cc(MRC_CC_DELAY, MAX_BYTES); }

/* By delay, with this window behind slow start. */
static struct mrc_cc with_window(uint64_t cwnd_bytes) {
  struct mrc_cc cc = by_delay();
  cc.delay.slow_start = false;
  cc.cwnd_bytes = cwnd_bytes;
  return cc;
}

/* Some bytes with this delay beyond the base RTT, while so many were in flight. */
static struct mrc_cc_ack ack_of(uint64_t bytes, uint64_t inflight_bytes, uint64_t base_rtt_ns,
                                uint64_t delay_ns) {
  return (struct mrc_cc_ack){.bytes = bytes,
                             .inflight_bytes = inflight_bytes,
                             .rtt_ns = base_rtt_ns + delay_ns,
                             .base_rtt_ns = base_rtt_ns,
                             .smooth_rtt_ns = base_rtt_ns + delay_ns};
}

/* One round trip: the whole window is used and every plane has this queueing delay. */
static void full_round(struct mrc_cc *cc, uint32_t planes, const uint64_t *delay_ns,
                       uint64_t *now_ns) {
  const uint64_t cwnd = cc->cwnd_bytes;
  *now_ns += mrc_max_u64(BASE_RTT + delay_ns[0], MRC_CC_MIN_ROUND_NS);
  for (uint32_t plane = 0; plane < planes; plane++) {
    struct mrc_cc_ack ack = ack_of(cwnd / planes, cwnd, BASE_RTT, delay_ns[plane]);
    ack.plane = plane;
    mrc_cc_on_ack(cc, &ack, *now_ns);
  }
}

TEST(test_init__bounds) {
  struct mrc_cc cc = by_delay();
  CHECK_EQ(cc.cwnd_bytes, MRC_CC_INITIAL_BYTES);
  CHECK_EQ(cc.min_bytes, 2 * MTU);
  const struct mrc_cc_config one_of_four = {
      .kind = MRC_CC_DELAY, .mtu_bytes = MTU, .max_bytes = MAX_BYTES, .planes = 1, .windows = 4};
  CHECK_EQ(mrc_cc_init(&cc, &one_of_four), 0);
  CHECK_EQ(cc.cwnd_bytes, MRC_CC_INITIAL_BYTES / 4);
  cc = open_cc(MRC_CC_DELAY, 2 * MTU); /* the PSN window is smaller */
  CHECK_EQ(cc.cwnd_bytes, 2 * MTU);
}

TEST(test_on_ack__slow_start_doubles_while_the_queue_is_empty) {
  struct mrc_cc cc = by_delay();
  uint64_t now_ns = 0;
  const uint64_t delay_ns = 0;
  for (int i = 1; i <= 4; i++) {
    full_round(&cc, 1, &delay_ns, &now_ns);
    CHECK_EQ(cc.cwnd_bytes, MRC_CC_INITIAL_BYTES << i);
  }
}

TEST(test_on_ack__does_not_grow_what_is_not_used) {
  struct mrc_cc cc = by_delay();
  const struct mrc_cc_ack ack = ack_of(MTU, MTU, BASE_RTT, 0);
  for (int i = 0; i < 10; i++)
    mrc_cc_on_ack(&cc, &ack, (uint64_t)(i + 1) * MS);
  CHECK_EQ(cc.cwnd_bytes, MRC_CC_INITIAL_BYTES);
}

/* A queue drains at 62.5 bytes a microsecond (500 Mbit/s); bytes in flight beyond the bandwidth
   delay product wait in it. From any start, the window settles at a wait near the target. */
TEST(test_on_ack__settles_near_the_target) {
  static const uint64_t starts[] = {4 * MTU, MRC_CC_INITIAL_BYTES, 16ull << 20};
  EACH_ROW(i, starts) {
    struct mrc_cc cc = by_delay();
    uint64_t now_ns = 0, delay_ns = 0;
    cc.cwnd_bytes = starts[i];
    for (int round = 0; round < 200; round++) {
      const uint64_t serve_ns = cc.cwnd_bytes * 16;
      delay_ns = serve_ns > BASE_RTT ? serve_ns - BASE_RTT : 0;
      full_round(&cc, 1, &delay_ns, &now_ns);
    }
    CHECK(delay_ns > MRC_CC_TARGET_DELAY_NS / 2 && delay_ns < MRC_CC_TARGET_DELAY_NS * 5 / 4);
  }
}

/* A round trip of a host that sends, with a queue of its own and one in the reverse direction. */
static void two_way_round(struct mrc_cc *cc, uint64_t own_ns, uint64_t reverse_ns,
                          uint64_t now_ns) {
  struct mrc_cc_ack ack = ack_of(cc->cwnd_bytes, cc->cwnd_bytes, BASE_RTT, own_ns + reverse_ns);
  ack.reverse_ns = reverse_ns;
  mrc_cc_on_ack(cc, &ack, now_ns);
}

/* Two hosts write to each other at 500 Mbit/s, and SACKs wait behind data. The larger window has
   the queue, and sets the round trip of both. From unequal windows both come to use their link. */
TEST(test_on_ack__two_hosts_share_both_queues) {
  enum { ROUNDS = 400, LAST = 100 };
  struct mrc_cc ccs[2];
  uint64_t now_ns = 0, sent_ns[2] = {0}, passed_ns = 0;
  for (int i = 0; i < 2; i++)
    ccs[i] = with_window(i == 0 ? 4 << 20 : 1 << 16);
  for (int round = 0; round < ROUNDS; round++) {
    const uint64_t serve_ns[2] = {ccs[0].cwnd_bytes * 16, ccs[1].cwnd_bytes * 16};
    const int larger = serve_ns[1] > serve_ns[0];
    const uint64_t rtt_ns = mrc_max_u64(serve_ns[larger], BASE_RTT);
    now_ns += mrc_max_u64(rtt_ns, MS);
    two_way_round(&ccs[larger], rtt_ns - BASE_RTT, 0, now_ns);
    two_way_round(&ccs[!larger], 0, rtt_ns - BASE_RTT, now_ns);
    if (round < ROUNDS - LAST) continue;
    passed_ns += rtt_ns;
    for (int i = 0; i < 2; i++)
      sent_ns[i] += serve_ns[i];
    CHECK(rtt_ns > MRC_CC_TARGET_DELAY_NS && rtt_ns < 3 * MRC_CC_TARGET_DELAY_NS);
  }
  for (int i = 0; i < 2; i++)
    CHECK(sent_ns[i] > passed_ns * 9 / 10);
}

/* Other flows fill the reverse direction: a queue of 20 ms there does not cost goodput. */
TEST(test_on_ack__a_reverse_queue_of_others) {
  enum { ROUNDS = 400, LAST = 100, REVERSE = 20 * MS };
  struct mrc_cc cc = by_delay();
  uint64_t now_ns = 0, sent_ns = 0, passed_ns = 0;
  for (int round = 0; round < ROUNDS; round++) {
    const uint64_t serve_ns = cc.cwnd_bytes * 16;
    const uint64_t rtt_ns = mrc_max_u64(serve_ns, BASE_RTT + REVERSE);
    now_ns += rtt_ns;
    two_way_round(&cc, rtt_ns - BASE_RTT - REVERSE, REVERSE, now_ns);
    if (round < ROUNDS - LAST) continue;
    passed_ns += rtt_ns;
    sent_ns += serve_ns;
    CHECK(rtt_ns - BASE_RTT - REVERSE < 2 * MRC_CC_TARGET_DELAY_NS);
  }
  CHECK(sent_ns > passed_ns * 9 / 10);
}

/* The window covers a round trip of 100 ms and a queue of 40 ms. It shrinks to the round trip plus
   the target queue, not to half. */
TEST(test_on_ack__a_long_way_keeps_what_it_holds) {
  enum { LONG_RTT = 100 * MS };
  struct mrc_cc cc = with_window(14 << 20);
  uint64_t now_ns = 0;
  for (int i = 0; i < 2; i++) {
    now_ns += 300 * MS;
    const struct mrc_cc_ack ack = ack_of(MTU, cc.cwnd_bytes, LONG_RTT, 40 * MS);
    mrc_cc_on_ack(&cc, &ack, now_ns);
    if (i == 0) CHECK(cc.cwnd_bytes > 10 << 20 && cc.cwnd_bytes < 11 << 20);
  }
}

/* A queue above the target (3 ms, or a sixteenth of a long round trip) shrinks the window by the
   excess, and by half at most. */
TEST(test_on_ack__a_decrease_is_half_at_most) {
  enum { BEFORE = 8 << 20 };
  static const struct {
    uint64_t base_ns, delay_ns;
    uint64_t parts_left, of; /* the window becomes parts_left / of */
  } rows[] = {
      {1 * MS, 3 * MS, 1, 1},         {1 * MS, 4 * MS, 4, 5},     {1 * MS, 6 * MS, 4, 7},
      {1 * MS, 8 * MS, 1, 2},         {1 * MS, 50 * MS, 1, 2},    {160 * MS, 90 * MS, 170, 250},
      {160 * MS, 170 * MS, 170, 330}, {160 * MS, 300 * MS, 1, 2},
  };
  EACH_ROW(i, rows) {
    struct mrc_cc cc = with_window(BEFORE);
    const struct mrc_cc_ack ack = ack_of(MTU, 0, rows[i].base_ns, rows[i].delay_ns);
    mrc_cc_on_ack(&cc, &ack, 10 * MS);
    const int64_t expected = (int64_t)(BEFORE * rows[i].parts_left / rows[i].of);
    const int64_t off = (int64_t)cc.cwnd_bytes - expected;
    CHECK(off >= -1 && off <= 1);
  }
}

/* One round trip of n samples of these delays, in turn, while the window is the limit. */
static uint64_t sampled_round(struct mrc_cc *cc, uint64_t base_ns, const uint64_t *delays_ns, int n,
                              uint64_t *now_ns) {
  const uint64_t cwnd = cc->cwnd_bytes;
  uint64_t found_ns = 0;
  for (int i = 0; i < n; i++) {
    *now_ns += base_ns / (uint64_t)n + 1;
    const struct mrc_cc_ack ack = {.bytes = cwnd / (uint64_t)n,
                                   .inflight_bytes = cwnd,
                                   .rtt_ns = base_ns + delays_ns[i],
                                   .base_rtt_ns = base_ns,
                                   .smooth_rtt_ns = base_ns};
    found_ns = mrc_max_u64(found_ns, mrc_cc_on_ack(cc, &ack, *now_ns));
  }
  return found_ns;
}

/* Jitter of 5 ms is no queue while some packet has no delay. A delay of every packet is a queue. */
TEST(test_slow_start__jitter_does_not_end_it) {
  static const uint64_t jitter_ns[] = {5 * MS, 4 * MS, 0, 5 * MS, 3 * MS, 5 * MS, 2 * MS, 5 * MS};
  static const uint64_t queue_ns[] = {9 * MS, 9 * MS, 9 * MS, 9 * MS,
                                      9 * MS, 9 * MS, 9 * MS, 9 * MS};
  struct mrc_cc cc = by_delay();
  uint64_t now_ns = 0;
  for (int i = 0; i < 5; i++)
    sampled_round(&cc, 25 * MS, jitter_ns, 8, &now_ns);
  CHECK(cc.delay.slow_start);
  CHECK(cc.cwnd_bytes >= 16 * MRC_CC_INITIAL_BYTES);
  for (int i = 0; i < 3; i++)
    sampled_round(&cc, 25 * MS, queue_ns, 8, &now_ns);
  CHECK(!cc.delay.slow_start);
}

/* A path of 62.5 bytes a microsecond becomes 10 ms longer. The delay stays when the window shrinks,
   so the drain adds it to the base RTT, and the window fills the longer path. */
TEST(test_drain__finds_a_longer_way) {
  struct mrc_cc cc = by_delay();
  uint64_t now_ns = 0, base_ns = 5 * MS;
  for (int round = 0; round < 200; round++) {
    const uint64_t way_ns = round < 60 ? 5 * MS : 15 * MS;
    const uint64_t serve_ns = cc.cwnd_bytes * 16;
    const uint64_t rtt_ns = mrc_max_u64(serve_ns, way_ns);
    const uint64_t delays_ns[] = {rtt_ns - base_ns, rtt_ns - base_ns};
    const uint64_t found_ns = sampled_round(&cc, base_ns, delays_ns, 2, &now_ns);
    now_ns += rtt_ns - base_ns;
    CHECK(found_ns == 0 || round >= 60);
    if (found_ns != 0) base_ns = found_ns;
  }
  CHECK_EQ(base_ns, 15 * MS);
  CHECK(cc.cwnd_bytes * 16 > 14 * MS && cc.cwnd_bytes * 16 < 22 * MS);
}

/* Rounds without a queue double the growth of the window, twice at most. A round with a queue, even
   below the target, resets the growth. */
TEST(test_on_ack__growth_doubles_in_calm_rounds) {
  static const struct {
    uint64_t delay_ns;
    uint32_t part; /* a round without delay adds 1 / part of the window */
  } rows[] = {{0, 16}, {0, 16}, {0, 8}, {0, 4}, {0, 4}, {2 * MS, 16}, {0, 16}, {0, 16}, {0, 8}};
  struct mrc_cc cc = open_cc(MRC_CC_DELAY, 1ull << 30);
  uint64_t now_ns = 0;
  cc.delay.slow_start = false;
  cc.cwnd_bytes = 1 << 20;
  EACH_ROW(i, rows) {
    const uint64_t before = cc.cwnd_bytes, delay_ns = rows[i].delay_ns;
    full_round(&cc, 1, &delay_ns, &now_ns);
    now_ns += 10 * MS; /* the next acknowledgement ends a round again */
    const uint64_t most = before / 16 * (16 / rows[i].part);
    const uint64_t left_ns = MRC_CC_TARGET_DELAY_NS - delay_ns;
    CHECK_EQ(cc.cwnd_bytes - before, most * left_ns / MRC_CC_TARGET_DELAY_NS + 2 * MTU);
  }
}

/* A timeout discards the samples of the queue before it: a drain then requires a new standing
   queue. */
TEST(test_on_timeout__forgets_the_queue) {
  EACH_OF(int, timeout, 0, 2) {
    const struct mrc_cc_ack ack = {
        .bytes = MTU, .rtt_ns = 20 * MS, .base_rtt_ns = 10 * MS, .smooth_rtt_ns = 10 * MS};
    struct mrc_cc cc = with_window(8 << 20);
    mrc_cc_on_ack(&cc, &ack, 1000 * MS);
    CHECK_EQ(cc.delay.drain, MRC_CC_NO_DRAIN);
    if (timeout) mrc_cc_on_timeout(&cc);
    for (int i = 0; i < 4; i++)
      mrc_cc_on_ack(&cc, &ack, 2000 * MS);
    CHECK_EQ(cc.delay.drain != MRC_CC_NO_DRAIN, !timeout);
  }
}

/* A queue builds up, and its delay stays although the window was cut: the drain sets the window to
   half of the path's capacity without a queue. */
TEST(test_drain__leaves_half_of_what_the_way_holds) {
  static const struct {
    uint64_t base_ns, delay_ns;
  } rows[] = {{10 * MS, 5 * MS}, {10 * MS, 10 * MS}, {20 * MS, 80 * MS}};
  EACH_ROW(i, rows) {
    struct mrc_cc_ack ack = ack_of(MTU, 0, rows[i].base_ns, 0);
    struct mrc_cc cc = by_delay();
    cc.delay.slow_start = false;
    mrc_cc_on_ack(&cc, &ack, 500 * MS); /* a round without a queue */
    ack.rtt_ns += rows[i].delay_ns;
    cc.cwnd_bytes = 8 << 20;
    mrc_cc_on_ack(&cc, &ack, 1000 * MS);
    const uint64_t cut = cc.cwnd_bytes;
    CHECK(cut < 8 << 20);
    mrc_cc_on_ack(&cc, &ack, 2000 * MS);
    const uint64_t holds = cut * rows[i].base_ns / (rows[i].base_ns + rows[i].delay_ns);
    CHECK_EQ(cc.cwnd_bytes, holds / 2);
  }
}

/* A drain does not shorten the delay, so the window before it comes back and doubles as in slow
   start. Then, for 32 round trips, a delay up to the found one does not cut the window: the window
   grows by an eighth a round. */
TEST(test_drain__others_fill_the_queue) {
  static const uint64_t none_ns[8] = {0};
  struct mrc_cc_ack ack = {
      .bytes = MTU, .rtt_ns = 20 * MS, .base_rtt_ns = 10 * MS, .smooth_rtt_ns = 20 * MS};
  struct mrc_cc cc = with_window(4 << 20);
  uint64_t now_ns = 2000 * MS;
  mrc_cc_on_ack(&cc, &ack, 1000 * MS);
  for (int i = 0; i < 3; i++, now_ns += 100 * MS)
    CHECK_EQ(mrc_cc_on_ack(&cc, &ack, now_ns), i < 2 ? 0 : 20 * MS);
  CHECK_EQ(cc.cwnd_bytes, 4 << 20);
  sampled_round(&cc, 20 * MS, none_ns, 8, &now_ns);
  CHECK_EQ(cc.cwnd_bytes, 8 << 20);
  ack.base_rtt_ns = 20 * MS;
  ack.rtt_ns = ack.smooth_rtt_ns = 29 * MS;
  mrc_cc_on_loss(&cc, &overflow, now_ns); /* ends the new slow start */
  for (int i = 0; i < 5; i++, now_ns += 100 * MS) {
    const uint64_t before = cc.cwnd_bytes;
    mrc_cc_on_ack(&cc, &ack, now_ns);
    if (i >= 2) CHECK_EQ(cc.cwnd_bytes, before + before / 8); /* the delay is no longer jitter */
  }
}

/* A late plane delays all planes: the window halves and does not grow in this round. */
TEST(test_on_loss__late_halves_the_window) {
  static const uint64_t none_ns[] = {0, 0};
  struct mrc_cc cc = by_delay();
  uint64_t now_ns = 0;
  cc.delay.slow_start = false;
  sampled_round(&cc, MS, none_ns, 2, &now_ns);
  const uint64_t before = cc.cwnd_bytes;
  mrc_cc_on_loss(&cc, &(struct mrc_cc_loss){.cause = MRC_CC_LOSS_LATE, .bytes = MTU}, now_ns);
  CHECK_EQ(cc.cwnd_bytes, before / 2);
  mrc_cc_on_loss(&cc, &(struct mrc_cc_loss){.cause = MRC_CC_LOSS_LATE, .bytes = MTU}, now_ns);
  CHECK_EQ(cc.cwnd_bytes, before / 2); /* once a round */
}

TEST(test_on_loss__overflow_pays_once_a_round) {
  struct mrc_cc cc = by_delay();
  uint64_t now_ns = 0;
  const uint64_t delay_ns = 0;
  full_round(&cc, 1, &delay_ns, &now_ns);
  const uint64_t before = cc.cwnd_bytes;
  now_ns += 10 * MS;
  mrc_cc_on_loss(&cc, &overflow, now_ns);
  CHECK_EQ(cc.cwnd_bytes, before * 7 / 10);
  mrc_cc_on_loss(&cc, &overflow, now_ns + 1);
  mrc_cc_on_loss(&cc, &overflow, now_ns + 2);
  CHECK_EQ(cc.cwnd_bytes, before * 7 / 10);
  CHECK(!cc.delay.slow_start);
}

TEST(test_on_loss__a_failed_path_costs_no_window) {
  struct mrc_cc cc = by_delay();
  mrc_cc_on_loss(&cc, &(struct mrc_cc_loss){.cause = MRC_CC_LOSS_PATH, .bytes = MTU}, 10 * MS);
  CHECK_EQ(cc.cwnd_bytes, MRC_CC_INITIAL_BYTES);
  CHECK(cc.delay.slow_start);
}

TEST(test_on_timeout__starts_again_from_the_least) {
  struct mrc_cc cc = by_delay();
  uint64_t now_ns = 0;
  const uint64_t delay_ns = 0;
  mrc_cc_on_timeout(&cc);
  CHECK_EQ(cc.cwnd_bytes, 2 * MTU);
  full_round(&cc, 1, &delay_ns, &now_ns);
  CHECK_EQ(cc.cwnd_bytes, 4 * MTU);
}

TEST(test_on_spurious_timeout__gives_the_window_back) {
  struct mrc_cc cc = by_delay();
  mrc_cc_on_timeout(&cc);
  mrc_cc_on_timeout(&cc);
  mrc_cc_on_spurious_timeout(&cc);
  CHECK_EQ(cc.cwnd_bytes, MRC_CC_INITIAL_BYTES);
  CHECK(!cc.delay.slow_start);
}

/* Packets declared lost by a timeout may arrive some rounds into the new slow start: the window
   before the timeout comes back. After a queue has ended the slow start, that window is outdated
   and does not come back. */
TEST(test_on_spurious_timeout__until_slow_start_ends) {
  static const uint64_t none_ns[8] = {0};
  static const uint64_t queue_ns[] = {9 * MS, 9 * MS, 9 * MS, 9 * MS,
                                      9 * MS, 9 * MS, 9 * MS, 9 * MS};
  EACH_OF(int, ended, 0, 2) {
    struct mrc_cc cc = by_delay();
    uint64_t now_ns = 0;
    mrc_cc_on_timeout(&cc);
    for (int i = 0; i < 3; i++)
      sampled_round(&cc, MS, ended ? queue_ns : none_ns, 8, &now_ns);
    CHECK(cc.cwnd_bytes < MRC_CC_INITIAL_BYTES);
    const uint64_t before = cc.cwnd_bytes;
    mrc_cc_on_spurious_timeout(&cc);
    CHECK_EQ(cc.cwnd_bytes, ended ? before : MRC_CC_INITIAL_BYTES);
  }
}

TEST(test_init__refuses_an_unknown_kind) {
  struct mrc_cc cc;
  const struct mrc_cc_config config = {
      .kind = MRC_CC_NSCC + 1, .mtu_bytes = MTU, .max_bytes = MAX_BYTES, .planes = 1};
  CHECK_EQ(mrc_cc_init(&cc, &config), -EINVAL);
}

TEST(test_null__never_moves) {
  struct mrc_cc cc = open_cc(MRC_CC_NULL, MAX_BYTES);
  uint64_t now_ns = 0;
  const uint64_t delay_ns = 50 * MS;
  full_round(&cc, 1, &delay_ns, &now_ns);
  mrc_cc_on_loss(&cc, &overflow, now_ns);
  mrc_cc_on_timeout(&cc);
  CHECK_EQ(cc.cwnd_bytes, MAX_BYTES);
  CHECK(!mrc_cc_is_congestion(&cc, delay_ns));
}

/* Requests a SACK sixteen times a window, with every packet when the window is small; four times
   where other QPs keep it almost empty. */
TEST(test_asks_for_sack__some_times_a_window) {
  static const struct {
    uint64_t cwnd_bytes, inflight_bytes, unasked_bytes;
    bool shared, asks;
  } rows[] = {{1 << 20, 0, 65535, false, false},    {1 << 20, 0, 65536, false, true},
              {16 * MTU, 0, MTU, false, true},      {4 * MTU, 0, MTU, false, true},
              {1 << 20, 262144, 65536, true, true}, {1 << 20, 262143, 262143, true, false},
              {1 << 20, 262143, 262144, true, true}};
  EACH_ROW(i, rows) {
    struct mrc_cc cc = by_delay();
    cc.cwnd_bytes = rows[i].cwnd_bytes;
    cc.unasked_bytes = rows[i].unasked_bytes;
    CHECK_EQ(mrc_cc_asks_for_sack(&cc, rows[i].inflight_bytes, 262144, rows[i].shared),
             rows[i].asks);
  }
}
