/* SPDX-License-Identifier: Apache-2.0 */
/* The fabric: nodes, the hops between them, and how packets find their way. It moves packets from
   host to host; what hosts do with them is in host.h, why they are sent in traffic.h. */
#ifndef MRC_SIM_FABRIC_H
#define MRC_SIM_FABRIC_H

#include <stdio.h>

#include "mrc.h"
#include "sim/agenda.h"
#include "sim/fabric_watch.h"
#include "sim/gbn_host.h"
#include "sim/hop.h"
#include "sim/host.h"
#include "sim/prove.h"
#include "sim/record.h"
#include "sim/sim.h"
#include "sim/tcp_host.h"
#include "sim/traffic.h"

enum mrc_sim_event_kind {
  MRC_SIM_ON_ARRIVAL, /* index: hop; pointer: packet */
  MRC_SIM_ON_DRAIN,   /* index: hop that is free again */
  MRC_SIM_ON_RUN,     /* index: host */
  MRC_SIM_ON_POST,    /* index: flow */
  MRC_SIM_ON_ALLOW,   /* index: flow */
  MRC_SIM_ON_FAULT,   /* index: fault */
  MRC_SIM_ON_HEAL,    /* index: fault */
  MRC_SIM_ON_SAMPLE
};

/* What stands at the edge of the fabric: simulated hosts, or the ports to real ones. */
struct mrc_fabric_edge {
  /* A packet has reached a host, and is its own from now on. */
  void (*arrive)(struct mrc_sim *sim, uint32_t host, struct mrc_frame *packet);
  /* The host's end of a hop has sent a packet. */
  void (*drained)(struct mrc_sim *sim, uint32_t host, const struct mrc_hop *hop);
};

struct mrc_sim {
  struct mrc_sim_config config;
  const struct mrc_fabric_edge *edge;
  uint64_t now_ns;
  uint64_t origin_ns; /* when the time began that is told outside; MRC_NEVER: it has not */
  struct mrc_prng prng;
  struct mrc_agenda agenda;
  struct mrc_frame_pool pool;
  struct mrc_hop *hops;
  uint32_t n_hops;
  struct mrc_sim_host *hosts;
  struct mrc_sim_traffic traffic;
  struct mrc_sim_proof proof;
  struct mrc_sim_record record;
  struct mrc_sim_fault *faults;
  uint32_t n_faults;
  uint8_t *memory;
  uint8_t *scratch;  /* a packet in one piece, for the engine that receives it */
  uint32_t *touched; /* QP numbers whose state the auditors have not looked at yet */
  uint32_t n_touched;
  uint32_t touched_capacity;
  bool started;
};

/* Hops of one plane, by number: hosts to T0s, T0s to hosts, T0s to T1s, T1s to T0s. */
uint32_t mrc_fabric_host_up(const struct mrc_sim *sim, uint32_t plane, uint32_t host);
uint32_t mrc_fabric_host_down(const struct mrc_sim *sim, uint32_t plane, uint32_t host);
uint32_t mrc_fabric_t0_up(const struct mrc_sim *sim, uint32_t plane, uint32_t t0, uint32_t t1);
uint32_t mrc_fabric_t1_down(const struct mrc_sim *sim, uint32_t plane, uint32_t t0, uint32_t t1);

/* Which T0 serves a host, in every plane. */
static inline uint32_t mrc_fabric_t0_of(const struct mrc_sim *sim, uint32_t host) {
  return host / (sim->config.hosts / sim->config.t0);
}
/* Paths of one plane between two hosts. */
static inline uint32_t mrc_fabric_n_paths(const struct mrc_sim *sim, uint32_t a, uint32_t b) {
  return mrc_fabric_t0_of(sim, a) == mrc_fabric_t0_of(sim, b) ? 1 : sim->config.t1;
}
/* The uSIDs that a packet starts with, the first in the top 16 bits; 0 under ECMP. */
uint64_t mrc_fabric_usids(const struct mrc_sim *sim, uint32_t from, uint32_t to, uint32_t path);

/* Makes the hops of a fabric whose configuration is sound. */
void mrc_fabric_build(struct mrc_sim *sim);
/* A packet joins the queue of a hop. */
void mrc_fabric_enter(struct mrc_sim *sim, uint32_t hop, struct mrc_frame *packet);
/* A packet has reached the end of a hop. */
void mrc_fabric_arrive(struct mrc_sim *sim, uint32_t hop, struct mrc_frame *packet);
/* A hop has sent its last packet and takes the next. */
void mrc_fabric_drain(struct mrc_sim *sim, uint32_t hop);
/* Adds a fault to a hop; those of other kinds stay. */
void mrc_fabric_afflict(struct mrc_hop *hop, const struct mrc_sim_fault *fault);
/* A fault begins or ends. */
void mrc_fabric_fault(struct mrc_sim *sim, const struct mrc_sim_fault *fault, bool begins);
/* Rate or delay of the links of a target, when no fault befalls them, are the fault's. */
void mrc_fabric_rebase(struct mrc_sim *sim, const struct mrc_sim_fault *fault);

/* `at_ns`: as hosts and fabric count, whose clock runs while QPs are proved; and as it is told
   outside, from the origin on. */
void mrc_sim_schedule(struct mrc_sim *sim, uint64_t at_ns, enum mrc_sim_event_kind kind,
                      uint32_t index, void *pointer);
void mrc_sim_schedule_at(struct mrc_sim *sim, uint64_t at_ns, enum mrc_sim_event_kind kind,
                         uint32_t index);
/* The time as it is told outside; 0 before it begins. */
static inline uint64_t mrc_sim_time(const struct mrc_sim *sim) {
  return sim->now_ns > sim->origin_ns ? sim->now_ns - sim->origin_ns : 0;
}
/* Takes the next event, of which there must be one. */
void mrc_sim_step(struct mrc_sim *sim);

#endif
