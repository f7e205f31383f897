/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/hop.h"

#include <stdlib.h>

#include "core/base.h"

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
