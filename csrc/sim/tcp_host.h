/* SPDX-License-Identifier: Apache-2.0 */
/* TCP flows on the simulated hosts, beside flows of other transports: each over one path of one
   plane, in the data class, without ECN. A host sends segments until its port holds 1.5 times the
   engine's send buffer, so that neither starves the other. */
#pragma once

#include "sim/host.h"

struct mrc_tcp_hosts {
  struct mrc_sim_hosts *hosts;
  const uint8_t *memory;
  uint32_t *first; /* by host: number + 1 of the first flow that begins there */
};

/* The transport whose `transport` is struct mrc_tcp_hosts. The first post of a flow starts it. */
extern const struct mrc_transport_calls mrc_tcp_transport;

/* The caller sets hosts and memory first. */
void mrc_tcp_hosts_create(struct mrc_tcp_hosts *tcp);
void mrc_tcp_hosts_free(struct mrc_tcp_hosts *tcp);
