/* SPDX-License-Identifier: Apache-2.0 */
/* Reads messages from the receive sockets, cuts them into packets and gives these to the engine. It
   owns the inbox of the sockets. */
#pragma once

#include "io/udp.h"

/* 0 or -ENOMEM. mrc_udp_close frees it. */
int mrc_udp_inbox_open(struct mrc_udp *udp) MRC_MUST_CHECK;

/* Reads up to MRC_UDP_RECEIVED_AT_ONCE messages from one port's receive socket into the inbox.
   Returns how many. */
int mrc_udp_receive(struct mrc_udp *udp, int port);
/* Gives the packets of the inbox to the engine, and counts them. `now_ns` must not be earlier than
   the receive. */
struct mrc_udp_delivered {
  uint64_t bytes;
  uint32_t packets;
};
struct mrc_udp_delivered mrc_udp_deliver(struct mrc_udp *udp, int port, mrc_engine *engine,
                                         uint64_t now_ns);
