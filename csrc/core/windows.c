/* SPDX-License-Identifier: Apache-2.0 */
#include "core/windows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/wire.h"

/* ---- the send window ---- */

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

uint32_t mrc_txwin_first_tosend(const struct mrc_txwin *win) {
  mrc_assert(win->n_tosend > 0);
  const uint32_t outstanding = mrc_txwin_outstanding(win);
  const uint32_t ahead = mrc_bitmap_find(&win->tosend, win->una_psn, outstanding);
  mrc_assert(ahead < outstanding);
  return mrc_psn_add(win->una_psn, ahead);
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
  mrc_txwin_link(win, slot);
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

/* ---- the requester ---- */

int mrc_requester_init(struct mrc_requester *req, uint32_t sq_depth, uint32_t planes) {
  const uint32_t size = mrc_ceil_pow2(sq_depth);
  *req = (struct mrc_requester){.sq = calloc(size, sizeof *req->sq), .sq_mask = size - 1};
  if (req->sq == NULL) return -ENOMEM;
  return mrc_txwin_init(&req->win, 1, planes); /* mrc_requester_start sets the real size */
}

int mrc_requester_start(struct mrc_requester *req, const struct mrc_qp_rts_attr *attr,
                        uint32_t psns, uint64_t now_ns) {
  struct mrc_txwin win;
  const int error = mrc_txwin_init(&win, psns, req->win.planes);
  if (error != 0) return error;
  mrc_txwin_free(&req->win);
  req->win = win;
  mrc_txwin_start(&req->win, attr->sq_psn);
  req->peer_next_psn = attr->sq_psn;
  req->peer_mpr = attr->peer_mpr;
  req->part_bytes = attr->path_mtu;
  req->progress_ns = now_ns;
  return 0;
}

uint32_t mrc_requester_window_left(const struct mrc_requester *req) {
  const uint32_t granted = mrc_psn_sub(req->win.next_psn, req->peer_next_psn);
  const uint32_t outstanding = mrc_txwin_outstanding(&req->win);
  return mrc_min_u32(req->peer_mpr - mrc_min_u32(granted, req->peer_mpr),
                     req->win.psns - mrc_min_u32(outstanding, req->win.psns));
}

const struct mrc_txslot *mrc_requester_awaited(const struct mrc_requester *req,
                                               const struct mrc_qp_rts_attr *attr) {
  const struct mrc_txwin *win = &req->win;
  uint32_t bytes;
  if (win->una_psn == win->next_psn || win->n_tosend > 0) return NULL;
  if (mrc_requester_next_new(req, attr, &bytes)) return NULL;
  const struct mrc_txslot *oldest = mrc_txwin_slot(win, win->una_psn);
  return oldest->state == MRC_TX_INFLIGHT ? oldest : NULL;
}

bool mrc_requester_complete(struct mrc_services *services, struct mrc_requester *req, uint32_t qpn,
                            uint8_t status) {
  mrc_assert(req->sq_head != req->sq_tail);
  const struct mrc_wqe *wqe = &req->sq[req->sq_head & req->sq_mask];
  if (wqe->mr != MRC_MR_NONE) {
    struct mrc_mr *mr = &services->mrs.mrs[wqe->mr];
    mrc_assert(mr->refs > 0);
    mr->refs--;
  }
  const bool imm = wqe->opcode == MRC_WR_WRITE_IMM;
  /* Whether any packet of it has a PSN. */
  const int32_t ahead = (int32_t)(req->sq_head - req->sq_send);
  const bool opened = ahead < 0 || (ahead == 0 && req->opened > 0);
  if (imm && opened) {
    mrc_assert(req->wimm_inflight > 0);
    req->wimm_inflight--;
  }
  mrc_trace(services, MRC_TRACE_COMPLETE, qpn, wqe->wr_id, status);
  req->sq_head++;
  if (wqe->unsignaled) {
    mrc_assert(req->sq_used > 0);
    req->sq_used--;
    return false;
  }
  const struct mrc_wc wc = {.wr_id = wqe->wr_id,
                            .qpn = qpn,
                            .bytes = wqe->bytes,
                            .status = status,
                            .opcode = imm ? MRC_WC_WRITE_IMM : MRC_WC_WRITE};
  mrc_cq_push(&services->cq, &wc);
  return true;
}

void mrc_requester_flush(struct mrc_services *services, struct mrc_requester *req, uint32_t qpn,
                         uint8_t status) {
  while (req->sq_head != req->sq_tail)
    if (mrc_requester_complete(services, req, qpn, status)) status = MRC_WC_WR_FLUSH_ERR;
  req->sq_send = req->sq_tail;
  req->opened = 0;
  req->unsent_bytes = 0;
  req->probe.outstanding = req->probe.wanted = false;
  mrc_txwin_clear(&req->win);
}

void mrc_requester_on_progress(struct mrc_requester *req, uint64_t now_ns) {
  req->progress_ns = now_ns;
  req->timeouts = 0;
  req->refused = false;
}

/* ---- how a message is cut ---- */

enum {
  MOST_PARTS = 16,   /* in larger messages the last burst is a small part of all */
  BURST_PACKETS = 32 /* packets that cost as much as a burst; measured: 30 to 60 */
};

static uint32_t packets_of_burst(uint32_t part_bytes, uint32_t max_burst_bytes) {
  const uint32_t packets = max_burst_bytes / (part_bytes + MRC_DATA_OVERHEAD_BYTES);
  return mrc_max_u32(1, mrc_min_u32(packets, MRC_MAX_BURST_PACKETS));
}

uint32_t mrc_part_bytes(uint32_t bytes, uint32_t path_mtu, uint32_t max_burst_bytes) {
  const uint32_t even = 1u << (31 - __builtin_clz(path_mtu));
  const uint32_t parts = mrc_parts(bytes, path_mtu), even_parts = bytes / even;
  if (parts == 1 || parts > MOST_PARTS || bytes % even != 0) return path_mtu;
  if (even_parts > parts + parts / 3) return path_mtu; /* the links carry more headers */
  const uint32_t bursts = (parts - 1) / packets_of_burst(path_mtu, max_burst_bytes) + 1;
  const uint32_t even_cost =
      even_parts * BURST_PACKETS / packets_of_burst(even, max_burst_bytes) + even_parts;
  return even_cost < bursts * BURST_PACKETS + parts ? even : path_mtu;
}

/* ---- the receive window ---- */

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
  if (mrc_psn_diff(psn, win->next_psn) < 0) return MRC_RX_DUPLICATE;
  if (mrc_psn_sub(psn, win->next_psn) >= win->psns) return MRC_RX_BEYOND;
  return mrc_bitmap_test(&win->received, psn) ? MRC_RX_DUPLICATE : MRC_RX_NEW;
}

void mrc_rxwin_add(struct mrc_rxwin *win, uint32_t psn, bool last, bool other) {
  mrc_assert(mrc_rxwin_judge(win, psn) == MRC_RX_NEW);
  mrc_bitmap_set(&win->received, psn);
  if (last) mrc_bitmap_set(&win->last, psn);
  if (other) mrc_bitmap_set(&win->other, psn);
  win->unreported |= mrc_rxwin_word(win, psn);
  if (mrc_psn_diff(psn, win->end_psn) >= 0) win->end_psn = mrc_psn_add(psn, 1);
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

/* Whether this word holds PSNs of the window's start, and of its end, too. */
static bool is_shared(const struct mrc_rxwin *win, uint32_t word) {
  const int32_t psns = (int32_t)win->received.mask + 1;
  return mrc_psn_diff(word_psn(win, word), win->next_psn) < 0 &&
         mrc_psn_diff(win->end_psn, word_psn(win, word)) > psns;
}

uint64_t mrc_rxwin_report(struct mrc_rxwin *win, uint64_t *wanted, uint32_t *base) {
  const int32_t psns = mrc_psn_diff(win->end_psn, win->next_psn);
  if (psns <= 64) { /* one SACK can report every PSN that arrived beyond the cumulative PSN */
    *wanted = 0;
    win->unreported = 0;
    win->reported_once = 0;
  }
  /* Only words with PSNs from the window's start to the highest received contain news. */
  const uint32_t words = (win->received.mask >> 6) + 1;
  const uint32_t first = (win->next_psn & win->received.mask) >> 6;
  const uint32_t n = psns <= 0 ? 0 : ((win->next_psn & 63) + (uint32_t)psns + 63) / 64;
  const uint64_t run = n >= 64 ? UINT64_MAX : (1ull << n) - 1;
  const uint64_t all = words == 64 ? UINT64_MAX : (1ull << words) - 1;
  *wanted &= (run << first | (first == 0 ? 0 : run >> (words - first))) & all;
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
  if (mrc_psn_diff(*base, win->next_psn) < 0) *base = win->next_psn;
  return mrc_rxwin_view(win, *base);
}

void mrc_rxwin_on_refused(struct mrc_rxwin *win, uint32_t base) {
  /* The view covered one word, or parts of two words. */
  const uint32_t last = mrc_psn_sub(win->end_psn, 1);
  const uint32_t top = mrc_psn_add(base, 63);
  if (mrc_psn_diff(base, win->end_psn) >= 0) return;
  win->unreported |= mrc_rxwin_word(win, base);
  win->unreported |= mrc_rxwin_word(win, mrc_psn_diff(last, top) < 0 ? last : top);
}

bool mrc_rxwin_has_news(const struct mrc_rxwin *win) {
  return win->unreported != 0 && mrc_psn_diff(win->end_psn, win->next_psn) > 64;
}

/* ---- the responder ---- */

int mrc_responder_init(struct mrc_responder *resp, uint32_t mpr, uint32_t max_wimm) {
  const uint32_t size = mrc_ceil_pow2(max_wimm);
  const uint32_t bits = mrc_max_u32(64, size);
  *resp = (struct mrc_responder){
      .wimms = malloc(size * sizeof *resp->wimms),
      .waiting = {.words = calloc(bits / 64, sizeof(uint64_t)), .mask = bits - 1},
      .wimm_mask = size - 1,
      .sack_deadline_ns = MRC_NEVER};
  if (resp->wimms == NULL || resp->waiting.words == NULL) return -ENOMEM;
  resp->mpr = mpr;
  return mrc_rxwin_init(&resp->win, mpr);
}

void mrc_responder_clear(struct mrc_services *services, struct mrc_responder *resp) {
  resp->arrivals = (struct mrc_arrivals){0};
  resp->n_triggers = 0;
  resp->n_nacks = 0;
  resp->sack_now = false;
  mrc_responder_set_deadline(services, resp, MRC_NEVER);
}

/* Writes each field in place: copying a struct would wait until its stores had left the core. */
struct mrc_sack_trigger *mrc_responder_trigger(struct mrc_responder *resp, uint32_t psn,
                                               uint16_t tx_timestamp, const struct mrc_meta *meta,
                                               bool pr, uint64_t now_ns) {
  const uint8_t m = meta->ecn == 3 ? MRC_M_SKIP_ONCE : MRC_M_NONE;
  const uint32_t ev = mrc_meta_ev(meta);
  struct mrc_sack_trigger *found = NULL;
  /* One SACK covers all packets of a plane, because the requester has recorded the EV of each
     packet. Only a congestion mark needs a SACK that names its EV. */
  for (int i = resp->n_triggers - 1; i >= 0 && found == NULL && !pr; i--) {
    struct mrc_sack_trigger *t = &resp->triggers[i];
    if (!t->pr && t->port == meta->port && t->m == m && (m == MRC_M_NONE || t->ev == ev)) found = t;
  }
  if (found == NULL) {
    if (resp->n_triggers < MRC_MAX_TRIGGERS)
      resp->n_triggers++;
    else
      resp->sack_now = true; /* the last trigger is overwritten: report its news without one */
    found = &resp->triggers[resp->n_triggers - 1];
    found->news_words = 0;
    found->first_ns = now_ns;
    found->now = false;
  }
  found->arrived_ns = meta->arrived_ns;
  found->psn = psn;
  found->ev = ev;
  found->tx_timestamp = tx_timestamp;
  found->port = meta->port;
  found->m = m;
  found->pr = pr;
  resp->arrived_ns = meta->arrived_ns;
  resp->last_port = meta->port;
  return found;
}

void mrc_responder_queue_nack(struct mrc_responder *resp, const struct mrc_wire *wire,
                              const struct mrc_meta *meta, uint8_t reason) {
  if (resp->n_nacks == MRC_MAX_NACKS) return;
  resp->nacks[resp->n_nacks++] = (struct mrc_nack_out){.psn = wire->psn,
                                                       .ev = mrc_meta_ev(meta),
                                                       .tx_timestamp = wire->tx_timestamp,
                                                       .reason = reason,
                                                       .port = meta->port};
}

bool mrc_responder_stash(struct mrc_responder *resp, uint32_t max_wimm,
                         const struct mrc_wire *wire) {
  const uint16_t ahead = (uint16_t)(wire->rqmsn - (uint16_t)resp->next_rqmsn);
  if (ahead >= max_wimm) return false;
  const uint32_t rqmsn = resp->next_rqmsn + ahead;
  if (mrc_bitmap_test(&resp->waiting, rqmsn)) return false;
  mrc_bitmap_set(&resp->waiting, rqmsn);
  resp->wimms[rqmsn & resp->wimm_mask] = (struct mrc_wimm){
      .imm = wire->imm, .bytes = wire->payload_bytes, .psn = wire->psn & MRC_PSN_MASK};
  return true;
}

bool mrc_responder_deliver(struct mrc_services *services, struct mrc_responder *resp, uint32_t qpn,
                           uint32_t max_wimm) {
  const struct mrc_wimm *wimm = &resp->wimms[resp->next_rqmsn & resp->wimm_mask];
  if (resp->wimm_unpolled == max_wimm || !mrc_cq_promise(&services->cq, 1, false)) return false;
  const struct mrc_wc wc = {
      .wr_id = resp->next_rqmsn,
      .qpn = qpn,
      .imm = wimm->imm,
      /* The length in the packet headers is only the peer's claim. */
      .bytes = (uint32_t)mrc_min_u64(resp->message_bytes + wimm->bytes, UINT32_MAX),
      .status = MRC_WC_SUCCESS,
      .opcode = MRC_WC_RECV_IMM};
  mrc_cq_push(&services->cq, &wc);
  mrc_trace(services, MRC_TRACE_IMMEDIATE, qpn, wimm->imm, wc.bytes);
  mrc_bitmap_clear(&resp->waiting, resp->next_rqmsn);
  resp->next_rqmsn++;
  resp->wimm_unpolled++;
  return true;
}
