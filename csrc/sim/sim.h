/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator: engines on the hosts of a multi-plane Clos network, in virtual time. One seed
   decides everything. Python sees the part between the two cdef markers. */
#pragma once

#include "sim/scenario.h"

/* cdef begin */

typedef struct mrc_sim mrc_sim;

/* Why no simulation has this configuration, in one sentence; 0: it can. */
const char *mrc_sim_refusal(const struct mrc_sim_config *config);
/* Returns NULL for a configuration that is refused. */
mrc_sim *mrc_sim_create(const struct mrc_sim_config *config);
void mrc_sim_destroy(mrc_sim *sim);
/* Before the first run. The number of the flow, or -EINVAL. */
int mrc_sim_add_flow(mrc_sim *sim, const struct mrc_sim_flow_config *config);
/* Before the first run. 0 or -EINVAL. */
int mrc_sim_add_fault(mrc_sim *sim, const struct mrc_sim_fault *fault);
/* Before the first run: sets the rate, delay, loss or MTU of a target's links for the whole run, in
   the form of a fault of that kind. 0 or -EINVAL. */
int mrc_sim_set_links(mrc_sim *sim, const struct mrc_sim_fault *change);
/* Before the first flow: removes the links of a target, in both directions. 0 or -EINVAL. */
int mrc_sim_remove_links(mrc_sim *sim, const struct mrc_sim_fault *target);
/* Writes a line for every packet sent, lost, trimmed or delivered from now on. 0 or -errno. */
int mrc_sim_trace_to(mrc_sim *sim, const char *path);
/* Closes that file; 0, or the -errno with which it is not whole. */
int mrc_sim_end_trace(mrc_sim *sim);
/* Runs until `until_ns` (returns 0) or until every write is done (returns 1). */
int mrc_sim_run(mrc_sim *sim, uint64_t until_ns);

void mrc_sim_stats(const mrc_sim *sim, struct mrc_sim_stats *stats);
/* Payload that has arrived in all flows but those of TCP. */
uint64_t mrc_sim_received_bytes(const mrc_sim *sim);
/* 0 or -EINVAL. */
int mrc_sim_flow(const mrc_sim *sim, uint32_t flow, struct mrc_sim_flow_info *info);
/* The port of a T0 towards a host; 0 or -EINVAL. */
int mrc_sim_last_hop(const mrc_sim *sim, uint32_t host, uint32_t plane,
                     struct mrc_sim_port_info *info);
/* The ports of the links between T0s and T1s of a plane that exist: up, T0 by T0, then down. Copies
   up to `capacity` of them; returns how many there are. */
int mrc_sim_inner_ports(const mrc_sim *sim, uint32_t plane, struct mrc_sim_port_info *ports,
                        int capacity);
/* Each returns the number of items, and copies up to `capacity` of them, from the first on. */
int mrc_sim_samples(const mrc_sim *sim, struct mrc_sim_sample *samples, int capacity);
/* The payload received in a plane at the time of each sample, when samples_planes is set. */
int mrc_sim_plane_samples(const mrc_sim *sim, uint32_t plane, uint64_t *bytes, int capacity);
/* The payload received in a plane so far; 0 if the plane or flow does not exist. */
uint64_t mrc_sim_plane_bytes(const mrc_sim *sim, uint32_t flow, uint32_t plane);
int mrc_sim_events(const mrc_sim *sim, struct mrc_sim_event *events, int capacity);
int mrc_sim_messages(const mrc_sim *sim, struct mrc_sim_message *messages, int capacity);

/* cdef end */
