/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes ports while a datapath runs: their sockets, their entries in epoll and their
   state in the engine. Runs in the datapath's thread. It owns nothing. */
#pragma once

#include "io/datapath_state.h"

/* MRC_COMMAND_PORT_OPEN and MRC_COMMAND_PORT_CLOSE; 0 or -errno. */
int mrc_ports_open(struct mrc_datapath *datapath, int port, struct mrc_port_opening *opening,
                   uint64_t now_ns);
int mrc_ports_close(struct mrc_datapath *datapath, int port, uint64_t now_ns);

/* Watches the sockets of an open port; 0 or -errno. */
int mrc_ports_watch(struct mrc_datapath *datapath, int port) MRC_MUST_CHECK;
/* Publishes a warning for each kind of buffer that is smaller than requested, if there is room. */
void mrc_ports_warn_small_buffers(struct mrc_datapath *datapath, int port);
