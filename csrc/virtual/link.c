/* SPDX-License-Identifier: Apache-2.0 */
#include "virtual/link.h"

#include <stdlib.h>

#include "core/base.h"

void *mrc_grow(void *items, uint32_t n, uint32_t *capacity, size_t item_bytes) {
  if (n < *capacity) return items;
  *capacity = *capacity ? 2 * *capacity : 64;
  items = realloc(items, *capacity * item_bytes);
  mrc_assert(items);
  return items;
}

/* ---- heap ---- */

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

/* ---- link ---- */

enum { SECOND_NS = 1000000000, MILLION = 1000000 };

static bool chance(struct mrc_link *link, uint32_t ppm) {
  return ppm > 0 && mrc_prng_below(&link->prng, MILLION) < ppm;
}

static bool loses(struct mrc_link *link, uint32_t bytes) {
  const struct mrc_link_config *config = &link->config;
  uint64_t number = link->entered++;
  if (config->silent) return true;
  if (config->mtu_bytes && bytes > config->mtu_bytes) return true;
  if (config->loss_mask >> (number % 64) & 1) return true;
  if (config->lose_of && number % config->lose_of < config->lose_n) return true;
  return chance(link, config->loss_ppm);
}

/* Queues a packet; returns when its last bit leaves the queue. */
static uint64_t serialize(struct mrc_link *link, uint32_t bytes, uint64_t now_ns) {
  if (link->config.rate_bps == 0) return now_ns;
  uint64_t start_ns = mrc_max_u64(link->free_at_ns, now_ns);
  link->free_at_ns = start_ns + (uint64_t)bytes * 8 * SECOND_NS / link->config.rate_bps;
  return link->free_at_ns;
}

struct mrc_link_fate mrc_link_pass(struct mrc_link *link, uint32_t bytes, uint64_t now_ns) {
  const struct mrc_link_config *config = &link->config;
  struct mrc_link_fate fate = {0};
  uint64_t backlog = mrc_link_backlog(link, now_ns);
  if (loses(link, bytes)) {
    link->lost++;
    return fate;
  }
  bool overflow = config->queue_bytes && backlog + bytes > config->queue_bytes;
  link->overflowed += overflow;
  if (overflow && !config->trim) return fate;
  fate.trimmed = overflow;
  fate.ce = config->ecn_bytes && backlog > config->ecn_bytes;
  link->marked += fate.ce;
  fate.corrupt = chance(link, config->corrupt_ppm);
  fate.corrupt_bit = fate.corrupt ? mrc_prng_next(&link->prng) : 0;
  fate.at_ns[0] = (overflow ? now_ns : serialize(link, bytes, now_ns)) + config->delay_ns;
  fate.copies = chance(link, config->duplicate_ppm) ? 2 : 1;
  fate.at_ns[1] = fate.at_ns[0] + config->reorder_ns;
  if (config->reorder_ns && chance(link, config->reorder_ppm))
    fate.at_ns[0] += 1 + mrc_prng_below(&link->prng, config->reorder_ns);
  return fate;
}

uint64_t mrc_link_backlog(const struct mrc_link *link, uint64_t now_ns) {
  if (link->free_at_ns <= now_ns) return 0;
  return (link->free_at_ns - now_ns) * link->config.rate_bps / 8 / SECOND_NS;
}
