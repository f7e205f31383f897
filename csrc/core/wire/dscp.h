/* SPDX-License-Identifier: Apache-2.0 */
/* Code points that mark a packet as trimmed by a switch. We chose two of the 16 code points that
   RFC 2474 reserves for experiments and local use. */
#ifndef MRC_CORE_DSCP_H
#define MRC_CORE_DSCP_H

#include "mrc.h"

enum mrc_dscp { MRC_DSCP_TRIMMED = 0x07, MRC_DSCP_TRIMMED_LASTHOP = 0x0B };

/* The enum mrc_trimmed of a packet with this traffic class (ECN bits included). */
static inline uint8_t mrc_dscp_trimmed(uint32_t tclass) {
  switch (tclass >> 2 & 0x3F) {
    case MRC_DSCP_TRIMMED:
      return MRC_TRIMMED;
    case MRC_DSCP_TRIMMED_LASTHOP:
      return MRC_TRIMMED_LASTHOP;
    default:
      return MRC_UNTRIMMED;
  }
}

#endif
