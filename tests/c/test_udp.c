/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "core/wire.h"
#include "io/receive.h"
#include "io/send.h"
#include "io/sigbus.h"
#include "io/udp.h"
#include "loopback.h"

/* ---- A setsockopt that refuses one call ---- */

static int calls_before_refusal = -1; /* -1: refuses none */

int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes) {
  if (calls_before_refusal >= 0 && calls_before_refusal-- == 0) {
    errno = ENOPROTOOPT;
    return -1;
  }
  return (int)syscall(SYS_setsockopt, fd, level, name, value, bytes);
}

/* ---- Opening ---- */

TEST(test_open__all_ports_share_the_udp_port) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2", "::1"};
  struct mrc_ctx_config config = config_of(3, addresses, 4);
  UDP udp = open_udp(&config);
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
}

TEST(test_open__source_ports_are_all_different) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2", "127.0.0.3"};
  enum { SOCKETS = 40 };
  struct mrc_ctx_config config = config_of(3, addresses, SOCKETS);
  UDP udp = open_udp(&config);
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
}

/* Each socket is bound to its interface: two interfaces in one subnet are two planes. */
TEST(test_open__sockets_are_tied_and_do_not_block) {
  static const char *const addresses[] = {"127.0.0.1", "::1"};
  struct mrc_ctx_config config = config_of(2, addresses, 2);
  for (int i = 0; i < 2; i++)
    strcpy(config.ports[i].ifname, "lo");
  UDP udp = open_udp(&config);
  for (int i = 0; i < 2; i++) {
    const struct mrc_udp_port *port = &udp.ports[i];
    const int fds[] = {port->receive_fd, port->transmitters[0].fd, port->transmitters[1].fd};
    for (int k = 0; k < 3; k++) {
      char name[16] = "";
      socklen_t length = sizeof name;
      CHECK_EQ(getsockopt(fds[k], SOL_SOCKET, SO_BINDTODEVICE, name, &length), 0);
      CHECK_STR_EQ(name, "lo");
      CHECK(fcntl(fds[k], F_GETFL) & O_NONBLOCK);
    }
  }
}

TEST(test_open__refusals_name_their_cause) {
  static const char *const loopback[] = {"::1", "::1"};
  static const char *const foreign[] = {"2001:db8::77"};
  UDP taken = open_one("::1", 1);
  char taken_line[128];
  snprintf(taken_line, sizeof taken_line,
           "cannot bind a socket to ::1 UDP port %u: Address already in use", taken.udp_port);

  static const char *const classes = "code points are above 63, or name two classes";
  struct {
    struct mrc_ctx_config config;
    int error;
    const char *line;
  } rows[] = {
      {config_of(1, loopback, 1), -EADDRINUSE, taken_line},
      {config_of(1, loopback, 1), -ENODEV,
       "cannot bind a socket to interface nosuch0: No such device"},
      {config_of(1, foreign, 1), -EADDRNOTAVAIL, NULL},
      {config_of(2, loopback, 1), -EINVAL, "ports 1 and 2 have the same interface and address"},
      {config_of(1, loopback, 0), -EINVAL, "port 1: tx_sockets must be 1 to 64, not 0"},
      {config_of(1, loopback, 65), -EINVAL, "port 1: tx_sockets must be 1 to 64, not 65"},
      {config_of(1, loopback, 1), -EINVAL, "port 1: family must be 4 or 6, not 5"},
      {config_of(0, loopback, 1), -EINVAL, "n_ports must be 1 to 32, not 0"},
      {config_of(1, loopback, 1), -EINVAL, classes},
      {config_of(1, loopback, 1), -EINVAL, classes},
      {config_of(1, loopback, 1), -EINVAL, classes},
  };
  rows[0].config.udp_port = taken.udp_port;
  strcpy(rows[1].config.ports[0].ifname, "nosuch0");
  rows[6].config.ports[0].family = 5;
  rows[8].config.engine.dscps.data = 64;
  rows[9].config.engine.dscps.control = MRC_DSCP_TRIMMED;
  rows[10].config.engine.dscps.trimmed = MRC_DSCP_TRIMMED_LAST;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct mrc_udp udp;
    struct mrc_cause cause = {0};
    CHECK_ROW(i);
    CHECK_EQ(mrc_udp_open(&udp, &rows[i].config, &cause), rows[i].error);
    CHECK_EQ(cause.error, rows[i].error);
    if (rows[i].line) CHECK_STR_EQ(cause.message, rows[i].line);
    CHECK(cause.message[0] != 0 && !strchr(cause.message, '\n'));
  }
}

/* Each option that a context requires: seven of the receive socket, seven of the transmit socket
   and its filter. */
TEST(test_open__fails_without_a_socket_option) {
  static const char *const addresses[] = {"::1"};
  static const char line[] = "cannot set socket option ";
  struct mrc_ctx_config config = config_of(1, addresses, 1);
  EACH_OF(int, i, 0, 15) {
    struct mrc_udp udp;
    struct mrc_cause cause = {0};
    calls_before_refusal = i;
    CHECK_EQ(mrc_udp_open(&udp, &config, &cause), -ENOPROTOOPT);
    CHECK_EQ(strncmp(cause.message, line, sizeof line - 1), 0);
  }
  calls_before_refusal = -1;
}

TEST(test_open__tells_what_buffers_were_granted) {
  static const char *const addresses[] = {"::1"};
  struct mrc_ctx_config config = config_of(1, addresses, 2);
  config.rcvbuf_bytes = 100000;
  config.sndbuf_bytes = 50000;
  UDP udp = open_udp(&config);
  CHECK_EQ(udp.ports[0].rcvbuf_bytes, 100000);
  CHECK_EQ(udp.ports[0].sndbuf_bytes, 50000);
}

static int n_descriptors(void) {
  int n = 0;
  for (int fd = 0; fd < 256; fd++)
    n += fcntl(fd, F_GETFD) != -1;
  return n;
}

TEST(test_open__without_a_port_and_one_later) {
  static const char *const addresses[] = {"127.0.0.1"};
  struct mrc_ctx_config later = config_of(1, addresses, 2), config = {.n_ports = 8};
  struct mrc_cause cause = {0};
  const int before = n_descriptors();
  UDP udp = open_udp(&config);
  CHECK_EQ(n_descriptors(), before);
  CHECK_EQ(udp.n_ports, 0);
  CHECK_EQ(mrc_udp_open_port(&udp, 3, &later.ports[0], 0, &cause), 0);
  CHECK_STR_EQ(cause.message, "");
  CHECK_EQ(udp.n_ports, 3);
  CHECK(udp.udp_port != 0);
  CHECK(udp.ports[2].rcvbuf_bytes > 0 && udp.ports[2].sndbuf_bytes > 0);
  CHECK_EQ(n_descriptors(), before + 3);
  mrc_udp_close_port(&udp, 3);
  CHECK_EQ(n_descriptors(), before);
}

/* While QPs use a port, it reopens with the same source ports or stays closed. */
TEST(test_open_port__is_the_same_where_it_is_used) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2", "127.0.0.3"};
  struct mrc_ctx_config config = config_of(3, addresses, 4);
  struct mrc_cause cause = {0};
  uint16_t sports[4];
  UDP udp = open_udp(&config);
  const uint16_t udp_port = udp.udp_port;
  for (int i = 0; i < 4; i++)
    sports[i] = udp.ports[1].transmitters[i].sport;
  CHECK_EQ(mrc_udp_open_port(&udp, 2, &config.ports[1], 2, &cause), -EEXIST);
  mrc_udp_close_port(&udp, 2);
  CHECK_EQ(mrc_udp_open_port(&udp, 2, &config.ports[2], 2, &cause), -EINVAL);
  CHECK_STR_EQ(cause.message, "ports 3 and 2 have the same interface and address");
  mrc_udp_close_port(&udp, 3);
  CHECK_EQ(mrc_udp_open_port(&udp, 2, &config.ports[2], 2, &cause), -EBUSY);
  CHECK_STR_EQ(cause.message, "port 2: QPs still use this port number with another address");
  CHECK_EQ(mrc_udp_open_port(&udp, 2, &config.ports[1], 2, &cause), 0);
  for (int i = 0; i < 4; i++)
    CHECK_EQ(udp.ports[1].transmitters[i].sport, sports[i]);
  CHECK_EQ(udp.udp_port, udp_port);
  mrc_udp_close_port(&udp, 2);
  CHECK_EQ(mrc_udp_open_port(&udp, 2, &config.ports[2], 0, &cause), 0);
}

/* Another process took a source port or the UDP port: the open fails and leaks no descriptor. */
TEST(test_open_port__what_was_taken_meanwhile) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2"};
  struct mrc_ctx_config config = config_of(2, addresses, 2);
  struct mrc_port_config taker = config.ports[1];
  struct mrc_cause cause = {0};
  UDP udp = open_udp(&config);
  const uint16_t sport = udp.ports[1].transmitters[1].sport;
  mrc_udp_close_port(&udp, 2);
  int fd = mrc_socket_open_transmit(0, &taker, sport, &cause);
  CHECK(fd >= 0);
  const int before = n_descriptors();
  CHECK_EQ(mrc_udp_open_port(&udp, 2, &config.ports[1], 2, &cause), -EBUSY);
  CHECK_EQ(n_descriptors(), before);
  close(fd);
  fd = mrc_socket_open_receive(0, &taker, udp.udp_port, &cause);
  CHECK(fd >= 0);
  CHECK_EQ(mrc_udp_open_port(&udp, 2, &config.ports[1], 0, &cause), -EADDRINUSE);
  CHECK_EQ(n_descriptors(), before);
  mrc_udp_close_port(&udp, 1); /* the last port is closed, so the UDP port may change */
  CHECK_EQ(mrc_udp_open_port(&udp, 2, &config.ports[1], 0, &cause), 0);
  CHECK_STR_EQ(cause.message, "");
  close(fd);
}

/* ---- Sockets that another process opens ---- */

/* A process whose sockets belong to a namespace, as mrc/linux/namespace.py. It answers each request
   with a new socket, or with this errno. */
struct opener {
  pthread_t thread;
  int channel;
  int32_t refusal;
};

static void answer_socket(const struct opener *opener, const int32_t wanted[3], int reply) {
  int32_t refusal = opener->refusal;
  char room[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
  struct iovec part = {.iov_base = &refusal, .iov_len = sizeof refusal};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  int fd = refusal != 0 ? -1 : socket(wanted[0], wanted[1], wanted[2]);
  if (fd >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof fd);
  }
  CHECK_EQ(sendmsg(reply, &message, 0), (ssize_t)sizeof refusal);
  if (fd >= 0) close(fd);
  close(reply);
}

static void *answer_sockets(void *context) {
  const struct opener *opener = context;
  for (;;) {
    int32_t wanted[3];
    char room[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
    struct iovec part = {.iov_base = wanted, .iov_len = sizeof wanted};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(opener->channel, &message, MSG_CMSG_CLOEXEC) <= 0) break;
    int reply;
    memcpy(&reply, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof reply);
    answer_socket(opener, wanted, reply);
  }
  close(opener->channel);
  return NULL;
}

/* Ports that open at once and later. The caller's descriptor may be closed meanwhile. */
TEST(test_namespace__opens_the_sockets_of_each_port) {
  static const char *const addresses[] = {"127.0.0.1", "::1"};
  struct mrc_ctx_config config = config_of(2, addresses, 3);
  struct mrc_port_config later = config.ports[1];
  config.ports[1].family = 0;
  struct opener opener = {0};
  const int before = n_descriptors();
  int ends[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  opener.channel = ends[1];
  CHECK_EQ(pthread_create(&opener.thread, NULL, answer_sockets, &opener), 0);
  config.namespace_fd = ends[0];
  {
    struct mrc_cause cause = {0};
    UDP udp = open_udp(&config);
    close(ends[0]);
    CHECK_EQ(mrc_udp_open_port(&udp, 2, &later, 0, &cause), 0);
    CHECK_EQ(udp.ports[0].n_transmitters + udp.ports[1].n_transmitters, 6);
    CHECK(fcntl(udp.ports[1].receive_fd, F_GETFD) & FD_CLOEXEC);
    CHECK(fcntl(udp.ports[1].receive_fd, F_GETFL) & O_NONBLOCK);
  }
  CHECK_EQ(pthread_join(opener.thread, NULL), 0);
  CHECK_EQ(n_descriptors(), before);
}

TEST(test_namespace__tells_why_there_is_no_socket) {
  static const char *const addresses[] = {"127.0.0.1"};
  struct mrc_ctx_config config = config_of(1, addresses, 1);
  const int before = n_descriptors();
  EACH_OF(int, refused, 0, 2) {
    const int32_t refusal = refused ? EMFILE : 0;
    struct opener opener = {.refusal = refusal};
    struct mrc_cause cause = {0};
    struct mrc_udp udp;
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    config.namespace_fd = ends[0];
    opener.channel = ends[1];
    if (refusal == 0)
      close(ends[1]); /* the process has ended */
    else
      CHECK_EQ(pthread_create(&opener.thread, NULL, answer_sockets, &opener), 0);
    CHECK_EQ(mrc_udp_open(&udp, &config, &cause), refusal == 0 ? -EPIPE : -EMFILE);
    CHECK_STR_EQ(cause.message, refusal == 0 ? "cannot open a UDP socket: Broken pipe"
                                             : "cannot open a UDP socket: Too many open files");
    close(ends[0]);
    if (refusal != 0) CHECK_EQ(pthread_join(opener.thread, NULL), 0);
  }
  CHECK_EQ(n_descriptors(), before);
}

/* ---- Receiving ---- */

static void check_one_burst(const char *address, const char *ifname, bool any, uint32_t label,
                            uint8_t tclass, int n_packets, uint32_t packet_bytes, uint32_t less) {
  static struct traffic traffic;
  struct mrc_ctx_config config = config_of(1, &address, 1);
  snprintf(config.ports[0].ifname, sizeof config.ports[0].ifname, "%s", ifname);
  config.ports[0].any = any;
  traffic.n = 0;
  UDP from = open_udp(&config), to = open_udp(&config);
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
  EACH_ROW(i, rows)
    check_one_burst(rows[i].address, rows[i].ifname, rows[i].any, rows[i].label, rows[i].tclass,
                    rows[i].n_packets, rows[i].packet_bytes, rows[i].less);
}

TEST(test_receive__an_empty_datagram_is_a_packet) {
  static struct traffic traffic;
  UDP udp = open_one("::1", 1);
  struct mrc_burst *burst = add_burst(&traffic, &udp, 1, 0, &udp, 1, 100, 0);
  traffic.packets[0][0] = (struct mrc_packet){.header_bytes = 0};
  burst->flow_label = 5;
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  receive_packets(&udp, 1, 1);
  CHECK_EQ(records[0].bytes, 0);
  CHECK_EQ(records[0].meta.flow_label, 5);
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
  EACH_OF(size_t, i, 0, 2 * sizeof rows / sizeof rows[0]) {
    UDP udp = open_one(addresses[i % 2], 1);
    traffic.n = 0;
    struct mrc_burst *burst = add_burst(&traffic, &udp, 1, 0, &udp, 1, 100, 0);
    burst->tclass = (uint8_t)(rows[i / 2].dscp << 2 | 3);
    CHECK_EQ(send_traffic(&traffic, &udp), 0);
    receive_packets(&udp, 1, 1);
    CHECK_EQ(records[0].meta.trimmed, rows[i / 2].trimmed);
    CHECK_EQ(records[0].meta.ecn, 3);
  }
}

/* The code points are those of the network. */
TEST(test_receive__other_code_points_of_trimmed_packets) {
  static const char *const addresses[] = {"::1"};
  static struct traffic traffic;
  struct mrc_ctx_config config = config_of(1, addresses, 1);
  config.engine.dscps = (struct mrc_dscps){.trimmed = 20, .trimmed_last = 21};
  UDP udp = open_udp(&config);
  EACH_OF(uint8_t, dscp, 19, 23) {
    traffic.n = 0;
    add_burst(&traffic, &udp, 1, 0, &udp, 1, 100, 0)->tclass = (uint8_t)(dscp << 2);
    CHECK_EQ(send_traffic(&traffic, &udp), 0);
    receive_packets(&udp, 1, 1);
    CHECK_EQ(records[0].meta.trimmed, dscp == 20   ? MRC_TRIMMED
                                      : dscp == 21 ? MRC_TRIMMED_LASTHOP
                                                   : MRC_UNTRIMMED);
  }
}

/* The kernel reports its drops with the next packet that it queues. */
TEST(test_receive__counts_what_the_kernel_dropped) {
  static const char *const addresses[] = {"::1"};
  enum { BURSTS = 40 };
  static struct traffic traffic;
  struct mrc_ctx_config config = config_of(1, addresses, 1);
  config.rcvbuf_bytes = 60000;
  UDP udp = open_udp(&config);
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
}

/* ---- Sending ---- */

/* Mixed bursts of three ports with two sockets each: one system call a socket, order kept. */
TEST(test_send__groups_by_socket) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2", "127.0.0.3"};
  static const struct {
    int port;
    int tx_index;
  } order[] = {{1, 0}, {2, 0}, {3, 1}, {1, 0}, {2, 1}, {3, 1}, {1, 0}, {2, 0}};
  static struct traffic traffic;
  struct mrc_ctx_config config = config_of(3, addresses, 2);
  fill_payload();
  UDP from = open_udp(&config), to = open_udp(&config);
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
}

/* After the last transmit socket comes the receive socket. Nothing tells when it has room again. */
TEST(test_send__from_the_receive_socket) {
  EACH_OF(int, row, 0, 2) {
    static struct traffic traffic;
    traffic.n = 0;
    struct mrc_ctx_config config =
        config_of(1, (const char *const[]){row == 0 ? "::1" : "127.0.0.1"}, 1);
    fill_payload();
    UDP from = open_udp(&config), to = open_udp(&config);
    add_burst(&traffic, &from, 1, 1, &to, 7, 1452, 3)->flow_label = row == 0 ? 9 : 0;
    PLAY(-EAGAIN);
    CHECK_EQ(send_traffic(&traffic, &from), 0x1);
    CHECK_EQ(mrc_udp_deadline(&from), 1000 + MRC_UDP_RETRY_NS);
    CHECK_EQ(mrc_udp_retry(&from, 1000 + MRC_UDP_RETRY_NS), 0x1);
    CHECK_EQ(send_traffic(&traffic, &from), 0);
    receive_packets(&to, 1, 7);
    CHECK_EQ(check_burst_arrived(&traffic, 0, 0, &from, &to), 7);
    CHECK_EQ(mrc_udp_drain_errors(&from, 1, 1), 0);
  }
}

/* Short data goes ahead of acknowledgements, a whole burst does not; data keeps its order. */
TEST(test_send__short_data_before_control) {
  static const struct {
    int packets[3];
    bool control[3];
    int arrive[3];
  } rows[] = {
      {{2, 1, 1}, {true, false, false}, {1, 2, 0}},
      {{1, 2, 1}, {false, true, false}, {0, 2, 1}},
      {{2, 1, 4}, {true, false, false}, {0, 1, 2}},
      {{2, 1, 1}, {true, true, true}, {0, 1, 2}},
  };
  fill_payload();
  UDP from = open_one("::1", 1), to = open_one("::1", 1);
  for (int row = 0; row < (int)(sizeof rows / sizeof rows[0]); row++) {
    static struct traffic traffic;
    traffic.n = 0;
    int packets = 0;
    for (int i = 0; i < 3; i++) {
      struct mrc_burst *burst = add_burst(&traffic, &from, 1, 0, &to, rows[row].packets[i], 500, 0);
      burst->tclass = rows[row].control[i] ? 0 : 2;
      packets += rows[row].packets[i];
    }
    PLAY(0);
    CHECK_EQ(send_traffic(&traffic, &from), 0);
    CHECK_EQ(n_sends, 1);
    receive_packets(&to, 1, packets);
    for (int i = 0, at = 0; i < 3; i++)
      at = check_burst_arrived(&traffic, rows[row].arrive[i], at, &from, &to);
  }
}

/* Bursts of 1, 2, 3 and 4 packets through one socket, with scripted results of sendmmsg. `arrived`
   is the set of bursts whose packets arrive. */
TEST(test_send__fates) {
  static const struct {
    int script[8];
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
      {{-ENETUNREACH, -ENETUNREACH}, 2, {-ENETUNREACH, 1, 1, 1}, 0xe, false},
      {{1, -EHOSTUNREACH, -EHOSTUNREACH}, 3, {1, -EHOSTUNREACH, 1, 1}, 0xd, false},
      {{-EPERM, -EPERM, -EPERM, -EPERM, -EPERM, -EPERM, -EPERM, -EPERM},
       8,
       {-EPERM, -EPERM, -EPERM, -EPERM},
       0x0,
       false},
      {{2, -EMSGSIZE, -EMSGSIZE, -EAGAIN}, 4, {1, 1, -EMSGSIZE, 0}, 0x3, true},
      {{1, -EINVAL, -EINVAL}, 3, {1, -EMSGSIZE, 1, 1}, 0xd, false},
      {{-EINVAL, -EINVAL}, 2, {-EINVAL, 1, 1, 1}, 0xe, false},
      {{3, -ENETDOWN, -ENETDOWN}, 3, {1, 1, 1, -ENETDOWN}, 0x7, false},
      {{1, -EIO, -EIO}, 3, {1, 1, 1, 1}, 0xf, false}, /* no GSO: packet by packet from then on */
      {{-EIO, -EIO, -EIO, -EIO}, 4, {-EIO, 1, 1, 1}, 0xe, false}, /* one packet: it is not GSO */
      /* The error of an earlier packet, whose report may have been dropped. */
      {{-ECONNREFUSED}, 1, {1, 1, 1, 1}, 0xf, false},
      {{1, -EHOSTUNREACH, 2, -EMSGSIZE}, 4, {1, 1, 1, 1}, 0xf, false},
      {{-ECONNREFUSED, -EAGAIN}, 2, {0, 0, 0, 0}, 0x0, true},
  };
  fill_payload();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    static struct traffic traffic;
    traffic.n = 0;
    UDP udp = open_one("::1", 1);
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
  }
}

/* A full socket stops its port and no other. */
TEST(test_send__a_full_socket_blocks_its_port_only) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2"};
  static struct traffic traffic;
  struct mrc_ctx_config config = config_of(2, addresses, 2);
  UDP udp = open_udp(&config);
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
}

TEST(test_retry__after_a_full_queue) {
  static struct traffic traffic;
  UDP udp = open_one("::1", 1);
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
}

/* A packet that the queue refuses for too long is an error, so that it does not block its port. */
TEST(test_send__a_refusal_that_lasts_is_an_error) {
  static struct traffic traffic;
  UDP udp = open_one("::1", 1);
  for (int i = 0; i < 2; i++)
    add_burst(&traffic, &udp, 1, 0, &udp, 1, 100, 0);
  static const struct {
    uint64_t after_ns;
    int n_script;
    int script[4];
    int fates[2];
  } rows[] = {
      {0, 1, {-ENOBUFS}, {0, 0}},
      {MRC_UDP_REFUSAL_NS - 1, 1, {-ENOBUFS}, {0, 0}},
      {MRC_UDP_REFUSAL_NS, 3, {-ENOBUFS, -ENOBUFS, 1}, {-ENETDOWN, 1}},
      {MRC_UDP_REFUSAL_NS, 1, {-ENOBUFS}, {0, 0}}, /* one was sent: the time starts anew */
      {3ull * MRC_UDP_REFUSAL_NS,
       4,
       {-ENOBUFS, -ENOBUFS, -ENOMEM, -ENOMEM},
       {-ENETDOWN, -ENETDOWN}},
      {3ull * MRC_UDP_REFUSAL_NS, 1, {-EAGAIN}, {0, 0}}, /* a full socket signals room later */
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    int taken[2];
    mrc_udp_retry(&udp, MRC_NEVER - 1);
    play(rows[i].n_script, rows[i].script);
    mrc_udp_send(&udp, traffic.bursts, 2, taken, 1000 + rows[i].after_ns);
    CHECK_ROW(i);
    CHECK_EQ(taken[0], rows[i].fates[0]);
    CHECK_EQ(taken[1], rows[i].fates[1]);
  }
}

/* Sent packet by packet, a burst still has one fate: packets not sent after the first are lost. */
TEST(test_send__without_gso_a_cut_burst_counts_as_taken) {
  static struct traffic traffic;
  fill_payload();
  UDP udp = open_one("::1", 1);
  add_burst(&traffic, &udp, 1, 0, &udp, 6, 300, 10);
  add_burst(&traffic, &udp, 1, 0, &udp, 2, 300, 10);
  PLAY(-EIO, -EIO, 4, -EAGAIN);
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
}

static uint16_t closed_udp_port(const char *address) {
  UDP udp = open_one(address, 1);
  uint16_t udp_port = udp.udp_port;
  return udp_port;
}

/* The interface of one port cannot segment messages, so its packets are sent singly: the outbox
   must not carry leftovers into the next message of the other port. */
TEST(test_send__a_port_with_gso_after_one_without) {
  static const char *const addresses[] = {"127.0.0.1", "::1"};
  struct mrc_ctx_config config = config_of(2, addresses, 1);
  fill_payload();
  UDP from = open_udp(&config), to = open_udp(&config);
  from.ports[0].gso = false;
  for (int port = 1; port <= 2; port++) {
    struct traffic traffic = {0};
    add_burst(&traffic, &from, port, 0, &to, 3, 3000, 0);
    send_traffic(&traffic, &from);
    check_fates(&traffic, (const int[]){1});
    receive_packets(&to, port, 3);
    CHECK_EQ(check_burst_arrived(&traffic, 0, 0, &from, &to), 3);
  }
}

/* A port unreachable error of an earlier packet makes the next send fail: the send is retried. The
   ICMP error quotes as much of the packet as fits, and the socket has room for it. */
TEST(test_send__an_icmp_error_is_not_the_next_bursts_fault) {
  static const struct {
    const char *address;
    uint32_t packet_bytes;
  } rows[] = {{"::1", 100}, {"127.0.0.1", 100}, {"::1", 1400}, {"127.0.0.1", 1400}};
  for (int i = 0; i < 4; i++) {
    static struct traffic traffic;
    const char *address = rows[i].address;
    traffic.n = 0;
    CHECK_ROW(i);
    UDP from = open_one(address, 1), to = open_one(address, 1);
    add_burst(&traffic, &from, 1, 0, &to, 1, rows[i].packet_bytes, 0)->dport =
        closed_udp_port(address);
    CHECK_EQ(send_traffic(&traffic, &from), 0);
    CHECK_EQ(traffic.taken[0], 1);
    traffic.bursts[0].dport = to.udp_port;
    CHECK_EQ(send_traffic(&traffic, &from), 0);
    CHECK_EQ(traffic.taken[0], 1);
    receive_packets(&to, 1, 1);
    CHECK_EQ(from.counters[MRC_IO_TX_ERROR_REPORTS], 1);
    CHECK_EQ(from.counters[MRC_IO_TX_BURST_ERRORS], 0);
    CHECK_EQ(mrc_udp_drain_errors(&from, 1, 0), 0);
  }
}

static int poll_events(int fd) {
  struct pollfd ready = {.fd = fd};
  return poll(&ready, 1, 0) == 1 ? ready.revents : 0;
}

/* More ICMP errors than the socket has room for: the error of the dropped ones must not wake the
   thread repeatedly, nor count as the error of the next send. */
TEST(test_drain__errors_that_found_no_room_do_not_stay) {
  enum { MORE_THAN_FIT = 1000 };
  static const char *const addresses[] = {"::1", "127.0.0.1"};
  for (int i = 0; i < 2; i++) {
    static struct traffic traffic;
    traffic.n = 0;
    CHECK_ROW(i);
    UDP from = open_one(addresses[i], 1), to = open_one(addresses[i], 1);
    add_burst(&traffic, &from, 1, 0, &to, 1, 1400, 0);
    union mrc_sockaddr closed;
    const socklen_t length = mrc_sockaddr_set(
        &closed, traffic.bursts[0].dst, traffic.bursts[0].family, closed_udp_port(addresses[i]), 0);
    const int fd = from.ports[0].transmitters[0].fd;
    for (int n = 0; n < MORE_THAN_FIT; n++)
      sendto(fd, payload, 1400, MSG_DONTWAIT, &closed.any, length);
    CHECK(poll_events(fd) & POLLERR);
    int drained = 0;
    for (int n = 1; n > 0; drained += n)
      n = mrc_udp_drain_errors(&from, 1, 0);
    CHECK(drained > 0 && drained < MORE_THAN_FIT);
    CHECK_EQ(poll_events(fd), 0);
    PLAY(0);
    CHECK_EQ(send_traffic(&traffic, &from), 0);
    CHECK_EQ(n_sends, 1);
    CHECK_EQ(traffic.taken[0], 1);
    for (int n = 0; n < MORE_THAN_FIT; n++)
      sendto(fd, payload, 1400, MSG_DONTWAIT, &closed.any, length);
    CHECK_EQ(send_traffic(&traffic, &from), 0); /* without a drain in between */
    CHECK_EQ(traffic.taken[0], 1);
    receive_packets(&to, 1, 2);
  }
}

/* Packets sent to a transmit socket take no room from ICMP errors. */
TEST(test_open__transmit_sockets_hear_nothing) {
  static const char *const addresses[] = {"::1", "127.0.0.1"};
  for (int i = 0; i < 2; i++) {
    static struct traffic traffic;
    traffic.n = 0;
    CHECK_ROW(i);
    UDP from = open_one(addresses[i], 1), to = open_one(addresses[i], 1);
    add_burst(&traffic, &from, 1, 0, &to, 4, 1400, 0)->dport = to.ports[0].transmitters[0].sport;
    CHECK_EQ(send_traffic(&traffic, &from), 0);
    CHECK_EQ(traffic.taken[0], 1);
    struct pollfd ready = {.fd = to.ports[0].transmitters[0].fd, .events = POLLIN};
    CHECK_EQ(poll(&ready, 1, 0), 0);
  }
}

/* The kernel returns EFAULT for a payload without backing; the guard lets it be sent as zeros. */
static void send_of_shrunk_file(uint32_t packet_bytes) {
  static struct traffic traffic;
  static const uint8_t zeros[4000];
  traffic.n = 0;
  UDP udp = open_one("::1", 1);
  int fd = memfd_create("test_udp", MFD_CLOEXEC);
  CHECK_EQ(ftruncate(fd, 65536), 0);
  uint8_t *memory = mmap(NULL, 65536, PROT_READ, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED);
  int handle = mrc_sigbus_add(memory, 65536, -1);
  CHECK_EQ(ftruncate(fd, 0), 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 3, packet_bytes, 0);
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
}

/* The driver copies short packets; the kernel copies longer ones. */
TEST(test_send__a_shrunk_file_is_sent_as_zeros) {
  send_of_shrunk_file(1000);
  send_of_shrunk_file(4000);
}

/* ---- In a separate network namespace ---- */

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
  traffic.n = 0;
  UDP udp = open_one(address, 1);
  add_burst(&traffic, &udp, 1, 0, &udp, 1, largest, 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 1, largest + 1, 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 4, largest, 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 4, largest + 1, 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 2, 1000, 0);
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  check_fates(&traffic, (int[]){1, -EMSGSIZE, 1, -EMSGSIZE, 1});
  receive_packets(&udp, 1, 7);
}

static void send_with_link_down(void) {
  static struct traffic traffic;
  UDP udp = open_one("::1", 1);
  add_burst(&traffic, &udp, 1, 0, &udp, 1, 100, 0);
  add_burst(&traffic, &udp, 1, 0, &udp, 2, 100, 0);
  set_loopback(1500, false);
  CHECK_EQ(send_traffic(&traffic, &udp), 0);
  check_fates(&traffic, (int[]){-ENETUNREACH, -ENETUNREACH});
  CHECK_EQ(udp.counters[MRC_IO_TX_BURST_ERRORS], 2);
}

TEST(test_send__the_kernels_own_refusals) {
  fill_payload();
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
      printf("skipped: cannot create a network namespace: %s\n", strerror(errno));
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
