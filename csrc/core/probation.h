/* SPDX-License-Identifier: Apache-2.0 */
/* How something that failed (an EV, a plane) earns trust again: k probe successes in a row, spread
   over a time that doubles with each relapse. It decides when to probe and when trust is back; it
   sends nothing. */
#ifndef MRC_CORE_PROBATION_H
#define MRC_CORE_PROBATION_H

#include "base.h"

/* Choices of ours (the specification leaves cadence and count open). */
#define MRC_PROBATION_SUCCESSES 3
#define MRC_PROBATION_FIRST_NS 2000000ull    /* spacing of the first probes */
#define MRC_PROBATION_SLOWEST_NS 64000000ull /* spacing while it does not answer */
#define MRC_PROBATION_CALM_NS                                                            \
  10000000000ull                     /* a failure so long after the return is no relapse \
                                      */
#define MRC_PROBATION_MAX_RELAPSES 9 /* doublings: 2 ms << 9 is about a second */

struct mrc_probation {
  uint64_t next_ns;     /* when to probe next; MRC_NEVER when trusted or a probe is out */
  uint64_t interval_ns; /* current spacing */
  uint64_t returned_ns; /* when trust last came back; 0: never */
  uint32_t noise_ns;    /* that the spacing follows from */
  uint8_t successes;    /* in a row */
  uint8_t relapses;
};

static inline void mrc_probation_init(struct mrc_probation *p, uint32_t noise_ns) {
  *p = (struct mrc_probation){.next_ns = MRC_NEVER, .noise_ns = noise_ns};
}

/* Spacing of probes after so many relapses. */
static inline uint64_t mrc_probation_first_ns(const struct mrc_probation *p) {
  return mrc_floor_ns(MRC_PROBATION_FIRST_NS, p->noise_ns) << p->relapses;
}

/* Spacing while nothing answers. Hosts of little noise find out sooner, but probes take as long on
   the wire from them as from any: many bad EVs, probed faster, fill the link they ask about. */
static inline uint64_t mrc_probation_slowest_ns(uint32_t noise_ns) {
  return mrc_floor_ns(MRC_PROBATION_SLOWEST_NS, mrc_max_u32(noise_ns, MRC_NOISE_NS));
}

static inline void mrc_probation_on_failure(struct mrc_probation *p, uint64_t now_ns) {
  const bool relapse = p->returned_ns != 0 && now_ns - p->returned_ns < MRC_PROBATION_CALM_NS;
  p->relapses = !relapse                                   ? 0
                : p->relapses < MRC_PROBATION_MAX_RELAPSES ? p->relapses + 1
                                                           : p->relapses;
  p->successes = 0;
  p->interval_ns = mrc_probation_first_ns(p);
  p->next_ns = now_ns + p->interval_ns;
}

static inline void mrc_probation_on_probe(struct mrc_probation *p) { p->next_ns = MRC_NEVER; }

static inline void mrc_probation_on_timeout(struct mrc_probation *p, uint64_t now_ns) {
  p->successes = 0;
  p->interval_ns =
      mrc_min_u64(2 * p->interval_ns,
                  mrc_max_u64(mrc_probation_slowest_ns(p->noise_ns), mrc_probation_first_ns(p)));
  p->next_ns = now_ns + p->interval_ns;
}

/* What made it fail is known to be over: probes may begin, without the wait that has grown. */
static inline void mrc_probation_on_mend(struct mrc_probation *p, uint64_t now_ns) {
  p->successes = 0;
  p->next_ns = now_ns;
}

/* Returns true when trust is back. */
static inline bool mrc_probation_on_success(struct mrc_probation *p, uint64_t now_ns) {
  if (++p->successes < MRC_PROBATION_SUCCESSES) {
    p->interval_ns = mrc_probation_first_ns(p);
    p->next_ns = now_ns + p->interval_ns;
    return false;
  }
  p->returned_ns = now_ns;
  p->next_ns = MRC_NEVER;
  return true;
}

#endif
