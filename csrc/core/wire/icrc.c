/* SPDX-License-Identifier: Apache-2.0 */
#include "icrc.h"

#include <string.h>

#include "core/base.h"
#include "crc32.h"
#include "wire.h"

enum {
  IPV4_BYTES = 20,
  IPV6_BYTES = 40,
  UDP_BYTES = 8,
  PROTOCOL_UDP = 17,
  BTH_VARIANT = 4 /* offset of the BTH byte that may change in flight */
};

/* CRC of eight bytes of ones, in place of InfiniBand's routing header, which RoCE does not have. */
#define CRC_OF_ONES 0x2144DF1Cu

#define POLYNOMIAL 0xEDB88320u /* its bits reversed, without x^32 */

/* A CRC that begins with this difference ends as if the byte at BTH_VARIANT, which is 0 in what we
   send, were 0xFF. */
#define VARIANT_OF_ONES 0x0F6A70D9u

static void put_u16(uint8_t *out, size_t value) {
  out[0] = (uint8_t)(value >> 8);
  out[1] = (uint8_t)value;
}

/* Identification, flags and fragment offset are ones here, unlike in RoCEv2: the kernel chooses
   them after the socket call, and a receiving socket cannot read them. This is our choice, as is
   the whole ICRC over IPv4. */
static size_t put_ipv4(uint8_t *out, const struct mrc_icrc_flow *flow, size_t udp_bytes) {
  memset(out, 0xFF, IPV4_BYTES); /* fields that change in flight: TOS, TTL, checksum */
  out[0] = 0x45;                 /* version 4, no options */
  put_u16(out + 2, IPV4_BYTES + udp_bytes);
  out[9] = PROTOCOL_UDP;
  memcpy(out + 12, flow->src + 12, 4);
  memcpy(out + 16, flow->dst + 12, 4);
  return IPV4_BYTES;
}

static size_t put_ipv6(uint8_t *out, const struct mrc_icrc_flow *flow, size_t udp_bytes) {
  memset(out, 0xFF, 8); /* fields that change in flight: traffic class, flow label, hop limit */
  out[0] = 0x6F;        /* version 6 */
  put_u16(out + 4, udp_bytes);
  out[6] = PROTOCOL_UDP;
  memcpy(out + 8, flow->src, 16);
  memcpy(out + 24, flow->dst, 16);
  return IPV6_BYTES;
}

uint32_t mrc_icrc_begin(const struct mrc_icrc_flow *flow, size_t udp_payload_bytes) {
  mrc_assert(flow->family == 4 || flow->family == 6);
  uint8_t buffer[IPV6_BYTES + UDP_BYTES];
  size_t udp_bytes = UDP_BYTES + udp_payload_bytes;
  size_t at =
      flow->family == 4 ? put_ipv4(buffer, flow, udp_bytes) : put_ipv6(buffer, flow, udp_bytes);
  put_u16(buffer + at, flow->sport);
  put_u16(buffer + at + 2, flow->dport);
  put_u16(buffer + at + 4, udp_bytes);
  put_u16(buffer + at + 6, 0xFFFF); /* the checksum changes in flight */
  return mrc_crc32(CRC_OF_ONES, buffer, at + UDP_BYTES) ^ VARIANT_OF_ONES;
}

/* The difference for another value of that byte: its bits run through the CRC, and from there the
   40 bits back to the beginning. */
static uint32_t variant(uint8_t value) {
  uint32_t difference = value;
  for (int bit = 0; bit < 8; bit++)
    difference = difference >> 1 ^ (difference & 1 ? POLYNOMIAL : 0);
  for (int bit = 0; bit < 8 * (BTH_VARIANT + 1); bit++)
    difference = difference << 1 ^ (difference >> 31 ? POLYNOMIAL << 1 | 1 : 0);
  return difference;
}

uint32_t mrc_icrc_packet(uint32_t crc, const uint8_t *bytes, size_t n) {
  mrc_assert(n > BTH_VARIANT);
  if (bytes[BTH_VARIANT] != 0) crc ^= variant(bytes[BTH_VARIANT]);
  return mrc_crc32(crc, bytes, n);
}

void mrc_icrc_store(uint32_t crc, uint8_t out[4]) {
  out[0] = (uint8_t)crc;
  out[1] = (uint8_t)(crc >> 8);
  out[2] = (uint8_t)(crc >> 16);
  out[3] = (uint8_t)(crc >> 24);
}

static bool is_same(const struct mrc_icrc_prefix *last, const struct mrc_icrc_flow *flow,
                    size_t bytes) {
  return bytes == last->bytes && flow->sport == last->sport && flow->dport == last->dport &&
         flow->family == last->family && memcmp(flow->src, last->src, sizeof last->src) == 0 &&
         memcmp(flow->dst, last->dst, sizeof last->dst) == 0;
}

void mrc_icrc_prefix_set(struct mrc_icrc_prefix *last, const struct mrc_icrc_flow *flow,
                         size_t bytes) {
  if (is_same(last, flow, bytes)) return;
  *last = (struct mrc_icrc_prefix){.sport = flow->sport,
                                   .dport = flow->dport,
                                   .family = flow->family,
                                   .crc = mrc_icrc_begin(flow, bytes),
                                   .bytes = bytes};
  memcpy(last->src, flow->src, sizeof last->src);
  memcpy(last->dst, flow->dst, sizeof last->dst);
}

bool mrc_icrc_is_good(const struct mrc_icrc_prefix *prefix, const uint8_t *packet) {
  mrc_assert(prefix->bytes >= MRC_ICRC_BYTES);
  const size_t covered = prefix->bytes - MRC_ICRC_BYTES;
  uint8_t icrc[MRC_ICRC_BYTES];
  mrc_icrc_store(mrc_icrc_packet(prefix->crc, packet, covered), icrc);
  return memcmp(icrc, packet + covered, sizeof icrc) == 0;
}
