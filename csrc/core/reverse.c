/* SPDX-License-Identifier: Apache-2.0 */
#include "reverse.h"

#define MAX_BACKOFF 6 /* doublings of patience and interval while no probe is answered */

void mrc_reverse_on_answer(struct mrc_reverse *reverse, struct mrc_plane *planes, uint32_t plane,
                           uint16_t ev, uint64_t rtt_ns) {
  mrc_rtt_sample(&reverse->rtt, rtt_ns);
  planes[plane].reverse_ev = ev;
  planes[plane].reverse_failures = 0;
  reverse->backoff = 0;
  reverse->probing &= ~(1u << plane);
}

void mrc_reverse_on_failure(struct mrc_reverse *reverse, struct mrc_plane *planes, uint32_t index,
                            uint16_t ev, bool offered) {
  struct mrc_plane *plane = &planes[index];
  reverse->probing &= ~(1u << index);
  if (!offered) return; /* the kernel never saw it: that says nothing about the way */
  if (plane->reverse_ev == ev) plane->reverse_ev = MRC_EV_NONE;
  if (plane->reverse_failures < MRC_REVERSE_FAILURES) plane->reverse_failures++;
  if (reverse->backoff < MAX_BACKOFF) reverse->backoff++;
}
