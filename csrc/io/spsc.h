/* SPDX-License-Identifier: Apache-2.0 */
/* What two threads share. A bounded ring of fixed-size entries between one producer thread and one
   consumer thread owns its memory and copies entries in and out. It wakes no thread, but records
   that the producer found it full, so that its users can. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "core/base.h"

#define MRC_SPSC_LINE 64 /* bytes of a cache line: the two threads write to different ones */

/* Positions only increase, and wrap at 2^32; the entry of position p is p & mask. The positions
   [head, tail) are in use. */
struct mrc_spsc {
  uint8_t *entries;
  size_t entry_bytes;
  uint32_t mask;                                 /* capacity - 1; the capacity is a power of two */
  _Alignas(MRC_SPSC_LINE) _Atomic uint32_t tail; /* written by the producer */
  _Alignas(MRC_SPSC_LINE) _Atomic uint32_t head; /* written by the consumer */
  _Alignas(MRC_SPSC_LINE) _Atomic bool starved;  /* the producer found no room */
};

/* Makes an empty ring. -EINVAL when capacity is not a power of two, -ENOMEM. */
int mrc_spsc_init(struct mrc_spsc *ring, uint32_t capacity, size_t entry_bytes) MRC_MUST_CHECK;
void mrc_spsc_free(struct mrc_spsc *ring);

/* Producer: number of free entries. When it is 0, the consumer's next mrc_spsc_starved after a pop
   is true, so that it can wake the producer. */
uint32_t mrc_spsc_room(struct mrc_spsc *ring);
/* Producer: appends as many of n entries as there is room for, and returns how many. */
uint32_t mrc_spsc_push(struct mrc_spsc *ring, const void *entries, uint32_t n);
/* Consumer: number of entries to pop. */
uint32_t mrc_spsc_used(const struct mrc_spsc *ring);
/* Consumer: takes up to n entries in order, and returns how many. */
uint32_t mrc_spsc_pop(struct mrc_spsc *ring, void *entries, uint32_t n);
/* Consumer, to work on entries in place: the one at `index`, below mrc_spsc_used; and the end of
   the first n, which the producer overwrites from then on. */
const void *mrc_spsc_at(const struct mrc_spsc *ring, uint32_t index);
void mrc_spsc_drop(struct mrc_spsc *ring, uint32_t n);
/* Consumer, after a pop: true once after the producer had found no room. */
bool mrc_spsc_starved(struct mrc_spsc *ring);

/* ---- Wake-ups by eventfd that cost a system call only if somebody sleeps ---- */

static inline void mrc_eventfd_signal(int fd, uint64_t value) {
  ssize_t written = write(fd, &value, sizeof value);
  (void)written; /* a full eventfd is readable all the same */
}

/* A thread that sleeps on an eventfd, and polls while it has work. All steps are exchanges of one
   variable: either the sleeper reads the wake-up, or the waker reads that it sleeps. */
struct mrc_sleeper {
  _Alignas(64) atomic_int state;
  int fd;
};

enum mrc_sleeper_state { MRC_AWAKE, MRC_ASLEEP, MRC_WOKEN };

/* False after a wake-up since the last call: look for work first. */
static inline bool mrc_sleeper_may_sleep(struct mrc_sleeper *sleeper) {
  if (atomic_exchange(&sleeper->state, MRC_ASLEEP) != MRC_WOKEN) return true;
  atomic_exchange(&sleeper->state, MRC_AWAKE);
  return false;
}

static inline void mrc_sleeper_woke(struct mrc_sleeper *sleeper) {
  atomic_exchange(&sleeper->state, MRC_AWAKE);
}

static inline void mrc_sleeper_wake(struct mrc_sleeper *sleeper) {
  if (atomic_exchange(&sleeper->state, MRC_WOKEN) == MRC_ASLEEP) mrc_eventfd_signal(sleeper->fd, 1);
}

/* An eventfd that is readable from the first ring to the next look, for a listener that may sleep
   at any time. It is written after `rung` is set, and `rung` is cleared after it was read. */
struct mrc_bell {
  _Alignas(64) atomic_bool rung;
  int fd;
};

static inline void mrc_bell_ring(struct mrc_bell *bell) {
  if (!atomic_exchange(&bell->rung, true)) mrc_eventfd_signal(bell->fd, 1);
}

/* The listener reads what there is after this. */
static inline void mrc_bell_silence(struct mrc_bell *bell) {
  uint64_t value;
  if (atomic_load(&bell->rung) && read(bell->fd, &value, sizeof value) == sizeof value)
    atomic_exchange(&bell->rung, false);
}
