/* SPDX-License-Identifier: Apache-2.0 */
/* Extra time before something counts as lost, learned from what came late. It halves with each
   MRC_GUARD_HALF_LIFE_NS without a new lesson. */
#pragma once

#include "core/base.h"

#define MRC_GUARD_HALF_LIFE_NS 5000000000ull
struct mrc_guard {
  uint64_t ns;
  uint64_t since_ns; /* when `ns` was set */
};

/* The guard at `now_ns`. */
static inline uint64_t mrc_guard_ns(const struct mrc_guard *guard, uint64_t now_ns) {
  const uint64_t halvings = (now_ns - guard->since_ns) / MRC_GUARD_HALF_LIFE_NS;
  return halvings < 64 ? guard->ns >> halvings : 0;
}
/* A loss was spurious: the guard doubles, to at least `least_ns` and at most `most_ns`. */
static inline void mrc_guard_grow(struct mrc_guard *guard, uint64_t least_ns, uint64_t most_ns,
                                  uint64_t now_ns) {
  const uint64_t wider_ns = mrc_max_u64(2 * mrc_guard_ns(guard, now_ns), least_ns);
  *guard = (struct mrc_guard){.ns = mrc_min_u64(wider_ns, most_ns), .since_ns = now_ns};
}
/* Something came late by `ns`: the guard covers that from now on. */
static inline void mrc_guard_cover(struct mrc_guard *guard, uint64_t ns, uint64_t now_ns) {
  if (ns > mrc_guard_ns(guard, now_ns)) *guard = (struct mrc_guard){.ns = ns, .since_ns = now_ns};
}
