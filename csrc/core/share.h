/* SPDX-License-Identifier: Apache-2.0 */
/* How much a plane carries beside the others: the verdict on one period after the other. Which QPs
   and planes are compared is decided in peer_share.c. */
#ifndef MRC_CORE_SHARE_H
#define MRC_CORE_SHARE_H

#include "base.h"

/* Choices of ours. */
#define MRC_SHARE_PERIOD_NS 200000000ull /* scaled by the noise of the hosts */
#define MRC_SHARE_ROUNDS 8        /* base round trips of the shortest plane in a period, at least */
#define MRC_SHARE_MIN_PACKETS 64  /* full packets in a period, as a mean of the planes */
#define MRC_SHARE_SLOW_PERCENT 50 /* below, a plane is slow */
#define MRC_SHARE_FAIR_PERCENT 75 /* above, it no longer is */
#define MRC_SHARE_PERIODS 2       /* in a row that must agree */
#define MRC_SHARE_MAX_PERCENT 10000 /* whatever is more counts as this */

/* The verdict on one plane. */
struct mrc_share {
  uint32_t percent; /* carried, of the mean of the others, in the last period compared */
  uint8_t against;  /* periods in a row that contradict `slow` */
  bool compared;    /* ever */
  bool slow;
};

/* The period in progress, of a peer. */
struct mrc_share_period {
  uint64_t end_ns;
  bool whole; /* no plane left or came back in it */
};

/* What was acknowledged in a period: to one QP, or to several together. */
struct mrc_share_sum {
  uint64_t bytes;
  uint64_t backed_bytes; /* of these, so many while more waited to be sent */
};

/* Takes the result of a period: the plane carried `bytes`, the `n_others` together `others_bytes`.
   Whether `slow` changed. */
bool mrc_share_judge(struct mrc_share *share, uint64_t bytes, uint64_t others_bytes,
                     uint32_t n_others);
/* Whether the period compares the planes: there was enough to send, and most of the time more than
   the planes took. A short message leaves slow planes out on purpose. */
bool mrc_share_is_bulk(const struct mrc_share_sum *sum, uint32_t n_planes, uint32_t mtu_bytes);

#endif
