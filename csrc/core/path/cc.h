/* SPDX-License-Identifier: Apache-2.0 */
/* Congestion control behind one interface: how many bytes may be in flight, on one plane of a QP or
   on all of them. The input is acknowledgements, round trips and losses, without packets or paths.
   The algorithms are in cc_delay.c and cc_nscc.c. */
#pragma once

#include "cc_algorithm.h"

/* 0 or -EINVAL (an unknown kind, a profile out of range). */
int mrc_cc_init(struct mrc_cc *cc, const struct mrc_cc_config *config) MRC_MUST_CHECK;
void mrc_cc_on_ack(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns);
/* A packet was declared lost, but not by the local timeout. */
void mrc_cc_on_loss(struct mrc_cc *cc, const struct mrc_cc_loss *loss, uint64_t now_ns);
/* The kernel refused a packet: the send queue of this host is full. Nothing was lost. */
void mrc_cc_on_refused(struct mrc_cc *cc, uint64_t inflight_bytes);
/* The local timeout expired: starts again with the smallest window. */
void mrc_cc_on_timeout(struct mrc_cc *cc);
/* The packets that the timeout declared lost had arrived: restores the earlier window. */
void mrc_cc_on_spurious_timeout(struct mrc_cc *cc);
/* Returns a corrected base RTT that the algorithm has found, once; 0: none. */
uint64_t mrc_cc_take_base(struct mrc_cc *cc);
/* Whether a loss at this queueing delay was an overflow, and not a failed path. */
bool mrc_cc_is_congestion(const struct mrc_cc *cc, uint64_t delay_ns);
/* Whether a data packet should request a SACK, so that the sender never has to wait for one.
   `inflight_bytes`: in flight, this packet included; `unasked_bytes`: sent since the last request,
   likewise; `sack_bytes`: after so many received bytes the receiver sends a SACK by itself;
   `shared`: the peer has other QPs. */
bool mrc_cc_asks_for_sack(const struct mrc_cc *cc, uint64_t inflight_bytes, uint64_t unasked_bytes,
                          uint32_t sack_bytes, bool shared);
