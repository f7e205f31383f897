/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of the engine as plain functions, for the models in Python and for tools/states. cffi reads
 * the text between the two markers.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "core/base.h"
#include "core/paths.h"
#include "core/qp.h"
#include "core/windows.h"

/* cdef begin */
uint32_t shim_psn_add(uint32_t psn, uint32_t n);
uint32_t shim_psn_sub(uint32_t psn, uint32_t n);
int32_t shim_psn_diff(uint32_t a, uint32_t b);
bool shim_psn_before(uint32_t a, uint32_t b);
bool shim_psn_in(uint32_t psn, uint32_t first, uint32_t n);

struct shim_rxwin {
  uint32_t next_psn;
  uint32_t end_psn;
  bool ready;
  bool last;
  bool has_news;
};
void *shim_rxwin_new(uint32_t psns, uint32_t first_psn);
void shim_rxwin_free(void *win);
int shim_rxwin_judge(void *win, uint32_t psn); /* 0 new, 1 duplicate, 2 beyond */
void shim_rxwin_add(void *win, uint32_t psn, bool last, bool other);
void shim_rxwin_advance(void *win, uint32_t n);
uint32_t shim_rxwin_run(void *win, uint32_t *others);
uint64_t shim_rxwin_report(void *win, uint32_t *base);
uint64_t shim_rxwin_view(void *win, uint32_t base);
void shim_rxwin_refuse(void *win, uint32_t base);
void shim_rxwin_look(void *win, struct shim_rxwin *out);

struct shim_txslot {
  uint32_t wqe;
  uint32_t bytes;
  uint16_t ev;
  uint16_t ev_lost;
  uint8_t state; /* 0 free, 1 unsent, 2 in flight, 3 lost, 4 acknowledged */
  uint8_t plane;
  uint8_t tries;
};
struct shim_txwin {
  uint64_t inflight_bytes;
  uint32_t una_psn;
  uint32_t next_psn;
  uint32_t n_tosend;
};
void *shim_txwin_new(uint32_t psns, uint32_t first_psn);
void shim_txwin_free(void *win);
uint32_t shim_txwin_open(void *win, uint32_t wqe, uint32_t bytes);
uint32_t shim_txwin_first(void *win);
void shim_txwin_send(void *win, uint32_t psn, uint16_t ev, uint8_t plane, uint64_t now_ns);
void shim_txwin_refuse(void *win, uint32_t psn);
void shim_txwin_lose(void *win, uint32_t psn);
int shim_txwin_acknowledge(void *win, uint32_t psn); /* the state before */
void shim_txwin_clear(void *win);
void shim_txwin_look(void *win, struct shim_txwin *out);
void shim_txwin_slot(void *win, uint32_t psn, struct shim_txslot *out);
/* The PSNs in flight on a plane, oldest first; returns how many there are. */
int shim_txwin_list(void *win, uint8_t plane, uint32_t *psns, int capacity);

/* Events of an EV; the names match tools/states. */
enum shim_ev_event {
  SHIM_MARKED,
  SHIM_CLEAR,
  SHIM_LOST,
  SHIM_TRUSTED,
  SHIM_DENIED,
  SHIM_TURN /* a turn of the plane: the EV argument is ignored */
};
struct shim_ev {
  uint64_t bad_since_ns;
  uint8_t state; /* enum mrc_ev_state */
  uint8_t skip_level;
  uint8_t skip_turns;
  bool active;
};
void *shim_evset_new(uint32_t n, uint32_t active); /* all in one plane */
void shim_evset_free(void *set);
/* Returns the EV whose turn it is; for other events, whether the EV's state changed. */
uint32_t shim_evset_event(void *set, int event, uint32_t ev, uint64_t now_ns);
void shim_evset_look(void *set, uint32_t ev, struct shim_ev *out);

bool shim_qp_may_move(uint8_t from, uint8_t to);
/* cdef end */

uint32_t shim_psn_add(uint32_t psn, uint32_t n) { return mrc_psn_add(psn, n); }
uint32_t shim_psn_sub(uint32_t psn, uint32_t n) { return mrc_psn_sub(psn, n); }
int32_t shim_psn_diff(uint32_t a, uint32_t b) { return mrc_psn_diff(a, b); }
bool shim_psn_before(uint32_t a, uint32_t b) { return mrc_psn_before(a, b); }
bool shim_psn_in(uint32_t psn, uint32_t first, uint32_t n) { return mrc_psn_in(psn, first, n); }

static void *allocate(size_t bytes) {
  void *memory = calloc(1, bytes);
  mrc_assert(memory != NULL);
  return memory;
}

void *shim_rxwin_new(uint32_t psns, uint32_t first_psn) {
  struct mrc_rxwin *win = allocate(sizeof *win);
  mrc_assert(mrc_rxwin_init(win, psns) == 0);
  mrc_rxwin_start(win, first_psn);
  return win;
}

void shim_rxwin_free(void *win) {
  mrc_rxwin_free(win);
  free(win);
}

int shim_rxwin_judge(void *win, uint32_t psn) { return mrc_rxwin_judge(win, psn); }
void shim_rxwin_add(void *win, uint32_t psn, bool last, bool other) {
  mrc_rxwin_add(win, psn, last, other);
}
void shim_rxwin_advance(void *win, uint32_t n) { mrc_rxwin_advance(win, n); }
uint32_t shim_rxwin_run(void *win, uint32_t *others) { return mrc_rxwin_run(win, others); }
uint64_t shim_rxwin_view(void *win, uint32_t base) { return mrc_rxwin_view(win, base); }
void shim_rxwin_refuse(void *win, uint32_t base) { mrc_rxwin_on_refused(win, base); }

uint64_t shim_rxwin_report(void *win, uint32_t *base) {
  uint64_t wanted = 0;
  return mrc_rxwin_report(win, &wanted, base);
}

void shim_rxwin_look(void *win, struct shim_rxwin *out) {
  const struct mrc_rxwin *rx = win;
  *out = (struct shim_rxwin){.next_psn = rx->next_psn,
                             .end_psn = rx->end_psn,
                             .ready = mrc_rxwin_ready(rx),
                             .last = mrc_rxwin_ready_is_last(rx),
                             .has_news = mrc_rxwin_has_news(rx)};
}

void *shim_txwin_new(uint32_t psns, uint32_t first_psn) {
  struct mrc_txwin *win = allocate(sizeof *win);
  mrc_assert(mrc_txwin_init(win, psns, MRC_MAX_PORTS) == 0);
  mrc_txwin_start(win, first_psn);
  return win;
}

void shim_txwin_free(void *win) {
  mrc_txwin_free(win);
  free(win);
}

uint32_t shim_txwin_open(void *win, uint32_t wqe, uint32_t bytes) {
  return mrc_txwin_open(win, wqe, bytes);
}
uint32_t shim_txwin_first(void *win) { return mrc_txwin_first_tosend(win); }
void shim_txwin_send(void *win, uint32_t psn, uint16_t ev, uint8_t plane, uint64_t now_ns) {
  mrc_txwin_on_send(win, psn, ev, plane, now_ns);
}
void shim_txwin_refuse(void *win, uint32_t psn) { mrc_txwin_on_refused(win, psn); }
void shim_txwin_lose(void *win, uint32_t psn) { mrc_txwin_on_lost(win, psn); }
int shim_txwin_acknowledge(void *win, uint32_t psn) { return mrc_txwin_on_acked(win, psn); }
void shim_txwin_clear(void *win) { mrc_txwin_clear(win); }

void shim_txwin_look(void *win, struct shim_txwin *out) {
  const struct mrc_txwin *tx = win;
  *out = (struct shim_txwin){.inflight_bytes = tx->inflight_bytes,
                             .una_psn = tx->una_psn,
                             .next_psn = tx->next_psn,
                             .n_tosend = tx->n_tosend};
}

void shim_txwin_slot(void *win, uint32_t psn, struct shim_txslot *out) {
  const struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
  *out = (struct shim_txslot){.wqe = slot->wqe,
                              .bytes = slot->bytes,
                              .ev = slot->ev,
                              .ev_lost = slot->ev_lost,
                              .state = slot->state,
                              .plane = slot->plane,
                              .tries = slot->tries};
}

int shim_txwin_list(void *win, uint8_t plane, uint32_t *psns, int capacity) {
  const struct mrc_txwin *tx = win;
  const struct mrc_txlist *list = &tx->lists[plane];
  int n = 0;
  for (uint16_t at = list->oldest; at != MRC_TX_NONE; at = tx->slots[at].newer) {
    mrc_assert(n < capacity);
    psns[n++] = mrc_txwin_psn_of(tx, at);
  }
  return n;
}

void *shim_evset_new(uint32_t n, uint32_t active) {
  struct mrc_evset *set = allocate(sizeof *set);
  struct mrc_ev_attr *attrs = allocate(n * sizeof *attrs);
  for (uint32_t i = 0; i < n; i++)
    attrs[i] = (struct mrc_ev_attr){.ev = 1 + i, .port = 1, .family = 6};
  struct mrc_prng prng = {.state = 1};
  mrc_assert(mrc_evset_init(set, attrs, (int)n, 1, MRC_NOISE_NS) == 0);
  mrc_evset_start(set, active, &prng);
  free(attrs);
  return set;
}

void shim_evset_free(void *set) {
  mrc_evset_free(set);
  free(set);
}

/* Marks the EV until it counts as fuller than others that are not marked. */
static bool be_marked(struct mrc_evset *set, uint16_t ev, uint64_t now_ns) {
  bool changed = false;
  for (int i = 0; i < MRC_EV_ALWAYS_MARKED; i++)
    changed |= mrc_evset_on_skip(set, ev, 0, now_ns);
  return mrc_evset_on_skip(set, ev, now_ns, now_ns) || changed;
}

uint32_t shim_evset_event(void *set, int event, uint32_t ev, uint64_t now_ns) {
  uint16_t index = (uint16_t)ev, back;
  switch (event) {
    case SHIM_MARKED:
      return be_marked(set, index, now_ns);
    case SHIM_CLEAR:
      mrc_evset_on_clear(set, index, now_ns, 0, now_ns);
      return 0;
    case SHIM_LOST:
      return mrc_evset_on_loss(set, index, &back, now_ns);
    case SHIM_TRUSTED:
      return mrc_evset_on_trust(set, index);
    case SHIM_DENIED:
      return mrc_evset_on_deny(set, index);
    default:
      return mrc_evset_next(set, 0);
  }
}

void shim_evset_look(void *set, uint32_t ev, struct shim_ev *out) {
  const struct mrc_evset *evs = set;
  const struct mrc_ev *from = &evs->evs[ev];
  *out = (struct shim_ev){.bad_since_ns = from->bad_since_ns,
                          .state = from->state,
                          .skip_level = from->skip_level,
                          .skip_turns = from->skip_turns,
                          .active = from->place < evs->planes[0].n_active};
}

bool shim_qp_may_move(uint8_t from, uint8_t to) { return mrc_qp_may_move(from, to); }
