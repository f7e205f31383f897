/* SPDX-License-Identifier: Apache-2.0 */
/* The ring that the kernel fills with what arrives at the interfaces of this namespace: one packet
   socket for all, its slots mapped, so that receiving costs no system call. */
#ifndef MRC_EMU_RING_H
#define MRC_EMU_RING_H

#include <stdbool.h>
#include <stdint.h>

struct mrc_emu_ring {
  uint8_t *slots;      /* mapped */
  uint64_t overflowed; /* packets that found no free slot, as far as it was asked for */
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
  bool unfinished;  /* the kernel was to leave a checksum to hardware */
  uint64_t real_ns; /* when, by CLOCK_REALTIME */
};

/* Opens a ring for Ethernet frames up to that size. 0 or -errno; then nothing stays open. */
int mrc_emu_ring_open(struct mrc_emu_ring *ring, uint32_t frame_bytes);
void mrc_emu_ring_close(struct mrc_emu_ring *ring);
/* The oldest packet; false when there is none. It stays until it is released. */
bool mrc_emu_ring_peek(const struct mrc_emu_ring *ring, struct mrc_emu_arrival *arrival);
void mrc_emu_ring_release(struct mrc_emu_ring *ring);
/* Asks the kernel how many packets found no slot. */
uint64_t mrc_emu_ring_overflowed(struct mrc_emu_ring *ring);

#endif
