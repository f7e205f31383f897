/* SPDX-License-Identifier: Apache-2.0 */
/* The delay-based control: a window for each plane, by its queueing delay. */
#ifndef MRC_CORE_CC_DELAY_H
#define MRC_CORE_CC_DELAY_H

#include "cc_algorithm.h"

/* The delay-based window, a choice of ours: it holds the standing queue near this target, short
   against any sane buffer. What the delay varies by without a queue is added. */
#define MRC_CC_TARGET_DELAY_NS 3000000ull
#define MRC_CC_MAX_JITTER_NS 6000000ull /* so much is added at most */
#define MRC_CC_MIN_ROUND_NS 1000000ull  /* shortest time between two decisions */
#define MRC_CC_INITIAL_BYTES 262144ull  /* of all windows of a QP together */

extern const struct mrc_cc_algorithm mrc_cc_delay_algorithm;

#endif
