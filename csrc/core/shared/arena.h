/* SPDX-License-Identifier: Apache-2.0 */
/* The transmit in progress, and the memory that a call uses and no later one reads: many engines of
   one thread may share it. */
#pragma once

#include "core/base/base.h"
#include "mrc.h"

struct mrc_seal;

/* The default of max_burst_bytes. As TCP does, it leaves tunnels 320 bytes for their headers. */
#define MRC_BURST_BYTES 65215
#define MRC_MAX_BURSTS 64      /* bursts of one transmit */
#define MRC_ARENA_PACKETS 2048 /* packets of one transmit */
#define MRC_ARENA_ENCRYPTED \
  (256u << 10) /* encrypted bytes of one transmit, about: they stay in the cache */

/* Kind of a packet in a burst; the commit treats each kind differently. */
enum mrc_packet_kind {
  MRC_KIND_DATA,
  MRC_KIND_SACK,
  MRC_KIND_NACK,
  MRC_KIND_ACK,
  MRC_KIND_PROBE,
  MRC_KIND_EV_PROBE,
  MRC_KIND_ANSWER
};

/* The newest packet on an EV that a SACK shows as received. */
struct mrc_newest {
  uint32_t serial; /* of that SACK */
  uint16_t slot;   /* in the send window */
};

/* The order of packets on each EV in the current SACK; see detect.c. */
struct mrc_order {
  uint32_t serial;                       /* of the current SACK */
  struct mrc_newest newest[MRC_MAX_EVS]; /* by index of the EV */
};

struct mrc_scratch {
  struct mrc_packet *packets; /* MRC_ARENA_PACKETS */
  uint8_t *staged;            /* bytes of all bursts whose packets stand side by side; 0: none */
  struct mrc_order order;
};

struct mrc_arena {
  struct mrc_scratch *scratch;
  bool shares_scratch;
  struct mrc_packet *packets;   /* of the scratch */
  uint8_t *staged;              /* of the scratch */
  struct mrc_burst *bursts;     /* the driver's */
  size_t staged_bytes;          /* of them in use */
  size_t encrypted_bytes;       /* of those encrypted ones */
  uint32_t staged_packet_bytes; /* packets up to this size are staged */
  struct mrc_seal *seal;        /* of the open burst's QP; NULL: plain */
  uint32_t used;                /* packets */
  uint32_t max_burst_bytes;     /* UDP payload of one burst */
  int capacity;                 /* bursts */
  int n_bursts;
};

/* Memory for the calls of any number of engines whose calls come one after the other, and whose
   configurations agree in bursts, staging and aead. Returns NULL when there is no memory. */
struct mrc_scratch *mrc_scratch_create(const struct mrc_engine_config *config);
void mrc_scratch_destroy(struct mrc_scratch *scratch);

/* 0 or -ENOMEM. */
int mrc_arena_init(struct mrc_arena *arena, const struct mrc_engine_config *config) MRC_MUST_CHECK;
void mrc_arena_free(struct mrc_arena *arena);
/* Begins a transmit. */
void mrc_arena_begin(struct mrc_arena *arena, struct mrc_burst *bursts, int capacity);

/* Whether the transmit has room for another full burst. */
static inline bool mrc_arena_may_open(const struct mrc_arena *arena) {
  return arena->n_bursts < arena->capacity && arena->encrypted_bytes < MRC_ARENA_ENCRYPTED &&
         MRC_ARENA_PACKETS - arena->used >= MRC_MAX_BURST_PACKETS;
}
/* Further packets of the size of the first one that fit into the open burst. */
static inline uint32_t mrc_arena_room(const struct mrc_arena *arena,
                                      const struct mrc_burst *burst) {
  const uint32_t most =
      mrc_min_u32(arena->max_burst_bytes / burst->packet_bytes, MRC_MAX_BURST_PACKETS);
  return most > burst->n_packets ? most - burst->n_packets : 0;
}
/* Whether another packet may be added to the open burst. */
static inline bool mrc_arena_has_room(const struct mrc_arena *arena,
                                      const struct mrc_burst *burst) {
  if (burst->n_packets == MRC_MAX_BURST_PACKETS) return false;
  return (burst->n_packets + 1u) * burst->packet_bytes <= arena->max_burst_bytes;
}
