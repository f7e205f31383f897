/* SPDX-License-Identifier: Apache-2.0 */
/* TCP flows on the hosts of the simulator, beside whatever the other flows run on: each over one
   path of one plane, in the data class, without ECN. A host sends their segments until its port
   holds half as much again as the send buffer of the engine, so that neither starves the other. */
#ifndef MRC_SIM_TCP_HOST_H
#define MRC_SIM_TCP_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "sim/frame.h"
#include "sim/tcp.h"

struct mrc_sim;
struct mrc_sim_flow_info;

/* Both ends of a flow. */
struct mrc_tcp_flow {
  struct mrc_tcp_sender sender;
  struct mrc_tcp_receiver receiver;
  uint64_t bytes_received;
  uint32_t labels[2]; /* of the packets of each end: what switches hash, where they do */
  uint32_t next_at;   /* number + 1 of the next TCP flow that begins at the same host */
  uint32_t path;
  uint8_t plane; /* from 0 */
  bool has_begun;
};

void mrc_tcp_host_connect(struct mrc_sim *sim, uint32_t flow);
void mrc_tcp_host_free(struct mrc_tcp_flow *tcp);
/* The flow begins to send. */
void mrc_tcp_host_start(struct mrc_sim *sim, uint32_t flow);
/* Whether a packet is one of TCP's; then the host that it has reached takes it here. */
bool mrc_tcp_host_is_ours(const struct mrc_frame *packet);
void mrc_tcp_host_receive(struct mrc_sim *sim, const struct mrc_frame *packet);
/* The host has its turn: the next one is due at the time returned. */
uint64_t mrc_tcp_host_turn(struct mrc_sim *sim, uint32_t host);
/* Fills in what an engine would tell of a flow. */
void mrc_tcp_host_info(const struct mrc_tcp_flow *tcp, struct mrc_sim_flow_info *info);

#endif
