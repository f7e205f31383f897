/* SPDX-License-Identifier: Apache-2.0 */
/* A packet of a real host as the simulated fabric sees it: its bytes stand in the room behind the
   frame, and what queues and switches did to the frame is done to the bytes when it leaves. */
#ifndef MRC_EMU_ETHERNET_H
#define MRC_EMU_ETHERNET_H

#include "sim/frame.h"

#define MRC_EMU_ETHERNET_BYTES 14

struct mrc_ethernet {
  uint32_t n;
  uint16_t udp_at; /* where the UDP header of the innermost packet begins; 0: it has none */
  uint8_t at[];
};

static inline struct mrc_ethernet *mrc_ethernet_of(struct mrc_frame *packet) {
  return (struct mrc_ethernet *)(packet + 1);
}
/* What a pool must leave behind each frame for an Ethernet frame of so many bytes. */
static inline uint32_t mrc_ethernet_room_bytes(uint32_t bytes) {
  return (uint32_t)sizeof(struct mrc_ethernet) + bytes;
}

/* Makes the UDP or TCP checksum that the host left to its interface: the sum of the pseudo header
   stands in its place. False when the packet is neither. */
bool mrc_ethernet_finish(struct mrc_frame *packet);
/* Fills the frame from its bytes, as it came from a host on `plane` (from 0). False when the packet
   goes by no uSID of the plane: a switch has no route for it. Locator blocks begin with `block`. */
bool mrc_ethernet_read(struct mrc_frame *packet, uint32_t block, uint32_t plane);
/* Does to the bytes what became of the frame: uSIDs, hop limit, mark, trimming, damage. False when
   the hop limit has run out. */
bool mrc_ethernet_write(struct mrc_frame *packet, uint32_t random);

#endif
