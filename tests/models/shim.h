/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of the engine as plain functions, for the models in Python and for tools/states. cffi reads
 * the text between the two markers.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

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
