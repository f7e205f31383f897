/* SPDX-License-Identifier: Apache-2.0 */
/* Ports that come and go while a datapath runs: their sockets, what watches them, and what the
   engine is told. In the datapath's thread. It owns nothing. */
#ifndef MRC_IO_PORTS_H
#define MRC_IO_PORTS_H

#include "io/datapath_state.h"

/* MRC_COMMAND_PORT_OPEN and MRC_COMMAND_PORT_CLOSE; 0 or -errno. */
int mrc_ports_open(struct mrc_datapath *datapath, int port, struct mrc_port_opening *opening,
                   uint64_t now_ns);
int mrc_ports_close(struct mrc_datapath *datapath, int port, uint64_t now_ns);

/* Watches the sockets of an open port; 0 or -errno. */
int mrc_ports_watch(struct mrc_datapath *datapath, int port) MRC_MUST_CHECK;
/* Puts an event for each kind of buffer that is smaller than wanted, if there is room. */
void mrc_ports_warn_small_buffers(struct mrc_datapath *datapath, int port);

#endif
