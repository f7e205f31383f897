/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines of many objects in one indexed binary heap: each id has at most one deadline. The
   meaning of the ids is the caller's. Setting, clearing and taking the earliest cost O(log n). */
#ifndef MRC_CORE_TIMER_H
#define MRC_CORE_TIMER_H

#include "base.h"

struct mrc_timers {
  uint64_t *deadline_ns; /* by id */
  uint32_t *heap;        /* ids, earliest first */
  uint32_t *place;       /* id -> index in heap, or UINT32_MAX; of the first `known` ids */
  uint32_t count;
  uint32_t capacity;
  uint32_t known; /* ids below it had deadlines; memory for the others was never touched */
};

/* 0 or -ENOMEM; call mrc_timers_free in either case. Ids are 0 .. capacity - 1. */
int mrc_timers_init(struct mrc_timers *timers, uint32_t capacity) MRC_MUST_CHECK;
void mrc_timers_free(struct mrc_timers *timers);
/* MRC_NEVER clears. */
void mrc_timers_set(struct mrc_timers *timers, uint32_t id, uint64_t deadline_ns);
/* When `id` is due, or MRC_NEVER. */
static inline uint64_t mrc_timers_at(const struct mrc_timers *timers, uint32_t id) {
  const bool is_set = id < timers->known && timers->place[id] != UINT32_MAX;
  return is_set ? timers->deadline_ns[id] : MRC_NEVER;
}
/* The earliest deadline, or MRC_NEVER. */
uint64_t mrc_timers_next(const struct mrc_timers *timers);
/* Takes the earliest id whose deadline has come, or returns UINT32_MAX. */
uint32_t mrc_timers_pop(struct mrc_timers *timers, uint64_t now_ns);

#endif
