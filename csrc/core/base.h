/* SPDX-License-Identifier: Apache-2.0 */
/* What every module of the core shares: assertions that stay on in release, and small helpers.
   It owns no state. */
#ifndef MRC_CORE_BASE_H
#define MRC_CORE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A broken invariant of ours: prints the place and ends the process. Never used for bad input. */
void mrc_assert_failed(const char *expression, const char *file, int line)
    __attribute__((noreturn, cold));

#define mrc_assert(expression)                   \
  (__builtin_expect(!!(expression), 1) ? (void)0 \
                                       : mrc_assert_failed(#expression, __FILE__, __LINE__))

#define MRC_MUST_CHECK __attribute__((warn_unused_result))

/* Loops over the bits that are set in a mask; `bit` is the number of each, the lowest first. */
#define MRC_EACH_BIT(bit, mask)                                              \
  for (uint32_t bit##_rest = (mask), bit;                                    \
       bit##_rest != 0 && (bit = (uint32_t)__builtin_ctz(bit##_rest), true); \
       bit##_rest &= bit##_rest - 1)

#define MRC_NEVER UINT64_MAX /* a deadline that does not come */

/* What a floor of patience is for hosts of this noise; floors are stated for MRC_NOISE_NS. */
#define MRC_NOISE_NS 500000u
static inline uint64_t mrc_floor_ns(uint64_t ns, uint32_t noise_ns) {
  return ns * noise_ns / MRC_NOISE_NS;
}

static inline uint64_t mrc_min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t mrc_max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint32_t mrc_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t mrc_max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* a * b / divisor, whose intermediate product may exceed 64 bits. */
static inline uint64_t mrc_mul_div(uint64_t a, uint64_t b, uint64_t divisor) {
  return (uint64_t)((unsigned __int128)a * b / divisor);
}

/* The power of two that is n or the next above; n is 1 .. 2^31. */
static inline uint32_t mrc_ceil_pow2(uint32_t n) {
  uint32_t size = 1;
  while (size < n)
    size *= 2;
  return size;
}

#endif
