/* SPDX-License-Identifier: Apache-2.0 */
/* How long the datapath thread pauses between reads of its sockets while bursts arrive, as a NIC
   moderates its interrupts. Without pauses each burst would wake the thread, which costs time on
   the sender's core too. Pure: the caller waits. */
#pragma once

#include "core/base.h"

enum {
  MRC_PAUSE_BYTES = 32768, /* received in a turn: more is expected */
  MRC_PAUSE_PACKETS = 192, /* in a turn; with more, a peer's window could run out in a pause */
  MRC_PAUSE_TURNS = 16,    /* with bursts until the pause is full: short messages do not wait */
};

struct mrc_pause {
  uint64_t longest_ns; /* 0: no pauses */
  uint32_t turns;      /* recent turns with bursts, at most MRC_PAUSE_TURNS */
};

/* The pause after a turn that received `bytes` in `packets`; 0: none. */
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
