/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of bits addressed by PSN: bit (psn mod size). The caller's window defines which PSNs are
   valid. Sizes are powers of two, at least 64. */
#pragma once

#include "base.h"

struct mrc_bitmap {
  uint64_t *words;
  uint32_t mask; /* number of bits - 1 */
};

static inline bool mrc_bitmap_test(const struct mrc_bitmap *map, uint32_t psn) {
  const uint32_t bit = psn & map->mask;
  return (map->words[bit >> 6] >> (bit & 63)) & 1;
}

static inline void mrc_bitmap_set(struct mrc_bitmap *map, uint32_t psn) {
  const uint32_t bit = psn & map->mask;
  map->words[bit >> 6] |= 1ull << (bit & 63);
}

static inline void mrc_bitmap_clear(struct mrc_bitmap *map, uint32_t psn) {
  const uint32_t bit = psn & map->mask;
  map->words[bit >> 6] &= ~(1ull << (bit & 63));
}

/* The 64 bits from `psn` on, that of `psn` in the LSB; wraps around the ring. */
static inline uint64_t mrc_bitmap_extract(const struct mrc_bitmap *map, uint32_t psn) {
  const uint32_t bit = psn & map->mask;
  const uint32_t word = bit >> 6, shift = bit & 63, words = (map->mask >> 6) + 1;
  uint64_t low = map->words[word] >> shift;
  if (shift != 0) low |= map->words[(word + 1) & (words - 1)] << (64 - shift);
  return low;
}

/* First set bit in [psn, psn + n), n at most the size; returns its distance from psn, or n. */
static inline uint32_t mrc_bitmap_find(const struct mrc_bitmap *map, uint32_t psn, uint32_t n) {
  mrc_assert(n <= map->mask + 1);
  for (uint32_t i = 0; i < n; i += 64) {
    const uint64_t bits = mrc_bitmap_extract(map, psn + i);
    if (bits != 0) return mrc_min_u32(n, i + (uint32_t)__builtin_ctzll(bits));
  }
  return n;
}
