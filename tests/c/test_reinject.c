/* SPDX-License-Identifier: Apache-2.0 */
/* A packet on a slow plane holds up all others: it is retransmitted on the fast plane. */
#include "core/timeout.h"

#include "pair/connect.h"
#include "scenario.h"

/* A round trip takes 2 ms on plane 1. On plane 2 it takes 2.6 ms at first, and 6.9 ms once it has
   carried data: then it is slow, and the answer still arrives soon after the retransmission. */
static struct mrc_pair *open_unequal(int *end) {
  struct mrc_pair *p = open_pair(.planes = 2, .path.delay_ns = MS);
  for (int host = 0; host < 2; host++)
    mrc_pair_path(p, host, 1 - host, 2, 0)->config.delay_ns = 1300 * US;
  *end = open_qp(p, .memory_bytes = 128u << 20, .probe = true);
  CHECK_EQ(mrc_pair_write(p, *end, 1200 * MTU), 0);
  CHECK(mrc_pair_finish(p, 20 * MS));
  CHECK(mrc_pair_info(p, *end).planes[1].sent_bytes > 0);
  mrc_pair_path(p, 0, 1, 2, 0)->config.delay_ns += 4300 * US;
  return p;
}

/* Writes more than a window, until a packet was retransmitted: in the middle of a write the
   smoothed round trip of the plane has grown so far that the plane counts as slow. */
static void write_until_reinjected(struct mrc_pair *p, int end) {
  for (int i = 0; i < 40 && counter(p, 0, MRC_COUNTER_REINJECTED) == 0; i++) {
    CHECK_EQ(mrc_pair_write(p, end, 1200 * MTU), 0);
    CHECK(mrc_pair_finish(p, 20 * MS));
  }
}

/* The originals arrive soon after: no EV, plane or guard changes, and no packet counts as lost. */
TEST(test_reinject__blames_nobody) {
  int end;
  struct mrc_pair *p = open_unequal(&end);
  write_until_reinjected(p, end);
  const uint64_t reinjected = counter(p, 0, MRC_COUNTER_REINJECTED);
  CHECK(reinjected > 0);
  CHECK_EQ(mrc_pair_info(p, end).spurious_packets, reinjected);
  CHECK_EQ(retransmitted(p, end), reinjected);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].lost_packets, 0);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 0).state, MRC_EV_GOOD);
  const struct mrc_plane *slow = &inside(p, end)->planes[1];
  CHECK_EQ(slow->reorder.ns, 0);
  CHECK_EQ(slow->spread.ns, 0);
  mrc_pair_destroy(p);
}
