/* SPDX-License-Identifier: Apache-2.0 */
/* One TCP flow that always has data, to share links with MRC: CUBIC (RFC 9438) with slow start,
   selective acknowledgements, loss detection by send time (as in RACK) and a retransmission
   timeout. Segments are counted from 0 and do not wrap; the receiver acknowledges each one at
   once. */
#pragma once

#include "core/engine.h"

#define MRC_TCP_MAX_WINDOW 32768u /* most segments in flight: a power of two */

/* Windows are in segments. */
struct mrc_cubic {
  double cwnd;
  double ssthresh;
  double max;        /* window before the last decrease */
  double k;          /* seconds from the decrease until the curve is at `max` again */
  double estimate;   /* window that Reno would have by now */
  uint64_t epoch_ns; /* start of the curve; 0: the next acknowledgement */
};

struct mrc_tcp_sender {
  struct mrc_cubic cubic;
  uint64_t next;      /* next new segment */
  uint64_t unacked;   /* oldest segment without a cumulative acknowledgement */
  uint64_t recover;   /* a loss below this segment does not decrease the window again */
  uint64_t lost_from; /* no segment before this is lost */
  uint64_t newest_ns; /* latest send time of an acknowledged segment */
  struct mrc_rtt rtt;
  uint64_t deadline_ns; /* of the retransmission timeout; MRC_NEVER: nothing is in flight */
  uint32_t in_flight;   /* segments sent, neither acknowledged nor lost */
  uint32_t n_lost;      /* segments to retransmit */
  uint32_t timeouts;    /* consecutive */
  bool full;            /* at the last check the window was the limit, not the port */
  bool urgent;          /* retransmit the first loss at once, whatever the window */
  bool recovers;        /* recovers from a loss, not from a timeout: the window is constant */
  uint64_t packets;     /* sent */
  uint64_t again;       /* retransmitted packets */
  uint64_t losses;      /* segments declared lost */
  uint8_t *state;       /* ring of MRC_TCP_MAX_WINDOW */
  uint64_t *sent_ns;    /* same ring: when last sent */
};

struct mrc_tcp_receiver {
  uint64_t expected; /* next segment; all earlier ones were received */
  uint64_t repeated; /* segments received again */
  uint8_t *came;     /* ring of MRC_TCP_MAX_WINDOW: segments received beyond `expected` */
};

/* An acknowledgement. */
struct mrc_tcp_ack {
  uint64_t expected; /* all segments before this one were received */
  uint64_t came;     /* the segment that caused it */
  uint64_t sent_ns;  /* when that segment was sent */
};

void mrc_tcp_sender_init(struct mrc_tcp_sender *sender);
void mrc_tcp_sender_free(struct mrc_tcp_sender *sender);
/* Whether the window allows a segment. */
bool mrc_tcp_may_send(struct mrc_tcp_sender *sender);
/* A segment was sent: the oldest lost one, or a new one. Returns its number. */
uint64_t mrc_tcp_on_sent(struct mrc_tcp_sender *sender, uint64_t now_ns);
void mrc_tcp_on_ack(struct mrc_tcp_sender *sender, const struct mrc_tcp_ack *ack, uint64_t now_ns);
/* The deadline has passed. */
void mrc_tcp_on_timeout(struct mrc_tcp_sender *sender);

void mrc_tcp_receiver_init(struct mrc_tcp_receiver *receiver);
void mrc_tcp_receiver_free(struct mrc_tcp_receiver *receiver);
/* A segment was received. False if it was received before. */
bool mrc_tcp_receive(struct mrc_tcp_receiver *receiver, uint64_t segment);
