/* SPDX-License-Identifier: Apache-2.0 */
/* Handles what arrives, and answers it; see receive.c. */
#pragma once

#include "core/qp.h"

/* ---- packets ---- */

/* Handles the responder's packets: places data, advances the cumulative PSN and completes
   immediates in order. */

/* Places a data packet with a good ICRC from the peer. 0 or a drop reason. */
int mrc_responder_on_data(struct mrc_services *services, struct mrc_qp *qp,
                          const struct mrc_wire *wire, const struct mrc_meta *meta,
                          uint64_t now_ns);
/* Accounts for the data packets placed since the last call, which all came with `meta`: advances
   the cumulative PSN, completes immediates, decides when a SACK is due. */
void mrc_responder_account(struct mrc_services *services, struct mrc_qp *qp,
                           const struct mrc_meta *meta);
/* A data packet whose payload a switch has trimmed. This and the next return 0 or a drop reason. */
int mrc_responder_on_trimmed(struct mrc_services *services, struct mrc_qp *qp,
                             const struct mrc_wire *wire, const struct mrc_meta *meta);
/* A reliability probe. */
int mrc_responder_on_probe(struct mrc_services *services, struct mrc_qp *qp,
                           const struct mrc_wire *wire, const struct mrc_meta *meta);
/* A packet for a QP in ERROR: sends the NAK again. */
void mrc_responder_on_error_packet(struct mrc_services *services, struct mrc_qp *qp,
                                   const struct mrc_meta *meta, uint64_t now_ns);
/* The CQ has room again: delivers immediates that waited for it. */
void mrc_responder_on_cq_room(struct mrc_services *services);

/* ---- SACKs ---- */

/* SACKs of the responder: when one is due, and what it reports. */

/* Decides when the packets just placed are reported. */
void mrc_sack_want(struct mrc_services *services, struct mrc_qp *qp,
                   const struct mrc_arrivals *arrivals, const struct mrc_meta *meta);
/* Adds the SACKs that are due; false when the transmit is full, or no EV may carry them. */
bool mrc_sack_flush(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);

/* ---- answers ---- */

/* Sends the responder's NACKs, SACKs and transport ACKs, several of them in one burst. */

/* Adds the bursts that are due; false when the transmit is full. */
bool mrc_responder_transmit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* The kernel refused a control packet: its content is due again. */
void mrc_responder_on_refused(struct mrc_services *services, struct mrc_qp *qp,
                              const struct mrc_packet *packet);
