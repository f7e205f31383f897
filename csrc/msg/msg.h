/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between peers: sends and receives with tags, over the writes of one QP to each peer.

   Sans-IO as the engine, and with the same caller: post, cancel, take completions of the QPs, then
   pump. It allocates within the bounds of its configuration, whatever a peer does.

   A message of up to `eager_bytes` travels in a frame (frame.h) and waits at the receiver for its
   receive. A longer one is announced there (RTS). The receiver registers exactly the range of the
   receive that matches and says where it is (CTS); then the sender writes from memory to memory. A
   receive that is `exact` says so before the announcement, so that the write can begin at once.

   WRITE goes to memory of the peer at once. For READ the peer is asked (FETCH), and writes the
   data.

   Messages of one peer, space and tag are matched in the order in which they were sent, with
   receives in the order in which they were posted. */
#pragma once

#include "msg/types.h"

struct mrc_msg;

/* NULL without memory, or if a field is out of range. */
struct mrc_msg *mrc_msg_new(const struct mrc_msg_config *config);
/* All QPs must have been destroyed. Reports no operation. */
void mrc_msg_free(struct mrc_msg *msg);

/* Makes a peer of a QP, whose immediates and completions now belong here. `limits` are those of the
   QP. Returns the number of the peer, `inbox` for the other side, or -ENOSPC (no place for a peer
   or its memory regions), -ENOMEM, -EEXIST, -EINVAL. Operations may be posted at once. */
int mrc_msg_open(struct mrc_msg *msg, uint32_t qpn, const struct mrc_msg_limits *limits,
                 struct mrc_msg_inbox *inbox);
/* The QP is in RTS, and `inbox` is that of the other side. -EINVAL. */
int mrc_msg_connect(struct mrc_msg *msg, uint32_t peer, const struct mrc_msg_inbox *inbox);
/* Whether all that was said to the peer has arrived there. */
bool mrc_msg_is_idle(const struct mrc_msg *msg, uint32_t peer);
/* Ends the peer's operations with `error` (negative), as when its QP fails: moves the QP to ERROR.
   Eager messages that have arrived can still be received, until mrc_msg_close. */
void mrc_msg_fail(struct mrc_msg *msg, uint32_t peer, int error, uint64_t now_ns);
/* The same for the peer of a QP, if there is one. */
void mrc_msg_fail_qp(struct mrc_msg *msg, uint32_t qpn, int error, uint64_t now_ns);
/* After its QP was destroyed. */
void mrc_msg_close(struct mrc_msg *msg, uint32_t peer);

/* Starts operations, in order. Returns how many: fewer than n when there are too many; or -EINVAL
   if the first is wrong. An operation with a peer that has failed ends with its error. */
int mrc_msg_post(struct mrc_msg *msg, const struct mrc_msg_post *posts, int n, uint64_t now_ns);
/* Ends an operation with -ECANCELED, unless its message has been matched: then as usual. An eager
   send is done when it was copied. -ENOENT: it has ended. */
int mrc_msg_cancel(struct mrc_msg *msg, uint32_t space, uint64_t cookie);

bool mrc_msg_owns(const struct mrc_msg *msg, uint32_t qpn);
/* A completion of a QP that it owns. */
void mrc_msg_take(struct mrc_msg *msg, const struct mrc_wc *wc, uint64_t now_ns);
/* When mrc_msg_expire has work; UINT64_MAX: never. */
uint64_t mrc_msg_deadline(const struct mrc_msg *msg);
/* Writes to peers that have been silent for MRC_MSG_SILENCE_NS: if no path leads there, the QP
   fails. */
void mrc_msg_expire(struct mrc_msg *msg, uint64_t now_ns);
/* Posts what waits, as far as the QPs allow: once for all calls before. */
void mrc_msg_pump(struct mrc_msg *msg, uint64_t now_ns);
