/* SPDX-License-Identifier: Apache-2.0 */
/* The results of a simulation: counts, samples of flows, events, finished writes, and the trace of
   packets as a hash and as lines of text. */
#pragma once

#include <stdio.h>

#include "sim/frame.h"
#include "sim/world.h"

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
