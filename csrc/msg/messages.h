/* SPDX-License-Identifier: Apache-2.0 */
/* Messages with tags between peers, by a context: for programs in C, and for mrc.Messages. */
#pragma once

#include "msg/types.h"

/* cdef begin */

/* Opens a space. Without a sink its completions wait for mrc_ctx_msg_poll, and mrc_ctx_fd is
   readable. These functions may be called by any thread, several at once, but not for a polled
   context from another thread than its caller's. -EEXIST, -ENOMEM, -ECHILD. */
int mrc_ctx_msg_space(mrc_ctx *ctx, uint32_t space, mrc_msg_sink *sink, void *user);
/* No sink is called after it returns. Operations of the space go on, without completions: cancel or
   await them first. -ENOENT. May not be called from a sink. */
int mrc_ctx_msg_close_space(mrc_ctx *ctx, uint32_t space);
/* Queues operations for the datapath. 0, or -ENOMEM, -ECHILD; none is queued then. A wrong one ends
   with -EINVAL, one of too many with -ENOBUFS. */
int mrc_ctx_msg_post(mrc_ctx *ctx, const struct mrc_msg_post *posts, int n);
/* Asks to cancel an operation, whose completion comes in any case. */
int mrc_ctx_msg_cancel(mrc_ctx *ctx, uint32_t space, uint64_t cookie);
/* Copies up to n completions of spaces without a sink and returns their number. Call it after
   mrc_ctx_poll. */
int mrc_ctx_msg_poll(mrc_ctx *ctx, struct mrc_msg_done *done, int n);

/* cdef end */
