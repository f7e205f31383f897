/* SPDX-License-Identifier: Apache-2.0 */
#include "cc.h"

#include <errno.h>

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
    [MRC_CC_DELAY] = &mrc_cc_delay_algorithm,
    [MRC_CC_NULL] = &null_algorithm,
    [MRC_CC_NSCC] = &mrc_cc_nscc_algorithm,
};

int mrc_cc_init(struct mrc_cc *cc, const struct mrc_cc_config *config) {
  if (config->kind >= sizeof algorithms / sizeof algorithms[0]) return -EINVAL;
  *cc = (struct mrc_cc){
      .kind = config->kind, .mtu_bytes = config->mtu_bytes, .max_bytes = config->max_bytes};
  return algorithms[cc->kind]->init(cc, config);
}

void mrc_cc_on_ack(struct mrc_cc *cc, const struct mrc_cc_ack *ack, uint64_t now_ns) {
  mrc_assert(ack->plane < MRC_MAX_PORTS);
  if (algorithms[cc->kind]->on_ack != NULL) algorithms[cc->kind]->on_ack(cc, ack, now_ns);
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

uint64_t mrc_cc_take_base(struct mrc_cc *cc) {
  return algorithms[cc->kind]->take_base == NULL ? 0 : algorithms[cc->kind]->take_base(cc);
}

bool mrc_cc_is_congestion(const struct mrc_cc *cc, uint64_t delay_ns) {
  const struct mrc_cc_algorithm *algorithm = algorithms[cc->kind];
  return algorithm->is_congestion != NULL && algorithm->is_congestion(cc, delay_ns);
}

bool mrc_cc_asks_for_sack(const struct mrc_cc *cc, uint64_t inflight_bytes, uint64_t unasked_bytes,
                          uint32_t sack_bytes, bool shared) {
  if (cc->kind != MRC_CC_NSCC) {
    /* Many QPs do not fill their windows, which then do not grow. */
    const bool grows = !shared || inflight_bytes >= cc->cwnd_bytes / 4;
    const bool starts = cc->kind == MRC_CC_DELAY && cc->delay.slow_start && grows;
    return unasked_bytes >= cc->cwnd_bytes / (starts ? ASKS_IN_SLOW_START : ASKS_A_WINDOW);
  }
  const uint32_t interval = mrc_min_u32(sack_bytes, NSCC_SACK_BYTES);
  const bool full = inflight_bytes + cc->mtu_bytes > cc->cwnd_bytes;
  /* The SACKs of two intervals open a larger window again before it is used up. */
  if (cc->cwnd_bytes < 2 * interval) return full || cc->cwnd_bytes < interval;
  return (full || interval < sack_bytes) && unasked_bytes >= interval;
}
