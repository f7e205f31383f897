/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "io/udp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/wire.h"

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

/* ---- One socket ---- */

/* Receive buffer of a transmit socket, for ICMP errors, each with the start of its packet. */
enum { ERROR_ROOM_BYTES = 32768 };

struct option {
  int level;
  int name;
  int value;
  const char *what; /* its name in messages */
};

/* Addresses, marks, GRO sizes, drop counts and arrival times come with every datagram. What passes
   a NAT leaves from here too, so what is said of transmit sockets below holds. */
static const struct option receive_options_v6[] = {
    {IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY"},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, 1, "IPV6_RECVPKTINFO"},
    {IPPROTO_IPV6, IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS"},
    {IPPROTO_IPV6, IPV6_FLOWINFO, 1, "IPV6_FLOWINFO"},
    {IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE, "IPV6_MTU_DISCOVER"},
    {IPPROTO_IPV6, IPV6_DONTFRAG, 1, "IPV6_DONTFRAG"},
    {IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0, "IPV6_AUTOFLOWLABEL"},
    {IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1, "IPV6_FLOWINFO_SEND"},
    {IPPROTO_IPV6, IPV6_RECVERR, 1, "IPV6_RECVERR"},
    {IPPROTO_UDP, UDP_GRO, 1, "UDP_GRO"},
    {SOL_SOCKET, SO_RXQ_OVFL, 1, "SO_RXQ_OVFL"},
    {SOL_SOCKET, SO_TIMESTAMPNS, 1, "SO_TIMESTAMPNS"},
    {0, 0, 0, NULL},
};

static const struct option receive_options_v4[] = {
    {IPPROTO_IP, IP_PKTINFO, 1, "IP_PKTINFO"},
    {IPPROTO_IP, IP_RECVTOS, 1, "IP_RECVTOS"},
    {IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE, "IP_MTU_DISCOVER"},
    {IPPROTO_IP, IP_RECVERR, 1, "IP_RECVERR"},
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

/* The index of an interface in the namespace of the socket; 0 if there is none of this name. */
static uint32_t index_of(int fd, const char *ifname) {
  struct ifreq request = {0};
  memcpy(request.ifr_name, ifname, strnlen(ifname, sizeof request.ifr_name - 1));
  return ioctl(fd, SIOCGIFINDEX, &request) == 0 ? (uint32_t)request.ifr_ifindex : 0;
}

static int bind_to(int fd, const struct mrc_port_config *port, bool any, uint16_t udp_port,
                   struct mrc_cause *cause) {
  static const uint8_t unspecified[16];
  union mrc_sockaddr local;
  socklen_t length =
      mrc_sockaddr_set(&local, any ? unspecified : port->address, port->family, udp_port, 0);
  if (port->family == 6 && IN6_IS_ADDR_LINKLOCAL(&local.v6.sin6_addr))
    local.v6.sin6_scope_id = index_of(fd, port->ifname);
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

/* Another process makes the socket, in its own network namespace: the messages are those of
   mrc/linux/namespace.py. Returns the descriptor or a negative errno. */

enum { NAMESPACE_SECONDS = 10 }; /* until that process has answered */

union descriptor_room {
  struct cmsghdr head; /* for its alignment */
  char bytes[CMSG_SPACE(sizeof(int))];
};

static int send_descriptor(int channel, int fd, void *data, size_t length) {
  union descriptor_room room = {0};
  struct iovec part = {.iov_base = data, .iov_len = length};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = room.bytes,
                           .msg_controllen = sizeof room.bytes};
  struct cmsghdr *control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(control), &fd, sizeof fd);
  return sendmsg(channel, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int receive_descriptor(int channel) {
  union descriptor_room room = {0};
  int32_t error = 0;
  struct iovec part = {.iov_base = &error, .iov_len = sizeof error};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = room.bytes,
                           .msg_controllen = sizeof room.bytes};
  const ssize_t length = recvmsg(channel, &message, MSG_CMSG_CLOEXEC);
  if (length < 0) return errno == EAGAIN ? -ETIMEDOUT : -errno;
  const struct cmsghdr *control = CMSG_FIRSTHDR(&message);
  if (length < (ssize_t)sizeof error) return -ECONNRESET; /* the process has ended */
  if (error != 0 || !control) return error > 0 ? -error : -EPROTO;
  int fd;
  memcpy(&fd, CMSG_DATA(control), sizeof fd);
  return fd;
}

static int socket_of_namespace(int namespace_fd, int domain, int type, int protocol) {
  int32_t wanted[] = {domain, type, protocol};
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return -errno;
  const struct timeval limit = {.tv_sec = NAMESPACE_SECONDS};
  int error = setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ? -errno : 0;
  if (error == 0) error = send_descriptor(namespace_fd, ends[1], wanted, sizeof wanted);
  close(ends[1]);
  int fd = error == 0 ? receive_descriptor(ends[0]) : error;
  close(ends[0]);
  return fd;
}

static int make_socket(int namespace_fd, int domain) {
  const int type = SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  if (namespace_fd > 0) return socket_of_namespace(namespace_fd, domain, type, IPPROTO_UDP);
  int fd = socket(domain, type, IPPROTO_UDP);
  return fd < 0 ? -errno : fd;
}

/* tie() comes before bind_to(): the kernel then lets several interfaces share a UDP port. `loose`:
   it is tied to no interface. */
static int open_socket(int namespace_fd, const struct mrc_port_config *port,
                       const struct option *options, bool any, bool loose, uint16_t udp_port,
                       struct mrc_cause *cause) {
  int fd = make_socket(namespace_fd, port->family == 4 ? AF_INET : AF_INET6);
  if (fd < 0) return mrc_cause_errno(cause, -fd, "cannot open a UDP socket");
  int error = set_options(fd, options, cause);
  if (error == 0 && !loose) error = tie(fd, port, cause);
  if (error == 0) error = bind_to(fd, port, any, udp_port, cause);
  if (error == 0) return fd;
  close(fd);
  return error;
}

int mrc_socket_open_receive(int namespace_fd, const struct mrc_port_config *port, uint16_t udp_port,
                            struct mrc_cause *cause) {
  return open_socket(namespace_fd, port,
                     port->family == 4 ? receive_options_v4 : receive_options_v6, port->any != 0,
                     port->loose != 0, udp_port, cause);
}

/* Transmit sockets receive no data. The filter drops packets that other hosts send there, so that
   they take no room from ICMP errors, which do not pass through the filter. */
static int drop_input(int fd, struct mrc_cause *cause) {
  struct sock_filter drop = {.code = BPF_RET | BPF_K, .k = 0};
  const struct sock_fprog filter = {.len = 1, .filter = &drop};
  if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0) return 0;
  return mrc_cause_errno(cause, errno, "cannot set socket option SO_ATTACH_FILTER");
}

int mrc_socket_open_transmit(int namespace_fd, const struct mrc_port_config *port, uint16_t sport,
                             struct mrc_cause *cause) {
  const int fd =
      open_socket(namespace_fd, port, port->family == 4 ? transmit_options_v4 : transmit_options_v6,
                  false, false, sport, cause);
  const int error = fd < 0 ? 0 : drop_input(fd, cause);
  if (error == 0) return fd;
  close(fd);
  return error;
}

/* The UDP port that a socket is bound to. */
static uint16_t bound_port(int fd) {
  union mrc_sockaddr local;
  socklen_t length = sizeof local;
  int error = getsockname(fd, &local.any, &length);
  mrc_assert(error == 0);
  return ntohs(local.any.sa_family == AF_INET ? local.v4.sin_port : local.v6.sin6_port);
}

/* Requests a buffer of `bytes`, beyond the system's limit if privileged; returns the size granted.
   `option` is SO_RCVBUF or SO_SNDBUF. */
static uint32_t set_buffer(int fd, int option, uint32_t bytes) {
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

/* ---- The sockets of all ports, or of one at run time ---- */

enum {
  PORT_TRIES = 32,        /* UDP ports tried when 4791 is in use */
  SOURCE_PORT_TRIES = 32, /* to get a source port that no other socket has */
  DEFAULT_RCVBUF_BYTES = 8 << 20,
  DEFAULT_SNDBUF_BYTES = 4 << 20,
};

static bool is_wanted(const struct mrc_port_config *config) { return config->family != 0; }

static int check_port(const struct mrc_port_config *own, int port, struct mrc_cause *cause) {
  if (own->family != 4 && own->family != 6)
    return mrc_cause_line(cause, EINVAL, "port %d: family must be 4 or 6, not %d", port,
                          own->family);
  if (own->tx_sockets < 1 || own->tx_sockets > MRC_UDP_MAX_TX_SOCKETS)
    return mrc_cause_line(cause, EINVAL, "port %d: tx_sockets must be 1 to %d, not %d", port,
                          MRC_UDP_MAX_TX_SOCKETS, own->tx_sockets);
  return 0;
}

/* Whether the sockets of two ports would receive each other's packets. */
static bool would_overlap(const struct mrc_port_config *a, const struct mrc_port_config *b) {
  return a->family == b->family && strncmp(a->ifname, b->ifname, sizeof a->ifname) == 0 &&
         (a->any || b->any || memcmp(a->address, b->address, 16) == 0);
}

static int check_config(const struct mrc_ctx_config *config, struct mrc_cause *cause) {
  if (config->n_ports < 1 || config->n_ports > MRC_MAX_PORTS)
    return mrc_cause_line(cause, EINVAL, "n_ports must be 1 to %d, not %u", MRC_MAX_PORTS,
                          config->n_ports);
  for (int port = 1; port <= (int)config->n_ports; port++) {
    const struct mrc_port_config *own = &config->ports[port - 1];
    int error = is_wanted(own) ? check_port(own, port, cause) : 0;
    if (error != 0) return error;
    for (int other = 1; other < port && is_wanted(own); other++)
      if (would_overlap(own, &config->ports[other - 1]))
        return mrc_cause_line(cause, EINVAL, "ports %d and %d have the same interface and address",
                              other, port);
  }
  return 0;
}

/* Closes a descriptor, if there is one. */
static void end(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

static void close_receivers(struct mrc_udp *udp) {
  for (int i = 0; i < udp->n_slots; i++)
    end(&udp->ports[i].receive_fd);
}

/* Opens every port's receive socket on one UDP port; 0 lets the kernel choose for the first. */
static int open_receivers(struct mrc_udp *udp, uint16_t udp_port, struct mrc_cause *cause) {
  for (int i = 0; i < udp->n_slots; i++) {
    if (!is_wanted(&udp->ports[i].config)) continue;
    int fd = mrc_socket_open_receive(udp->namespace_fd, &udp->ports[i].config, udp_port, cause);
    if (fd < 0) {
      close_receivers(udp);
      return fd;
    }
    udp->ports[i].receive_fd = fd;
    udp->udp_port = udp_port = bound_port(fd);
  }
  return 0;
}

/* A UDP port that is free on the first interface may be in use on another: then tries others. */
static int choose_udp_port(struct mrc_udp *udp, struct mrc_cause *cause) {
  const uint16_t wanted = udp->udp_wanted;
  int error = open_receivers(udp, wanted != 0 ? wanted : MRC_UDP_PORT, cause);
  if (wanted != 0) return error;
  for (int i = 0; error == -EADDRINUSE && i < PORT_TRIES; i++)
    error = open_receivers(udp, 0, cause);
  if (error == 0) *cause = (struct mrc_cause){0}; /* a UDP port in use was no failure */
  return error;
}

static bool source_port_used(const struct mrc_udp *udp, uint16_t sport) {
  for (int i = 0; i < udp->n_slots; i++)
    for (int j = 0; j < udp->ports[i].n_transmitters; j++)
      if (udp->ports[i].transmitters[j].sport == sport) return true;
  return false;
}

/* Sockets of two interfaces can get the same source port, but an EV must name only one path. */
static int open_transmitter(struct mrc_udp *udp, struct mrc_udp_port *port,
                            struct mrc_cause *cause) {
  for (int i = 0; i < SOURCE_PORT_TRIES; i++) {
    int fd = mrc_socket_open_transmit(udp->namespace_fd, &port->config, 0, cause);
    if (fd < 0) return fd;
    uint16_t sport = bound_port(fd);
    if (!source_port_used(udp, sport)) {
      port->transmitters[port->n_transmitters++] =
          (struct mrc_udp_transmitter){.fd = fd, .sport = sport};
      return 0;
    }
    close(fd);
  }
  return mrc_cause_line(cause, EADDRINUSE,
                        "all source ports that the kernel chose are in use on other interfaces");
}

static int open_transmitters(struct mrc_udp *udp, struct mrc_udp_port *port,
                             struct mrc_cause *cause) {
  port->transmitters = calloc(port->config.tx_sockets, sizeof *port->transmitters);
  if (!port->transmitters) return mrc_cause_errno(cause, ENOMEM, "cannot allocate sockets");
  while (port->n_transmitters < port->config.tx_sockets) {
    int error = open_transmitter(udp, port, cause);
    if (error != 0) return error;
  }
  return 0;
}

static void close_transmitters(struct mrc_udp_port *port) {
  for (int i = 0; i < port->n_transmitters; i++)
    end(&port->transmitters[i].fd);
}

static void set_buffers(const struct mrc_udp *udp, struct mrc_udp_port *port) {
  port->rcvbuf_bytes = set_buffer(port->receive_fd, SO_RCVBUF, udp->rcvbuf_wanted);
  port->sndbuf_bytes = set_buffer(port->receive_fd, SO_SNDBUF, udp->sndbuf_wanted);
  for (int i = 0; i < port->n_transmitters; i++) {
    uint32_t granted = set_buffer(port->transmitters[i].fd, SO_SNDBUF, udp->sndbuf_wanted);
    port->sndbuf_bytes = mrc_min_u32(port->sndbuf_bytes, granted);
  }
}

static struct mrc_udp_port closed_port(const struct mrc_port_config *config) {
  return (struct mrc_udp_port){.config = *config,
                               .receive_fd = -1,
                               .retry_ns = MRC_NEVER,
                               .refused_ns = MRC_NEVER,
                               .gso = true};
}

static int open_memory(struct mrc_udp *udp, const struct mrc_ctx_config *config) {
  *udp = (struct mrc_udp){.ports = calloc(config->n_ports, sizeof *udp->ports)};
  if (!udp->ports) return -ENOMEM;
  udp->n_slots = (int)config->n_ports;
  udp->udp_wanted = config->udp_port;
  udp->rcvbuf_wanted = config->rcvbuf_bytes ? config->rcvbuf_bytes : DEFAULT_RCVBUF_BYTES;
  udp->sndbuf_wanted = config->sndbuf_bytes ? config->sndbuf_bytes : DEFAULT_SNDBUF_BYTES;
  for (int i = 0; i < udp->n_slots; i++) {
    udp->ports[i] = closed_port(&config->ports[i]);
    if (is_wanted(&config->ports[i])) udp->n_ports = i + 1;
  }
  return 0;
}

/* A descriptor of its own: the caller may close the other one, and its number may be used again. */
static int keep_namespace(struct mrc_udp *udp, int namespace_fd, struct mrc_cause *cause) {
  if (namespace_fd <= 0) return 0;
  udp->namespace_fd = fcntl(namespace_fd, F_DUPFD_CLOEXEC, 3);
  if (udp->namespace_fd > 0) return 0;
  udp->namespace_fd = 0;
  return mrc_cause_errno(cause, errno, "cannot use namespace_fd %d", namespace_fd);
}

int mrc_udp_open(struct mrc_udp *udp, const struct mrc_ctx_config *config,
                 struct mrc_cause *cause) {
  struct mrc_dscps dscps = config->engine.dscps;
  int error = check_config(config, cause);
  if (error == 0 && !mrc_dscps_fill(&dscps))
    error = mrc_cause_line(cause, EINVAL, "code points are above 63, or name two classes");
  if (error != 0) return error;
  error = open_memory(udp, config);
  udp->dscps = dscps;
  if (error != 0) mrc_cause_errno(cause, -error, "cannot allocate %u ports", config->n_ports);
  if (error == 0) error = keep_namespace(udp, config->namespace_fd, cause);
  if (error == 0) error = choose_udp_port(udp, cause);
  for (int i = 0; error == 0 && i < udp->n_slots; i++) {
    struct mrc_udp_port *port = &udp->ports[i];
    if (!mrc_udp_port_is_open(port)) continue;
    error = open_transmitters(udp, port, cause);
    if (error == 0) set_buffers(udp, port);
  }
  if (error != 0) mrc_udp_close(udp);
  return error;
}

void mrc_udp_abandon(struct mrc_udp *udp) {
  close_receivers(udp);
  for (int i = 0; i < udp->n_slots; i++)
    close_transmitters(&udp->ports[i]);
  if (udp->namespace_fd > 0) close(udp->namespace_fd);
  udp->namespace_fd = 0;
}

void mrc_udp_close(struct mrc_udp *udp) {
  mrc_udp_abandon(udp);
  for (int i = 0; i < udp->n_slots; i++)
    free(udp->ports[i].transmitters);
  free(udp->ports);
  free(udp->inbox);
  free(udp->outbox);
  *udp = (struct mrc_udp){0};
}

/* ---- Ports that come and go ---- */

static bool any_is_open(const struct mrc_udp *udp) {
  for (int i = 0; i < udp->n_ports; i++)
    if (mrc_udp_port_is_open(&udp->ports[i])) return true;
  return false;
}

/* The receive socket of a later port uses the UDP port that peers have. While no port is
   open and no QP is left, no peer uses that number, and another UDP port is possible. */
static int open_late_receiver(struct mrc_udp *udp, struct mrc_udp_port *port, bool announced,
                              struct mrc_cause *cause) {
  uint16_t udp_port = udp->udp_port != 0 ? udp->udp_port : udp->udp_wanted;
  int fd = mrc_socket_open_receive(udp->namespace_fd, &port->config,
                                   udp_port != 0 ? udp_port : MRC_UDP_PORT, cause);
  if (fd == -EADDRINUSE && !announced && udp->udp_wanted == 0)
    fd = mrc_socket_open_receive(udp->namespace_fd, &port->config, 0, cause);
  if (fd < 0) return fd;
  port->receive_fd = fd;
  return 0;
}

/* Opens the same source ports as before, so that the EVs of QPs stay valid. */
static int reopen_transmitters(const struct mrc_udp *udp, struct mrc_udp_port *port,
                               const struct mrc_udp_port *before, struct mrc_cause *cause) {
  port->transmitters = calloc((size_t)before->n_transmitters, sizeof *port->transmitters);
  if (!port->transmitters) return mrc_cause_errno(cause, ENOMEM, "cannot allocate sockets");
  while (port->n_transmitters < before->n_transmitters) {
    const uint16_t sport = before->transmitters[port->n_transmitters].sport;
    int fd = mrc_socket_open_transmit(udp->namespace_fd, &port->config, sport, cause);
    if (fd < 0) return fd;
    port->transmitters[port->n_transmitters++] =
        (struct mrc_udp_transmitter){.fd = fd, .sport = sport};
  }
  return 0;
}

static int open_sockets(struct mrc_udp *udp, struct mrc_udp_port *port,
                        const struct mrc_udp_port *before, uint32_t used, bool is_used,
                        struct mrc_cause *cause) {
  int error = open_late_receiver(udp, port, any_is_open(udp) || used != 0, cause);
  if (error != 0) return error;
  if (!is_used) return open_transmitters(udp, port, cause);
  error = reopen_transmitters(udp, port, before, cause);
  return error == -EADDRINUSE ? -EBUSY : error; /* another socket now has its source port */
}

int mrc_udp_open_port(struct mrc_udp *udp, int number, const struct mrc_port_config *config,
                      uint32_t used, struct mrc_cause *cause) {
  mrc_assert(number >= 1 && number <= udp->n_slots);
  struct mrc_udp_port *before = &udp->ports[number - 1];
  if (mrc_udp_port_is_open(before))
    return mrc_cause_line(cause, EEXIST, "port %d is already open", number);
  int error = check_port(config, number, cause);
  if (error != 0) return error;
  for (int i = 0; i < udp->n_ports; i++)
    if (mrc_udp_port_is_open(&udp->ports[i]) && would_overlap(config, &udp->ports[i].config))
      return mrc_cause_line(cause, EINVAL, "ports %d and %d have the same interface and address",
                            i + 1, number);
  const bool is_used = used >> (number - 1) & 1;
  const bool is_same = before->n_transmitters == config->tx_sockets &&
                       before->config.family == config->family &&
                       memcmp(before->config.address, config->address, sizeof config->address) == 0;
  if (is_used && !is_same)
    return mrc_cause_line(cause, EBUSY,
                          "port %d: QPs still use this port number with another address", number);
  struct mrc_udp_port port = closed_port(config);
  error = open_sockets(udp, &port, before, used, is_used, cause);
  if (error != 0) {
    end(&port.receive_fd);
    close_transmitters(&port);
    free(port.transmitters);
    return error;
  }
  *cause = (struct mrc_cause){0}; /* a UDP port in use was no failure */
  set_buffers(udp, &port);
  free(before->transmitters);
  *before = port;
  udp->udp_port = bound_port(port.receive_fd);
  if (number > udp->n_ports) udp->n_ports = number;
  return 0;
}

void mrc_udp_close_port(struct mrc_udp *udp, int number) {
  struct mrc_udp_port *port = mrc_udp_port(udp, number);
  end(&port->receive_fd);
  close_transmitters(port);
  for (int i = 0; i < port->n_transmitters; i++)
    port->transmitters[i].full = false;
  port->n_full = 0;
  port->retry_ns = port->refused_ns = MRC_NEVER;
}
