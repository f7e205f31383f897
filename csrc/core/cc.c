/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cc.h"

#include <errno.h>

/* ---- the delay-based window ---- */

/* The delay-based window of one plane. A round lasts about two round trips. At its end the window
   grows or shrinks, depending on the smallest queueing delay of the round. */

#define FOREIGN_NS 10000000000ull /* a measured queue of other flows expires after this time */
#define FIRST_REST_NS 10000000ull
#define LONGEST_REST_NS 1000000000ull

enum {
  MIN_PACKETS = 2,       /* packets in the smallest window */
  START_SAMPLES = 4,     /* samples that a round of slow start requires */
  NEWEST_SAMPLES = 4,    /* samples in each of the two groups that slow start checks */
  CALM_ROUNDS = 2,       /* rounds without a queue before the window grows faster */
  GROWTH = 16,           /* a round without a queue adds 1/16 of the window */
  MOST_DOUBLINGS = 2,    /* this part doubles at most twice, to 1/4 */
  LONG_WAY_PART = 16,    /* on long paths the target is 1/16 of the base RTT */
  REVERSE_FADE = 16,     /* a round without a reverse queue takes 1/16 of the noted one */
  HELD_GROWTH = 8,       /* while other flows fill the queue a round adds 1/8 of the window */
  DRAIN_EVERY_RTTS = 32, /* a drain costs about two round trips */
  DRAIN_AGAIN_RTTS = 8,  /* likewise, after a drain of coupled planes found a queue */
  COUPLED_DRAINS = 3,    /* in a row that show coupled planes a queue of other flows */
  LONG_WAY_DRAINS = 4,   /* a way so many times as long does not drain with another */
  LARGE_WINDOW = 16,     /* smallest windows; its own queue is more than that of those */
  MOST_RESTS = 4,        /* doublings of a rest */
};

static int init(struct mrc_cc *cc, const struct mrc_cc_config *config) {
  const uint64_t initial_bytes = MRC_CC_INITIAL_BYTES / mrc_max_u32(config->windows, 1);
  cc->delay.slow_start = true;
  cc->min_bytes = mrc_min_u64((uint64_t)MIN_PACKETS * config->mtu_bytes, config->max_bytes);
  cc->cwnd_bytes = mrc_cc_clamp(cc, mrc_max_u64(initial_bytes, 2 * cc->min_bytes));
  return 0;
}

/* On a long path the right window is known less exactly, so a longer queue is accepted. */
static uint64_t bare_target_ns(const struct mrc_cc_delay *state) {
  return mrc_max_u64(MRC_CC_TARGET_DELAY_NS, state->base_ns / LONG_WAY_PART);
}

/* While both hosts send, SACKs wait in the queue of the other direction. Only the sum of both
   queues is stable, because the host with the slightly larger window has nearly all of it. So the
   window holds the sum near twice the target. A longer reverse queue is the work of other flows:
   the rest does not count, because a smaller window would not shorten it. */
static uint64_t counted_ns(const struct mrc_cc_delay *state, uint64_t reverse_ns) {
  return mrc_min_u64(reverse_ns, 2 * bare_target_ns(state));
}

/* The reverse queue adds to the target, up to the same again. */
static uint64_t target_delay_ns(const struct mrc_cc *cc) {
  const struct mrc_cc_delay *state = &cc->delay;
  const uint64_t bare_ns = bare_target_ns(state);
  return bare_ns + state->jitter_ns + mrc_min_u64(state->reverse_ns, bare_ns);
}

/* ---- slow start ---- */

/* A delay above this is a queue: half of the target, plus the jitter. */
static uint64_t queue_ns(const struct mrc_cc_delay *state) {
  return bare_target_ns(state) / 2 + state->jitter_ns;
}

/* ---- windows of one QP that share links ---- */

/* Where planes are pairs of interfaces, several share the link of an interface. All windows hold
   their queues near the same target, so a plane that passes two full links sees two queues, and
   leaves these links to the planes that pass only one: the links carry together what they can. The
   queue of each link is the price of a linear program, the maximum flow, and the target is 1. But
   on a slow link even two packets are a large part, and a drain would measure the queues that the
   others fill. So all drain together, and a window yields if the others reach all links without it.
   It begins small. While it finds more than the target, it rests, longer each time. Only on a long
   way it does not rest, because two packets are little there. */

static void rest(struct mrc_cc *cc, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  const uint64_t ns = mrc_max_u64(FIRST_REST_NS, 4 * state->round_rtt_ns) << state->rests;
  cc->rest_end_ns = now_ns + mrc_min_u64(ns, LONGEST_REST_NS);
  if (state->rests < MOST_RESTS) state->rests++;
}

/* The queue of the smallest windows of all, on two links as fast as this window has been: on slow
   links it is longer than half of the target. At most four targets: more is a longer way. */
static uint64_t coupled_queue_ns(const struct mrc_cc *cc) {
  const struct mrc_cc_delay *state = &cc->delay;
  const bool large = state->queue_since_bytes > LARGE_WINDOW * cc->min_bytes;
  if (state->peak_bytes == 0 || large) return 0;
  return mrc_min_u64(
      mrc_mul_div(2ull * state->coupled * cc->min_bytes, state->peak_ns, state->peak_bytes),
      4 * bare_target_ns(state));
}

static void note_peak(struct mrc_cc *cc, uint64_t delay_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  const uint64_t took_ns = mrc_max_u64(state->base_ns + delay_ns, 1);
  if (state->peak_bytes != 0 &&
      mrc_mul_div(state->peak_bytes, took_ns, state->peak_ns) >= cc->cwnd_bytes)
    return;
  state->peak_bytes = cc->cwnd_bytes;
  state->peak_ns = took_ns;
}

static void begin(struct mrc_cc_delay *state) {
  state->slow_start = true;
  state->drain = MRC_CC_NO_DRAIN;
  state->queue_since_bytes = 0;
}

/* ---- the end of a round ---- */

/* Reduces the window to the size that leaves a queue of the target, by half at most. */
static void decrease(struct mrc_cc *cc, uint64_t delay_ns) {
  const uint64_t excess_ns = delay_ns - target_delay_ns(cc);
  const uint64_t reverse_ns = cc->delay.round_reverse_ns;
  const uint64_t rtt_ns =
      cc->delay.base_ns + delay_ns + reverse_ns - counted_ns(&cc->delay, reverse_ns);
  const uint64_t cut_bytes = mrc_mul_div(cc->cwnd_bytes, excess_ns, rtt_ns);
  cc->cwnd_bytes = mrc_cc_clamp(cc, cc->cwnd_bytes - mrc_min_u64(cut_bytes, cc->cwnd_bytes / 2));
}

/* Adds a part of the window if the queue is empty, and less the longer the queue is. It always adds
   two packets, so that QPs that share a queue drift towards equal windows. The part doubles with
   each further round without a queue, because the plane may have become faster. */
static void increase(struct mrc_cc *cc, uint64_t delay_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  const uint64_t target_ns = target_delay_ns(cc);
  if (delay_ns > target_ns / 2)
    state->calm_rounds = 0;
  else if (state->calm_rounds < CALM_ROUNDS + MOST_DOUBLINGS)
    state->calm_rounds++;
  const uint32_t calm = state->calm_rounds > CALM_ROUNDS ? state->calm_rounds - CALM_ROUNDS : 0;
  const uint64_t most_bytes = cc->cwnd_bytes / GROWTH << calm;
  const uint64_t scaled = mrc_mul_div(most_bytes, target_ns - delay_ns, target_ns);
  cc->cwnd_bytes = mrc_cc_clamp(cc, cc->cwnd_bytes + scaled + 2ull * cc->mtu_bytes);
}

/* A smaller window shortens our own queue. If the delay stays, the base RTT has become longer or
   other flows fill the queue. A drain measures that part of the delay: it cuts the window to half
   of what the path holds and measures the delay that remains. */
static void start_drain(struct mrc_cc *cc, uint64_t delay_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  state->drain = MRC_CC_EMPTYING;
  cc->cwnd_bytes = mrc_cc_clamp(
      cc, mrc_mul_div(cc->cwnd_bytes, state->base_ns, 2 * (state->base_ns + delay_ns)));
}

static void end_drain(struct mrc_cc *cc, uint64_t delay_ns, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  const uint64_t target_ns = target_delay_ns(cc), before_bytes = state->queue_since_bytes;
  const uint64_t holds_ns = state->base_ns + target_ns; /* round trip with a queue of the target */
  uint64_t bytes = mrc_mul_div(before_bytes, holds_ns, state->base_ns + state->queue_since_ns);
  /* On slow links the smallest windows of coupled planes keep a queue. Another plane may drain more
     slowly, so a queue counts when so many drains in a row have found it. */
  const bool queue = delay_ns > bare_target_ns(state) / 2 + coupled_queue_ns(cc);
  const uint32_t drains = queue && state->coupled != 0 ? state->queued_drains + 1u : 0;
  state->queued_drains = (uint8_t)mrc_min_u32(drains, COUPLED_DRAINS);
  if (queue && (state->coupled == 0 || drains >= COUPLED_DRAINS)) {
    state->peak_bytes = 0;
    state->foreign_ns = mrc_min_u64(state->foreign_ns, state->base_ns) + delay_ns;
    state->found_base_ns = state->base_ns + delay_ns;
    bytes = before_bytes;
    state->slow_start = true;
    state->newest_samples = 0;
    state->newest_ns[0] = state->newest_ns[1] = 0;
  }
  cc->cwnd_bytes = mrc_cc_clamp(cc, bytes);
  state->drain = MRC_CC_NO_DRAIN;
  state->drained_ns = now_ns;
  state->queue_since_bytes = 0;
  state->calm_rounds = 0;
}

/* The delay is above the target. If a drain found a queue of other flows, the delay does not show
   our own part of the queue. For a while only losses cut the window then, as with TCP. */
static void on_queue(struct mrc_cc *cc, uint64_t delay_ns, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  const bool again = state->queued_drains % COUPLED_DRAINS != 0;
  const uint64_t every = again ? DRAIN_AGAIN_RTTS : DRAIN_EVERY_RTTS;
  const bool due = now_ns - state->drained_ns >= every * state->round_rtt_ns;
  if (!due && delay_ns < state->foreign_ns) {
    cc->cwnd_bytes =
        mrc_cc_clamp(cc, cc->cwnd_bytes + mrc_max_u64(cc->mtu_bytes, cc->cwnd_bytes / HELD_GROWTH));
    return;
  }
  const uint64_t since_bytes = state->queue_since_bytes;
  const uint64_t cut_bytes = since_bytes - mrc_min_u64(cc->cwnd_bytes, since_bytes);
  const bool tells = cut_bytes > since_bytes / 8 || cc->cwnd_bytes == cc->min_bytes;
  /* Where the peer sends too, its window can keep the delay up: a drain would measure that. */
  const bool alone = state->reverse_ns < bare_target_ns(state) / 2 && !state->yields;
  if (since_bytes != 0 && tells && due && alone) {
    /* Whether the delay stayed, although the window shrank since the queue began. */
    const uint64_t due_ns =
        mrc_mul_div(state->base_ns + state->queue_since_ns, cut_bytes, since_bytes);
    const uint64_t left_ns = state->queue_since_ns - mrc_min_u64(due_ns, state->queue_since_ns) / 2;
    /* The smallest window cannot shrink: the same delay has stayed. */
    if (delay_ns > left_ns || (state->coupled != 0 && delay_ns == left_ns)) {
      start_drain(cc, delay_ns);
      return;
    }
  }
  if (since_bytes == 0 || tells) {
    state->queue_since_bytes = cc->cwnd_bytes;
    state->queue_since_ns = delay_ns;
  }
  decrease(cc, delay_ns);
}

static void decide(struct mrc_cc *cc, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  const uint64_t mean_ns = state->round_sum_ns / state->round_samples;
  state->round_reverse_ns /= state->round_samples;
  state->reverse_ns =
      mrc_max_u64(state->round_reverse_ns, state->reverse_ns - state->reverse_ns / REVERSE_FADE);
  /* The smallest delay of the round counts as the standing queue. If the mean is much longer, the
     window leaves in waves and the queue runs dry between them; then the mean counts, less an
     allowance. */
  const uint64_t wave_ns = 2 * MRC_CC_MAX_JITTER_NS + state->base_ns / 2;
  const uint64_t delay_ns =
      mrc_max_u64(state->round_delay_ns, mean_ns - mrc_min_u64(mean_ns, wave_ns));
  if (state->coupled != 0 && state->round_limited && delay_ns > bare_target_ns(state) / 2)
    note_peak(cc, delay_ns);
  if (state->drain == MRC_CC_EMPTYING) {
    state->drain = MRC_CC_MEASURING;
    return;
  }
  if (state->drain == MRC_CC_MEASURING) {
    end_drain(cc, state->round_delay_ns, now_ns);
    return;
  }
  if (now_ns - state->drained_ns > FOREIGN_NS) state->foreign_ns = 0;
  /* It may have been the queue of another plane, from before the windows were coupled. */
  if (state->coupled != 0) state->foreign_ns = mrc_min_u64(state->foreign_ns, state->base_ns);
  state->jitter_ns = mrc_min_u64((3 * state->jitter_ns + mean_ns - state->round_delay_ns) / 4,
                                 MRC_CC_MAX_JITTER_NS);
  const uint64_t reverse_ns = mrc_min_u64(state->reverse_ns, bare_target_ns(state));
  const uint64_t own_ns = delay_ns - mrc_min_u64(delay_ns, reverse_ns);
  if (own_ns > mrc_max_u64(queue_ns(state), state->base_ns / 8)) state->slow_start = false;
  if (delay_ns > target_delay_ns(cc)) {
    state->calm_rounds = 0;
    if (state->yields && cc->cwnd_bytes == cc->min_bytes &&
        state->base_ns < bare_target_ns(state)) {
      rest(cc, now_ns);
    } else if (!state->round_paid) {
      on_queue(cc, delay_ns, now_ns);
    }
    return;
  }
  state->rests = 0;
  state->queue_since_bytes = 0;
  if (state->round_limited && !state->round_held && !state->slow_start) increase(cc, delay_ns);
}

/* ---- events ---- */

static void on_ack(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  state->coupled = ack->coupled;
  if (ack->bytes == 0 && ack->rtt_ns == 0) return;
  if (ack->rtt_ns != 0) { /* a sample */
    const uint64_t queues_ns = ack->rtt_ns > ack->base_rtt_ns ? ack->rtt_ns - ack->base_rtt_ns : 0;
    const uint64_t own_ns = queues_ns - mrc_min_u64(queues_ns, ack->reverse_ns);
    state->base_ns = ack->base_rtt_ns;
    const uint64_t delay_ns =
        state->drain != MRC_CC_NO_DRAIN ? own_ns : own_ns + counted_ns(state, queues_ns - own_ns);
    state->round_delay_ns =
        state->round_samples == 0 ? delay_ns : mrc_min_u64(state->round_delay_ns, delay_ns);
    state->round_samples++;
    state->round_sum_ns += delay_ns;
    state->round_reverse_ns += queues_ns - own_ns;
    state->round_rtt_ns = mrc_max_u64(state->round_rtt_ns, ack->smooth_rtt_ns);
    if (state->slow_start && state->newest_samples == NEWEST_SAMPLES) {
      state->newest_ns[1] = state->newest_ns[0];
      state->newest_samples = 0;
    }
    if (state->slow_start)
      state->newest_ns[0] =
          state->newest_samples++ == 0 ? own_ns : mrc_min_u64(state->newest_ns[0], own_ns);
  }
  if (ack->inflight_bytes + 2ull * cc->mtu_bytes >= cc->cwnd_bytes / 2) state->round_limited = true;
  /* Whether all newest samples show a long queue. A window sent as one burst queues behind itself;
     while it does not fill the path, that delay stays below a round trip. So delays up to half a
     base RTT do not count. */
  const uint64_t least_ns = mrc_min_u64(state->newest_ns[0], state->newest_ns[1]);
  if (state->slow_start && least_ns > mrc_max_u64(queue_ns(state), state->base_ns / 2))
    state->slow_start = false;
  if (state->slow_start && state->round_limited)
    cc->cwnd_bytes = mrc_cc_clamp(cc, cc->cwnd_bytes + ack->bytes);
  /* The end of a round. Fewer samples do not show a queue. Before the first sample the round trip
     is unknown. */
  if (now_ns < state->round_end_ns) return;
  if (state->slow_start && state->round_samples < START_SAMPLES) return;
  if (state->round_samples > 0)
    decide(cc, now_ns);
  else if (state->drain != MRC_CC_NO_DRAIN && state->coupled != 0)
    end_drain(cc, 0, now_ns); /* other planes carry its packets: it measures nothing */
  if (!state->slow_start) cc->cwnd_before_timeout_bytes = 0;
  const bool quick = state->slow_start || state->drain != MRC_CC_NO_DRAIN;
  state->round_end_ns =
      now_ns + mrc_max_u64((quick ? 1 : 2) * state->round_rtt_ns, MRC_CC_MIN_ROUND_NS);
  state->round_rtt_ns = 0;
  state->round_limited = false;
  state->round_paid = state->round_held = false;
  state->round_samples = 0;
  state->round_sum_ns = 0;
  state->round_reverse_ns = 0;
}

static void on_refused(struct mrc_cc *cc, uint64_t inflight_bytes) {
  if (!cc->delay.slow_start) return;
  cc->delay.slow_start = false;
  cc->cwnd_bytes = mrc_cc_clamp(cc, mrc_max_u64(inflight_bytes, 4ull * cc->mtu_bytes));
}

/* An overflow or a late packet cuts the window, once a round. A failed path is not congestion. */
static void on_loss(struct mrc_cc *cc, const struct mrc_cc_loss *loss, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  if (loss->cause == MRC_CC_LOSS_PATH) return;
  (void)now_ns;
  state->slow_start = false;
  if (state->round_paid || state->drain != MRC_CC_NO_DRAIN) return;
  state->round_paid = true;
  state->round_held = loss->cause == MRC_CC_LOSS_LATE;
  cc->cwnd_bytes = mrc_cc_clamp(cc, cc->cwnd_bytes * (state->round_held ? 5 : 7) / 10);
}

static void on_timeout(struct mrc_cc *cc) { begin(&cc->delay); }

static void on_spurious_timeout(struct mrc_cc *cc) { cc->delay.slow_start = false; }

/* The queue of other flows was added to the base RTT, but it counts here: it can overflow. */
static bool is_congestion(const struct mrc_cc *cc, uint64_t delay_ns) {
  return delay_ns + cc->delay.foreign_ns > target_delay_ns(cc) * 3 / 2;
}

static const struct mrc_cc_algorithm delay_algorithm = {.init = init,
                                                        .on_ack = on_ack,
                                                        .on_loss = on_loss,
                                                        .on_refused = on_refused,
                                                        .on_timeout = on_timeout,
                                                        .on_spurious_timeout = on_spurious_timeout,
                                                        .is_congestion = is_congestion};

/* ---- the interface ---- */

enum {
  ASKS_A_WINDOW = 4,       /* SACK requests per window; the sender never waits for a SACK */
  ASKS_IN_SLOW_START = 16, /* likewise; shows a queue before the window has doubled once more */
  NSCC_SACK_BYTES = 16384  /* bytes between two SACK requests: NSCC reacts to single marks */
};

/* No congestion control: the PSN window is the only limit. */
static int null_init(struct mrc_cc *cc, const struct mrc_cc_config *config) {
  (void)config;
  cc->cwnd_bytes = cc->min_bytes = cc->max_bytes;
  return 0;
}

static const struct mrc_cc_algorithm null_algorithm = {.init = null_init};

static const struct mrc_cc_algorithm *const algorithms[] = {
    [MRC_CC_DELAY] = &delay_algorithm,
    [MRC_CC_NULL] = &null_algorithm,
    [MRC_CC_NSCC] = &mrc_cc_nscc_algorithm,
};

int mrc_cc_init(struct mrc_cc *cc, const struct mrc_cc_config *config) {
  if (config->kind >= sizeof algorithms / sizeof algorithms[0]) return -EINVAL;
  *cc = (struct mrc_cc){
      .kind = config->kind, .mtu_bytes = config->mtu_bytes, .max_bytes = config->max_bytes};
  return algorithms[cc->kind]->init(cc, config);
}

uint64_t mrc_cc_on_ack(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns) {
  mrc_assert(ack->plane < MRC_MAX_PORTS);
  if (algorithms[cc->kind]->on_ack != NULL) algorithms[cc->kind]->on_ack(cc, ack, now_ns);
  if (cc->kind != MRC_CC_DELAY) return 0;
  const uint64_t base_ns = cc->delay.found_base_ns;
  cc->delay.found_base_ns = 0;
  return base_ns;
}

void mrc_cc_on_loss(struct mrc_cc *cc, const struct mrc_cc_loss *loss, uint64_t now_ns) {
  if (algorithms[cc->kind]->on_loss != NULL) algorithms[cc->kind]->on_loss(cc, loss, now_ns);
}

void mrc_cc_on_refused(struct mrc_cc *cc, uint64_t inflight_bytes) {
  if (algorithms[cc->kind]->on_refused != NULL)
    algorithms[cc->kind]->on_refused(cc, inflight_bytes);
}

void mrc_cc_on_timeout(struct mrc_cc *cc) {
  cc->cwnd_before_timeout_bytes = mrc_max_u64(cc->cwnd_bytes, cc->cwnd_before_timeout_bytes);
  cc->cwnd_bytes = cc->min_bytes;
  if (algorithms[cc->kind]->on_timeout != NULL) algorithms[cc->kind]->on_timeout(cc);
}

void mrc_cc_on_spurious_timeout(struct mrc_cc *cc) {
  if (cc->cwnd_before_timeout_bytes == 0) return;
  cc->cwnd_bytes = mrc_max_u64(cc->cwnd_bytes, cc->cwnd_before_timeout_bytes);
  cc->cwnd_before_timeout_bytes = 0;
  if (algorithms[cc->kind]->on_spurious_timeout != NULL)
    algorithms[cc->kind]->on_spurious_timeout(cc);
}

bool mrc_cc_is_congestion(const struct mrc_cc *cc, uint64_t delay_ns) {
  const struct mrc_cc_algorithm *algorithm = algorithms[cc->kind];
  return algorithm->is_congestion != NULL && algorithm->is_congestion(cc, delay_ns);
}

void mrc_cc_set_yields(struct mrc_cc *cc, bool yields) {
  if (cc->kind != MRC_CC_DELAY) return;
  if (yields && !cc->delay.yields) {
    cc->cwnd_bytes = cc->min_bytes;
    cc->cwnd_before_timeout_bytes = 0;
    begin(&cc->delay);
  }
  cc->delay.yields = yields;
}

bool mrc_cc_begins_drain(const struct mrc_cc *cc) {
  return cc->kind == MRC_CC_DELAY && cc->delay.drain == MRC_CC_EMPTYING;
}

void mrc_cc_drain(struct mrc_cc *cc, uint64_t rtt_ns, uint64_t now_ns) {
  struct mrc_cc_delay *state = &cc->delay;
  if (cc->kind != MRC_CC_DELAY || state->drain != MRC_CC_NO_DRAIN || state->base_ns == 0) return;
  if (state->base_ns > LONG_WAY_DRAINS * rtt_ns) return; /* it would drain all the time */
  if (state->yields) {
    cc->rest_end_ns = mrc_max_u64(cc->rest_end_ns, now_ns + 2 * rtt_ns);
    return;
  }
  const uint64_t delay_ns = state->round_samples > 0 ? state->round_delay_ns : 0;
  state->queue_since_bytes = cc->cwnd_bytes;
  state->queue_since_ns = mrc_max_u64(delay_ns, target_delay_ns(cc));
  start_drain(cc, delay_ns);
}

bool mrc_cc_asks_for_sack(const struct mrc_cc *cc, uint64_t inflight_bytes, uint32_t sack_bytes,
                          bool shared) {
  if (cc->kind != MRC_CC_NSCC) {
    /* Many QPs do not fill their windows, which then do not grow. */
    const bool grows = !shared || inflight_bytes >= cc->cwnd_bytes / 4;
    const bool starts = cc->kind == MRC_CC_DELAY && cc->delay.slow_start && grows;
    return cc->unasked_bytes >= cc->cwnd_bytes / (starts ? ASKS_IN_SLOW_START : ASKS_A_WINDOW);
  }
  const uint32_t interval = mrc_min_u32(sack_bytes, NSCC_SACK_BYTES);
  const bool full = inflight_bytes + cc->mtu_bytes > cc->cwnd_bytes;
  /* The SACKs of two intervals open a larger window again before it is used up. */
  if (cc->cwnd_bytes < 2 * interval) return full || cc->cwnd_bytes < interval;
  return (full || interval < sack_bytes) && cc->unasked_bytes >= interval;
}
