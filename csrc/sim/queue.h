/* SPDX-License-Identifier: Apache-2.0 */
/* The output queue of a switch port or a NIC: two classes under strict priority, or one queue for
   all; a byte buffer, ECN marking on a ramp, trimming. Rate and time are in hop.h. */
#pragma once

#include "core/base.h"
#include "sim/frame.h"

struct mrc_queue_config {
  uint64_t buffer_bytes;   /* of each class; 0: no limit */
  uint64_t ecn_low_bytes;  /* with less data waiting behind it, a packet is never marked */
  uint64_t ecn_high_bytes; /* with this much, always; in between by chance; 0: no marking */
  bool trims;              /* data that does not fit loses its payload and continues as control */
  bool one_class;          /* control waits behind data */
  bool last_hop;           /* to a host: trimmed packets are flagged with it */
};

struct mrc_queue_class {
  struct mrc_frame *last; /* its `next` is the first; 0: empty */
  uint64_t bytes;         /* on the wire */
};

struct mrc_queue {
  struct mrc_queue_class control;
  struct mrc_queue_class data;
  struct mrc_prng prng;
  uint64_t dropped; /* packets that did not fit */
  uint64_t trimmed;
  uint64_t marked;
  uint64_t peak_bytes; /* of both classes */
};

/* Queues a packet, trimmed if necessary. False when there is no room: the caller keeps the
   packet. */
bool mrc_queue_push(struct mrc_queue *queue, const struct mrc_queue_config *config,
                    struct mrc_frame *packet);
/* The next packet to send, control first; 0 when empty. Data is marked here, as it leaves: the mark
   then reflects the current queue, however long the packet has waited. */
struct mrc_frame *mrc_queue_pop(struct mrc_queue *queue, const struct mrc_queue_config *config);
/* Packets of a class that wait. */
uint64_t mrc_queue_count(const struct mrc_queue_class *class);
static inline uint64_t mrc_queue_bytes(const struct mrc_queue *queue) {
  return queue->control.bytes + queue->data.bytes;
}
