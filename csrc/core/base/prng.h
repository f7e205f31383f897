/* SPDX-License-Identifier: Apache-2.0 */
/* A small seeded generator (splitmix64) for EV order and simulation. Never a source of secrets. */
#pragma once

#include <stdint.h>

#define MRC_PRNG_STEP 0x9E3779B97F4A7C15ull

struct mrc_prng {
  uint64_t state;
};

static inline uint64_t mrc_prng_next(struct mrc_prng *prng) {
  uint64_t z = (prng->state += MRC_PRNG_STEP);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/* A generator that has given n numbers since it had this state. */
static inline struct mrc_prng mrc_prng_skipped(uint64_t state, uint64_t n) {
  return (struct mrc_prng){.state = state + n * MRC_PRNG_STEP};
}

/* Uniform enough in [0, n) for n far below 2^32. */
static inline uint32_t mrc_prng_below(struct mrc_prng *prng, uint32_t n) {
  return (uint32_t)(((mrc_prng_next(prng) >> 32) * n) >> 32);
}
