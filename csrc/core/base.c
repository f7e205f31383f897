/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

void mrc_assert_failed(const char *expression, const char *file, int line) {
  fprintf(stderr, "mrc: assertion failed: %s (%s:%d)\n", expression, file, line);
  abort();
}

/* ---- maps ---- */

int mrc_keymap_init(struct mrc_keymap *map, uint32_t capacity) {
  mrc_assert(capacity > 0 && capacity <= 1u << 24);
  const uint32_t cells = mrc_ceil_pow2(mrc_max_u32(4, 2 * capacity));
  *map = (struct mrc_keymap){.cells = malloc(cells * sizeof(struct mrc_keymap_cell)),
                             .mask = cells - 1,
                             .capacity = capacity};
  if (map->cells == NULL) return -ENOMEM;
  for (uint32_t i = 0; i < cells; i++)
    map->cells[i].value = MRC_KEYMAP_NONE;
  return 0;
}

void mrc_keymap_free(struct mrc_keymap *map) { free(map->cells); }

static uint32_t home_of(const struct mrc_keymap *map, uint32_t key) {
  return (uint32_t)((key * 0x9E3779B97F4A7C15ull) >> 32) & map->mask;
}

/* The cell that holds the key, or the empty cell for it. */
static uint32_t cell_of(const struct mrc_keymap *map, uint32_t key) {
  uint32_t i = home_of(map, key);
  while (map->cells[i].value != MRC_KEYMAP_NONE && map->cells[i].key != key)
    i = (i + 1) & map->mask; /* terminates, because half of the cells are empty */
  return i;
}

uint32_t mrc_keymap_get(const struct mrc_keymap *map, uint32_t key) {
  return map->cells[cell_of(map, key)].value;
}

int mrc_keymap_put(struct mrc_keymap *map, uint32_t key, uint32_t value) {
  mrc_assert(value != MRC_KEYMAP_NONE);
  const uint32_t i = cell_of(map, key);
  if (map->cells[i].value != MRC_KEYMAP_NONE) return -EEXIST;
  if (map->count == map->capacity) return -ENOSPC;
  map->cells[i] = (struct mrc_keymap_cell){.key = key, .value = value};
  map->count++;
  return 0;
}

void mrc_keymap_remove(struct mrc_keymap *map, uint32_t key) {
  uint32_t hole = cell_of(map, key);
  mrc_assert(map->cells[hole].value != MRC_KEYMAP_NONE);
  /* Close the gap: an entry whose home is not between the hole and itself moves into the hole. */
  for (uint32_t i = (hole + 1) & map->mask; map->cells[i].value != MRC_KEYMAP_NONE;
       i = (i + 1) & map->mask) {
    const uint32_t home = home_of(map, map->cells[i].key);
    if (((i - home) & map->mask) >= ((i - hole) & map->mask)) {
      map->cells[hole] = map->cells[i];
      hole = i;
    }
  }
  map->cells[hole].value = MRC_KEYMAP_NONE;
  map->count--;
}

/* ---- timers ---- */

#define NOWHERE UINT32_MAX

void mrc_timers_init(struct mrc_timers *timers, struct mrc_timer_cell *cells, uint32_t capacity) {
  mrc_assert(capacity > 0);
  *timers = (struct mrc_timers){.cells = cells, .capacity = capacity};
}

static void put(struct mrc_timers *timers, uint32_t index, uint32_t id) {
  timers->cells[index].heap = id;
  timers->cells[id].place = index;
}

static uint64_t key_at(const struct mrc_timers *timers, uint32_t index) {
  return timers->cells[timers->cells[index].heap].deadline_ns;
}

static void sift_up(struct mrc_timers *timers, uint32_t index, uint32_t id) {
  while (index > 0 && key_at(timers, (index - 1) / 2) > timers->cells[id].deadline_ns) {
    put(timers, index, timers->cells[(index - 1) / 2].heap);
    index = (index - 1) / 2;
  }
  put(timers, index, id);
}

static void sift_down(struct mrc_timers *timers, uint32_t index, uint32_t id) {
  for (;;) {
    uint32_t child = 2 * index + 1;
    if (child >= timers->count) break;
    if (child + 1 < timers->count && key_at(timers, child + 1) < key_at(timers, child)) child++;
    if (key_at(timers, child) >= timers->cells[id].deadline_ns) break;
    put(timers, index, timers->cells[child].heap);
    index = child;
  }
  put(timers, index, id);
}

static void take_out(struct mrc_timers *timers, uint32_t id) {
  const uint32_t index = timers->cells[id].place;
  const uint32_t last = timers->cells[--timers->count].heap;
  timers->cells[id].place = NOWHERE;
  if (last == id) return;
  sift_up(timers, index, last);
  sift_down(timers, timers->cells[last].place, last);
}

void mrc_timers_set(struct mrc_timers *timers, uint32_t id, uint64_t deadline_ns) {
  mrc_assert(id < timers->capacity);
  if (deadline_ns == MRC_NEVER && id >= timers->known) return;
  while (timers->known <= id)
    timers->cells[timers->known++].place = NOWHERE;
  if (timers->cells[id].place != NOWHERE) {
    if (timers->cells[id].deadline_ns == deadline_ns) return;
    take_out(timers, id);
  }
  timers->cells[id].deadline_ns = deadline_ns;
  if (deadline_ns != MRC_NEVER) sift_up(timers, timers->count++, id);
}

uint64_t mrc_timers_next(const struct mrc_timers *timers) {
  return timers->count == 0 ? MRC_NEVER : key_at(timers, 0);
}

uint32_t mrc_timers_pop(struct mrc_timers *timers, uint64_t now_ns) {
  if (mrc_timers_next(timers) > now_ns) return NOWHERE;
  const uint32_t id = timers->cells[0].heap;
  take_out(timers, id);
  return id;
}
