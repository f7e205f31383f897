/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "virtual/memory.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base.h"

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

/* Maps the same piece repeatedly over a whole region. */
static void fold(uint8_t *memory, uint64_t bytes, uint64_t piece) {
  const int file = memfd_create("mrc-sim", MFD_CLOEXEC);
  mrc_assert(file >= 0 && ftruncate(file, (off_t)piece) == 0);
  for (uint64_t at = 0; at < bytes; at += piece)
    mrc_assert(mmap(memory + at, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
               memory + at);
  mrc_assert(close(file) == 0);
}

struct mrc_sim_memory mrc_sim_memory_new(uint64_t bytes, uint32_t regions, bool folded) {
  const uint64_t piece =
      round_up(mrc_max_u64(PIECE_BYTES, bytes * regions / MAX_PIECES), PIECE_BYTES);
  const struct mrc_sim_memory memory = {
      .at = mmap(NULL, round_up(bytes, piece) * regions, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
      .stride = round_up(bytes, piece),
      .regions = regions};
  mrc_assert(memory.at != MAP_FAILED);
  for (uint32_t i = 0; i < regions && folded; i++)
    fold(mrc_sim_memory_at(&memory, i), memory.stride, piece);
  return memory;
}

void mrc_sim_memory_free(const struct mrc_sim_memory *memory) {
  mrc_assert(munmap(memory->at, memory->stride * memory->regions) == 0);
}
