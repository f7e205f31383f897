/* SPDX-License-Identifier: Apache-2.0 */
/* The process's endpoint, and its QPs: one to each peer, made when either side first needs it.
   Under the lock. */
#pragma once

#include "ofi/av.h"
#include "ofi/object.h"

/* Spaces of messages, the same in every process. */
enum { OF_TAGGED_SPACE = 0x6669, OF_UNTAGGED_SPACE };

/* Opens the endpoint. 0; -EBUSY: the process has one; -EAGAIN: the agent has given no number in
   time; -EIO. */
int of_connect_open(void);
/* Its address, once it was opened. */
const struct mrc_agent_endpoint *of_connect_point(void);
/* Closes it when all that was sent has arrived, or after half a second. */
void of_connect_close(void);
/* Prepares a peer for operations, and begins to connect if that was not done. 0, or the error of
   the peer. May give the lock away while it waits for a number. */
int of_connect_use(struct of_peer *peer);
/* Asks to cancel an operation, whose completion comes in any case. */
void of_connect_cancel(struct of_operation *operation);
/* The numbers of a peer in csrc/msg: for sends, and for receives. */
uint32_t of_connect_to(const struct of_peer *peer);
uint32_t of_connect_from(const struct of_peer *peer);
