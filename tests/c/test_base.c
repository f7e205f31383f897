/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base.h"

#include <errno.h>

#include "check.h"

/* ---- PSNs ---- */

TEST(test_add_sub__wrap_at_24_bits) {
  static const struct {
    uint32_t psn, n, sum, difference;
  } rows[] = {
      {0, 0, 0, 0},
      {0, 1, 1, 0xFFFFFF},
      {1, 1, 2, 0},
      {0xFFFFFF, 1, 0, 0xFFFFFE},
      {0xFFFFFF, 0, 0xFFFFFF, 0xFFFFFF},
      {0xFFFF00, 0x200, 0x100, 0xFFFD00},
      {0x800000, 0x800000, 0, 0},
      {5, 0x1000005, 10, 0}, /* a step beyond the space wraps as often as it must */
  };
  EACH_ROW(i, rows) {
    CHECK_EQ(mrc_psn_add(rows[i].psn, rows[i].n), rows[i].sum);
    CHECK_EQ(mrc_psn_sub(rows[i].psn, rows[i].n), rows[i].difference);
  }
}

TEST(test_diff__half_the_space) {
  static const struct {
    uint32_t a, b;
    int32_t diff;
  } rows[] = {
      {0, 0, 0},
      {1, 0, 1},
      {0, 1, -1},
      {0, 0xFFFFFF, 1}, /* just wrapped */
      {0xFFFFFF, 0, -1},
      {0x7FFFFF, 0, 0x7FFFFF},  /* the farthest ahead */
      {0x800000, 0, -0x800000}, /* half the space away counts as behind, in both directions */
      {0, 0x800000, -0x800000},
      {0x800001, 0, -0x7FFFFF},
      {0xFFFF80, 0x7F, -0xFF},
      {0x7F, 0xFFFF80, 0xFF},
  };
  EACH_ROW(i, rows) {
    CHECK_EQ(mrc_psn_diff(rows[i].a, rows[i].b), rows[i].diff);
  }
}

TEST(test_sub__half_open_range) {
  static const struct {
    uint32_t psn, first, n;
    bool in;
  } rows[] = {
      {10, 10, 0, false}, /* the empty range */
      {10, 10, 1, true},
      {11, 10, 1, false},
      {9, 10, 128, false},
      {137, 10, 128, true},
      {138, 10, 128, false},
      {0xFFFFFF, 0xFFFFF0, 32, true}, /* across the wrap */
      {0, 0xFFFFF0, 32, true},
      {0x0F, 0xFFFFF0, 32, true},
      {0x10, 0xFFFFF0, 32, false},
      {0xFFFFEF, 0xFFFFF0, 32, false},
      {0x7FFFFE, 0, 0x7FFFFF, true},
      {0x7FFFFF, 0, 0x7FFFFF, false},
  };
  EACH_ROW(i, rows)
    CHECK_EQ(mrc_psn_sub(rows[i].psn, rows[i].first) < rows[i].n, rows[i].in);
}

TEST(test_add_diff__are_inverse) {
  for (uint32_t psn = 0; psn <= MRC_PSN_MASK; psn += 0x10101) {
    for (uint32_t n = 0; n < 0x800000; n += 0x7FFF) {
      CHECK_EQ(mrc_psn_diff(mrc_psn_add(psn, n), psn), (int32_t)n);
      CHECK_EQ(mrc_psn_sub(mrc_psn_add(psn, n), n), psn);
    }
  }
}

/* ---- secret numbers ---- */

/* The vector of SipHash's authors for eight bytes; OpenSSL computes the same. */
TEST(test_hash__reference) {
  const uint64_t key[2] = {0x0706050403020100, 0x0F0E0D0C0B0A0908};
  CHECK_EQ(mrc_secret_hash(key, 0x0706050403020100), 0x93F5F5799A932462);
}

TEST(test_next__the_seed_decides) {
  struct mrc_secret one = {.key = {1}}, same = {.key = {1}}, other = {.key = {2}};
  const uint64_t first = mrc_secret_next(&one), second = mrc_secret_next(&one);
  CHECK_EQ(mrc_secret_next(&same), first);
  CHECK_EQ(mrc_secret_next(&same), second);
  CHECK(first != second && mrc_secret_next(&other) != first);
}

/* ---- lists ---- */

struct member {
  char name;
  struct mrc_node node;
};

static char name_of(const struct mrc_node *node) {
  return MRC_NODE_OWNER(node, struct member, node)->name;
}

/* The names of the members in order; checks that the reverse order agrees. */
static const char *names(const struct mrc_node *list) {
  static char text[8];
  int n = 0;
  for (const struct mrc_node *at = list->next; at != list; at = at->next)
    text[n++] = name_of(at);
  text[n] = '\0';
  for (const struct mrc_node *at = list->prev; at != list; at = at->prev)
    CHECK_EQ(name_of(at), text[--n]);
  CHECK_EQ(n, 0);
  return text;
}

TEST(test_append__joins_once_and_prepend_goes_first) {
  struct mrc_node list;
  struct member a = {.name = 'a'}, b = {.name = 'b'}, c = {.name = 'c'};
  mrc_list_init(&list);
  CHECK(mrc_list_is_empty(&list));
  CHECK(!mrc_node_joined(&a.node));
  mrc_list_append(&list, &a.node);
  mrc_list_append(&list, &b.node);
  mrc_list_append(&list, &a.node);
  CHECK_STR_EQ(names(&list), "ab");
  mrc_list_append(list.next, &c.node);
  mrc_list_append(list.next, &b.node);
  CHECK_STR_EQ(names(&list), "cab");
  CHECK(mrc_node_joined(&a.node) && !mrc_list_is_empty(&list));
}

TEST(test_leave__takes_out_whoever_it_is) {
  struct mrc_node list;
  struct member a = {.name = 'a'}, b = {.name = 'b'}, c = {.name = 'c'};
  mrc_list_init(&list);
  mrc_list_append(&list, &a.node);
  mrc_list_append(&list, &b.node);
  mrc_list_append(&list, &c.node);
  mrc_node_leave(&b.node);
  CHECK_STR_EQ(names(&list), "ac");
  mrc_node_leave(&b.node); /* already left: no effect */
  mrc_node_leave(&a.node);
  mrc_node_leave(&c.node);
  CHECK(mrc_list_is_empty(&list) && !mrc_node_joined(&b.node));
  mrc_list_append(&list, &b.node);
  CHECK_STR_EQ(names(&list), "b");
}

/* ---- maps ---- */

TEST(test_put__refuses_twice_and_full) {
  struct mrc_keymap map;
  CHECK_EQ(mrc_keymap_init(&map, 2), 0);
  CHECK_EQ(mrc_keymap_put(&map, 7, 70), 0);
  CHECK_EQ(mrc_keymap_put(&map, 7, 71), -EEXIST);
  CHECK_EQ(mrc_keymap_put(&map, 0, 0), 0);
  CHECK_EQ(mrc_keymap_put(&map, 9, 90), -ENOSPC);
  CHECK_EQ(mrc_keymap_get(&map, 7), 70);
  CHECK_EQ(mrc_keymap_get(&map, 0), 0);
  CHECK_EQ(mrc_keymap_get(&map, 9), MRC_KEYMAP_NONE);
  mrc_keymap_remove(&map, 0);
  CHECK_EQ(mrc_keymap_put(&map, 9, 90), 0);
  mrc_keymap_free(&map);
}

/* Random puts and removes, compared with an array. Keys are few, so runs of full cells are long. */
TEST(test_remove__keeps_every_other_key) {
  enum { KEYS = 64, CAPACITY = 32, STEPS = 20000 };
  struct mrc_keymap map;
  uint32_t model[KEYS];
  uint32_t count = 0;
  struct mrc_prng prng = {.state = 1};
  CHECK_EQ(mrc_keymap_init(&map, CAPACITY), 0);
  for (uint32_t key = 0; key < KEYS; key++)
    model[key] = MRC_KEYMAP_NONE;
  for (uint32_t step = 0; step < STEPS; step++) {
    const uint32_t key = mrc_prng_below(&prng, KEYS);
    if (model[key] != MRC_KEYMAP_NONE) {
      mrc_keymap_remove(&map, key);
      model[key] = MRC_KEYMAP_NONE;
      count--;
    } else if (count < CAPACITY) {
      CHECK_EQ(mrc_keymap_put(&map, key, step), 0);
      model[key] = step;
      count++;
    }
    for (uint32_t k = 0; k < KEYS; k++)
      CHECK_EQ(mrc_keymap_get(&map, k), model[k]);
  }
  mrc_keymap_free(&map);
}

/* ---- slots ---- */

/* Slots and credits, also where the numbers of frames wrap. */

enum { COUNT = 4, BYTES = 100, LEAST = 8, MASK = 0xFF };

static const uint32_t firsts[] = {0, 0xFE, 0xFFFFFFFE};

static struct mrc_slots after(uint32_t first) {
  return (struct mrc_slots){.count = COUNT,
                            .bytes = BYTES,
                            .least = LEAST,
                            .sent = first,
                            .done = first,
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
  EACH_OF(size_t, row, 0, 3) {
    struct mrc_slots slots = after(firsts[row]);
    for (int i = 0; i < COUNT; i++, slots.sent++)
      CHECK(mrc_slots_may_send(&slots));
    CHECK(!mrc_slots_may_send(&slots));
    slots.done++;
    CHECK(!mrc_slots_may_send(&slots));
    CHECK(mrc_slots_credit(&slots, (firsts[row] + 2) & MASK, MASK));
    CHECK(mrc_slots_may_send(&slots));
    slots.sent++; /* the next slot is free at the peer, but not here */
    CHECK(!mrc_slots_may_send(&slots));
  }
}

TEST(test_credit__never_for_more_than_was_sent) {
  EACH_OF(size_t, row, 0, 3) {
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
  EACH_OF(size_t, row, 0, 3) {
    struct mrc_slots slots = after(firsts[row]);
    for (uint32_t i = 0; i < COUNT; i++) {
      const uint32_t frame = slots.arrived & MASK;
      const uint32_t wrong[][2] = {{(frame + 1) & MASK, BYTES},
                                   {(frame - 1) & MASK, BYTES},
                                   {frame, LEAST - 1},
                                   {frame, BYTES + 1}};
      for (size_t k = 0; k < 4; k++)
        CHECK_EQ(mrc_slots_arrive(&slots, wrong[k][0], MASK, wrong[k][1]), MRC_SLOTS_OUT_OF_ORDER);
      const int place = (int)mrc_slots_place(&slots, firsts[row] + i);
      CHECK_EQ(mrc_slots_arrive(&slots, frame, MASK, i % 2 == 0 ? LEAST : BYTES), place);
    }
    const uint32_t late = slots.arrived;
    CHECK_EQ(late, firsts[row] + COUNT);
    CHECK_EQ(mrc_slots_arrive(&slots, late & MASK, MASK, BYTES), MRC_SLOTS_NO_CREDIT);
    slots.freed++; /* which the peer does not know yet */
    CHECK_EQ(mrc_slots_arrive(&slots, late & MASK, MASK, BYTES), MRC_SLOTS_NO_CREDIT);
    slots.told++;
    CHECK(mrc_slots_arrive(&slots, late & MASK, MASK, BYTES) >= 0);
  }
}

TEST(test_free__never_back_nor_beyond_what_arrived) {
  EACH_OF(size_t, row, 0, 3) {
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
