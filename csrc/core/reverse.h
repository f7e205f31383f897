/* SPDX-License-Identifier: Apache-2.0 */
/* The reverse EVs of a QP that receives and does not send, what is known of them: by which EV of
   each plane its SACKs survive. Probes find it out: see reverse_tx.h. */
#ifndef MRC_CORE_REVERSE_H
#define MRC_CORE_REVERSE_H

#include "plane.h"

#define MRC_REVERSE_FAILURES 2 /* in a row: the plane serves for no answers until one succeeds */

/* By which EVs the answers of a QP that only receives get through. */
struct mrc_reverse {
  struct mrc_rtt rtt;  /* of its probes */
  uint64_t next_ns;    /* no probe before */
  uint64_t seen_ns;    /* arrival of the newest packet at the last probe */
  uint64_t seen_bytes; /* received by then */
  uint32_t probing;    /* planes with a probe on its way, as a mask */
  uint8_t plane;       /* probed last */
  uint8_t backoff;     /* probes that failed since one was answered, at most 6 */
};

/* A probe of this EV of the plane was answered. */
void mrc_reverse_on_answer(struct mrc_reverse *reverse, struct mrc_plane *planes, uint32_t plane,
                           uint16_t ev, uint64_t rtt_ns);
/* It was not answered in time, or the kernel could not send it; `offered`: it came so far. */
void mrc_reverse_on_failure(struct mrc_reverse *reverse, struct mrc_plane *planes, uint32_t plane,
                            uint16_t ev, bool offered);

#endif
