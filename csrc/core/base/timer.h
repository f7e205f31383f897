/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines of many objects in one indexed binary heap: each id has at most one deadline. The
   meaning of the ids is the caller's. Setting, clearing and taking the earliest cost O(log n). */
#pragma once

#include "base.h"

struct mrc_timer_cell {
  uint64_t deadline_ns; /* of the id that is this cell's index */
  uint32_t place;       /* of that id: its index in the heap, or UINT32_MAX */
  uint32_t heap;        /* the id at this index of the heap, earliest first */
};

struct mrc_timers {
  struct mrc_timer_cell *cells;
  uint32_t count;
  uint32_t capacity;
  uint32_t known; /* ids below it had deadlines; memory for the others was never touched */
};

/* Ids are 0 .. capacity - 1. The cells are the caller's; they need not be set. */
void mrc_timers_init(struct mrc_timers *timers, struct mrc_timer_cell *cells, uint32_t capacity);
/* MRC_NEVER clears. */
void mrc_timers_set(struct mrc_timers *timers, uint32_t id, uint64_t deadline_ns);
/* When `id` is due, or MRC_NEVER. */
static inline uint64_t mrc_timers_at(const struct mrc_timers *timers, uint32_t id) {
  const bool is_set = id < timers->known && timers->cells[id].place != UINT32_MAX;
  return is_set ? timers->cells[id].deadline_ns : MRC_NEVER;
}
/* The earliest deadline, or MRC_NEVER. */
uint64_t mrc_timers_next(const struct mrc_timers *timers);
/* Takes the earliest id whose deadline has come, or returns UINT32_MAX. */
uint32_t mrc_timers_pop(struct mrc_timers *timers, uint64_t now_ns);
