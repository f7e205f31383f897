/* SPDX-License-Identifier: Apache-2.0 */
/* Handles NACKs and transport ACKs for the requester. sack_take.c handles SACKs. */
#pragma once

#include "core/qp.h"

/* Packets from the peer, with a good ICRC. Each returns 0 or a drop reason. */
int mrc_requester_on_nack(struct mrc_services *services, struct mrc_qp *qp,
                          const struct mrc_wire *wire, uint64_t now_ns);
int mrc_requester_on_ack(struct mrc_services *services, struct mrc_qp *qp,
                         const struct mrc_wire *wire, uint64_t now_ns);
