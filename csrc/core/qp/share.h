/* SPDX-License-Identifier: Apache-2.0 */
/* Compares how much each plane to a peer carries, period by period, and reports slow planes in
   events. The QPs to one peer are summed up: they share the planes, and a plane that another QP
   fills is not slow. spray.c decides which plane a burst takes. */
#pragma once

#include "peer.h"

/* Choices of ours. */
#define MRC_SHARE_PERIOD_NS 200000000ull /* scaled by the noise of the hosts */
#define MRC_SHARE_ROUNDS 8        /* base round trips of the shortest plane in a period, at least */
#define MRC_SHARE_MIN_PACKETS 64  /* full packets in a period, as a mean of the planes */
#define MRC_SHARE_SLOW_PERCENT 50 /* below, a plane is slow */
#define MRC_SHARE_FAIR_PERCENT 75 /* above, it no longer is */
#define MRC_SHARE_PERIODS 2       /* in a row that must agree */
#define MRC_SHARE_MAX_PERCENT 10000 /* higher values count as this */

/* Judges a period in which the plane carried `bytes` and the `n_others` others together
   `others_bytes`. Returns whether `slow` changed. */
bool mrc_share_judge(struct mrc_share *share, uint64_t bytes, uint64_t others_bytes,
                     uint32_t n_others);
/* Whether the period can compare the planes: there was enough data, and most of the time more was
   waiting. Short messages avoid slow planes on purpose, so they compare nothing. */
bool mrc_share_is_bulk(const struct mrc_share_sum *sum, uint32_t n_planes, uint32_t mtu_bytes);

/* `bytes` were acknowledged, and share_acked_bytes of their planes already include them. At the end
   of a period, compares the planes and reports each plane that became slow or is no longer slow.
   Does nothing with equal shares. */
void mrc_share_on_acked(struct mrc_services *services, struct mrc_qp *qp, uint64_t bytes,
                        uint64_t now_ns);
/* The QP leaves the plane or returns to it. Unless other QPs use the plane, its verdict is cleared
   and a new period begins. */
void mrc_share_forget(struct mrc_qp *qp, uint32_t plane);
/* The verdict on a plane of the QP. */
struct mrc_share mrc_share_of(const struct mrc_qp *qp, uint32_t plane);
