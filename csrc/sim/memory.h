/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the simulator: arrays that grow, and the region that all simulated hosts share. */
#ifndef MRC_SIM_MEMORY_H
#define MRC_SIM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The array with room for one item behind the first n, which may have moved. */
void *mrc_grow(void *items, uint32_t n, uint32_t *capacity, size_t item_bytes);

/* At least so many bytes, all zero. With `folded`, nobody cares what lies where: the region is then
   one small piece over and over, so that what engines place in it stays in the cache. */
uint8_t *mrc_sim_memory_new(uint64_t bytes, bool folded);
void mrc_sim_memory_free(uint8_t *memory, uint64_t bytes);

#endif
