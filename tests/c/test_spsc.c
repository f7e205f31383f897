/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>

#include "check.h"
#include "io/spsc.h"

struct entry {
  uint32_t number;
  uint32_t check; /* ~number: detects a half-written entry */
  uint64_t filler;
};

static struct entry entry_of(uint32_t number) {
  return (struct entry){.number = number, .check = ~number, .filler = number * 3ull};
}

TEST(test_init__refuses_other_capacities) {
  static const uint32_t capacities[] = {0, 3, 6, 1000, (1u << 31) + 1};
  for (size_t i = 0; i < sizeof capacities / sizeof capacities[0]; i++) {
    struct mrc_spsc ring;
    CHECK_ROW(i);
    CHECK_EQ(mrc_spsc_init(&ring, capacities[i], 8), -EINVAL);
  }
}

/* Pushes and pops of all sizes, so that copies begin and end at every place of the ring. */
TEST(test_push_pop__keeps_order_over_the_wrap) {
  enum { CAPACITY = 8, ROUNDS = 200 };
  struct mrc_spsc ring;
  CHECK_EQ(mrc_spsc_init(&ring, CAPACITY, sizeof(struct entry)), 0);
  uint32_t pushed = 0;
  uint32_t popped = 0;
  for (uint32_t round = 0; round < ROUNDS; round++) {
    struct entry in[CAPACITY + 2];
    struct entry out[CAPACITY + 2];
    uint32_t wanted = round % (CAPACITY + 3);
    uint32_t room = CAPACITY - (pushed - popped);
    for (uint32_t i = 0; i < wanted; i++)
      in[i] = entry_of(pushed + i);
    CHECK_EQ(mrc_spsc_room(&ring), room);
    uint32_t n = mrc_spsc_push(&ring, in, wanted);
    CHECK_EQ(n, wanted < room ? wanted : room);
    pushed += n;
    CHECK_EQ(mrc_spsc_used(&ring), pushed - popped);
    n = mrc_min_u32(round % 5, mrc_spsc_used(&ring));
    if (round % 2 == 0) { /* in place */
      for (uint32_t i = 0; i < n; i++)
        memcpy(&out[i], mrc_spsc_at(&ring, i), sizeof out[i]);
      mrc_spsc_drop(&ring, n);
    } else {
      CHECK_EQ(mrc_spsc_pop(&ring, out, n), n);
    }
    for (uint32_t i = 0; i < n; i++) {
      struct entry expected = entry_of(popped + i);
      CHECK_MEM_EQ(&out[i], &expected, sizeof expected);
    }
    popped += n;
  }
  CHECK(popped > 3 * CAPACITY);
  mrc_spsc_free(&ring);
}

TEST(test_push_pop__positions_wrap_at_32_bits) {
  struct mrc_spsc ring;
  CHECK_EQ(mrc_spsc_init(&ring, 4, sizeof(struct entry)), 0);
  atomic_store(&ring.head, UINT32_MAX - 1);
  atomic_store(&ring.tail, UINT32_MAX - 1);
  struct entry in[4] = {entry_of(1), entry_of(2), entry_of(3), entry_of(4)};
  struct entry out[4];
  CHECK_EQ(mrc_spsc_push(&ring, in, 4), 4);
  CHECK_EQ(mrc_spsc_room(&ring), 0);
  CHECK_EQ(mrc_spsc_pop(&ring, out, 4), 4);
  CHECK_MEM_EQ(out, in, sizeof in);
  CHECK_EQ(mrc_spsc_room(&ring), 4);
  mrc_spsc_free(&ring);
}

TEST(test_starved__tells_once_that_the_producer_waits) {
  struct mrc_spsc ring;
  struct entry entry = entry_of(1);
  CHECK_EQ(mrc_spsc_init(&ring, 1, sizeof entry), 0);
  CHECK_EQ(mrc_spsc_push(&ring, &entry, 1), 1);
  CHECK(!mrc_spsc_starved(&ring));
  CHECK_EQ(mrc_spsc_push(&ring, &entry, 1), 0);
  CHECK_EQ(mrc_spsc_pop(&ring, &entry, 1), 1);
  CHECK(mrc_spsc_starved(&ring));
  CHECK(!mrc_spsc_starved(&ring));
  mrc_spsc_free(&ring);
}

/* ---- Two threads ---- */

enum { HAMMERED = 200000, HAMMER_CAPACITY = 64, HAMMER_BATCH = 17 };

static void *produce(void *argument) {
  struct mrc_spsc *ring = argument;
  uint32_t next = 0;
  while (next < HAMMERED) {
    struct entry batch[HAMMER_BATCH];
    uint32_t n = mrc_min_u32(1 + next % HAMMER_BATCH, HAMMERED - next);
    for (uint32_t i = 0; i < n; i++)
      batch[i] = entry_of(next + i);
    uint32_t pushed = mrc_spsc_push(ring, batch, n);
    if (pushed == 0) sched_yield();
    next += pushed;
  }
  return NULL;
}

TEST(test_threads__every_entry_once_in_order) {
  struct mrc_spsc ring;
  pthread_t producer;
  CHECK_EQ(mrc_spsc_init(&ring, HAMMER_CAPACITY, sizeof(struct entry)), 0);
  CHECK_EQ(pthread_create(&producer, NULL, produce, &ring), 0);
  uint32_t next = 0;
  while (next < HAMMERED) {
    struct entry batch[HAMMER_BATCH];
    uint32_t n = mrc_spsc_pop(&ring, batch, 1 + next % HAMMER_BATCH);
    for (uint32_t i = 0; i < n; i++, next++) {
      CHECK_EQ(batch[i].number, next);
      CHECK_EQ(batch[i].check, (uint32_t)~next);
    }
    if (n == 0) sched_yield();
  }
  pthread_join(producer, NULL);
  CHECK_EQ(mrc_spsc_used(&ring), 0);
  mrc_spsc_free(&ring);
}

/* A producer that waits for a signal of room, and a consumer that only signals when starved: after
   a missed signal both would wait, and the test would not end. */
struct turnstile {
  struct mrc_spsc ring;
  pthread_mutex_t lock;
  pthread_cond_t told;
  bool room;
};

static void *produce_and_wait(void *argument) {
  struct turnstile *turnstile = argument;
  for (uint32_t next = 0; next < HAMMERED / 4;) {
    struct entry entry = entry_of(next);
    if (mrc_spsc_push(&turnstile->ring, &entry, 1) == 1) {
      next++;
      continue;
    }
    pthread_mutex_lock(&turnstile->lock);
    while (!turnstile->room)
      pthread_cond_wait(&turnstile->told, &turnstile->lock);
    turnstile->room = false;
    pthread_mutex_unlock(&turnstile->lock);
  }
  return NULL;
}

TEST(test_threads__a_starved_producer_is_always_told) {
  static struct turnstile turnstile = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                       .told = PTHREAD_COND_INITIALIZER};
  pthread_t producer;
  CHECK_EQ(mrc_spsc_init(&turnstile.ring, 2, sizeof(struct entry)), 0);
  CHECK_EQ(pthread_create(&producer, NULL, produce_and_wait, &turnstile), 0);
  for (uint32_t next = 0; next < HAMMERED / 4;) {
    struct entry entry;
    if (mrc_spsc_pop(&turnstile.ring, &entry, 1) == 0) {
      sched_yield();
      continue;
    }
    CHECK_EQ(entry.number, next);
    next++;
    if (!mrc_spsc_starved(&turnstile.ring)) continue;
    pthread_mutex_lock(&turnstile.lock);
    turnstile.room = true;
    pthread_cond_signal(&turnstile.told);
    pthread_mutex_unlock(&turnstile.lock);
  }
  pthread_join(producer, NULL);
  mrc_spsc_free(&turnstile.ring);
}

/* ---- Wake-ups ---- */

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
