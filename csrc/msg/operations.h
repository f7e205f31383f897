/* SPDX-License-Identifier: Apache-2.0 */
/* The table of operations: their ids, memory regions and ends. */
#pragma once

#include "msg/state.h"

/* 0 or -ENOMEM; to be freed in any case. */
int mrc_msg_ops_init(struct mrc_msg *msg) MRC_MUST_CHECK;
void mrc_msg_ops_free(struct mrc_msg *msg);
/* NULL if there are too many. */
struct mrc_msg_op *mrc_msg_op_new(struct mrc_msg *msg, const struct mrc_msg_post *post);
/* The operation with this id, with this peer; NULL if there is none. */
struct mrc_msg_op *mrc_msg_op_at(struct mrc_msg *msg, uint32_t id, uint32_t peer,
                                 enum mrc_msg_kind kind);
/* The oldest operation with this cookie; NULL if there is none. */
struct mrc_msg_op *mrc_msg_op_named(struct mrc_msg *msg, uint32_t space, uint64_t cookie);
/* Takes a receive from any peer, or a new operation, for this one. */
void mrc_msg_op_join(struct mrc_msg_op *op, struct mrc_msg_peer *peer);
/* The operation for a message of so many bytes that a receive takes: the receive itself, or a new
   one with a part of its memory, if the receive takes further messages. */
struct mrc_msg_op *mrc_msg_op_part(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t bytes);
/* Makes its memory a region; false if the engine has no room for one. */
bool mrc_msg_op_register(struct mrc_msg *msg, struct mrc_msg_op *op, uint64_t bytes);
/* Ends it and frees its entry. None of its writes may be outstanding. */
void mrc_msg_finish(struct mrc_msg *msg, struct mrc_msg_op *op, int32_t result);

/* Registers memory under a fresh key; 0 if the engine has no room. */
uint32_t mrc_msg_register(struct mrc_msg *msg, uint64_t address, uint64_t bytes, uint32_t access);
