/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

void mrc_assert_failed(const char *expression, const char *file, int line) {
  fprintf(stderr, "mrc: assertion failed: %s (%s:%d)\n", expression, file, line);
  abort();
}

/* ---- maps ---- */

int mrc_keymap_init(struct mrc_keymap *map, uint32_t capacity) {
  mrc_assert(capacity > 0 && capacity <= 1u << 24);
  const uint32_t cells = mrc_ceil_pow2(mrc_max_u32(4, 2 * capacity));
  *map = (struct mrc_keymap){.cells = malloc(cells * sizeof(struct mrc_keymap_cell)),
                             .mask = cells - 1,
                             .capacity = capacity};
  if (map->cells == NULL) return -ENOMEM;
  for (uint32_t i = 0; i < cells; i++)
    map->cells[i].value = MRC_KEYMAP_NONE;
  return 0;
}

void mrc_keymap_free(struct mrc_keymap *map) { free(map->cells); }

/* The cell that holds the key, or the empty cell for it. */
static uint32_t cell_of(const struct mrc_keymap *map, uint32_t key) {
  uint32_t i = (uint32_t)((key * 0x9E3779B97F4A7C15ull) >> 32) & map->mask;
  while (map->cells[i].value != MRC_KEYMAP_NONE && map->cells[i].key != key)
    i = (i + 1) & map->mask; /* terminates, because half of the cells are empty */
  return i;
}

uint32_t mrc_keymap_get(const struct mrc_keymap *map, uint32_t key) {
  return map->cells[cell_of(map, key)].value;
}

int mrc_keymap_put(struct mrc_keymap *map, uint32_t key, uint32_t value) {
  mrc_assert(value != MRC_KEYMAP_NONE);
  const uint32_t i = cell_of(map, key);
  if (map->cells[i].value != MRC_KEYMAP_NONE) return -EEXIST;
  if (map->count == map->capacity) return -ENOSPC;
  map->cells[i] = (struct mrc_keymap_cell){.key = key, .value = value};
  map->count++;
  return 0;
}

void mrc_keymap_remove(struct mrc_keymap *map, uint32_t key) {
  uint32_t i = cell_of(map, key);
  mrc_assert(map->cells[i].value != MRC_KEYMAP_NONE);
  map->cells[i].value = MRC_KEYMAP_NONE;
  map->count--;
  /* Each entry up to the next empty cell goes to its place anew, perhaps into the gap. */
  while (map->cells[i = (i + 1) & map->mask].value != MRC_KEYMAP_NONE) {
    const struct mrc_keymap_cell moved = map->cells[i];
    map->cells[i].value = MRC_KEYMAP_NONE;
    map->cells[cell_of(map, moved.key)] = moved;
  }
}

/* ---- slots ---- */

uint32_t mrc_slots_place(const struct mrc_slots *slots, uint32_t frame) {
  return frame % slots->count * slots->bytes;
}

bool mrc_slots_may_send(const struct mrc_slots *slots) {
  return slots->sent - slots->credit < slots->count && slots->sent - slots->done < slots->count;
}

bool mrc_slots_credit(struct mrc_slots *slots, uint32_t freed, uint32_t mask) {
  const uint32_t news = (freed - slots->credit) & mask;
  if (news > slots->sent - slots->credit) return false;
  slots->credit += news;
  return true;
}

int mrc_slots_arrive(struct mrc_slots *slots, uint32_t frame, uint32_t mask, uint32_t bytes) {
  const bool next = ((frame - slots->arrived) & mask) == 0;
  if (!next || bytes < slots->least || bytes > slots->bytes) return MRC_SLOTS_OUT_OF_ORDER;
  if (slots->arrived - slots->told >= slots->count) return MRC_SLOTS_NO_CREDIT;
  return (int)mrc_slots_place(slots, slots->arrived++);
}

void mrc_slots_free(struct mrc_slots *slots, uint32_t frame) {
  if (frame - slots->freed <= slots->arrived - slots->freed) slots->freed = frame;
}

bool mrc_slots_owe(const struct mrc_slots *slots) {
  return slots->freed - slots->told >= slots->count / 2;
}
