/* SPDX-License-Identifier: Apache-2.0 */
/* One TCP flow that always has data: CUBIC (RFC 9438) with slow start, selective acknowledgements,
   loss found by the time of sending (as RACK does) and a retransmission timeout. It is what MRC
   must share links with. It knows neither hosts nor packets: tcp_host.h moves those. Segments are
   counted from 0 and do not wrap; the receiver acknowledges each one at once. */
#ifndef MRC_SIM_TCP_H
#define MRC_SIM_TCP_H

#include "core/rtt.h"

#define MRC_TCP_MAX_WINDOW 32768u /* segments under way at most: a power of two */

/* Windows are in segments. */
struct mrc_cubic {
  double cwnd;
  double ssthresh;
  double max;        /* window before the last decrease */
  double k;          /* seconds from the decrease until the curve is at `max` again */
  double estimate;   /* window that Reno would have by now */
  uint64_t epoch_ns; /* the curve counts from here; 0: from the next acknowledgement */
};

struct mrc_tcp_sender {
  struct mrc_cubic cubic;
  uint64_t next;      /* segment never sent so far */
  uint64_t unacked;   /* oldest segment not acknowledged with all before */
  uint64_t recover;   /* a loss below this is no new reason to decrease */
  uint64_t lost_from; /* no segment before this is lost */
  uint64_t newest_ns; /* when the newest segment that arrived was sent */
  struct mrc_rtt rtt;
  uint64_t deadline_ns; /* of the retransmission timeout; MRC_NEVER: nothing is under way */
  uint32_t in_flight;   /* segments sent and neither arrived nor lost */
  uint32_t n_lost;      /* segments to be sent again */
  uint32_t timeouts;    /* in a row */
  bool full;            /* the window, not the port, held the sender back last */
  bool urgent;          /* the first loss is mended at once, whatever the window */
  bool recovers;        /* from a loss, and no timeout: the window stays as it is */
  uint64_t packets;     /* sent */
  uint64_t again;       /* of them, not for the first time */
  uint64_t losses;      /* segments taken for lost */
  uint8_t *state;       /* ring of MRC_TCP_MAX_WINDOW */
  uint64_t *sent_ns;    /* likewise: when last sent */
};

struct mrc_tcp_receiver {
  uint64_t expected; /* segment; all before have come */
  uint64_t repeated; /* segments that had come before */
  uint8_t *came;     /* ring of MRC_TCP_MAX_WINDOW: beyond `expected` */
};

/* An acknowledgement. */
struct mrc_tcp_ack {
  uint64_t expected; /* all segments before this one have come */
  uint64_t came;     /* the segment that caused it */
  uint64_t sent_ns;  /* and when that was sent */
};

void mrc_tcp_sender_init(struct mrc_tcp_sender *sender);
void mrc_tcp_sender_free(struct mrc_tcp_sender *sender);
/* Whether the window lets a segment go. */
bool mrc_tcp_may_send(struct mrc_tcp_sender *sender);
/* A segment has left: the oldest lost one, or a new one. Returns its number. */
uint64_t mrc_tcp_on_sent(struct mrc_tcp_sender *sender, uint64_t now_ns);
void mrc_tcp_on_ack(struct mrc_tcp_sender *sender, const struct mrc_tcp_ack *ack, uint64_t now_ns);
/* The deadline has come. */
void mrc_tcp_on_timeout(struct mrc_tcp_sender *sender);

void mrc_tcp_receiver_init(struct mrc_tcp_receiver *receiver);
void mrc_tcp_receiver_free(struct mrc_tcp_receiver *receiver);
/* A segment has come. False when it had come before. */
bool mrc_tcp_receive(struct mrc_tcp_receiver *receiver, uint64_t segment);

#endif
