/* SPDX-License-Identifier: Apache-2.0 */
/* SACKs of the responder: when one is due, and what it reports. */
#pragma once

#include "core/qp.h"

/* Decides when the packets just placed are reported. */
void mrc_sack_want(struct mrc_services *services, struct mrc_qp *qp,
                   const struct mrc_arrivals *arrivals, const struct mrc_meta *meta);
/* Adds the SACKs that are due; false when the transmit is full, or no EV may carry them. */
bool mrc_sack_flush(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
