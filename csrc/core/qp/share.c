/* SPDX-License-Identifier: Apache-2.0 */
#include "share.h"

bool mrc_share_judge(struct mrc_share *share, uint64_t bytes, uint64_t others_bytes,
                     uint32_t n_others) {
  mrc_assert(n_others > 0);
  const uint64_t percent = others_bytes == 0 ? MRC_SHARE_MAX_PERCENT
                                             : mrc_mul_div(bytes, 100ull * n_others, others_bytes);
  share->compared = true;
  share->percent = (uint32_t)mrc_min_u64(percent, MRC_SHARE_MAX_PERCENT);
  const bool against = share->slow ? share->percent > MRC_SHARE_FAIR_PERCENT
                                   : share->percent < MRC_SHARE_SLOW_PERCENT;
  share->against = against ? share->against + 1 : 0;
  if (share->against < MRC_SHARE_PERIODS) return false;
  share->against = 0;
  share->slow = !share->slow;
  return true;
}

bool mrc_share_is_bulk(const struct mrc_share_sum *sum, uint32_t n_planes, uint32_t mtu_bytes) {
  if (sum->bytes < (uint64_t)n_planes * MRC_SHARE_MIN_PACKETS * mtu_bytes) return false;
  return sum->backed_bytes >= sum->bytes / 4 * 3;
}
