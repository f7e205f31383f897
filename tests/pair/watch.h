/* SPDX-License-Identifier: Apache-2.0 */
/* Passes the packets and completions of a pair's hosts to the auditors of their QPs. Checks here
   what belongs to no QP: the form and destination of bursts. */
#pragma once

#include "pair/pair_fabric.h"

void mrc_watch_burst(struct mrc_pair *pair, int host, const struct mrc_burst *burst);
/* The kernel has accepted a packet; decodes it into `wire`. */
void mrc_watch_sent(struct mrc_pair *pair, const struct mrc_datagram *packet,
                    struct mrc_wire *wire);
/* The kernel could not send a packet; call it before the engine is informed. Data on a suspended
   plane then counts as in flight, since no other plane is left. */
void mrc_watch_failed(struct mrc_pair *pair, const struct mrc_datagram *packet);
/* `drop` is the result of mrc_engine_receive. */
void mrc_watch_received(struct mrc_pair *pair, const struct mrc_datagram *packet, int drop);
/* The most UDP payload of a burst. */
uint32_t mrc_watch_burst_bytes(const struct mrc_pair *pair);
void mrc_watch_completion(struct mrc_pair *pair, int host, const struct mrc_wc *wc);
/* After the driver has sent. */
void mrc_watch_state(struct mrc_pair *pair, int host);
