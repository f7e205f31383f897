/* SPDX-License-Identifier: Apache-2.0 */
/* The requester sends: bursts over planes and EVs, and what became of each of their packets. */
#ifndef MRC_CORE_REQUESTER_TX_H
#define MRC_CORE_REQUESTER_TX_H

#include "qp.h"

#define MRC_QUANTUM_BURSTS 4 /* of one QP before the next QP has its turn; 1 where spray is set */

/* Adds the bursts that may go now; false when the transmit is full. */
bool mrc_requester_transmit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* The fate of one packet of ours. */
void mrc_requester_on_taken(struct mrc_services *services, struct mrc_qp *qp,
                            const struct mrc_packet *packet);
void mrc_requester_on_refused(struct mrc_services *services, struct mrc_qp *qp,
                              const struct mrc_packet *packet);

#endif
