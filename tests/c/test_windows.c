/* SPDX-License-Identifier: Apache-2.0 */
#include "core/windows.h"

#include <errno.h>

#include "check.h"
#include "core/base.h"

/* ---- the send window ---- */

enum { FIRST_SENT = 0xFFFFFE, MTU = 1000 };

/* What packets do in the window, and its bitmaps: tests/fuzz/fuzz_txwin.c, beside a model. */

TEST(test_after__is_by_time_then_by_order) {
  struct mrc_txwin win;
  CHECK_EQ(mrc_txwin_init(&win, 8, 2), 0);
  mrc_txwin_start(&win, FIRST_SENT);
  win.next_order = UINT16_MAX; /* wraps between the first and the second */
  for (uint32_t i = 0; i < 3; i++)
    CHECK_EQ(mrc_txwin_append(&win, 0, MTU, 0, 0, i / 2), mrc_psn_add(FIRST_SENT, i));
  win.next_order += 1 << 15; /* half of all orders were used in the meantime */
  CHECK_EQ(mrc_txwin_append(&win, 0, MTU, 0, 0, 2), mrc_psn_add(FIRST_SENT, 3));
  for (uint32_t a = 0; a < 4; a++)
    for (uint32_t b = 0; b < 4; b++) {
      const struct mrc_txslot *one = mrc_txwin_slot(&win, mrc_psn_add(FIRST_SENT, a));
      const struct mrc_txslot *other = mrc_txwin_slot(&win, mrc_psn_add(FIRST_SENT, b));
      CHECK_EQ(mrc_txslot_after(one, other), a > b);
    }
  mrc_txwin_free(&win);
}

/* ---- the requester ---- */

#define KIB 1024u
#define MIB (KIB * KIB)

TEST(test_part__even_where_bursts_run_on) {
  static const struct {
    uint32_t bytes, path_mtu, part;
  } rows[] = {
      {0, 8844, 8844},          {1, 8844, 8844},
      {8844, 8844, 8844},       {8845, 8844, 8844}, /* an odd size ends its burst */
      {16 * KIB, 8844, 8192},   {64 * KIB, 8844, 8192},
      {128 * KIB, 8844, 8192},  {512 * KIB, 8844, 8844}, /* nine bursts either way */
      {MIB, 8844, 8844},        {64 * KIB, 4096, 4096},
      {4 * KIB, 1444, 1024},  /* 60 packets a burst instead of 3 */
      {64 * KIB, 1444, 1444}, /* a third more packets at most */
      {UINT32_MAX, 8844, 8844}, {UINT32_MAX, 256, 256},
  };
  EACH_ROW(i, rows)
    CHECK_EQ(mrc_part_bytes(rows[i].bytes, rows[i].path_mtu, MRC_BURST_BYTES), rows[i].part);
}

/* Whatever the sizes: the part is legal, and even parts add up to the message. */
TEST(test_part__is_legal) {
  for (uint32_t path_mtu = 256; path_mtu <= 16384; path_mtu += 124)
    for (uint32_t bytes = 1; bytes < 400000; bytes += 256)
      for (uint32_t burst_bytes = 300; burst_bytes < 70000; burst_bytes += 20011) {
        const uint32_t part = mrc_part_bytes(bytes, path_mtu, burst_bytes);
        CHECK(part > 0 && part <= path_mtu && part % 4 == 0);
        CHECK(part == path_mtu || (bytes % part == 0 && part > path_mtu / 2));
        CHECK(3 * mrc_parts(bytes, part) <= 4 * mrc_parts(bytes, path_mtu));
      }
}

/* ---- the receive window ---- */

#define RXWIN FREED_BY(mrc_rxwin_free) struct mrc_rxwin
static struct mrc_rxwin open_rxwin(uint32_t psns, uint32_t first) {
  struct mrc_rxwin win;
  CHECK_EQ(mrc_rxwin_init(&win, psns), 0);
  mrc_rxwin_start(&win, first);
  return win;
}

/* Moves the cumulative PSN as far as it goes, as the responder does. */
static void advance(struct mrc_rxwin *win) {
  while (mrc_bitmap_test(&win->received, win->next_psn))
    mrc_rxwin_advance(win, 1);
}

static void arrive(struct mrc_rxwin *win, uint32_t psn) {
  mrc_rxwin_add(win, psn, false, false);
  advance(win);
}

/* 300 PSNs behind a gap need several SACKs: each PSN is reported twice, then no news is left. */
TEST(test_report__tells_every_psn_twice) {
  enum { FIRST = 0xFFFFB0, N = 300 };
  RXWIN win = open_rxwin(512, FIRST);
  uint8_t told[N] = {0};
  for (uint32_t i = 1; i < N; i++)
    arrive(&win, mrc_psn_add(FIRST, i));
  int reports = 0;
  for (; mrc_rxwin_has_news(&win) || win.reported_once != 0; reports++) {
    uint32_t base;
    const uint64_t bits = mrc_rxwin_report(&win, &(uint64_t){0}, &base);
    CHECK(mrc_psn_diff(base, win.next_psn) >= 0);
    for (uint32_t i = 0; i < 64; i++)
      if (bits >> i & 1) told[mrc_psn_diff(mrc_psn_add(base, i), FIRST)]++;
    CHECK(reports < 20);
    if (reports >= 20) break;
  }
  CHECK_EQ(reports, 12); /* six words, twice */
  CHECK_EQ(told[0], 0);
  for (uint32_t i = 1; i < N; i++)
    CHECK(told[i] >= 2);
}

/* The newest word is reported with the PSNs before it, so the next SACK repeats the news of a lost
   one. */
TEST(test_report__shows_the_newest_with_those_before) {
  RXWIN win = open_rxwin(256, 0);
  uint32_t base;
  for (uint32_t psn = 1; psn < 130; psn++)
    arrive(&win, psn);
  uint64_t words = mrc_rxwin_word(&win, 129);
  CHECK_EQ(mrc_rxwin_report(&win, &words, &base), UINT64_MAX);
  CHECK_EQ(base, 66);
  CHECK_EQ(words, 0);
  CHECK_EQ(win.unreported, mrc_rxwin_word(&win, 1) | mrc_rxwin_word(&win, 64));
  words = win.unreported;
  CHECK_EQ(mrc_rxwin_report(&win, &words, &base), UINT64_MAX - 1); /* PSN 0 is missing */
  CHECK_EQ(base, 0);
  CHECK_EQ(mrc_rxwin_report(&win, &words, &base), UINT64_MAX);
  CHECK_EQ(base, 64);
  CHECK(!mrc_rxwin_has_news(&win));
  mrc_rxwin_on_refused(&win, 66);
  CHECK_EQ(win.unreported, mrc_rxwin_word(&win, 66) | mrc_rxwin_word(&win, 129));
}

/* PSNs that arrived on a plane are reported on that plane, however often others reported them. */
TEST(test_report__repeats_what_is_wanted) {
  RXWIN win = open_rxwin(256, 0);
  for (uint32_t psn = 1; psn < 192; psn++)
    arrive(&win, psn);
  for (int i = 0; i < 4; i++) {
    uint32_t base;
    uint64_t words = mrc_rxwin_word(&win, 64);
    CHECK_EQ(mrc_rxwin_report(&win, &words, &base), UINT64_MAX);
    CHECK_EQ(base, 64);
  }
}

/* In the widest window one word can hold PSNs of both its ends: two reports show them. */
TEST(test_report__shows_both_ends_of_the_widest_window) {
  enum { FIRST = 100, LAST = FIRST + MRC_RXWIN_MAX_PSNS - 1 };
  RXWIN win = open_rxwin(MRC_RXWIN_MAX_PSNS, FIRST);
  arrive(&win, LAST);
  arrive(&win, FIRST + 1);
  uint64_t words = mrc_rxwin_word(&win, LAST);
  CHECK_EQ(words, mrc_rxwin_word(&win, FIRST));
  uint32_t base;
  CHECK_EQ(mrc_rxwin_report(&win, &words, &base), 1ull << 63);
  CHECK_EQ(base, LAST - 63);
  CHECK(words != 0);
  CHECK_EQ(mrc_rxwin_report(&win, &words, &base), 2);
  CHECK_EQ(base, FIRST);
  CHECK_EQ(words, 0);
  CHECK(!mrc_rxwin_has_news(&win));
}

/* A word whose PSNs all arrived in order is not repeated: its bits in the ring hold later PSNs. */
TEST(test_report__forgets_what_the_cumulative_psn_covers) {
  RXWIN win = open_rxwin(256, 0);
  for (uint32_t psn = 0; psn < 64; psn++)
    arrive(&win, psn);
  uint64_t words = mrc_rxwin_word(&win, 0);
  arrive(&win, 130);
  uint32_t base;
  CHECK_EQ(mrc_rxwin_report(&win, &words, &base), 1ull << 63); /* the news, PSN 130 */
  CHECK_EQ(base, 67);
  CHECK_EQ(words, 0);
  CHECK_EQ(win.unreported & mrc_rxwin_word(&win, 130), 0); /* and it counts as reported */
}

/* ---- marked packets in a row ---- */

enum { EV = 7, OTHER = 8 };

/* Packets that come together, and whether the EV is called bad then. */
struct arrival {
  uint32_t ev, packets;
  bool ce, bad;
};

static void check(const struct arrival *rows, size_t n) {
  struct mrc_marked marked = {0};
  EACH_OF(size_t, i, 0, n)
    CHECK_EQ(mrc_marked_take(&marked, rows[i].ev, rows[i].packets, rows[i].ce), rows[i].bad);
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
