/* SPDX-License-Identifier: Apache-2.0 */
#include "virtual/link.h"

#include "core/base.h"

enum { SECOND_NS = 1000000000, MILLION = 1000000 };

static bool chance(struct mrc_link *link, uint32_t ppm) {
  return ppm > 0 && mrc_prng_below(&link->prng, MILLION) < ppm;
}

static bool loses(struct mrc_link *link, uint32_t bytes) {
  const struct mrc_link_config *config = &link->config;
  uint64_t number = link->entered++;
  if (config->silent) return true;
  if (config->mtu_bytes && bytes > config->mtu_bytes) return true;
  if (config->loss_mask >> (number % 64) & 1) return true;
  if (config->lose_of && number % config->lose_of < config->lose_n) return true;
  return chance(link, config->loss_ppm);
}

/* Queues a packet; returns when its last bit leaves the queue. */
static uint64_t serialize(struct mrc_link *link, uint32_t bytes, uint64_t now_ns) {
  if (link->config.rate_bps == 0) return now_ns;
  uint64_t start_ns = mrc_max_u64(link->free_at_ns, now_ns);
  link->free_at_ns = start_ns + (uint64_t)bytes * 8 * SECOND_NS / link->config.rate_bps;
  return link->free_at_ns;
}

struct mrc_link_fate mrc_link_pass(struct mrc_link *link, uint32_t bytes, uint64_t now_ns) {
  const struct mrc_link_config *config = &link->config;
  struct mrc_link_fate fate = {0};
  uint64_t backlog = mrc_link_backlog(link, now_ns);
  if (loses(link, bytes)) {
    link->lost++;
    return fate;
  }
  bool overflow = config->queue_bytes && backlog + bytes > config->queue_bytes;
  link->overflowed += overflow;
  if (overflow && !config->trim) return fate;
  fate.trimmed = overflow;
  fate.ce = config->ecn_bytes && backlog > config->ecn_bytes;
  link->marked += fate.ce;
  fate.corrupt = chance(link, config->corrupt_ppm);
  fate.corrupt_bit = fate.corrupt ? mrc_prng_next(&link->prng) : 0;
  fate.at_ns[0] = (overflow ? now_ns : serialize(link, bytes, now_ns)) + config->delay_ns;
  fate.copies = chance(link, config->duplicate_ppm) ? 2 : 1;
  fate.at_ns[1] = fate.at_ns[0] + config->reorder_ns;
  if (config->reorder_ns && chance(link, config->reorder_ppm))
    fate.at_ns[0] += 1 + mrc_prng_below(&link->prng, config->reorder_ns);
  return fate;
}

uint64_t mrc_link_backlog(const struct mrc_link *link, uint64_t now_ns) {
  if (link->free_at_ns <= now_ns) return 0;
  return (link->free_at_ns - now_ns) * link->config.rate_bps / 8 / SECOND_NS;
}
