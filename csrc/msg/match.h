/* SPDX-License-Identifier: Apache-2.0 */
/* Which message belongs to which receive, and which CTS to which send. */
#pragma once

#include "msg/state.h"

/* Before an operation is matched: sets its hash. */
void mrc_msg_prepare(const struct mrc_msg *msg, struct mrc_msg_op *op);
/* The oldest receive that takes a message with this record; NULL if there is none. */
struct mrc_msg_op *mrc_msg_match_receive(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                                         const struct mrc_msg_record *record);
/* A receive waits for its message, or a send for its CTS. */
void mrc_msg_await(struct mrc_msg *msg, struct mrc_msg_op *op);
/* The oldest message that this receive takes. */
struct mrc_msg_entry *mrc_msg_match_message(struct mrc_msg *msg, const struct mrc_msg_op *op);
/* Keeps a message for the receive that claims it by this cookie. */
void mrc_msg_claim(struct mrc_msg *msg, struct mrc_msg_entry *entry, uint64_t cookie);
/* The message that this receive claims, or NULL. */
struct mrc_msg_entry *mrc_msg_claimed(struct mrc_msg *msg, const struct mrc_msg_post *post);
/* Whether an older receive without a CTS could take what this exact one asks for. */
bool mrc_msg_is_ambiguous(struct mrc_msg *msg, const struct mrc_msg_op *op);
/* The oldest send that waits for this CTS; the oldest CTS that waits for this send. */
struct mrc_msg_op *mrc_msg_match_send(struct mrc_msg *msg, const struct mrc_msg_peer *peer,
                                      const struct mrc_msg_record *record);
struct mrc_msg_entry *mrc_msg_match_request(const struct mrc_msg_peer *peer,
                                            const struct mrc_msg_op *op);

/* Keeps what matches nothing. False: no memory, or over the peer's share. */
bool mrc_msg_keep(struct mrc_msg *msg, struct mrc_msg_peer *peer,
                  const struct mrc_msg_record *record, const uint8_t *bytes);
void mrc_msg_drop(struct mrc_msg_peer *peer, struct mrc_msg_entry *entry);
/* The CTS or RTS of a peer with this id that was kept; NULL if there is none. */
struct mrc_msg_entry *mrc_msg_kept(const struct mrc_msg *msg, const struct mrc_msg_peer *peer,
                                   enum mrc_msg_record_kind kind, uint32_t id);
/* Drops what a peer that has failed will never go on with: RTS and CTS, but no message. */
void mrc_msg_forget_promises(struct mrc_msg_peer *peer);
/* Drops everything of a peer. */
void mrc_msg_forget_all(struct mrc_msg_peer *peer);
