/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic: it decides when a write of a flow is posted, counts what completes, and notes what the
   transports tell. */
#ifndef MRC_SIM_TRAFFIC_H
#define MRC_SIM_TRAFFIC_H

#include "sim/host.h"
#include "sim/qps.h"
#include "sim/record.h"

struct mrc_sim_traffic {
  struct mrc_sim_hosts *hosts;
  struct mrc_sim_record *record;
  struct mrc_fabric_watch *watch; /* 0: no auditors */
  struct mrc_sim_proof *proof;    /* which the answers of probes are for */
  uint32_t n_unfinished;          /* flows with writes that have not ended */
};

/* What transports tell, for which `traffic` is struct mrc_sim_traffic. */
extern const struct mrc_host_results mrc_traffic_results;

/* The number of the new flow, or -EINVAL. */
int mrc_traffic_add(struct mrc_sim_traffic *traffic, const struct mrc_sim_flow_config *config);
/* What the flow runs on. */
const struct mrc_transport *mrc_traffic_transport(const struct mrc_sim_traffic *traffic,
                                                  uint32_t flow);
/* Schedules the first writes, once all flows are connected. */
void mrc_traffic_start(struct mrc_sim_traffic *traffic);
/* It is time for the next write of a flow. */
void mrc_traffic_on_time(struct mrc_sim_traffic *traffic, uint32_t flow);

#endif
