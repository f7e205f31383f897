/* SPDX-License-Identifier: Apache-2.0 */
/* One direction of a cable with the port that feeds it: queue, rate, delay, faults. It computes
   when a packet arrives at the other end, if at all; the caller holds the clock. A fabric has
   millions of hops and faults on few: what only faults need is made by the first fault. */
#pragma once

#include "sim/queue.h"
#include "virtual/link.h"

enum mrc_node_kind { MRC_NODE_HOST, MRC_NODE_T0, MRC_NODE_T1, MRC_NODE_T2 };

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

/* What many hops share. */
struct mrc_hop_kind {
  struct mrc_hop_config config;
  struct mrc_queue_config queue;
};

/* The state of a hop that has faults or jitter, or has had them. */
struct mrc_hop_own {
  struct mrc_hop_kind kind;   /* current; its config is set by mrc_hop_configure */
  struct mrc_hop_config base; /* without faults */
  struct mrc_link link;
  uint64_t last_at_ns; /* latest arrival so far, for jitter without reordering */
  uint64_t lost;       /* packets, by fault */
  uint32_t burst_left;
};

/* Two cache lines. */
struct mrc_hop {
  _Alignas(64) const struct mrc_hop_kind *kind; /* shared, or part of struct mrc_hop_own */
  uint64_t free_at_ns;                          /* when the current packet has left */
  uint32_t to;          /* number of the node at the other end, within its kind and plane */
  uint8_t to_kind;      /* enum mrc_node_kind */
  uint8_t plane;        /* from 0 */
  bool from_host : 1;   /* a host feeds it, otherwise a switch */
  bool is_draining : 1; /* MRC_SIM_ON_DRAIN is scheduled for free_at_ns */
  bool is_owner : 1;    /* of its kind */
  bool is_absent : 1;   /* the topology does not have it: no packet enters */
  struct mrc_queue queue;
  uint64_t remainder; /* of the division by the rate: rounding errors do not add up */
  uint64_t packets;   /* sent, or lost by fault */
  uint64_t bytes;     /* of these packets, on the wire */
  uint64_t busy_ns;   /* time spent sending */
};

_Static_assert(sizeof(struct mrc_hop) == 128, "two cache lines");

/* 0: it has none. */
static inline struct mrc_hop_own *mrc_hop_own(const struct mrc_hop *hop) {
  return hop->is_owner ? (struct mrc_hop_own *)hop->kind : NULL;
}
/* Packets lost by fault. */
static inline uint64_t mrc_hop_lost(const struct mrc_hop *hop) {
  return hop->is_owner ? mrc_hop_own(hop)->lost : 0;
}
/* Gives the hop a state of its own, once. `seed` decides about its packets. */
void mrc_hop_make_own(struct mrc_hop *hop, uint64_t seed);
/* Changes rate, delay or faults of a hop with a state of its own, from the next packet on. */
void mrc_hop_configure(struct mrc_hop_own *own, const struct mrc_hop_config *config);
void mrc_hop_free(struct mrc_hop *hop);
/* Starts to send a packet at `now_ns`; the hop must be free. Returns the packet's fate with its
   arrival times. */
struct mrc_link_fate mrc_hop_send(struct mrc_hop *hop, const struct mrc_frame *packet,
                                  uint64_t now_ns);
