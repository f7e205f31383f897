/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/agenda.h"

#include "check.h"
#include "core/base.h"

static struct mrc_agenda agenda;

/* Times as pushed; kinds alternate, and the index counts down. */
TEST(test_pop__by_kind_and_index_among_equal_times) {
  static const uint64_t times[] = {5, 3, 90000, 3, 5, 90000, 0, 32767, 32768, 3, 3};
  static const uint32_t order[] = {6, 10, 9, 3, 1, 4, 0, 7, 8, 2, 5}; /* indices of times */
  struct mrc_heap_entry entry;
  mrc_agenda_init(&agenda);
  CHECK_EQ(mrc_agenda_next_ns(&agenda), UINT64_MAX);
  CHECK(!mrc_agenda_pop(&agenda, &entry));
  for (uint32_t i = 0; i < 11; i++)
    mrc_agenda_push(&agenda,
                    (struct mrc_heap_entry){.at_ns = times[i], .index = 100 - i, .kind = i % 2});
  CHECK_EQ(mrc_agenda_count(&agenda, 0), 6);
  for (int i = 0; i < 11; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_agenda_next_ns(&agenda), times[order[i]]);
    CHECK(mrc_agenda_pop(&agenda, &entry));
    CHECK_EQ(entry.index, 100 - order[i]);
  }
  mrc_agenda_free(&agenda);
}

static void push_at(uint64_t at_ns, uint32_t index, void *pointer) {
  mrc_agenda_push(&agenda,
                  (struct mrc_heap_entry){.at_ns = at_ns, .index = index, .pointer = pointer});
}

/* Of two entries with the same time, kind and index, the one pushed first comes first, also when it
   was far in the future then and the other is near. */
TEST(test_pop__keeps_the_order_of_far_and_near) {
  struct mrc_heap_entry entry;
  int first, second, other;
  mrc_agenda_init(&agenda);
  push_at(40000, 1, &first);
  push_at(20000, 0, NULL);
  CHECK(mrc_agenda_pop(&agenda, &entry) && entry.index == 0);
  push_at(40000, 1, &second);
  push_at(40000, 0, &other);
  CHECK(mrc_agenda_pop(&agenda, &entry) && entry.pointer == &other);
  CHECK(mrc_agenda_pop(&agenda, &entry) && entry.pointer == &first);
  CHECK(mrc_agenda_pop(&agenda, &entry) && entry.pointer == &second);
  mrc_agenda_free(&agenda);
}

/* What is pushed for the time that is being taken follows, whatever its index. */
TEST(test_pop__without_delay_comes_last) {
  static const uint32_t order[] = {5, 6, 3, 1, 2};
  struct mrc_heap_entry entry;
  mrc_agenda_init(&agenda);
  push_at(7, 6, NULL);
  push_at(7, 5, NULL);
  for (int i = 0; i < 5; i++) {
    CHECK_ROW(i);
    CHECK(mrc_agenda_pop(&agenda, &entry));
    CHECK_EQ(entry.index, order[i]);
    if (i == 0) push_at(7, 3, NULL);
    if (i == 2) push_at(7, 1, NULL); /* the slot is empty by now */
    if (i == 2) push_at(7, 2, NULL);
  }
  CHECK(!mrc_agenda_pop(&agenda, &entry));
  mrc_agenda_free(&agenda);
}

static uint64_t delay(struct mrc_prng *prng) {
  static const uint32_t ends[] = {1, 3, 100, 32767, 32769, 200000};
  return mrc_prng_below(prng, ends[mrc_prng_below(prng, 6)]);
}

/* One index for all: the order of insertion decides, as in a heap. */
TEST(test_pop__as_a_heap_does) {
  struct mrc_heap heap = {0};
  struct mrc_prng prng = {.state = 6};
  struct mrc_heap_entry entry, expected = {0};
  mrc_agenda_init(&agenda);
  for (uint32_t i = 0; i < 200000; i++) {
    CHECK_ROW((int)i);
    /* Many entries wait, then few: the wheel is full, then nearly empty. */
    if (mrc_prng_below(&prng, 100) < (i / 20000 % 2 ? 35 : 65)) {
      const struct mrc_heap_entry new = {.at_ns = expected.at_ns + delay(&prng),
                                         .pointer = (void *)(uintptr_t)i};
      mrc_heap_push(&heap, new);
      mrc_agenda_push(&agenda, new);
    } else {
      const bool any = mrc_heap_pop(&heap, &expected);
      CHECK_EQ(mrc_agenda_pop(&agenda, &entry), any);
      CHECK(!any || (entry.at_ns == expected.at_ns && entry.pointer == expected.pointer));
    }
    CHECK_EQ(mrc_agenda_next_ns(&agenda), mrc_heap_next_ns(&heap));
  }
  mrc_heap_free(&heap);
  mrc_agenda_free(&agenda);
}
