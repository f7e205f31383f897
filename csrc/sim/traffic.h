/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic: decides when the writes of a flow are posted, counts completions, and records the events
   of the transports. */
#pragma once

#include "sim/baseline.h"
#include "sim/engines.h"
#include "sim/host.h"
#include "sim/record.h"

struct mrc_sim_traffic {
  struct mrc_sim_hosts *hosts;
  struct mrc_sim_record *record;
  struct mrc_fabric_watch *watch; /* 0: no auditors */
  struct mrc_sim_proof *proof;    /* gets the results of probes */
  uint32_t n_unfinished;          /* flows with unfinished writes */
  uint64_t done_ns;               /* when the last of them finished */
  uint32_t steps_done;            /* number + 1 of the first flow that has done its step; 0: none */
};

/* Receives completions and events; its `traffic` is struct mrc_sim_traffic. */
extern const struct mrc_host_results mrc_traffic_results;

/* The number of the new flow, or -EINVAL. */
int mrc_traffic_add(struct mrc_sim_traffic *traffic, const struct mrc_sim_flow_config *config);
/* The transport of a flow. */
const struct mrc_transport *mrc_traffic_transport(const struct mrc_sim_traffic *traffic,
                                                  uint32_t flow);
/* Schedules the first writes, once all flows are connected. */
void mrc_traffic_start(struct mrc_sim_traffic *traffic);
/* After a window, for each shard: counts the flows that have done a step. Where they are the last
   of their job, the next step begins: it schedules the flows of the job in `world`. */
void mrc_traffic_end_steps(struct mrc_sim_traffic *traffic, struct mrc_world *world);

/* ---- The parts of a simulation ---- */

/* The parts of a simulation. Each part uses only the layers below it; see README.md. */

/* The parts that run events: one set for each shard, which share hops, hosts, engines and flows;
   and one for what concerns all of them, before the run and between its windows. */
struct mrc_sim_parts {
  struct mrc_world world;
  struct mrc_sim_record record;
  struct mrc_fabric fabric;
  struct mrc_sim_hosts hosts;
  struct mrc_engines engines;
  struct mrc_baseline gbn;
  struct mrc_baseline tcp;
  struct mrc_sim_traffic traffic;
};

struct mrc_sim {
  struct mrc_sim_parts whole;
  struct mrc_sim_parts **shards; /* 0: the run has not begun */
  uint32_t n_shards;
  struct mrc_heap events; /* of the whole: faults, samples, paths that are allowed */
  uint64_t lookahead_ns;  /* no packet goes from shard to shard in less time */
  struct mrc_sim_flows flows;
  struct mrc_fabric_watch watch;
  struct mrc_sim_proof proof;
  struct mrc_record_file file;
  struct mrc_sim_fault *faults;
  uint32_t n_faults;
  struct mrc_sim_memory memory;
  bool started;
};

/* Gives each part pointers to the parts below it. */
void mrc_sim_join(struct mrc_sim *sim, struct mrc_sim_parts *parts);
/* Processes the next event of these parts; there must be one. */
void mrc_sim_step(struct mrc_sim_parts *parts);
