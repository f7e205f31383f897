/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated hosts: packets wait in an inbox until the host wakes, then each transport has its
   turn. A port of a host is full while more bytes wait in it than the send buffer holds. Hosts do
   not depend on switches or protocols. */
#pragma once

#include "sim/fabric.h"
#include "sim/record.h"

/* The transports of a host: an engine of MRC, go-back-N, TCP. */
enum mrc_host_transport { MRC_HOST_MRC, MRC_HOST_GBN, MRC_HOST_TCP, MRC_HOST_TRANSPORTS };

struct mrc_transport_calls {
  /* The host receives a packet, which the caller still owns. */
  void (*receive)(void *transport, uint32_t host, const struct mrc_frame *packet);
  /* Runs a turn of the host; returns when the next one is due. */
  uint64_t (*turn)(void *transport, uint32_t host);
  /* A full port has room again; a port has lost or got its carrier. 0: the transport ignores it. */
  void (*port_room)(void *transport, uint32_t host, uint32_t port);
  void (*port_up)(void *transport, uint32_t host, uint32_t port, bool up);
  /* Creates both ends of a flow. */
  void (*connect)(void *transport, uint32_t flow);
  /* Posts one more write of a flow. An error when the flow has failed. */
  int (*post)(void *transport, uint32_t flow);
  /* Fills in the counters of a flow. Returns the payload received in a plane, from 1; 0: every flow
     has only one plane. */
  void (*info)(const void *transport, uint32_t flow, struct mrc_sim_flow_info *info);
  uint64_t (*plane_bytes)(const void *transport, uint32_t flow, uint32_t plane);
};

struct mrc_transport {
  const struct mrc_transport_calls *calls; /* 0: no flow uses it */
  void *transport;
};

/* Receives the completions and events of all transports. `traffic` comes from struct
   mrc_sim_hosts. */
struct mrc_host_results {
  void (*on_completion)(void *traffic, const struct mrc_wc *wc);
  void (*on_event)(void *traffic, const struct mrc_event *event);
};

struct mrc_sim_host {
  struct mrc_frame *inbox; /* arrived, not yet received by a transport; oldest first */
  struct mrc_frame *inbox_last;
  uint64_t run_at_ns;                 /* the earliest run that is due */
  uint64_t late_until_ns;             /* a busy host does not run earlier */
  uint64_t timer_at_ns;               /* a timer event is scheduled for then */
  struct mrc_prng noise;              /* of its wake-ups */
  uint32_t full[MRC_HOST_TRANSPORTS]; /* bit p: the port of plane p is full */
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

/* The edge of the fabric; its `edge` is struct mrc_sim_hosts. */
extern const struct mrc_fabric_edge mrc_sim_hosts_edge;

void mrc_sim_hosts_create(struct mrc_sim_hosts *hosts);
void mrc_sim_hosts_free(struct mrc_sim_hosts *hosts);
/* Packets in the inboxes. */
uint64_t mrc_sim_hosts_count_frames(const struct mrc_sim_hosts *hosts);

/* Runs a turn of the host if one is due. */
void mrc_sim_host_run(struct mrc_sim_hosts *hosts, uint32_t host);
/* Schedules a turn of the host as soon as possible. Call it after a call to a transport from
   outside. */
void mrc_sim_host_kick(struct mrc_sim_hosts *hosts, uint32_t host);
/* Whether the port of a plane, from 0, accepts a packet of a transport. A port that holds more than
   `limit_bytes` is full from now on. */
bool mrc_sim_host_takes(struct mrc_sim_hosts *hosts, uint32_t host,
                        enum mrc_host_transport transport, uint32_t plane, uint64_t limit_bytes);
