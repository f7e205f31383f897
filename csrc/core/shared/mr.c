/* SPDX-License-Identifier: Apache-2.0 */
#include "mr.h"

#include <errno.h>
#include <stdlib.h>

int mrc_mr_table_init(struct mrc_mr_table *table, uint32_t capacity) {
  *table = (struct mrc_mr_table){.mrs = calloc(capacity, sizeof *table->mrs), .capacity = capacity};
  if (table->mrs == NULL || mrc_keymap_init(&table->by_key, capacity) != 0) {
    mrc_mr_table_free(table);
    return -ENOMEM;
  }
  for (uint32_t i = 0; i < capacity; i++)
    table->mrs[i].next_free = i + 1;
  return 0;
}

void mrc_mr_table_free(struct mrc_mr_table *table) {
  free(table->mrs);
  mrc_keymap_free(&table->by_key);
  *table = (struct mrc_mr_table){0};
}

int mrc_mr_table_add(struct mrc_mr_table *table, uint64_t address, uint64_t bytes, uint32_t key,
                     uint32_t access, uint32_t domain) {
  const uint32_t known = MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE | MRC_ACCESS_REMOTE_READ;
  if (bytes == 0 || address == 0 || address + bytes < address) return -EINVAL;
  if (access == 0 || (access & ~known) != 0) return -EINVAL;
  const uint32_t index = table->free_head;
  if (index == table->capacity) return -ENOSPC;
  const int error = mrc_keymap_put(&table->by_key, key, index);
  if (error != 0) return error;
  struct mrc_mr *mr = &table->mrs[index];
  table->free_head = mr->next_free;
  *mr = (struct mrc_mr){
      .address = address, .bytes = bytes, .key = key, .access = access, .domain = domain};
  return 0;
}

int mrc_mr_table_remove(struct mrc_mr_table *table, uint32_t key) {
  const uint32_t index = mrc_keymap_get(&table->by_key, key);
  if (index == MRC_KEYMAP_NONE) return -ENOENT;
  struct mrc_mr *mr = &table->mrs[index];
  if (mr->refs != 0) {
    mr->access = MRC_ACCESS_LOCAL_READ; /* for those that read from it */
    return -EBUSY;
  }
  mrc_keymap_remove(&table->by_key, key);
  *mr = (struct mrc_mr){.next_free = table->free_head};
  table->free_head = index;
  return 0;
}

struct mrc_mr *mrc_mr_find(struct mrc_mr_table *table, uint32_t key, uint64_t address,
                           uint64_t bytes, uint32_t access, uint32_t domain) {
  struct mrc_mr *mr = &table->mrs[table->last];
  if (mr->key != key || mr->access == 0) {
    const uint32_t index = mrc_keymap_get(&table->by_key, key);
    if (index == MRC_KEYMAP_NONE) return NULL;
    table->last = index;
    mr = &table->mrs[index];
  }
  if ((mr->access & access) != access) return NULL;
  if (mr->domain != 0 && mr->domain != domain) return NULL;
  /* In this order neither a sum nor a difference can wrap. */
  if (address < mr->address || bytes > mr->bytes) return NULL;
  if (address - mr->address > mr->bytes - bytes) return NULL;
  return mr;
}
