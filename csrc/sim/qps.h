/* SPDX-License-Identifier: Apache-2.0 */
/* The QPs of flows over MRC, one at each end, created and connected by the simulator in place of
   the OOB exchange. */
#ifndef MRC_SIM_QPS_H
#define MRC_SIM_QPS_H

#include "sim/engines.h"

/* The transport whose `transport` is struct mrc_engines. A flow that connects has QPs in RTR. */
extern const struct mrc_transport_calls mrc_qps_transport;

/* The QPs of a flow may send from now on. */
void mrc_qps_open(struct mrc_engines *engines, uint32_t flow);
/* The time is over in which a flow may use some of its paths alone. */
void mrc_qps_allow(struct mrc_engines *engines, uint32_t flow);

/* Probes of the EVs of a new QP, before it sends: what real hosts do when they connect. Each QP
   does so alone, so that it measures round trips without queues. */

/* The probes of one QP under way: one path at a time, at most one probe in each plane. */
struct mrc_sim_proof {
  struct mrc_engines *engines;
  uint32_t flow;
  uint32_t end;
  uint32_t n_paths;  /* of each plane; EVs lie plane by plane */
  uint32_t path;     /* being probed */
  int tries;         /* of it so far */
  uint32_t waiting;  /* probes that have not ended */
  uint32_t answered; /* mask of the planes in which an answer came, of this path */
};

/* Begins with an end of a flow, whose QP is in RTR. */
void mrc_prove_begin(struct mrc_sim_proof *proof, uint32_t flow, uint32_t end);
/* Once no probe is waiting: sends the next ones, at full size. False when every EV was answered or
   given up: those are ASSUMED_BAD. */
bool mrc_prove_next(struct mrc_sim_proof *proof);
/* A probe has ended. */
void mrc_prove_on_answer(struct mrc_sim_proof *proof, const struct mrc_event *event);

#endif
