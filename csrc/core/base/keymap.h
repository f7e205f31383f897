/* SPDX-License-Identifier: Apache-2.0 */
/* A hash map of fixed capacity from 32-bit keys to 32-bit values: QPNs and memory keys. At least
   half of its cells stay empty, so a look-up reads one or two cache lines. */
#pragma once

#include "base.h"

#define MRC_KEYMAP_NONE UINT32_MAX /* no value */

struct mrc_keymap_cell {
  uint32_t key;
  uint32_t value; /* MRC_KEYMAP_NONE: empty */
};

struct mrc_keymap {
  struct mrc_keymap_cell *cells;
  uint32_t mask;     /* number of cells - 1 */
  uint32_t count;    /* entries held */
  uint32_t capacity; /* limit of entries */
};

/* 0 or -ENOMEM. */
int mrc_keymap_init(struct mrc_keymap *map, uint32_t capacity) MRC_MUST_CHECK;
void mrc_keymap_free(struct mrc_keymap *map);
/* The value, or MRC_KEYMAP_NONE. */
uint32_t mrc_keymap_get(const struct mrc_keymap *map, uint32_t key);
/* 0, -EEXIST or -ENOSPC. */
int mrc_keymap_put(struct mrc_keymap *map, uint32_t key, uint32_t value) MRC_MUST_CHECK;
/* Removes the key; it must be present. */
void mrc_keymap_remove(struct mrc_keymap *map, uint32_t key);
