/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded: the n-th call of a kind fails, or sees a clock that was set. Calls are counted between
   access("/hostile-begins") and access("/hostile-ends"), in a file that the test made, so that the
   count is there however the process ends. */
#define _GNU_SOURCE 1
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

enum {
  LARGE = 1 << 16
}; /* bytes: a thread of Python never begins, unnoticed, without its first page */
enum kind { NONE, FILES, MEMORY, CLOCK };

static const char *const NAMES[] = {"none", "files", "memory", "clock"};

/* In the file: what the test reads. */
struct report {
  _Atomic uint64_t calls;
  char failed[56]; /* the function whose call failed first */
};

static enum kind kind;
static uint64_t first, most; /* the calls that fail: most of them, from the first one */
static struct report *report;
static atomic_bool counting;

__attribute__((constructor)) static void read_environment(void) {
  const char *text = getenv("MRC_HOSTILE"); /* kind:first:most:file */
  char name[16], path[256];
  unsigned long a, b;
  if (!text || sscanf(text, "%15[a-z]:%lu:%lu:%255s", name, &a, &b, path) != 4) return;
  for (unsigned i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
    if (strcmp(name, NAMES[i]) == 0) kind = (enum kind)i;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return;
  report =
      (void *)syscall(SYS_mmap, NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (report == MAP_FAILED) report = NULL;
  first = a;
  most = b;
}

/* Whether this call of the kind is one of those that fail. */
static bool falls(enum kind of, const char *function) {
  if (of != kind || !report || !counting) return false;
  const uint64_t call = atomic_fetch_add(&report->calls, 1) + 1;
  if (first == 0 || call < first || call - first >= most) return false;
  if (call == first) strncpy(report->failed, function, sizeof report->failed - 1);
  return true;
}

/* Whether the caller's file has this in its path. */
static bool is_of(const void *caller, const char *part) {
  Dl_info found;
  return kind != NONE && counting && dladdr(caller, &found) && found.dli_fname &&
         strstr(found.dli_fname, part);
}

int access(const char *path, int mode) {
  if (strcmp(path, "/hostile-begins") == 0) counting = true;
  if (strcmp(path, "/hostile-ends") == 0) counting = false;
  return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

/* ---- Descriptors ------------------------------------------------------------------------- */

/* libuv aborts when it lacks a descriptor. mrc looks beforehand whether there are enough. */
#define NO_FILE                                                                  \
  if (!is_of(__builtin_return_address(0), "/uvloop/") && falls(FILES, __func__)) \
  return errno = EMFILE, -1

static int opened(int folder, const char *path, int flags, va_list more) {
  const bool makes = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
  const mode_t mode = makes ? va_arg(more, mode_t) : 0;
  return (int)syscall(SYS_openat, folder, path, flags, mode);
}

#define OPEN(name, parameters, last, folder)          \
  int name parameters {                               \
    NO_FILE;                                          \
    va_list more;                                     \
    va_start(more, last);                             \
    const int fd = opened(folder, path, flags, more); \
    va_end(more);                                     \
    return fd;                                        \
  }

OPEN(open, (const char *path, int flags, ...), flags, AT_FDCWD)
OPEN(open64, (const char *path, int flags, ...), flags, AT_FDCWD)
OPEN(openat, (int at, const char *path, int flags, ...), flags, at)
OPEN(openat64, (int at, const char *path, int flags, ...), flags, at)
#undef OPEN

DIR *opendir(const char *path) {
  if (falls(FILES, __func__)) return errno = EMFILE, NULL;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  return fd < 0 ? NULL : fdopendir(fd);
}

#define MAKES(name, parameters, ...)  \
  int name parameters {               \
    NO_FILE;                          \
    return (int)syscall(__VA_ARGS__); \
  }

MAKES(socket, (int domain, int type, int protocol), SYS_socket, domain, type, protocol)
MAKES(socketpair, (int domain, int type, int protocol, int fds[2]), SYS_socketpair, domain, type,
      protocol, fds)
MAKES(accept4, (int fd, struct sockaddr *address, socklen_t *bytes, int flags), SYS_accept4, fd,
      address, bytes, flags)
MAKES(accept, (int fd, struct sockaddr *address, socklen_t *bytes), SYS_accept4, fd, address, bytes,
      0)
MAKES(dup, (int fd), SYS_dup, fd)
MAKES(epoll_create1, (int flags), SYS_epoll_create1, flags)
MAKES(epoll_create, (int size __attribute__((unused))), SYS_epoll_create1, 0)
MAKES(eventfd, (unsigned value, int flags), SYS_eventfd2, value, flags)
MAKES(timerfd_create, (clockid_t clock, int flags), SYS_timerfd_create, clock, flags)
MAKES(pipe2, (int fds[2], int flags), SYS_pipe2, fds, flags)
MAKES(pipe, (int fds[2]), SYS_pipe2, fds, 0)
MAKES(inotify_init1, (int flags), SYS_inotify_init1, flags)
MAKES(memfd_create, (const char *name, unsigned flags), SYS_memfd_create, name, flags)
#undef MAKES

int fcntl64(int fd, int command, ...) {
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) NO_FILE;
  va_list more;
  va_start(more, command);
  void *argument = va_arg(more, void *);
  va_end(more);
  return (int)syscall(SYS_fcntl, fd, command, argument);
}

int fcntl(int fd, int command, ...) __attribute__((alias("fcntl64")));

/* ---- Memory ------------------------------------------------------------------------------ */

#define NO_MEMORY(counts, result) \
  if ((counts) && falls(MEMORY, __func__)) return errno = ENOMEM, result
/* Only mrc's own C: the interpreter and msgspec crash at some allocations that fail. */
#define OURS is_of(__builtin_return_address(0), "/mrc/_") /* mrc/_core.abi3.so */

#define MAPS(name, offset_type)                                                               \
  void *name(void *at, size_t bytes, int protection, int flags, int fd, offset_type offset) { \
    NO_MEMORY(bytes >= LARGE, MAP_FAILED);                                                    \
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);               \
  }

MAPS(mmap, off_t)
MAPS(mmap64, off64_t)
#undef MAPS

#define ALLOCATES(name, parameters, result) \
  void *name parameters {                   \
    NO_MEMORY(OURS, NULL);                  \
    return result;                          \
  }

ALLOCATES(malloc, (size_t bytes), __libc_malloc(bytes))
ALLOCATES(calloc, (size_t n, size_t bytes), __libc_calloc(n, bytes))
ALLOCATES(realloc, (void *memory, size_t bytes), __libc_realloc(memory, bytes))
ALLOCATES(aligned_alloc, (size_t alignment, size_t bytes), __libc_memalign(alignment, bytes))
#undef ALLOCATES

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  NO_MEMORY(OURS, ENOMEM);
  *memory = __libc_memalign(alignment, bytes);
  return *memory ? 0 : ENOMEM;
}

/* ---- The clock --------------------------------------------------------------------------- */

/* Seconds by which the clock of the wall is wrong: a day ahead, then a day behind. */
static time_t wrong(const char *function) {
  if (kind != CLOCK || !report || !counting) return 0;
  const bool ahead = falls(CLOCK, function);
  const uint64_t calls = report->calls;
  return ahead ? 86400 : first > 0 && calls >= first ? -86400 : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  const int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME && result == 0) now->tv_sec += wrong(__func__);
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  *now = (struct timeval){exact.tv_sec, exact.tv_nsec / 1000};
  return 0;
}

time_t time(time_t *now) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now) *now = exact.tv_sec;
  return exact.tv_sec;
}
