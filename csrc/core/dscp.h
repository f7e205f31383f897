/* SPDX-License-Identifier: Apache-2.0 */
/* The code points by which a host learns that a switch trimmed a packet. Which they are is a local
   decision: two of the 16 that RFC 2474 leaves to experiments and local use. */
#ifndef MRC_CORE_DSCP_H
#define MRC_CORE_DSCP_H

#include "mrc.h"

enum mrc_dscp { MRC_DSCP_TRIMMED = 0x07, MRC_DSCP_TRIMMED_LASTHOP = 0x0B };

/* What a traffic class, ECN bits included, says of the packet: enum mrc_trimmed. */
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
