/* SPDX-License-Identifier: Apache-2.0 */
#include "txwin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int mrc_txwin_init(struct mrc_txwin *win, uint32_t psns, uint32_t planes) {
  mrc_assert(psns >= 1 && psns <= MRC_TXWIN_MAX_PSNS);
  mrc_assert(planes >= 1 && planes <= MRC_MAX_PORTS);
  const uint32_t size = mrc_ceil_pow2(mrc_max_u32(64, psns));
  *win =
      (struct mrc_txwin){.slots = malloc(size * sizeof *win->slots),
                         .tosend = {.words = calloc(size / 64, sizeof(uint64_t)), .mask = size - 1},
                         .lists = calloc(planes, sizeof *win->lists),
                         .psns = psns,
                         .mask = size - 1,
                         .fresh = size,
                         .planes = planes};
  if (win->slots == NULL || win->tosend.words == NULL || win->lists == NULL) {
    mrc_txwin_free(win);
    return -ENOMEM;
  }
  mrc_txwin_start(win, 0);
  return 0;
}

void mrc_txwin_free(struct mrc_txwin *win) {
  free(win->slots);
  free(win->tosend.words);
  free(win->lists);
  *win = (struct mrc_txwin){0};
}

void mrc_txwin_start(struct mrc_txwin *win, uint32_t first_psn) {
  mrc_txwin_clear(win);
  win->una_psn = first_psn;
  win->next_psn = first_psn;
  win->fresh = win->mask + 1;
}

void mrc_txwin_clear(struct mrc_txwin *win) {
  for (uint32_t psn = win->una_psn; psn != win->next_psn; psn = mrc_psn_add(psn, 1))
    *mrc_txwin_slot(win, psn) = (struct mrc_txslot){.state = MRC_TX_FREE};
  memset(win->tosend.words, 0, (win->mask + 1) / 8);
  for (uint32_t plane = 0; plane < win->planes; plane++)
    win->lists[plane] = (struct mrc_txlist){.oldest = MRC_TX_NONE, .newest = MRC_TX_NONE};
  win->inflight_bytes = 0;
  win->n_tosend = 0;
  win->una_psn = win->next_psn;
}

uint32_t mrc_txwin_psn_of(const struct mrc_txwin *win, uint16_t slot) {
  const uint32_t ahead = (slot - win->una_psn) & win->mask;
  return mrc_psn_add(win->una_psn, ahead);
}

/* The slot of the next PSN. */
static struct mrc_txslot *next_slot(struct mrc_txwin *win) {
  struct mrc_txslot *slot = mrc_txwin_slot(win, win->next_psn);
  mrc_assert(mrc_txwin_outstanding(win) <= win->mask);
  if (win->fresh > 0)
    win->fresh--;
  else
    mrc_assert(slot->state == MRC_TX_FREE);
  return slot;
}

uint32_t mrc_txwin_open(struct mrc_txwin *win, uint32_t wqe, uint32_t bytes) {
  mrc_assert(bytes <= UINT16_MAX);
  const uint32_t psn = win->next_psn;
  struct mrc_txslot *slot = next_slot(win);
  *slot = (struct mrc_txslot){.wqe = (uint16_t)wqe,
                              .bytes = (uint16_t)bytes,
                              .state = MRC_TX_UNSENT,
                              .ev = MRC_TX_NONE,
                              .ev_lost = MRC_TX_NONE,
                              .older = MRC_TX_NONE,
                              .newer = MRC_TX_NONE};
  win->next_psn = mrc_psn_add(psn, 1);
  mrc_bitmap_set(&win->tosend, psn);
  win->n_tosend++;
  return psn;
}

uint32_t mrc_txwin_first_tosend(const struct mrc_txwin *win) {
  mrc_assert(win->n_tosend > 0);
  const uint32_t outstanding = mrc_txwin_outstanding(win);
  const uint32_t ahead = mrc_bitmap_find(&win->tosend, win->una_psn, outstanding);
  mrc_assert(ahead < outstanding);
  return mrc_psn_add(win->una_psn, ahead);
}

static void list_append(struct mrc_txwin *win, struct mrc_txslot *slot) {
  struct mrc_txlist *list = &win->lists[slot->plane];
  const uint16_t index = (uint16_t)(slot - win->slots);
  slot->older = list->newest;
  slot->newer = MRC_TX_NONE;
  if (list->newest != MRC_TX_NONE)
    win->slots[list->newest].newer = index;
  else
    list->oldest = index;
  list->newest = index;
  list->bytes += slot->bytes;
  win->inflight_bytes += slot->bytes;
}

static void list_remove(struct mrc_txwin *win, struct mrc_txslot *slot) {
  struct mrc_txlist *list = &win->lists[slot->plane];
  mrc_assert(list->bytes >= slot->bytes && win->inflight_bytes >= slot->bytes);
  if (slot->older != MRC_TX_NONE)
    win->slots[slot->older].newer = slot->newer;
  else
    list->oldest = slot->newer;
  if (slot->newer != MRC_TX_NONE)
    win->slots[slot->newer].older = slot->older;
  else
    list->newest = slot->older;
  slot->older = slot->newer = MRC_TX_NONE;
  list->bytes -= slot->bytes;
  win->inflight_bytes -= slot->bytes;
}

uint32_t mrc_txwin_append(struct mrc_txwin *win, uint32_t wqe, uint32_t bytes, uint16_t ev,
                          uint8_t plane, uint64_t now_ns) {
  mrc_assert(bytes <= UINT16_MAX && plane < win->planes);
  const uint32_t psn = win->next_psn;
  struct mrc_txslot *slot = next_slot(win);
  *slot = (struct mrc_txslot){.sent_ns = now_ns,
                              .order = win->next_order++,
                              .wqe = (uint16_t)wqe,
                              .bytes = (uint16_t)bytes,
                              .ev = ev,
                              .ev_lost = MRC_TX_NONE,
                              .state = MRC_TX_INFLIGHT,
                              .tries = 1,
                              .plane = plane & 31};
  win->next_psn = mrc_psn_add(psn, 1);
  list_append(win, slot);
  return psn;
}

static void queue_again(struct mrc_txwin *win, struct mrc_txslot *slot, uint32_t psn,
                        enum mrc_tx_state state) {
  list_remove(win, slot);
  slot->state = state;
  mrc_bitmap_set(&win->tosend, psn);
  win->n_tosend++;
}

void mrc_txwin_on_send(struct mrc_txwin *win, uint32_t psn, uint16_t ev, uint8_t plane,
                       uint64_t now_ns) {
  struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
  mrc_assert(mrc_txwin_holds(win, psn) && plane < win->planes);
  mrc_assert(slot->state == MRC_TX_UNSENT || slot->state == MRC_TX_LOST);
  mrc_bitmap_clear(&win->tosend, psn);
  win->n_tosend--;
  slot->state = MRC_TX_INFLIGHT;
  slot->ev = ev;
  slot->plane = plane & 31;
  slot->sent_ns = now_ns;
  slot->order = win->next_order++;
  if (slot->tries < MRC_TX_MAX_TRIES) slot->tries++;
  list_append(win, slot);
}

void mrc_txwin_on_refused(struct mrc_txwin *win, uint32_t psn) {
  struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
  mrc_assert(slot->state == MRC_TX_INFLIGHT && slot->tries > 0);
  slot->tries--;
  queue_again(win, slot, psn, slot->tries == 0 ? MRC_TX_UNSENT : MRC_TX_LOST);
}

void mrc_txwin_on_lost(struct mrc_txwin *win, uint32_t psn) {
  struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
  mrc_assert(slot->state == MRC_TX_INFLIGHT);
  slot->ev_lost = slot->ev;
  queue_again(win, slot, psn, MRC_TX_LOST);
}

enum mrc_tx_state mrc_txwin_on_acked(struct mrc_txwin *win, uint32_t psn) {
  struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
  mrc_assert(mrc_txwin_holds(win, psn));
  const enum mrc_tx_state before = slot->state;
  if (before == MRC_TX_ACKED) return before;
  if (before == MRC_TX_INFLIGHT) {
    list_remove(win, slot);
  } else {
    mrc_bitmap_clear(&win->tosend, psn);
    win->n_tosend--;
  }
  slot->state = MRC_TX_ACKED;
  while (win->una_psn != win->next_psn) {
    struct mrc_txslot *first = mrc_txwin_slot(win, win->una_psn);
    if (first->state != MRC_TX_ACKED) break;
    first->state = MRC_TX_FREE;
    win->una_psn = mrc_psn_add(win->una_psn, 1);
  }
  return before;
}
