/* SPDX-License-Identifier: Apache-2.0 */
/* MRC on the simulated hosts: an engine on each, and its driver, which turns bursts into packets
   and packets into calls. */
#pragma once

#include "sim/fabric_watch.h"
#include "sim/host.h"
#include "virtual/memory.h"

#define MRC_ENGINES_KEY 1 /* of the shared memory, at every host */

struct mrc_engines {
  struct mrc_sim_hosts *hosts;
  struct mrc_fabric_watch *watch;      /* 0: no auditors */
  const struct mrc_sim_memory *memory; /* a region for the hosts of each shard, or one for all */
  uint8_t *scratch;                    /* a packet in one piece, for the engine that receives it */
  uint32_t shards;
  struct mrc_scratch **shared; /* by shard: of its engines */
  mrc_engine **of;             /* by host */
};

/* The memory of a host. */
uint8_t *mrc_engines_memory(const struct mrc_engines *engines, uint32_t host);
/* Room for a packet in one piece. */
uint8_t *mrc_engines_new_scratch(void);

/* The caller sets hosts, watch, memory and shards first. */
void mrc_engines_create(struct mrc_engines *engines);
void mrc_engines_free(struct mrc_engines *engines);

/* See struct mrc_transport_calls. */
void mrc_engines_receive(void *engines, uint32_t host, const struct mrc_frame *packet);
uint64_t mrc_engines_turn(void *engines, uint32_t host);
void mrc_engines_port_room(void *engines, uint32_t host, uint32_t port);
void mrc_engines_port_up(void *engines, uint32_t host, uint32_t port, bool up);
