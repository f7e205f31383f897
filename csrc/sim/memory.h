/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the simulator: arrays that grow, and the region that all simulated hosts share. */
#ifndef MRC_SIM_MEMORY_H
#define MRC_SIM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the array, which may have moved, with room for one item after the first n. */
void *mrc_grow(void *items, uint32_t n, uint32_t *capacity, size_t item_bytes);

/* At least `bytes` bytes, all zero. With `folded`, the region maps one small piece repeatedly, so
   that it stays in the CPU cache; use it only if the contents do not matter. */
uint8_t *mrc_sim_memory_new(uint64_t bytes, bool folded);
void mrc_sim_memory_free(uint8_t *memory, uint64_t bytes);

#endif
