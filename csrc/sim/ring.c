/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "sim/ring.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base.h"

enum {
  RING_BYTES = 64 << 20, /* at 100,000 packets/s of 4096 bytes and 9000-byte slots, 70 ms */
  BLOCK_BYTES = 1 << 20,
  HEADROOM_BYTES = 128 /* in a slot before the packet: header, address, alignment */
};

static int map_slots(struct mrc_emu_ring *ring, uint32_t frame_bytes) {
  const uint32_t slot_bytes = TPACKET_ALIGN(frame_bytes + HEADROOM_BYTES);
  const struct tpacket_req request = {
      .tp_block_size = BLOCK_BYTES,
      .tp_block_nr = RING_BYTES / BLOCK_BYTES,
      .tp_frame_size = slot_bytes,
      .tp_frame_nr = RING_BYTES / BLOCK_BYTES * (BLOCK_BYTES / slot_bytes)};
  const int version = TPACKET_V2;
  if (setsockopt(ring->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
      setsockopt(ring->fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) != 0)
    return -errno;
  ring->slot_bytes = slot_bytes;
  ring->slots_per_block = BLOCK_BYTES / slot_bytes;
  ring->n_slots = request.tp_frame_nr;
  ring->slots = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, 0);
  return ring->slots == MAP_FAILED ? -errno : 0;
}

int mrc_emu_ring_open(struct mrc_emu_ring *ring, uint32_t frame_bytes) {
  *ring = (struct mrc_emu_ring){.slots = MAP_FAILED};
  ring->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (ring->fd < 0) return -errno;
  int error = map_slots(ring, frame_bytes);
  /* IPv6 only, so that our own packets do not come back. */
  const struct sockaddr_ll all = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IPV6)};
  if (error == 0 && bind(ring->fd, (const struct sockaddr *)&all, sizeof all) != 0) error = -errno;
  if (error != 0) mrc_emu_ring_close(ring);
  return error;
}

void mrc_emu_ring_close(struct mrc_emu_ring *ring) {
  if (ring->slots != MAP_FAILED) munmap(ring->slots, RING_BYTES);
  close(ring->fd);
}

static struct tpacket2_hdr *slot_of(const struct mrc_emu_ring *ring) {
  const uint64_t block = ring->next / ring->slots_per_block;
  const uint32_t within = ring->next % ring->slots_per_block;
  return (struct tpacket2_hdr *)(ring->slots + block * BLOCK_BYTES +
                                 (uint64_t)within * ring->slot_bytes);
}

bool mrc_emu_ring_peek(const struct mrc_emu_ring *ring, struct mrc_emu_arrival *arrival) {
  const struct tpacket2_hdr *slot = slot_of(ring);
  /* Pairs with the kernel's barrier between filling the slot and handing it over. */
  const uint32_t status = __atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE);
  if (!(status & TP_STATUS_USER)) return false;
  const struct sockaddr_ll *from =
      (const void *)((const uint8_t *)slot + TPACKET_ALIGN(sizeof *slot));
  *arrival =
      (struct mrc_emu_arrival){.bytes = (const uint8_t *)slot + slot->tp_mac,
                               .n = slot->tp_snaplen,
                               .ifindex = from->sll_ifindex,
                               .cut = slot->tp_snaplen < slot->tp_len,
                               .unfinished = (status & TP_STATUS_CSUMNOTREADY) != 0,
                               .real_ns = (uint64_t)slot->tp_sec * 1000000000u + slot->tp_nsec};
  return true;
}

void mrc_emu_ring_release(struct mrc_emu_ring *ring) {
  /* Pairs with the kernel's barrier before it fills the slot: our reads are over. */
  __atomic_store_n(&slot_of(ring)->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
  ring->next = (ring->next + 1) % ring->n_slots;
}

uint64_t mrc_emu_ring_overflowed(struct mrc_emu_ring *ring) {
  struct tpacket_stats news; /* since the last call */
  socklen_t bytes = sizeof news;
  const int error = getsockopt(ring->fd, SOL_PACKET, PACKET_STATISTICS, &news, &bytes);
  mrc_assert(error == 0);
  ring->overflowed += news.tp_drops;
  return ring->overflowed;
}
