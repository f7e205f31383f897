/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/hop.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "core/wire.h"
#include "sim/numbers.h"

_Static_assert(offsetof(struct mrc_frame, header) + 12 <= 64, "one cache line");
_Static_assert(sizeof(struct mrc_frame) == 128, "two cache lines");
_Static_assert(sizeof(struct mrc_hop) == 128, "two cache lines");

#define BLOCK_PACKETS 256

struct mrc_frame_block {
  struct mrc_frame_block *next;
  _Alignas(struct mrc_frame) uint8_t packets[]; /* each followed by its room */
};

/* Distance between two frames; it keeps all of them aligned. */
static size_t stride(const struct mrc_frame_pool *pool) {
  const size_t align = _Alignof(struct mrc_frame);
  return sizeof(struct mrc_frame) + (pool->room_bytes + align - 1) / align * align;
}

static void add_block(struct mrc_frame_pool *pool) {
  struct mrc_frame_block *block =
      aligned_alloc(_Alignof(struct mrc_frame), sizeof(*block) + BLOCK_PACKETS * stride(pool));
  mrc_assert(block);
  block->next = pool->blocks;
  pool->blocks = block;
  for (int i = 0; i < BLOCK_PACKETS; i++)
    mrc_frame_pool_put(pool, (struct mrc_frame *)(block->packets + (size_t)i * stride(pool)));
  pool->n_used += BLOCK_PACKETS;
}

struct mrc_frame *mrc_frame_pool_get(struct mrc_frame_pool *pool) {
  if (pool->free == NULL) add_block(pool);
  struct mrc_frame *packet = pool->free;
  pool->free = packet->next;
  pool->n_free--;
  pool->n_used++;
  *packet = (struct mrc_frame){0};
  return packet;
}

struct mrc_frame *mrc_frame_pool_copy(struct mrc_frame_pool *pool, const struct mrc_frame *packet) {
  struct mrc_frame *copy = mrc_frame_pool_get(pool);
  memcpy(copy, packet, sizeof(*packet) + pool->room_bytes);
  return copy;
}

void mrc_frame_pool_put(struct mrc_frame_pool *pool, struct mrc_frame *packet) {
  packet->next = pool->free;
  pool->free = packet;
  pool->n_free++;
  pool->n_used--;
}

void mrc_frame_pool_move(struct mrc_frame_pool *from, struct mrc_frame_pool *to, uint64_t n) {
  for (; n > 0 && from->free; n--) {
    struct mrc_frame *packet = from->free;
    from->free = packet->next;
    packet->next = to->free;
    to->free = packet;
    from->n_free--;
    to->n_free++;
  }
}

void mrc_frame_pool_free(struct mrc_frame_pool *pool) {
  for (struct mrc_frame_block *block = pool->blocks, *next; block; block = next) {
    next = block->next;
    free(block);
  }
  *pool = (struct mrc_frame_pool){0};
}

/* ---- queues ---- */

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

bool mrc_queue_push(struct mrc_queue *queue, const struct mrc_queue_config *config,
                    struct mrc_frame *packet) {
  if (!packet->control && !has_room(config, &queue->data, packet) && config->trims &&
      is_trimmable(packet)) {
    packet->payload_bytes = 0;
    packet->trailer_bytes = 0;
    packet->trimmed = config->last_hop ? MRC_TRIMMED_LASTHOP : MRC_TRIMMED;
    packet->control = true;
    queue->trimmed++;
  }
  const bool first = packet->control && !config->one_class;
  struct mrc_queue_class *class = first ? &queue->control : &queue->data;
  if (!has_room(config, class, packet)) {
    queue->dropped++;
    return false;
  }
  packet->next = packet;
  if (class->last) {
    packet->next = class->last->next;
    class->last->next = packet;
  }
  class->last = packet;
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

/* ---- hops ---- */

enum { SECOND_NS = 1000000000, MILLION = 1000000 };

void mrc_hop_make_own(struct mrc_hop *hop, uint64_t seed) {
  if (hop->is_owner) return;
  struct mrc_hop_own *own = calloc(1, sizeof(*own));
  mrc_assert(own);
  own->kind = *hop->kind;
  own->base = hop->kind->config;
  own->link = (struct mrc_link){.prng = {seed}, .entered = hop->packets};
  mrc_hop_configure(own, &own->base);
  hop->kind = &own->kind;
  hop->is_owner = true;
}

void mrc_hop_configure(struct mrc_hop_own *own, const struct mrc_hop_config *config) {
  own->kind.config = *config;
  own->link.config = config->link;
}

void mrc_hop_free(struct mrc_hop *hop) { free(mrc_hop_own(hop)); }

uint64_t mrc_hop_lost(const struct mrc_hop *hop) {
  return hop->is_owner ? mrc_hop_own(hop)->lost : 0;
}

static void serialize(struct mrc_hop *hop, uint32_t bytes, uint64_t now_ns) {
  const uint64_t work = (uint64_t)bytes * 8 * SECOND_NS + hop->remainder;
  const uint64_t ns = work / hop->kind->config.rate_bps;
  hop->remainder = work % hop->kind->config.rate_bps;
  hop->packets++;
  hop->bytes += bytes;
  hop->busy_ns += ns;
  hop->free_at_ns = now_ns + ns;
}

static bool befalls(const struct mrc_hop_own *own, const struct mrc_frame *packet) {
  if (own->kind.config.class == MRC_HOP_ALL) return true;
  return packet->control == (own->kind.config.class == MRC_HOP_CONTROL);
}

static bool lost_in_burst(struct mrc_hop_own *own) {
  const struct mrc_hop_config *config = &own->kind.config;
  if (own->burst_left == 0 && config->burst_ppm > 0 &&
      mrc_prng_below(&own->link.prng, MILLION) < config->burst_ppm)
    own->burst_left = config->burst_packets;
  if (own->burst_left == 0) return false;
  own->burst_left--;
  return true;
}

static struct mrc_link_fate unharmed(const struct mrc_hop *hop) {
  return (struct mrc_link_fate){.copies = 1,
                                .at_ns = {hop->free_at_ns + hop->kind->config.link.delay_ns}};
}

static struct mrc_link_fate pass(const struct mrc_hop *hop, struct mrc_hop_own *own,
                                 const struct mrc_frame *packet) {
  if (!befalls(own, packet)) return unharmed(hop);
  if (lost_in_burst(own)) return (struct mrc_link_fate){0};
  return mrc_link_pass(&own->link, mrc_frame_wire_bytes(packet), hop->free_at_ns);
}

/* The fate of a packet at a hop that has, or had, faults or jitter. */
static struct mrc_link_fate decide(const struct mrc_hop *hop, struct mrc_hop_own *own,
                                   const struct mrc_frame *packet) {
  struct mrc_link_fate fate = pass(hop, own, packet);
  if (fate.copies == 0) {
    own->lost++;
    return fate;
  }
  if (own->kind.config.jitter_ns > 0) {
    const uint64_t jitter_ns = mrc_prng_next(&own->link.prng) %
                               (own->kind.config.jitter_ns + 1); /* the same for both copies */
    fate.at_ns[0] = mrc_max_u64(fate.at_ns[0] + jitter_ns, own->last_at_ns);
    fate.at_ns[1] = mrc_max_u64(fate.at_ns[1] + jitter_ns, fate.at_ns[0]);
    own->last_at_ns = fate.at_ns[0];
  }
  return fate;
}

struct mrc_link_fate mrc_hop_send(struct mrc_hop *hop, const struct mrc_frame *packet,
                                  uint64_t now_ns) {
  mrc_assert(now_ns >= hop->free_at_ns);
  serialize(hop, mrc_frame_wire_bytes(packet), now_ns);
  return hop->is_owner ? decide(hop, mrc_hop_own(hop), packet) : unharmed(hop);
}
