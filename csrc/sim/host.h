/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated hosts: what arrives waits until the host wakes, then each transport has its turn. A
   port of a host is full while more waits in it than the send buffer holds. Hosts know no switch
   and no protocol. */
#ifndef MRC_SIM_HOST_H
#define MRC_SIM_HOST_H

#include "sim/fabric.h"
#include "sim/flow.h"

/* What a host sends and receives by: an engine of MRC, go-back-N, TCP. */
enum mrc_host_transport { MRC_HOST_MRC, MRC_HOST_GBN, MRC_HOST_TCP, MRC_HOST_TRANSPORTS };

struct mrc_transport_calls {
  /* The host takes a packet, which stays the caller's. */
  void (*receive)(void *transport, uint32_t host, const struct mrc_frame *packet);
  /* The host has its turn; returns when the next is due. */
  uint64_t (*turn)(void *transport, uint32_t host);
  /* A port that was full for it has room again, or has lost or got its carrier. 0: no matter. */
  void (*port_room)(void *transport, uint32_t host, uint32_t port);
  void (*port_up)(void *transport, uint32_t host, uint32_t port, bool up);
  /* Makes the ends of a flow. */
  void (*connect)(void *transport, uint32_t flow);
  /* Sends one write more of a flow. An error when the flow has failed for good. */
  int (*post)(void *transport, uint32_t flow);
  /* Fills in what the ends of a flow have counted; the payload that came in a plane, from 1; 0: all
     of it in the flow's only plane. */
  void (*info)(const void *transport, uint32_t flow, struct mrc_sim_flow_info *info);
  uint64_t (*plane_bytes)(const void *transport, uint32_t flow, uint32_t plane);
};

struct mrc_transport {
  const struct mrc_transport_calls *calls; /* 0: no flow uses it */
  void *transport;
};

/* Where completions and events of all transports go. `traffic` is that of struct mrc_sim_hosts. */
struct mrc_host_results {
  void (*on_completion)(void *traffic, const struct mrc_wc *wc);
  void (*on_event)(void *traffic, const struct mrc_event *event);
};

struct mrc_sim_host {
  struct mrc_frame *inbox; /* arrived, not yet taken; the oldest first */
  struct mrc_frame *inbox_last;
  uint64_t run_at_ns;                 /* the earliest run that is due */
  uint64_t late_until_ns;             /* a busy host does not run before */
  uint64_t timer_at_ns;               /* an event for a deadline comes then, or earlier */
  uint32_t full[MRC_HOST_TRANSPORTS]; /* bit p: the port of plane p takes no more */
  uint32_t down;                      /* bit p: the port of plane p has no carrier */
};

struct mrc_sim_hosts {
  struct mrc_world *world;
  struct mrc_fabric *fabric;
  struct mrc_sim_flows *flows;
  const struct mrc_host_results *results;
  void *traffic;
  struct mrc_transport transports[MRC_HOST_TRANSPORTS];
  struct mrc_sim_host *at;
};

/* The edge of the fabric, for which `edge` is the hosts. */
extern const struct mrc_fabric_edge mrc_sim_hosts_edge;

void mrc_sim_hosts_create(struct mrc_sim_hosts *hosts);
void mrc_sim_hosts_free(struct mrc_sim_hosts *hosts);
/* Packets that have arrived and were not taken. */
uint64_t mrc_sim_hosts_count_frames(const struct mrc_sim_hosts *hosts);

/* It is time to look whether the host has its turn. */
void mrc_sim_host_run(struct mrc_sim_hosts *hosts, uint32_t host);
/* Gives the host its turn now, after a call to a transport from outside. */
void mrc_sim_host_kick(struct mrc_sim_hosts *hosts, uint32_t host);
/* Whether a port, planes from 0, takes a packet of a transport. One that holds more than
   `limit_bytes` is full from now on. */
bool mrc_sim_host_takes(struct mrc_sim_hosts *hosts, uint32_t host,
                        enum mrc_host_transport transport, uint32_t plane, uint64_t limit_bytes);

#endif
