/* SPDX-License-Identifier: Apache-2.0 */
/* Paths outside data centres: long, slow, lossy, with small buffers. The QPs connect as in a real
   setup, where every EV is probed before data. */
#include "core/engine.h"

#include "pair/connect.h"
#include "scenario.h"

/* The time to write `n` messages of `bytes` and have them acknowledged. */
static uint64_t time_of(struct mrc_pair *p, int end, uint32_t bytes, int n) {
  const uint64_t start_ns = p->now_ns;
  for (int i = 0; i < n; i++)
    CHECK_EQ(mrc_pair_write(p, end, bytes), 0);
  CHECK(mrc_pair_finish(p, 100 * SECOND));
  CHECK_EQ(succeeded(p, end), n);
  return p->now_ns - start_ns;
}

/* 40 ms is more than half a wrap of the 16-bit timestamps. */
TEST(test_wan__of_40_ms) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 20 * MS,
                                 .port_out.rate_bps = 100000000, .port_out.queue_bytes = 2000000);
  int end = open_qp(p, .memory_bytes = 32u << 20, .path_mtu = 8844, .probe = true);
  const uint64_t ns = time_of(p, end, 1u << 20, 32);
  CHECK(ns < 1800 * MS); /* 1.34 s at 200 Mbit/s */
  CHECK_EQ(retransmitted(p, end), 0);
  CHECK(mrc_pair_info(p, end).rtt_ns > (int64_t)(40 * MS));
  mrc_pair_destroy(p);
}

/* A round trip of 600 ms, nine times the local timeout. */
TEST(test_wan__longer_than_the_timeout) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 300 * MS);
  int end = open_qp(p, .memory_bytes = 8u << 20, .path_mtu = 8844, .timeout = 16, .probe = true);
  const uint64_t ns = time_of(p, end, 1u << 20, 8);
  CHECK(ns < 7 * 600 * MS);
  CHECK_EQ(retransmitted(p, end), 0);
  mrc_pair_destroy(p);
}

/* Round trips of 2 ms and 600 ms: most samples come from the short one, and the window waits for
   packets on the long one. */
TEST(test_wan__one_plane_longer_than_the_timeout) {
  struct mrc_pair *p = open_pair(.planes = 2, .path.delay_ns = 1 * MS);
  mrc_pair_path(p, 0, 1, 2, 0)->config.delay_ns = 300 * MS;
  mrc_pair_path(p, 1, 0, 2, 0)->config.delay_ns = 300 * MS;
  int end = open_qp(p, .memory_bytes = 64u << 20, .path_mtu = 8844, .timeout = 16, .probe = true,
                    .plane_shares = MRC_SHARES_EQUAL);
  time_of(p, end, 1u << 20, 64);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 0);
  mrc_pair_destroy(p);
}

/* A jumbo frame takes 71 ms on the wire, and many wait before it. */
TEST(test_slow__link_of_1_mbit) {
  struct mrc_pair *p = open_pair(.path.delay_ns = 1 * MS, .path.rate_bps = 1000000);
  int end = open_qp(p, .memory_bytes = 400000, .path_mtu = 8844, .timeout = 16, .retry_linear = 7,
                    .retry_exp = 6, .probe = true);
  const uint64_t ns = time_of(p, end, 100000, 4);
  CHECK(ns < 3600 * MS); /* 3.2 s at 1 Mbit/s */
  CHECK_EQ(retransmitted(p, end), 0);
  mrc_pair_destroy(p);
}

/* A home line: low rate, small buffer. Overflow is congestion, not a dead path. */
TEST(test_slow__link_with_a_small_buffer) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 5 * MS,
                                 .port_out.rate_bps = 10000000, .port_out.queue_bytes = 64000);
  int end = open_qp(p, .memory_bytes = 4u << 20, .path_mtu = 1408, .timeout = 16, .probe = true);
  const uint64_t ns = time_of(p, end, 1u << 20, 4);
  CHECK(ns < 3 * SECOND); /* 1.8 s at 20 Mbit/s */
  CHECK(retransmitted(p, end) < 300);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PLANE, MRC_PAIR_ANY), 0);
  mrc_pair_destroy(p);
}

/* 1 % of loss everywhere costs about the lost packets (T5, T6 of the papers: go-back-N collapses).
 */
TEST(test_lossy__one_percent_costs_little) {
  struct mrc_pair *p =
      open_pair(.planes = 4, .paths = 2, .path.delay_ns = 50 * US, .path.loss_ppm = 10000,
                .port_out.rate_bps = 500000000, .port_out.queue_bytes = 1000000);
  int end = open_qp(p, .memory_bytes = 64u << 20, .path_mtu = 8844, .timeout = 16, .probe = true);
  const uint64_t ns = time_of(p, end, 1u << 20, 64);
  CHECK(ns < 350 * MS);               /* 0.27 s at 2 Gbit/s */
  CHECK(retransmitted(p, end) < 120); /* of 7616 packets, 76 of them lost */
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PLANE, MRC_PAIR_ANY), 0);
  mrc_pair_destroy(p);
}
