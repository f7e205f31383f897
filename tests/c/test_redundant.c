/* SPDX-License-Identifier: Apache-2.0 */
/* Redundant writes: each packet leaves twice at once, and the first arrival counts. */
#include <stdlib.h>

#include "core/engine.h"
#include "scenario.h"

static int post_twice(struct mrc_pair *p, int end, uint32_t bytes) {
  return mrc_pair_write_twice(p, end, bytes, false);
}

static uint64_t copies(struct mrc_pair *p, int end) { return audit_of(p, end)->copies; }

TEST(test_post__refuses_large_ones) {
  PAIR p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = MRC_MAX_REDUNDANT + 4);
  CHECK_EQ(post_twice(p, end, MRC_MAX_REDUNDANT + 1), -EINVAL);
  const struct mrc_wr wr = {.bytes = 0, .opcode = MRC_WR_WRITE_IMM, .redundant = 2};
  CHECK_EQ(mrc_qp_post(p->hosts[0].engine, p->ends[end]->qpn, &wr, 1, p->now_ns), -EINVAL);
  CHECK_EQ(post_twice(p, end, MRC_MAX_REDUNDANT), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK(copies(p, end) > 0);
  CHECK_EQ(retransmitted(p, end), 0);
}

/* Both planes carry each packet, and both are measured, although each packet counts once. */
TEST(test_copy__takes_another_plane) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  EACH_OF(int, path, 0, 2)
    mrc_pair_path(p, 0, 1, 2, path)->config.delay_ns = 3 * MS;
  int end = open_qp(p, .memory_bytes = 6400, .probe = true);
  EACH_OF(int, i, 0, 100) {
    CHECK_EQ(mrc_pair_write_twice(p, end, 64, i % 2), 0);
    CHECK(mrc_pair_finish(p, 100 * US)); /* the quick plane's copy */
    run_for(p, 10 * MS);
  }
  const struct mrc_qp_info info = mrc_pair_info(p, end);
  CHECK_EQ(copies(p, end), 100);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_TX_REDUNDANT), 100);
  CHECK_EQ(info.sent_packets, 200);
  CHECK_EQ(info.planes[0].sent_packets, 100);
  CHECK_EQ(info.planes[1].sent_packets, 100);
  CHECK_EQ(info.first_sent_bytes, 6400);
  CHECK_EQ(info.acknowledged_bytes, 6400);
  CHECK_EQ(dropped(p, 1, MRC_DROP_DUPLICATE), 100);
  CHECK_EQ(retransmitted(p, end), 0);
  CHECK_EQ(info.spurious_packets, 0);
  CHECK(info.planes[0].rtt_ns < 100000);
  CHECK(info.planes[1].rtt_ns > 3000000);
  /* Two answers for each write, and no more. */
  CHECK(counter(p, 1, MRC_COUNTER_TX_SACKS) <= 200);
  CHECK_EQ(inside(p, end)->planes[0].strikes + inside(p, end)->planes[1].strikes, 0);
}

/* With one plane left the copy takes another EV of it; with one EV there is none. */
TEST(test_copy__takes_another_ev) {
  EACH_OF(int, paths, 1, 3) {
    PAIR p = open_pair(.planes = 2, .paths = paths);
    int end = open_qp(p, .memory_bytes = 640, .probe = true);
    mrc_pair_port_up(p, 0, 2, false);
    EACH_OF(int, i, 0, 10)
      CHECK_EQ(post_twice(p, end, 64), 0);
    CHECK(mrc_pair_finish(p, 10 * MS));
    CHECK_EQ(copies(p, end), paths == 1 ? 0 : 10);
    CHECK_EQ(mrc_pair_info(p, end).planes[1].sent_packets, 0);
    if (paths == 2) CHECK_EQ(mrc_pair_ev(p, end, 1, 0).sent_packets, 10);
  }
}

/* A copy uses no backup while another plane works, and a plane of little weight rarely. */
TEST(test_copy__spares_planes_with_a_price) {
  PAIR p = open_pair(.planes = 3, .paths = 2, .backups = 4);
  int end = open_qp(p, .memory_bytes = 64000, .probe = true);
  CHECK_EQ(mrc_qp_set_weight(p->hosts[0].engine, p->ends[end]->qpn, 2, 25, p->now_ns), 0);
  EACH_OF(int, i, 0, 1000) {
    CHECK_EQ(post_twice(p, end, 64), 0);
    CHECK(mrc_pair_finish(p, MS));
  }
  const struct mrc_qp_info info = mrc_pair_info(p, end);
  CHECK_EQ(copies(p, end), 1000);
  CHECK_EQ(info.planes[2].sent_packets, 0);
  CHECK(info.planes[1].sent_packets * 4 < info.planes[0].sent_packets * 11 / 10);
  CHECK(info.planes[1].sent_packets > 100);
}

/* One of the two is lost: nothing is sent again. Both are lost: selective retransmission, once. */
TEST(test_copy__stands_for_a_lost_packet) {
  EACH_OF(uint32_t, times, 0, 3) {
    PAIR p = open_pair(.planes = 2, .paths = 2);
    int end = open_qp(p, .memory_bytes = 10000, .probe = true);
    lose_data(p, 20, times == 0 ? 0 : 1);
    if (times == 2) lose_data(p, 20, 1);
    EACH_OF(int, i, 0, 40) {
      CHECK_EQ(post_twice(p, end, 64), 0);
      CHECK(mrc_pair_finish(p, i == 20 && times == 2 ? 10 * MS : 100 * US));
    }
    CHECK_EQ(retransmitted(p, end), times == 2 ? 1 : 0);
    CHECK_EQ(copies(p, end), 40);
    CHECK_EQ(mrc_pair_info(p, end).spurious_packets, 0);
  }
}

/* The kernel refuses bursts, and a transmit has room for few: what left at all left twice, or alone
   because the kernel refused its copy. */
TEST(test_copy__is_one_of_a_full_transmit) {
  EACH_OF(int, capacity, 2, 5) {
    PAIR p = open_pair(.planes = 2, .paths = 2, .driver = {.capacity = capacity});
    int end = open_qp(p, .memory_bytes = 6400, .sq_depth = 128, .probe = true);
    EACH_OF(int, i, 0, 100)
      CHECK_EQ(post_twice(p, end, 64), 0);
    CHECK(mrc_pair_finish(p, 10 * MS));
    CHECK_EQ(copies(p, end), 100);
  }
  PAIR p = open_pair(.planes = 2, .paths = 2, .driver = {.refuse_one_in = 2});
  int end = open_qp(p, .memory_bytes = 64000, .sq_depth = 128, .probe = true);
  EACH_OF(int, i, 0, 100) {
    CHECK_EQ(mrc_pair_write_twice(p, end, 640, i % 3 == 0), 0);
    run_for(p, 200 * US);
  }
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK(copies(p, end) > 20 && copies(p, end) < 100);
  CHECK_EQ(retransmitted(p, end), 0);
}

/* Each copy has a seal of its own. */
TEST(test_copy__is_sealed) {
  EACH_OF(uint8_t, mode, MRC_SEAL_AUTH, MRC_SEAL_AEAD + 1) {
    PAIR p = open_pair(.planes = 2, .paths = 2, .driver.refuse_one_in = 5);
    int end = open_qp(p, .memory_bytes = 1u << 20, .seal = mode, .probe = true);
    EACH_OF(int, i, 0, 60) {
      CHECK_EQ(mrc_pair_write_twice(p, end, 1 + 251 * (uint32_t)i, i % 2), 0);
      CHECK(mrc_pair_finish(p, 20 * MS));
    }
    CHECK(copies(p, end) > 60);
    CHECK_EQ(p->hosts[1].drops[MRC_DROP_SEAL] + p->hosts[1].drops[MRC_DROP_REPLAY], 0);
    CHECK_EQ(retransmitted(p, end), 0);
  }
}

/* A plane dies while all writes are redundant: none is late, and the plane is suspended. Whatever
   the copies delivered is no proof of it. */
TEST(test_copy__hides_no_dead_plane) {
  EACH_OF(uint64_t, gap, 0, 3) { /* writes follow each other at once, or after 1 ms or 1 s */
    PAIR p = open_pair(.planes = 2, .paths = 2);
    int end = open_qp(p, .memory_bytes = 1u << 20, .probe = true);
    EACH_OF(int, i, 0, 200) {
      CHECK_EQ(post_twice(p, end, 64), 0);
      CHECK(mrc_pair_finish(p, 100 * US));
      if (i == 20) mrc_pair_silence(p, 1, true);
      if (gap > 0 && i < 60) run_for(p, gap == 1 ? MS : SECOND);
      if (i >= 60) run_for(p, MS);
    }
    CHECK_EQ(mrc_pair_info(p, end).planes[0].suspended, 1);
    CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
    CHECK_EQ(retransmitted(p, end), 0);
    CHECK_EQ(mrc_pair_info(p, end).timeouts, 0);
    mrc_pair_silence(p, 1, false);
    run_for(p, SECOND);
    CHECK_EQ(mrc_pair_info(p, end).planes[0].suspended, 0);
  }
}

static int by_value(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* The time that 999 of 1000 writes of 64 bytes take at most, one after the other. */
static uint64_t p999_ns(uint32_t loss_ppm, bool twice) {
  enum { N = 10000 };
  static uint64_t took_ns[N];
  PAIR p = open_pair(.planes = 2, .paths = 4, .path.loss_ppm = loss_ppm, .path.delay_ns = 100 * US,
                     .port_out.rate_bps = 1000000000);
  int end = open_qp(p, .memory_bytes = 64 * N, .probe = true);
  EACH_OF(int, i, 0, N) {
    const uint64_t since_ns = p->now_ns;
    CHECK_EQ(twice ? post_twice(p, end, 64) : mrc_pair_write(p, end, 64), 0);
    CHECK(mrc_pair_finish(p, SECOND));
    took_ns[i] = p->now_ns - since_ns;
    run_for(p, 50 * US);
  }
  qsort(took_ns, N, sizeof *took_ns, by_value);
  return took_ns[N - N / 1000];
}

/* A loss of one in 100 packets makes the slowest of 1000 redundant writes a fifth slower at most.
 */
TEST(test_copy__keeps_the_latency_under_loss) {
  const uint64_t clean_ns = p999_ns(0, false);
  CHECK(p999_ns(0, true) <= clean_ns + clean_ns / 10);
  CHECK(p999_ns(10000, true) <= clean_ns + clean_ns / 5);
  CHECK(p999_ns(10000, false) > 2 * clean_ns);
}
