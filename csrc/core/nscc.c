/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NSCC, the window algorithm of Ultra Ethernet that MRC uses. Each acknowledgement falls into one
 * of four cases:
 *
 *               delay below target                    delay at target or above
 *   no ECN      fast or proportional increase         fair increase
 *   ECN         nothing                               multiplicative decrease
 *
 * Switches do not mark on the last hop, so only the delay shows an incast there. A delay above
 * md_threshold_ns decreases the window like a mark. The threshold is close to the target: a port
 * with a buffer of one BDP never shows more delay than a base RTT, and trims further packets. Above
 * the threshold fair increase continues more slowly, because decreases alone do not bring windows
 * closer together.
 *
 * All arithmetic is in integers, so that the same seed gives the same trace on every machine.
 *
 * Bytes are payload newly acknowledged, each byte once. UET uses differences of rcvd_bytes in the
 * SACKs instead, a total modulo 2^24 in units of 256 bytes. Our SACKs travel on all planes and
 * overtake each other, so these differences would be coarse and sometimes negative. For the same
 * reason a SACK counts in the average delay once for each packet that it acknowledges.
 */
#include <errno.h>

#include "core/cc.h"

/* UET states its formulas relative to a network of 100 Gbit/s and 12 us. */
#define REFERENCE_RTT_NS 12000ull
#define REFERENCE_BDP_BYTES 150000ull

#define AVERAGE_SAMPLES 80        /* weight of one sample: 1/80 = 0.0125 */
#define CALM_DELAY_FLOOR_NS 2048u /* two ticks of the timestamp */
#define PENALTY_UNIT 128
#define FAIR_SLOWDOWN 5 /* divides the fair increase above md_threshold_ns */

static void set_default(uint64_t *field, uint64_t value) {
  if (*field == 0) *field = value;
}

/* Bytes that the planes together hold without queues. */
static uint64_t bdp_bytes(const struct mrc_cc_profile *p, uint32_t planes) {
  return mrc_mul_div(p->link_bps, p->base_rtt_ns, 8000000000ull) * planes;
}

/* Fills in the fields that the caller left 0, by UET's formulas: a scales with the BDP, b with the
   target. The default target suits switches that trim; without trimming, a whole base RTT works. */
static void fill(struct mrc_cc_profile *p, uint32_t mtu_bytes, uint32_t planes) {
  set_default(&p->link_bps, MRC_CC_LINK_BPS);
  set_default(&p->base_rtt_ns, MRC_CC_BASE_RTT_NS);
  const uint64_t bdp = bdp_bytes(p, planes);
  const uint64_t mtu_a = mrc_mul_div(mtu_bytes, bdp, REFERENCE_BDP_BYTES);
  const uint64_t a = mrc_mul_div(MRC_CC_UNIT, bdp, REFERENCE_BDP_BYTES);
  set_default(&p->max_cwnd, mrc_max_u64(bdp + bdp / 2, mtu_bytes));
  set_default(&p->target_delay_ns, p->base_rtt_ns * 3 / 4);
  set_default(&p->fi, mrc_max_u64(5 * mtu_a, 1));
  set_default(&p->eta, mrc_max_u64(mtu_a * 15 / 100, 1));
  set_default(&p->adjust_period_threshold_ns, p->base_rtt_ns);
  set_default(&p->adjust_bytes_threshold, 8ull * mtu_bytes);
  set_default(&p->qa_threshold_ns, 4 * p->target_delay_ns);
  set_default(&p->md_threshold_ns, p->target_delay_ns * 11 / 10);
  if (p->fi_scale == 0)
    p->fi_scale = (uint32_t)mrc_max_u64(mrc_min_u64(a / 4, MRC_CC_MAX_FI_SCALE), 1);
  if (p->gamma == 0) p->gamma = MRC_CC_UNIT * 8 / 10;
  if (p->max_md_jump == 0) p->max_md_jump = MRC_CC_UNIT / 2;
  if (p->qa_gate == 0) p->qa_gate = 3;
}

/* The bounds ensure that no product below overflows. */
static bool valid(const struct mrc_cc_profile *p) {
  const bool times = p->base_rtt_ns <= MRC_CC_MAX_NS && p->target_delay_ns <= MRC_CC_MAX_NS &&
                     p->adjust_period_threshold_ns <= MRC_CC_MAX_NS &&
                     p->qa_threshold_ns <= MRC_CC_MAX_NS && p->md_threshold_ns <= MRC_CC_MAX_NS;
  const bool bytes = p->max_cwnd <= MRC_CC_MAX_BYTES && p->fi <= MRC_CC_MAX_BYTES &&
                     p->eta <= MRC_CC_MAX_BYTES && p->adjust_bytes_threshold <= MRC_CC_MAX_BYTES;
  return times && bytes && p->link_bps <= MRC_CC_MAX_BPS &&
         (p->base_rtt_ns == 0 || p->base_rtt_ns >= MRC_CC_MIN_BASE_RTT_NS) &&
         p->fi_scale <= MRC_CC_MAX_FI_SCALE && p->gamma <= MRC_CC_UNIT &&
         p->max_md_jump <= MRC_CC_UNIT && p->qa_gate <= MRC_CC_MAX_QA_GATE && p->disable_qa <= 1;
}

static int init(struct mrc_cc *cc, const struct mrc_cc_config *config) {
  struct mrc_cc_nscc *nscc = &cc->nscc;
  struct mrc_cc_profile *profile = &nscc->profile;
  *profile = config->profile;
  nscc->base_limit_ns = profile->base_rtt_ns != 0 ? profile->base_rtt_ns : UINT64_MAX;
  if (config->planes == 0 || !valid(profile)) return -EINVAL;
  fill(profile, config->mtu_bytes, config->planes);
  const uint64_t target_ns = profile->target_delay_ns;
  if (profile->qa_threshold_ns < target_ns || profile->md_threshold_ns < target_ns ||
      profile->max_cwnd < config->mtu_bytes)
    return -EINVAL;
  cc->max_bytes = mrc_min_u64(config->max_bytes, profile->max_cwnd);
  cc->min_bytes = mrc_min_u64(config->mtu_bytes, cc->max_bytes);
  cc->cwnd_bytes = cc->max_bytes;
  /* No single step is larger than the largest window. */
  profile->fi = mrc_min_u64(profile->fi, cc->max_bytes);
  profile->eta = mrc_min_u64(profile->eta, cc->max_bytes);
  const uint64_t mtu_4b = mrc_mul_div(4ull * config->mtu_bytes, target_ns, REFERENCE_RTT_NS);
  nscc->alpha = mrc_mul_div(mtu_4b, bdp_bytes(profile, config->planes), REFERENCE_BDP_BYTES);
  nscc->alpha = mrc_min_u64(nscc->alpha, cc->max_bytes);
  return 0;
}

/* ---- what an acknowledgement does ---- */

static void average(struct mrc_cc *cc, uint64_t delay_ns, uint64_t bytes) {
  struct mrc_cc_nscc *nscc = &cc->nscc;
  const uint64_t samples = mrc_max_u64(bytes / cc->mtu_bytes, 1);
  nscc->avg_delay_ns = (nscc->avg_delay_ns * (AVERAGE_SAMPLES - 1) + delay_ns * samples) /
                       (AVERAGE_SAMPLES - 1 + samples);
}

/* Counts the bytes acknowledged in a row almost without delay. An acknowledgement without a round
   trip shows nothing about the queue. */
static void note_calm(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t delay_ns) {
  struct mrc_cc_nscc *nscc = &cc->nscc;
  const uint64_t calm_ns = mrc_max_u64(nscc->profile.base_rtt_ns / 12, CALM_DELAY_FLOOR_NS);
  const bool measured = ack->rtt_ns != 0;
  if (ack->ce || (measured && delay_ns >= calm_ns))
    nscc->calm_bytes = 0;
  else if (measured || nscc->calm_bytes > 0)
    nscc->calm_bytes = mrc_min_u64(nscc->calm_bytes + ack->bytes, cc->max_bytes);
}

/* Grows in proportion to the bytes acknowledged, after a whole window was acknowledged without a
   queue. */
static bool fast_increase(struct mrc_cc *cc, uint64_t bytes) {
  struct mrc_cc_nscc *nscc = &cc->nscc;
  if (nscc->calm_bytes < cc->cwnd_bytes) return false;
  nscc->calm_bytes = cc->max_bytes; /* so that fast increase lasts while the window grows */
  cc->cwnd_bytes =
      mrc_cc_clamp(cc, cc->cwnd_bytes + mrc_mul_div(bytes, nscc->profile.fi_scale, MRC_CC_UNIT));
  return true;
}

/* Decreases the window, except at a timeout. A later spurious timeout no longer restores it. */
static void shrink(struct mrc_cc *cc, uint64_t bytes) {
  cc->cwnd_bytes = mrc_cc_clamp(cc, bytes);
  cc->cwnd_before_timeout_bytes = 0;
  cc->nscc.calm_bytes = 0;
}

static void multiplicative_decrease(struct mrc_cc *cc, uint64_t period_ns, uint64_t now_ns) {
  struct mrc_cc_nscc *nscc = &cc->nscc;
  const uint64_t target_ns = nscc->profile.target_delay_ns, avg_ns = nscc->avg_delay_ns;
  if (avg_ns <= target_ns || now_ns - nscc->decreased_ns < period_ns) return;
  nscc->decreased_ns = now_ns;
  const uint64_t cut = mrc_mul_div(nscc->profile.gamma, avg_ns - target_ns, avg_ns);
  const uint64_t keep = mrc_max_u64(MRC_CC_UNIT - cut, nscc->profile.max_md_jump);
  shrink(cc, mrc_mul_div(cc->cwnd_bytes, keep, MRC_CC_UNIT));
}

/* Applies the gathered increases, once in adjust_period_threshold_ns or adjust_bytes_threshold;
   adds eta once in a period. */
static void adjust(struct mrc_cc *cc, uint64_t bytes, uint64_t now_ns) {
  struct mrc_cc_nscc *nscc = &cc->nscc;
  nscc->gathered_bytes += bytes;
  const bool period = now_ns - nscc->adjusted_ns >= nscc->profile.adjust_period_threshold_ns;
  if (!period && nscc->gathered_bytes < nscc->profile.adjust_bytes_threshold) return;
  const uint64_t eta = period ? nscc->profile.eta : 0;
  cc->cwnd_bytes = mrc_cc_clamp(cc, cc->cwnd_bytes + nscc->gathered / cc->cwnd_bytes + eta);
  if (period) nscc->adjusted_ns = now_ns;
  nscc->gathered = 0;
  nscc->gathered_bytes = 0;
}

/* Each plane has its own base RTT, the smallest seen. The configured one limits it, because a new
   QP may never see the queue empty. */
static uint64_t base_rtt_ns(const struct mrc_cc_nscc *nscc, const struct mrc_cc_ack *ack) {
  if (ack->rtt_ns == 0) return nscc->profile.base_rtt_ns;
  return mrc_min_u64(ack->base_rtt_ns, nscc->base_limit_ns);
}

static void react(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t delay_ns,
                  uint64_t now_ns) {
  struct mrc_cc_nscc *nscc = &cc->nscc;
  const uint64_t target_ns = nscc->profile.target_delay_ns;
  note_calm(cc, ack, delay_ns);
  if (!ack->ce && delay_ns < target_ns) {
    if (!fast_increase(cc, ack->bytes))
      nscc->gathered += mrc_mul_div(nscc->alpha, target_ns - delay_ns, target_ns) * ack->bytes;
  } else {
    const bool high = delay_ns > nscc->profile.md_threshold_ns;
    if (ack->ce && delay_ns >= target_ns)
      multiplicative_decrease(cc, base_rtt_ns(nscc, ack), now_ns);
    else if (!ack->ce && high)
      multiplicative_decrease(cc, base_rtt_ns(nscc, ack) + delay_ns, now_ns);
    if (!ack->ce) nscc->gathered += nscc->profile.fi * ack->bytes / (high ? FAIR_SLOWDOWN : 1);
  }
  adjust(cc, ack->bytes, now_ns);
}

/* ---- quick adapt ---- */

/* Checks once a period whether the network is congested and far fewer bytes arrived than it could
   carry. Then reduces the window to the bytes that arrived, and returns true. */
static bool quick_adapt(struct mrc_cc *cc, uint64_t delay_ns, uint64_t inflight_bytes,
                        uint64_t now_ns) {
  struct mrc_cc_nscc *nscc = &cc->nscc;
  const struct mrc_cc_profile *profile = &nscc->profile;
  if (profile->disable_qa != 0 || now_ns < nscc->qa_end_ns) return false;
  const bool measured = nscc->qa_end_ns != 0;
  const bool crowded = nscc->qa_armed || delay_ns > profile->qa_threshold_ns;
  /* If only the delay shows congestion, the period is a round trip. A decrease causes a shorter
     pause in the acknowledgements, which must not look like starvation. */
  const uint64_t target_ns = profile->target_delay_ns;
  const uint64_t longer_ns = delay_ns > target_ns ? delay_ns - target_ns : 0;
  if (measured && !nscc->qa_armed && now_ns < nscc->qa_end_ns + longer_ns) return false;
  const uint64_t achieved_bytes = nscc->achieved_bytes;
  nscc->qa_end_ns = now_ns + profile->base_rtt_ns + target_ns;
  nscc->achieved_bytes = 0;
  nscc->qa_armed = false;
  if (!measured || !crowded || achieved_bytes >= cc->max_bytes >> profile->qa_gate) return false;
  shrink(cc, mrc_min_u64(achieved_bytes, cc->cwnd_bytes));
  nscc->ignore_bytes = inflight_bytes;
  nscc->gathered = 0;
  return true;
}

/* Whether these bytes were in flight when quick adapt fired. */
static bool is_ignored(struct mrc_cc_nscc *nscc, uint64_t bytes) {
  if (nscc->ignore_bytes == 0) return false;
  nscc->ignore_bytes -= mrc_min_u64(nscc->ignore_bytes, bytes);
  return true;
}

/* ---- the receiver's penalty ---- */

/* With the full penalty the sender sends one packet in a round trip; with half of it, one packet
   for two that are acknowledged. */
static void penalize(struct mrc_cc *cc, const struct mrc_cc_ack *ack) {
  struct mrc_cc_nscc *nscc = &cc->nscc;
  if (ack->restore_window && nscc->saved_bytes != 0) {
    cc->cwnd_bytes = mrc_cc_clamp(cc, mrc_max_u64(cc->cwnd_bytes, nscc->saved_bytes));
    nscc->saved_bytes = 0;
  }
  if (ack->penalty == 0 || ack->bytes == 0) return;
  if (nscc->saved_bytes == 0) nscc->saved_bytes = cc->cwnd_bytes;
  const uint64_t used_bytes = mrc_min_u64(cc->cwnd_bytes, ack->inflight_bytes);
  const uint64_t cut_bytes = ack->bytes * ack->penalty / PENALTY_UNIT;
  shrink(cc, used_bytes - mrc_min_u64(used_bytes, cut_bytes));
}

/* ---- events ---- */

static void on_ack(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns) {
  struct mrc_cc_nscc *nscc = &cc->nscc;
  uint64_t delay_ns = nscc->avg_delay_ns; /* replaces a missing sample */
  if (ack->rtt_ns != 0) {
    const uint64_t base_ns = base_rtt_ns(nscc, ack);
    delay_ns = ack->rtt_ns > base_ns ? ack->rtt_ns - base_ns : 0;
    average(cc, delay_ns, ack->bytes);
  }
  nscc->achieved_bytes += ack->bytes;
  /* More may be acknowledged than was in flight, if an original was declared lost but arrived. */
  const uint64_t left_bytes = ack->inflight_bytes - mrc_min_u64(ack->inflight_bytes, ack->bytes);
  if (!is_ignored(nscc, ack->bytes) && !quick_adapt(cc, delay_ns, left_bytes, now_ns))
    react(cc, ack, delay_ns, now_ns);
  /* With nothing in flight the application is the limit, so the period measures nothing. */
  if (left_bytes == 0) nscc->qa_end_ns = 0;
  penalize(cc, ack);
}

static void on_loss(struct mrc_cc *cc, const struct mrc_cc_loss *loss, uint64_t now_ns) {
  struct mrc_cc_nscc *nscc = &cc->nscc;
  if (loss->cause == MRC_CC_LOSS_LATE) {
    if (now_ns - nscc->decreased_ns < nscc->profile.base_rtt_ns) return;
    nscc->decreased_ns = now_ns;
    shrink(cc, cc->cwnd_bytes / 2);
    return;
  }
  if (is_ignored(nscc, loss->bytes)) return;
  if (loss->cause == MRC_CC_LOSS_PATH && nscc->calm_bytes > 0) return; /* no queue, no overflow */
  if (loss->cause != MRC_CC_LOSS_PATH) nscc->qa_armed = true;
  if (loss->cause == MRC_CC_LOSS_TRIMMED) {
    const uint64_t delay_ns = nscc->profile.base_rtt_ns;
    average(cc, delay_ns, loss->bytes);
    if (quick_adapt(cc, delay_ns, loss->inflight_bytes, now_ns)) return;
  }
  shrink(cc, cc->cwnd_bytes - mrc_min_u64(cc->cwnd_bytes, loss->bytes));
}

static void on_timeout(struct mrc_cc *cc) {
  cc->nscc.ignore_bytes = 0; /* nothing is in flight any more */
  cc->nscc.gathered = 0;
  cc->nscc.calm_bytes = 0;
}

static bool is_congestion(const struct mrc_cc *cc, uint64_t delay_ns) {
  return delay_ns > cc->nscc.profile.target_delay_ns * 3 / 2;
}

const struct mrc_cc_algorithm mrc_cc_nscc_algorithm = {.init = init,
                                                       .on_ack = on_ack,
                                                       .on_loss = on_loss,
                                                       .on_timeout = on_timeout,
                                                       .is_congestion = is_congestion};
