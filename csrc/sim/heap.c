/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/heap.h"

#include <stdlib.h>

#include "core/base.h"

static bool before(const struct mrc_heap_entry *a, const struct mrc_heap_entry *b) {
  return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->sequence < b->sequence);
}

static void swap(struct mrc_heap_entry *a, struct mrc_heap_entry *b) {
  struct mrc_heap_entry other = *a;
  *a = *b;
  *b = other;
}

void mrc_heap_push(struct mrc_heap *heap, struct mrc_heap_entry entry) {
  if (heap->n == heap->capacity) {
    heap->capacity = heap->capacity ? 2 * heap->capacity : 64;
    heap->entries = realloc(heap->entries, heap->capacity * sizeof(*heap->entries));
    mrc_assert(heap->entries);
  }
  entry.sequence = heap->pushed++;
  size_t i = heap->n++;
  heap->entries[i] = entry;
  while (i > 0 && before(&heap->entries[i], &heap->entries[(i - 1) / 2])) {
    swap(&heap->entries[i], &heap->entries[(i - 1) / 2]);
    i = (i - 1) / 2;
  }
}

bool mrc_heap_pop(struct mrc_heap *heap, struct mrc_heap_entry *entry) {
  if (heap->n == 0) return false;
  *entry = heap->entries[0];
  heap->entries[0] = heap->entries[--heap->n];
  for (size_t i = 0, child; (child = 2 * i + 1) < heap->n; i = child) {
    if (child + 1 < heap->n && before(&heap->entries[child + 1], &heap->entries[child])) child++;
    if (!before(&heap->entries[child], &heap->entries[i])) break;
    swap(&heap->entries[child], &heap->entries[i]);
  }
  return true;
}

uint64_t mrc_heap_next_ns(const struct mrc_heap *heap) {
  return heap->n ? heap->entries[0].at_ns : MRC_NEVER;
}

void mrc_heap_free(struct mrc_heap *heap) {
  free(heap->entries);
  *heap = (struct mrc_heap){0};
}
