/* SPDX-License-Identifier: Apache-2.0 */
/* The event heap of the simulator, ordered by (time, order of insertion): the order of equal times
   does not depend on the heap's shape. It owns the entries, not the objects that they point to. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mrc_heap_entry {
  uint64_t at_ns;
  uint64_t sequence; /* set by push: first in, first out among equal times */
  void *pointer;     /* the caller's */
  uint32_t kind;     /* the caller's */
  uint32_t index;    /* the caller's */
};

struct mrc_heap {
  struct mrc_heap_entry *entries; /* the next event first */
  size_t n;
  uint32_t capacity;
  uint64_t pushed; /* entries pushed ever */
};

void mrc_heap_push(struct mrc_heap *heap, struct mrc_heap_entry entry);
/* Takes the next event; false when there is none. */
bool mrc_heap_pop(struct mrc_heap *heap, struct mrc_heap_entry *entry);
/* Time of the next event; UINT64_MAX when there is none. */
uint64_t mrc_heap_next_ns(const struct mrc_heap *heap);
void mrc_heap_free(struct mrc_heap *heap);
