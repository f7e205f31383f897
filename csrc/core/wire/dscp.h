/* SPDX-License-Identifier: Apache-2.0 */
/* Code points of traffic classes. For packets that a switch has trimmed, we chose two of the 16
   code points that RFC 2474 reserves for experiments and local use. */
#pragma once

#include <stdbool.h>

#include "mrc.h"

/* Fills in the defaults. Returns whether the code points are in range, and trimmed packets can be
   told from others. */
static inline bool mrc_dscps_fill(struct mrc_dscps *dscps) {
  if (dscps->trimmed == 0) dscps->trimmed = MRC_DSCP_TRIMMED;
  if (dscps->trimmed_last == 0) dscps->trimmed_last = MRC_DSCP_TRIMMED_LAST;
  const uint8_t sent[] = {dscps->control, dscps->data, dscps->retransmission};
  for (int i = 0; i < 3; i++)
    if (sent[i] > 63 || sent[i] == dscps->trimmed || sent[i] == dscps->trimmed_last) return false;
  return dscps->trimmed <= 63 && dscps->trimmed_last <= 63 && dscps->trimmed != dscps->trimmed_last;
}

/* The enum mrc_trimmed of a packet with this traffic class (ECN bits included). */
static inline uint8_t mrc_dscp_trimmed(const struct mrc_dscps *dscps, uint32_t tclass) {
  const uint32_t dscp = tclass >> 2 & 0x3F;
  if (dscp == dscps->trimmed) return MRC_TRIMMED;
  return dscp == dscps->trimmed_last ? MRC_TRIMMED_LASTHOP : MRC_UNTRIMMED;
}
