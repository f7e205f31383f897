/* SPDX-License-Identifier: Apache-2.0 */
#include "timer.h"

#include <errno.h>
#include <stdlib.h>

#define NOWHERE UINT32_MAX

int mrc_timers_init(struct mrc_timers *timers, uint32_t capacity) {
  mrc_assert(capacity > 0);
  *timers = (struct mrc_timers){.deadline_ns = malloc(capacity * sizeof(uint64_t)),
                                .heap = malloc(capacity * sizeof(uint32_t)),
                                .place = malloc(capacity * sizeof(uint32_t)),
                                .capacity = capacity};
  const bool ok = timers->deadline_ns != NULL && timers->heap != NULL && timers->place != NULL;
  return ok ? 0 : -ENOMEM;
}

void mrc_timers_free(struct mrc_timers *timers) {
  free(timers->deadline_ns);
  free(timers->heap);
  free(timers->place);
  *timers = (struct mrc_timers){0};
}

static void put(struct mrc_timers *timers, uint32_t index, uint32_t id) {
  timers->heap[index] = id;
  timers->place[id] = index;
}

static uint64_t key_at(const struct mrc_timers *timers, uint32_t index) {
  return timers->deadline_ns[timers->heap[index]];
}

static void sift_up(struct mrc_timers *timers, uint32_t index, uint32_t id) {
  while (index > 0 && key_at(timers, (index - 1) / 2) > timers->deadline_ns[id]) {
    put(timers, index, timers->heap[(index - 1) / 2]);
    index = (index - 1) / 2;
  }
  put(timers, index, id);
}

static void sift_down(struct mrc_timers *timers, uint32_t index, uint32_t id) {
  for (;;) {
    uint32_t child = 2 * index + 1;
    if (child >= timers->count) break;
    if (child + 1 < timers->count && key_at(timers, child + 1) < key_at(timers, child)) child++;
    if (key_at(timers, child) >= timers->deadline_ns[id]) break;
    put(timers, index, timers->heap[child]);
    index = child;
  }
  put(timers, index, id);
}

static void take_out(struct mrc_timers *timers, uint32_t id) {
  const uint32_t index = timers->place[id];
  const uint32_t last = timers->heap[--timers->count];
  timers->place[id] = NOWHERE;
  if (last == id) return;
  sift_up(timers, index, last);
  sift_down(timers, timers->place[last], last);
}

void mrc_timers_set(struct mrc_timers *timers, uint32_t id, uint64_t deadline_ns) {
  mrc_assert(id < timers->capacity);
  if (deadline_ns == MRC_NEVER && id >= timers->known) return;
  while (timers->known <= id)
    timers->place[timers->known++] = NOWHERE;
  if (timers->place[id] != NOWHERE) {
    if (timers->deadline_ns[id] == deadline_ns) return;
    take_out(timers, id);
  }
  timers->deadline_ns[id] = deadline_ns;
  if (deadline_ns != MRC_NEVER) sift_up(timers, timers->count++, id);
}

uint64_t mrc_timers_next(const struct mrc_timers *timers) {
  return timers->count == 0 ? MRC_NEVER : key_at(timers, 0);
}

uint32_t mrc_timers_pop(struct mrc_timers *timers, uint64_t now_ns) {
  if (mrc_timers_next(timers) > now_ns) return NOWHERE;
  const uint32_t id = timers->heap[0];
  take_out(timers, id);
  return id;
}
