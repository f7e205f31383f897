/* SPDX-License-Identifier: Apache-2.0 */
/* Slots and credits of messages and of mailboxes, also where the numbers of frames wrap. */
#include "core/slots.h"

#include "check.h"

enum { COUNT = 4, BYTES = 100, MASK = 0xFF };

static const uint32_t firsts[] = {0, 0xFE, 0xFFFFFFFE};

static struct mrc_slots after(uint32_t first) {
  return (struct mrc_slots){.count = COUNT,
                            .bytes = BYTES,
                            .sent = first,
                            .credit = first,
                            .arrived = first,
                            .freed = first,
                            .told = first};
}

TEST(test_place__goes_round) {
  const struct mrc_slots slots = after(0);
  const uint32_t rows[][2] = {{0, 0}, {3, 300}, {4, 0}, {0xFFFFFFFF, 300}};
  for (size_t i = 0; i < 4; i++)
    CHECK_EQ(mrc_slots_place(&slots, rows[i][0]), rows[i][1]);
}

TEST(test_send__as_many_as_there_are_slots_until_a_credit) {
  for (size_t row = 0; row < 3; row++) {
    CHECK_ROW(row);
    struct mrc_slots slots = after(firsts[row]);
    for (int i = 0; i < COUNT; i++, slots.sent++)
      CHECK(mrc_slots_may_send(&slots));
    CHECK(!mrc_slots_may_send(&slots));
    CHECK(mrc_slots_credit(&slots, (firsts[row] + 1) & MASK, MASK));
    CHECK(mrc_slots_may_send(&slots));
  }
}

TEST(test_credit__never_for_more_than_was_sent) {
  for (size_t row = 0; row < 3; row++) {
    CHECK_ROW(row);
    struct mrc_slots slots = after(firsts[row]);
    slots.sent += 2;
    const struct mrc_slots before = slots;
    CHECK(!mrc_slots_credit(&slots, (firsts[row] + 3) & MASK, MASK));
    CHECK(!mrc_slots_credit(&slots, (firsts[row] - 1) & MASK, MASK));
    CHECK_MEM_EQ(&slots, &before, sizeof slots);
    CHECK(mrc_slots_credit(&slots, firsts[row] & MASK, MASK)); /* the same again */
    CHECK(mrc_slots_credit(&slots, (firsts[row] + 2) & MASK, MASK));
    CHECK_EQ(slots.credit, slots.sent);
  }
}

TEST(test_arrival__next_and_with_credit) {
  for (size_t row = 0; row < 3; row++) {
    CHECK_ROW(row);
    struct mrc_slots slots = after(firsts[row]);
    for (int i = 0; i < COUNT; i++, slots.arrived++) {
      CHECK(mrc_slots_is_next(&slots, slots.arrived & MASK, MASK));
      CHECK(!mrc_slots_is_next(&slots, (slots.arrived + 1) & MASK, MASK));
      CHECK(!mrc_slots_is_next(&slots, (slots.arrived - 1) & MASK, MASK));
      CHECK(mrc_slots_granted(&slots));
    }
    CHECK(!mrc_slots_granted(&slots));
    slots.freed++; /* which the peer does not know yet */
    CHECK(!mrc_slots_granted(&slots));
    slots.told++;
    CHECK(mrc_slots_granted(&slots));
  }
}

TEST(test_free__never_back_nor_beyond_what_arrived) {
  for (size_t row = 0; row < 3; row++) {
    CHECK_ROW(row);
    struct mrc_slots slots = after(firsts[row]);
    slots.arrived += 3;
    const struct {
      uint32_t to, freed;
      bool owes; /* a credit, at half an inbox */
    } steps[] = {{1, 1, false}, {0, 1, false}, {4, 1, false}, {2, 2, true}, {1, 2, true}};
    for (size_t i = 0; i < 5; i++) {
      mrc_slots_free(&slots, firsts[row] + steps[i].to);
      CHECK_EQ(slots.freed, firsts[row] + steps[i].freed);
      CHECK_EQ(mrc_slots_owe(&slots), steps[i].owes);
    }
    slots.told = slots.freed;
    CHECK(!mrc_slots_owe(&slots));
  }
}
