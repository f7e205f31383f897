/* SPDX-License-Identifier: Apache-2.0 */
/* The ring that the kernel fills with packets from the interfaces of this namespace: one packet
   socket for all interfaces, with mapped slots, so that receiving needs no system call. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct mrc_emu_ring {
  uint8_t *slots;      /* mapped */
  uint64_t overflowed; /* packets without a free slot, up to the last mrc_emu_ring_overflowed */
  uint32_t slot_bytes;
  uint32_t slots_per_block;
  uint32_t n_slots;
  uint32_t next; /* slot that the kernel fills next, or has filled */
  int fd;
};

/* One packet in its slot. */
struct mrc_emu_arrival {
  const uint8_t *bytes;
  uint32_t n; /* bytes there */
  int ifindex;
  bool cut;         /* it was longer than a slot */
  bool unfinished;  /* the host left a checksum to its interface */
  uint64_t real_ns; /* arrival time, CLOCK_REALTIME */
};

/* Opens a ring for Ethernet frames of at most `frame_bytes`. 0 or -errno; after an error nothing is
   open. */
int mrc_emu_ring_open(struct mrc_emu_ring *ring, uint32_t frame_bytes);
void mrc_emu_ring_close(struct mrc_emu_ring *ring);
/* The oldest packet; false when there is none. It stays valid until the release. */
bool mrc_emu_ring_peek(const struct mrc_emu_ring *ring, struct mrc_emu_arrival *arrival);
void mrc_emu_ring_release(struct mrc_emu_ring *ring);
/* The number of packets so far for which the kernel had no slot. */
uint64_t mrc_emu_ring_overflowed(struct mrc_emu_ring *ring);
