/* SPDX-License-Identifier: Apache-2.0 */
/* From the receive sockets to the engine: messages of the kernel are cut into packets. It owns the
   inbox of the sockets. */
#ifndef MRC_IO_UDP_RECEIVE_H
#define MRC_IO_UDP_RECEIVE_H

#include "io/udp.h"

/* 0 or -ENOMEM. */
int mrc_udp_inbox_open(struct mrc_udp *udp) MRC_MUST_CHECK;
void mrc_udp_inbox_close(struct mrc_udp *udp);

/* Takes what waits at one port's receive socket, up to a fixed amount, into the inbox. Returns the
   number of messages; 0 when there is none. */
int mrc_udp_receive(struct mrc_udp *udp, int port);
/* Gives the packets of the inbox to the engine, and counts them. `now_ns` must not be earlier than
   the receive. */
struct mrc_udp_delivered {
  uint64_t bytes;
  uint32_t packets;
};
struct mrc_udp_delivered mrc_udp_deliver(struct mrc_udp *udp, int port, mrc_engine *engine,
                                         uint64_t now_ns);

#endif
