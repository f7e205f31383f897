/* SPDX-License-Identifier: Apache-2.0 */
/* When a receiver calls an EV bad (ALWAYS_SKIP, reading S4-B): its packets came marked
   MRC_MARKED_ROW times in a row, and meanwhile another EV delivered one without a mark. If all EVs
   are marked, none of them is worse than the others. The receiver does not know the peer's EVs, so
   it remembers a few that were marked lately. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { MRC_MARKED_ROW = 16, MRC_MARKED_EVS = 8 };

/* An EV whose packets came marked, by its value. */
struct mrc_marked_ev {
  uint32_t ev;
  uint32_t row;    /* packets since the last one without a mark; 0: the place is free */
  uint32_t others; /* mrc_marked.clear at the first of them */
};

struct mrc_marked {
  struct mrc_marked_ev evs[MRC_MARKED_EVS]; /* by a hash of the EV; a newer one takes the place */
  uint32_t clear;                           /* packets without a mark; free-running */
};

/* Takes in packets of an EV that came together. Returns whether the EV is to be called bad. */
static inline bool mrc_marked_take(struct mrc_marked *marked, uint32_t ev, uint32_t packets,
                                   bool ce) {
  struct mrc_marked_ev *at = &marked->evs[(ev * 0x9E3779B1u) >> 29];
  if (!ce) {
    marked->clear += packets;
    if (at->ev == ev) at->row = 0;
    return false;
  }
  if (at->ev != ev || at->row == 0) *at = (struct mrc_marked_ev){.ev = ev, .others = marked->clear};
  at->row += packets;
  if (at->row < MRC_MARKED_ROW || at->others == marked->clear) return false;
  at->row = 0; /* begins anew, so that a SACK that is lost is not the only one */
  return true;
}

_Static_assert(MRC_MARKED_EVS == 1 << 3, "the hash has three bits");
