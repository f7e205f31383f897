/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and UDP ports of a pair's hosts. The last bytes name host, plane and path, on IPv6 and
   IPv4 alike, so a packet's header shows its path. On IPv6 the destination names the path, as with
   SRv6; on IPv4 the source port does. */
#pragma once

#include <string.h>

#include "core/base.h"
#include "mrc.h"

enum {
  MRC_ADDRESS_HOST = 13, /* byte of the host + 1 */
  MRC_ADDRESS_PLANE = 14,
  MRC_ADDRESS_PATH = 15, /* byte of the path + 1; 0: the host's own address in the plane */
  MRC_ADDRESS_SPORT = 49152
};

static inline void mrc_address_make(uint8_t out[16], int family, int host, int plane, int path) {
  static const uint8_t v6[16] = {0xFD};
  static const uint8_t v4[16] = {[10] = 0xFF, [11] = 0xFF, [12] = 10};
  memcpy(out, family == 4 ? v4 : v6, 16);
  out[MRC_ADDRESS_HOST] = (uint8_t)(host + 1);
  out[MRC_ADDRESS_PLANE] = (uint8_t)plane;
  out[MRC_ADDRESS_PATH] = (uint8_t)(family == 4 ? 1 : path + 1);
}

static inline uint16_t mrc_address_udp_port(int host) { return (uint16_t)(MRC_UDP_PORT + host); }

/* IPv6 has one transmit socket a port, IPv4 one a path. */
static inline int mrc_address_tx_index(int family, int path) { return family == 4 ? path : 0; }

static inline uint16_t mrc_address_sport(int plane, int tx_index) {
  return (uint16_t)(MRC_ADDRESS_SPORT + plane * 256 + tx_index);
}

static inline uint16_t mrc_address_label(int family, int plane, int path) {
  return family == 4 ? 0 : (uint16_t)(0x1000 * plane + path + 1);
}

static inline int mrc_address_host(const uint8_t dst[16]) { return dst[MRC_ADDRESS_HOST] - 1; }

static inline int mrc_address_path(int family, const uint8_t dst[16], uint16_t sport) {
  return family == 4 ? sport % 256 : dst[MRC_ADDRESS_PATH] - 1;
}
