/* SPDX-License-Identifier: Apache-2.0 */
/* Packets on their way from one shard to another. A shard fills its boxes, one for each other
   shard, while it runs; between two windows the others empty them. */
#pragma once

#include "sim/agenda.h"
#include "sim/hop.h"
#include "sim/record.h"

struct mrc_mail {
  uint64_t at_ns; /* when the packet arrives at the end of the hop */
  struct mrc_frame *packet;
  uint32_t hop;
};

struct mrc_mailbox {
  struct mrc_mail *at; /* in the order in which they were sent */
  uint32_t n;
  uint32_t capacity;
};

/* ---- The fabric ---- */

/* The fabric: the hops between hosts and switches, and the routing of packets. It moves packets
   from host to host and passes them to its edge. */

/* The edge of the fabric: simulated hosts, or ports to real hosts. `edge` comes from struct
   mrc_fabric. */
struct mrc_fabric_edge {
  /* A packet has reached a host, which owns it from now on. */
  void (*arrive)(void *edge, uint32_t host, struct mrc_frame *packet);
  /* The host's end of a hop has sent a packet. */
  void (*drained)(void *edge, uint32_t host, const struct mrc_hop *hop);
  /* The host sees a port go down or come up; ports count from 1. */
  void (*port_up)(void *edge, uint32_t host, uint32_t port, bool up);
  /* A switch has used up the uSIDs of a packet: gives it those of its next carrier, if it has one.
     NULL: no packet has one. */
  void (*next_carrier)(struct mrc_frame *packet);
};

enum {
  MRC_FABRIC_FROM_HOST,
  MRC_FABRIC_TO_HOST,
  MRC_FABRIC_BETWEEN,
  MRC_FABRIC_CORE,
  MRC_FABRIC_KINDS
};

struct mrc_fabric {
  struct mrc_world *world;
  struct mrc_sim_record *record;
  const struct mrc_fabric_edge *calls;
  void *edge;
  struct mrc_frame_pool pool;
  struct mrc_hop_kind kinds[MRC_FABRIC_KINDS];
  uint64_t seed;        /* of the hops */
  struct mrc_hop *hops; /* by hop number; see topology.h */
  uint32_t n_hops;
  uint32_t n_absent;            /* of them, the topology does not have */
  struct mrc_mailbox *outboxes; /* by shard; 0: this shard has all nodes */
  uint32_t shards;              /* how many share the hops */
  uint32_t shard;               /* this one */
};

/* Creates the hops. The configuration must pass mrc_topology_is_sound. */
void mrc_fabric_build(struct mrc_fabric *fabric);
void mrc_fabric_free(struct mrc_fabric *fabric);
/* Removes a hop before the first packet. */
void mrc_fabric_remove(struct mrc_fabric *fabric, uint32_t hop);
/* The state that a hop has of its own, made now if it has none. */
struct mrc_hop_own *mrc_fabric_own(struct mrc_fabric *fabric, uint32_t hop);
/* A packet leaves its host through the port of its plane. */
void mrc_fabric_send(struct mrc_fabric *fabric, struct mrc_frame *packet);
/* A packet has reached the end of a hop. */
void mrc_fabric_arrive(struct mrc_fabric *fabric, uint32_t hop, struct mrc_frame *packet);
/* A hop is free: it sends the first packet that waits. */
void mrc_fabric_drain(struct mrc_fabric *fabric, uint32_t hop);
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

/* Faults: the hops that a fault affects, and its effect on them. */

/* Adds a fault to a hop; faults of other kinds stay. */
void mrc_fault_add(struct mrc_hop_own *hop, const struct mrc_sim_fault *fault);
/* A fault begins or ends. */
void mrc_fault_switch(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault, bool begins);
/* Sets the property that the target's links have without faults to the fault's value. */
void mrc_fault_rebase(struct mrc_fabric *fabric, const struct mrc_sim_fault *fault);
/* Removes the target's links, before the first packet. */
void mrc_fault_remove(struct mrc_fabric *fabric, const struct mrc_sim_fault *target);
