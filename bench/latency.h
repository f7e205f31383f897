/* SPDX-License-Identifier: Apache-2.0 */
/* Durations of one job, as a histogram, and their percentiles. Its size is fixed and adding is
   cheap, so that it affects neither the measured time nor the cache. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define LATENCY_BITS 8u /* relative resolution: 1 in 2^8 */
#define LATENCY_STEPS (1u << LATENCY_BITS)
#define LATENCY_DOUBLINGS 40u /* beyond the steps of 1 ns: up to three days */
#define LATENCY_BUCKETS ((LATENCY_DOUBLINGS + 1) * LATENCY_STEPS)

struct latency {
  uint64_t n;
  uint32_t counts[LATENCY_BUCKETS];
};

/* [0, 512) has a bucket for each ns, [512, 1024) one for every 2 ns, and so on. */
static inline uint32_t latency_bucket_of(uint64_t ns) {
  if (ns < LATENCY_STEPS) return (uint32_t)ns;
  uint32_t shift = 63u - (uint32_t)__builtin_clzll(ns) - LATENCY_BITS;
  if (shift >= LATENCY_DOUBLINGS) return LATENCY_BUCKETS - 1;
  return (shift + 1) * LATENCY_STEPS + (uint32_t)(ns >> shift) % LATENCY_STEPS;
}

/* The middle of a bucket. */
static inline uint64_t latency_ns_of(uint32_t bucket) {
  if (bucket < LATENCY_STEPS) return bucket;
  uint32_t shift = bucket / LATENCY_STEPS - 1;
  uint64_t first = (uint64_t)(LATENCY_STEPS + bucket % LATENCY_STEPS) << shift;
  return first + (1ull << shift) / 2;
}

static inline void latency_add(struct latency *latency, uint64_t ns) {
  latency->n++;
  latency->counts[latency_bucket_of(ns)]++;
}

/* The sample of a rank; 0 if there are no samples. */
static inline uint64_t latency_at(const struct latency *latency, uint64_t permille) {
  if (latency->n == 0) return 0;
  uint64_t rank = (latency->n - 1) * permille / 1000;
  uint32_t bucket = 0;
  for (uint64_t seen = latency->counts[0]; seen <= rank; seen += latency->counts[bucket])
    bucket++;
  return latency_ns_of(bucket);
}

/* Prints `"p50_ns": ..., "p99_ns": ..., "p999_ns": ...` and clears the samples. */
static inline void latency_print(struct latency *latency) {
  printf("\"p50_ns\": %lu, \"p99_ns\": %lu, \"p999_ns\": %lu", latency_at(latency, 500),
         latency_at(latency, 990), latency_at(latency, 999));
  memset(latency, 0, sizeof *latency);
}
