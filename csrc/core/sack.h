/* SPDX-License-Identifier: Apache-2.0 */
/* SACKs: when the responder sends one, what it reports, and how the requester handles it. */
#ifndef MRC_CORE_SACK_H
#define MRC_CORE_SACK_H

#include "qp.h"

/* The responder: decides when the packets just placed are reported. */
void mrc_sack_want(struct mrc_services *services, struct mrc_qp *qp,
                   const struct mrc_arrivals *arrivals, const struct mrc_meta *meta);
/* Adds the SACKs that are due; false when the transmit is full, or no EV may carry them. */
bool mrc_sack_flush(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* The requester: handles a SACK from the peer, with a good ICRC. 0 or a drop reason. */
int mrc_sack_take(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                  const struct mrc_meta *meta, uint64_t now_ns);

#endif
