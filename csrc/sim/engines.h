/* SPDX-License-Identifier: Apache-2.0 */
/* Passes the packets and completions of all hosts to the auditors of the flows, if the
   configuration sets `audit`. Each flow then has its own memory, with content. After an event only
   the QPs that it touched are checked. */
#pragma once

#include "core/base.h"
#include "sim/hop.h"
#include "sim/host.h"
#include "sim/record.h"
#include "virtual/audit.h"
#include "virtual/link.h"

#define MRC_FABRIC_WATCH_MAX_BYTES (1u << 28) /* of all writes of a flow */

/* The auditors of a flow. The auditor of MRC_FROM owns the memory. */
struct mrc_flow_audits {
  struct mrc_audit ends[2];
  bool touched[2]; /* since the last check of its state */
};

struct mrc_fabric_watch {
  const struct mrc_sim_config *config;
  const struct mrc_sim_flows *flows;
  struct mrc_flow_audits **of; /* by flow; 0: the flow has no QPs */
  uint32_t n;
  uint32_t *touched; /* numbers of QPs whose state is not checked yet */
  uint32_t n_touched;
  uint32_t touched_capacity;
};

void mrc_fabric_watch_free(struct mrc_fabric_watch *watch);
void mrc_fabric_watch_completion(struct mrc_fabric_watch *watch, const struct mrc_wc *wc);
/* An EV of this QP has changed its state. */
void mrc_fabric_watch_rotation(const struct mrc_fabric_watch *watch, uint32_t qpn);
/* The simulation is about to end: checks the memory of the flows without unfinished or failed
   writes. */
void mrc_fabric_watch_end(const struct mrc_fabric_watch *watch);

/* ---- The engines of the hosts ---- */

/* MRC on the simulated hosts: an engine on each, and its driver, which turns bursts into packets
   and packets into calls. */

#define MRC_ENGINES_KEY 1 /* of the shared memory, at every host */

/* Regions of at least `bytes` bytes, all zero, one behind the other. The last one serves all
   further hosts. Folded regions map one small piece repeatedly, so that it stays in the CPU cache:
   only if the contents do not matter. */
struct mrc_sim_memory {
  uint8_t *at;
  uint64_t stride; /* from one region to the next */
  uint32_t regions;
};

struct mrc_engines {
  struct mrc_sim_hosts *hosts;
  struct mrc_fabric_watch *watch;      /* 0: no auditors */
  const struct mrc_sim_memory *memory; /* a region for the hosts of each shard, or one for all */
  uint8_t *scratch;                    /* a packet in one piece, for the engine that receives it */
  uint32_t shards;
  struct mrc_scratch **shared; /* by shard: of its engines */
  mrc_engine **of;             /* by host */
};

/* Room for a packet in one piece. */
uint8_t *mrc_engines_new_scratch(void);

/* The caller sets hosts, watch, memory and shards first. */
void mrc_engines_create(struct mrc_engines *engines);
void mrc_engines_free(struct mrc_engines *engines);

/* ---- QPs ---- */

/* The QPs of flows over MRC, one at each end, created and connected by the simulator in place of
   the OOB exchange. */

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
