/* SPDX-License-Identifier: Apache-2.0 */
/* Judges how much a plane carries compared with the others, period by period. peer_share.c decides
   which QPs and planes are compared. */
#ifndef MRC_CORE_SHARE_H
#define MRC_CORE_SHARE_H

#include "core/base/base.h"

/* Choices of ours. */
#define MRC_SHARE_PERIOD_NS 200000000ull /* scaled by the noise of the hosts */
#define MRC_SHARE_ROUNDS 8        /* base round trips of the shortest plane in a period, at least */
#define MRC_SHARE_MIN_PACKETS 64  /* full packets in a period, as a mean of the planes */
#define MRC_SHARE_SLOW_PERCENT 50 /* below, a plane is slow */
#define MRC_SHARE_FAIR_PERCENT 75 /* above, it no longer is */
#define MRC_SHARE_PERIODS 2       /* in a row that must agree */
#define MRC_SHARE_MAX_PERCENT 10000 /* higher values count as this */

/* The verdict on one plane. */
struct mrc_share {
  uint32_t percent; /* carried, of the others' mean, in the last compared period */
  uint8_t against;  /* periods in a row that contradict `slow` */
  bool compared;    /* at least once */
  bool slow;
};

/* The current period of a peer. */
struct mrc_share_period {
  uint64_t end_ns;
  bool whole; /* no plane left or returned in it */
};

/* Bytes acknowledged in a period, of one QP or of several together. */
struct mrc_share_sum {
  uint64_t bytes;
  uint64_t backed_bytes; /* of these, while more data waited to be sent */
};

/* Judges a period in which the plane carried `bytes` and the `n_others` others together
   `others_bytes`. Returns whether `slow` changed. */
bool mrc_share_judge(struct mrc_share *share, uint64_t bytes, uint64_t others_bytes,
                     uint32_t n_others);
/* Whether the period can compare the planes: there was enough data, and most of the time more was
   waiting. Short messages avoid slow planes on purpose, so they compare nothing. */
bool mrc_share_is_bulk(const struct mrc_share_sum *sum, uint32_t n_planes, uint32_t mtu_bytes);

#endif
