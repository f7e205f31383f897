/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing the UDP sockets of all ports, or of one that comes and goes. */
#ifndef MRC_IO_UDP_OPEN_H
#define MRC_IO_UDP_OPEN_H

#include "io/cause.h"
#include "io/udp.h"

/* Opens the sockets of all ports that have an address. On failure nothing stays open, and `cause`
   tells. */
int mrc_udp_open(struct mrc_udp *udp, const struct mrc_ctx_config *config,
                 struct mrc_cause *cause) MRC_MUST_CHECK;
void mrc_udp_close(struct mrc_udp *udp);
/* Closes the sockets and leaves the memory alone: in a child of fork, to which they do not belong.
 */
void mrc_udp_abandon(struct mrc_udp *udp);

/* Opens a port that is closed. `used` has the ports that EVs name, bit n - 1 for port n: such a
   port opens only with the address and the source ports that it had. -EEXIST: it is open. -EBUSY:
   it is used and would not be the same. On failure the port stays as it was. */
int mrc_udp_open_port(struct mrc_udp *udp, int port, const struct mrc_port_config *config,
                      uint32_t used, struct mrc_cause *cause) MRC_MUST_CHECK;
/* Closes its sockets; its source ports stay known. */
void mrc_udp_close_port(struct mrc_udp *udp, int port);

#endif
