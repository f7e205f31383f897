/* SPDX-License-Identifier: Apache-2.0 */
/* Congestion control of one QP behind one interface: how many bytes may be in flight. It sees
   acknowledgements, round trips and losses, and knows neither packets nor paths. */
#ifndef MRC_CORE_CC_H
#define MRC_CORE_CC_H

#include "../mrc.h"
#include "base.h"

/* The delay-based window of this release; a choice of ours until NSCC takes its place. It holds the
   standing queue of the most loaded plane near this target, short against any sane buffer. */
#define MRC_CC_TARGET_DELAY_NS 3000000ull
#define MRC_CC_MIN_ROUND_NS 1000000ull /* shortest time between two decisions */
#define MRC_CC_INITIAL_BYTES 262144ull

struct mrc_cc {
  uint8_t kind; /* enum mrc_cc_kind */
  bool slow_start;
  uint32_t mtu_bytes;
  uint64_t cwnd_bytes;
  uint64_t cwnd_before_timeout_bytes; /* 0: no timeout that could prove wrong */
  uint64_t min_bytes;
  uint64_t max_bytes;
  uint64_t round_end_ns; /* end of the current round, about two round trips */
  uint64_t round_acked_bytes;
  uint64_t round_rtt_ns;                  /* largest smoothed RTT reported in the round */
  bool round_limited;                     /* the window was the limit at some time in the round */
  uint32_t round_planes;                  /* bit p: plane p gave a delay sample in the round */
  uint64_t round_delay_ns[MRC_MAX_PORTS]; /* smallest queueing delay of each such plane */
};

struct mrc_cc_ack {
  uint64_t bytes;          /* newly acknowledged */
  uint64_t inflight_bytes; /* before this acknowledgement */
  uint64_t rtt_ns;         /* 0: no sample */
  uint64_t base_rtt_ns;    /* of the plane that gave the sample */
  uint64_t smooth_rtt_ns;
  uint32_t plane; /* index of that plane */
};

void mrc_cc_init(struct mrc_cc *cc, uint8_t kind, uint32_t mtu_bytes, uint64_t max_bytes);
void mrc_cc_on_ack(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns);
/* The kernel refused a packet: the first queue on the way, our own, is full. Nothing was lost. */
void mrc_cc_on_refused(struct mrc_cc *cc, uint64_t inflight_bytes);
/* A loss on a plane whose queue was long: overflow, not a dead path. */
void mrc_cc_on_congestion_loss(struct mrc_cc *cc, uint64_t now_ns);
/* The local timeout expired: nothing is known about the network any more. */
void mrc_cc_on_timeout(struct mrc_cc *cc);
/* What the timeout took for lost had arrived: the window is what it was before. */
void mrc_cc_on_spurious_timeout(struct mrc_cc *cc);
/* Whether a loss that saw this queueing delay is overflow rather than a failed path. */
bool mrc_cc_is_congestion(const struct mrc_cc *cc, uint64_t delay_ns);

#endif
