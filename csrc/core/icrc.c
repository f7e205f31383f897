/* SPDX-License-Identifier: Apache-2.0 */
#include "icrc.h"

#include <string.h>

#include "base.h"
#include "wire.h"

/* The CRC-32 of Ethernet and gzip. ISA-L is the fastest library, zlib is available everywhere. Both
   take and return the inverted state, so 0 starts a CRC and each result continues it. */
#if MRC_HAVE_ISAL
#include <isa-l/crc.h>

static uint32_t crc32_update(uint32_t crc, const uint8_t *bytes, size_t n) {
  return crc32_gzip_refl(crc, bytes, n);
}
const char *mrc_icrc_library(void) { return "ISA-L"; }
#else
/* zlib's header is often not installed. This prototype has been stable for thirty years. */
unsigned long crc32(unsigned long crc, const unsigned char *bytes, unsigned int n);

static uint32_t crc32_update(uint32_t crc, const uint8_t *bytes, size_t n) {
  return (uint32_t)crc32(crc, bytes, (unsigned int)n);
}
const char *mrc_icrc_library(void) { return "zlib"; }
#endif

enum {
  IPV4_BYTES = 20,
  IPV6_BYTES = 40,
  UDP_BYTES = 8,
  PROTOCOL_UDP = 17,
  BTH_VARIANT = 4 /* offset of the BTH byte that may change in flight */
};

/* CRC of eight bytes of ones, in place of InfiniBand's routing header, which RoCE does not have. */
#define CRC_OF_ONES 0x2144DF1Cu

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
  return crc32_update(CRC_OF_ONES, buffer, at + UDP_BYTES);
}

uint32_t mrc_icrc_header(uint32_t crc, const uint8_t *header, size_t n) {
  mrc_assert(n > BTH_VARIANT && n <= MRC_ICRC_MAX_HEADER);
  uint8_t buffer[MRC_ICRC_MAX_HEADER];
  memcpy(buffer, header, n);
  buffer[BTH_VARIANT] = 0xFF;
  return crc32_update(crc, buffer, n);
}

uint32_t mrc_icrc_update(uint32_t crc, const uint8_t *bytes, size_t n) {
  return n == 0 ? crc : crc32_update(crc, bytes, n); /* zlib restarts on a null pointer */
}

uint32_t mrc_icrc_packet(uint32_t crc, const uint8_t *bytes, size_t n) {
  const size_t header_bytes = mrc_min_u64(n, MRC_ICRC_MAX_HEADER);
  crc = mrc_icrc_header(crc, bytes, header_bytes);
  return mrc_icrc_update(crc, bytes + header_bytes, n - header_bytes);
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

bool mrc_icrc_is_good(struct mrc_icrc_prefix *last, const struct mrc_icrc_flow *flow,
                      const uint8_t *packet, size_t bytes) {
  mrc_assert(bytes >= MRC_ICRC_BYTES);
  if (!is_same(last, flow, bytes)) {
    *last = (struct mrc_icrc_prefix){.sport = flow->sport,
                                     .dport = flow->dport,
                                     .family = flow->family,
                                     .crc = mrc_icrc_begin(flow, bytes),
                                     .bytes = bytes};
    memcpy(last->src, flow->src, sizeof last->src);
    memcpy(last->dst, flow->dst, sizeof last->dst);
  }
  const size_t covered = bytes - MRC_ICRC_BYTES;
  uint8_t icrc[MRC_ICRC_BYTES];
  mrc_icrc_store(mrc_icrc_packet(last->crc, packet, covered), icrc);
  return memcmp(icrc, packet + covered, sizeof icrc) == 0;
}
