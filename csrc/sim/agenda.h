/* SPDX-License-Identifier: Apache-2.0 */
/* The events of the simulator, ordered by (time, kind, index, order of insertion). Events pushed
   for the time that is being taken come last, in the order of insertion. Nearly all events are
   near: they wait in a wheel with one slot per nanosecond, so the cost of an event does not depend
   on their number. Far events, such as timers, wait in a heap. */
#pragma once

#include "core/base.h"
#include "sim/scenario.h"
#include "virtual/link.h"

#define MRC_AGENDA_SLOTS 32768u /* length of the wheel, ns: a power of 2, at most 64 * 64 * 64 */
#define MRC_AGENDA_KINDS 16     /* of events */
#define MRC_AGENDA_INDEX_BITS 28

/* An event in the wheel; its slot has the time. */
struct mrc_agenda_item {
  void *pointer;
  uint32_t index : MRC_AGENDA_INDEX_BITS;
  uint32_t kind : 32 - MRC_AGENDA_INDEX_BITS;
  uint32_t next; /* place + 1 of the next item in the slot or free list; 0: none */
};

/* An array whose elements the events of a kind read, by index. */
struct mrc_agenda_array {
  const uint8_t *at; /* 0: none */
  size_t stride;
};

struct mrc_agenda_slot {
  uint32_t first; /* place + 1 of an item; 0: none */
  uint32_t last;
};

struct mrc_agenda {
  struct mrc_heap far;
  struct mrc_agenda_item *items;
  uint32_t n_items;
  uint32_t capacity;
  uint32_t free;    /* place + 1 */
  uint64_t now_ns;  /* of the last event taken; no event in the wheel is earlier */
  uint64_t near_ns; /* of the first event in the wheel; UINT64_MAX: none */
  uint64_t open_ns; /* the time that is being taken; UINT64_MAX: none yet */
  struct mrc_agenda_array arrays[MRC_AGENDA_KINDS]; /* to be in the cache when their events come */
  uint32_t ahead;    /* place of the last item that was looked at ahead of its time */
  uint32_t n_ahead;  /* at least so many items wait before it; 0: none was looked at */
  uint64_t ahead_ns; /* its time */
  struct mrc_agenda_slot slots[MRC_AGENDA_SLOTS];
  uint64_t used[MRC_AGENDA_SLOTS / 64];       /* bit n: slot n is not empty */
  uint64_t any[MRC_AGENDA_SLOTS / (64 * 64)]; /* bit n: word n of `used` is not 0 */
};

void mrc_agenda_init(struct mrc_agenda *agenda);
/* An empty agenda takes events of any time again. */
void mrc_agenda_rewind(struct mrc_agenda *agenda);
/* `at_ns` must not be earlier than the last event taken. */
void mrc_agenda_push(struct mrc_agenda *agenda, struct mrc_heap_entry entry);
/* Takes the next event; false when there is none. */
bool mrc_agenda_pop(struct mrc_agenda *agenda, struct mrc_heap_entry *entry);
/* Time of the next event; UINT64_MAX when there is none. */
uint64_t mrc_agenda_next_ns(const struct mrc_agenda *agenda);
/* Number of waiting events of a kind. Slow, because it scans every slot; for auditors only. */
uint64_t mrc_agenda_count(const struct mrc_agenda *agenda, uint32_t kind);
void mrc_agenda_free(struct mrc_agenda *agenda);

/* ---- The world ---- */

/* State that all parts of a simulation share: configuration, time, random numbers and the
   agenda. */

/* In the order of equal times: what changes or samples the fabric as a whole comes first, and ends
   of faults precede begins. */
enum mrc_sim_event_kind {
  MRC_SIM_ON_HEAL,  /* index: fault */
  MRC_SIM_ON_FAULT, /* index: fault */
  MRC_SIM_ON_ALLOW, /* index: flow */
  MRC_SIM_ON_SAMPLE,
  MRC_SIM_ON_POST,    /* index: flow */
  MRC_SIM_ON_ARRIVAL, /* index: hop; pointer: packet */
  MRC_SIM_ON_DRAIN,   /* index: hop that is free again */
  MRC_SIM_ON_RUN      /* index: host */
};

struct mrc_world {
  struct mrc_sim_config config;
  uint64_t now_ns;
  uint64_t origin_ns; /* when reported time starts; MRC_NEVER: not yet */
  struct mrc_prng prng;
  struct mrc_agenda agenda;
};

static inline void mrc_world_schedule(struct mrc_world *world, uint64_t at_ns,
                                      enum mrc_sim_event_kind kind, uint32_t index, void *pointer) {
  mrc_assert(at_ns >= world->now_ns);
  mrc_agenda_push(
      &world->agenda,
      (struct mrc_heap_entry){.at_ns = at_ns, .kind = kind, .index = index, .pointer = pointer});
}

/* A generator that has given n numbers since it had this state. */
static inline struct mrc_prng mrc_prng_skipped(uint64_t state, uint64_t n) {
  return (struct mrc_prng){.state = state + n * MRC_PRNG_STEP};
}

enum mrc_sim_stream { MRC_SIM_STREAM_HOST, MRC_SIM_STREAM_FLOW };

/* Random numbers of one host or flow: they do not depend on what others draw. */
static inline struct mrc_prng mrc_world_stream(const struct mrc_world *world,
                                               enum mrc_sim_stream kind, uint32_t index) {
  struct mrc_prng seeds = mrc_prng_skipped(~world->config.seed, (uint64_t)kind << 32 | index);
  return (struct mrc_prng){.state = mrc_prng_next(&seeds)};
}

/* Reported time; 0 before it starts. */
static inline uint64_t mrc_world_time(const struct mrc_world *world) {
  return world->now_ns > world->origin_ns ? world->now_ns - world->origin_ns : 0;
}
