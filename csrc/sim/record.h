/* SPDX-License-Identifier: Apache-2.0 */
/* The results of a simulation: counts, samples of flows, events, finished writes, and the trace of
   packets as a hash and as lines of text. */
#ifndef MRC_SIM_RECORD_H
#define MRC_SIM_RECORD_H

#include <stdio.h>

#include "sim/frame.h"
#include "sim/world.h"

struct mrc_sim_record {
  const struct mrc_world *world;
  struct mrc_sim_stats stats; /* without the counts in queues and hops */
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
  FILE *file;     /* of the trace; 0: none */
  int file_error; /* the first errno of its lines */
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
/* Closes the trace; 0, or the -errno with which it is not whole. */
int mrc_record_end_file(struct mrc_sim_record *record);
void mrc_record_free(struct mrc_sim_record *record);

#endif
