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

/* cdef begin */
/* Events of an EV; the names match tools/states. */
enum shim_ev_event {
  SHIM_MARKED,
  SHIM_CLEAR,
  SHIM_LOST,
  SHIM_TRUSTED,
  SHIM_DENIED,
  SHIM_UNPROVEN,
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

static void *allocate(size_t bytes) {
  void *memory = calloc(1, bytes);
  mrc_assert(memory != NULL);
  return memory;
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
      return mrc_evset_on_bar(set, index, MRC_EV_DENIED);
    case SHIM_UNPROVEN:
      return mrc_evset_on_bar(set, index, MRC_EV_UNPROVEN);
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
