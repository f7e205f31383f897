/* SPDX-License-Identifier: Apache-2.0 */
/* ATOMICs: changes of one number in memory of a peer. The peer makes them one after the other, also
   beside atomic accesses of its own threads, and answers with the number before. */
#pragma once

#include "msg/operations.h"

/* Whether there is such a change of a number of so many bytes at this address. */
bool mrc_msg_atomic_is_valid(uint32_t change, uint64_t bytes, uint64_t address);
void mrc_msg_start_atomic(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op);
/* Answers CHANGE of the peer. False if the peer broke the protocol. */
bool mrc_msg_change(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                    const struct mrc_msg_record *record);
/* An answer has come for this operation; NULL: there is none. False if nobody could know of it. */
bool mrc_msg_end_atomic(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t before,
                        int32_t result);
