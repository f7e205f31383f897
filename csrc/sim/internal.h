/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the simulator use of packets, queues, hops and the fabric, beside what hop.h
   and fabric.h offer to the emulator too. */
#pragma once

#include "sim/fabric.h"
#include "sim/numbers.h"

/* ---- Packets ---- */

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

/* A copy of the packet and of the room behind it. */
struct mrc_frame *mrc_frame_pool_copy(struct mrc_frame_pool *pool, const struct mrc_frame *packet);
/* Moves up to n free packets to another pool. Packets may be put back into any pool of a fabric;
   the sum of `n_used` counts those that are in use. */
void mrc_frame_pool_move(struct mrc_frame_pool *from, struct mrc_frame_pool *to, uint64_t n);
/* Frees every packet of the pool, including packets in use. */
void mrc_frame_pool_free(struct mrc_frame_pool *pool);

/* ---- Queues ---- */

/* Queues a packet, trimmed if necessary. False when there is no room: the caller keeps the
   packet. */
bool mrc_queue_push(struct mrc_queue *queue, const struct mrc_queue_config *config,
                    struct mrc_frame *packet);
/* The next packet to send, control first; 0 when empty. Data is marked here, as it leaves: the mark
   then reflects the current queue, however long the packet has waited. */
struct mrc_frame *mrc_queue_pop(struct mrc_queue *queue, const struct mrc_queue_config *config);
/* Packets of a class that wait. */
uint64_t mrc_queue_count(const struct mrc_queue_class *class);

/* ---- Hops ---- */

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

/* ---- The fabric ---- */

/* Gives a packet the uSIDs of its path between its hosts, the first in the top 16 bits; none under
   ECMP. */
void mrc_fabric_set_usids(const struct mrc_fabric *fabric, struct mrc_frame *packet);
/* The shard that has the node at the end of a hop. */
uint32_t mrc_fabric_shard_of_end(const struct mrc_fabric *fabric, uint32_t shards,
                                 const struct mrc_hop *hop);
/* Packets in the queues of all hops. */
uint64_t mrc_fabric_count_frames(const struct mrc_fabric *fabric);
/* Whether the hops of a path between two hosts exist; planes from 0. */
bool mrc_fabric_has_path(const struct mrc_fabric *fabric, uint32_t plane, uint32_t from,
                         uint32_t to, uint32_t path);
/* Whether two hosts have a path in a plane. */
bool mrc_fabric_joins(const struct mrc_fabric *fabric, uint32_t plane, uint32_t from, uint32_t to);
/* A random plane in which two hosts have a path; they must have one. */
uint32_t mrc_fabric_draw_plane(const struct mrc_fabric *fabric, uint32_t from, uint32_t to);
/* The host's end of its link in a plane; planes from 0. */
struct mrc_hop *mrc_fabric_port(const struct mrc_fabric *fabric, uint32_t plane, uint32_t host);
/* A packet joins the queue of a hop. */
void mrc_fabric_enter(struct mrc_fabric *fabric, uint32_t hop, struct mrc_frame *packet);

/* ---- Faults ---- */

/* A fault begins or ends. */
void mrc_fault_switch(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault, bool begins);
/* Sets the property that the target's links have without faults to the fault's value. */
void mrc_fault_rebase(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault);
/* Removes the target's links, before the first packet. */
void mrc_fault_remove(struct mrc_fabric *fabric, const struct mrc_sim_fault *target);
