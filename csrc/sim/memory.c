/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "sim/memory.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/base.h"

#define PIECE_BYTES UINT64_C(65536) /* a multiple of the page; fits the cache of a core */
#define MAX_PIECES UINT64_C(4096)   /* mappings: the kernel allows some 65,000 */

void *mrc_grow(void *items, uint32_t n, uint32_t *capacity, size_t item_bytes) {
  if (n < *capacity) return items;
  *capacity = *capacity ? 2 * *capacity : 64;
  items = realloc(items, *capacity * item_bytes);
  mrc_assert(items);
  return items;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

static uint64_t piece_bytes(uint64_t bytes) {
  return round_up(mrc_max_u64(PIECE_BYTES, bytes / MAX_PIECES), PIECE_BYTES);
}

static uint64_t mapped_bytes(uint64_t bytes) { return round_up(bytes, piece_bytes(bytes)); }

/* Maps the same piece repeatedly over the whole region. */
static void fold(uint8_t *memory, uint64_t bytes) {
  const uint64_t piece = piece_bytes(bytes);
  const int file = memfd_create("mrc-sim", MFD_CLOEXEC);
  mrc_assert(file >= 0 && ftruncate(file, (off_t)piece) == 0);
  for (uint64_t at = 0; at < mapped_bytes(bytes); at += piece)
    mrc_assert(mmap(memory + at, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
               memory + at);
  mrc_assert(close(file) == 0);
}

uint8_t *mrc_sim_memory_new(uint64_t bytes, bool folded) {
  uint8_t *memory = mmap(NULL, mapped_bytes(bytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  mrc_assert(memory != MAP_FAILED);
  if (folded) fold(memory, bytes);
  return memory;
}

void mrc_sim_memory_free(uint8_t *memory, uint64_t bytes) {
  mrc_assert(munmap(memory, mapped_bytes(bytes)) == 0);
}
