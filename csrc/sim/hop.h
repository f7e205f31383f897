/* SPDX-License-Identifier: Apache-2.0 */
/* One direction of a cable with the port that feeds it: queue, rate, delay, faults. It computes
   when a packet arrives at the other end, if at all; the caller holds the clock. */
#ifndef MRC_SIM_HOP_H
#define MRC_SIM_HOP_H

#include "sim/link.h"
#include "sim/queue.h"

enum mrc_node_kind { MRC_NODE_HOST, MRC_NODE_T0, MRC_NODE_T1 };

/* The packets that the faults of a hop affect. */
enum mrc_hop_class { MRC_HOP_ALL, MRC_HOP_CONTROL, MRC_HOP_DATA };

struct mrc_hop_config {
  struct mrc_link_config link; /* delay and faults; rate and queue are the hop's own */
  uint64_t rate_bps;
  uint64_t jitter_ns;     /* random extra delay up to this; order is kept */
  uint32_t burst_ppm;     /* chance that a packet begins a burst of losses */
  uint32_t burst_packets; /* its length */
  uint8_t class;          /* enum mrc_hop_class */
};

struct mrc_hop {
  struct mrc_hop_config config; /* current; set by mrc_hop_configure */
  struct mrc_hop_config base;   /* without faults */
  struct mrc_queue queue;
  struct mrc_link link;
  uint64_t free_at_ns;    /* when the current packet has left */
  uint64_t remainder;     /* of the division by the rate: rounding errors do not add up */
  uint64_t packets;       /* sent, or lost by fault */
  uint64_t bytes;         /* of these packets, on the wire */
  uint64_t busy_ns;       /* time spent sending */
  uint64_t last_at_ns;    /* latest arrival so far, for jitter without reordering */
  uint64_t lost;          /* packets, by fault */
  uint64_t first_lost_ns; /* 0: none yet */
  uint32_t burst_left;
  uint32_t to;        /* number of the node at the other end, within its kind and plane */
  uint8_t to_kind;    /* enum mrc_node_kind */
  uint8_t plane;      /* from 0 */
  bool is_draining;   /* MRC_SIM_ON_DRAIN is scheduled for free_at_ns */
  uint16_t from_host; /* number + 1 of the host that feeds it; 0: a switch */
};

/* Changes rate, delay or faults, from the next packet on. */
void mrc_hop_configure(struct mrc_hop *hop, const struct mrc_hop_config *config);
/* Starts to send a packet at `now_ns`; the hop must be free. Returns the packet's fate with its
   arrival times. */
struct mrc_link_fate mrc_hop_send(struct mrc_hop *hop, const struct mrc_frame *packet,
                                  uint64_t now_ns);

#endif
