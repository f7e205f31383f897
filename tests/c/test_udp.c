/* SPDX-License-Identifier: Apache-2.0 */
/* Bursts through real sockets on loopback. The engine is a recorder, and sendmmsg can be told to
   fail: a full socket does not come by itself there. */
#define _GNU_SOURCE 1
#include "io/udp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "io/sigbus.h"

enum { MAX_RECORDED = 256, HEADER_BYTES = 20, TRAILER_BYTES = 4, WAIT_MS = 5000 };

/* ---- The recorder in place of the engine ---- */

struct recorded {
  struct mrc_meta meta;
  uint32_t bytes;
  uint8_t packet[9000];
};

static struct recorded records[MAX_RECORDED];
static int n_records;

int mrc_engine_receive(mrc_engine *engine, const uint8_t *packet, size_t bytes,
                       const struct mrc_meta *meta, uint64_t now_ns) {
  (void)engine;
  CHECK_EQ(now_ns, 77);
  if (n_records == MAX_RECORDED || bytes > sizeof records[0].packet) {
    CHECK_FAIL("packet %d of %zu bytes is more than the test sent", n_records, bytes);
    return 1;
  }
  struct recorded *record = &records[n_records++];
  record->meta = *meta;
  record->bytes = (uint32_t)bytes;
  memcpy(record->packet, packet, bytes);
  return 0;
}

/* ---- A sendmmsg that can fail ---- */

/* What the next calls do, in order: 0 sends all, n > 0 sends n messages, n < 0 fails with -n. */
static int script[16];
static int n_script;
static int script_at;
static int n_sends;

static void play(int n, const int *steps) {
  memcpy(script, steps, (size_t)n * sizeof *steps);
  n_script = n;
  script_at = 0;
  n_sends = 0;
}

#define PLAY(...) play((int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})

int sendmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags) {
  int step = script_at < n_script ? script[script_at++] : 0;
  n_sends++;
  if (step < 0) {
    errno = -step;
    return -1;
  }
  if (step > 0 && (unsigned)step < n) n = (unsigned)step;
  return (int)syscall(SYS_sendmmsg, fd, messages, n, flags);
}

/* ---- Ports and bursts ---- */

static void set_address(uint8_t address[16], const char *text) {
  struct in6_addr v6;
  char mapped[64];
  snprintf(mapped, sizeof mapped, strchr(text, ':') ? "%s" : "::ffff:%s", text);
  CHECK_EQ(inet_pton(AF_INET6, mapped, &v6), 1);
  memcpy(address, &v6, 16);
}

static struct mrc_ctx_config config_of(int n_ports, const char *const *addresses, int tx_sockets) {
  struct mrc_ctx_config config = {.n_ports = (uint32_t)n_ports};
  for (int i = 0; i < n_ports; i++) {
    set_address(config.ports[i].address, addresses[i]);
    config.ports[i].family = strchr(addresses[i], ':') ? 6 : 4;
    config.ports[i].tx_sockets = (uint16_t)tx_sockets;
  }
  return config;
}

static bool open_udp(struct mrc_udp *udp, const struct mrc_ctx_config *config) {
  struct mrc_cause cause = {0};
  int error = mrc_udp_open(udp, config, &cause);
  if (error != 0) CHECK_FAIL("open: %s", cause.message);
  CHECK_EQ(cause.error, error);
  return error == 0;
}

static bool open_one(struct mrc_udp *udp, const char *address, int tx_sockets) {
  struct mrc_ctx_config config = config_of(1, &address, tx_sockets);
  return open_udp(udp, &config);
}

/* Receives at one port until n packets are recorded. */
static void receive_packets(struct mrc_udp *udp, int port, int n) {
  n_records = 0;
  struct pollfd ready = {.fd = mrc_udp_port(udp, port)->receive_fd, .events = POLLIN};
  while (n_records < n && poll(&ready, 1, WAIT_MS) == 1) {
    if (mrc_udp_receive(udp, port) > 0) mrc_udp_deliver(udp, port, NULL, 77);
  }
  CHECK_EQ(n_records, n);
  CHECK_EQ(mrc_udp_receive(udp, port), 0);
}

/* Bursts with their packets; every byte of payload differs from its neighbours. */
struct traffic {
  struct mrc_burst bursts[MRC_UDP_BURSTS];
  struct mrc_packet packets[MRC_UDP_BURSTS][MRC_MAX_BURST_PACKETS];
  int taken[MRC_UDP_BURSTS];
  int n;
};

static uint8_t payload[65536];

static void fill_payload(void) {
  for (size_t i = 0; i < sizeof payload; i++)
    payload[i] = (uint8_t)(i * 7 + i / 256);
}

/* A burst of n packets of packet_bytes each, the last shorter by `less`, from one port of `from` to
   one of `to`. The first header byte is the burst's number, the second the packet's. */
static struct mrc_burst *add_burst(struct traffic *traffic, const struct mrc_udp *from, int port,
                                   int tx_index, const struct mrc_udp *to, int n_packets,
                                   uint32_t packet_bytes, uint32_t less) {
  struct mrc_burst *burst = &traffic->bursts[traffic->n];
  *burst = (struct mrc_burst){.family = from->ports[port - 1].config.family,
                              .port = (uint8_t)port,
                              .tx_index = (uint8_t)tx_index,
                              .dport = to->udp_port,
                              .tclass = 2,
                              .n_packets = (uint16_t)n_packets,
                              .packet_bytes = packet_bytes,
                              .packets = traffic->packets[traffic->n]};
  memcpy(burst->src, from->ports[port - 1].config.address, 16);
  memcpy(burst->dst, to->ports[port <= to->n_ports ? port - 1 : 0].config.address, 16);
  uint32_t offset = 0;
  for (int i = 0; i < n_packets; i++) {
    struct mrc_packet *packet = &traffic->packets[traffic->n][i];
    uint32_t bytes = packet_bytes - (i == n_packets - 1 ? less : 0);
    *packet = (struct mrc_packet){.header_bytes = HEADER_BYTES,
                                  .trailer_bytes = TRAILER_BYTES,
                                  .payload = payload + offset,
                                  .payload_bytes = bytes - HEADER_BYTES - TRAILER_BYTES};
    memset(packet->header, 0xa0 + i % 16, HEADER_BYTES);
    packet->header[0] = (uint8_t)traffic->n;
    packet->header[1] = (uint8_t)i;
    memset(packet->trailer, 0xe0, TRAILER_BYTES);
    offset += packet->payload_bytes;
  }
  traffic->n++;
  return burst;
}

static uint32_t send_traffic(struct traffic *traffic, struct mrc_udp *from) {
  return mrc_udp_send(from, traffic->bursts, traffic->n, traffic->taken, 1000);
}

static void check_fates(const struct traffic *traffic, const int *fates) {
  for (int i = 0; i < traffic->n; i++) {
    CHECK_ROW(i);
    CHECK_EQ(traffic->taken[i], fates[i]);
  }
  CHECK_ROW(-1);
}

static void check_packet(const struct recorded *record, const struct mrc_packet *packet) {
  uint32_t bytes = packet->header_bytes + packet->payload_bytes + packet->trailer_bytes;
  CHECK_EQ(record->bytes, bytes);
  if (record->bytes != bytes) return;
  CHECK_MEM_EQ(record->packet, packet->header, packet->header_bytes);
  if (packet->payload_bytes > 0)
    CHECK_MEM_EQ(record->packet + packet->header_bytes, packet->payload, packet->payload_bytes);
  CHECK_MEM_EQ(record->packet + bytes - packet->trailer_bytes, packet->trailer,
               packet->trailer_bytes);
}

/* That the records from `at` on are the packets of one burst, whole and in order. */
static int check_burst_arrived(const struct traffic *traffic, int burst, int at,
                               const struct mrc_udp *from, const struct mrc_udp *to) {
  const struct mrc_burst *sent = &traffic->bursts[burst];
  for (int i = 0; i < sent->n_packets && at < n_records; i++, at++) {
    const struct mrc_meta *meta = &records[at].meta;
    check_packet(&records[at], &sent->packets[i]);
    CHECK_MEM_EQ(meta->src, sent->src, 16);
    CHECK_MEM_EQ(meta->dst, sent->dst, 16);
    CHECK_EQ(meta->sport, from->ports[sent->port - 1].transmitters[sent->tx_index].sport);
    CHECK_EQ(meta->dport, to->udp_port);
    CHECK_EQ(meta->family, sent->family);
    CHECK_EQ(meta->flow_label, sent->flow_label);
    CHECK_EQ(meta->ecn, sent->tclass & 3);
    CHECK_EQ(meta->port, sent->port);
  }
  return at;
}

/* ---- Opening ---- */

static void test_open__two_contexts_get_two_udp_ports(void) {
  struct mrc_udp a;
  struct mrc_udp b;
  if (!open_one(&a, "::1", 1) || !open_one(&b, "::1", 1)) return;
  CHECK(a.udp_port != 0 && b.udp_port != 0 && a.udp_port != b.udp_port);
  mrc_udp_close(&a);
  mrc_udp_close(&b);
}

static void test_open__all_ports_share_the_udp_port(void) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2", "::1"};
  struct mrc_ctx_config config = config_of(3, addresses, 4);
  struct mrc_udp udp;
  if (!open_udp(&udp, &config)) return;
  for (int port = 1; port <= 3; port++) {
    union {
      struct sockaddr any;
      struct sockaddr_in v4;
      struct sockaddr_in6 v6;
    } local;
    socklen_t length = sizeof local;
    CHECK_EQ(getsockname(udp.ports[port - 1].receive_fd, &local.any, &length), 0);
    CHECK_EQ(ntohs(port == 3 ? local.v6.sin6_port : local.v4.sin_port), udp.udp_port);
  }
  mrc_udp_close(&udp);
}

static void test_open__source_ports_are_all_different(void) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2", "127.0.0.3"};
  enum { SOCKETS = 40 };
  struct mrc_ctx_config config = config_of(3, addresses, SOCKETS);
  struct mrc_udp udp;
  if (!open_udp(&udp, &config)) return;
  static bool used[65536];
  memset(used, 0, sizeof used);
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(udp.ports[i].n_transmitters, SOCKETS);
    for (int j = 0; j < SOCKETS; j++) {
      CHECK(udp.ports[i].transmitters[j].sport != 0);
      CHECK(!used[udp.ports[i].transmitters[j].sport]);
      used[udp.ports[i].transmitters[j].sport] = true;
    }
  }
  mrc_udp_close(&udp);
}

static void test_open__refusals_name_their_cause(void) {
  static const char *const loopback[] = {"::1", "::1"};
  static const char *const foreign[] = {"2001:db8::77"};
  struct mrc_udp taken;
  if (!open_one(&taken, "::1", 1)) return;
  char taken_line[128];
  snprintf(taken_line, sizeof taken_line,
           "cannot bind a socket to ::1 UDP port %u: Address already in use", taken.udp_port);

  struct {
    struct mrc_ctx_config config;
    int error;
    const char *line;
  } rows[] = {
      {config_of(1, loopback, 1), -EADDRINUSE, taken_line},
      {config_of(1, loopback, 1), -ENODEV,
       "cannot tie a socket to interface nosuch0: No such device"},
      {config_of(1, foreign, 1), -EADDRNOTAVAIL, NULL},
      {config_of(2, loopback, 1), -EINVAL, "ports 1 and 2 have the same interface and address"},
      {config_of(1, loopback, 0), -EINVAL, "port 1: tx_sockets must be 1 to 64, not 0"},
      {config_of(1, loopback, 65), -EINVAL, "port 1: tx_sockets must be 1 to 64, not 65"},
      {config_of(1, loopback, 1), -EINVAL, "port 1: family must be 4 or 6, not 5"},
      {config_of(0, loopback, 1), -EINVAL, "n_ports must be 1 to 32, not 0"},
  };
  rows[0].config.udp_port = taken.udp_port;
  strcpy(rows[1].config.ports[0].ifname, "nosuch0");
  rows[6].config.ports[0].family = 5;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct mrc_udp udp;
    struct mrc_cause cause = {0};
    CHECK_ROW(i);
    CHECK_EQ(mrc_udp_open(&udp, &rows[i].config, &cause), rows[i].error);
    CHECK_EQ(cause.error, rows[i].error);
    if (rows[i].line) CHECK_STR_EQ(cause.message, rows[i].line);
    CHECK(cause.message[0] != 0 && !strchr(cause.message, '\n'));
  }
  mrc_udp_close(&taken);
}

static void test_open__tells_what_buffers_were_granted(void) {
  static const char *const addresses[] = {"::1"};
  struct mrc_ctx_config config = config_of(1, addresses, 2);
  config.rcvbuf_bytes = 100000;
  config.sndbuf_bytes = 50000;
  struct mrc_udp udp;
  if (!open_udp(&udp, &config)) return;
  CHECK_EQ(udp.ports[0].rcvbuf_bytes, 100000);
  CHECK_EQ(udp.ports[0].sndbuf_bytes, 50000);
  mrc_udp_close(&udp);
}

/* ---- Bursts that arrive ---- */

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
  CHECK_EQ(to.counters[MRC_IO_RX_DATAGRAMS], 1); /* loopback passes a burst whole */
  CHECK_EQ(to.counters[MRC_IO_GRO_SEGMENTS], n_packets > 1 ? n_packets : 0);
  mrc_udp_close(&from);
  mrc_udp_close(&to);
}

static void test_send_receive__one_burst(void) {
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

/* Bursts of three ports with two sockets each, mixed: one system call a socket, order kept. */
static void test_send__groups_by_socket(void) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2", "127.0.0.3"};
  static const struct {
    int port;
    int tx_index;
  } order[] = {{1, 0}, {2, 0}, {3, 1}, {1, 0}, {2, 1}, {3, 1}, {1, 0}, {2, 0}};
  static struct traffic traffic;
  struct mrc_ctx_config config = config_of(3, addresses, 2);
  struct mrc_udp from;
  struct mrc_udp to;
  fill_payload();
  if (!open_udp(&from, &config) || !open_udp(&to, &config)) return;
  for (int i = 0; i < 8; i++)
    add_burst(&traffic, &from, order[i].port, order[i].tx_index, &to, i + 1, 500, 0);
  PLAY(0);
  CHECK_EQ(send_traffic(&traffic, &from), 0);
  CHECK_EQ(n_sends, 4);
  for (int i = 0; i < 8; i++)
    CHECK_EQ(traffic.taken[i], 1);
  static const int arrived[3][4] = {{0, 3, 6, -1}, {1, 7, 4, -1}, {2, 5, -1, -1}};
  for (int port = 1; port <= 3; port++) {
    int packets = 0;
    for (const int *burst = arrived[port - 1]; *burst >= 0; burst++)
      packets += *burst + 1;
    receive_packets(&to, port, packets);
    int at = 0;
    for (const int *burst = arrived[port - 1]; *burst >= 0; burst++)
      at = check_burst_arrived(&traffic, *burst, at, &from, &to);
  }
  mrc_udp_close(&from);
  mrc_udp_close(&to);
}

static void test_receive__an_empty_datagram_is_a_packet(void) {
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

/* The kernel tells of its drops with the next packet that it does queue. */
static void test_receive__counts_what_the_kernel_dropped(void) {
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
  }
  CHECK(received > 0 && received < BURSTS);
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  receive_packets(&udp, 1, 1);
  CHECK_EQ(udp.counters[MRC_IO_RX_OVERFLOW], BURSTS - received);
  mrc_udp_close(&udp);
}

/* ---- Bursts that are refused ---- */

/* Bursts of 1, 2, 3 and 4 packets through one socket, under a script of sendmmsg. `arrived` is the
   set of bursts whose packets arrive. */
static void test_send__fates(void) {
  static const struct {
    int script[4];
    int n_script;
    int fates[4];
    unsigned arrived;
    bool waits;
  } rows[] = {
      {{0}, 0, {1, 1, 1, 1}, 0xf, false},
      {{1, 2, 1}, 3, {1, 1, 1, 1}, 0xf, false},
      {{-EAGAIN}, 1, {0, 0, 0, 0}, 0x0, true},
      {{2, -EAGAIN}, 2, {1, 1, 0, 0}, 0x3, true},
      {{-ENOBUFS}, 1, {0, 0, 0, 0}, 0x0, true},
      {{3, -ENOBUFS}, 2, {1, 1, 1, 0}, 0x7, true},
      {{1, -ENOMEM}, 2, {1, 0, 0, 0}, 0x1, true},
      {{-ENETUNREACH}, 1, {-ENETUNREACH, 1, 1, 1}, 0xe, false},
      {{1, -EHOSTUNREACH}, 2, {1, -EHOSTUNREACH, 1, 1}, 0xd, false},
      {{-EPERM, -EPERM, -EPERM, -EPERM}, 4, {-EPERM, -EPERM, -EPERM, -EPERM}, 0x0, false},
      {{2, -EMSGSIZE, -EAGAIN}, 3, {1, 1, -EMSGSIZE, 0}, 0x3, true},
      {{1, -EINVAL}, 2, {1, -EMSGSIZE, 1, 1}, 0xd, false},
      {{-EINVAL}, 1, {-EINVAL, 1, 1, 1}, 0xe, false},
      {{3, -ENETDOWN}, 2, {1, 1, 1, -ENETDOWN}, 0x7, false},
      {{1, -EIO}, 2, {1, 1, 1, 1}, 0xf, false},       /* no GSO: packet by packet from there */
      {{-EIO, -EIO}, 2, {-EIO, 1, 1, 1}, 0xe, false}, /* not a matter of GSO: one packet */
  };
  fill_payload();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    static struct traffic traffic;
    struct mrc_udp udp;
    traffic.n = 0;
    if (!open_one(&udp, "::1", 1)) return;
    for (int n = 1; n <= 4; n++)
      add_burst(&traffic, &udp, 1, 0, &udp, n, 400, 0);
    play(rows[i].n_script, rows[i].script);
    uint32_t waiting = send_traffic(&traffic, &udp);
    check_fates(&traffic, rows[i].fates);
    CHECK_ROW(i);
    CHECK_EQ(waiting, rows[i].waits ? 1 : 0);
    int packets = 0;
    for (int n = 1; n <= 4; n++)
      packets += rows[i].arrived & 1u << (n - 1) ? n : 0;
    if (packets > 0) receive_packets(&udp, 1, packets);
    for (int n = 0, at = 0; n < 4; n++)
      if (rows[i].arrived & 1u << n) at = check_burst_arrived(&traffic, n, at, &udp, &udp);
    mrc_udp_close(&udp);
  }
}

/* One socket without room stops its port, and no other. */
static void test_send__a_full_socket_blocks_its_port_only(void) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2"};
  static struct traffic traffic;
  struct mrc_ctx_config config = config_of(2, addresses, 2);
  struct mrc_udp udp;
  if (!open_udp(&udp, &config)) return;
  add_burst(&traffic, &udp, 1, 0, &udp, 1, 100, 0);
  add_burst(&traffic, &udp, 1, 1, &udp, 1, 100, 0);
  add_burst(&traffic, &udp, 2, 0, &udp, 1, 100, 0);
  PLAY(-EAGAIN);
  CHECK_EQ(send_traffic(&traffic, &udp), 0x1);
  check_fates(&traffic, (int[]){0, 0, 1});
  CHECK(udp.ports[0].transmitters[0].full);
  CHECK(!udp.ports[0].transmitters[1].full);
  CHECK_EQ(mrc_udp_deadline(&udp), MRC_NEVER);
  CHECK(!mrc_udp_on_room(&udp, 1, 1));
  CHECK(mrc_udp_on_room(&udp, 1, 0));
  CHECK(!mrc_udp_on_room(&udp, 1, 0));
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  CHECK_EQ(udp.counters[MRC_IO_TX_BURSTS_REFUSED], 2);
  CHECK_EQ(udp.counters[MRC_IO_TX_BURSTS], 4);
  mrc_udp_close(&udp);
}

static void test_retry__after_a_full_queue(void) {
  static struct traffic traffic;
  struct mrc_udp udp;
  if (!open_one(&udp, "::1", 1)) return;
  add_burst(&traffic, &udp, 1, 0, &udp, 1, 100, 0);
  PLAY(-ENOBUFS);
  CHECK_EQ(send_traffic(&traffic, &udp), 0x1);
  uint64_t deadline_ns = mrc_udp_deadline(&udp);
  CHECK_EQ(deadline_ns, 1000 + MRC_UDP_RETRY_NS);
  CHECK_EQ(mrc_udp_retry(&udp, deadline_ns - 1), 0);
  CHECK_EQ(mrc_udp_retry(&udp, deadline_ns), 0x1);
  CHECK_EQ(mrc_udp_deadline(&udp), MRC_NEVER);
  CHECK_EQ(mrc_udp_retry(&udp, deadline_ns), 0);
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  mrc_udp_close(&udp);
}

/* Packet by packet a burst still has one fate: what did not follow its first packet is lost. */
static void test_send__without_gso_a_cut_burst_counts_as_taken(void) {
  static struct traffic traffic;
  struct mrc_udp udp;
  fill_payload();
  if (!open_one(&udp, "::1", 1)) return;
  add_burst(&traffic, &udp, 1, 0, &udp, 6, 300, 10);
  add_burst(&traffic, &udp, 1, 0, &udp, 2, 300, 10);
  PLAY(-EIO, 4, -EAGAIN);
  CHECK_EQ(send_traffic(&traffic, &udp), 0x1);
  check_fates(&traffic, (int[]){1, 0});
  CHECK(!udp.ports[0].gso);
  receive_packets(&udp, 1, 4);
  for (int i = 0; i < 4; i++)
    check_packet(&records[i], &traffic.packets[0][i]);
  CHECK(mrc_udp_on_room(&udp, 1, 0));
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  receive_packets(&udp, 1, 8);
  CHECK_EQ(check_burst_arrived(&traffic, 0, 0, &udp, &udp), 6);
  CHECK_EQ(check_burst_arrived(&traffic, 1, 6, &udp, &udp), 8);
  mrc_udp_close(&udp);
}

static uint16_t closed_udp_port(const char *address) {
  struct mrc_udp udp;
  if (!open_one(&udp, address, 1)) return 1;
  uint16_t udp_port = udp.udp_port;
  mrc_udp_close(&udp);
  return udp_port;
}

/* A port unreachable of an earlier packet makes the next send fail: it is tried again. */
static void test_send__an_icmp_error_is_not_the_next_bursts_fault(void) {
  static const char *const addresses[] = {"::1", "127.0.0.1"};
  for (int i = 0; i < 2; i++) {
    static struct traffic traffic;
    struct mrc_udp from;
    struct mrc_udp to;
    traffic.n = 0;
    CHECK_ROW(i);
    if (!open_one(&from, addresses[i], 1) || !open_one(&to, addresses[i], 1)) return;
    add_burst(&traffic, &from, 1, 0, &to, 1, 100, 0)->dport = closed_udp_port(addresses[i]);
    CHECK_EQ(send_traffic(&traffic, &from), 0);
    CHECK_EQ(traffic.taken[0], 1);
    traffic.bursts[0].dport = to.udp_port;
    CHECK_EQ(send_traffic(&traffic, &from), 0);
    CHECK_EQ(traffic.taken[0], 1);
    receive_packets(&to, 1, 1);
    CHECK_EQ(from.counters[MRC_IO_TX_ERROR_REPORTS], 1);
    CHECK_EQ(from.counters[MRC_IO_TX_BURST_ERRORS], 0);
    CHECK_EQ(mrc_udp_drain_errors(&from, 1, 0), 0);
    mrc_udp_close(&from);
    mrc_udp_close(&to);
  }
}

/* The kernel answers EFAULT to a payload without backing; under the guard it is sent as zeros. */
static void test_send__a_shrunk_file_is_sent_as_zeros(void) {
  static struct traffic traffic;
  static const uint8_t zeros[1000];
  struct mrc_udp udp;
  if (!open_one(&udp, "::1", 1)) return;
  int fd = memfd_create("test_udp", MFD_CLOEXEC);
  CHECK_EQ(ftruncate(fd, 65536), 0);
  uint8_t *memory = mmap(NULL, 65536, PROT_READ, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED);
  int handle = mrc_sigbus_add(memory, 65536, -1);
  CHECK_EQ(ftruncate(fd, 0), 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 3, 1000, 0);
  for (int i = 0; i < 3; i++)
    traffic.packets[0][i].payload = memory + 20000 * i;
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  CHECK_EQ(traffic.taken[0], 1);
  receive_packets(&udp, 1, 3);
  for (int i = 0; i < n_records; i++)
    CHECK_MEM_EQ(records[i].packet + HEADER_BYTES, zeros, traffic.packets[0][i].payload_bytes);
  CHECK(mrc_sigbus_take(handle));
  mrc_sigbus_remove(handle);
  munmap(memory, 65536);
  close(fd);
  mrc_udp_close(&udp);
}

/* ---- In a network namespace of our own ---- */

static void set_loopback(int mtu, bool up) {
  struct ifreq request = {.ifr_name = "lo", .ifr_mtu = mtu};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  CHECK_EQ(ioctl(fd, SIOCSIFMTU, &request), 0);
  request.ifr_flags = up ? IFF_UP : 0;
  CHECK_EQ(ioctl(fd, SIOCSIFFLAGS, &request), 0);
  close(fd);
}

static void send_with_small_mtu(const char *address, uint32_t largest) {
  static struct traffic traffic;
  struct mrc_udp udp;
  traffic.n = 0;
  if (!open_one(&udp, address, 1)) return;
  add_burst(&traffic, &udp, 1, 0, &udp, 1, largest, 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 1, largest + 1, 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 4, largest, 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 4, largest + 1, 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 2, 1000, 0);
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  check_fates(&traffic, (int[]){1, -EMSGSIZE, 1, -EMSGSIZE, 1});
  receive_packets(&udp, 1, 7);
  mrc_udp_close(&udp);
}

static void send_with_link_down(void) {
  static struct traffic traffic;
  struct mrc_udp udp;
  if (!open_one(&udp, "::1", 1)) return;
  add_burst(&traffic, &udp, 1, 0, &udp, 1, 100, 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 2, 100, 0);
  set_loopback(1500, false);
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  check_fates(&traffic, (int[]){-ENETUNREACH, -ENETUNREACH});
  CHECK_EQ(udp.counters[MRC_IO_TX_BURST_ERRORS], 2);
  mrc_udp_close(&udp);
}

static void test_send__the_kernels_own_refusals(void) {
  fill_payload();
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
      printf("skipped: no network namespace of our own: %s\n", strerror(errno));
      fflush(NULL);
      _exit(0);
    }
    set_loopback(1500, true);
    send_with_small_mtu("::1", 1500 - 40 - 8);
    send_with_small_mtu("127.0.0.1", 1500 - 20 - 8);
    send_with_link_down();
    fflush(NULL);
    _exit(atomic_load(&check_failures) != 0);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

CHECK_MAIN(RUN(test_open__two_contexts_get_two_udp_ports),
           RUN(test_open__all_ports_share_the_udp_port),
           RUN(test_open__source_ports_are_all_different),
           RUN(test_open__refusals_name_their_cause),
           RUN(test_open__tells_what_buffers_were_granted), RUN(test_send_receive__one_burst),
           RUN(test_send__groups_by_socket), RUN(test_receive__an_empty_datagram_is_a_packet),
           RUN(test_receive__counts_what_the_kernel_dropped), RUN(test_send__fates),
           RUN(test_send__a_full_socket_blocks_its_port_only), RUN(test_retry__after_a_full_queue),
           RUN(test_send__without_gso_a_cut_burst_counts_as_taken),
           RUN(test_send__an_icmp_error_is_not_the_next_bursts_fault),
           RUN(test_send__a_shrunk_file_is_sent_as_zeros), RUN(test_send__the_kernels_own_refusals))
