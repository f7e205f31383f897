/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "program/memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include "program/drive.h"

enum {
  KEY_TRIES = 8,
  /* On Arm the kernel ignores the upper byte of an address: the end of a longer region would seem
     readable. */
  ADDRESS_BITS = 55,
  POPULATE_WRITE = 23 /* MADV_POPULATE_WRITE, which glibc 2.34 does not name */
};

static bool is_readable(const uint8_t *address) {
  uint8_t byte;
  const struct iovec to = {.iov_base = &byte, .iov_len = 1};
  const struct iovec from = {.iov_base = (void *)(uintptr_t)address, .iov_len = 1};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 || errno == EPERM || errno == ENOSYS;
}

/* How far an address is behind the begin of its page. */
static size_t offset_of(const void *address) {
  return (uintptr_t)address % (uintptr_t)sysconf(_SC_PAGESIZE);
}

/* Makes its page as a write would, and changes nothing: another thread may write there. */
static bool make_page(const void *address) {
  return madvise((void *)((uintptr_t)address - offset_of(address)), 1, POPULATE_WRITE) == 0;
}

static bool is_writable(const uint8_t *address) {
  static uint8_t own;
  return make_page(address) || !make_page(&own); /* a kernel before 5.14 does not tell */
}

/* No page lies there: the call does nothing but to look for gaps. */
static bool has_gap(const uint8_t *address, size_t bytes) {
  const size_t before = offset_of(address);
  return msync((void *)((uintptr_t)address - before), bytes + before, MS_ASYNC) != 0 &&
         errno == ENOMEM;
}

bool pr_memory_is_usable(const void *address, size_t bytes, bool written) {
  const uint8_t *first = address;
  const uint8_t *last = first + bytes - 1;
  if (bytes >> ADDRESS_BITS != 0 || !is_readable(first) || !is_readable(last)) return false;
  if (has_gap(first, bytes)) return false;
  return !written || (is_writable(first) && is_writable(last));
}

int pr_memory_register(const void *address, size_t bytes, uint32_t access, uint32_t domain,
                       uint32_t *key) {
  for (int i = 0; i < KEY_TRIES; i++) {
    do {
      if (getrandom(key, sizeof *key, 0) != sizeof *key) return -EAGAIN;
    } while (*key == 0);
    struct mrc_command command = {.op = MRC_COMMAND_MR_REGISTER,
                                  .address = (uint64_t)(uintptr_t)address,
                                  .bytes = bytes,
                                  .value = domain,
                                  .key = *key,
                                  .access = access};
    const int error = pr_drive_call(&command);
    if (error != -EEXIST) return error;
  }
  return -EAGAIN;
}
