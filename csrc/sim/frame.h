/* SPDX-License-Identifier: Apache-2.0 */
/* A packet in the fabric, with the fields that links and switches read, and the pool that packets
   come from. The payload stays in the sender's memory and only headers are copied, so the cost of a
   packet does not depend on its size. */
#pragma once

#include "mrc.h"

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

_Static_assert(offsetof(struct mrc_frame, header) + 12 <= 64, "one cache line");
_Static_assert(sizeof(struct mrc_frame) == 128, "two cache lines");

struct mrc_frame_pool {
  uint32_t room_bytes; /* extra bytes behind each frame; set it before the first get */
  struct mrc_frame *free;
  uint64_t n_free;
  uint64_t n_used;                /* packets taken less packets put back */
  struct mrc_frame_block *blocks; /* all allocated memory */
};

/* A packet with every field 0; the contents of the room behind it are undefined. */
struct mrc_frame *mrc_frame_pool_get(struct mrc_frame_pool *pool);
/* A copy of the packet and of the room behind it. */
struct mrc_frame *mrc_frame_pool_copy(struct mrc_frame_pool *pool, const struct mrc_frame *packet);
void mrc_frame_pool_put(struct mrc_frame_pool *pool, struct mrc_frame *packet);
/* Moves up to n free packets to another pool. Packets may be put back into any pool of a fabric;
   the sum of `n_used` counts those that are in use. */
void mrc_frame_pool_move(struct mrc_frame_pool *from, struct mrc_frame_pool *to, uint64_t n);
/* Frees every packet of the pool, including packets in use. */
void mrc_frame_pool_free(struct mrc_frame_pool *pool);

static inline uint32_t mrc_frame_udp_bytes(const struct mrc_frame *packet) {
  return (uint32_t)packet->header_bytes + packet->payload_bytes + packet->trailer_bytes;
}

static inline uint32_t mrc_frame_wire_bytes(const struct mrc_frame *packet) {
  return mrc_frame_udp_bytes(packet) + MRC_FRAME_OVERHEAD_BYTES;
}

/* Numbers of 24 bits in headers. */
static inline void mrc_put_u24(uint8_t *bytes, uint32_t value) {
  bytes[0] = (uint8_t)(value >> 16);
  bytes[1] = (uint8_t)(value >> 8);
  bytes[2] = (uint8_t)value;
}

static inline uint32_t mrc_get_u24(const uint8_t *bytes) {
  return (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 8 | bytes[2];
}
