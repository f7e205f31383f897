/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic: flows of writes, each over a QP of its own, connected by the simulator in place of the
   OOB exchange. It decides when a write is posted. */
#ifndef MRC_SIM_TRAFFIC_H
#define MRC_SIM_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

#include "mrc.h"
#include "sim/sim.h"

struct mrc_fabric_watch;
struct mrc_gbn_flow;
struct mrc_sim;
struct mrc_tcp_flow;

struct mrc_sim_flow {
  struct mrc_sim_flow_config config;
  struct mrc_ev_attr *evs[2]; /* of the QP at `from` and of the one at `to` */
  int n_evs;
  struct mrc_gbn_flow *gbn;       /* both ends, when the transport is go-back-N; 0 otherwise */
  struct mrc_tcp_flow *tcp;       /* both ends of a TCP flow; 0: a QP */
  struct mrc_fabric_watch *watch; /* its auditors; 0: none */
  uint32_t plane;                 /* the only one, from 0, when a QP has a single path */
  uint32_t next_after;            /* number + 1 of another flow that waits for the same one */
  uint32_t dependents; /* number + 1 of the first flow whose writes wait for ours; 0: none */
  uint32_t wanted;     /* writes that the traffic asked for, posted or not */
  uint32_t posted;
  uint32_t completed;
  uint32_t failed;
  uint64_t repeated;   /* see mrc_sim_flow_info */
  uint32_t arrived;    /* writes complete at `to`; only counted when another flow waits */
  uint64_t *wanted_ns; /* of each write */
  uint64_t first_ns;
  uint64_t last_ns;
};

struct mrc_sim_traffic {
  struct mrc_sim_flow *flows;
  uint32_t n_flows;
  uint32_t capacity;
  uint32_t n_unfinished; /* flows with writes that have not ended */
};

int mrc_traffic_add(struct mrc_sim *sim, const struct mrc_sim_flow_config *config);
/* Creates and connects all QPs, one after the other, which takes time when they are probed. */
void mrc_traffic_connect(struct mrc_sim *sim);
/* Schedules the first writes. */
void mrc_traffic_start(struct mrc_sim *sim);
void mrc_traffic_free(struct mrc_sim *sim);

/* It is time for the next write of a flow. */
void mrc_traffic_on_time(struct mrc_sim *sim, uint32_t flow);
/* The time is over in which a flow may use some of its paths alone. */
void mrc_traffic_allow(struct mrc_sim *sim, uint32_t flow);
void mrc_traffic_on_completion(struct mrc_sim *sim, const struct mrc_wc *wc);
/* A packet for this QP brought payload that it has already, and no fault duplicated it. */
void mrc_traffic_on_repeated(struct mrc_sim *sim, uint32_t qpn);
void mrc_traffic_on_event(struct mrc_sim *sim, const struct mrc_event *event);

/* Whether the controller denies this EV of the flow until its `paths_until_ns`. */
bool mrc_traffic_is_denied(const struct mrc_sim_flow *flow, const struct mrc_ev_attr *ev);

/* QP number of a flow's sender (end 0) or receiver (end 1). */
uint32_t mrc_traffic_qpn(uint32_t flow, uint32_t end);
/* And back: the flow that a QP number belongs to. */
uint32_t mrc_traffic_flow_of(uint32_t qpn);
uint32_t mrc_traffic_end_of(uint32_t qpn);

#endif
