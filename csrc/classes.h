/* SPDX-License-Identifier: Apache-2.0 */
/* Part of mrc.h: traffic classes. */
#pragma once

#include <stdint.h>

/* cdef begin */

#define MRC_DSCP_TRIMMED 7       /* default code point of trimmed packets */
#define MRC_DSCP_TRIMMED_LAST 11 /* default code point of those trimmed at the last hop */

/* Code points (DSCP, 0..63) of what an engine sends, and those by which switches mark what they
   have trimmed. The latter two differ from each other and from the others. */
struct mrc_dscps {
  uint8_t control;        /* SACKs, NACKs, ACKs, probes, port states and answers to them [0] */
  uint8_t data;           /* data that leaves for the first time [0] */
  uint8_t retransmission; /* [0] */
  uint8_t trimmed;        /* [MRC_DSCP_TRIMMED] */
  uint8_t trimmed_last;   /* trimmed at the last hop [MRC_DSCP_TRIMMED_LAST] */
  uint8_t reserved[3];    /* 0 */
};

/* cdef end */
