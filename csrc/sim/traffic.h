/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic: decides when the writes of a flow are posted, counts completions, and records the events
   of the transports. */
#pragma once

#include "sim/host.h"
#include "sim/qps.h"
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
/* The next write of a flow is due. */
void mrc_traffic_on_time(struct mrc_sim_traffic *traffic, uint32_t flow);
/* After a window, for each shard: counts the flows that have done a step. Where they are the last
   of their job, the next step begins: it schedules the flows of the job in `world`. */
void mrc_traffic_end_steps(struct mrc_sim_traffic *traffic, struct mrc_world *world);
