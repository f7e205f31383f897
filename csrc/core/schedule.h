/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is to send, and what a turn is. */
#ifndef MRC_CORE_SCHEDULE_H
#define MRC_CORE_SCHEDULE_H

#include "qp.h"

/* Gives QPs their turns until there is nothing to send, or the transmit is full: then false. */
bool mrc_schedule_transmit(struct mrc_services *services, uint64_t now_ns);
/* The QP's timer has expired. */
void mrc_schedule_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);

#endif
