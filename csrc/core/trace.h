/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of trace entries: the newest things that happened, each of a kind from trace.def. */
#ifndef MRC_CORE_TRACE_H
#define MRC_CORE_TRACE_H

#include "../mrc.h"
#include "base.h"

enum mrc_trace_point {
#define X(name, a, b) MRC_TRACE_##name,
#include "trace.def"
#undef X
  MRC_TRACE_POINTS
};

struct mrc_trace_ring {
  struct mrc_trace_entry *entries;
  uint64_t n; /* ever pushed */
  uint64_t mask;
};

/* `entries` is a power of two. 0 or -ENOMEM. */
int mrc_trace_init(struct mrc_trace_ring *ring, uint32_t entries) MRC_MUST_CHECK;
void mrc_trace_free(struct mrc_trace_ring *ring);
/* Copies the newest entries, oldest first; returns how many. */
int mrc_trace_copy(const struct mrc_trace_ring *ring, struct mrc_trace_entry *entries,
                   int capacity);

#endif
