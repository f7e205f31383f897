/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/agenda.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "sim/memory.h"

enum { SLOTS = MRC_AGENDA_SLOTS, WORDS = SLOTS / 64, SUMMARY = WORDS / 64 };

/* The events of a slot have the same time: two times in [now_ns, now_ns + SLOTS) never share a
   slot. */
static uint32_t slot_of(uint64_t at_ns) { return (uint32_t)(at_ns % SLOTS); }

/* ---- items ---- */

static uint32_t get_item(struct mrc_agenda *agenda) {
  const uint32_t place = agenda->free;
  if (place != 0) {
    agenda->free = agenda->items[place - 1].next;
    return place;
  }
  agenda->items =
      mrc_grow(agenda->items, agenda->n_items, &agenda->capacity, sizeof(*agenda->items));
  return ++agenda->n_items;
}

/* ---- the wheel ---- */

static void put_near(struct mrc_agenda *agenda, const struct mrc_heap_entry *entry) {
  const uint32_t place = get_item(agenda), number = slot_of(entry->at_ns);
  agenda->items[place - 1] = (struct mrc_agenda_item){.entry = *entry};
  struct mrc_agenda_slot *slot = &agenda->slots[number];
  if (slot->first == 0)
    slot->first = place;
  else
    agenda->items[slot->last - 1].next = place;
  slot->last = place;
  agenda->used[number / 64] |= UINT64_C(1) << number % 64;
  agenda->any[number / 64 / 64] |= UINT64_C(1) << number / 64 % 64;
  agenda->near_ns = mrc_min_u64(agenda->near_ns, entry->at_ns);
}

/* The first bit set in `any` from bit `from` on, going around once; UINT32_MAX: none. */
static uint32_t find_word(const struct mrc_agenda *agenda, uint32_t from) {
  uint64_t bits = agenda->any[from / 64] & UINT64_MAX << from % 64;
  for (uint32_t i = from / 64, n = 0; n <= SUMMARY; n++) {
    if (bits) return i * 64 + (uint32_t)__builtin_ctzll(bits);
    i = (i + 1) % SUMMARY;
    bits = agenda->any[i];
  }
  return UINT32_MAX;
}

/* Time of the first event in the wheel; MRC_NEVER: the wheel is empty. */
static uint64_t find_near(const struct mrc_agenda *agenda) {
  const uint32_t from = slot_of(agenda->now_ns);
  uint32_t word = from / 64;
  uint64_t bits = agenda->used[word] & UINT64_MAX << from % 64;
  if (bits == 0) {
    word = find_word(agenda, (word + 1) % WORDS);
    if (word == UINT32_MAX) return MRC_NEVER;
    bits = agenda->used[word];
  }
  const uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
  return agenda->now_ns + (slot - from + SLOTS) % SLOTS;
}

static void take_near(struct mrc_agenda *agenda, struct mrc_heap_entry *entry) {
  const uint32_t number = slot_of(agenda->near_ns);
  struct mrc_agenda_slot *slot = &agenda->slots[number];
  const uint32_t place = slot->first;
  struct mrc_agenda_item *item = &agenda->items[place - 1];
  *entry = item->entry;
  agenda->now_ns = entry->at_ns;
  slot->first = item->next;
  item->next = agenda->free;
  agenda->free = place;
  if (slot->first != 0) return;
  agenda->used[number / 64] &= ~(UINT64_C(1) << number % 64);
  if (agenda->used[number / 64] == 0)
    agenda->any[number / 64 / 64] &= ~(UINT64_C(1) << number / 64 % 64);
  agenda->near_ns = find_near(agenda);
}

/* ---- both ---- */

void mrc_agenda_init(struct mrc_agenda *agenda) {
  memset(agenda, 0, sizeof(*agenda));
  agenda->near_ns = MRC_NEVER;
}

void mrc_agenda_push(struct mrc_agenda *agenda, struct mrc_heap_entry entry) {
  mrc_assert(entry.at_ns >= agenda->now_ns);
  if (entry.at_ns - agenda->now_ns < SLOTS)
    put_near(agenda, &entry);
  else
    mrc_heap_push(&agenda->far, entry);
}

/* Whether the heap holds the next event. Among events of equal time, those in the heap were pushed
   first, when their time was still far away. */
static bool is_far(const struct mrc_agenda *agenda) {
  return mrc_heap_next_ns(&agenda->far) <= agenda->near_ns;
}

bool mrc_agenda_pop(struct mrc_agenda *agenda, struct mrc_heap_entry *entry) {
  if (mrc_agenda_next_ns(agenda) == MRC_NEVER) return false;
  if (!is_far(agenda)) {
    take_near(agenda, entry);
    return true;
  }
  mrc_assert(mrc_heap_pop(&agenda->far, entry));
  agenda->now_ns = entry->at_ns;
  return true;
}

uint64_t mrc_agenda_next_ns(const struct mrc_agenda *agenda) {
  return mrc_min_u64(mrc_heap_next_ns(&agenda->far), agenda->near_ns);
}

uint64_t mrc_agenda_count(const struct mrc_agenda *agenda, uint32_t kind) {
  uint64_t n = 0;
  for (size_t i = 0; i < agenda->far.n; i++)
    n += agenda->far.entries[i].kind == kind;
  for (uint32_t slot = 0; slot < SLOTS; slot++)
    for (uint32_t at = agenda->slots[slot].first; at != 0; at = agenda->items[at - 1].next)
      n += agenda->items[at - 1].entry.kind == kind;
  return n;
}

void mrc_agenda_free(struct mrc_agenda *agenda) {
  mrc_heap_free(&agenda->far);
  free(agenda->items);
  agenda->items = NULL;
}
