/* SPDX-License-Identifier: Apache-2.0 */
/* Packets on their way from one shard to another. A shard fills its boxes, one for each other
   shard, while it runs; between two windows the others empty them. */
#pragma once

#include "sim/frame.h"

struct mrc_mail {
  uint64_t at_ns; /* when the packet arrives at the end of the hop */
  struct mrc_frame *packet;
  uint32_t hop;
};

struct mrc_mailbox {
  struct mrc_mail *at; /* in the order in which they were sent */
  uint32_t n;
  uint32_t capacity;
};

void mrc_mailbox_put(struct mrc_mailbox *box, struct mrc_mail mail);
void mrc_mailbox_free(struct mrc_mailbox *box);
