/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes the UDP sockets of all ports, or of one port at run time. */
#pragma once

#include "io/udp.h"

/* Opens the sockets of all ports that have an address. On failure nothing stays open, and `cause`
   has the reason. */
int mrc_udp_open(struct mrc_udp *udp, const struct mrc_ctx_config *config,
                 struct mrc_cause *cause) MRC_MUST_CHECK;
void mrc_udp_close(struct mrc_udp *udp);
/* In a child of fork: closes the child's copies of the sockets, and frees no memory. */
void mrc_udp_abandon(struct mrc_udp *udp);

/* Opens a port that is closed. `used`: the ports that EVs use, bit n - 1 for port n. A used port
   opens only with its previous address and source ports. -EEXIST: it is already open. -EBUSY: it is
   used, and its address or source ports would change. On failure the port is unchanged. */
int mrc_udp_open_port(struct mrc_udp *udp, int port, const struct mrc_port_config *config,
                      uint32_t used, struct mrc_cause *cause) MRC_MUST_CHECK;
/* Closes the port's sockets and keeps its source ports for mrc_udp_open_port. */
void mrc_udp_close_port(struct mrc_udp *udp, int port);
