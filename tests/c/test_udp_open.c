/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "io/sockets.h"

#include <fcntl.h>

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

TEST(test_open__two_contexts_get_two_udp_ports) {
  struct mrc_udp a;
  struct mrc_udp b;
  if (!open_one(&a, "::1", 1) || !open_one(&b, "::1", 1)) return;
  CHECK(a.udp_port != 0 && b.udp_port != 0 && a.udp_port != b.udp_port);
  mrc_udp_close(&a);
  mrc_udp_close(&b);
}

TEST(test_open__all_ports_share_the_udp_port) {
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

TEST(test_open__source_ports_are_all_different) {
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

/* Each socket is bound to its interface: two interfaces in one subnet are two planes. */
TEST(test_open__sockets_are_tied_and_do_not_block) {
  static const char *const addresses[] = {"127.0.0.1", "::1"};
  struct mrc_ctx_config config = config_of(2, addresses, 2);
  for (int i = 0; i < 2; i++)
    strcpy(config.ports[i].ifname, "lo");
  struct mrc_udp udp;
  if (!open_udp(&udp, &config)) return;
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
  mrc_udp_close(&udp);
}

TEST(test_open__refusals_name_their_cause) {
  static const char *const loopback[] = {"::1", "::1"};
  static const char *const foreign[] = {"2001:db8::77"};
  struct mrc_udp taken;
  if (!open_one(&taken, "::1", 1)) return;
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
  mrc_udp_close(&taken);
}

/* Each option that a context requires: seven of the receive socket, seven of the transmit socket
   and its filter. */
TEST(test_open__fails_without_a_socket_option) {
  static const char *const addresses[] = {"::1"};
  static const char line[] = "cannot set socket option ";
  struct mrc_ctx_config config = config_of(1, addresses, 1);
  for (int i = 0; i < 15; i++) {
    CHECK_ROW(i);
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
  struct mrc_udp udp;
  if (!open_udp(&udp, &config)) return;
  CHECK_EQ(udp.ports[0].rcvbuf_bytes, 100000);
  CHECK_EQ(udp.ports[0].sndbuf_bytes, 50000);
  mrc_udp_close(&udp);
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
  struct mrc_udp udp;
  struct mrc_cause cause = {0};
  const int before = n_descriptors();
  if (!open_udp(&udp, &config)) return;
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
  mrc_udp_close(&udp);
}

/* While QPs use a port, it reopens with the same source ports or stays closed. */
TEST(test_open_port__is_the_same_where_it_is_used) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2", "127.0.0.3"};
  struct mrc_ctx_config config = config_of(3, addresses, 4);
  struct mrc_udp udp;
  struct mrc_cause cause = {0};
  uint16_t sports[4];
  if (!open_udp(&udp, &config)) return;
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
  mrc_udp_close(&udp);
}

/* Another process took a source port or the UDP port: the open fails and leaks no descriptor. */
TEST(test_open_port__what_was_taken_meanwhile) {
  static const char *const addresses[] = {"127.0.0.1", "127.0.0.2"};
  struct mrc_ctx_config config = config_of(2, addresses, 2);
  struct mrc_port_config taker = config.ports[1];
  struct mrc_udp udp;
  struct mrc_cause cause = {0};
  if (!open_udp(&udp, &config)) return;
  const uint16_t sport = udp.ports[1].transmitters[1].sport;
  mrc_udp_close_port(&udp, 2);
  int fd = mrc_socket_open_transmit(&taker, sport, &cause);
  CHECK(fd >= 0);
  const int before = n_descriptors();
  CHECK_EQ(mrc_udp_open_port(&udp, 2, &config.ports[1], 2, &cause), -EBUSY);
  CHECK_EQ(n_descriptors(), before);
  close(fd);
  fd = mrc_socket_open_receive(&taker, udp.udp_port, &cause);
  CHECK(fd >= 0);
  CHECK_EQ(mrc_udp_open_port(&udp, 2, &config.ports[1], 0, &cause), -EADDRINUSE);
  CHECK_EQ(n_descriptors(), before);
  mrc_udp_close_port(&udp, 1); /* the last port is closed, so the UDP port may change */
  CHECK_EQ(mrc_udp_open_port(&udp, 2, &config.ports[1], 0, &cause), 0);
  CHECK_STR_EQ(cause.message, "");
  close(fd);
  mrc_udp_close(&udp);
}
