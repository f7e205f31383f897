/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the engine's bursts as kernel messages on the transmit sockets. It owns the outbox of the
   sockets, and decides how to handle refusals. */
#pragma once

#include "io/udp.h"

/* 0 or -ENOMEM. mrc_udp_close frees it. */
int mrc_udp_outbox_open(struct mrc_udp *udp) MRC_MUST_CHECK;

/* Sends up to MRC_UDP_BURSTS bursts and writes their fates for mrc_engine_commit. Returns the ports
   that refused a burst and now wait, bit n - 1 for port n. */
uint32_t mrc_udp_send(struct mrc_udp *udp, const struct mrc_burst *bursts, int n, int *taken,
                      uint64_t now_ns);

/* A transmit socket has room again. True when its whole port may send again. */
bool mrc_udp_on_room(struct mrc_udp *udp, int port, int tx_index);
/* The next time at which mrc_udp_retry has work; MRC_NEVER when none. */
uint64_t mrc_udp_deadline(const struct mrc_udp *udp);
/* Returns the ports that may send again, bit n - 1 for port n. */
uint32_t mrc_udp_retry(struct mrc_udp *udp, uint64_t now_ns);

/* Empties the error queue of a transmit socket and returns how many reports it held. */
int mrc_udp_drain_errors(struct mrc_udp *udp, int port, int tx_index);
