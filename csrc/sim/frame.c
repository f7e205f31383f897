/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/frame.h"

#include <stdlib.h>

#include "core/base.h"

#define BLOCK_PACKETS 256

struct mrc_frame_block {
  struct mrc_frame_block *next;
  struct mrc_frame packets[BLOCK_PACKETS];
};

struct mrc_frame *mrc_frame_pool_get(struct mrc_frame_pool *pool) {
  if (pool->free == NULL) {
    struct mrc_frame_block *block = malloc(sizeof(*block));
    mrc_assert(block);
    block->next = pool->blocks;
    pool->blocks = block;
    for (int i = 0; i < BLOCK_PACKETS; i++)
      mrc_frame_pool_put(pool, &block->packets[i]);
    pool->n_used += BLOCK_PACKETS;
  }
  struct mrc_frame *packet = pool->free;
  pool->free = packet->next;
  pool->n_used++;
  *packet = (struct mrc_frame){0};
  return packet;
}

void mrc_frame_pool_put(struct mrc_frame_pool *pool, struct mrc_frame *packet) {
  packet->next = pool->free;
  pool->free = packet;
  pool->n_used--;
}

void mrc_frame_pool_free(struct mrc_frame_pool *pool) {
  for (struct mrc_frame_block *block = pool->blocks, *next; block; block = next) {
    next = block->next;
    free(block);
  }
  *pool = (struct mrc_frame_pool){0};
}
