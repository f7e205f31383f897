/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the simulator: arrays that grow, and the region that all simulated hosts share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the array, which may have moved, with room for one item after the first n. */
void *mrc_grow(void *items, uint32_t n, uint32_t *capacity, size_t item_bytes);

/* Regions of at least `bytes` bytes, all zero, one behind the other. */
struct mrc_sim_memory {
  uint8_t *at;
  uint64_t stride; /* from one region to the next */
  uint32_t regions;
};

/* With `folded`, each region maps one small piece repeatedly, so that it stays in the CPU cache;
   use it only if the contents do not matter. */
struct mrc_sim_memory mrc_sim_memory_new(uint64_t bytes, uint32_t regions, bool folded);
void mrc_sim_memory_free(const struct mrc_sim_memory *memory);
/* The last region serves all further ones. */
static inline uint8_t *mrc_sim_memory_at(const struct mrc_sim_memory *memory, uint32_t region) {
  return memory->at + (region < memory->regions ? region : memory->regions - 1) * memory->stride;
}
