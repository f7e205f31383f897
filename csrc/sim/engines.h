/* SPDX-License-Identifier: Apache-2.0 */
/* MRC on the simulated hosts: an engine on each, and its driver, which turns bursts into packets
   and packets into calls. */
#ifndef MRC_SIM_ENGINES_H
#define MRC_SIM_ENGINES_H

#include "sim/fabric_watch.h"
#include "sim/host.h"

#define MRC_ENGINES_KEY 1 /* of the shared memory, at every host */

struct mrc_engines {
  struct mrc_sim_hosts *hosts;
  struct mrc_fabric_watch *watch; /* 0: no auditors */
  uint8_t *memory;                /* shared by all hosts */
  uint8_t *scratch;               /* a packet in one piece, for the engine that receives it */
  struct mrc_scratch *shared;     /* of all engines */
  mrc_engine **of;                /* by host */
};

/* The caller sets hosts, watch and memory first. */
void mrc_engines_create(struct mrc_engines *engines);
void mrc_engines_free(struct mrc_engines *engines);

/* See struct mrc_transport_calls. */
void mrc_engines_receive(void *engines, uint32_t host, const struct mrc_frame *packet);
uint64_t mrc_engines_turn(void *engines, uint32_t host);
void mrc_engines_port_room(void *engines, uint32_t host, uint32_t port);
void mrc_engines_port_up(void *engines, uint32_t host, uint32_t port, bool up);

#endif
