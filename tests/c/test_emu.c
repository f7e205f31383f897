/* SPDX-License-Identifier: Apache-2.0 */
/* The emulator on the loopback interface of its own namespace, which stands for both hosts: the
   packets that it sends come back to it until their hop limit is used up. */
#define _GNU_SOURCE 1
#include "emu/emu.h"

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

enum { LOOPBACK = 1, FRAME = 14 + 40 + 40, HOP_LIMIT_AT = 21 };

static const struct mrc_emu_config config = {.seed = 1,
                                             .hosts = 2,
                                             .planes = 1,
                                             .t0 = 2,
                                             .t1 = 1,
                                             .block = 0xFCBB,
                                             .mtu = 1500,
                                             .host_rate_bps = 1000000000,
                                             .fabric_rate_bps = 1000000000,
                                             .host_delay_ns = 1000,
                                             .fabric_delay_ns = 1000,
                                             .buffer_bytes = 100000};
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
  const struct mrc_emu_fault silent = {.kind = MRC_EMU_SILENT};
  CHECK_EQ(mrc_emu_set_faults(emu, hop, &silent, 1), 0);
  send_one(64);
  stats = wait_for(emu, 1, 1);
  CHECK_EQ(stats.sent, 61);
  const struct mrc_emu_fault small = {.kind = MRC_EMU_MTU, .a = info.bytes - 24 - 14 - 1};
  CHECK_EQ(mrc_emu_set_faults(emu, hop, &small, 1), 0);
  send_one(64);
  stats = wait_for(emu, 1, 2);
  CHECK_EQ(stats.sent, 61);
  const struct mrc_emu_fault enough = {.kind = MRC_EMU_MTU, .a = info.bytes - 24 - 14};
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
  slow.host_delay_ns = 3600ull * 1000000000;
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

/* One hop has a delay of 1 s, the others 1 us: the packet waits on the slow hop. */
TEST(test_set_link__delays_one_hop) {
  if (!is_alone()) return;
  mrc_emu *emu;
  pthread_t thread;
  struct mrc_emu_hop info;
  CHECK_EQ(mrc_emu_create(&config, ifindices, &emu), 0);
  const int up = mrc_emu_hop_number(emu, MRC_EMU_T0_UP, 1, 1, 0);
  const int down = mrc_emu_hop_number(emu, MRC_EMU_T1_DOWN, 1, 0, 0);
  CHECK_EQ(mrc_emu_set_link(emu, up, 1000, 1000000000, 0, 9000), 0);
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
  rows[0].hosts = 1;
  rows[1].hosts = 3;
  rows[2].planes = 33;
  rows[3].t0 = 0;
  rows[4].hosts = rows[4].t0 = 4097;
  rows[5].t1 = 0;
  rows[6].t1 = 257;
  rows[7].block = 65536;
  rows[8].host_rate_bps = 0;
  rows[9].fabric_rate_bps = 0;
  rows[10].mtu = 65536;
  rows[11].ecn_low_bytes = rows[11].ecn_high_bytes = 1;
  rows[12].hosts = 16386;
  for (int i = 0; i < n_rows; i++) {
    CHECK_ROW(i);
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
      {.kind = MRC_EMU_RATE}, {.kind = MRC_EMU_MTU}, {.kind = MRC_EMU_MTU + 1}};
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
