/* SPDX-License-Identifier: Apache-2.0 */
/* The QPs of flows over MRC, one at each end, created and connected by the simulator in place of
   the OOB exchange. */
#pragma once

#include "sim/engines.h"

/* The transport whose `transport` is struct mrc_engines. `connect` leaves the QPs of a flow in
   RTR. */
extern const struct mrc_transport_calls mrc_qps_transport;

/* Whether congestion control accepts the rates and times of this configuration. */
bool mrc_qps_can_control(const struct mrc_sim_config *config);

/* The QPs of a flow may send from now on. */
void mrc_qps_open(struct mrc_engines *engines, uint32_t flow);
/* Allows the paths of a flow that were DENIED until paths_until_ns. */
void mrc_qps_allow(struct mrc_engines *engines, uint32_t flow);

/* Probes of the EVs of a new QP before it sends, as real hosts send them when they connect. One QP
   probes at a time, so that it measures round trips without queues. */

/* The probing of one QP: one path at a time, at most one probe in each plane. */
struct mrc_sim_proof {
  struct mrc_engines *engines;
  uint32_t flow;
  uint32_t end;
  uint32_t first_ev[MRC_SIM_MAX_PLANES + 1]; /* of each plane; EVs are ordered by plane */
  uint32_t n_paths;                          /* of the plane with the most */
  uint32_t path;                             /* current */
  int tries;                                 /* of the current path so far */
  uint32_t waiting;                          /* probes without a result */
  uint32_t answered; /* mask of the planes in which the current path answered */
};

/* Starts with an end of a flow; its QP must be in RTR. */
void mrc_prove_begin(struct mrc_sim_proof *proof, uint32_t flow, uint32_t end);
/* Sends the next probes, at full size. Call it when no probe is waiting. False when every EV has
   answered, or is ASSUMED_BAD after the last try. */
bool mrc_prove_next(struct mrc_sim_proof *proof);
/* Gives both QPs of a flow, in RTR, what probes of their EVs would have found, without a packet. An
   EV over a link that loses every packet is ASSUMED_BAD; with ECMP the links of an EV are unknown.
 */
void mrc_qps_compute(struct mrc_engines *engines, uint32_t flow);
/* A probe has ended. */
void mrc_prove_on_answer(struct mrc_sim_proof *proof, const struct mrc_event *event);
