/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "io/udp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int mrc_cause_errno(struct mrc_cause *cause, int error, const char *format, ...) {
  char text[160];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return mrc_cause_line(cause, error, "%s: %s", text, strerrordesc_np(error));
}

int mrc_cause_line(struct mrc_cause *cause, int error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(cause->message, sizeof cause->message, format, arguments);
  va_end(arguments);
  cause->error = -error;
  return -error;
}

/* ---- Sockets ---- */

/* Receive buffer of a transmit socket, for ICMP errors, each with the start of its packet. */
enum { ERROR_ROOM_BYTES = 32768 };

struct option {
  int level;
  int name;
  int value;
  const char *what; /* its name in messages */
};

/* Addresses, marks, GRO sizes, drop counts and arrival times come with every datagram. */
static const struct option receive_options_v6[] = {
    {IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY"},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, 1, "IPV6_RECVPKTINFO"},
    {IPPROTO_IPV6, IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS"},
    {IPPROTO_IPV6, IPV6_FLOWINFO, 1, "IPV6_FLOWINFO"},
    {IPPROTO_UDP, UDP_GRO, 1, "UDP_GRO"},
    {SOL_SOCKET, SO_RXQ_OVFL, 1, "SO_RXQ_OVFL"},
    {SOL_SOCKET, SO_TIMESTAMPNS, 1, "SO_TIMESTAMPNS"},
    {0, 0, 0, NULL},
};

static const struct option receive_options_v4[] = {
    {IPPROTO_IP, IP_PKTINFO, 1, "IP_PKTINFO"},
    {IPPROTO_IP, IP_RECVTOS, 1, "IP_RECVTOS"},
    {IPPROTO_UDP, UDP_GRO, 1, "UDP_GRO"},
    {SOL_SOCKET, SO_RXQ_OVFL, 1, "SO_RXQ_OVFL"},
    {SOL_SOCKET, SO_TIMESTAMPNS, 1, "SO_TIMESTAMPNS"},
    {0, 0, 0, NULL},
};

/* DF is set: our own probes find the path MTU. With RECVERR the kernel returns ENOBUFS when a local
   queue drops a message; without it the send seems to succeed, and the drop would look like a
   failed path. */
static const struct option transmit_options_v6[] = {
    {IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY"},
    {IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE, "IPV6_MTU_DISCOVER"},
    {IPPROTO_IPV6, IPV6_DONTFRAG, 1, "IPV6_DONTFRAG"},
    {IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0, "IPV6_AUTOFLOWLABEL"},
    {IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1, "IPV6_FLOWINFO_SEND"},
    {IPPROTO_IPV6, IPV6_RECVERR, 1, "IPV6_RECVERR"},
    {SOL_SOCKET, SO_RCVBUF, ERROR_ROOM_BYTES, "SO_RCVBUF"},
    {0, 0, 0, NULL},
};

static const struct option transmit_options_v4[] = {
    {IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE, "IP_MTU_DISCOVER"},
    {IPPROTO_IP, IP_RECVERR, 1, "IP_RECVERR"},
    {SOL_SOCKET, SO_RCVBUF, ERROR_ROOM_BYTES, "SO_RCVBUF"},
    {0, 0, 0, NULL},
};

enum { MAPPED_PREFIX_BYTES = 12 }; /* ::ffff:0:0/96 */

socklen_t mrc_sockaddr_set(union mrc_sockaddr *target, const uint8_t address[16], int family,
                           uint16_t udp_port, uint32_t flow_label) {
  if (family == 4) {
    target->v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(udp_port)};
    memcpy(&target->v4.sin_addr, address + MAPPED_PREFIX_BYTES, 4);
    return sizeof target->v4;
  }
  target->v6 = (struct sockaddr_in6){.sin6_family = AF_INET6,
                                     .sin6_port = htons(udp_port),
                                     .sin6_flowinfo = htonl(flow_label & 0xfffff)};
  memcpy(&target->v6.sin6_addr, address, 16);
  return sizeof target->v6;
}

static int set_options(int fd, const struct option *options, struct mrc_cause *cause) {
  for (const struct option *option = options; option->what; option++)
    if (setsockopt(fd, option->level, option->name, &option->value, sizeof option->value) != 0)
      return mrc_cause_errno(cause, errno, "cannot set socket option %s", option->what);
  return 0;
}

static int tie(int fd, const struct mrc_port_config *port, struct mrc_cause *cause) {
  size_t length = strnlen(port->ifname, sizeof port->ifname);
  if (length == 0) return 0;
  if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, port->ifname, (socklen_t)length) == 0) return 0;
  return mrc_cause_errno(cause, errno, "cannot bind a socket to interface %.*s", (int)length,
                         port->ifname);
}

static int bind_to(int fd, const struct mrc_port_config *port, bool any, uint16_t udp_port,
                   struct mrc_cause *cause) {
  static const uint8_t unspecified[16];
  union mrc_sockaddr local;
  socklen_t length =
      mrc_sockaddr_set(&local, any ? unspecified : port->address, port->family, udp_port, 0);
  if (port->family == 6 && IN6_IS_ADDR_LINKLOCAL(&local.v6.sin6_addr))
    local.v6.sin6_scope_id = if_nametoindex(port->ifname);
  if (bind(fd, &local.any, length) == 0) return 0;
  int error = errno;
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(local.any.sa_family,
            port->family == 4 ? (void *)&local.v4.sin_addr : (void *)&local.v6.sin6_addr, text,
            sizeof text);
  return mrc_cause_errno(cause, error, "cannot bind a socket to %s UDP port %u%s%.*s", text,
                         udp_port, port->ifname[0] ? " on " : "", (int)sizeof port->ifname,
                         port->ifname);
}

/* tie() comes before bind_to(): the kernel then lets several interfaces share a UDP port. */
static int open_socket(const struct mrc_port_config *port, const struct option *options, bool any,
                       uint16_t udp_port, struct mrc_cause *cause) {
  int domain = port->family == 4 ? AF_INET : AF_INET6;
  int fd = socket(domain, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP);
  if (fd < 0) return mrc_cause_errno(cause, errno, "cannot open a UDP socket");
  int error = set_options(fd, options, cause);
  if (error == 0) error = tie(fd, port, cause);
  if (error == 0) error = bind_to(fd, port, any, udp_port, cause);
  if (error == 0) return fd;
  close(fd);
  return error;
}

int mrc_socket_open_receive(const struct mrc_port_config *port, uint16_t udp_port,
                            struct mrc_cause *cause) {
  return open_socket(port, port->family == 4 ? receive_options_v4 : receive_options_v6,
                     port->any != 0, udp_port, cause);
}

/* Transmit sockets receive no data. The filter drops packets that other hosts send there, so that
   they take no room from ICMP errors, which do not pass through the filter. */
static int drop_input(int fd, struct mrc_cause *cause) {
  struct sock_filter drop = {.code = BPF_RET | BPF_K, .k = 0};
  const struct sock_fprog filter = {.len = 1, .filter = &drop};
  if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0) return 0;
  return mrc_cause_errno(cause, errno, "cannot set socket option SO_ATTACH_FILTER");
}

int mrc_socket_open_transmit(const struct mrc_port_config *port, uint16_t sport,
                             struct mrc_cause *cause) {
  const int fd = open_socket(port, port->family == 4 ? transmit_options_v4 : transmit_options_v6,
                             false, sport, cause);
  const int error = fd < 0 ? 0 : drop_input(fd, cause);
  if (error == 0) return fd;
  close(fd);
  return error;
}

uint16_t mrc_socket_udp_port(int fd) {
  union mrc_sockaddr local;
  socklen_t length = sizeof local;
  int error = getsockname(fd, &local.any, &length);
  mrc_assert(error == 0);
  return ntohs(local.any.sa_family == AF_INET ? local.v4.sin_port : local.v6.sin6_port);
}

uint32_t mrc_socket_set_buffer(int fd, int option, uint32_t bytes) {
  mrc_assert(option == SO_RCVBUF || option == SO_SNDBUF);
  int force = option == SO_RCVBUF ? SO_RCVBUFFORCE : SO_SNDBUFFORCE;
  int wanted = (int)mrc_min_u32(bytes, INT32_MAX / 2);
  if (setsockopt(fd, SOL_SOCKET, force, &wanted, sizeof wanted) != 0)
    setsockopt(fd, SOL_SOCKET, option, &wanted, sizeof wanted); /* the result is read below */
  int granted = 0;
  socklen_t length = sizeof granted;
  int error = getsockopt(fd, SOL_SOCKET, option, &granted, &length);
  mrc_assert(error == 0);
  return (uint32_t)granted / 2; /* the kernel doubles it, for its own overhead */
}
