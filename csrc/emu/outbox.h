/* SPDX-License-Identifier: Apache-2.0 */
/* Packets that have reached the hosts and wait for their interfaces; one system call sends many. It
   owns the frames from put to flush. */
#pragma once

#include "sim/frame.h"

struct mrc_emu_outbox {
  struct mrc_emu_letters *letters; /* the arguments of sendmmsg */
  int fd;
  int n;
  uint64_t sent;
  uint64_t refused;    /* by an interface that the scenario set down */
  uint64_t overloaded; /* the kernel had no memory or no room */
  uint64_t late[64];   /* packets sent 2^(n-1) .. 2^n ns after they were due; 0: on time */
};

/* 0 or -errno; then nothing stays open. */
int mrc_emu_outbox_open(struct mrc_emu_outbox *outbox);
void mrc_emu_outbox_close(struct mrc_emu_outbox *outbox);
/* Adds a packet; true when the outbox is full: flush it before the next put. */
bool mrc_emu_outbox_put(struct mrc_emu_outbox *outbox, struct mrc_frame *packet, int ifindex,
                        uint64_t due_ns);
/* Sends all packets and returns the frames to the pool. */
void mrc_emu_outbox_flush(struct mrc_emu_outbox *outbox, struct mrc_frame_pool *pool,
                          uint64_t now_ns);
