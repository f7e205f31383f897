/* SPDX-License-Identifier: Apache-2.0 */
/* The integrity of plain packets: the CRC-32 of Ethernet, and the ICRC that is made of it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- CRC-32 ---- */

/* CRC-32 of Ethernet, as gzip uses it, and the same while bytes are copied. 0 starts a CRC, and
   calls chain. */

uint32_t mrc_crc32(uint32_t crc, const uint8_t *bytes, size_t n);
/* Copies `n` bytes, and returns the CRC of `head` bytes that already stand before `to`, followed by
   these. */
uint32_t mrc_crc32_copy(uint32_t crc, uint8_t *to, size_t head, const uint8_t *from, size_t n);

/* ---- the ICRC ---- */

/* The invariant CRC of RoCEv2 over inner IP header, UDP header and MRC packet, with the fields that
   change in flight set to ones. */

/* Addresses and ports that the ICRC covers. */
struct mrc_icrc_flow {
  const uint8_t *src; /* 16 bytes, IPv4 mapped */
  const uint8_t *dst;
  uint16_t sport;
  uint16_t dport;
  uint8_t family; /* 4 or 6 */
};

/* The CRC of mrc_icrc_begin for the last flow and length received, which packets of a burst share;
   all zeros before the first packet. */
struct mrc_icrc_prefix {
  uint8_t src[16];
  uint8_t dst[16];
  uint16_t sport;
  uint16_t dport;
  uint8_t family;
  uint32_t crc;
  size_t bytes;
};

/* CRC state after the IP and UDP headers: the same for all packets of a flow with one length.
   udp_payload_bytes is the whole UDP payload, the ICRC included. A plain CRC-32 that goes on from
   here over a packet whose BTH has 0 in byte 4, as all that we send, is its ICRC. */
uint32_t mrc_icrc_begin(const struct mrc_icrc_flow *flow, size_t udp_payload_bytes);
/* Adds a whole UDP payload, without its ICRC. Byte 4 of the BTH is masked. The result stands on the
   wire in little-endian order, as with RoCE. */
uint32_t mrc_icrc_packet(uint32_t crc, const uint8_t *bytes, size_t n);
