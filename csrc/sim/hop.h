/* SPDX-License-Identifier: Apache-2.0 */
/* A packet in the fabric, with the fields that links and switches read, and the pool that packets
   come from. The payload stays in the sender's memory and only headers are copied, so the cost of a
   packet does not depend on its size. */
#pragma once

#include "core/base.h"
#include "mrc.h"
#include "virtual/link.h"

/* Bytes on a link around the UDP payload: preamble, gap, Ethernet and its FCS, outer and inner
   IPv6, UDP. */
#define MRC_FRAME_OVERHEAD_BYTES 126
/* The part of them that is no part of the outer IPv6 packet. */
#define MRC_FRAME_LINK_BYTES 38

/* Two cache lines. The fields that hops read, up to the PSN in the header, fit the first. */
struct mrc_frame {
  _Alignas(64) struct mrc_frame *next; /* in a queue, an inbox or the pool */
  uint64_t usids;                      /* rest of the list, the next uSID in the top 16 bits */
  const uint8_t *payload;              /* in the sender's memory region */
  uint32_t usids_beyond;               /* next 32 bits of the list */
  uint32_t flow_label;
  uint32_t from; /* host */
  uint32_t to;   /* host */
  uint16_t payload_bytes;
  uint16_t sport;
  uint16_t path; /* as the sender's EV names it */
  uint8_t header_bytes;
  uint8_t trailer_bytes;
  uint8_t plane;         /* from 0 */
  uint8_t switches;      /* number of switches passed */
  uint8_t ecn : 2;       /* the two ECN bits: 3 is CE */
  uint8_t trimmed : 2;   /* enum mrc_trimmed */
  uint8_t transport : 2; /* enum mrc_host_transport that receives it */
  bool control : 1;      /* control class, or trimmed: sent before all data */
  bool corrupt : 1;      /* damaged: the receiving host finds a wrong UDP checksum */
  bool extra : 1;        /* a copy made by a fault */
  uint8_t header[76];    /* and the trailer behind it */
};

struct mrc_frame_pool {
  uint32_t room_bytes; /* extra bytes behind each frame; set it before the first get */
  struct mrc_frame *free;
  uint64_t n_free;
  uint64_t n_used;                /* packets taken less packets put back */
  struct mrc_frame_block *blocks; /* all allocated memory */
};

/* A packet with every field 0; the contents of the room behind it are undefined. */
struct mrc_frame *mrc_frame_pool_get(struct mrc_frame_pool *pool);
void mrc_frame_pool_put(struct mrc_frame_pool *pool, struct mrc_frame *packet);

static inline uint32_t mrc_frame_udp_bytes(const struct mrc_frame *packet) {
  return (uint32_t)packet->header_bytes + packet->payload_bytes + packet->trailer_bytes;
}

static inline uint32_t mrc_frame_wire_bytes(const struct mrc_frame *packet) {
  return mrc_frame_udp_bytes(packet) + MRC_FRAME_OVERHEAD_BYTES;
}

/* A copy of the packet and of the room behind it. */
struct mrc_frame *mrc_frame_pool_copy(struct mrc_frame_pool *pool, const struct mrc_frame *packet);
/* Moves up to n free packets to another pool. Packets may be put back into any pool of a fabric;
   the sum of `n_used` counts those that are in use. */
void mrc_frame_pool_move(struct mrc_frame_pool *from, struct mrc_frame_pool *to, uint64_t n);
/* Frees every packet of the pool, including packets in use. */
void mrc_frame_pool_free(struct mrc_frame_pool *pool);

/* ---- Queues ---- */

/* The output queue of a switch port or a NIC: two classes under strict priority, or one queue for
   all; a byte buffer, ECN marking on a ramp, trimming. Rate and time are in hop.h. */

struct mrc_queue_config {
  uint64_t buffer_bytes;   /* of each class; 0: no limit */
  uint64_t ecn_low_bytes;  /* with less data waiting behind it, a packet is never marked */
  uint64_t ecn_high_bytes; /* with this much, always; in between by chance; 0: no marking */
  bool trims;              /* data that does not fit loses its payload and continues as control */
  bool one_class;          /* control waits behind data */
  bool last_hop;           /* to a host: trimmed packets are flagged with it */
};

struct mrc_queue_class {
  struct mrc_frame *last; /* its `next` is the first; 0: empty */
  uint64_t bytes;         /* on the wire */
};

struct mrc_queue {
  struct mrc_queue_class control;
  struct mrc_queue_class data;
  struct mrc_prng prng;
  uint64_t dropped; /* packets that did not fit */
  uint64_t trimmed;
  uint64_t marked;
  uint64_t peak_bytes; /* of both classes */
};

/* Queues a packet, trimmed if necessary. False when there is no room: the caller keeps the
   packet. */
bool mrc_queue_push(struct mrc_queue *queue, const struct mrc_queue_config *config,
                    struct mrc_frame *packet);
/* The next packet to send, control first; 0 when empty. Data is marked here, as it leaves: the mark
   then reflects the current queue, however long the packet has waited. */
struct mrc_frame *mrc_queue_pop(struct mrc_queue *queue, const struct mrc_queue_config *config);
/* Packets of a class that wait. */
uint64_t mrc_queue_count(const struct mrc_queue_class *class);
static inline uint64_t mrc_queue_bytes(const struct mrc_queue *queue) {
  return queue->control.bytes + queue->data.bytes;
}

/* ---- Hops ---- */

/* One direction of a cable with the port that feeds it: queue, rate, delay, faults. It computes
   when a packet arrives at the other end, if at all; the caller holds the clock. A fabric has
   millions of hops and faults on few: what only faults need is made by the first fault. */

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

/* Packets lost by fault. */
uint64_t mrc_hop_lost(const struct mrc_hop *hop);
/* Changes rate, delay or faults of a hop with a state of its own, from the next packet on. */
void mrc_hop_configure(struct mrc_hop_own *own, const struct mrc_hop_config *config);
/* 0: it has none. */
static inline struct mrc_hop_own *mrc_hop_own(const struct mrc_hop *hop) {
  return hop->is_owner ? (struct mrc_hop_own *)hop->kind : NULL;
}
/* Gives the hop a state of its own, once. `seed` decides about its packets. */
void mrc_hop_make_own(struct mrc_hop *hop, uint64_t seed);
void mrc_hop_free(struct mrc_hop *hop);
/* Starts to send a packet at `now_ns`; the hop must be free. Returns the packet's fate with its
   arrival times. */
struct mrc_link_fate mrc_hop_send(struct mrc_hop *hop, const struct mrc_frame *packet,
                                  uint64_t now_ns);
