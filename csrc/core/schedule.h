/* SPDX-License-Identifier: Apache-2.0 */
/* Which QP sends next, and what it does in its turn. */
#pragma once

#include "core/qp.h"

/* Gives QPs their turns until there is nothing to send (true) or the transmit is full (false). */
bool mrc_schedule_transmit(struct mrc_services *services, uint64_t now_ns);
/* The QP's timer has expired. */
void mrc_schedule_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
