/* SPDX-License-Identifier: Apache-2.0 */
/* Flows of go-back-N on the hosts of the simulator: what an engine and its driver do for MRC. The
   packets are RoCE's: BTH, RETH on the first of a write, AETH, ICRC. */
#ifndef MRC_SIM_GBN_HOST_H
#define MRC_SIM_GBN_HOST_H

#include <stdint.h>

#include "sim/frame.h"
#include "sim/gbn.h"

struct mrc_sim;
struct mrc_sim_flow;
struct mrc_sim_flow_info;

/* Both ends of a flow. */
struct mrc_gbn_flow {
  struct mrc_gbn_sender sender;
  struct mrc_gbn_receiver receiver;
  uint64_t bytes_received;
  uint32_t packets_per_write;
  uint32_t labels[2];  /* of the packets of each end: what switches hash */
  uint32_t next_at[2]; /* number + 1 of the next flow that begins, or ends, at the same host */
  uint8_t plane;       /* from 0 */
  bool has_failed;
};

/* Gives a flow its path and its window. */
void mrc_gbn_host_connect(struct mrc_sim *sim, uint32_t flow);
void mrc_gbn_host_free(struct mrc_gbn_flow *gbn);
/* One write more is to be sent; -EPERM after a failure. */
int mrc_gbn_host_post(struct mrc_sim *sim, uint32_t flow);
/* The host takes a packet; the host has its turn: the next one is due at the time returned. */
void mrc_gbn_host_receive(struct mrc_sim *sim, const struct mrc_frame *packet);
uint64_t mrc_gbn_host_turn(struct mrc_sim *sim, uint32_t host);
/* Fills in what an engine would tell of a flow. */
void mrc_gbn_host_info(const struct mrc_gbn_flow *gbn, struct mrc_sim_flow_info *info);

#endif
