/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "io/aead.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base.h"
#include "mrc.h"

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

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct mrc_aead *best;

static void choose(void) {
  const char *wanted = getenv("MRC_AEAD");
  const struct mrc_aead *const found[] = {mrc_aead_ipsec_mb(), mrc_aead_libcrypto()};
  for (size_t i = 0; i < sizeof found / sizeof found[0] && best == NULL; i++)
    if (found[i] != NULL && (wanted == NULL || strcmp(wanted, found[i]->name) == 0))
      best = found[i];
}

const struct mrc_aead *mrc_aead_best(void) {
  pthread_once(&once, choose);
  return best;
}

const char *mrc_aead_name(void) {
  const struct mrc_aead *aead = mrc_aead_best();
  return aead == NULL ? NULL : aead->name;
}
