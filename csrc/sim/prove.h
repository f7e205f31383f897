/* SPDX-License-Identifier: Apache-2.0 */
/* Probes of the EVs of a new QP, before it sends: what real hosts do when they connect. Each QP
   does so alone, so that it measures round trips without queues. */
#ifndef MRC_SIM_PROVE_H
#define MRC_SIM_PROVE_H

#include <stdint.h>

struct mrc_event;
struct mrc_sim;

/* The probes under way: at most one in each plane. */
struct mrc_sim_proof {
  uint32_t waiting;  /* probes that have not ended */
  uint32_t answered; /* mask of the planes in which an answer came */
};

/* Probes every EV of an end of a flow, whose QP is in RTR, at full size and runs the simulation
   until each was answered or given up: those are ASSUMED_BAD. */
void mrc_prove_evs(struct mrc_sim *sim, uint32_t flow, uint32_t end);
/* A probe has ended. */
void mrc_prove_on_answer(struct mrc_sim *sim, const struct mrc_event *event);

#endif
