/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a plane delivers, and how much of it is lost. Rates are measured over flights. A flight
   begins when a packet leaves on a plane that has nothing in flight, and ends when all of it is
   acknowledged. Round trips alone do not show a slow link while messages are short: its first
   packets answer as soon as those of others, and only the end of a long flight is late. */
#pragma once

#include <stdbool.h>

#include "rtt.h"

#define MRC_DELIVERY_BYTES 262144 /* rates are given as the time for so many bytes */
#define MRC_DELIVERY_ALL 65536    /* unit of the part of bursts that is lost */
#define MRC_DELIVERY_LOSSY 4096   /* a plane that loses more is lossy: one in 16 */

struct mrc_delivery {
  uint64_t began_ns;     /* of the flight, or of the part of it that is measured now */
  uint64_t took_ns;      /* until its newest acknowledgement, without the base RTT */
  uint64_t bytes;        /* of it acknowledged */
  uint64_t clock_ns;     /* its first acknowledgement; 0: none yet */
  uint64_t clock_age_ns; /* how long the newest packet of that one took */
  uint64_t clock_bytes;  /* acknowledged by it */
  uint64_t clocked_ns;   /* from then to the newest acknowledgement */
  uint64_t late_bytes;   /* of it given up: they take longer than `took_ns` */
  uint64_t short_bytes;  /* of flights before that were too short to tell */
  uint64_t short_ns;     /* what they took */
  bool busy;             /* a queue grew on the plane for most of it */
  bool is_part;          /* the flight began earlier */
  uint64_t measured_ns;  /* when a flight was long enough to measure it, or it was forgotten */
  uint64_t takes_ns;     /* for MRC_DELIVERY_BYTES; 0: unknown */
  uint64_t lost_ns;      /* send time of the newest burst that was lost */
  uint32_t losses;       /* the part of bursts that was lost, a moving average in 1/65536 */
};

/* The time for MRC_DELIVERY_BYTES as known now; 0: unknown. */
uint64_t mrc_delivery_takes_ns(const struct mrc_delivery *delivery);

/* Whether the newest flight began with the packet that was sent at `sent_ns`. */
static inline bool mrc_delivery_began_with(const struct mrc_delivery *delivery, uint64_t sent_ns) {
  return !delivery->is_part && delivery->began_ns == sent_ns;
}

static inline bool mrc_delivery_is_lossy(const struct mrc_delivery *delivery) {
  return delivery->losses > MRC_DELIVERY_LOSSY;
}

/* A burst leaves on a plane that has nothing in flight. */
void mrc_delivery_on_flight(struct mrc_delivery *delivery, uint64_t now_ns);
/* `bytes` were acknowledged, the newest of them sent at `sent_ns`. */
void mrc_delivery_on_ack(struct mrc_delivery *delivery, uint64_t bytes, uint64_t sent_ns,
                         const struct mrc_rtt *rtt, uint64_t now_ns);
/* `bytes` were sent again elsewhere, because they are late: until now the plane was busy. */
void mrc_delivery_on_late(struct mrc_delivery *delivery, uint64_t bytes, uint64_t now_ns);
/* A burst arrived. */
void mrc_delivery_on_arrived(struct mrc_delivery *delivery);
/* A packet was lost. Losses within a round trip count once: one overflow loses many bursts. */
void mrc_delivery_on_lost(struct mrc_delivery *delivery, uint64_t sent_ns,
                          const struct mrc_rtt *rtt);
/* The loss of a packet was spurious. */
void mrc_delivery_on_spurious(struct mrc_delivery *delivery);
/* A plane may have recovered that has carried too little for `old_ns` to measure it, perhaps
   because of what was measured before. It counts as twice as fast, and as not lossy until it loses
   the next burst. */
void mrc_delivery_forget(struct mrc_delivery *delivery, uint64_t old_ns, uint64_t now_ns);
