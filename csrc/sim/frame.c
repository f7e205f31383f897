/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/frame.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"

#define BLOCK_PACKETS 256

struct mrc_frame_block {
  struct mrc_frame_block *next;
  _Alignas(struct mrc_frame) uint8_t packets[]; /* each followed by its room */
};

/* Distance between two frames; it keeps all of them aligned. */
static size_t stride(const struct mrc_frame_pool *pool) {
  const size_t align = _Alignof(struct mrc_frame);
  return sizeof(struct mrc_frame) + (pool->room_bytes + align - 1) / align * align;
}

static void add_block(struct mrc_frame_pool *pool) {
  struct mrc_frame_block *block =
      aligned_alloc(_Alignof(struct mrc_frame), sizeof(*block) + BLOCK_PACKETS * stride(pool));
  mrc_assert(block);
  block->next = pool->blocks;
  pool->blocks = block;
  for (int i = 0; i < BLOCK_PACKETS; i++)
    mrc_frame_pool_put(pool, (struct mrc_frame *)(block->packets + (size_t)i * stride(pool)));
  pool->n_used += BLOCK_PACKETS;
}

struct mrc_frame *mrc_frame_pool_get(struct mrc_frame_pool *pool) {
  if (pool->free == NULL) add_block(pool);
  struct mrc_frame *packet = pool->free;
  pool->free = packet->next;
  pool->n_free--;
  pool->n_used++;
  *packet = (struct mrc_frame){0};
  return packet;
}

struct mrc_frame *mrc_frame_pool_copy(struct mrc_frame_pool *pool, const struct mrc_frame *packet) {
  struct mrc_frame *copy = mrc_frame_pool_get(pool);
  memcpy(copy, packet, sizeof(*packet) + pool->room_bytes);
  return copy;
}

void mrc_frame_pool_put(struct mrc_frame_pool *pool, struct mrc_frame *packet) {
  packet->next = pool->free;
  pool->free = packet;
  pool->n_free++;
  pool->n_used--;
}

void mrc_frame_pool_move(struct mrc_frame_pool *from, struct mrc_frame_pool *to, uint64_t n) {
  for (; n > 0 && from->free; n--) {
    struct mrc_frame *packet = from->free;
    from->free = packet->next;
    packet->next = to->free;
    to->free = packet;
    from->n_free--;
    to->n_free++;
  }
}

void mrc_frame_pool_free(struct mrc_frame_pool *pool) {
  for (struct mrc_frame_block *block = pool->blocks, *next; block; block = next) {
    next = block->next;
    free(block);
  }
  *pool = (struct mrc_frame_pool){0};
}
