/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "io/keys.h"

#include <sys/mman.h>
#include <unistd.h>

#include "core/base.h"

static size_t whole_pages(size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

void *mrc_keys_reserve(size_t bytes) {
  const size_t n = whole_pages(bytes);
  void *memory = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return NULL;
  if (madvise(memory, n, MADV_DONTDUMP) == 0 && madvise(memory, n, MADV_WIPEONFORK) == 0)
    return memory;
  munmap(memory, n);
  return NULL;
}

void mrc_keys_release(void *memory, size_t bytes) {
  mrc_wipe(memory, bytes);
  munmap(memory, whole_pages(bytes));
}
