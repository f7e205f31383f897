/* SPDX-License-Identifier: Apache-2.0 */
#include "cc.h"

static uint64_t clamp(const struct mrc_cc *cc, uint64_t bytes) {
  return mrc_min_u64(mrc_max_u64(bytes, cc->min_bytes), cc->max_bytes);
}

void mrc_cc_init(struct mrc_cc *cc, uint8_t kind, uint32_t mtu_bytes, uint64_t max_bytes) {
  *cc = (struct mrc_cc){.kind = kind,
                        .slow_start = true,
                        .mtu_bytes = mtu_bytes,
                        .min_bytes = mrc_min_u64(4ull * mtu_bytes, max_bytes),
                        .max_bytes = max_bytes};
  cc->cwnd_bytes = kind == MRC_CC_NULL ? max_bytes : clamp(cc, MRC_CC_INITIAL_BYTES);
}

/* The queueing delay that counts: a standing queue shows in the smallest sample of a round, and the
   most loaded plane is the one that overflows first, since all planes get equal shares. */
static uint64_t standing_delay_ns(const struct mrc_cc *cc) {
  uint64_t worst_ns = 0;
  for (uint32_t planes = cc->round_planes; planes != 0; planes &= planes - 1)
    worst_ns = mrc_max_u64(worst_ns, cc->round_delay_ns[__builtin_ctz(planes)]);
  return worst_ns;
}

static void decrease(struct mrc_cc *cc, uint64_t delay_ns) {
  const uint64_t excess_ns = delay_ns - MRC_CC_TARGET_DELAY_NS;
  const uint64_t cut_bytes = cc->cwnd_bytes / 2 * excess_ns / delay_ns;
  cc->cwnd_bytes = clamp(cc, cc->cwnd_bytes - cut_bytes);
}

/* Up to a sixteenth of the window per round while the queue is empty, less as it fills, and always
   a few packets, so that QPs that share a queue drift towards equal windows. */
static void increase(struct mrc_cc *cc, uint64_t delay_ns) {
  const uint64_t room_ns = MRC_CC_TARGET_DELAY_NS - delay_ns;
  const uint64_t scaled = cc->cwnd_bytes / 16 * room_ns / MRC_CC_TARGET_DELAY_NS;
  cc->cwnd_bytes = clamp(cc, cc->cwnd_bytes + scaled + 2ull * cc->mtu_bytes);
}

static void end_round(struct mrc_cc *cc, uint64_t now_ns) {
  const uint64_t delay_ns = standing_delay_ns(cc);
  if (cc->round_planes != 0) {
    if (delay_ns > MRC_CC_TARGET_DELAY_NS) {
      cc->slow_start = false;
      decrease(cc, delay_ns);
    } else if (cc->slow_start && delay_ns > MRC_CC_TARGET_DELAY_NS / 2) {
      cc->slow_start = false;
    } else if (!cc->slow_start && cc->round_limited) {
      increase(cc, delay_ns);
    }
  }
  if (!cc->slow_start) cc->cwnd_before_timeout_bytes = 0;
  cc->round_end_ns = now_ns + mrc_max_u64(2 * cc->round_rtt_ns, MRC_CC_MIN_ROUND_NS);
  cc->round_acked_bytes = 0;
  cc->round_rtt_ns = 0;
  cc->round_limited = false;
  cc->round_planes = 0;
}

void mrc_cc_on_ack(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns) {
  if (cc->kind == MRC_CC_NULL) return;
  if (ack->rtt_ns != 0) {
    mrc_assert(ack->plane < MRC_MAX_PORTS);
    const uint64_t delay_ns = ack->rtt_ns > ack->base_rtt_ns ? ack->rtt_ns - ack->base_rtt_ns : 0;
    const bool first = (cc->round_planes >> ack->plane & 1) == 0;
    if (first || delay_ns < cc->round_delay_ns[ack->plane])
      cc->round_delay_ns[ack->plane] = delay_ns;
    cc->round_planes |= 1u << ack->plane;
    cc->round_rtt_ns = mrc_max_u64(cc->round_rtt_ns, ack->smooth_rtt_ns);
  }
  cc->round_acked_bytes += ack->bytes;
  if (ack->inflight_bytes + 2ull * cc->mtu_bytes >= cc->cwnd_bytes / 2) cc->round_limited = true;
  /* Slow start stops at the first sight of a queue, not a round later: it doubles too fast for
   * that. */
  if (cc->slow_start && cc->round_limited && standing_delay_ns(cc) <= MRC_CC_TARGET_DELAY_NS / 2)
    cc->cwnd_bytes = clamp(cc, cc->cwnd_bytes + ack->bytes);
  if (now_ns >= cc->round_end_ns) end_round(cc, now_ns);
}

void mrc_cc_on_refused(struct mrc_cc *cc, uint64_t inflight_bytes) {
  if (cc->kind == MRC_CC_NULL || !cc->slow_start) return;
  cc->slow_start = false;
  cc->cwnd_bytes = clamp(cc, inflight_bytes);
}

void mrc_cc_on_congestion_loss(struct mrc_cc *cc, uint64_t now_ns) {
  if (cc->kind == MRC_CC_NULL) return;
  cc->slow_start = false;
  if (cc->round_end_ns > now_ns && cc->round_acked_bytes == 0) return; /* this round paid already */
  cc->cwnd_bytes = clamp(cc, cc->cwnd_bytes * 7 / 10);
  end_round(cc, now_ns);
}

void mrc_cc_on_timeout(struct mrc_cc *cc) {
  if (cc->kind == MRC_CC_NULL) return;
  cc->cwnd_before_timeout_bytes = mrc_max_u64(cc->cwnd_bytes, cc->cwnd_before_timeout_bytes);
  cc->slow_start = true;
  cc->cwnd_bytes = cc->min_bytes;
}

void mrc_cc_on_spurious_timeout(struct mrc_cc *cc) {
  if (cc->cwnd_before_timeout_bytes == 0) return;
  cc->slow_start = false;
  cc->cwnd_bytes = mrc_max_u64(cc->cwnd_bytes, cc->cwnd_before_timeout_bytes);
  cc->cwnd_before_timeout_bytes = 0;
}

bool mrc_cc_is_congestion(const struct mrc_cc *cc, uint64_t delay_ns) {
  return cc->kind != MRC_CC_NULL && delay_ns > MRC_CC_TARGET_DELAY_NS * 3 / 2;
}
