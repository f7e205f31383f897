/* SPDX-License-Identifier: Apache-2.0 */
/* The invariant CRC of RoCEv2 over inner IP header, UDP header and MRC packet, with the fields that
   change in flight set to ones. The CRC-32 itself comes from a library (see icrc.c). */
#ifndef MRC_CORE_ICRC_H
#define MRC_CORE_ICRC_H

#include <stdbool.h>
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

/* What the flow and the length of a packet gave; all zeros before the first. */
struct mrc_icrc_prefix {
  uint8_t src[16];
  uint8_t dst[16];
  uint16_t sport;
  uint16_t dport;
  uint8_t family;
  uint32_t crc;
  size_t bytes;
};

#define MRC_ICRC_MAX_HEADER 64u /* bytes */

/* CRC state after the pseudo header, IP and UDP: the same for all packets of a flow that are of one
   length. udp_payload_bytes is the whole length, the ICRC included. */
uint32_t mrc_icrc_begin(const struct mrc_icrc_flow *flow, size_t udp_payload_bytes);
/* The first n bytes of the UDP payload, MRC_ICRC_MAX_HEADER at most: the BTH, whose byte 4 is
   masked, and what follows. */
uint32_t mrc_icrc_header(uint32_t crc, const uint8_t *header, size_t n);
/* More bytes. */
uint32_t mrc_icrc_update(uint32_t crc, const uint8_t *bytes, size_t n);
/* All that the ICRC covers of a UDP payload that lies in one piece. */
uint32_t mrc_icrc_packet(uint32_t crc, const uint8_t *bytes, size_t n);
/* Writes the four ICRC bytes, in the order in which they travel (little-endian, as RoCE). */
void mrc_icrc_store(uint32_t crc, uint8_t out[4]);

/* Whether the last four of `bytes` are the ICRC of those before. Packets of a burst begin alike, so
   `last` keeps that from call to call. */
bool mrc_icrc_is_good(struct mrc_icrc_prefix *last, const struct mrc_icrc_flow *flow,
                      const uint8_t *packet, size_t bytes);

/* Name of the library behind it: tests compare what both give. */
const char *mrc_icrc_library(void);

#endif
