/* SPDX-License-Identifier: Apache-2.0 */
/* What comes from a peer: immediates, and frames of records. */
#pragma once

#include "msg/operations.h"

/* Takes an immediate. False: the peer broke the protocol. */
bool mrc_msg_on_imm(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint32_t imm, uint32_t bytes);
/* Ends a PEEK. */
void mrc_msg_peek(struct mrc_msg *msg, struct mrc_msg_op *op);
/* Matches a receive with what came before it, or lets it wait. A peer that broke the protocol
   meanwhile, or NULL. */
struct mrc_msg_peer *mrc_msg_start_receive(struct mrc_msg *msg, struct mrc_msg_op *op);
/* The same for a send; false: the peer broke the protocol. */
bool mrc_msg_start_send(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op);

/* ---- ATOMICs: changes of one number in memory of a peer ---- */

/* Whether there is such a change of a number of so many bytes at this address. */
bool mrc_msg_atomic_is_valid(uint32_t change, uint64_t bytes, uint64_t address);
void mrc_msg_start_atomic(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op);
