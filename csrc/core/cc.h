/* SPDX-License-Identifier: Apache-2.0 */
/* Congestion control behind one interface: how many bytes may be in flight, on one plane of a QP or
   on all of them. It sees acknowledgements, round trips and losses, and neither packets nor paths.
   The algorithms are in cc_delay.c and cc_nscc.c. */
#ifndef MRC_CORE_CC_H
#define MRC_CORE_CC_H

#include "cc_algorithm.h"

/* 0 or -EINVAL (an unknown kind, a profile out of range). */
int mrc_cc_init(struct mrc_cc *cc, const struct mrc_cc_config *config) MRC_MUST_CHECK;
void mrc_cc_on_ack(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns);
/* A packet was taken for lost, though not by the local timeout. */
void mrc_cc_on_loss(struct mrc_cc *cc, const struct mrc_cc_loss *loss, uint64_t now_ns);
/* The kernel refused a packet: the first queue on the way, our own, is full. Nothing was lost. */
void mrc_cc_on_refused(struct mrc_cc *cc, uint64_t inflight_bytes);
/* The local timeout expired: nothing is known about the network any more. */
void mrc_cc_on_timeout(struct mrc_cc *cc);
/* What the timeout took for lost had arrived: the window is what it was before. */
void mrc_cc_on_spurious_timeout(struct mrc_cc *cc);
/* The base RTT that the control has found to be the right one, once; 0: none. */
uint64_t mrc_cc_take_base(struct mrc_cc *cc);
/* Whether a loss that saw this queueing delay is overflow rather than a failed path. */
bool mrc_cc_is_congestion(const struct mrc_cc *cc, uint64_t delay_ns);
/* Whether a packet that leaves so much in flight, and so much of it sent since the last one that
   asked, should ask for a SACK: the sender must not have to wait for one. `sack_bytes`: what the
   receiver takes in before it sends one by itself. */
bool mrc_cc_asks_for_sack(const struct mrc_cc *cc, uint64_t inflight_bytes, uint64_t unasked_bytes,
                          uint32_t sack_bytes);

#endif
