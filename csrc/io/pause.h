/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the datapath thread leaves its sockets alone while bursts come in, as a NIC moderates
 * its interrupts. Each burst would wake it, at a price for the sender too, whose core interrupts
 * this one; so what comes meanwhile is taken in one go. Pure: the caller waits.
 */
#ifndef MRC_IO_PAUSE_H
#define MRC_IO_PAUSE_H

#include "core/base.h"

enum {
  MRC_PAUSE_BYTES = 32768, /* received in a turn: more of it is on its way */
  MRC_PAUSE_PACKETS = 192, /* of a turn at most, or a peer's window of them runs out meanwhile */
  MRC_PAUSE_TURNS = 16,    /* with bursts until the pause has its full length: a message of some
                              bursts does not wait */
};

struct mrc_pause {
  uint64_t longest_ns; /* 0: never */
  uint32_t turns;      /* with bursts lately, MRC_PAUSE_TURNS at most */
};

/* The pause after a turn that received so much; 0 for none. */
static inline uint64_t mrc_pause_after(struct mrc_pause *pause, uint64_t bytes, uint32_t packets) {
  const bool bursts = bytes >= MRC_PAUSE_BYTES;
  if (packets > MRC_PAUSE_PACKETS)
    pause->turns -= mrc_min_u32(pause->turns, 1);
  else if (bursts)
    pause->turns = mrc_min_u32(pause->turns + 1, MRC_PAUSE_TURNS);
  else if (bytes > 0)
    pause->turns /= 2;
  return bursts ? pause->longest_ns * pause->turns / MRC_PAUSE_TURNS : 0;
}

#endif
