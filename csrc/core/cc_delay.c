/* SPDX-License-Identifier: Apache-2.0 */
/* The delay-based window of one plane: a decision every second round trip, from the smallest
   queueing delay that was seen in that time. */
#include "cc.h"

enum {
  MIN_PACKETS = 2,        /* of the smallest window */
  NEWEST_SAMPLES = 4,     /* of each of the two halves of what slow start looks at */
  CALM_ROUNDS = 2,        /* without a queue before the window grows faster */
  DRAIN_EVERY_RTTS = 32,  /* a drain costs two round trips */
  GROWTH = 16             /* a calm window grows by this part of itself in a round */
};

static int init(struct mrc_cc *cc, const struct mrc_cc_config *config) {
  const uint64_t initial_bytes = MRC_CC_INITIAL_BYTES / mrc_max_u32(config->windows, 1);
  cc->delay.slow_start = true;
  cc->min_bytes = mrc_min_u64((uint64_t)MIN_PACKETS * config->mtu_bytes, config->max_bytes);
  cc->cwnd_bytes = mrc_cc_clamp(cc, mrc_max_u64(initial_bytes, 2 * cc->min_bytes));
  return 0;
}

static uint64_t target_delay_ns(const struct mrc_cc *cc) {
  return MRC_CC_TARGET_DELAY_NS + cc->delay.jitter_ns;
}

/* ---- slow start ---- */

static void note_newest(struct mrc_cc_delay *state, uint64_t delay_ns) {
  if (state->newest_samples == NEWEST_SAMPLES) {
    state->newest_ns[1] = state->newest_ns[0];
    state->newest_samples = 0;
  }
  const bool first = state->newest_samples++ == 0;
  state->newest_ns[0] = first ? delay_ns : mrc_min_u64(state->newest_ns[0], delay_ns);
}

/* A queue is really there when every one of the newest samples shows it: a single late one is
   jitter. */
static bool meets_queue(const struct mrc_cc_delay *state) {
  const uint64_t least_ns = mrc_min_u64(state->newest_ns[0], state->newest_ns[1]);
  return least_ns > MRC_CC_TARGET_DELAY_NS / 2 + state->jitter_ns;
}

/* ---- the end of a round ---- */

static void decrease(struct mrc_cc *cc, uint64_t delay_ns) {
  const uint64_t excess_ns = delay_ns - target_delay_ns(cc);
  const uint64_t cut_bytes = cc->cwnd_bytes / 2 * excess_ns / delay_ns;
  cc->cwnd_bytes = mrc_cc_clamp(cc, cc->cwnd_bytes - cut_bytes);
}

/* By a part of the window in each round while the queue is empty, less as it fills, and always a few
   packets, so that QPs that share a queue drift towards equal windows. The part doubles with each
   round that stays calm: the window may have been made for a plane that was slower then. */
static void increase(struct mrc_cc *cc, uint64_t delay_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  const uint64_t target_ns = target_delay_ns(cc), room_ns = target_ns - delay_ns;
  const uint32_t calm = state->calm_rounds > CALM_ROUNDS ? state->calm_rounds - CALM_ROUNDS : 0;
  const uint64_t most_bytes = mrc_min_u64(cc->cwnd_bytes / GROWTH << calm, cc->cwnd_bytes);
  const uint64_t scaled = most_bytes / 16 * room_ns / (target_ns / 16);
  cc->cwnd_bytes = mrc_cc_clamp(cc, cc->cwnd_bytes + scaled + 2ull * cc->mtu_bytes);
}

/* What the window is made of says whether the queue is ours: it goes when the window does. When the
   window has been halved and the delay has not, the base RTT has become longer, or others fill the
   queue. The window goes to its smallest for two round trips then, and what delay is left is not
   ours. */
static void start_drain(struct mrc_cc *cc) {
  cc->delay.drain = MRC_CC_EMPTYING;
  cc->cwnd_bytes = cc->min_bytes;
}

static void end_drain(struct mrc_cc *cc, uint64_t delay_ns, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  state->drain = MRC_CC_NO_DRAIN;
  state->drained_ns = now_ns;
  const bool foreign = delay_ns > MRC_CC_TARGET_DELAY_NS / 2;
  cc->cwnd_bytes = mrc_cc_clamp(cc, foreign ? state->queue_since_bytes : state->queue_since_bytes / 2);
  state->queue_since_bytes = 0;
  if (!foreign) return;
  state->found_base_ns = state->base_ns + delay_ns;
  state->slow_start = true;
  state->newest_ns[0] = state->newest_ns[1] = 0;
  state->calm_rounds = 0;
}

/* The queue stands above the target. */
static void on_queue(struct mrc_cc *cc, uint64_t delay_ns, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  if (state->queue_since_bytes == 0) {
    state->queue_since_bytes = cc->cwnd_bytes;
    state->queue_since_ns = delay_ns;
  }
  decrease(cc, delay_ns);
  const bool halved = cc->cwnd_bytes <= mrc_max_u64(state->queue_since_bytes / 2, cc->min_bytes);
  const bool stays = delay_ns >= state->queue_since_ns / 4 * 3;
  const bool due = now_ns - state->drained_ns >= DRAIN_EVERY_RTTS * state->round_rtt_ns;
  if (halved && stays && due) start_drain(cc);
}

static void decide(struct mrc_cc *cc, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  const uint64_t delay_ns = state->round_delay_ns;
  if (state->drain == MRC_CC_EMPTYING) {
    state->drain = MRC_CC_MEASURING;
    return;
  }
  if (state->drain == MRC_CC_MEASURING) {
    end_drain(cc, delay_ns, now_ns);
    return;
  }
  const uint64_t over_ns = state->round_sum_ns / state->round_samples - delay_ns;
  state->jitter_ns = mrc_min_u64((3 * state->jitter_ns + over_ns) / 4, MRC_CC_MAX_JITTER_NS);
  if (delay_ns > target_delay_ns(cc)) {
    state->slow_start = false;
    state->calm_rounds = 0;
    on_queue(cc, delay_ns, now_ns);
    return;
  }
  state->queue_since_bytes = 0;
  if (!state->round_limited || state->slow_start) return;
  if (delay_ns > target_delay_ns(cc) / 2)
    state->calm_rounds = 0;
  else if (state->calm_rounds < CALM_ROUNDS + 8)
    state->calm_rounds++;
  increase(cc, delay_ns);
}

static void end_round(struct mrc_cc *cc, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  if (state->round_samples > 0) decide(cc, now_ns);
  if (!state->slow_start) cc->cwnd_before_timeout_bytes = 0;
  state->round_end_ns = now_ns + mrc_max_u64(2 * state->round_rtt_ns, MRC_CC_MIN_ROUND_NS);
  state->round_acked_bytes = 0;
  state->round_rtt_ns = 0;
  state->round_limited = false;
  state->round_samples = 0;
  state->round_sum_ns = 0;
}

/* ---- events ---- */

static void on_sample(struct mrc_cc *cc, const struct mrc_cc_ack *ack) {
  struct mrc_cc_delay *state = &cc->delay;
  const uint64_t delay_ns = ack->rtt_ns > ack->base_rtt_ns ? ack->rtt_ns - ack->base_rtt_ns : 0;
  state->base_ns = ack->base_rtt_ns;
  state->round_delay_ns =
      state->round_samples == 0 ? delay_ns : mrc_min_u64(state->round_delay_ns, delay_ns);
  state->round_samples++;
  state->round_sum_ns += delay_ns;
  state->round_rtt_ns = mrc_max_u64(state->round_rtt_ns, ack->smooth_rtt_ns);
  note_newest(state, delay_ns);
}

static void on_ack(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  if (ack->bytes == 0 && ack->rtt_ns == 0) return;
  if (ack->rtt_ns != 0) on_sample(cc, ack);
  state->round_acked_bytes += ack->bytes;
  if (ack->inflight_bytes + 2ull * cc->mtu_bytes >= cc->cwnd_bytes / 2) state->round_limited = true;
  if (state->slow_start && meets_queue(state)) state->slow_start = false;
  if (state->slow_start && state->round_limited)
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

static void on_timeout(struct mrc_cc *cc) {
  cc->delay.slow_start = true;
  cc->delay.drain = MRC_CC_NO_DRAIN;
  cc->delay.queue_since_bytes = 0;
}

static void on_spurious_timeout(struct mrc_cc *cc) { cc->delay.slow_start = false; }

static uint64_t take_base(struct mrc_cc *cc) {
  const uint64_t base_ns = cc->delay.found_base_ns;
  cc->delay.found_base_ns = 0;
  return base_ns;
}

const struct mrc_cc_algorithm mrc_cc_delay_algorithm = {.init = init,
                                                        .on_ack = on_ack,
                                                        .on_loss = on_loss,
                                                        .on_refused = on_refused,
                                                        .on_timeout = on_timeout,
                                                        .on_spurious_timeout = on_spurious_timeout,
                                                        .target_delay_ns = target_delay_ns,
                                                        .take_base = take_base};
