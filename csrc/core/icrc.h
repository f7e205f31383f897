/* SPDX-License-Identifier: Apache-2.0 */
/* The invariant CRC of RoCEv2 over inner IP header, UDP header and MRC packet, with the fields that
   change in flight set to ones. The CRC-32 itself comes from a library (see icrc.c). */
#ifndef MRC_CORE_ICRC_H
#define MRC_CORE_ICRC_H

#include <stddef.h>
#include <stdint.h>

/* Addresses and ports that the ICRC covers. */
struct mrc_icrc_flow {
  const uint8_t *src; /* 16 bytes, IPv4 mapped */
  const uint8_t *dst;
  uint16_t sport;
  uint16_t dport;
  uint8_t family; /* 4 or 6 */
};

/* CRC state after the pseudo header, IP, UDP and the first `header_bytes` of the UDP payload (BTH
   first; its byte 4 is masked). udp_payload_bytes is the whole length, the ICRC included. */
uint32_t mrc_icrc_begin(const struct mrc_icrc_flow *flow, size_t udp_payload_bytes,
                        const uint8_t *header, size_t header_bytes);
/* More bytes. */
uint32_t mrc_icrc_update(uint32_t crc, const uint8_t *bytes, size_t n);
/* Writes the four ICRC bytes, in the order in which they travel (little-endian, as RoCE). */
void mrc_icrc_store(uint32_t crc, uint8_t out[4]);

/* Name of the library behind it, for `mrc --version` and bug reports. */
const char *mrc_icrc_library(void);

#endif
