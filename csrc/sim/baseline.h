/* SPDX-License-Identifier: Apache-2.0 */
/* Flows of the baselines on the simulated hosts, each over one path of one plane, in place of MRC's
   engines and drivers. Packets of go-back-N are RoCE's: BTH, RETH on the first of a write, AETH,
   ICRC. TCP flows are beside flows of other transports, in the data class, without ECN; a host
   sends their segments until its port holds 1.5 times the engine's send buffer, so that neither
   starves the other. */
#pragma once

#include "sim/host.h"

struct mrc_baseline {
  struct mrc_sim_hosts *hosts;
  const uint8_t *memory;
  uint32_t (*first)[2]; /* by host: number + 1 of the first flow that begins, and ends, there */
  bool tcp;             /* not go-back-N */
};

/* The transport whose `transport` is struct mrc_baseline. The first post of a TCP flow starts it.
 */
extern const struct mrc_transport_calls mrc_baseline_transport;

/* The caller sets all but `first` first. */
void mrc_baseline_create(struct mrc_baseline *baseline);
void mrc_baseline_free(struct mrc_baseline *baseline);
