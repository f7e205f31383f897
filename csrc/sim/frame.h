/* SPDX-License-Identifier: Apache-2.0 */
/* A packet on its way through the fabric, framed by what links and switches look at, and the pool
   that frames come from. Its payload stays where the sender has it: only the headers travel, so
   that a packet costs the same whatever its size. */
#ifndef MRC_SIM_FRAME_H
#define MRC_SIM_FRAME_H

#include "mrc.h"

/* Bytes on a link around the UDP payload: preamble, gap, Ethernet and its FCS, outer and inner
   IPv6, UDP. */
#define MRC_FRAME_OVERHEAD_BYTES 126

/* All that hops look at, up to the PSN in the header, fits the first cache line. */
struct mrc_frame {
  _Alignas(64) struct mrc_frame *next; /* in a queue, an inbox or the pool */
  uint64_t usids;        /* what is left of the uSID list, the next in the top 16 bits */
  uint32_t usids_beyond; /* the list goes on */
  uint32_t payload_bytes;
  uint32_t flow_label;
  uint16_t header_bytes;
  uint16_t trailer_bytes;
  uint16_t sport;
  uint16_t from;     /* host */
  uint16_t to;       /* host */
  uint16_t path;     /* as the sender's EV names it */
  uint8_t plane;     /* from 0 */
  uint8_t ecn;       /* the two ECN bits: 3 is CE */
  bool control;      /* of the control class, or trimmed: before all data */
  uint8_t trimmed;   /* enum mrc_trimmed */
  bool corrupt;      /* the UDP checksum of the host that it reaches is wrong */
  bool extra;        /* made by a fault that duplicates */
  uint8_t switches;  /* passed */
  uint8_t transport; /* of the host that it goes to: which takes it */
  uint8_t header[MRC_MAX_HEADER];
  uint8_t trailer[8];
  const uint8_t *payload; /* in the sender's memory region */
};

_Static_assert(offsetof(struct mrc_frame, header) + 12 <= 64, "one cache line");

struct mrc_frame_pool {
  uint32_t room_bytes; /* behind each frame, for whoever set it before the first get */
  struct mrc_frame *free;
  uint64_t n_used;                /* packets that were got and not put back */
  struct mrc_frame_block *blocks; /* what was allocated, for the end */
};

/* A packet with every field 0; what is in the room behind it is undefined. */
struct mrc_frame *mrc_frame_pool_get(struct mrc_frame_pool *pool);
/* The same packet once more, with what is behind it. */
struct mrc_frame *mrc_frame_pool_copy(struct mrc_frame_pool *pool, const struct mrc_frame *packet);
void mrc_frame_pool_put(struct mrc_frame_pool *pool, struct mrc_frame *packet);
/* Frees every packet of the pool, wherever it is. */
void mrc_frame_pool_free(struct mrc_frame_pool *pool);

static inline uint32_t mrc_frame_udp_bytes(const struct mrc_frame *packet) {
  return packet->header_bytes + packet->payload_bytes + packet->trailer_bytes;
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

#endif
