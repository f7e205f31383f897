/* SPDX-License-Identifier: Apache-2.0 */
/* Serial arithmetic on 24-bit packet sequence numbers. PSNs are compared only through this file;
   a PSN is "before" another when it is less than half the space behind it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MRC_PSN_BITS 24
#define MRC_PSN_MASK 0xFFFFFFu

static inline uint32_t mrc_psn_add(uint32_t psn, uint32_t n) { return (psn + n) & MRC_PSN_MASK; }

static inline uint32_t mrc_psn_sub(uint32_t psn, uint32_t n) { return (psn - n) & MRC_PSN_MASK; }

/* Signed distance from b to a: positive when a is after b; -2^23 .. 2^23 - 1. */
static inline int32_t mrc_psn_diff(uint32_t a, uint32_t b) {
  return (int32_t)((a - b) << (32 - MRC_PSN_BITS)) >> (32 - MRC_PSN_BITS);
}

static inline bool mrc_psn_before(uint32_t a, uint32_t b) { return mrc_psn_diff(a, b) < 0; }

/* Whether psn lies in the half-open range [first, first + n), n < 2^23. */
static inline bool mrc_psn_in(uint32_t psn, uint32_t first, uint32_t n) {
  return mrc_psn_sub(psn, first) < n;
}
