/* SPDX-License-Identifier: Apache-2.0 */
/* A packet of a real host in the simulated fabric. Its bytes are in the room behind the frame. The
   changes that queues and switches made to the frame are applied to the bytes when it leaves. */
#pragma once

#include "sim/hop.h"

#define MRC_EMU_ETHERNET_BYTES 14

struct mrc_ethernet {
  uint32_t n;
  uint16_t udp_at; /* offset of the innermost packet's UDP header; 0: it has none */
  uint8_t at[];
};

static inline struct mrc_ethernet *mrc_ethernet_of(struct mrc_frame *packet) {
  return (struct mrc_ethernet *)(packet + 1);
}
/* The room that a pool needs behind each frame for an Ethernet frame of `bytes` bytes. */
static inline uint32_t mrc_ethernet_room_bytes(uint32_t bytes) {
  return (uint32_t)sizeof(struct mrc_ethernet) + bytes;
}

/* Computes the UDP or TCP checksum that the host left to its interface; the checksum field holds
   the sum of the pseudo header. False when the packet is neither. */
bool mrc_ethernet_finish(struct mrc_frame *packet);
/* Fills the frame from the bytes of a packet from a host on `plane` (from 0). Locator blocks start
   with `block`. False unless it is a whole IPv6 packet to the plane's locator block: no switch has
   a route. */
bool mrc_ethernet_read(struct mrc_frame *packet, uint32_t block, uint32_t plane);
/* Gives the frame the uSIDs of the next segment, if the segment routing header of the packet has
   one of its plane. */
void mrc_ethernet_next_carrier(struct mrc_frame *packet);
/* Applies the frame's changes to the bytes: uSIDs, hop limit, mark, trimming, damage. False when
   the hop limit has run out. */
bool mrc_ethernet_write(struct mrc_frame *packet, uint32_t random);

/* ---- The outbox ---- */

/* Packets that have reached the hosts and wait for their interfaces; one system call sends many. It
   owns the frames from put to flush. */

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
