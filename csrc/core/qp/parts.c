/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

#include "core/wire/wire.h"
#include "mrc.h"

enum {
  MOST_PARTS = 16,   /* in larger messages the last burst is a small part of all */
  BURST_PACKETS = 32 /* packets that cost as much as a burst; measured: 30 to 60 */
};

static uint32_t packets_of_burst(uint32_t part_bytes, uint32_t max_burst_bytes) {
  const uint32_t packets = max_burst_bytes / (part_bytes + MRC_DATA_OVERHEAD_BYTES);
  return mrc_max_u32(1, mrc_min_u32(packets, MRC_MAX_BURST_PACKETS));
}

uint32_t mrc_part_bytes(uint32_t bytes, uint32_t path_mtu, uint32_t max_burst_bytes) {
  const uint32_t even = 1u << (31 - __builtin_clz(path_mtu));
  const uint32_t parts = mrc_parts(bytes, path_mtu), even_parts = bytes / even;
  if (parts == 1 || parts > MOST_PARTS || bytes % even != 0) return path_mtu;
  if (even_parts > parts + parts / 3) return path_mtu; /* the links carry more headers */
  const uint32_t bursts = (parts - 1) / packets_of_burst(path_mtu, max_burst_bytes) + 1;
  const uint32_t even_cost =
      even_parts * BURST_PACKETS / packets_of_burst(even, max_burst_bytes) + even_parts;
  return even_cost < bursts * BURST_PACKETS + parts ? even : path_mtu;
}
