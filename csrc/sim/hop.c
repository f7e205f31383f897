/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/hop.h"

#include "core/base/base.h"

enum { SECOND_NS = 1000000000, MILLION = 1000000 };

void mrc_hop_configure(struct mrc_hop *hop, const struct mrc_hop_config *config) {
  hop->config = *config;
  hop->link.config = config->link;
}

static void serialize(struct mrc_hop *hop, uint32_t bytes, uint64_t now_ns) {
  const uint64_t work = (uint64_t)bytes * 8 * SECOND_NS + hop->remainder;
  const uint64_t ns = work / hop->config.rate_bps;
  hop->remainder = work % hop->config.rate_bps;
  hop->packets++;
  hop->bytes += bytes;
  hop->busy_ns += ns;
  hop->free_at_ns = now_ns + ns;
}

static bool befalls(const struct mrc_hop *hop, const struct mrc_frame *packet) {
  if (hop->config.class == MRC_HOP_ALL) return true;
  return packet->control == (hop->config.class == MRC_HOP_CONTROL);
}

static bool lost_in_burst(struct mrc_hop *hop) {
  if (hop->burst_left == 0 && hop->config.burst_ppm > 0 &&
      mrc_prng_below(&hop->link.prng, MILLION) < hop->config.burst_ppm)
    hop->burst_left = hop->config.burst_packets;
  if (hop->burst_left == 0) return false;
  hop->burst_left--;
  return true;
}

static struct mrc_link_fate pass(struct mrc_hop *hop, const struct mrc_frame *packet) {
  const struct mrc_link_fate unharmed = {.copies = 1,
                                         .at_ns = {hop->free_at_ns + hop->config.link.delay_ns}};
  if (!befalls(hop, packet)) return unharmed;
  if (lost_in_burst(hop)) return (struct mrc_link_fate){0};
  return mrc_link_pass(&hop->link, mrc_frame_wire_bytes(packet), hop->free_at_ns);
}

struct mrc_link_fate mrc_hop_send(struct mrc_hop *hop, const struct mrc_frame *packet,
                                  uint64_t now_ns) {
  mrc_assert(now_ns >= hop->free_at_ns);
  serialize(hop, mrc_frame_wire_bytes(packet), now_ns);
  struct mrc_link_fate fate = pass(hop, packet);
  if (fate.copies == 0) {
    if (hop->lost++ == 0) hop->first_lost_ns = now_ns;
    return fate;
  }
  if (hop->config.jitter_ns > 0) {
    const uint64_t jitter_ns =
        mrc_prng_next(&hop->link.prng) % (hop->config.jitter_ns + 1); /* the same for both copies */
    fate.at_ns[0] = mrc_max_u64(fate.at_ns[0] + jitter_ns, hop->last_at_ns);
    fate.at_ns[1] = mrc_max_u64(fate.at_ns[1] + jitter_ns, fate.at_ns[0]);
    hop->last_at_ns = fate.at_ns[0];
  }
  return fate;
}
