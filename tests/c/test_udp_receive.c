/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "core/wire.h"
#include "io/receive.h"
#include "loopback.h"

static void check_one_burst(const char *address, const char *ifname, bool any, uint32_t label,
                            uint8_t tclass, int n_packets, uint32_t packet_bytes, uint32_t less) {
  static struct traffic traffic;
  struct mrc_ctx_config config = config_of(1, &address, 1);
  snprintf(config.ports[0].ifname, sizeof config.ports[0].ifname, "%s", ifname);
  config.ports[0].any = any;
  struct mrc_udp from;
  struct mrc_udp to;
  traffic.n = 0;
  if (!open_udp(&from, &config) || !open_udp(&to, &config)) return;
  struct mrc_burst *burst = add_burst(&traffic, &from, 1, 0, &to, n_packets, packet_bytes, less);
  burst->flow_label = label;
  burst->tclass = tclass;
  CHECK_EQ(send_traffic(&traffic, &from), 0);
  CHECK_EQ(traffic.taken[0], 1);
  receive_packets(&to, 1, n_packets);
  CHECK_EQ(check_burst_arrived(&traffic, 0, 0, &from, &to), n_packets);
  CHECK_EQ(from.counters[MRC_IO_TX_BURSTS], 1);
  CHECK_EQ(from.counters[MRC_IO_TX_SYSCALLS], 1);
  CHECK_EQ(to.counters[MRC_IO_RX_DATAGRAMS], 1); /* loopback delivers a burst as one datagram */
  CHECK_EQ(to.counters[MRC_IO_GRO_SEGMENTS], n_packets > 1 ? n_packets : 0);
  mrc_udp_close(&from);
  mrc_udp_close(&to);
}

TEST(test_send_receive__one_burst) {
  static const struct {
    const char *address;
    const char *ifname;
    bool any;
    uint32_t label;
    uint8_t tclass;
    int n_packets;
    uint32_t packet_bytes;
    uint32_t less;
  } rows[] = {
      {"::1", "", false, 0, 0, 1, 100, 0},
      {"::1", "", false, 0x12345, 2, 1, 24, 0},
      {"::1", "", false, 0xfffff, 3, 2, 100, 50},
      {"::1", "", false, 0x00001, 0xba, 64, 1000, 0},
      {"::1", "", false, 0x0a0a0, 1, 15, 4096, 4000},
      {"::1", "", false, 7, 2, 7, 8888, 1},
      {"::1", "lo", false, 7, 2, 3, 1452, 0},
      {"::1", "lo", true, 7, 2, 3, 1452, 0},
      {"127.0.0.1", "", false, 0, 0, 1, 100, 0},
      {"127.0.0.1", "", false, 0, 3, 2, 100, 50},
      {"127.0.0.1", "", false, 0, 0xb9, 64, 1000, 3},
      {"127.0.0.1", "lo", false, 0, 2, 7, 8888, 0},
      {"127.0.0.1", "lo", true, 0, 2, 7, 8888, 0},
  };
  fill_payload();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    check_one_burst(rows[i].address, rows[i].ifname, rows[i].any, rows[i].label, rows[i].tclass,
                    rows[i].n_packets, rows[i].packet_bytes, rows[i].less);
  }
}

TEST(test_receive__an_empty_datagram_is_a_packet) {
  static struct traffic traffic;
  struct mrc_udp udp;
  if (!open_one(&udp, "::1", 1)) return;
  struct mrc_burst *burst = add_burst(&traffic, &udp, 1, 0, &udp, 1, 100, 0);
  traffic.packets[0][0] = (struct mrc_packet){.header_bytes = 0};
  burst->flow_label = 5;
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  receive_packets(&udp, 1, 1);
  CHECK_EQ(records[0].bytes, 0);
  CHECK_EQ(records[0].meta.flow_label, 5);
  mrc_udp_close(&udp);
}

TEST(test_receive__knows_trimmed_packets_by_their_dscp) {
  static const struct {
    uint8_t dscp, trimmed;
  } rows[] = {{0, MRC_UNTRIMMED},
              {MRC_DSCP_TRIMMED, MRC_TRIMMED},
              {MRC_DSCP_TRIMMED_LAST, MRC_TRIMMED_LASTHOP},
              {MRC_DSCP_TRIMMED + 1, MRC_UNTRIMMED}};
  static const char *const addresses[] = {"::1", "127.0.0.1"};
  static struct traffic traffic;
  fill_payload();
  for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW((int)i);
    struct mrc_udp udp;
    if (!open_one(&udp, addresses[i % 2], 1)) return;
    traffic.n = 0;
    struct mrc_burst *burst = add_burst(&traffic, &udp, 1, 0, &udp, 1, 100, 0);
    burst->tclass = (uint8_t)(rows[i / 2].dscp << 2 | 3);
    CHECK_EQ(send_traffic(&traffic, &udp), 0);
    receive_packets(&udp, 1, 1);
    CHECK_EQ(records[0].meta.trimmed, rows[i / 2].trimmed);
    CHECK_EQ(records[0].meta.ecn, 3);
    mrc_udp_close(&udp);
  }
}

/* The code points are those of the network. */
TEST(test_receive__other_code_points_of_trimmed_packets) {
  static const char *const addresses[] = {"::1"};
  static struct traffic traffic;
  struct mrc_ctx_config config = config_of(1, addresses, 1);
  config.engine.dscps = (struct mrc_dscps){.trimmed = 20, .trimmed_last = 21};
  struct mrc_udp udp;
  if (!open_udp(&udp, &config)) return;
  for (uint8_t dscp = 19; dscp <= 22; dscp++) {
    CHECK_ROW(dscp);
    traffic.n = 0;
    add_burst(&traffic, &udp, 1, 0, &udp, 1, 100, 0)->tclass = (uint8_t)(dscp << 2);
    CHECK_EQ(send_traffic(&traffic, &udp), 0);
    receive_packets(&udp, 1, 1);
    CHECK_EQ(records[0].meta.trimmed, dscp == 20   ? MRC_TRIMMED
                                      : dscp == 21 ? MRC_TRIMMED_LASTHOP
                                                   : MRC_UNTRIMMED);
  }
  mrc_udp_close(&udp);
}

/* The kernel reports its drops with the next packet that it queues. */
TEST(test_receive__counts_what_the_kernel_dropped) {
  static const char *const addresses[] = {"::1"};
  enum { BURSTS = 40 };
  static struct traffic traffic;
  struct mrc_ctx_config config = config_of(1, addresses, 1);
  config.rcvbuf_bytes = 60000;
  struct mrc_udp udp;
  if (!open_udp(&udp, &config)) return;
  add_burst(&traffic, &udp, 1, 0, &udp, 1, 8000, 0);
  for (int i = 0; i < BURSTS; i++)
    CHECK_EQ(send_traffic(&traffic, &udp), 0);
  int received = 0;
  for (int n = 1; n > 0; received += n) {
    n_records = 0;
    n = mrc_udp_receive(&udp, 1);
    mrc_udp_deliver(&udp, 1, NULL, 77);
    CHECK(n_records == 0 || !records[0].meta.overflowed);
  }
  CHECK(received > 0 && received < BURSTS);
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  receive_packets(&udp, 1, 1);
  CHECK(records[0].meta.overflowed);
  CHECK_EQ(udp.counters[MRC_IO_RX_OVERFLOW], BURSTS - received);
  mrc_udp_close(&udp);
}
