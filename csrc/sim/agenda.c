/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/agenda.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "virtual/link.h"

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
  agenda->items[place - 1] =
      (struct mrc_agenda_item){.pointer = entry->pointer,
                               .index = entry->index & ((1u << MRC_AGENDA_INDEX_BITS) - 1),
                               .kind = (uint8_t)(entry->kind % MRC_AGENDA_KINDS)};
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

/* Time of the first event in the wheel from `from_ns` on, which the wheel covers; MRC_NEVER, or a
   time that it does not cover: there is none. */
static uint64_t find_near(const struct mrc_agenda *agenda, uint64_t from_ns) {
  const uint32_t from = slot_of(from_ns);
  uint32_t word = from / 64;
  uint64_t bits = agenda->used[word] & UINT64_MAX << from % 64;
  if (bits == 0) {
    word = find_word(agenda, (word + 1) % WORDS);
    if (word == UINT32_MAX) return MRC_NEVER;
    bits = agenda->used[word];
  }
  const uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
  return from_ns + (slot - from + SLOTS) % SLOTS;
}

/* ---- the order of equal times ---- */

/* Events of equal time are sorted by kind and index, then by insertion: each node sees one order,
   whatever other nodes wait in the same agenda. */
static uint32_t rank_of(const struct mrc_agenda_item *item) {
  return (uint32_t)item->kind << MRC_AGENDA_INDEX_BITS | item->index;
}

static bool is_sorted(const struct mrc_agenda *agenda, uint32_t place) {
  uint32_t rank = 0;
  for (; place != 0; place = agenda->items[place - 1].next) {
    if (rank_of(&agenda->items[place - 1]) < rank) return false;
    rank = rank_of(&agenda->items[place - 1]);
  }
  return true;
}

/* Cuts the first n items off a list; returns the rest. */
static uint32_t cut(struct mrc_agenda *agenda, uint32_t place, uint32_t n) {
  while (place != 0 && --n > 0)
    place = agenda->items[place - 1].next;
  if (place == 0) return 0;
  const uint32_t rest = agenda->items[place - 1].next;
  agenda->items[place - 1].next = 0;
  return rest;
}

/* Merges two lists behind the item at `*link`, a first; returns the place of the last item. */
static uint32_t merge(struct mrc_agenda *agenda, uint32_t a, uint32_t b, uint32_t *link) {
  uint32_t last = 0;
  while (a != 0 || b != 0) {
    struct mrc_agenda_item *items = agenda->items;
    const bool takes_b = a == 0 || (b != 0 && rank_of(&items[b - 1]) < rank_of(&items[a - 1]));
    last = takes_b ? b : a;
    *(takes_b ? &b : &a) = items[last - 1].next;
    *link = last;
    link = &items[last - 1].next;
  }
  return last;
}

/* Merge sort, which is stable: runs of 1, 2, 4 and more items. */
static void sort(struct mrc_agenda *agenda, struct mrc_agenda_slot *slot) {
  for (uint32_t run = 1, n_runs = 0; n_runs != 1; run *= 2) {
    uint32_t rest = slot->first, *link = &slot->first;
    for (n_runs = 0; rest != 0; n_runs++) {
      const uint32_t a = rest, b = cut(agenda, a, run);
      rest = cut(agenda, b, run);
      slot->last = merge(agenda, a, b, link);
      link = &agenda->items[slot->last - 1].next;
    }
  }
}

/* ---- ahead of time ---- */

/* In large fabrics each event misses the cache: what an event reads is prefetched some events
   before. Events that come later and are due earlier are not noticed, which costs only time. */
enum { AHEAD = 12, STEPS = 2 /* after each event */ };

static void prefetch(const struct mrc_agenda *agenda, const struct mrc_agenda_item *item) {
  const struct mrc_agenda_array *array = &agenda->arrays[item->kind];
  if (array->at) {
    const uint8_t *element = array->at + item->index * array->stride;
    __builtin_prefetch(element, 1);
    __builtin_prefetch(element + 64, 1);
  }
  if (item->pointer) __builtin_prefetch(item->pointer, 1);
  if (item->next) __builtin_prefetch(&agenda->items[item->next - 1], 1);
}

/* Looks at one more item; false: there is none. */
static bool step_ahead(struct mrc_agenda *agenda) {
  uint32_t place = agenda->n_ahead > 0 ? agenda->items[agenda->ahead - 1].next : 0;
  if (place == 0) {
    const uint64_t at_ns =
        agenda->n_ahead > 0 ? find_near(agenda, agenda->ahead_ns + 1) : agenda->near_ns;
    if (at_ns >= agenda->now_ns + SLOTS) return false;
    agenda->ahead_ns = at_ns;
    place = agenda->slots[slot_of(at_ns)].first;
  }
  agenda->ahead = place;
  agenda->n_ahead++;
  prefetch(agenda, &agenda->items[place - 1]);
  return true;
}

static void look_ahead(struct mrc_agenda *agenda) {
  if (agenda->n_ahead > 0) agenda->n_ahead--;
  for (int i = 0; i < STEPS && agenda->n_ahead < AHEAD; i++)
    if (!step_ahead(agenda)) return;
}

/* Begins the next time that has events: those in the heap were pushed first, when their time was
   still far away. Events that are pushed for it from now on come last. */
static void open_slot(struct mrc_agenda *agenda) {
  struct mrc_heap_entry entry;
  struct mrc_agenda_slot late = {0, 0};
  agenda->now_ns = agenda->open_ns = mrc_agenda_next_ns(agenda);
  struct mrc_agenda_slot *slot = &agenda->slots[slot_of(agenda->now_ns)];
  if (mrc_heap_next_ns(&agenda->far) == agenda->now_ns) {
    late = *slot;
    slot->first = 0;
    while (mrc_heap_next_ns(&agenda->far) == agenda->now_ns && mrc_heap_pop(&agenda->far, &entry))
      put_near(agenda, &entry);
    agenda->items[slot->last - 1].next = late.first;
    if (late.first) slot->last = late.last;
  }
  if (is_sorted(agenda, slot->first)) return;
  sort(agenda, slot);
  agenda->n_ahead = 0; /* what was looked at ahead has moved */
  for (int i = 0; i < AHEAD && step_ahead(agenda); i++) {
  }
}

static void take_near(struct mrc_agenda *agenda, struct mrc_heap_entry *entry) {
  const uint32_t number = slot_of(agenda->near_ns);
  struct mrc_agenda_slot *slot = &agenda->slots[number];
  const uint32_t place = slot->first;
  struct mrc_agenda_item *item = &agenda->items[place - 1];
  *entry = (struct mrc_heap_entry){
      .at_ns = agenda->near_ns, .pointer = item->pointer, .kind = item->kind, .index = item->index};
  agenda->now_ns = entry->at_ns;
  slot->first = item->next;
  item->next = agenda->free;
  agenda->free = place;
  if (slot->first != 0) return;
  agenda->used[number / 64] &= ~(UINT64_C(1) << number % 64);
  if (agenda->used[number / 64] == 0)
    agenda->any[number / 64 / 64] &= ~(UINT64_C(1) << number / 64 % 64);
  agenda->near_ns = find_near(agenda, agenda->now_ns);
}

/* ---- both ---- */

void mrc_agenda_init(struct mrc_agenda *agenda) {
  memset(agenda, 0, sizeof(*agenda));
  agenda->near_ns = agenda->open_ns = MRC_NEVER;
}

void mrc_agenda_rewind(struct mrc_agenda *agenda) {
  mrc_assert(mrc_agenda_next_ns(agenda) == MRC_NEVER);
  agenda->now_ns = 0;
  agenda->open_ns = MRC_NEVER;
  agenda->n_ahead = 0;
}

void mrc_agenda_push(struct mrc_agenda *agenda, struct mrc_heap_entry entry) {
  mrc_assert(entry.at_ns >= agenda->now_ns && entry.kind < MRC_AGENDA_KINDS);
  mrc_assert(entry.index >> MRC_AGENDA_INDEX_BITS == 0);
  if (entry.at_ns - agenda->now_ns < SLOTS)
    put_near(agenda, &entry);
  else
    mrc_heap_push(&agenda->far, entry);
}

bool mrc_agenda_pop(struct mrc_agenda *agenda, struct mrc_heap_entry *entry) {
  if (mrc_agenda_next_ns(agenda) == MRC_NEVER) return false;
  if (mrc_agenda_next_ns(agenda) != agenda->open_ns) open_slot(agenda);
  take_near(agenda, entry);
  look_ahead(agenda);
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
      n += agenda->items[at - 1].kind == kind;
  return n;
}

void mrc_agenda_free(struct mrc_agenda *agenda) {
  mrc_heap_free(&agenda->far);
  free(agenda->items);
  agenda->items = NULL;
}
