/* SPDX-License-Identifier: Apache-2.0 */
/* Handles what arrives, and answers it; receive.c tells the stages. mrc_engine_receive, the way in,
   is in csrc/mrc.h. */
#pragma once

#include "core/qp.h"

/* The CQ has room again: delivers immediates that waited for it. */
void mrc_responder_on_cq_room(struct mrc_services *services);
/* Adds the bursts of answers that are due: NACKs, SACKs and transport ACKs, several of them in one
   burst. False when the transmit is full. */
bool mrc_responder_transmit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* The kernel refused a control packet: its content is due again. */
void mrc_responder_on_refused(struct mrc_services *services, struct mrc_qp *qp,
                              const struct mrc_packet *packet);
