/* SPDX-License-Identifier: Apache-2.0 */
/* The delay-based window: a decision every second round trip, from the smallest queueing delay that
   each plane showed in that time. */
#include "cc.h"

static int init(struct mrc_cc *cc, const struct mrc_cc_config *config) {
  cc->delay.slow_start = true;
  cc->min_bytes = mrc_min_u64(4ull * config->mtu_bytes, config->max_bytes);
  cc->cwnd_bytes = mrc_cc_clamp(cc, MRC_CC_INITIAL_BYTES);
  return 0;
}

/* The queueing delay that counts: a standing queue shows in the smallest sample of a round, and the
   most loaded plane is the one that overflows first, since all planes get equal shares. */
static uint64_t standing_delay_ns(const struct mrc_cc_delay *state) {
  uint64_t worst_ns = 0;
  for (uint32_t planes = state->round_planes; planes != 0; planes &= planes - 1)
    worst_ns = mrc_max_u64(worst_ns, state->round_delay_ns[__builtin_ctz(planes)]);
  return worst_ns;
}

static void decrease(struct mrc_cc *cc, uint64_t delay_ns) {
  const uint64_t excess_ns = delay_ns - MRC_CC_TARGET_DELAY_NS;
  const uint64_t cut_bytes = cc->cwnd_bytes / 2 * excess_ns / delay_ns;
  cc->cwnd_bytes = mrc_cc_clamp(cc, cc->cwnd_bytes - cut_bytes);
}

/* Up to a sixteenth of the window per round while the queue is empty, less as it fills, and always
   a few packets, so that QPs that share a queue drift towards equal windows. */
static void increase(struct mrc_cc *cc, uint64_t delay_ns) {
  const uint64_t room_ns = MRC_CC_TARGET_DELAY_NS - delay_ns;
  const uint64_t scaled = cc->cwnd_bytes / 16 * room_ns / MRC_CC_TARGET_DELAY_NS;
  cc->cwnd_bytes = mrc_cc_clamp(cc, cc->cwnd_bytes + scaled + 2ull * cc->mtu_bytes);
}

static void end_round(struct mrc_cc *cc, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  const uint64_t delay_ns = standing_delay_ns(state);
  if (state->round_planes != 0) {
    if (delay_ns > MRC_CC_TARGET_DELAY_NS) {
      state->slow_start = false;
      decrease(cc, delay_ns);
    } else if (state->slow_start && delay_ns > MRC_CC_TARGET_DELAY_NS / 2) {
      state->slow_start = false;
    } else if (!state->slow_start && state->round_limited) {
      increase(cc, delay_ns);
    }
  }
  if (!state->slow_start) cc->cwnd_before_timeout_bytes = 0;
  state->round_end_ns = now_ns + mrc_max_u64(2 * state->round_rtt_ns, MRC_CC_MIN_ROUND_NS);
  state->round_acked_bytes = 0;
  state->round_rtt_ns = 0;
  state->round_limited = false;
  state->round_planes = 0;
}

static void on_ack(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  if (ack->bytes == 0 && ack->rtt_ns == 0) return;
  if (ack->rtt_ns != 0) {
    const uint64_t delay_ns = ack->rtt_ns > ack->base_rtt_ns ? ack->rtt_ns - ack->base_rtt_ns : 0;
    const bool first = (state->round_planes >> ack->plane & 1) == 0;
    if (first || delay_ns < state->round_delay_ns[ack->plane])
      state->round_delay_ns[ack->plane] = delay_ns;
    state->round_planes |= 1u << ack->plane;
    state->round_rtt_ns = mrc_max_u64(state->round_rtt_ns, ack->smooth_rtt_ns);
  }
  state->round_acked_bytes += ack->bytes;
  if (ack->inflight_bytes + 2ull * cc->mtu_bytes >= cc->cwnd_bytes / 2) state->round_limited = true;
  /* Slow start stops at the first sight of a queue, not a round later: it doubles too fast for
   * that. */
  if (state->slow_start && state->round_limited &&
      standing_delay_ns(state) <= MRC_CC_TARGET_DELAY_NS / 2)
    cc->cwnd_bytes = mrc_cc_clamp(cc, cc->cwnd_bytes + ack->bytes);
  if (now_ns >= state->round_end_ns) end_round(cc, now_ns);
}

static void on_refused(struct mrc_cc *cc, uint64_t inflight_bytes) {
  if (!cc->delay.slow_start) return;
  cc->delay.slow_start = false;
  cc->cwnd_bytes = mrc_cc_clamp(cc, inflight_bytes);
}

/* Overflow costs a part of the window, once a round; a failed path says nothing about the rate. */
static void on_loss(struct mrc_cc *cc, const struct mrc_cc_loss *loss, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  if (loss->cause == MRC_CC_LOSS_PATH) return;
  state->slow_start = false;
  if (state->round_end_ns > now_ns && state->round_acked_bytes == 0) return; /* it paid already */
  cc->cwnd_bytes = mrc_cc_clamp(cc, cc->cwnd_bytes * 7 / 10);
  end_round(cc, now_ns);
}

static void on_timeout(struct mrc_cc *cc) { cc->delay.slow_start = true; }

static void on_spurious_timeout(struct mrc_cc *cc) { cc->delay.slow_start = false; }

static uint64_t target_delay_ns(const struct mrc_cc *cc) {
  (void)cc;
  return MRC_CC_TARGET_DELAY_NS;
}

const struct mrc_cc_algorithm mrc_cc_delay_algorithm = {.init = init,
                                                        .on_ack = on_ack,
                                                        .on_loss = on_loss,
                                                        .on_refused = on_refused,
                                                        .on_timeout = on_timeout,
                                                        .on_spurious_timeout = on_spurious_timeout,
                                                        .target_delay_ns = target_delay_ns};
