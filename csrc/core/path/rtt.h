/* SPDX-License-Identifier: Apache-2.0 */
/* A round-trip estimate: smoothed value and variation as in RFC 6298, and the smallest seen. */
#pragma once

#include "core/base.h"

struct mrc_rtt {
  uint64_t smooth_ns; /* 0: no sample yet */
  uint64_t var_ns;
  uint64_t base_ns; /* the smallest sample */
  uint64_t last_ns; /* the newest sample */
};

static inline bool mrc_rtt_known(const struct mrc_rtt *rtt) { return rtt->smooth_ns != 0; }

static inline void mrc_rtt_sample(struct mrc_rtt *rtt, uint64_t sample_ns) {
  sample_ns = mrc_max_u64(sample_ns, 1);
  rtt->last_ns = sample_ns;
  if (!mrc_rtt_known(rtt)) {
    *rtt = (struct mrc_rtt){
        .smooth_ns = sample_ns,
        .var_ns = sample_ns / 2,
        .base_ns = rtt->base_ns != 0 ? mrc_min_u64(rtt->base_ns, sample_ns) : sample_ns,
        .last_ns = sample_ns};
    return;
  }
  const uint64_t off =
      sample_ns > rtt->smooth_ns ? sample_ns - rtt->smooth_ns : rtt->smooth_ns - sample_ns;
  rtt->var_ns = (3 * rtt->var_ns + off) / 4;
  rtt->smooth_ns = (7 * rtt->smooth_ns + sample_ns) / 8;
  rtt->base_ns = mrc_min_u64(rtt->base_ns, sample_ns);
}

/* The smoothed value alone, at most 4 s; 0: no sample yet. */
static inline void mrc_rtt_smooth(uint32_t *smooth_ns, uint64_t sample_ns) {
  const uint64_t sample = mrc_min_u64(mrc_max_u64(sample_ns, 1), UINT32_MAX);
  *smooth_ns = (uint32_t)(*smooth_ns == 0 ? sample : (7ull * *smooth_ns + sample) / 8);
}

/* The base round trip that other QPs measured on the same path: a QP that starts while a queue is
   full cannot measure the empty path. */
static inline void mrc_rtt_hint(struct mrc_rtt *rtt, uint64_t base_ns) {
  rtt->base_ns = rtt->base_ns == 0 ? base_ns : mrc_min_u64(rtt->base_ns, base_ns);
}

/* The path has become longer: the old smallest sample is out of date. */
static inline void mrc_rtt_rebase(struct mrc_rtt *rtt, uint64_t base_ns) {
  rtt->base_ns = mrc_min_u64(base_ns, mrc_max_u64(rtt->last_ns, 1));
}

/* The queueing delay of the newest sample; 0 without a sample, even after a hint. */
static inline uint64_t mrc_rtt_delay_ns(const struct mrc_rtt *rtt) {
  return mrc_rtt_known(rtt) ? rtt->last_ns - rtt->base_ns : 0;
}

/* The time after sending at which an answer is overdue. */
static inline uint64_t mrc_rtt_overdue_ns(const struct mrc_rtt *rtt, uint64_t floor_ns) {
  return rtt->smooth_ns + mrc_max_u64(4 * rtt->var_ns, floor_ns);
}
