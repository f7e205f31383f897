/* SPDX-License-Identifier: Apache-2.0 */
#include "virtual/heap.h"

#include <stdlib.h>

#include "core/base.h"
#include "virtual/memory.h"

/* Four adjacent children: half the levels of a binary heap, and half the cache misses. */
enum { ARITY = 4 };

static bool before(const struct mrc_heap_entry *a, const struct mrc_heap_entry *b) {
  return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->sequence < b->sequence);
}

void mrc_heap_push(struct mrc_heap *heap, struct mrc_heap_entry entry) {
  heap->entries =
      mrc_grow(heap->entries, (uint32_t)heap->n, &heap->capacity, sizeof(*heap->entries));
  entry.sequence = heap->pushed++;
  size_t hole = heap->n++;
  for (size_t parent; hole > 0; hole = parent) {
    parent = (hole - 1) / ARITY;
    if (!before(&entry, &heap->entries[parent])) break;
    heap->entries[hole] = heap->entries[parent];
  }
  heap->entries[hole] = entry;
}

/* The earliest child; n or greater: none. */
static size_t first_child(const struct mrc_heap *heap, size_t parent) {
  size_t first = ARITY * parent + 1;
  const size_t end = first + ARITY < heap->n ? first + ARITY : heap->n;
  for (size_t i = first + 1; i < end; i++)
    if (before(&heap->entries[i], &heap->entries[first])) first = i;
  return first;
}

bool mrc_heap_pop(struct mrc_heap *heap, struct mrc_heap_entry *entry) {
  if (heap->n == 0) return false;
  *entry = heap->entries[0];
  const struct mrc_heap_entry last = heap->entries[--heap->n];
  size_t hole = 0;
  for (size_t child; (child = first_child(heap, hole)) < heap->n; hole = child) {
    if (!before(&heap->entries[child], &last)) break;
    heap->entries[hole] = heap->entries[child];
  }
  heap->entries[hole] = last;
  return true;
}

uint64_t mrc_heap_next_ns(const struct mrc_heap *heap) {
  return heap->n ? heap->entries[0].at_ns : MRC_NEVER;
}

void mrc_heap_free(struct mrc_heap *heap) {
  free(heap->entries);
  *heap = (struct mrc_heap){0};
}
