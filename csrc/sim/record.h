/* SPDX-License-Identifier: Apache-2.0 */
/* The flows: their configuration, progress and QP numbers. The ends of a flow are MRC_FROM and
   MRC_TO. */
#pragma once

#include <stdio.h>

#include "core/base.h"
#include "mrc.h"
#include "sim/agenda.h"
#include "sim/hop.h"
#include "sim/scenario.h"

enum { MRC_FROM, MRC_TO };
enum { MRC_FLOW_FIRST_QPN = 3 };

/* Where an EV of a QP leads. */
struct mrc_sim_ev {
  uint16_t path;
  uint8_t plane; /* from 0 */
};

struct mrc_sim_flow {
  struct mrc_sim_flow_config config;
  struct mrc_sim_ev *evs[2]; /* of the QP at each end; 0: the transport has no QPs */
  int n_evs;
  void *state;         /* of a transport without QPs: both ends */
  uint32_t plane;      /* of a flow with a single path, from 0 */
  uint32_t next_after; /* number + 1 of the next flow that waits for the same flow; 0: none */
  uint32_t dependents; /* number + 1 of the first flow that waits for this one; 0: none */
  uint32_t wanted;     /* writes that the traffic has requested, posted or not */
  uint32_t posted;
  uint32_t completed;
  uint32_t failed;
  uint64_t received_bytes;   /* by a transport without QPs */
  uint64_t repeated;         /* packets whose payload was received before; see mrc_sim_flow_info */
  uint32_t arrived;          /* writes complete at `to`; counted only if another flow waits */
  uint32_t allowed;          /* of a job: writes of the steps that have started */
  uint32_t job_done;         /* the first flow of a job: flows that have done this step */
  uint64_t job_done_ns;      /* and when the last of them did */
  uint64_t step_ns;          /* when this flow did */
  uint32_t next_done;        /* number + 1 of the next flow that has done its step; 0: none */
  struct mrc_prng intervals; /* between its writes */
  uint64_t *wanted_ns;       /* when each write was requested */
  uint64_t first_ns;
  uint64_t last_ns;
};

struct mrc_sim_flows {
  struct mrc_sim_flow *at;
  uint32_t n;
  uint32_t capacity;
};

/* Returns the number of the new flow. */
uint32_t mrc_flows_add(struct mrc_sim_flows *flows, const struct mrc_sim_flow_config *config);
void mrc_flows_free(struct mrc_sim_flows *flows);

/* The host at an end. */
static inline uint32_t mrc_flow_host(const struct mrc_sim_flow *flow, uint32_t end) {
  return end == MRC_FROM ? flow->config.from : flow->config.to;
}
/* QP number of an end of a flow, and back. */
static inline uint32_t mrc_flow_qpn(uint32_t flow, uint32_t end) {
  return MRC_FLOW_FIRST_QPN + 2 * flow + end;
}
static inline uint32_t mrc_flow_of(uint32_t qpn) { return (qpn - MRC_FLOW_FIRST_QPN) / 2; }
static inline uint32_t mrc_flow_end_of(uint32_t qpn) { return (qpn - MRC_FLOW_FIRST_QPN) % 2; }

/* ---- Records ---- */

/* The results of a simulation: counts, samples of flows, events, finished writes, and the trace of
   packets as a hash and as lines of text. */

/* The trace as text. */
struct mrc_record_file {
  FILE *lines; /* 0: none */
  int error;   /* the first errno of its lines */
};

struct mrc_sim_record {
  const struct mrc_world *world;
  struct mrc_record_file *file; /* 0: none */
  struct mrc_sim_stats stats;   /* without the counts in queues and hops */
  uint64_t received_bytes;      /* payload of all flows but those of TCP */
  struct mrc_sim_sample *samples;
  uint32_t n_samples;
  uint32_t sample_capacity;
  uint64_t *plane_bytes; /* by sample and plane, if samples_planes is set */
  uint32_t plane_capacity;
  struct mrc_sim_event *events;
  uint32_t n_events;
  uint32_t event_capacity;
  struct mrc_sim_message *messages;
  uint32_t n_messages;
  uint32_t message_capacity;
};

/* A hop has sent a packet. `survives`: no fault drops it. */
void mrc_record_sent(struct mrc_sim_record *record, uint32_t hop, const struct mrc_frame *packet,
                     bool survives);
/* Another event of a packet at a hop; `what` is its name in the trace. */
void mrc_record_line(struct mrc_sim_record *record, const char *what, uint32_t hop,
                     const struct mrc_frame *packet);
void mrc_record_event(struct mrc_sim_record *record, const struct mrc_sim_event *event);
/* A write is done that the traffic requested at `wanted_ns`. */
void mrc_record_message(struct mrc_sim_record *record, uint32_t flow, uint64_t wanted_ns);
/* Adds a sample of a flow with these counts; then, if samples_planes is set, the payload received
   in each plane. */
void mrc_record_sample(struct mrc_sim_record *record, uint32_t flow,
                       const struct mrc_sim_flow_info *info);
void mrc_record_plane_bytes(struct mrc_sim_record *record, uint32_t plane, uint64_t bytes);
/* Adds the counts of another record, and moves its events and writes to this one. */
void mrc_record_add_stats(struct mrc_sim_stats *sum, const struct mrc_sim_stats *stats);
void mrc_record_move_rows(struct mrc_sim_record *record, struct mrc_sim_record *from);
/* Orders events and writes, from these numbers on, by time and flow: an order that does not depend
   on the records that they were moved from. */
void mrc_record_order(struct mrc_sim_record *record, uint32_t first_event, uint32_t first_message);
/* Closes the trace; 0, or the -errno with which it is not whole. */
int mrc_record_end_file(struct mrc_record_file *file);
void mrc_record_free(struct mrc_sim_record *record);
