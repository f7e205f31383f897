/* SPDX-License-Identifier: Apache-2.0 */
/* How a message is cut into packets. All packets of a burst have one size, except a shorter last
   one, so a short last packet of a message also ends its burst. A burst costs the kernel as much as
   dozens of packets. Many messages have a power of two as their size. Small ones are therefore cut
   into packets of a power of two, so that bursts run on from one message to the next. Pure. */
#ifndef MRC_CORE_PARTS_H
#define MRC_CORE_PARTS_H

#include "core/base/base.h"

/* The default of max_burst_bytes. As TCP does, it leaves tunnels 320 bytes for their headers. */
#define MRC_BURST_BYTES 65215

/* Payload of every packet of a message of `bytes`, except a shorter last one: path_mtu, or the
   largest power of two below it. */
uint32_t mrc_part_bytes(uint32_t bytes, uint32_t path_mtu, uint32_t max_burst_bytes);

/* Packets of a message; a message without bytes has one. */
static inline uint32_t mrc_parts(uint32_t bytes, uint32_t part_bytes) {
  return bytes == 0 ? 1 : (bytes - 1) / part_bytes + 1;
}

#endif
