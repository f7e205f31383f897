/* SPDX-License-Identifier: Apache-2.0 */
/* Go-back-N on one path, as in RoCE's reliable connection: a baseline for MRC. The receiver accepts
   packets only in PSN order and reports the first missing one; the sender goes back to it. The
   window uses the same congestion control as MRC. PSNs are counted from 0 here and do not wrap. */
#pragma once

#include "core/engine.h"

struct mrc_gbn_config {
  struct mrc_cc_config cc;
  uint64_t timeout_ns; /* local timeout: it goes back after this time without progress */
  uint32_t retries;    /* consecutive timeouts allowed; the next one fails the flow */
  uint32_t window;     /* most packets in flight */
};

struct mrc_gbn_sender {
  struct mrc_gbn_config config;
  struct mrc_cc cc;
  struct mrc_rtt rtt;
  uint64_t end;         /* PSN after the last one posted */
  uint64_t next;        /* PSN of the next packet to send */
  uint64_t unacked;     /* oldest PSN not acknowledged */
  uint64_t sent_end;    /* PSN after the newest one ever sent */
  uint64_t *sent_ns;    /* ring of `window`: when a PSN was sent; MRC_NEVER: more than once */
  uint64_t deadline_ns; /* MRC_NEVER: nothing is in flight */
  uint32_t timeouts;    /* consecutive */
  uint64_t packets;     /* sent */
  uint64_t again;       /* retransmitted packets */
  uint64_t went_back;   /* number of go-backs */
};

struct mrc_gbn_receiver {
  uint64_t expected; /* next PSN; all earlier ones were received */
  uint64_t repeated; /* packets received again */
  bool nak_sent;     /* for the current gap; one NAK is enough */
  bool nak_due;
  bool ack_due;
  bool ce; /* a packet since the last answer had a CE mark */
};

/* 0, or -EINVAL for a profile that congestion control refuses. */
int mrc_gbn_sender_init(struct mrc_gbn_sender *sender,
                        const struct mrc_gbn_config *config) MRC_MUST_CHECK;
void mrc_gbn_sender_free(struct mrc_gbn_sender *sender);
/* Whether window and congestion control allow packet `next`. */
bool mrc_gbn_may_send(const struct mrc_gbn_sender *sender);
/* Packet `next` was sent; returns its PSN. */
uint64_t mrc_gbn_on_sent(struct mrc_gbn_sender *sender, uint64_t now_ns);
/* An answer acknowledges all PSNs before `expected` (24 bits); `nak` requests to go back to it. */
void mrc_gbn_on_answer(struct mrc_gbn_sender *sender, uint32_t expected, bool nak, bool ce,
                       uint64_t now_ns);
/* The deadline has passed. False when all retries are used. */
bool mrc_gbn_on_timeout(struct mrc_gbn_sender *sender);

/* A packet was received. True when it is the expected one and accepted. */
bool mrc_gbn_receive(struct mrc_gbn_receiver *receiver, uint32_t psn, bool ce);
