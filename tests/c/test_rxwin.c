/* SPDX-License-Identifier: Apache-2.0 */
#include "core/windows.h"

#include <errno.h>

#include "check.h"
#include "core/base.h"

/* Moves the cumulative PSN as far as it goes, as the responder does. */
static void advance(struct mrc_rxwin *win) {
  while (mrc_rxwin_ready(win))
    mrc_rxwin_advance(win, 1);
}

static void arrive(struct mrc_rxwin *win, uint32_t psn) {
  mrc_rxwin_add(win, psn, false, false);
  advance(win);
}

/* PSNs in order of arrival: the verdict on each, the window's start and the bits of the SACK after
   it. The window starts at 0xFFFFFE and is 64 PSNs wide. */
TEST(test_judge__truth_table) {
  static const struct {
    uint32_t psn;
    enum mrc_rx_verdict verdict;
    uint32_t next_psn;
    uint64_t bits;
  } rows[] = {
      {0xFFFFFD, MRC_RX_DUPLICATE, 0xFFFFFE, 0}, /* before the first */
      {0xFFFFFE, MRC_RX_NEW, 0xFFFFFF, 0},
      {0xFFFFFE, MRC_RX_DUPLICATE, 0xFFFFFF, 0},
      {1, MRC_RX_NEW, 0xFFFFFF, 1 << 2}, /* two missing, across the wrap */
      {1, MRC_RX_DUPLICATE, 0xFFFFFF, 1 << 2},
      {0, MRC_RX_NEW, 0xFFFFFF, 3 << 1},
      {63, MRC_RX_BEYOND, 0xFFFFFF, 3 << 1},           /* just outside */
      {62, MRC_RX_NEW, 0xFFFFFF, 1ull << 63 | 3 << 1}, /* the last inside */
      {0xFFFFFF, MRC_RX_NEW, 2, 1ull << 60},
      {66, MRC_RX_BEYOND, 2, 1ull << 60},
      {65, MRC_RX_NEW, 2, 1ull << 63 | 1ull << 60},
      {0x7FFFFF, MRC_RX_BEYOND, 2, 1ull << 63 | 1ull << 60},
      {0x800003, MRC_RX_DUPLICATE, 2, 1ull << 63 | 1ull << 60}, /* half the space behind */
  };
  struct mrc_rxwin win;
  CHECK_EQ(mrc_rxwin_init(&win, 64), 0);
  mrc_rxwin_start(&win, 0xFFFFFE);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    const enum mrc_rx_verdict verdict = mrc_rxwin_judge(&win, rows[i].psn);
    CHECK_EQ(verdict, rows[i].verdict);
    if (verdict == MRC_RX_NEW) arrive(&win, rows[i].psn);
    CHECK_EQ(win.next_psn, rows[i].next_psn);
    CHECK_EQ(mrc_rxwin_view(&win, win.next_psn), rows[i].bits);
  }
  mrc_rxwin_free(&win);
}

TEST(test_advance__tells_the_ends_of_messages) {
  struct mrc_rxwin win;
  CHECK_EQ(mrc_rxwin_init(&win, 128), 0);
  mrc_rxwin_start(&win, 10);
  mrc_rxwin_add(&win, 11, true, false);
  CHECK(!mrc_rxwin_ready(&win));
  mrc_rxwin_add(&win, 10, false, true);
  CHECK(mrc_rxwin_ready(&win) && !mrc_rxwin_ready_is_last(&win));
  uint32_t others;
  CHECK_EQ(mrc_rxwin_run(&win, &others), 1);
  CHECK_EQ(others, 1);
  mrc_rxwin_advance(&win, 1);
  CHECK(mrc_rxwin_ready(&win) && mrc_rxwin_ready_is_last(&win));
  CHECK_EQ(mrc_rxwin_run(&win, &others), 0);
  mrc_rxwin_advance(&win, 1);
  CHECK(!mrc_rxwin_ready(&win));
  mrc_rxwin_free(&win);
}

/* 300 PSNs behind a gap need several SACKs: each PSN is reported twice, then no news is left. */
TEST(test_report__tells_every_psn_twice) {
  enum { FIRST = 0xFFFFB0, N = 300 };
  struct mrc_rxwin win;
  uint8_t told[N] = {0};
  CHECK_EQ(mrc_rxwin_init(&win, 512), 0);
  mrc_rxwin_start(&win, FIRST);
  for (uint32_t i = 1; i < N; i++)
    arrive(&win, mrc_psn_add(FIRST, i));
  int reports = 0;
  for (; mrc_rxwin_has_news(&win) || win.reported_once != 0; reports++) {
    uint32_t base;
    const uint64_t bits = mrc_rxwin_report(&win, &(uint64_t){0}, &base);
    CHECK(!mrc_psn_before(base, win.next_psn));
    for (uint32_t i = 0; i < 64; i++)
      if (bits >> i & 1) told[mrc_psn_diff(mrc_psn_add(base, i), FIRST)]++;
    CHECK(reports < 20);
    if (reports >= 20) break;
  }
  CHECK_EQ(reports, 12); /* six words, twice */
  CHECK_EQ(told[0], 0);
  for (uint32_t i = 1; i < N; i++)
    CHECK(told[i] >= 2);
  mrc_rxwin_free(&win);
}

/* The newest word is reported with the PSNs before it, so the next SACK repeats the news of a lost
   one. */
TEST(test_report__shows_the_newest_with_those_before) {
  struct mrc_rxwin win;
  uint32_t base;
  CHECK_EQ(mrc_rxwin_init(&win, 256), 0);
  mrc_rxwin_start(&win, 0);
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
  mrc_rxwin_free(&win);
}

/* PSNs that arrived on a plane are reported on that plane, however often others reported them. */
TEST(test_report__repeats_what_is_wanted) {
  struct mrc_rxwin win;
  CHECK_EQ(mrc_rxwin_init(&win, 256), 0);
  mrc_rxwin_start(&win, 0);
  for (uint32_t psn = 1; psn < 192; psn++)
    arrive(&win, psn);
  for (int i = 0; i < 4; i++) {
    uint32_t base;
    uint64_t words = mrc_rxwin_word(&win, 64);
    CHECK_EQ(mrc_rxwin_report(&win, &words, &base), UINT64_MAX);
    CHECK_EQ(base, 64);
  }
  mrc_rxwin_free(&win);
}

/* In the widest window one word can hold PSNs of both its ends: two reports show them. */
TEST(test_report__shows_both_ends_of_the_widest_window) {
  enum { FIRST = 100, LAST = FIRST + MRC_RXWIN_MAX_PSNS - 1 };
  struct mrc_rxwin win;
  CHECK_EQ(mrc_rxwin_init(&win, MRC_RXWIN_MAX_PSNS), 0);
  mrc_rxwin_start(&win, FIRST);
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
  mrc_rxwin_free(&win);
}

/* A word whose PSNs all arrived in order is not repeated: its bits in the ring hold later PSNs. */
TEST(test_report__forgets_what_the_cumulative_psn_covers) {
  struct mrc_rxwin win;
  CHECK_EQ(mrc_rxwin_init(&win, 256), 0);
  mrc_rxwin_start(&win, 0);
  for (uint32_t psn = 0; psn < 64; psn++)
    arrive(&win, psn);
  uint64_t words = mrc_rxwin_word(&win, 0);
  arrive(&win, 130);
  uint32_t base;
  CHECK_EQ(mrc_rxwin_report(&win, &words, &base), 1ull << 63); /* the news, PSN 130 */
  CHECK_EQ(base, 67);
  CHECK_EQ(words, 0);
  CHECK_EQ(win.unreported & mrc_rxwin_word(&win, 130), 0); /* and it counts as reported */
  mrc_rxwin_free(&win);
}

TEST(test_report__without_news_shows_the_start) {
  struct mrc_rxwin win;
  uint32_t base;
  CHECK_EQ(mrc_rxwin_init(&win, 128), 0);
  mrc_rxwin_start(&win, 5);
  CHECK(!mrc_rxwin_has_news(&win));
  CHECK_EQ(mrc_rxwin_report(&win, &(uint64_t){0}, &base), 0);
  CHECK_EQ(base, 5);
  arrive(&win, 7);
  CHECK_EQ(mrc_rxwin_report(&win, &(uint64_t){0}, &base), 1 << 2);
  CHECK_EQ(mrc_rxwin_report(&win, &(uint64_t){0}, &base), 1 << 2);
  CHECK_EQ(base, 5);
  mrc_rxwin_free(&win);
}

/* The kernel refuses a SACK of two words. Then the window's start leaves the first word, and more
   PSNs arrive than one SACK can show. The PSN of the second word still counts as news. */
TEST(test_on_refused__takes_back_both_words) {
  struct mrc_rxwin win;
  uint32_t base;
  bool told = false;
  CHECK_EQ(mrc_rxwin_init(&win, 256), 0);
  mrc_rxwin_start(&win, 60);
  arrive(&win, 70);
  CHECK_EQ(mrc_rxwin_report(&win, &(uint64_t){0}, &base), 1 << 10);
  mrc_rxwin_on_refused(&win, base);
  for (uint32_t psn = 60; psn < 64; psn++)
    arrive(&win, psn);
  arrive(&win, 200);
  while (mrc_rxwin_has_news(&win)) {
    const uint64_t bits = mrc_rxwin_report(&win, &(uint64_t){0}, &base);
    told |= base <= 70 && 70 - base < 64 && (bits >> (70 - base) & 1);
  }
  CHECK(told);
  mrc_rxwin_free(&win);
}

/* Compared with a plain array of flags: in any order of arrival, SACKs report only PSNs that
   arrived, and the window's start is the first missing PSN. */
TEST(test_add__agrees_with_a_set) {
  enum { WINDOW = 256, PSNS = 20000 };
  static bool arrived[PSNS + WINDOW];
  struct mrc_rxwin win;
  struct mrc_prng prng = {.state = 3};
  const uint32_t first = 0xFFF000;
  CHECK_EQ(mrc_rxwin_init(&win, WINDOW), 0);
  mrc_rxwin_start(&win, first);
  memset(arrived, 0, sizeof arrived);
  for (uint32_t cum = 0; cum < PSNS;) {
    const uint32_t i = cum + mrc_prng_below(&prng, mrc_prng_below(&prng, 2) ? 3 : WINDOW);
    const enum mrc_rx_verdict verdict = mrc_rxwin_judge(&win, mrc_psn_add(first, i));
    CHECK_EQ(verdict, arrived[i] ? MRC_RX_DUPLICATE : MRC_RX_NEW);
    if (verdict == MRC_RX_NEW) arrive(&win, mrc_psn_add(first, i));
    arrived[i] = true;
    while (arrived[cum])
      cum++;
    CHECK_EQ(mrc_psn_sub(win.next_psn, first), cum);
    uint32_t base;
    const uint64_t bits = mrc_rxwin_report(&win, &(uint64_t){0}, &base);
    const uint32_t offset = mrc_psn_sub(base, first);
    CHECK(offset >= cum && offset < cum + WINDOW);
    for (uint32_t k = 0; k < 64 && offset + k < cum + WINDOW; k++)
      CHECK_EQ(bits >> k & 1, arrived[offset + k]);
  }
  mrc_rxwin_free(&win);
}
