/* SPDX-License-Identifier: Apache-2.0 */
#include "io/sigbus.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Atomics, because the handler runs in any thread that touches the memory, and must not lock. The
   rings of spsc.h have the only other ones. */
struct range {
  _Atomic uint32_t version; /* odd while the fields below change */
  _Atomic uintptr_t start;
  _Atomic uintptr_t end; /* half-open; 0 in a free slot */
  _Atomic int wake_fd;
  _Atomic bool faulted;
};

static struct range ranges[MRC_SIGBUS_RANGES];
static _Atomic int ranges_used; /* slots from this one on were never used */
static _Atomic uint32_t faults;
static _Atomic int repairing; /* handlers that may be about to map pages into a range */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all writers except the handler */
static bool installed;
static struct sigaction previous;
static uintptr_t page_mask; /* bytes of a page - 1 */

/* Writers hold the lock. Sequentially consistent stores pair with the loads in range_holds: a
   reader that loads the same even `version` before and after has read one state of the slot. */
static void publish_range(struct range *range, uintptr_t start, uintptr_t end, int wake_fd) {
  atomic_fetch_add(&range->version, 1);
  atomic_store(&range->start, start);
  atomic_store(&range->end, end);
  atomic_store(&range->wake_fd, wake_fd);
  atomic_store(&range->faulted, false);
  atomic_fetch_add(&range->version, 1);
}

/* Skips a slot that is changing: no thread may touch a range while it is added or removed. */
static bool range_holds(struct range *range, uintptr_t address, uintptr_t *end) {
  uint32_t version = atomic_load(&range->version);
  uintptr_t first = atomic_load(&range->start);
  *end = atomic_load(&range->end);
  return version % 2 == 0 && address >= first && address < *end &&
         version == atomic_load(&range->version);
}

/* Maps zero pages from the faulting page to the end of the range. Behind the new end of a file no
   page has backing, and one mapping for all of them avoids a fault per page. */
static bool repair(uintptr_t address, uintptr_t end) {
  uintptr_t first = address & ~page_mask;
  uintptr_t last = (end + page_mask) & ~page_mask;
  /* Not libc's mmap: only the bare system call is sure to be safe in a handler. */
  long mapped = syscall(SYS_mmap, first, last - first, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return mapped == (long)first;
}

static void remember(struct range *range) {
  atomic_store(&range->faulted, true); /* pairs with the exchange in mrc_sigbus_take */
  atomic_fetch_add(&faults, 1);        /* after the flag, so that the count implies the flag */
  uint64_t one = 1;
  ssize_t written = write(atomic_load(&range->wake_fd), &one, sizeof one);
  (void)written; /* a full eventfd wakes its reader all the same */
}

/* True when the address lies in a guarded range. All ranges that contain it record the fault. */
static bool handle_fault(uintptr_t address) {
  int n = atomic_load(&ranges_used);
  uintptr_t end = 0;
  uintptr_t furthest = 0;
  for (int i = 0; i < n; i++)
    if (range_holds(&ranges[i], address, &end) && end > furthest) furthest = end;
  if (furthest == 0 || !repair(address, furthest)) return false;
  for (int i = 0; i < n; i++)
    if (range_holds(&ranges[i], address, &end)) remember(&ranges[i]);
  return true;
}

/* Sequentially consistent, like the stores of mrc_sigbus_remove: either mrc_sigbus_remove finds
   this handler and waits, or the handler finds no range. */
static bool handle(uintptr_t address) {
  atomic_fetch_add(&repairing, 1);
  const bool handled = handle_fault(address);
  atomic_fetch_sub(&repairing, 1);
  return handled;
}

static void on_sigbus(int number, siginfo_t *info, void *context) {
  int saved_errno = errno;
  bool fault = info->si_code > 0; /* else it was sent by a process, and has no address */
  bool repaired = fault && handle((uintptr_t)info->si_addr);
  errno = saved_errno;
  if (repaired) return;
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(number, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(number);
  } else {
    sigaction(number, &previous, NULL);
    if (!fault) raise(number); /* a fault repeats by itself, and now ends the process */
  }
}

static int install(void) {
  if (installed) return 0;
  page_mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
  struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, &action, &previous) != 0) return -errno;
  installed = true;
  return 0;
}

static int free_slot(void) {
  int n = atomic_load(&ranges_used);
  for (int i = 0; i < n; i++)
    if (atomic_load(&ranges[i].end) == 0) return i;
  return n < MRC_SIGBUS_RANGES ? n : -ENOSPC;
}

int mrc_sigbus_add(const void *start, size_t bytes, int wake_fd) {
  uintptr_t first = (uintptr_t)start;
  mrc_assert(bytes > 0 && first + bytes > first);
  pthread_mutex_lock(&lock);
  int slot = install();
  if (slot == 0) slot = free_slot();
  if (slot >= 0) {
    publish_range(&ranges[slot], first, first + bytes, wake_fd);
    if (slot == atomic_load(&ranges_used)) atomic_store(&ranges_used, slot + 1);
  }
  pthread_mutex_unlock(&lock);
  return slot;
}

void mrc_sigbus_remove(int slot) {
  mrc_assert(slot >= 0 && slot < atomic_load(&ranges_used));
  pthread_mutex_lock(&lock);
  publish_range(&ranges[slot], 0, 0, -1);
  pthread_mutex_unlock(&lock);
  /* A repair in progress could map zero pages over the next contents of the range. It ends soon,
     because a handler never waits. */
  while (atomic_load(&repairing) > 0)
    sched_yield();
}

bool mrc_sigbus_in_force(void) {
  struct sigaction current;
  return sigaction(SIGBUS, NULL, &current) == 0 && (current.sa_flags & SA_SIGINFO) != 0 &&
         current.sa_sigaction == on_sigbus;
}

/* Does not take the lock: a thread of the parent may have held it. A child has one thread. */
void mrc_sigbus_forget(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  atomic_store(&ranges_used, 0);
  atomic_store(&repairing, 0);
  for (int i = 0; i < MRC_SIGBUS_RANGES; i++) {
    if (atomic_load(&ranges[i].version) % 2 != 0) atomic_fetch_add(&ranges[i].version, 1);
    if (atomic_load(&ranges[i].end) != 0) publish_range(&ranges[i], 0, 0, -1);
  }
}

uint32_t mrc_sigbus_faults(void) { return atomic_load(&faults); }

bool mrc_sigbus_take(int slot) { return atomic_exchange(&ranges[slot].faulted, false); }

void mrc_sigbus_touch(const void *start, size_t bytes) {
  if (bytes == 0) return;
  size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
  const volatile uint8_t *memory = start;
  for (size_t i = 0; i < bytes; i += page_bytes)
    (void)memory[i];
  (void)memory[bytes - 1];
}

/* ---- The MRs of a context ---- */

int mrc_guards_open(struct mrc_guards *guards, uint32_t capacity) {
  *guards = (struct mrc_guards){.entries = calloc(capacity, sizeof *guards->entries),
                                .capacity = capacity,
                                .faults_seen = mrc_sigbus_faults()};
  return guards->entries ? 0 : -ENOMEM;
}

void mrc_guards_close(struct mrc_guards *guards) {
  for (uint32_t i = 0; i < guards->n; i++)
    mrc_sigbus_remove(guards->entries[i].handle);
  free(guards->entries);
  *guards = (struct mrc_guards){0};
}

int mrc_guards_add(struct mrc_guards *guards, uint32_t key, uint64_t address, uint64_t bytes,
                   int wake_fd) {
  if (guards->n == guards->capacity) return -ENOSPC;
  int handle = mrc_sigbus_add((void *)(uintptr_t)address, bytes, wake_fd);
  if (handle < 0) return handle;
  guards->replaced |= !mrc_sigbus_in_force();
  guards->entries[guards->n++] = (struct mrc_guard){.key = key, .handle = handle};
  return 0;
}

void mrc_guards_remove(struct mrc_guards *guards, uint32_t key) {
  for (uint32_t i = 0; i < guards->n; i++) {
    if (guards->entries[i].key != key) continue;
    mrc_sigbus_remove(guards->entries[i].handle);
    guards->entries[i] = guards->entries[--guards->n];
    return;
  }
}

int mrc_guards_take_faults(struct mrc_guards *guards, uint32_t *keys, int capacity) {
  uint32_t seen = mrc_sigbus_faults(); /* before the check: later faults cause another one */
  if (seen == guards->faults_seen) return 0;
  int n = 0;
  for (uint32_t i = 0; i < guards->n; i++) {
    if (n == capacity) return n; /* incomplete: keep faults_seen */
    if (mrc_sigbus_take(guards->entries[i].handle)) keys[n++] = guards->entries[i].key;
  }
  guards->faults_seen = seen;
  return n;
}
