/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the responder's NACKs, SACKs and transport ACKs, several of them in one burst. */
#pragma once

#include "core/qp.h"

/* Adds the bursts that are due; false when the transmit is full. */
bool mrc_responder_transmit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* The kernel refused a control packet: its content is due again. */
void mrc_responder_on_refused(struct mrc_services *services, struct mrc_qp *qp,
                              const struct mrc_packet *packet);
