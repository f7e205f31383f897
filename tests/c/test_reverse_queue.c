/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paths.h"

#include "check.h"

enum { US = 1000, MS = 1000 * US, UNIT = 1024 };
#define SECOND 1000000000ull

/* A SACK that takes `way_ns` and arrives at `now_ns`, from a host whose clock is `ahead_ns` ahead.
 */
static uint64_t sack(struct mrc_reverse_queue *queue, uint64_t now_ns, uint64_t way_ns,
                     uint64_t ahead_ns) {
  return mrc_reverse_queue_ns(queue, mrc_timestamp(now_ns - way_ns + ahead_ns), now_ns);
}

static bool is_near(uint64_t ns, uint64_t expected_ns) {
  return ns <= expected_ns + UNIT && expected_ns <= ns + UNIT;
}

/* Whatever the clock of the peer shows: the difference to the shortest way is the wait. */
TEST(test_sack__waits_are_above_the_shortest_way) {
  static const uint64_t aheads_ns[] = {0, 33 * MS, 67 * MS, 50 * SECOND, -20 * SECOND};
  for (size_t i = 0; i < sizeof aheads_ns / sizeof aheads_ns[0]; i++) {
    CHECK_ROW(i);
    struct mrc_reverse_queue queue = {0};
    uint64_t now_ns = 100 * SECOND;
    CHECK_EQ(sack(&queue, now_ns, 3 * MS, aheads_ns[i]), 0);
    CHECK(is_near(sack(&queue, now_ns += MS, 8 * MS, aheads_ns[i]), 5 * MS));
    CHECK_EQ(sack(&queue, now_ns += MS, 1 * MS, aheads_ns[i]), 0); /* shorter than all before */
    CHECK(is_near(sack(&queue, now_ns += MS, 8 * MS, aheads_ns[i]), 7 * MS));
    CHECK(is_near(sack(&queue, now_ns += MS, 31 * MS, aheads_ns[i]), 30 * MS));
  }
}

/* The clocks drift apart by 100 us a second for a minute: the error stays below 1 ms. */
TEST(test_sack__clocks_drift_apart) {
  for (int direction = -1; direction <= 1; direction += 2) {
    CHECK_ROW(direction);
    struct mrc_reverse_queue queue = {0};
    for (uint64_t ms = 1; ms < 60000; ms += 10) {
      const uint64_t drift_ns = ms * 100;
      const uint64_t ahead_ns = direction > 0 ? drift_ns : -drift_ns;
      CHECK(sack(&queue, 100 * SECOND + ms * MS, 100 * US, ahead_ns) < MS);
    }
  }
}

/* A way that has become longer is the shortest one after two periods, and after a pause at once. */
TEST(test_sack__a_longer_way_is_found) {
  struct mrc_reverse_queue queue = {0};
  uint64_t now_ns = 100 * SECOND;
  CHECK_EQ(sack(&queue, now_ns, MS, 0), 0);
  CHECK(is_near(sack(&queue, now_ns + 1 * SECOND, 3 * MS, 0), 2 * MS));
  CHECK(is_near(sack(&queue, now_ns + 5 * SECOND, 3 * MS, 0), 2 * MS));
  CHECK_EQ(sack(&queue, now_ns + 10 * SECOND, 3 * MS, 0), 0);
  CHECK_EQ(sack(&queue, now_ns + 11 * SECOND, 3 * MS, 0), 0);
  CHECK_EQ(sack(&queue, now_ns + 60 * SECOND, 9 * MS, 0), 0);
}

/* A packet that seems to arrive earlier than the one before it does no harm. */
TEST(test_sack__time_may_go_back) {
  struct mrc_reverse_queue queue = {0};
  CHECK_EQ(sack(&queue, 100 * SECOND, MS, 0), 0);
  CHECK(is_near(sack(&queue, 100 * SECOND - MS, 2 * MS, 0), MS));
}
