/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <errno.h>
#include <stdlib.h>

int mrc_trace_init(struct mrc_trace_ring *ring, uint32_t entries) {
  *ring = (struct mrc_trace_ring){.entries = calloc(entries, sizeof *ring->entries),
                                  .mask = entries - 1u};
  return ring->entries == NULL ? -ENOMEM : 0;
}

void mrc_trace_free(struct mrc_trace_ring *ring) { free(ring->entries); }

int mrc_trace_copy(const struct mrc_trace_ring *ring, struct mrc_trace_entry *entries,
                   int capacity) {
  const uint64_t kept = mrc_min_u64(ring->n, ring->mask + 1);
  const uint64_t n = mrc_min_u64(kept, capacity < 0 ? 0 : (uint64_t)capacity);
  for (uint64_t i = 0; i < n; i++)
    entries[i] = ring->entries[(ring->n - n + i) & ring->mask];
  return (int)n;
}
