/* SPDX-License-Identifier: Apache-2.0 */
/* How long a SACK waited in queues on its way here, for SACKs that carry their send time. The
   clocks of two hosts differ by an unknown time, which changes slowly. So a way back is compared
   with the shortest one of the last seconds. */
#pragma once

#include <stdint.h>

#include "core/wire/wire.h"

/* Clocks drift apart by less than 100 us a second, which is short compared with a queue. */
#define MRC_REVERSE_PERIOD_NS 4000000000ull
#define MRC_REVERSE_OLD_NS (4 * MRC_REVERSE_PERIOD_NS)

/* Times are differences of two clocks in units of mrc_timestamp, modulo 2^16. */
struct mrc_reverse_queue {
  uint64_t began_ns;     /* begin of the period; 0: no SACK yet */
  uint16_t least;        /* the shortest way back of this period */
  uint16_t least_before; /* of the period before */
};

static inline int16_t mrc_way_longer(uint16_t took, uint16_t than) {
  return (int16_t)(uint16_t)(took - than);
}

/* The wait of a SACK that left at `sent` by the peer's clock. Waits above 33 ms are ambiguous. */
static inline uint64_t mrc_reverse_queue_ns(struct mrc_reverse_queue *queue, uint16_t sent,
                                            uint64_t arrived_ns) {
  const uint16_t took = (uint16_t)(mrc_timestamp(arrived_ns) - sent);
  const uint64_t age_ns = arrived_ns > queue->began_ns ? arrived_ns - queue->began_ns : 0;
  if (queue->began_ns == 0 || age_ns > MRC_REVERSE_OLD_NS) {
    *queue =
        (struct mrc_reverse_queue){.began_ns = arrived_ns, .least = took, .least_before = took};
    return 0;
  }
  if (age_ns > MRC_REVERSE_PERIOD_NS)
    *queue = (struct mrc_reverse_queue){
        .began_ns = arrived_ns, .least = took, .least_before = queue->least};
  if (mrc_way_longer(took, queue->least) < 0) queue->least = took;
  const uint16_t least =
      mrc_way_longer(queue->least_before, queue->least) < 0 ? queue->least_before : queue->least;
  return (uint64_t)mrc_way_longer(took, least) << 10;
}
