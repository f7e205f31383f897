/* SPDX-License-Identifier: Apache-2.0 */
/* Go-back-N flows on the simulated hosts, in place of MRC's engines and drivers. The packets are
   RoCE's: BTH, RETH on the first of a write, AETH, ICRC. */
#pragma once

#include "sim/host.h"

struct mrc_gbn_hosts {
  struct mrc_sim_hosts *hosts;
  const uint8_t *memory;
  uint32_t (*first)[2]; /* by host: number + 1 of the first flow that begins, and ends, there */
};

/* The transport whose `transport` is struct mrc_gbn_hosts. */
extern const struct mrc_transport_calls mrc_gbn_transport;

/* The caller sets hosts and memory first. */
void mrc_gbn_hosts_create(struct mrc_gbn_hosts *gbn);
void mrc_gbn_hosts_free(struct mrc_gbn_hosts *gbn);
