/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/agenda.h"

#include "check.h"
#include "core/base/prng.h"

static struct mrc_agenda agenda;

static void test_pop__first_in_first_out_among_equal_times(void) {
  static const uint64_t times[] = {5, 3, 90000, 3, 5, 90000, 0, 32767, 32768};
  static const uint32_t order[] = {6, 1, 3, 0, 4, 7, 8, 2, 5}; /* indices of times */
  struct mrc_heap_entry entry;
  mrc_agenda_init(&agenda);
  CHECK_EQ(mrc_agenda_next_ns(&agenda), UINT64_MAX);
  CHECK(!mrc_agenda_pop(&agenda, &entry));
  for (uint32_t i = 0; i < 9; i++)
    mrc_agenda_push(&agenda, (struct mrc_heap_entry){.at_ns = times[i], .index = i, .kind = i % 2});
  CHECK_EQ(mrc_agenda_count(&agenda, 0), 5);
  for (int i = 0; i < 9; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_agenda_next_ns(&agenda), times[order[i]]);
    CHECK(mrc_agenda_pop(&agenda, &entry));
    CHECK_EQ(entry.index, order[i]);
  }
  mrc_agenda_free(&agenda);
}

/* Of two entries with the same time, the one pushed first comes first, also when it was far in the
   future then and the other is near. */
static void test_pop__keeps_the_order_of_far_and_near(void) {
  struct mrc_heap_entry entry;
  mrc_agenda_init(&agenda);
  mrc_agenda_push(&agenda, (struct mrc_heap_entry){.at_ns = 40000, .index = 1});
  mrc_agenda_push(&agenda, (struct mrc_heap_entry){.at_ns = 20000, .index = 0});
  CHECK(mrc_agenda_pop(&agenda, &entry) && entry.index == 0);
  mrc_agenda_push(&agenda, (struct mrc_heap_entry){.at_ns = 40000, .index = 2});
  CHECK(mrc_agenda_pop(&agenda, &entry) && entry.index == 1);
  CHECK(mrc_agenda_pop(&agenda, &entry) && entry.index == 2);
  mrc_agenda_free(&agenda);
}

static uint64_t delay(struct mrc_prng *prng) {
  static const uint32_t ends[] = {1, 3, 100, 32767, 32769, 200000};
  return mrc_prng_below(prng, ends[mrc_prng_below(prng, 6)]);
}

static void test_pop__as_a_heap_does(void) {
  struct mrc_heap heap = {0};
  struct mrc_prng prng = {.state = 6};
  struct mrc_heap_entry entry, expected = {0};
  mrc_agenda_init(&agenda);
  for (uint32_t i = 0; i < 200000; i++) {
    CHECK_ROW((int)i);
    /* Many entries wait, then few: the wheel is full, then nearly empty. */
    if (mrc_prng_below(&prng, 100) < (i / 20000 % 2 ? 35 : 65)) {
      const struct mrc_heap_entry new = {.at_ns = expected.at_ns + delay(&prng), .index = i};
      mrc_heap_push(&heap, new);
      mrc_agenda_push(&agenda, new);
    } else {
      const bool any = mrc_heap_pop(&heap, &expected);
      CHECK_EQ(mrc_agenda_pop(&agenda, &entry), any);
      CHECK(!any || (entry.at_ns == expected.at_ns && entry.index == expected.index));
    }
    CHECK_EQ(mrc_agenda_next_ns(&agenda), mrc_heap_next_ns(&heap));
  }
  mrc_heap_free(&heap);
  mrc_agenda_free(&agenda);
}

CHECK_MAIN(RUN(test_pop__first_in_first_out_among_equal_times),
           RUN(test_pop__keeps_the_order_of_far_and_near), RUN(test_pop__as_a_heap_does))
