/* SPDX-License-Identifier: Apache-2.0 */
/* Durations of one job and their percentiles. Of more than it can hold, the last ones count. */
#ifndef BENCH_LATENCY_H
#define BENCH_LATENCY_H

#include <stdint.h>

#define LATENCY_SAMPLES (1u << 20)

struct latency {
  uint64_t n;
  uint32_t ns[LATENCY_SAMPLES];
};

void latency_add(struct latency *latency, uint64_t ns);
/* Prints ` "p50_ns": ..., "p99_ns": ..., "p999_ns": ...` and forgets the samples. */
void latency_print(struct latency *latency);

#endif
