/* SPDX-License-Identifier: Apache-2.0 */
/* Planes that fall silent while the last packets of a message are on their way: no later packet
   shows that they are lost. */
#include "core/timeout.h"

#include "pair/connect.h"
#include "scenario.h"

#define MESSAGE (1u << 18)

/* One message, or one in each direction. Returns how long it took. */
static uint64_t exchange_ns(struct mrc_pair *p, int end, bool both, uint64_t silent_after_ns,
                            uint32_t silent_ports) {
  const uint64_t began_ns = p->now_ns;
  CHECK_EQ(mrc_pair_write(p, end, MESSAGE), 0);
  if (both) CHECK_EQ(mrc_pair_write(p, p->ends[end]->peer, MESSAGE), 0);
  run_for(p, silent_after_ns);
  MRC_EACH_BIT(port, silent_ports)
    mrc_pair_silence(p, (int)port, true);
  CHECK(mrc_pair_finish(p, SECOND));
  return p->now_ns - began_ns;
}

/* The planes fall silent at any moment of a message. It and the next ones never wait longer than a
   few times the minimum silence of 5 ms. */
static void check_all_moments(bool both, uint32_t silent_ports, uint64_t limit_ns) {
  for (int moment = 0; moment < 18; moment++) {
    CHECK_ROW(moment);
    struct mrc_pair *p = open_four_planes();
    const int end = open_qp(p, .memory_bytes = 8u << 20, .mpr = 4096, .sq_depth = 16);
    for (int i = 0; i < 5; i++) {
      exchange_ns(p, end, both, 0, 0);
      run_for(p, 2 * MS);
    }
    uint64_t longest_ns = exchange_ns(p, end, both, (uint64_t)moment * 100 * US, silent_ports);
    for (int i = 0; i < 5; i++)
      longest_ns = mrc_max_u64(longest_ns, exchange_ns(p, end, both, 0, 0));
    CHECK(longest_ns < limit_ns);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 0);
    mrc_pair_destroy(p);
  }
}

TEST(test_tail__one_plane_silent) { check_all_moments(false, 1 << 1, 10 * MS); }

SLOW(test_tail__one_plane_silent_both_ways) { check_all_moments(true, 1 << 1, 10 * MS); }

/* A retransmission does not go to the other silent plane. */
TEST(test_tail__two_planes_silent) { check_all_moments(false, 1 << 1 | 1 << 3, 16 * MS); }

SLOW(test_tail__two_planes_silent_both_ways) { check_all_moments(true, 1 << 1 | 1 << 3, 16 * MS); }
