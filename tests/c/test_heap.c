/* SPDX-License-Identifier: Apache-2.0 */
#include "virtual/link.h"

#include "check.h"
#include "core/base.h"

TEST(test_pop__first_in_first_out_among_equal_times) {
  static const uint64_t times[] = {5, 3, 5, 3, 9, 3, 5, 0};
  static const uint32_t order[] = {7, 1, 3, 5, 0, 2, 6, 4}; /* indices of times */
  struct mrc_heap heap = {0};
  struct mrc_heap_entry entry;
  CHECK_EQ(mrc_heap_next_ns(&heap), UINT64_MAX);
  CHECK(!mrc_heap_pop(&heap, &entry));
  for (uint32_t i = 0; i < 8; i++)
    mrc_heap_push(&heap, (struct mrc_heap_entry){.at_ns = times[i], .index = i});
  for (int i = 0; i < 8; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_heap_next_ns(&heap), times[order[i]]);
    CHECK(mrc_heap_pop(&heap, &entry));
    CHECK_EQ(entry.index, order[i]);
  }
  mrc_heap_free(&heap);
}

TEST(test_pop__never_goes_back) {
  struct mrc_heap heap = {0};
  struct mrc_prng prng = {.state = 6};
  struct mrc_heap_entry last = {0}, entry;
  for (int i = 0; i < 20000; i++) {
    /* Never earlier than the last time taken, as in a simulation. */
    const uint64_t at_ns = last.at_ns + mrc_prng_below(&prng, 40);
    mrc_heap_push(&heap, (struct mrc_heap_entry){.at_ns = at_ns});
    if (mrc_prng_below(&prng, 2) == 0) continue;
    CHECK(mrc_heap_pop(&heap, &entry));
    CHECK(entry.at_ns > last.at_ns ||
          (entry.at_ns == last.at_ns && entry.sequence >= last.sequence));
    last = entry;
  }
  while (mrc_heap_pop(&heap, &entry)) {
    CHECK(entry.at_ns >= last.at_ns);
    last = entry;
  }
  CHECK_EQ(heap.n, 0);
  mrc_heap_free(&heap);
}
