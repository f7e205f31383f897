/* SPDX-License-Identifier: Apache-2.0 */
/* What every host of a pair sends, takes and completes, shown to the auditors of the QPs that it
   belongs to. What belongs to no QP is checked here: the form of bursts, and where they go. */
#ifndef MRC_PAIR_WATCH_H
#define MRC_PAIR_WATCH_H

#include "pair/pair_fabric.h"

void mrc_watch_burst(struct mrc_pair *pair, int host, const struct mrc_burst *burst);
/* A packet that the kernel takes; decodes it into `wire`. */
void mrc_watch_sent(struct mrc_pair *pair, const struct mrc_datagram *packet,
                    struct mrc_wire *wire);
/* A packet that the kernel could not send, before the engine is told. Data on a suspended plane
   then counts as in flight, since no other plane is left. */
void mrc_watch_failed(struct mrc_pair *pair, const struct mrc_datagram *packet);
/* `drop` is what mrc_engine_receive returned. */
void mrc_watch_received(struct mrc_pair *pair, const struct mrc_datagram *packet, int drop);
void mrc_watch_completion(struct mrc_pair *pair, int host, const struct mrc_wc *wc);
/* After the driver has sent. */
void mrc_watch_state(struct mrc_pair *pair, int host);

#endif
