/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/queue.h"

#include "core/base.h"
#include "core/wire.h"

enum { ECN_NOT_CAPABLE = 0, ECN_CE = 3 };

static bool has_room(const struct mrc_queue_config *config, const struct mrc_queue_class *class,
                     const struct mrc_frame *packet) {
  return config->buffer_bytes == 0 ||
         class->bytes + mrc_frame_wire_bytes(packet) <= config->buffer_bytes;
}

/* RED's ramp over the bytes of data that wait behind a packet. */
static bool marks(struct mrc_queue *queue, const struct mrc_queue_config *config) {
  const uint64_t low = config->ecn_low_bytes, high = config->ecn_high_bytes;
  const uint64_t waiting = queue->data.bytes;
  if (high == 0 || waiting < low) return false;
  return waiting >= high || mrc_prng_next(&queue->prng) % (high - low) < waiting - low;
}

/* Only writes are trimmed: for other packets of the data class a receiver has no use for the
   header. */
static bool is_trimmable(const struct mrc_frame *packet) {
  return packet->payload_bytes > 0 && mrc_opcode_is_data(packet->header[0]);
}

static void trim(struct mrc_frame *packet, bool last_hop) {
  packet->payload_bytes = 0;
  packet->trailer_bytes = 0;
  packet->trimmed = last_hop ? MRC_TRIMMED_LASTHOP : MRC_TRIMMED;
  packet->control = true;
}

static void append(struct mrc_queue_class *class, struct mrc_frame *packet) {
  packet->next = packet;
  if (class->last) {
    packet->next = class->last->next;
    class->last->next = packet;
  }
  class->last = packet;
}

bool mrc_queue_push(struct mrc_queue *queue, const struct mrc_queue_config *config,
                    struct mrc_frame *packet) {
  if (!packet->control && !has_room(config, &queue->data, packet) && config->trims &&
      is_trimmable(packet)) {
    trim(packet, config->last_hop);
    queue->trimmed++;
  }
  const bool first = packet->control && !config->one_class;
  struct mrc_queue_class *class = first ? &queue->control : &queue->data;
  if (!has_room(config, class, packet)) {
    queue->dropped++;
    return false;
  }
  append(class, packet);
  class->bytes += mrc_frame_wire_bytes(packet);
  queue->peak_bytes = mrc_max_u64(queue->peak_bytes, mrc_queue_bytes(queue));
  return true;
}

struct mrc_frame *mrc_queue_pop(struct mrc_queue *queue, const struct mrc_queue_config *config) {
  struct mrc_queue_class *class = queue->control.last ? &queue->control : &queue->data;
  if (class->last == NULL) return NULL;
  struct mrc_frame *packet = class->last->next;
  if (packet == class->last)
    class->last = NULL;
  else
    class->last->next = packet->next;
  class->bytes -= mrc_frame_wire_bytes(packet);
  if (!packet->control && packet->ecn != ECN_NOT_CAPABLE && marks(queue, config)) {
    packet->ecn = ECN_CE;
    queue->marked++;
  }
  return packet;
}

uint64_t mrc_queue_count(const struct mrc_queue_class *class) {
  if (class->last == NULL) return 0;
  uint64_t n = 1;
  for (const struct mrc_frame *packet = class->last->next; packet != class->last;
       packet = packet->next)
    n++;
  return n;
}
