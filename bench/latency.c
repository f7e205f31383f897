/* SPDX-License-Identifier: Apache-2.0 */
#include "latency.h"

#include <stdio.h>
#include <stdlib.h>

void latency_add(struct latency *latency, uint64_t ns) {
  latency->ns[latency->n++ % LATENCY_SAMPLES] = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

static int compare(const void *a, const void *b) {
  uint32_t first = *(const uint32_t *)a;
  uint32_t second = *(const uint32_t *)b;
  return (first > second) - (first < second);
}

static uint32_t at(const struct latency *latency, uint64_t held, uint64_t permille) {
  return held ? latency->ns[(held - 1) * permille / 1000] : 0;
}

void latency_print(struct latency *latency) {
  uint64_t held = latency->n < LATENCY_SAMPLES ? latency->n : LATENCY_SAMPLES;
  qsort(latency->ns, held, sizeof latency->ns[0], compare);
  printf("\"p50_ns\": %u, \"p99_ns\": %u, \"p999_ns\": %u", at(latency, held, 500),
         at(latency, held, 990), at(latency, held, 999));
  latency->n = 0;
}
