/* SPDX-License-Identifier: Apache-2.0 */
/* When a failed EV or plane may be used again: after MRC_PROBATION_SUCCESSES probe successes in a
   row, whose spacing doubles with each relapse. It decides when to probe and when the probation
   ends; it sends nothing. */
#pragma once

#include "core/base.h"

/* Choices of ours (the specification leaves cadence and count open). */
#define MRC_PROBATION_SUCCESSES 3
#define MRC_PROBATION_FIRST_NS 2000000ull    /* spacing of the first probes */
#define MRC_PROBATION_SLOWEST_NS 64000000ull /* longest spacing without an answer */
#define MRC_PROBATION_CALM_NS 10000000000ull /* after so long in use, a failure is no relapse */
#define MRC_PROBATION_MAX_RELAPSES 9         /* doublings: 2 ms << 9 is about a second */
#define MRC_PROBATION_MAX_DOUBLINGS 15

struct mrc_probation {
  uint64_t next_ns;          /* when to probe next; MRC_NEVER when in use or a probe is in flight */
  uint64_t returned_us : 48; /* when probation last ended; 0: never */
  uint64_t successes : 4;    /* in a row */
  uint64_t relapses : 4;
  uint64_t doublings : 4; /* of the spacing: one for each probe without an answer */
};

_Static_assert(sizeof(struct mrc_probation) == 16, "each EV has one");

static inline void mrc_probation_init(struct mrc_probation *p) {
  *p = (struct mrc_probation){.next_ns = MRC_NEVER};
}

/* Spacing of the first probes after `relapses`. */
static inline uint64_t mrc_probation_first_ns(const struct mrc_probation *p, uint32_t noise_ns) {
  return mrc_floor_ns(MRC_PROBATION_FIRST_NS, noise_ns) << p->relapses;
}

/* Longest spacing while no probe is answered. Hosts with less noise than MRC_NOISE_NS do not
   shorten it: probes of many bad EVs would fill the link that they test. */
static inline uint64_t mrc_probation_slowest_ns(uint32_t noise_ns) {
  return mrc_floor_ns(MRC_PROBATION_SLOWEST_NS, mrc_max_u32(noise_ns, MRC_NOISE_NS));
}

/* Whether the last probe got no answer, so that the next one probably gets none. */
static inline bool mrc_probation_is_in_doubt(const struct mrc_probation *p) {
  return p->successes == 0 && p->doublings > 0;
}

/* The current spacing. With the least noise it reaches the longest after 14 of 15 doublings.
   Answers are followed by the next probe soon, but if a later one is missing, the long spacing goes
   on. */
static inline uint64_t mrc_probation_interval_ns(const struct mrc_probation *p, uint32_t noise_ns) {
  const uint64_t first_ns = mrc_probation_first_ns(p, noise_ns);
  if (p->successes > 0) return first_ns;
  return mrc_min_u64(first_ns << p->doublings,
                     mrc_max_u64(mrc_probation_slowest_ns(noise_ns), first_ns));
}

static inline void mrc_probation_wait(struct mrc_probation *p, uint32_t noise_ns, uint64_t now_ns) {
  p->next_ns = now_ns + mrc_probation_interval_ns(p, noise_ns);
}

static inline void mrc_probation_on_failure(struct mrc_probation *p, uint32_t noise_ns,
                                            uint64_t now_ns) {
  const uint64_t away_us = (now_ns / 1000 - p->returned_us) & UINT64_MAX >> 16;
  if (p->returned_us == 0 || away_us >= MRC_PROBATION_CALM_NS / 1000)
    p->relapses = 0;
  else if (p->relapses < MRC_PROBATION_MAX_RELAPSES)
    p->relapses++;
  p->successes = 0;
  p->doublings = 0;
  mrc_probation_wait(p, noise_ns, now_ns);
}

static inline void mrc_probation_on_probe(struct mrc_probation *p) { p->next_ns = MRC_NEVER; }

static inline void mrc_probation_on_timeout(struct mrc_probation *p, uint32_t noise_ns,
                                            uint64_t now_ns) {
  p->successes = 0;
  if (p->doublings < MRC_PROBATION_MAX_DOUBLINGS) p->doublings++;
  mrc_probation_wait(p, noise_ns, now_ns);
}

/* The peer reported the failure: probes start at the longest spacing, until one is answered. */
static inline void mrc_probation_on_hearsay(struct mrc_probation *p, uint32_t noise_ns,
                                            uint64_t now_ns) {
  p->successes = 0;
  p->doublings = MRC_PROBATION_MAX_DOUBLINGS;
  mrc_probation_wait(p, noise_ns, now_ns);
}

/* The cause of the failure is over: the next probe is due now, without the current spacing. */
static inline void mrc_probation_on_mend(struct mrc_probation *p, uint64_t now_ns) {
  p->successes = 0;
  p->next_ns = now_ns;
}

/* Returns true when the probation ends. */
static inline bool mrc_probation_on_success(struct mrc_probation *p, uint32_t noise_ns,
                                            uint64_t now_ns) {
  if (++p->successes < MRC_PROBATION_SUCCESSES) {
    mrc_probation_wait(p, noise_ns, now_ns);
    return false;
  }
  p->returned_us = (now_ns / 1000) & UINT64_MAX >> 16;
  p->next_ns = MRC_NEVER;
  return true;
}
