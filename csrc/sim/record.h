/* SPDX-License-Identifier: Apache-2.0 */
/* What a simulation leaves behind: counts, samples of flows, events, finished writes, and the trace
   of packets as a hash and as lines of text. */
#ifndef MRC_SIM_RECORD_H
#define MRC_SIM_RECORD_H

#include <stdio.h>

#include "sim/frame.h"
#include "sim/world.h"

struct mrc_sim_record {
  const struct mrc_world *world;
  struct mrc_sim_stats stats; /* what is not counted by queues and hops */
  struct mrc_sim_sample *samples;
  uint32_t n_samples;
  uint32_t sample_capacity;
  uint64_t *plane_bytes; /* of each sample, plane by plane, when they are asked for */
  uint32_t plane_capacity;
  struct mrc_sim_event *events;
  uint32_t n_events;
  uint32_t event_capacity;
  struct mrc_sim_message *messages;
  uint32_t n_messages;
  uint32_t message_capacity;
  FILE *file; /* of the trace; 0: none */
};

/* A packet has left on a hop, and does or does not reach its end. */
void mrc_record_sent(struct mrc_sim_record *record, uint32_t hop, const struct mrc_frame *packet,
                     bool survives);
/* Something else became of a packet at a hop. */
void mrc_record_line(struct mrc_sim_record *record, const char *what, uint32_t hop,
                     const struct mrc_frame *packet);
void mrc_record_event(struct mrc_sim_record *record, const struct mrc_sim_event *event);
/* A write that was wanted at that time is done. */
void mrc_record_message(struct mrc_sim_record *record, uint32_t flow, uint64_t wanted_ns);
/* Takes a sample of a flow, whose counts these are; then, when they are asked for, the payload that
   came in each plane. */
void mrc_record_sample(struct mrc_sim_record *record, uint32_t flow,
                       const struct mrc_sim_flow_info *info);
void mrc_record_plane_bytes(struct mrc_sim_record *record, uint32_t plane, uint64_t bytes);
void mrc_record_free(struct mrc_sim_record *record);

#endif
