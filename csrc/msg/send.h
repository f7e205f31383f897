/* SPDX-License-Identifier: Apache-2.0 */
/* What goes to a peer: frames of records, the writes of messages, credits. */
#pragma once

#include "msg/operations.h"

/* Queues a record about an operation, in place of one that has not left yet. */
void mrc_msg_say(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op,
                 enum mrc_msg_record_kind record);
/* Queues an answer, which goes before all records; false: more than the peer has operations. */
bool mrc_msg_answer(struct mrc_msg *msg, struct mrc_msg_peer *peer, enum mrc_msg_record_kind kind,
                    uint32_t id, uint64_t bytes);
/* Begins a WRITE, or a READ; the second one as soon as few enough are unanswered. */
void mrc_msg_start_write(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op);
void mrc_msg_start_read(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op);
/* A READ has its answer. */
void mrc_msg_end_read(struct mrc_msg *msg, struct mrc_msg_peer *peer, struct mrc_msg_op *op,
                      int32_t result);
/* Begins to answer a FETCH; false: the peer has too many. */
bool mrc_msg_fetch(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                   const struct mrc_msg_record *fetch);
/* Whether something waits for a frame. */
bool mrc_msg_has_records(const struct mrc_msg_peer *peer);
/* Posts what can be posted. 0 or the error of the QP. */
int mrc_msg_send(struct mrc_msg *msg, struct mrc_msg_peer *peer, uint64_t now_ns);
/* A completion of a write. The operation whose last write it was, or NULL. */
struct mrc_msg_op *mrc_msg_sent(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                                const struct mrc_wc *wc);
