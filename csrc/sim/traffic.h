/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic: decides when the writes of a flow are posted, counts completions, and records the events
   of the transports. */
#ifndef MRC_SIM_TRAFFIC_H
#define MRC_SIM_TRAFFIC_H

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

#endif
