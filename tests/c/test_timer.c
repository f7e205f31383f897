/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base.h"

#include "check.h"

TEST(test_pop__earliest_first_and_only_when_due) {
  struct mrc_timers timers;
  struct mrc_timer_cell cells[4];
  mrc_timers_init(&timers, cells, 4);
  CHECK_EQ(mrc_timers_next(&timers), MRC_NEVER);
  CHECK_EQ(mrc_timers_pop(&timers, MRC_NEVER - 1), UINT32_MAX);
  mrc_timers_set(&timers, 2, 30);
  mrc_timers_set(&timers, 0, 10);
  mrc_timers_set(&timers, 3, 20);
  CHECK_EQ(mrc_timers_next(&timers), 10);
  CHECK_EQ(mrc_timers_at(&timers, 3), 20);
  CHECK_EQ(mrc_timers_pop(&timers, 9), UINT32_MAX);
  CHECK_EQ(mrc_timers_pop(&timers, 10), 0);
  CHECK_EQ(mrc_timers_at(&timers, 0), MRC_NEVER);
  mrc_timers_set(&timers, 3, MRC_NEVER); /* cleared */
  mrc_timers_set(&timers, 3, MRC_NEVER); /* and again */
  CHECK_EQ(mrc_timers_pop(&timers, 100), 2);
  CHECK_EQ(mrc_timers_next(&timers), MRC_NEVER);
}

static uint64_t earliest(const uint64_t *deadlines, uint32_t n) {
  uint64_t first = MRC_NEVER;
  for (uint32_t id = 0; id < n; id++)
    first = mrc_min_u64(first, deadlines[id]);
  return first;
}

/* Random sets, clears and pops, compared with a plain array. */
TEST(test_set__keeps_the_order_of_an_array) {
  enum { IDS = 37, STEPS = 20000 };
  struct mrc_timers timers;
  uint64_t model[IDS];
  struct mrc_prng prng = {.state = 2};
  struct mrc_timer_cell cells[IDS];
  mrc_timers_init(&timers, cells, IDS);
  for (uint32_t id = 0; id < IDS; id++)
    model[id] = MRC_NEVER;
  for (int step = 0; step < STEPS; step++) {
    const uint32_t id = mrc_prng_below(&prng, IDS), kind = mrc_prng_below(&prng, 4);
    if (kind < 3) {
      model[id] = kind == 0 ? MRC_NEVER : mrc_prng_below(&prng, 50);
      mrc_timers_set(&timers, id, model[id]);
    } else {
      const uint32_t popped = mrc_timers_pop(&timers, 25);
      CHECK_EQ(popped == UINT32_MAX, earliest(model, IDS) > 25);
      if (popped == UINT32_MAX) continue;
      CHECK_EQ(model[popped], earliest(model, IDS));
      model[popped] = MRC_NEVER;
    }
    CHECK_EQ(mrc_timers_next(&timers), earliest(model, IDS));
  }
}
