/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "io/lineage.h"

#include <sys/mman.h>
#include <unistd.h>

static uint64_t newest;    /* last number assigned, here or in an ancestor; fork copies it */
static uint64_t *wiped_at; /* number of this process; the kernel sets it to 0 in a child */

uint64_t mrc_lineage_own(void) {
  if (wiped_at == NULL) {
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return 0;
    if (madvise(page, bytes, MADV_WIPEONFORK) != 0) {
      munmap(page, bytes);
      return 0;
    }
    wiped_at = page;
  }
  if (*wiped_at == 0) *wiped_at = ++newest;
  return *wiped_at;
}

bool mrc_lineage_is_own(uint64_t number) { return wiped_at != NULL && *wiped_at == number; }
