/* SPDX-License-Identifier: Apache-2.0 */
#include "io/spsc.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include "check.h"

enum { ROUNDS = 20000 };

static bool is_readable(int fd) {
  return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1;
}

static int new_fd(void) {
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  CHECK(fd >= 0);
  return fd;
}

TEST(test_sleeper__a_wake_up_is_written_only_to_who_sleeps) {
  struct mrc_sleeper sleeper = {.fd = new_fd()};
  mrc_sleeper_wake(&sleeper); /* awake */
  CHECK(!is_readable(sleeper.fd));
  CHECK(!mrc_sleeper_may_sleep(&sleeper)); /* not before it looked for work */
  CHECK(mrc_sleeper_may_sleep(&sleeper));
  mrc_sleeper_wake(&sleeper);
  CHECK(is_readable(sleeper.fd));
  mrc_sleeper_woke(&sleeper);
  CHECK(mrc_sleeper_may_sleep(&sleeper));
  close(sleeper.fd);
}

TEST(test_bell__rings_once_until_it_is_silenced) {
  struct mrc_bell bell = {.fd = new_fd()};
  uint64_t value = 0;
  mrc_bell_silence(&bell); /* nothing to read */
  mrc_bell_ring(&bell);
  mrc_bell_ring(&bell);
  CHECK_EQ(read(bell.fd, &value, sizeof value), sizeof value);
  CHECK_EQ(value, 1);
  mrc_eventfd_signal(bell.fd, 1); /* as it was */
  mrc_bell_silence(&bell);
  CHECK(!is_readable(bell.fd));
  mrc_bell_ring(&bell);
  CHECK(is_readable(bell.fd));
  close(bell.fd);
}

/* ---- two threads: no wake-up is lost ---- */

static struct mrc_sleeper sleeper;
static struct mrc_bell bell;
static atomic_uint sent, taken; /* relaxed: the order comes from the wake-ups alone */

static bool wait_on(int fd) {
  uint64_t value;
  if (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE_MS) != 1) return false;
  return fd == bell.fd || read(fd, &value, sizeof value) > 0;
}

/* Takes a number as soon as it is there, sleeps, and rings the bell for it. */
static void *serve(void *unused) {
  (void)unused;
  unsigned seen = 0;
  while (seen < ROUNDS) {
    const unsigned now = atomic_load_explicit(&sent, memory_order_relaxed);
    if (now != seen) {
      seen = now;
      atomic_store_explicit(&taken, now, memory_order_relaxed);
      mrc_bell_ring(&bell);
    } else if (mrc_sleeper_may_sleep(&sleeper)) {
      CHECK(wait_on(sleeper.fd));
      mrc_sleeper_woke(&sleeper);
    }
  }
  return NULL;
}

TEST(test_both__no_wake_up_is_lost) {
  pthread_t thread;
  sleeper = (struct mrc_sleeper){.fd = new_fd()};
  bell = (struct mrc_bell){.fd = new_fd()};
  CHECK_EQ(pthread_create(&thread, NULL, serve, NULL), 0);
  for (unsigned round = 1; round <= ROUNDS; round++) {
    atomic_store_explicit(&sent, round, memory_order_relaxed);
    mrc_sleeper_wake(&sleeper);
    for (;;) {
      mrc_bell_silence(&bell);
      if (atomic_load_explicit(&taken, memory_order_relaxed) == round) break;
      CHECK(wait_on(bell.fd));
    }
  }
  pthread_join(thread, NULL);
  close(sleeper.fd);
  close(bell.fd);
}
