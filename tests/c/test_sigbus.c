/* SPDX-License-Identifier: Apache-2.0 */
/* The signal handler belongs to the process, so every test runs in its own child. */
#define _GNU_SOURCE 1
#include "io/sigbus.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { PAGES = 4, PREVIOUS_HANDLER_RAN = 42 };

static size_t page_bytes;

/* ---- A repair that can be held up ---- */

static atomic_bool is_held_up;   /* set: the next repair waits */
static atomic_bool is_repairing; /* the repair has begun to wait */
static atomic_bool is_removing;  /* set when a removal begins: the repair goes on */
static atomic_bool is_removed;   /* the memory has its next contents */

static long (*real_syscall)(long, ...);

__attribute__((constructor)) static void find_syscall(void) {
  real_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
}

/* The guard maps its zero pages with this function: a handler must not call mmap. */
long syscall(long number, ...) {
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++)
    arguments[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_mmap && atomic_load(&is_held_up)) {
    atomic_store(&is_repairing, true);
    while (!atomic_load(&is_removing))
      sched_yield();
    for (int i = 0; i < 20 && !atomic_load(&is_removed); i++)
      usleep(1000); /* gives a faulty removal time to finish */
  }
  return real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                      arguments[5]);
}

/* A mapped file of PAGES pages full of 0x5a; *fd is the file. */
static uint8_t *map_file(int *fd) {
  page_bytes = (size_t)sysconf(_SC_PAGESIZE);
  size_t bytes = PAGES * page_bytes;
  uint8_t *content = malloc(bytes);
  memset(content, 0x5a, bytes);
  *fd = memfd_create("test_sigbus", MFD_CLOEXEC);
  CHECK_EQ(write(*fd, content, bytes), (ssize_t)bytes);
  free(content);
  uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

static bool all_are(const uint8_t *memory, size_t bytes, uint8_t value) {
  for (size_t i = 0; i < bytes; i++)
    if (((const volatile uint8_t *)memory)[i] != value) return false;
  return true;
}

/* Runs a function in a child and returns its wait status; failed checks count as exit 1. */
static int run_in_child(void (*run)(void)) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    run();
    fflush(NULL);
    _exit(atomic_load(&check_failures) != 0);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return status;
}

static void check_passes_in_child(void (*run)(void)) {
  int status = run_in_child(run);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 0);
}

/* ---- A guarded file that shrinks ---- */

static void shrink_to_one_page(void) {
  int fd;
  uint8_t *memory = map_file(&fd);
  int wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  int handle = mrc_sigbus_add(memory, PAGES * page_bytes, wake_fd);
  CHECK(handle >= 0);
  uint64_t woken = 0;
  CHECK_EQ(mrc_sigbus_faults(), 0);
  CHECK(!mrc_sigbus_take(handle));
  CHECK_EQ(read(wake_fd, &woken, sizeof woken), -1);

  CHECK_EQ(ftruncate(fd, (off_t)page_bytes), 0);
  CHECK(all_are(memory + 2 * page_bytes, 2 * page_bytes, 0));
  CHECK_EQ(mrc_sigbus_faults(), 1);
  CHECK_EQ(read(wake_fd, &woken, sizeof woken), sizeof woken);
  CHECK_EQ(woken, 1);
  CHECK(mrc_sigbus_take(handle));
  CHECK(!mrc_sigbus_take(handle));

  /* Pages with backing stay as they are; the page between faults separately. */
  CHECK(all_are(memory, page_bytes, 0x5a));
  memory[page_bytes + 7] = 1;
  CHECK_EQ(memory[page_bytes + 7], 1);
  CHECK(mrc_sigbus_take(handle));
  mrc_sigbus_remove(handle);
}

TEST(test_guard__a_shrunk_file_reads_as_zeros) { check_passes_in_child(shrink_to_one_page); }

static void shrink_under_two_ranges(void) {
  int fd;
  uint8_t *memory = map_file(&fd);
  int whole = mrc_sigbus_add(memory + 1, PAGES * page_bytes - 1, -1);
  int first = mrc_sigbus_add(memory, page_bytes, -1);
  int last = mrc_sigbus_add(memory + 3 * page_bytes + 100, 100, -1);
  CHECK_EQ(ftruncate(fd, 0), 0);
  CHECK_EQ(((volatile uint8_t *)memory)[3 * page_bytes + 150], 0);
  CHECK(mrc_sigbus_take(whole));
  CHECK(!mrc_sigbus_take(first));
  CHECK(mrc_sigbus_take(last));
  mrc_sigbus_remove(last);
  mrc_sigbus_remove(first);
  mrc_sigbus_remove(whole);
}

TEST(test_guard__tells_every_range_that_holds_the_address) {
  check_passes_in_child(shrink_under_two_ranges);
}

static void *touch_all(void *memory) {
  mrc_sigbus_touch(memory, PAGES * page_bytes);
  return NULL;
}

static void shrink_under_threads(void) {
  int fd;
  uint8_t *memory = map_file(&fd);
  int handle = mrc_sigbus_add(memory, PAGES * page_bytes, -1);
  CHECK_EQ(ftruncate(fd, 0), 0);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    CHECK_EQ(pthread_create(&threads[i], NULL, touch_all, memory), 0);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  CHECK(mrc_sigbus_take(handle));
  CHECK(all_are(memory, PAGES * page_bytes, 0));
  mrc_sigbus_remove(handle);
}

TEST(test_guard__any_thread_may_fault) { check_passes_in_child(shrink_under_threads); }

static void reuse_slots(void) {
  static uint8_t memory[64];
  int first = mrc_sigbus_add(memory, 32, -1);
  int second = mrc_sigbus_add(memory + 32, 32, -1);
  CHECK(first != second);
  mrc_sigbus_remove(first);
  CHECK_EQ(mrc_sigbus_add(memory, 8, -1), first);
  for (int i = 2; i < MRC_SIGBUS_RANGES; i++)
    CHECK(mrc_sigbus_add(memory, 1, -1) >= 0);
  CHECK_EQ(mrc_sigbus_add(memory, 1, -1), -ENOSPC);
  mrc_sigbus_remove(second);
  CHECK_EQ(mrc_sigbus_add(memory, 1, -1), second);
}

TEST(test_add__reuses_slots_and_refuses_when_full) { check_passes_in_child(reuse_slots); }

/* Only once: a second read would not wait for what the other thread does. */
static void *read_one(void *memory) {
  (void)*(const volatile uint8_t *)memory;
  return NULL;
}

/* One thread reads a shrunk region while another removes it and maps other memory there: the zero
   pages must not be mapped after that. */
static void remove_during_repair(void) {
  int fd;
  uint8_t *memory = map_file(&fd);
  const int handle = mrc_sigbus_add(memory, PAGES * page_bytes, -1);
  CHECK_EQ(ftruncate(fd, 0), 0);
  atomic_store(&is_held_up, true);
  pthread_t reader;
  CHECK_EQ(pthread_create(&reader, NULL, read_one, memory), 0);
  while (!atomic_load(&is_repairing))
    sched_yield();
  atomic_store(&is_removing, true);
  mrc_sigbus_remove(handle);
  CHECK_PTR_EQ(mmap(memory, page_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
               memory);
  memory[0] = 0x77;
  atomic_store(&is_removed, true);
  pthread_join(reader, NULL);
  CHECK_EQ(memory[0], 0x77);
}

TEST(test_remove__waits_for_a_repair_under_way) { check_passes_in_child(remove_during_repair); }

/* ---- Any other SIGBUS ---- */

static void leave(int number) {
  (void)number;
  _exit(PREVIOUS_HANDLER_RAN);
}

static void leave_with_info(int number, siginfo_t *info, void *context) {
  (void)number;
  (void)context;
  _exit(info->si_code > 0 ? PREVIOUS_HANDLER_RAN : 1);
}

/* Guards one range, and faults in another. */
static void fault_outside(void) {
  int fd;
  uint8_t *memory = map_file(&fd);
  int handle = mrc_sigbus_add(memory, page_bytes, -1);
  CHECK(handle >= 0);
  CHECK_EQ(ftruncate(fd, 0), 0);
  mrc_sigbus_touch(memory + page_bytes, 1);
}

static void fault_outside_with_handler(void) {
  signal(SIGBUS, leave);
  fault_outside();
}

static void fault_outside_with_info_handler(void) {
  struct sigaction action = {.sa_sigaction = leave_with_info, .sa_flags = SA_SIGINFO};
  sigaction(SIGBUS, &action, NULL);
  fault_outside();
}

static void fault_outside_with_default(void) {
  signal(SIGBUS, SIG_DFL);
  fault_outside();
}

static void fault_after_remove(void) {
  signal(SIGBUS, leave);
  int fd;
  uint8_t *memory = map_file(&fd);
  mrc_sigbus_remove(mrc_sigbus_add(memory, page_bytes, -1));
  CHECK_EQ(ftruncate(fd, 0), 0);
  mrc_sigbus_touch(memory, 1);
}

static void replace_the_handler(void) {
  static uint8_t memory[64];
  CHECK(mrc_sigbus_add(memory, sizeof memory, -1) >= 0);
  CHECK(mrc_sigbus_in_force());
  struct sigaction ours;
  CHECK_EQ(sigaction(SIGBUS, NULL, &ours), 0);
  signal(SIGBUS, leave);
  CHECK(!mrc_sigbus_in_force());
  CHECK_EQ(sigaction(SIGBUS, &ours, NULL), 0);
  CHECK(mrc_sigbus_in_force());
}

TEST(test_in_force__not_after_another_handler_was_installed) {
  check_passes_in_child(replace_the_handler);
}

static void be_sent_the_signal(void) {
  signal(SIGBUS, SIG_DFL);
  static uint8_t memory[64];
  CHECK(mrc_sigbus_add(memory, sizeof memory, -1) >= 0);
  kill(getpid(), SIGBUS);
}

TEST(test_guard__other_faults_go_to_the_previous_handler) {
  static void (*const runs[])(void) = {fault_outside_with_handler, fault_outside_with_info_handler,
                                       fault_after_remove};
  EACH_ROW(i, runs) {
    int status = run_in_child(runs[i]);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), PREVIOUS_HANDLER_RAN);
  }
}

TEST(test_guard__without_a_previous_handler_the_process_ends) {
  static void (*const runs[])(void) = {fault_outside_with_default, be_sent_the_signal};
  EACH_ROW(i, runs) {
    int status = run_in_child(runs[i]);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(WTERMSIG(status), SIGBUS);
  }
}
