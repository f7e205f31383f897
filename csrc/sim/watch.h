/* SPDX-License-Identifier: Apache-2.0 */
/* What every host of a pair sends, takes and completes, shown to the auditors of the QPs that it
   belongs to. What belongs to no QP is checked here: the form of bursts, and where they go. */
#ifndef MRC_SIM_WATCH_H
#define MRC_SIM_WATCH_H

#include "sim/pair.h"

void mrc_watch_burst(struct mrc_pair *pair, int host, const struct mrc_burst *burst);
/* One packet of a burst that the kernel takes; decodes it into `wire`. */
void mrc_watch_sent(struct mrc_pair *pair, int host, const struct mrc_meta *meta,
                    const uint8_t *bytes, uint32_t n, struct mrc_wire *wire);
/* `drop` is what mrc_engine_receive returned; `flipped` the bit that a fault flipped, or -1. */
void mrc_watch_received(struct mrc_pair *pair, int host, const struct mrc_meta *meta,
                        const uint8_t *bytes, uint32_t n, int drop, int flipped);
void mrc_watch_completion(struct mrc_pair *pair, int host, const struct mrc_wc *wc);
/* After a run of the driver. */
void mrc_watch_state(const struct mrc_pair *pair, int host);

#endif
