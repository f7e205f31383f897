/* SPDX-License-Identifier: Apache-2.0 */
/* Go-back-N on one path, as RoCE's reliable connection has it: a baseline to set beside MRC. The
   receiver takes packets in order of PSN only and names the first one missing; the sender goes back
   to it. The window is the same congestion control as MRC's. It knows neither hosts nor packets:
   gbn_host.h moves those. PSNs are counted from 0 here and do not wrap. */
#ifndef MRC_SIM_GBN_H
#define MRC_SIM_GBN_H

#include "core/cc.h"
#include "core/rtt.h"

struct mrc_gbn_config {
  struct mrc_cc_config cc;
  uint64_t timeout_ns; /* local timeout: so long without progress, and it goes back */
  uint32_t retries;    /* timeouts in a row that it survives */
  uint32_t window;     /* packets under way at most */
};

struct mrc_gbn_sender {
  struct mrc_gbn_config config;
  struct mrc_cc cc;
  struct mrc_rtt rtt;
  uint64_t end;         /* PSN after the last one posted */
  uint64_t next;        /* PSN to be sent */
  uint64_t unacked;     /* oldest PSN not acknowledged */
  uint64_t sent_end;    /* PSN after the newest one ever sent */
  uint64_t *sent_ns;    /* ring of `window`: when a PSN was sent; MRC_NEVER: more than once */
  uint64_t deadline_ns; /* MRC_NEVER: nothing is under way */
  uint32_t timeouts;    /* in a row */
  uint64_t packets;     /* sent */
  uint64_t again;       /* of them, not for the first time */
  uint64_t went_back;   /* times */
};

struct mrc_gbn_receiver {
  uint64_t expected; /* PSN; all before have come */
  uint64_t repeated; /* packets that had come before */
  bool nak_sent;     /* for the gap at hand; one is enough */
  bool nak_due;
  bool ack_due;
  bool ce; /* a packet since the last answer was marked */
};

/* 0, or -EINVAL for a profile that congestion control refuses. */
int mrc_gbn_sender_init(struct mrc_gbn_sender *sender,
                        const struct mrc_gbn_config *config) MRC_MUST_CHECK;
void mrc_gbn_sender_free(struct mrc_gbn_sender *sender);
/* Whether window and congestion control let the packet `next` go. */
bool mrc_gbn_may_send(const struct mrc_gbn_sender *sender);
/* The packet `next` has left; returns its PSN. */
uint64_t mrc_gbn_on_sent(struct mrc_gbn_sender *sender, uint64_t now_ns);
/* An answer: all before the PSN `expected` (24 bits) have come; `nak` asks to go back to it. */
void mrc_gbn_on_answer(struct mrc_gbn_sender *sender, uint32_t expected, bool nak, bool ce,
                       uint64_t now_ns);
/* The deadline has come. False when the last retry is spent. */
bool mrc_gbn_on_timeout(struct mrc_gbn_sender *sender);

/* A packet has come. True when it is the one expected, and taken. */
bool mrc_gbn_receive(struct mrc_gbn_receiver *receiver, uint32_t psn, bool ce);

#endif
