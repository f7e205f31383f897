/* SPDX-License-Identifier: Apache-2.0 */
/* State that all parts of a simulation share: configuration, time, random numbers and the
   agenda. */
#pragma once

#include "core/base.h"
#include "sim/agenda.h"
#include "sim/scenario.h"

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
