/* SPDX-License-Identifier: Apache-2.0 */
/* Wake-ups by eventfd between two threads that cost a system call only if somebody sleeps. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

static inline void mrc_eventfd_signal(int fd, uint64_t value) {
  ssize_t written = write(fd, &value, sizeof value);
  (void)written; /* a full eventfd is readable all the same */
}

/* A thread that sleeps on an eventfd, and polls while it has work. All steps are exchanges of one
   variable: either the sleeper sees the wake-up, or the waker sees it sleep. */
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

/* The listener looks for what it was called for after this. */
static inline void mrc_bell_silence(struct mrc_bell *bell) {
  uint64_t value;
  if (atomic_load(&bell->rung) && read(bell->fd, &value, sizeof value) == sizeof value)
    atomic_exchange(&bell->rung, false);
}
