/* SPDX-License-Identifier: Apache-2.0 */
#include "timer.h"

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
