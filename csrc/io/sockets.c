/* SPDX-License-Identifier: Apache-2.0 */
#include "io/sockets.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/wire.h"
#include "io/receive.h"
#include "io/send.h"

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
    int fd = mrc_socket_open_receive(&udp->ports[i].config, udp_port, cause);
    if (fd < 0) {
      close_receivers(udp);
      return fd;
    }
    udp->ports[i].receive_fd = fd;
    udp->udp_port = udp_port = mrc_socket_udp_port(fd);
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
    int fd = mrc_socket_open_transmit(&port->config, 0, cause);
    if (fd < 0) return fd;
    uint16_t sport = mrc_socket_udp_port(fd);
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
  port->rcvbuf_bytes = mrc_socket_set_buffer(port->receive_fd, SO_RCVBUF, udp->rcvbuf_wanted);
  port->sndbuf_bytes = UINT32_MAX;
  for (int i = 0; i < port->n_transmitters; i++) {
    uint32_t granted =
        mrc_socket_set_buffer(port->transmitters[i].fd, SO_SNDBUF, udp->sndbuf_wanted);
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
  int error = mrc_udp_inbox_open(udp);
  return error != 0 ? error : mrc_udp_outbox_open(udp);
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
}

void mrc_udp_close(struct mrc_udp *udp) {
  mrc_udp_abandon(udp);
  for (int i = 0; i < udp->n_slots; i++)
    free(udp->ports[i].transmitters);
  free(udp->ports);
  mrc_udp_inbox_close(udp);
  mrc_udp_outbox_close(udp);
  *udp = (struct mrc_udp){0};
}

/* ---- Ports that come and go ---- */

static bool any_is_open(const struct mrc_udp *udp) {
  for (int i = 0; i < udp->n_ports; i++)
    if (mrc_udp_port_is_open(&udp->ports[i])) return true;
  return false;
}

/* The receive socket of a later port uses the UDP port that peers have learned. While no port is
   open and no QP is left, no peer uses that number, and another UDP port is possible. */
static int open_late_receiver(struct mrc_udp *udp, struct mrc_udp_port *port, bool announced,
                              struct mrc_cause *cause) {
  uint16_t udp_port = udp->udp_port != 0 ? udp->udp_port : udp->udp_wanted;
  int fd = mrc_socket_open_receive(&port->config, udp_port != 0 ? udp_port : MRC_UDP_PORT, cause);
  if (fd == -EADDRINUSE && !announced && udp->udp_wanted == 0)
    fd = mrc_socket_open_receive(&port->config, 0, cause);
  if (fd < 0) return fd;
  port->receive_fd = fd;
  return 0;
}

/* Opens the same source ports as before, so that the EVs of QPs stay valid. */
static int reopen_transmitters(struct mrc_udp_port *port, const struct mrc_udp_port *before,
                               struct mrc_cause *cause) {
  port->transmitters = calloc((size_t)before->n_transmitters, sizeof *port->transmitters);
  if (!port->transmitters) return mrc_cause_errno(cause, ENOMEM, "cannot allocate sockets");
  while (port->n_transmitters < before->n_transmitters) {
    const uint16_t sport = before->transmitters[port->n_transmitters].sport;
    int fd = mrc_socket_open_transmit(&port->config, sport, cause);
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
  error = reopen_transmitters(port, before, cause);
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
  udp->udp_port = mrc_socket_udp_port(port.receive_fd);
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
