/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "sim/ethernet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base.h"
#include "core/wire.h"
#include "sim/numbers.h"
#include "virtual/link.h"

enum {
  TYPE_AT = 12,
  OUTER_AT = MRC_EMU_ETHERNET_BYTES,
  IPV6_BYTES = 40,
  LENGTH_AT = 4, /* in an IPv6 header, like the next five */
  NEXT_AT = 6,
  HOP_LIMIT_AT = 7,
  ADDRESSES_AT = 8,
  DST_AT = 24,
  BLOCK_BYTES = 4,
  USIDS_AT = DST_AT + BLOCK_BYTES,
  SRH_BYTES = 8, /* of a segment routing header, before its segments */
  SRH_UNITS_AT = 1,
  SRH_TYPE_AT = 2,
  SRH_LEFT_AT = 3,
  SRH_LAST_AT = 4,
  SRH_TYPE = 4,
  SEGMENT_BYTES = 16,
  PROTOCOL_TCP = 6,
  PROTOCOL_UDP = 17,
  PROTOCOL_IPV6 = 41,
  PROTOCOL_ROUTING = 43,
  UDP_BYTES = 8,
  UDP_LENGTH_AT = 4,
  UDP_CHECKSUM_AT = 6,
  TCP_CHECKSUM_AT = 16,
  ECN_CE = 3,
  /* the part of MRC_FRAME_OVERHEAD_BYTES that is in the packet itself */
  INSIDE_BYTES = 2 * IPV6_BYTES + UDP_BYTES
};

/* Addresses of the two ends of every link (mrc/testbed/plan.py); the host has the lower one. */
static const uint8_t ethernet[TYPE_AT] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1};

static uint32_t get_u16(const uint8_t *at) { return (uint32_t)mrc_get_be(at, 2); }

static uint32_t tclass_of(const uint8_t *ipv6) { return get_u16(ipv6) >> 4 & 0xFF; }

static void set_tclass(uint8_t *ipv6, uint32_t tclass) {
  mrc_put_be(ipv6, 2, (get_u16(ipv6) & 0xF00F) | tclass << 4);
}

/* Bytes of the segment routing header behind the outer IPv6 header; 0: it has none, or a wrong
   one. */
static uint32_t srh_bytes(const struct mrc_ethernet *bytes) {
  const uint8_t *outer = bytes->at + OUTER_AT, *srh = outer + IPV6_BYTES;
  if (bytes->n < OUTER_AT + IPV6_BYTES + SRH_BYTES || outer[NEXT_AT] != PROTOCOL_ROUTING) return 0;
  const uint32_t n = SRH_BYTES + 8u * srh[SRH_UNITS_AT], last = srh[SRH_LAST_AT];
  if (srh[SRH_TYPE_AT] != SRH_TYPE || bytes->n < OUTER_AT + IPV6_BYTES + n) return 0;
  if (SRH_BYTES + SEGMENT_BYTES * (last + 1) > n || srh[SRH_LEFT_AT] > last + 1) return 0;
  return n;
}

/* Offset of the innermost IPv6 header. */
static uint32_t innermost_at(const struct mrc_ethernet *bytes) {
  const uint32_t srh = srh_bytes(bytes), behind = OUTER_AT + IPV6_BYTES + srh;
  if (bytes->n < OUTER_AT + IPV6_BYTES) return OUTER_AT;
  const uint8_t next = bytes->at[srh ? OUTER_AT + IPV6_BYTES : OUTER_AT + NEXT_AT];
  return next == PROTOCOL_IPV6 ? behind : OUTER_AT;
}

/* ---- checksums ---- */

/* Sums 32-bit words in memory order: the Internet checksum is the same in any byte order. */
static uint64_t sum_of(const uint8_t *at, uint32_t n) {
  uint64_t sum = 0;
  uint32_t word;
  for (; n >= sizeof word; at += sizeof word, n -= (uint32_t)sizeof word) {
    memcpy(&word, at, sizeof word);
    sum += word;
  }
  word = 0;
  memcpy(&word, at, n);
  return sum + word;
}

static void put_checksum(uint8_t *at, uint64_t sum) {
  while (sum >> 16)
    sum = (sum & 0xFFFF) + (sum >> 16);
  const uint16_t checksum = sum == 0xFFFF ? 0xFFFF : (uint16_t)~sum; /* 0 would mean: no checksum */
  memcpy(at, &checksum, sizeof checksum);
}

bool mrc_ethernet_finish(struct mrc_frame *packet) {
  struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  uint32_t at = innermost_at(bytes);
  if (bytes->n < at + IPV6_BYTES + UDP_BYTES) return false;
  const uint8_t protocol = bytes->at[at + NEXT_AT];
  if (protocol != PROTOCOL_UDP && protocol != PROTOCOL_TCP) return false;
  at += IPV6_BYTES;
  const uint32_t checksum_at = protocol == PROTOCOL_UDP ? UDP_CHECKSUM_AT : TCP_CHECKSUM_AT;
  if (bytes->n < at + checksum_at + 2) return false;
  put_checksum(bytes->at + at + checksum_at, sum_of(bytes->at + at, bytes->n - at));
  return true;
}

/* ---- read ---- */

/* Whether the bytes are a whole IPv6 packet; removes Ethernet's padding. */
static bool is_whole(struct mrc_ethernet *bytes) {
  const uint8_t *outer = bytes->at + OUTER_AT;
  if (bytes->n < OUTER_AT + IPV6_BYTES) return false;
  if (get_u16(bytes->at + TYPE_AT) != ETHERTYPE_IPV6 || outer[0] >> 4 != 6) return false;
  const uint32_t n = OUTER_AT + IPV6_BYTES + get_u16(outer + LENGTH_AT);
  if (n > bytes->n) return false;
  bytes->n = n;
  return true;
}

/* Offset of the innermost packet's UDP header; 0: no whole UDP datagram. */
static uint16_t find_udp(const struct mrc_ethernet *bytes) {
  uint32_t at = innermost_at(bytes);
  if (bytes->n < at + IPV6_BYTES + UDP_BYTES || bytes->at[at + NEXT_AT] != PROTOCOL_UDP) return 0;
  at += IPV6_BYTES;
  return get_u16(bytes->at + at + UDP_LENGTH_AT) == bytes->n - at ? (uint16_t)at : 0;
}

/* A switch identifies MRC only by the opcode, which has its own range; see core/wire.h. */
static bool is_mrc(uint8_t opcode) {
  return opcode >= MRC_OP_WRITE_FIRST && opcode <= MRC_OP_PROBE;
}

static void read_udp(struct mrc_frame *packet, const struct mrc_ethernet *bytes) {
  const uint8_t *payload = bytes->at + bytes->udp_at + UDP_BYTES;
  const uint32_t n = bytes->n - bytes->udp_at - UDP_BYTES;
  if (n == 0 || !is_mrc(payload[0])) return;
  packet->header_bytes = (uint8_t)mrc_min_u32(n, MRC_LINK_TRIM_BYTES);
  memcpy(packet->header, payload, packet->header_bytes);
  packet->payload_bytes -= mrc_min_u32(packet->header_bytes, packet->payload_bytes);
  packet->control = packet->ecn == 0 && !mrc_opcode_is_data(payload[0]);
}

static void read_usids(struct mrc_frame *packet, const uint8_t *outer) {
  packet->usids = mrc_get_be(outer + USIDS_AT, 8);
  packet->usids_beyond = (uint32_t)mrc_get_be(outer + USIDS_AT + 8, 4);
}

bool mrc_ethernet_read(struct mrc_frame *packet, uint32_t block, uint32_t plane) {
  struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  const uint8_t *outer = bytes->at + OUTER_AT;
  if (!is_whole(bytes)) return false;
  if (mrc_get_be(outer + DST_AT, 4) != ((uint64_t)block << 16 | (plane + 1))) return false;
  read_usids(packet, outer);
  packet->plane = (uint8_t)plane;
  packet->ecn = tclass_of(outer) & 3;
  packet->flow_label = (uint32_t)mrc_get_be(outer, 4) & 0xFFFFF;
  /* a segment routing header counts as payload */
  packet->payload_bytes = bytes->n - mrc_min_u32(bytes->n, OUTER_AT + INSIDE_BYTES);
  bytes->udp_at = find_udp(bytes);
  if (bytes->udp_at) read_udp(packet, bytes);
  return true;
}

void mrc_ethernet_next_carrier(struct mrc_frame *packet) {
  struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  uint8_t *outer = bytes->at + OUTER_AT, *srh = outer + IPV6_BYTES;
  if (srh_bytes(bytes) == 0 || srh[SRH_LEFT_AT] == 0) return;
  const uint8_t *segment = srh + SRH_BYTES + SEGMENT_BYTES * --srh[SRH_LEFT_AT];
  if (memcmp(segment, outer + DST_AT, BLOCK_BYTES) != 0) return;
  memcpy(outer + DST_AT, segment, SEGMENT_BYTES);
  read_usids(packet, outer);
}

/* ---- write ---- */

/* A trimming switch computes a new checksum, because hosts may drop packets without one. */
static void set_checksum(uint8_t *ipv6, uint8_t *udp, uint32_t n) {
  const uint32_t rest[] = {htonl(PROTOCOL_UDP), htonl(n)};
  memset(udp + UDP_CHECKSUM_AT, 0, 2);
  put_checksum(udp + UDP_CHECKSUM_AT,
               sum_of(ipv6 + ADDRESSES_AT, 32) + rest[0] + rest[1] + sum_of(udp, n));
}

static void trim(const struct mrc_frame *packet, struct mrc_ethernet *bytes) {
  const uint32_t dscp =
      packet->trimmed == MRC_TRIMMED_LASTHOP ? MRC_DSCP_TRIMMED_LAST : MRC_DSCP_TRIMMED;
  uint8_t *udp = bytes->at + bytes->udp_at;
  uint8_t *inner = udp - IPV6_BYTES;
  bytes->n = bytes->udp_at + UDP_BYTES + packet->header_bytes;
  const uint32_t headers_at[] = {OUTER_AT, bytes->udp_at - IPV6_BYTES};
  for (int i = 0; i < 2; i++) {
    uint8_t *ipv6 = bytes->at + headers_at[i];
    set_tclass(ipv6, dscp << 2 | (tclass_of(ipv6) & 3));
    mrc_put_be(ipv6 + LENGTH_AT, 2, bytes->n - headers_at[i] - IPV6_BYTES);
  }
  mrc_put_be(udp + UDP_LENGTH_AT, 2, UDP_BYTES + packet->header_bytes);
  set_checksum(inner, udp, UDP_BYTES + packet->header_bytes);
}

bool mrc_ethernet_write(struct mrc_frame *packet, uint32_t random) {
  struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  uint8_t *outer = bytes->at + OUTER_AT;
  if (outer[HOP_LIMIT_AT] <= packet->switches) return false;
  outer[HOP_LIMIT_AT] = (uint8_t)(outer[HOP_LIMIT_AT] - packet->switches);
  memcpy(bytes->at, ethernet, sizeof ethernet);
  mrc_put_be(outer + USIDS_AT, 8, packet->usids);
  mrc_put_be(outer + USIDS_AT + 8, 4, packet->usids_beyond);
  if (packet->ecn == ECN_CE) set_tclass(outer, tclass_of(outer) | ECN_CE);
  if (packet->trimmed) trim(packet, bytes);
  if (packet->corrupt) {
    const uint32_t from = bytes->udp_at ? bytes->udp_at + UDP_BYTES : OUTER_AT + IPV6_BYTES;
    if (bytes->n > from) bytes->at[from + random % (bytes->n - from)] ^= 1u << random % 8;
  }
  return true;
}

/* ---- the outbox ---- */

enum { CAPACITY = 8 }; /* a host's stack takes about 3 us a packet, while all others wait */

struct mrc_emu_letters {
  struct mmsghdr messages[CAPACITY];
  struct iovec iovecs[CAPACITY];
  struct sockaddr_ll addresses[CAPACITY];
  struct mrc_frame *packets[CAPACITY];
  uint64_t due_ns[CAPACITY];
};

int mrc_emu_outbox_open(struct mrc_emu_outbox *outbox) {
  *outbox = (struct mrc_emu_outbox){0};
  outbox->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0); /* protocol 0: receives nothing */
  if (outbox->fd < 0) return -errno;
  const int on = 1;
  if (setsockopt(outbox->fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on) != 0) {
    const int error = -errno;
    close(outbox->fd);
    return error;
  }
  outbox->letters = calloc(1, sizeof(*outbox->letters));
  mrc_assert(outbox->letters);
  return 0;
}

void mrc_emu_outbox_close(struct mrc_emu_outbox *outbox) {
  free(outbox->letters);
  close(outbox->fd);
}

bool mrc_emu_outbox_put(struct mrc_emu_outbox *outbox, struct mrc_frame *packet, int ifindex,
                        uint64_t due_ns) {
  struct mrc_emu_letters *letters = outbox->letters;
  struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  const int i = outbox->n++;
  mrc_assert(i < CAPACITY);
  letters->packets[i] = packet;
  letters->due_ns[i] = due_ns;
  letters->iovecs[i] = (struct iovec){.iov_base = bytes->at, .iov_len = bytes->n};
  letters->addresses[i] = (struct sockaddr_ll){
      .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IPV6), .sll_ifindex = ifindex};
  letters->messages[i].msg_hdr = (struct msghdr){.msg_name = &letters->addresses[i],
                                                 .msg_namelen = sizeof letters->addresses[i],
                                                 .msg_iov = &letters->iovecs[i],
                                                 .msg_iovlen = 1};
  return outbox->n == CAPACITY;
}

/* If the kernel refuses a packet, it is the first of the rest: counts and skips it. */
static void send_all(struct mrc_emu_outbox *outbox) {
  for (int done = 0; done < outbox->n;) {
    const int n =
        sendmmsg(outbox->fd, outbox->letters->messages + done, (unsigned)(outbox->n - done), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) {
      outbox->sent += (uint64_t)n;
      done += n;
      continue;
    }
    if (errno == ENETDOWN || errno == ENXIO || errno == ENODEV)
      outbox->refused++;
    else
      outbox->overloaded++;
    done++;
  }
}

void mrc_emu_outbox_flush(struct mrc_emu_outbox *outbox, struct mrc_frame_pool *pool,
                          uint64_t now_ns) {
  if (outbox->n == 0) return;
  for (int i = 0; i < outbox->n; i++) {
    const uint64_t due_ns = outbox->letters->due_ns[i];
    const uint64_t late_ns = now_ns > due_ns ? now_ns - due_ns : 0;
    outbox->late[late_ns ? 64 - __builtin_clzll(late_ns) : 0]++;
  }
  send_all(outbox);
  for (int i = 0; i < outbox->n; i++)
    mrc_frame_pool_put(pool, outbox->letters->packets[i]);
  outbox->n = 0;
}
