/* SPDX-License-Identifier: Apache-2.0 */
#include "core/windows.h"

#include "check.h"

enum { EV = 7, OTHER = 8 };

/* Packets that come together, and whether the EV is called bad then. */
struct arrival {
  uint32_t ev, packets;
  bool ce, bad;
};

static void check(const struct arrival *rows, size_t n) {
  struct mrc_marked marked = {0};
  for (size_t i = 0; i < n; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_marked_take(&marked, rows[i].ev, rows[i].packets, rows[i].ce), rows[i].bad);
  }
}

#define CHECK_ARRIVALS(...)                    \
  check((const struct arrival[]){__VA_ARGS__}, \
        sizeof((const struct arrival[]){__VA_ARGS__}) / sizeof(struct arrival))

TEST(test_take__a_row_while_another_ev_is_clear) {
  CHECK_ARRIVALS({EV, 15, true, false}, {OTHER, 1, false, false}, {EV, 1, true, true});
  CHECK_ARRIVALS({EV, 1, true, false}, {OTHER, 1, false, false}, {EV, 15, true, true});
}

TEST(test_take__what_came_before_does_not_count) {
  CHECK_ARRIVALS({OTHER, 99, false, false}, {EV, 99, true, false});
}

TEST(test_take__all_evs_are_marked) {
  CHECK_ARRIVALS({EV, 99, true, false}, {OTHER, 99, true, false}, {EV, 99, true, false});
}

TEST(test_take__a_packet_without_a_mark_ends_the_row) {
  CHECK_ARRIVALS({EV, 15, true, false}, {EV, 1, false, false}, {OTHER, 1, false, false},
                 {EV, 15, true, false}, {OTHER, 1, false, false}, {EV, 1, true, true});
}

/* A SACK that says so may be lost: another one follows after another row. */
TEST(test_take__again_after_another_row) {
  CHECK_ARRIVALS({EV, 16, true, false}, {OTHER, 1, false, false}, {EV, 1, true, true},
                 {EV, 15, true, false}, {OTHER, 1, false, false}, {EV, 1, true, true});
}

/* More EVs than places: one takes the place of another, and nothing is called bad early. */
TEST(test_take__more_evs_than_places) {
  struct mrc_marked marked = {0};
  for (int round = 0; round < 15; round++)
    for (uint32_t ev = 0; ev < 100; ev++) {
      mrc_marked_take(&marked, 1000, 1, false);
      CHECK(!mrc_marked_take(&marked, ev, 1, true));
    }
}
