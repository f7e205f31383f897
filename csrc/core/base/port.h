/* SPDX-License-Identifier: Apache-2.0 */
/* Ports of this host: which are up, and whose sockets are full. Port n (from 1) lives in plane
   n - 1, and both are bit n - 1 of a mask. */
#pragma once

#include "mrc.h"

/* How long a full socket may hold back the other planes. Our choice: a longer time keeps the shares
   equal, a shorter time limits the effect of a stuck port. */
#define MRC_BLOCKED_PATIENCE_NS 20000000ull

struct mrc_ports {
  uint32_t up;                        /* as a mask */
  uint32_t blocked;                   /* ports with a full socket, as a mask */
  bool was_down;                      /* any port was ever down */
  uint64_t blocked_ns[MRC_MAX_PORTS]; /* since when, by plane */
};

static inline uint32_t mrc_plane_of(uint32_t port) { return port - 1; }
static inline uint8_t mrc_port_of(uint32_t plane) { return (uint8_t)(plane + 1); }

/* The ports 1..n as a mask. */
static inline uint32_t mrc_all_ports(uint32_t n) { return UINT32_MAX >> (MRC_MAX_PORTS - n); }

static inline bool mrc_port_is_up(const struct mrc_ports *ports, uint32_t plane) {
  return ports->up >> plane & 1;
}
/* The ports that can be sent on now, as a mask. */
static inline uint32_t mrc_ports_usable(const struct mrc_ports *ports) {
  return ports->up & ~ports->blocked;
}
static inline bool mrc_port_is_usable(const struct mrc_ports *ports, uint32_t plane) {
  return mrc_ports_usable(ports) >> plane & 1;
}
