/* SPDX-License-Identifier: Apache-2.0 */
/* The output queue of a switch port or a NIC: two classes under strict priority, a byte buffer, ECN
   marking on a ramp, trimming. It knows neither rate nor time. */
#ifndef MRC_SIM_QUEUE_H
#define MRC_SIM_QUEUE_H

#include "core/prng.h"
#include "sim/frame.h"

struct mrc_queue_config {
  uint64_t buffer_bytes;   /* of each class; 0: no limit */
  uint64_t ecn_low_bytes;  /* data that leaves less data waiting is never marked */
  uint64_t ecn_high_bytes; /* that leaves so much, always; in between by chance; 0: never marked */
  bool trims;              /* data that finds no room loses its payload and goes as control */
  bool last_hop;           /* towards a host: what is trimmed says so */
};

struct mrc_queue_class {
  struct mrc_frame *first;
  struct mrc_frame *last;
  uint64_t bytes; /* on the wire */
};

struct mrc_queue {
  struct mrc_queue_config config;
  struct mrc_prng prng;
  struct mrc_queue_class control;
  struct mrc_queue_class data;
  uint64_t dropped; /* packets that found no room */
  uint64_t trimmed;
  uint64_t marked;
  uint64_t peak_bytes; /* of both classes */
};

/* Takes a packet, perhaps trimmed; false when there is no room: it is still the caller's. */
bool mrc_queue_push(struct mrc_queue *queue, struct mrc_frame *packet);
/* The next to be sent, control first; 0 when empty. Data may be marked by it: a mark then tells of
   the queue as it is, however long the packet has waited. */
struct mrc_frame *mrc_queue_pop(struct mrc_queue *queue);
static inline uint64_t mrc_queue_bytes(const struct mrc_queue *queue) {
  return queue->control.bytes + queue->data.bytes;
}

#endif
