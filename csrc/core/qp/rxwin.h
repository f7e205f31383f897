/* SPDX-License-Identifier: Apache-2.0 */
/* The receive window of a responder: which PSNs arrived, which of them end a message, and what the
   next SACK reports. It holds only bitmaps: it places no data and sends nothing. */
#pragma once

#include "core/base.h"

#define MRC_RXWIN_MAX_PSNS 4096 /* so that a 64-bit mask has a bit for each word */

struct mrc_rxwin {
  struct mrc_bitmap received;
  struct mrc_bitmap last;  /* PSNs that end a message, within the window */
  struct mrc_bitmap other; /* PSNs of packets that have the other one of two sizes */
  uint32_t next_psn;       /* the cumulative PSN + 1: first PSN not received (or held back) */
  uint32_t end_psn;        /* one after the highest PSN received */
  uint32_t psns;           /* width of the window: it accepts [next_psn, next_psn + psns) */
  uint64_t unreported;     /* bit w: word w of `received` has news not yet in any SACK */
  uint64_t reported_once;  /* bit w: its news was in only one SACK, which may be lost */
  bool start_is_due;       /* of a word with the window's start and end, the end was reported */
};

enum mrc_rx_verdict { MRC_RX_NEW, MRC_RX_DUPLICATE, MRC_RX_BEYOND };

/* psns is a multiple of 64, at most MRC_RXWIN_MAX_PSNS. 0 or -ENOMEM. */
int mrc_rxwin_init(struct mrc_rxwin *win, uint32_t psns) MRC_MUST_CHECK;
void mrc_rxwin_free(struct mrc_rxwin *win);
void mrc_rxwin_start(struct mrc_rxwin *win, uint32_t first_psn);

enum mrc_rx_verdict mrc_rxwin_judge(const struct mrc_rxwin *win, uint32_t psn);
/* Marks a PSN that was judged NEW. */
void mrc_rxwin_add(struct mrc_rxwin *win, uint32_t psn, bool last, bool other);
/* Whether the PSN at next_psn arrived, and whether it ends a message. */
static inline bool mrc_rxwin_ready(const struct mrc_rxwin *win) {
  return mrc_bitmap_test(&win->received, win->next_psn);
}
static inline bool mrc_rxwin_ready_is_last(const struct mrc_rxwin *win) {
  return mrc_bitmap_test(&win->last, win->next_psn);
}
/* The packets from next_psn on, within one word of the bitmap, that arrived and do not end a
   message. Returns their number, and how many of them have the other size. */
uint32_t mrc_rxwin_run(const struct mrc_rxwin *win, uint32_t *others);
/* Advances the cumulative PSN over n PSNs, which must have arrived and lie in one word. */
void mrc_rxwin_advance(struct mrc_rxwin *win, uint32_t n);

/* The word of the bitmap that holds the PSN, as a bit of a mask. */
static inline uint64_t mrc_rxwin_word(const struct mrc_rxwin *win, uint32_t psn) {
  return 1ull << ((psn & win->received.mask) >> 6);
}
/* Whether one SACK can report every PSN that arrived beyond the cumulative PSN. */
static inline bool mrc_rxwin_fits_one(const struct mrc_rxwin *win) {
  return mrc_psn_diff(win->end_psn, win->next_psn) <= 64;
}
/* The bitmap of one SACK: bit i is set if PSN *base + i arrived. Chooses the word in `wanted`
   nearest to the window's start, removes it from `wanted` and counts it as reported. The newest
   word is shown with as many PSNs before it as fit. If `wanted` has no word in the window, it
   chooses a word with unreported news, else a word reported once, else the 64 PSNs after the
   cumulative PSN. */
uint64_t mrc_rxwin_report(struct mrc_rxwin *win, uint64_t *wanted, uint32_t *base);
/* The kernel refused the report from `base`: its words count as unreported again. */
void mrc_rxwin_on_refused(struct mrc_rxwin *win, uint32_t base);
/* The bitmap from `base`; does not count it as reported. */
uint64_t mrc_rxwin_view(const struct mrc_rxwin *win, uint32_t base);
/* Whether another mrc_rxwin_report would include unreported news. */
bool mrc_rxwin_has_news(const struct mrc_rxwin *win);
