/* SPDX-License-Identifier: Apache-2.0 */
#include "io/spsc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int mrc_spsc_init(struct mrc_spsc *ring, uint32_t capacity, size_t entry_bytes) {
  mrc_assert(entry_bytes > 0);
  if (capacity == 0 || capacity > 1u << 31 || (capacity & (capacity - 1)) != 0) return -EINVAL;
  uint8_t *entries = calloc(capacity, entry_bytes);
  if (!entries) return -ENOMEM;
  *ring = (struct mrc_spsc){.entries = entries, .entry_bytes = entry_bytes, .mask = capacity - 1};
  return 0;
}

void mrc_spsc_free(struct mrc_spsc *ring) {
  free(ring->entries);
  ring->entries = NULL;
}

static uint8_t *entry_at(const struct mrc_spsc *ring, uint32_t position) {
  return ring->entries + (position & ring->mask) * ring->entry_bytes;
}

/* How many of n entries from `position` one copy can move: up to the end of the memory. */
static uint32_t straight_run(const struct mrc_spsc *ring, uint32_t position, uint32_t n) {
  return mrc_min_u32(n, ring->mask + 1 - (position & ring->mask));
}

static uint32_t room_at(const struct mrc_spsc *ring, uint32_t head) {
  uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed); /* our own */
  mrc_assert(tail - head <= ring->mask + 1);
  return ring->mask + 1 - (tail - head);
}

uint32_t mrc_spsc_room(struct mrc_spsc *ring) {
  /* Acquire pairs with the store of head in mrc_spsc_drop: its copies end before ours overwrite. */
  uint32_t room = room_at(ring, atomic_load_explicit(&ring->head, memory_order_acquire));
  if (room > 0) return room;
  /* Both sequentially consistent, as are the store of head in mrc_spsc_drop and the exchange in
     mrc_spsc_starved: either the producer reads the new head, or the consumer reads the flag. */
  atomic_store(&ring->starved, true);
  return room_at(ring, atomic_load(&ring->head));
}

uint32_t mrc_spsc_push(struct mrc_spsc *ring, const void *entries, uint32_t n) {
  n = mrc_min_u32(n, mrc_spsc_room(ring));
  if (n == 0) return 0;
  uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
  uint32_t run = straight_run(ring, tail, n);
  const uint8_t *source = entries;
  memcpy(entry_at(ring, tail), source, run * ring->entry_bytes);
  memcpy(ring->entries, source + run * ring->entry_bytes, (n - run) * ring->entry_bytes);
  /* Release pairs with the load of tail in mrc_spsc_used: the entries are written before it. */
  atomic_store_explicit(&ring->tail, tail + n, memory_order_release);
  return n;
}

uint32_t mrc_spsc_used(const struct mrc_spsc *ring) {
  /* Acquire pairs with the store of tail in mrc_spsc_push. */
  uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
  uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed); /* our own */
  mrc_assert(tail - head <= ring->mask + 1);
  return tail - head;
}

const void *mrc_spsc_at(const struct mrc_spsc *ring, uint32_t index) {
  return entry_at(ring, atomic_load_explicit(&ring->head, memory_order_relaxed) + index);
}

void mrc_spsc_drop(struct mrc_spsc *ring, uint32_t n) {
  uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
  /* Pairs with both loads of head in mrc_spsc_room. */
  atomic_store(&ring->head, head + n);
}

uint32_t mrc_spsc_pop(struct mrc_spsc *ring, void *entries, uint32_t n) {
  n = mrc_min_u32(n, mrc_spsc_used(ring));
  if (n == 0) return 0;
  uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
  uint32_t run = straight_run(ring, head, n);
  uint8_t *target = entries;
  memcpy(target, entry_at(ring, head), run * ring->entry_bytes);
  memcpy(target + run * ring->entry_bytes, ring->entries, (n - run) * ring->entry_bytes);
  mrc_spsc_drop(ring, n);
  return n;
}

bool mrc_spsc_starved(struct mrc_spsc *ring) {
  /* The plain load keeps the common case cheap. It is ordered after the store of head in
     mrc_spsc_drop, and pairs with the store of starved in mrc_spsc_room. */
  return atomic_load(&ring->starved) && atomic_exchange(&ring->starved, false);
}
