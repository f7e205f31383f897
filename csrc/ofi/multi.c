/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/multi.h"

#include <errno.h>

#include "program/drive.h"

enum { ALIGNMENT = 8 };

/* The rest as a receive of its own; false: it is too short, or there is no room for it. */
static bool post_rest(const struct of_operation *operation, uint64_t used) {
  const uint64_t room = operation->room - used;
  struct of_operation *next = room >= operation->least ? of_operation_new() : NULL;
  if (!next) return false;
  const uint64_t cookie = next->cookie;
  *next = *operation;
  next->cookie = cookie;
  next->buffer = (char *)operation->buffer + used;
  next->room = room;
  const struct mrc_msg_post post = {.cookie = cookie,
                                    .address = (uintptr_t)next->buffer,
                                    .bytes = room,
                                    .space = operation->done.space,
                                    .peer = operation->from,
                                    .kind = MRC_MSG_RECV};
  if (mrc_ctx_msg_post(pr_process.ctx, &post, 1) == 0) {
    pr_drive_posted(false);
    return true;
  }
  of_operation_free(next);
  return false;
}

void of_multi_go_on(struct of_operation *operation) {
  const struct mrc_msg_done *done = &operation->done;
  const uint64_t used = (done->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  const bool takes_more = done->result == 0 && used < operation->room;
  if (!takes_more || !post_rest(operation, used)) operation->flags |= FI_MULTI_RECV;
}
