/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: a table of key, range and access rights. The caller owns the memory. Every
   access to registered memory must pass mrc_mr_find. */
#pragma once

#include "core/base/keymap.h"
#include "mrc.h"

#define MRC_MR_NONE UINT32_MAX /* index of no MR */

struct mrc_mr {
  uint64_t address;
  uint64_t bytes;
  uint32_t key;
  uint32_t access; /* set of enum mrc_access; 0: the entry is free */
  uint32_t domain; /* the only one it is open to; 0: open to all */
  uint32_t refs;   /* unfinished work requests that read from it */
  uint32_t next_free;
};

struct mrc_mr_table {
  struct mrc_mr *mrs;
  struct mrc_keymap by_key;
  uint32_t capacity;
  uint32_t free_head;
  uint32_t last; /* index of the one found last: most packets of a burst are for one MR */
};

int mrc_mr_table_init(struct mrc_mr_table *table, uint32_t capacity) MRC_MUST_CHECK;
void mrc_mr_table_free(struct mrc_mr_table *table);
int mrc_mr_table_add(struct mrc_mr_table *table, uint64_t address, uint64_t bytes, uint32_t key,
                     uint32_t access, uint32_t domain) MRC_MUST_CHECK;
/* -EBUSY while there are refs: it is open to no peer then. */
int mrc_mr_table_remove(struct mrc_mr_table *table, uint32_t key) MRC_MUST_CHECK;
/* The MR with this key if it covers [address, address + bytes), grants `access` and is open to
   `domain`, otherwise 0. */
struct mrc_mr *mrc_mr_find(struct mrc_mr_table *table, uint32_t key, uint64_t address,
                           uint64_t bytes, uint32_t access, uint32_t domain);
