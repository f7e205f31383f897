/* SPDX-License-Identifier: Apache-2.0 */
/* TCP flows on the hosts of the simulator, beside whatever the other flows run on: each over one
   path of one plane, in the data class, without ECN. A host sends their segments until its port
   holds half as much again as the send buffer of the engine, so that neither starves the other. */
#ifndef MRC_SIM_TCP_HOST_H
#define MRC_SIM_TCP_HOST_H

#include "sim/host.h"

struct mrc_tcp_hosts {
  struct mrc_sim_hosts *hosts;
  const uint8_t *memory;
  uint32_t *first; /* number + 1 of the first flow that begins at a host */
};

/* The transport whose `transport` is struct mrc_tcp_hosts. The first post of a flow starts it. */
extern const struct mrc_transport_calls mrc_tcp_transport;

/* The other fields are set. */
void mrc_tcp_hosts_create(struct mrc_tcp_hosts *tcp);
void mrc_tcp_hosts_free(struct mrc_tcp_hosts *tcp);

#endif
