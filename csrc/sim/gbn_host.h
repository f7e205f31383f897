/* SPDX-License-Identifier: Apache-2.0 */
/* Flows of go-back-N on the hosts of the simulator: what an engine and its driver do for MRC. The
   packets are RoCE's: BTH, RETH on the first of a write, AETH, ICRC. */
#ifndef MRC_SIM_GBN_HOST_H
#define MRC_SIM_GBN_HOST_H

#include "sim/host.h"

struct mrc_gbn_hosts {
  struct mrc_sim_hosts *hosts;
  const uint8_t *memory;
  uint32_t (*first)[2]; /* number + 1 of the first flow that begins, and that ends, at a host */
};

/* The transport whose `transport` is struct mrc_gbn_hosts. */
extern const struct mrc_transport_calls mrc_gbn_transport;

/* The other fields are set. */
void mrc_gbn_hosts_create(struct mrc_gbn_hosts *gbn);
void mrc_gbn_hosts_free(struct mrc_gbn_hosts *gbn);

#endif
