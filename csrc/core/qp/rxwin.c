/* SPDX-License-Identifier: Apache-2.0 */
#include "rxwin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int mrc_rxwin_init(struct mrc_rxwin *win, uint32_t psns) {
  mrc_assert(psns >= 64 && psns % 64 == 0 && psns <= MRC_RXWIN_MAX_PSNS);
  /* A spare word keeps the window's end out of its first word, so that each word stands for one
     range. The widest window has no spare word: see is_shared. */
  const uint32_t size = mrc_min_u32(mrc_ceil_pow2(psns + 64), MRC_RXWIN_MAX_PSNS);
  uint64_t *words = calloc(3u * size / 64, sizeof *words);
  if (words == NULL) return -ENOMEM;
  *win = (struct mrc_rxwin){.received = {.words = words, .mask = size - 1},
                            .last = {.words = words + size / 64, .mask = size - 1},
                            .other = {.words = words + 2u * size / 64, .mask = size - 1},
                            .psns = psns};
  return 0;
}

void mrc_rxwin_free(struct mrc_rxwin *win) {
  free(win->received.words);
  *win = (struct mrc_rxwin){0};
}

void mrc_rxwin_start(struct mrc_rxwin *win, uint32_t first_psn) {
  memset(win->received.words, 0, 3u * (win->received.mask + 1) / 8);
  win->next_psn = first_psn;
  win->end_psn = first_psn;
  win->unreported = 0;
  win->reported_once = 0;
  win->start_is_due = false;
}

enum mrc_rx_verdict mrc_rxwin_judge(const struct mrc_rxwin *win, uint32_t psn) {
  if (mrc_psn_before(psn, win->next_psn)) return MRC_RX_DUPLICATE;
  if (!mrc_psn_in(psn, win->next_psn, win->psns)) return MRC_RX_BEYOND;
  return mrc_bitmap_test(&win->received, psn) ? MRC_RX_DUPLICATE : MRC_RX_NEW;
}

void mrc_rxwin_add(struct mrc_rxwin *win, uint32_t psn, bool last, bool other) {
  mrc_assert(mrc_rxwin_judge(win, psn) == MRC_RX_NEW);
  mrc_bitmap_set(&win->received, psn);
  if (last) mrc_bitmap_set(&win->last, psn);
  if (other) mrc_bitmap_set(&win->other, psn);
  win->unreported |= mrc_rxwin_word(win, psn);
  if (!mrc_psn_before(psn, win->end_psn)) win->end_psn = mrc_psn_add(psn, 1);
}

uint32_t mrc_rxwin_run(const struct mrc_rxwin *win, uint32_t *others) {
  const uint32_t bit = win->next_psn & win->received.mask, word = bit >> 6, shift = bit & 63;
  const uint64_t parts = (win->received.words[word] & ~win->last.words[word]) >> shift;
  const uint32_t n = parts == UINT64_MAX >> shift ? 64 - shift : (uint32_t)__builtin_ctzll(~parts);
  const uint64_t mask = n == 64 ? UINT64_MAX : (1ull << n) - 1;
  *others = (uint32_t)__builtin_popcountll(win->other.words[word] >> shift & mask);
  return n;
}

void mrc_rxwin_advance(struct mrc_rxwin *win, uint32_t n) {
  const uint32_t bit = win->next_psn & win->received.mask, word = bit >> 6, shift = bit & 63;
  mrc_assert(n >= 1 && shift + n <= 64);
  const uint64_t passed = UINT64_MAX >> (64 - n) << shift;
  mrc_assert((win->received.words[word] & passed) == passed);
  win->received.words[word] &= ~passed;
  win->last.words[word] &= ~passed;
  win->other.words[word] &= ~passed;
  win->next_psn = mrc_psn_add(win->next_psn, n);
  if (shift + n == 64) { /* from now on the cumulative PSN covers this word */
    win->unreported &= ~(1ull << word);
    win->reported_once &= ~(1ull << word);
  }
}

uint64_t mrc_rxwin_view(const struct mrc_rxwin *win, uint32_t base) {
  uint64_t bits = mrc_bitmap_extract(&win->received, base);
  /* The ring may repeat PSNs of the window's start behind its end: mask them out. */
  const int32_t room = mrc_psn_diff(mrc_psn_add(win->next_psn, win->psns), base);
  if (room <= 0) return 0;
  return room >= 64 ? bits : bits & ((1ull << room) - 1);
}

/* The first PSN of word `word` of the ring. The word with the window's start comes first. */
static uint32_t word_psn(const struct mrc_rxwin *win, uint32_t word) {
  const uint32_t words = (win->received.mask >> 6) + 1;
  const uint32_t first_word = (win->next_psn & win->received.mask) >> 6;
  const uint32_t ahead = (word - first_word) & (words - 1);
  return mrc_psn_add(mrc_psn_sub(win->next_psn, win->next_psn & 63), 64 * ahead);
}

/* The word in `mask` that is nearest to the window's start. */
static uint32_t nearest_word(const struct mrc_rxwin *win, uint64_t mask) {
  const uint32_t words = (win->received.mask >> 6) + 1;
  const uint32_t first_word = (win->next_psn & win->received.mask) >> 6;
  const uint64_t from_first = mask >> first_word << first_word;
  mrc_assert(mask != 0 && (words == 64 || mask >> words == 0));
  return (uint32_t)__builtin_ctzll(from_first != 0 ? from_first : mask);
}

/* The words that hold the PSNs from the window's start to the highest received. */
static uint64_t words_in_use(const struct mrc_rxwin *win) {
  const uint32_t words = (win->received.mask >> 6) + 1;
  const uint32_t first = (win->next_psn & win->received.mask) >> 6;
  const int32_t psns = mrc_psn_diff(win->end_psn, win->next_psn);
  if (psns <= 0) return 0;
  const uint32_t n = ((win->next_psn & 63) + (uint32_t)psns + 63) / 64;
  const uint64_t run = n >= 64 ? UINT64_MAX : (1ull << n) - 1;
  const uint64_t all = words == 64 ? UINT64_MAX : (1ull << words) - 1;
  return (run << first | (first == 0 ? 0 : run >> (words - first))) & all;
}

/* Whether this word holds PSNs of the window's start, and of its end, too. */
static bool is_shared(const struct mrc_rxwin *win, uint32_t word) {
  const int32_t psns = (int32_t)win->received.mask + 1;
  return mrc_psn_before(word_psn(win, word), win->next_psn) &&
         mrc_psn_diff(win->end_psn, word_psn(win, word)) > psns;
}

uint64_t mrc_rxwin_report(struct mrc_rxwin *win, uint64_t *wanted, uint32_t *base) {
  if (mrc_rxwin_fits_one(win)) {
    *wanted = 0;
    win->unreported = 0;
    win->reported_once = 0;
  }
  /* Words behind the cumulative PSN contain no news. */
  *wanted &= words_in_use(win);
  uint64_t choice = *wanted;
  if (choice == 0) choice = win->unreported;
  if (choice == 0) choice = win->reported_once;
  if (choice == 0) {
    *base = win->next_psn;
    return mrc_rxwin_view(win, *base);
  }
  const uint32_t word = nearest_word(win, choice);
  win->start_is_due = is_shared(win, word) && !win->start_is_due;
  if (win->start_is_due) { /* the end first; the word's news is due once more */
    *base = mrc_psn_sub(win->end_psn, 64);
    return mrc_rxwin_view(win, *base);
  }
  const uint64_t bit = 1ull << word;
  win->reported_once =
      (win->unreported & bit) != 0 ? win->reported_once | bit : win->reported_once & ~bit;
  win->unreported &= ~bit;
  *wanted &= ~bit;
  *base = word_psn(win, word);
  /* The newest word is reported with the PSNs before it, so that one lost SACK does no harm. */
  if (mrc_psn_diff(win->end_psn, *base) < 64) *base = mrc_psn_sub(win->end_psn, 64);
  if (mrc_psn_before(*base, win->next_psn)) *base = win->next_psn;
  return mrc_rxwin_view(win, *base);
}

void mrc_rxwin_on_refused(struct mrc_rxwin *win, uint32_t base) {
  /* The view covered one word, or parts of two words. */
  const uint32_t last = mrc_psn_sub(win->end_psn, 1);
  const uint32_t top = mrc_psn_add(base, 63);
  if (!mrc_psn_before(base, win->end_psn)) return;
  win->unreported |= mrc_rxwin_word(win, base);
  win->unreported |= mrc_rxwin_word(win, mrc_psn_before(last, top) ? last : top);
}

bool mrc_rxwin_has_news(const struct mrc_rxwin *win) {
  return win->unreported != 0 && !mrc_rxwin_fits_one(win);
}
