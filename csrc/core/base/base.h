/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all modules of the core: assertions, also active in release builds, and small helpers.
   It owns no state. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Reports a broken invariant of the engine and aborts. Never called because of bad input. */
void mrc_assert_failed(const char *expression, const char *file, int line)
    __attribute__((noreturn, cold));

#define mrc_assert(expression)                   \
  (__builtin_expect(!!(expression), 1) ? (void)0 \
                                       : mrc_assert_failed(#expression, __FILE__, __LINE__))

#define MRC_MUST_CHECK __attribute__((warn_unused_result))

/* Loops over the bits that are set in `mask`, lowest first; `bit` is the number of the bit. */
#define MRC_EACH_BIT(bit, mask)                                              \
  for (uint32_t bit##_rest = (mask), bit;                                    \
       bit##_rest != 0 && (bit = (uint32_t)__builtin_ctz(bit##_rest), true); \
       bit##_rest &= bit##_rest - 1)

/* Overwrites a secret, which no compiler may leave out. */
static inline void mrc_wipe(void *memory, size_t n) { explicit_bzero(memory, n); }

/* In constant time. */
static inline bool mrc_same(const uint8_t *one, const uint8_t *other, size_t n) {
  uint8_t differs = 0;
  for (size_t i = 0; i < n; i++)
    differs |= one[i] ^ other[i];
  return differs == 0;
}

#define MRC_NEVER UINT64_MAX /* no deadline */

/* Scales a minimum timeout to hosts of this noise. Minimum timeouts are stated for MRC_NOISE_NS. */
#define MRC_NOISE_NS 500000u
static inline uint64_t mrc_floor_ns(uint64_t ns, uint32_t noise_ns) {
  return ns * noise_ns / MRC_NOISE_NS;
}

static inline uint64_t mrc_min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t mrc_max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint32_t mrc_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t mrc_max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* a * b / divisor; the intermediate product may exceed 64 bits. */
static inline uint64_t mrc_mul_div(uint64_t a, uint64_t b, uint64_t divisor) {
  return (uint64_t)((unsigned __int128)a * b / divisor);
}

/* The smallest power of two that is at least n; n is 1 .. 2^31. */
static inline uint32_t mrc_ceil_pow2(uint32_t n) {
  uint32_t size = 1;
  while (size < n)
    size *= 2;
  return size;
}
