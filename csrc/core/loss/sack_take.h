/* SPDX-License-Identifier: Apache-2.0 */
/* Handles a SACK for the requester. requester_rx.c handles NACKs and transport ACKs. */
#pragma once

#include "core/qp.h"

/* A SACK from the peer, with a good ICRC. 0 or a drop reason. */
int mrc_sack_take(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                  const struct mrc_meta *meta, uint64_t now_ns);
