/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of hosts as frames of the fabric; then the emulator on the loopback interface of its own
   namespace, which stands for both hosts: the packets that it sends come back to it until their hop
   limit is used up. */
#define _GNU_SOURCE 1
#include "sim/emu.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "core/base.h"
#include "core/wire.h"
#include "sim/ethernet.h"
#include "sim/numbers.h"

/* ---- Packets ---- */

enum { OUTER = 14, INNER = 54, UDP = 94, PAYLOAD = 102, SRH = 40, ROOM = 2048, ECT0 = 2, CE = 3 };

static struct mrc_frame_pool pool; /* of all tests; nothing frees it */

static void put_u16(uint8_t *at, uint32_t value) {
  at[0] = (uint8_t)(value >> 8);
  at[1] = (uint8_t)value;
}

static uint32_t get_u16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }

/* The sum of RFC 1071, a byte at a time: 0xFFFF for a datagram with a right checksum. */
static uint32_t checked_sum(const uint8_t *inner, uint32_t udp_bytes) {
  uint32_t sum = 17 + udp_bytes;
  for (uint32_t i = 8; i < 40 + udp_bytes; i++)
    sum += i % 2 ? inner[i] : (uint32_t)inner[i] << 8;
  while (sum >> 16)
    sum = (sum & 0xFFFF) + (sum >> 16);
  return sum;
}

/* A packet of a host in plane 1: fcbb:1:100:201:e000::, ECT(0), inside it UDP with a payload that
   begins with an opcode; its checksum is the sum of the pseudo header alone. */
static struct mrc_frame *make(uint8_t opcode, uint32_t payload_bytes) {
  static const uint8_t carrier[16] = {0xFC, 0xBB, 0, 1, 1, 0, 2, 1, 0xE0};
  pool.room_bytes = mrc_ethernet_room_bytes(ROOM);
  struct mrc_frame *packet = mrc_frame_pool_get(&pool);
  struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  memset(bytes->at, 0, ROOM);
  bytes->n = PAYLOAD + payload_bytes;
  put_u16(bytes->at + 12, 0x86DD);
  for (int at = OUTER; at <= INNER; at += INNER - OUTER) {
    put_u16(bytes->at + at, 0x6000 | ECT0 << 4 | 0x1);
    put_u16(bytes->at + at + 2, 0x2345); /* flow label 12345 */
    put_u16(bytes->at + at + 4, bytes->n - (uint32_t)at - 40);
    bytes->at[at + 7] = 64;
  }
  bytes->at[OUTER + 6] = 41;
  bytes->at[INNER + 6] = 17;
  memcpy(bytes->at + OUTER + 24, carrier, sizeof carrier);
  put_u16(bytes->at + INNER + 24, 0xFD00);
  put_u16(bytes->at + UDP + 4, 8 + payload_bytes);
  uint32_t pseudo = 0xFD00 + 17 + 8 + payload_bytes;
  put_u16(bytes->at + UDP + 6, (pseudo & 0xFFFF) + (pseudo >> 16));
  for (uint32_t i = 0; i < payload_bytes; i++)
    bytes->at[PAYLOAD + i] = (uint8_t)(i * 7);
  bytes->at[PAYLOAD] = opcode;
  return packet;
}

TEST(test_ethernet_finish__any_length) {
  EACH_OF(uint32_t, n, 1, 70) {
    struct mrc_frame *packet = make(MRC_OP_WRITE_MIDDLE, n);
    CHECK(mrc_ethernet_finish(packet));
    CHECK_EQ(checked_sum(mrc_ethernet_of(packet)->at + INNER, 8 + n), 0xFFFF);
  }
}

TEST(test_ethernet_finish__neither_udp_nor_tcp) {
  struct mrc_frame *packet = make(MRC_OP_WRITE_MIDDLE, 100);
  mrc_ethernet_of(packet)->at[INNER + 6] = 58; /* ICMPv6 */
  CHECK(!mrc_ethernet_finish(packet));
}

TEST(test_ethernet_read__describes_the_packet) {
  static const struct {
    uint8_t opcode, ecn;
    uint32_t payload_bytes;
    uint32_t header_bytes;
    bool control;
  } rows[] = {
      {MRC_OP_WRITE_MIDDLE, ECT0, 1000, 64, false},
      {MRC_OP_WRITE_ONLY, ECT0, 40, 40, false},
      {MRC_OP_SACK, 0, 60, 60, true},
      {MRC_OP_PROBE, ECT0, 40, 40, false}, /* in the data class, so switches may mark it */
      {0x45, 0, 1000, 0, false},           /* not an MRC opcode */
  };
  EACH_ROW(i, rows) {
    struct mrc_frame *packet = make(rows[i].opcode, rows[i].payload_bytes);
    struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
    put_u16(bytes->at + OUTER, 0x6001 | (uint32_t)rows[i].ecn << 4);
    CHECK(mrc_ethernet_read(packet, 0xFCBB, 0));
    CHECK(packet->usids == 0x01000201E0000000ull);
    CHECK_EQ(packet->flow_label, 0x12345);
    CHECK_EQ(packet->ecn, rows[i].ecn);
    CHECK_EQ(packet->header_bytes, rows[i].header_bytes);
    CHECK_EQ(mrc_frame_udp_bytes(packet), rows[i].payload_bytes);
    CHECK_EQ(packet->control, rows[i].control);
    CHECK_EQ(bytes->udp_at, UDP);
  }
}

/* Each row spoils one byte or truncates the packet. */
TEST(test_ethernet_read__refuses) {
  static const struct {
    uint32_t at;
    uint8_t value;
    uint32_t n;
  } rows[] = {
      {12, 0x08, 0},         /* Ethernet type is not IPv6 */
      {OUTER, 0x40, 0},      /* IP version is not 6 */
      {OUTER + 4, 0xFF, 0},  /* longer than the packet */
      {OUTER + 24, 0xFD, 0}, /* destination is no carrier */
      {OUTER + 27, 2, 0},    /* carrier of another plane */
      {0, 0, 53},            /* half a header */
      {0, 0, 0},
  };
  const int n_rows = (int)(sizeof rows / sizeof *rows);
  EACH_OF(int, i, 0, n_rows) {
    struct mrc_frame *packet = make(MRC_OP_WRITE_MIDDLE, 500);
    struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
    bytes->at[rows[i].at] = rows[i].value;
    if (rows[i].n) bytes->n = rows[i].n;
    CHECK_EQ(mrc_ethernet_read(packet, 0xFCBB, 0), i == n_rows - 1);
  }
}

static struct mrc_frame *read_one(uint32_t payload_bytes) {
  struct mrc_frame *packet = make(MRC_OP_WRITE_MIDDLE, payload_bytes);
  CHECK(mrc_ethernet_finish(packet));
  CHECK(mrc_ethernet_read(packet, 0xFCBB, 0));
  return packet;
}

TEST(test_ethernet_write__usids_hop_limit_and_mark) {
  struct mrc_frame *packet = read_one(500);
  const struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  packet->usids = 0xE000ull << 48;
  packet->usids_beyond = 0x12345678;
  packet->switches = 3;
  packet->ecn = CE;
  CHECK(mrc_ethernet_write(packet, 0));
  static const uint8_t dst[16] = {0xFC, 0xBB, 0, 1, 0xE0, 0,    0,    0,
                                  0,    0,    0, 0, 0x12, 0x34, 0x56, 0x78};
  CHECK_MEM_EQ(bytes->at + OUTER + 24, dst, 16);
  CHECK_EQ(bytes->at[OUTER + 7], 61);
  CHECK_EQ(get_u16(bytes->at + OUTER), 0x6031); /* CE outside: the host copies it inside */
  CHECK_EQ(get_u16(bytes->at + INNER), 0x6021);
  CHECK_EQ(bytes->n, PAYLOAD + 500);
  CHECK_EQ(checked_sum(bytes->at + INNER, 508), 0xFFFF);
}

/* Inserts a segment routing header with two carriers behind the outer header. */
static struct mrc_frame *make_with_srh(uint8_t left) {
  static const uint8_t segments[] = {
      0xFC, 0xBB, 0, 1, 0xE0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* the last one */
      0xFC, 0xBB, 0, 1, 2,    1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
  };
  const uint8_t head[] = {41, sizeof segments / 8, 4, left, 1};
  struct mrc_frame *packet = make(MRC_OP_WRITE_MIDDLE, 500);
  struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  memmove(bytes->at + INNER + SRH, bytes->at + INNER, bytes->n - INNER);
  memset(bytes->at + INNER, 0, SRH);
  memcpy(bytes->at + INNER, head, sizeof head);
  memcpy(bytes->at + INNER + SRH - sizeof segments, segments, sizeof segments);
  bytes->n += SRH;
  put_u16(bytes->at + OUTER + 4, bytes->n - OUTER - 40);
  bytes->at[OUTER + 6] = 43;
  return packet;
}

TEST(test_ethernet_next_carrier__in_turn) {
  struct mrc_frame *packet = make_with_srh(2);
  const struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
  CHECK(mrc_ethernet_finish(packet));
  CHECK(mrc_ethernet_read(packet, 0xFCBB, 0));
  CHECK_EQ(bytes->udp_at, UDP + SRH);
  CHECK_EQ(mrc_frame_udp_bytes(packet), 500 + SRH);
  mrc_ethernet_next_carrier(packet);
  CHECK(packet->usids == 0x0201ull << 48);
  mrc_ethernet_next_carrier(packet);
  CHECK(packet->usids == 0xE001ull << 48);
  packet->usids = 0;
  mrc_ethernet_next_carrier(packet); /* none is left */
  CHECK(packet->usids == 0);
  packet->payload_bytes = 0;
  packet->trimmed = MRC_TRIMMED;
  CHECK(mrc_ethernet_write(packet, 0));
  CHECK_EQ(bytes->n, PAYLOAD + SRH + 64);
  CHECK_EQ(get_u16(bytes->at + OUTER + 4), SRH + 40 + 8 + 64);
  CHECK_EQ(get_u16(bytes->at + INNER + SRH + 4), 8 + 64);
  CHECK_EQ(checked_sum(bytes->at + INNER + SRH, 8 + 64), 0xFFFF);
}

/* Each row spoils one byte. */
TEST(test_ethernet_next_carrier__refuses) {
  static const struct {
    uint32_t at;
    uint8_t value;
  } rows[] = {
      {OUTER + 6, 60},     /* destination options */
      {INNER + 1, 2},      /* room for one segment */
      {INNER + 1, 0xFF},   /* longer than the packet */
      {INNER + 2, 3},      /* another routing header */
      {INNER + 3, 0},      /* no segment left */
      {INNER + 3, 3},      /* more segments left than there are */
      {INNER + 4, 2},      /* a last segment that has no room */
      {INNER + 8 + 19, 2}, /* a carrier of plane 2 */
  };
  EACH_ROW(i, rows) {
    struct mrc_frame *packet = make_with_srh(2);
    mrc_ethernet_of(packet)->at[rows[i].at] = rows[i].value;
    CHECK(mrc_ethernet_read(packet, 0xFCBB, 0));
    packet->usids = 0;
    mrc_ethernet_next_carrier(packet);
    CHECK(packet->usids == 0);
  }
}

TEST(test_ethernet_write__no_hops_left) {
  struct mrc_frame *packet = read_one(500);
  packet->switches = 64;
  CHECK(!mrc_ethernet_write(packet, 0));
}

TEST(test_ethernet_write__trimmed) {
  static const uint8_t dscps[] = {[MRC_TRIMMED] = MRC_DSCP_TRIMMED,
                                  [MRC_TRIMMED_LASTHOP] = MRC_DSCP_TRIMMED_LAST};
  EACH_OF(uint8_t, trimmed, MRC_TRIMMED, MRC_TRIMMED_LASTHOP + 1) {
    struct mrc_frame *packet = read_one(500);
    const struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
    packet->payload_bytes = 0;
    packet->trimmed = trimmed;
    CHECK(mrc_ethernet_write(packet, 0));
    CHECK_EQ(bytes->n, PAYLOAD + 64);
    CHECK_EQ(get_u16(bytes->at + OUTER + 4), 40 + 8 + 64);
    CHECK_EQ(get_u16(bytes->at + INNER + 4), 8 + 64);
    CHECK_EQ(get_u16(bytes->at + UDP + 4), 8 + 64);
    CHECK_EQ(checked_sum(bytes->at + INNER, 8 + 64), 0xFFFF);
    for (int at = OUTER; at <= INNER; at += INNER - OUTER) {
      const uint32_t tclass = get_u16(bytes->at + at) >> 4 & 0xFF;
      CHECK_EQ(tclass, (uint32_t)dscps[trimmed] << 2 | ECT0);
    }
  }
}

TEST(test_ethernet_write__damage_is_seen_by_the_checksum) {
  for (uint32_t random = 0; random < 100; random++) {
    struct mrc_frame *packet = read_one(77);
    packet->corrupt = true;
    CHECK(mrc_ethernet_write(packet, random * 977));
    CHECK(checked_sum(mrc_ethernet_of(packet)->at + INNER, 8 + 77) != 0xFFFF);
  }
}

/* For any bytes: read nothing beyond the packet, and never make it longer. */
TEST(test_ethernet_any_bytes) {
  struct mrc_prng prng = {.state = 5};
  for (int i = 0; i < 20000; i++) {
    struct mrc_frame *packet =
        i % 2 ? make_with_srh(2) : make(MRC_OP_WRITE_MIDDLE, mrc_prng_below(&prng, 300));
    struct mrc_ethernet *bytes = mrc_ethernet_of(packet);
    for (uint32_t n = mrc_prng_below(&prng, 4); n > 0; n--)
      bytes->at[mrc_prng_below(&prng, PAYLOAD + 2)] = (uint8_t)mrc_prng_next(&prng);
    if (mrc_prng_below(&prng, 2)) bytes->n = mrc_prng_below(&prng, bytes->n + 1);
    const uint32_t before = bytes->n;
    (void)mrc_ethernet_finish(packet);
    if (mrc_ethernet_read(packet, 0xFCBB, 0)) {
      mrc_ethernet_next_carrier(packet);
      packet->corrupt = mrc_prng_below(&prng, 2);
      if (packet->header_bytes > 0 && packet->payload_bytes > 0) packet->trimmed = MRC_TRIMMED;
      (void)mrc_ethernet_write(packet, (uint32_t)mrc_prng_next(&prng));
    }
    CHECK(bytes->n <= before);
    mrc_frame_pool_put(&pool, packet);
  }
}

TEST(test_ethernet_copy__has_bytes_of_its_own) {
  struct mrc_frame *packet = read_one(500);
  struct mrc_frame *copy = mrc_frame_pool_copy(&pool, packet);
  CHECK_MEM_EQ(mrc_ethernet_of(copy)->at, mrc_ethernet_of(packet)->at, PAYLOAD + 500);
  mrc_ethernet_of(copy)->at[PAYLOAD]++;
  CHECK_EQ(mrc_ethernet_of(packet)->at[PAYLOAD], MRC_OP_WRITE_MIDDLE);
}

/* ---- The emulator ---- */

enum { LOOPBACK = 1, FRAME = 14 + 40 + 40, HOP_LIMIT_AT = 21 };

static const struct mrc_emu_config config = {.seed = 1,
                                             .topology.hosts = 2,
                                             .topology.planes = 1,
                                             .topology.t0 = 2,
                                             .topology.t1 = 1,
                                             .block = 0xFCBB,
                                             .mtu = 1500,
                                             .topology.host_rate_bps = 1000000000,
                                             .topology.fabric_rate_bps = 1000000000,
                                             .topology.host_delay_ns = 1000,
                                             .topology.fabric_delay_ns = 1000,
                                             .topology.buffer_bytes = 100000};
static const int ifindices[] = {LOOPBACK, LOOPBACK};

/* Whether this thread now has its own network namespace, with its loopback up. */
static bool is_alone(void) {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    printf("skipped: namespaces are not allowed here\n");
    return false;
  }
  struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  CHECK_EQ(ioctl(fd, SIOCSIFFLAGS, &request), 0);
  close(fd);
  return true;
}

/* Sends a packet of host 1, over T1 0, to host 0: to the carrier fcbb:1:100:200:e000::. */
static void send_one(uint8_t hop_limit) {
  static const uint8_t carrier[16] = {0xFC, 0xBB, 0, 1, 1, 0, 2, 0, 0xE0};
  uint8_t frame[FRAME] = {[12] = 0x86, [13] = 0xDD, [14] = 0x60, [19] = 40, [20] = 41};
  frame[HOP_LIMIT_AT] = hop_limit;
  memcpy(frame + 38, carrier, sizeof carrier);
  const struct sockaddr_ll lo = {
      .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IPV6), .sll_ifindex = LOOPBACK};
  const int fd = socket(AF_PACKET, SOCK_RAW, 0);
  CHECK_EQ(sendto(fd, frame, sizeof frame, 0, (const void *)&lo, sizeof lo), FRAME);
  close(fd);
}

static void *run(void *emu) {
  mrc_emu_run(emu);
  return NULL;
}

static struct mrc_emu_stats wait_for(mrc_emu *emu, uint64_t unroutable, uint64_t lost) {
  struct mrc_emu_stats stats;
  do {
    sched_yield();
    mrc_emu_ask(emu, &stats);
  } while (stats.unroutable < unroutable || stats.lost < lost);
  return stats;
}

TEST(test_run__until_the_hop_limit_has_run_out) {
  if (!is_alone()) return;
  mrc_emu *emu;
  pthread_t thread;
  CHECK_EQ(mrc_emu_create(&config, ifindices, &emu), 0);
  CHECK_EQ(pthread_create(&thread, NULL, run, emu), 0);
  send_one(64);
  /* Three switches at first, then down to the host one hop at a time. */
  struct mrc_emu_stats stats = wait_for(emu, 1, 0);
  CHECK_EQ(stats.received, 1 + 61);
  CHECK_EQ(stats.sent, 61);
  CHECK_EQ(stats.overloaded + stats.offloaded + stats.dropped + stats.refused, 0);
  uint64_t counted = 0;
  for (int i = 0; i < 64; i++)
    counted += stats.late[i];
  CHECK_EQ(counted, 61);
  const int hop = mrc_emu_hop_number(emu, MRC_EMU_T1_DOWN, 1, 0, 0);
  struct mrc_emu_hop info;
  CHECK_EQ(mrc_emu_ask_hop(emu, hop, &info), 0);
  CHECK_EQ(info.packets, 1);
  CHECK_EQ(info.bytes, FRAME + 24 + 8); /* 126 bytes and no UDP payload */
  const struct mrc_emu_fault silent = {.kind = MRC_SIM_SILENT};
  CHECK_EQ(mrc_emu_set_faults(emu, hop, &silent, 1), 0);
  send_one(64);
  stats = wait_for(emu, 1, 1);
  CHECK_EQ(stats.sent, 61);
  const struct mrc_emu_fault small = {.kind = MRC_SIM_MTU, .a = info.bytes - 24 - 14 - 1};
  CHECK_EQ(mrc_emu_set_faults(emu, hop, &small, 1), 0);
  send_one(64);
  stats = wait_for(emu, 1, 2);
  CHECK_EQ(stats.sent, 61);
  const struct mrc_emu_fault enough = {.kind = MRC_SIM_MTU, .a = info.bytes - 24 - 14};
  CHECK_EQ(mrc_emu_set_faults(emu, hop, &enough, 1), 0);
  send_one(64);
  stats = wait_for(emu, 2, 2);
  CHECK_EQ(stats.sent, 2 * 61);
  mrc_emu_stop(emu);
  pthread_join(thread, NULL);
  mrc_emu_destroy(emu);
}

TEST(test_destroy__with_packets_inside) {
  if (!is_alone()) return;
  struct mrc_emu_config slow = config;
  slow.topology.host_delay_ns = 3600ull * 1000000000;
  mrc_emu *emu;
  pthread_t thread;
  struct mrc_emu_stats stats;
  CHECK_EQ(mrc_emu_create(&slow, ifindices, &emu), 0);
  CHECK_EQ(pthread_create(&thread, NULL, run, emu), 0);
  send_one(64);
  do {
    sched_yield();
    mrc_emu_ask(emu, &stats);
  } while (stats.received == 0);
  mrc_emu_stop(emu);
  pthread_join(thread, NULL);
  mrc_emu_destroy(emu);
}

/* One hop has a delay of an hour, the others 1 us: the packet waits on the slow hop. */
TEST(test_set_link__delays_one_hop) {
  if (!is_alone()) return;
  mrc_emu *emu;
  pthread_t thread;
  struct mrc_emu_hop info;
  CHECK_EQ(mrc_emu_create(&config, ifindices, &emu), 0);
  const int up = mrc_emu_hop_number(emu, MRC_EMU_T0_UP, 1, 1, 0);
  const int down = mrc_emu_hop_number(emu, MRC_EMU_T1_DOWN, 1, 0, 0);
  CHECK_EQ(mrc_emu_set_link(emu, up, 1000, 3600ull * 1000000000, 0, 9000), 0);
  CHECK_EQ(mrc_emu_set_link(emu, up, 0, 0, 0, 9000), -EINVAL);
  CHECK_EQ(mrc_emu_set_link(emu, -1, 1, 0, 0, 9000), -EINVAL);
  CHECK_EQ(mrc_emu_set_faults(emu, up, NULL, 0), 0); /* the delay stays when faults are set */
  CHECK_EQ(pthread_create(&thread, NULL, run, emu), 0);
  send_one(64);
  do {
    sched_yield();
    CHECK_EQ(mrc_emu_ask_hop(emu, up, &info), 0);
  } while (info.packets == 0);
  CHECK_EQ(info.busy_ns, info.bytes * 8 * 1000000);
  CHECK_EQ(mrc_emu_ask_hop(emu, down, &info), 0);
  CHECK_EQ(info.packets, 0);
  mrc_emu_stop(emu);
  pthread_join(thread, NULL);
  mrc_emu_destroy(emu);
}

TEST(test_create__refuses) {
  struct mrc_emu_config rows[13];
  const int n_rows = (int)(sizeof rows / sizeof *rows);
  for (int i = 0; i < n_rows; i++)
    rows[i] = config;
  rows[0].topology.hosts = 1;
  rows[1].topology.hosts = 3;
  rows[2].topology.planes = 33;
  rows[3].topology.t0 = 0;
  rows[4].topology.hosts = rows[4].topology.t0 = 4097;
  rows[5].topology.t1 = 0;
  rows[6].topology.t1 = 257;
  rows[7].block = 65536;
  rows[8].topology.host_rate_bps = 0;
  rows[9].topology.fabric_rate_bps = 0;
  rows[10].mtu = 65536;
  rows[11].topology.ecn_low_bytes = rows[11].topology.ecn_high_bytes = 1;
  rows[12].topology.hosts = 16386;
  EACH_OF(int, i, 0, n_rows) {
    mrc_emu *emu = NULL;
    CHECK_EQ(mrc_emu_create(&rows[i], ifindices, &emu), -EINVAL);
    CHECK_PTR_EQ(emu, NULL);
  }
}

TEST(test_set_faults__refuses) {
  if (!is_alone()) return;
  mrc_emu *emu;
  CHECK_EQ(mrc_emu_create(&config, ifindices, &emu), 0);
  const struct mrc_emu_fault wrong[] = {
      {.kind = MRC_SIM_RATE}, {.kind = MRC_SIM_MTU}, {.kind = MRC_SIM_MTU + 1}};
  for (int i = 0; i < 3; i++)
    CHECK_EQ(mrc_emu_set_faults(emu, 0, &wrong[i], 1), -EINVAL);
  struct mrc_emu_hop info;
  CHECK_EQ(mrc_emu_set_faults(emu, 8, NULL, 0), -EINVAL); /* 4 hops of hosts, 4 of T1s */
  CHECK_EQ(mrc_emu_ask_hop(emu, -1, &info), -EINVAL);
  CHECK_EQ(mrc_emu_hop_number(emu, MRC_EMU_HOST_UP, 2, 0, 0), -EINVAL);
  CHECK_EQ(mrc_emu_hop_number(emu, MRC_EMU_HOST_UP, 0, 0, 0), -EINVAL);
  CHECK_EQ(mrc_emu_hop_number(emu, MRC_EMU_HOST_DOWN, 1, 0, 1), -EINVAL); /* below another T0 */
  CHECK_EQ(mrc_emu_hop_number(emu, MRC_EMU_HOST_DOWN, 1, 0, 2), -EINVAL);
  CHECK_EQ(mrc_emu_hop_number(emu, MRC_EMU_T0_UP, 1, 2, 0), -EINVAL);
  CHECK_EQ(mrc_emu_hop_number(emu, MRC_EMU_T0_UP, 1, 1, 1), -EINVAL);
  CHECK_EQ(mrc_emu_hop_number(emu, 4, 1, 0, 0), -EINVAL);
  mrc_emu_destroy(emu);
}
