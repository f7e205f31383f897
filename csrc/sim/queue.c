/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/queue.h"

#include "core/base/base.h"
#include "core/wire/wire.h"

enum { ECN_NOT_CAPABLE = 0, ECN_CE = 3 };

static bool has_room(const struct mrc_queue *queue, const struct mrc_queue_class *class,
                     const struct mrc_frame *packet) {
  return queue->config.buffer_bytes == 0 ||
         class->bytes + mrc_frame_wire_bytes(packet) <= queue->config.buffer_bytes;
}

/* RED's ramp over the bytes of data that wait behind a packet. */
static bool marks(struct mrc_queue *queue) {
  const uint64_t low = queue->config.ecn_low_bytes, high = queue->config.ecn_high_bytes;
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

bool mrc_queue_push(struct mrc_queue *queue, struct mrc_frame *packet) {
  if (!packet->control && !has_room(queue, &queue->data, packet) && queue->config.trims &&
      is_trimmable(packet)) {
    trim(packet, queue->config.last_hop);
    queue->trimmed++;
  }
  const bool first = packet->control && !queue->config.one_class;
  struct mrc_queue_class *class = first ? &queue->control : &queue->data;
  if (!has_room(queue, class, packet)) {
    queue->dropped++;
    return false;
  }
  packet->next = NULL;
  if (class->first == NULL)
    class->first = packet;
  else
    class->last->next = packet;
  class->last = packet;
  class->bytes += mrc_frame_wire_bytes(packet);
  queue->peak_bytes = mrc_max_u64(queue->peak_bytes, mrc_queue_bytes(queue));
  return true;
}

struct mrc_frame *mrc_queue_pop(struct mrc_queue *queue) {
  struct mrc_queue_class *class = queue->control.first ? &queue->control : &queue->data;
  struct mrc_frame *packet = class->first;
  if (packet == NULL) return NULL;
  class->first = packet->next;
  class->bytes -= mrc_frame_wire_bytes(packet);
  if (!packet->control && packet->ecn != ECN_NOT_CAPABLE && marks(queue)) {
    packet->ecn = ECN_CE;
    queue->marked++;
  }
  return packet;
}
