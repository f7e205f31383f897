/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the requester's bursts over planes and EVs, and handles the fate of each packet. */
#pragma once

#include "core/qp.h"

#define MRC_QUANTUM_BURSTS 4 /* in one turn of a QP; 1 if attr.rts.spray is set */

/* Adds the bursts of a QP in RTS that may leave now; false when the transmit is full. */
bool mrc_requester_transmit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* The kernel took a burst of data. */
void mrc_requester_on_taken(struct mrc_services *services, struct mrc_qp *qp,
                            const struct mrc_burst *burst);
/* The kernel refused one packet. */
void mrc_requester_on_refused(struct mrc_services *services, struct mrc_qp *qp,
                              const struct mrc_packet *packet);
