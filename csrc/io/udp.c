/* SPDX-License-Identifier: Apache-2.0 */
#include "io/udp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io/socket.h"

enum {
  PORT_TRIES = 32,        /* UDP ports tried when the usual one is taken */
  SOURCE_PORT_TRIES = 32, /* source ports tried until one is unlike all others */
  DEFAULT_RCVBUF_BYTES = 8 << 20,
  DEFAULT_SNDBUF_BYTES = 4 << 20,
};

static int check_port(const struct mrc_ctx_config *config, int port, struct mrc_cause *cause) {
  const struct mrc_port_config *own = &config->ports[port - 1];
  if (own->family != 4 && own->family != 6)
    return mrc_cause_line(cause, EINVAL, "port %d: family must be 4 or 6, not %d", port,
                          own->family);
  if (own->tx_sockets < 1 || own->tx_sockets > MRC_UDP_MAX_TX_SOCKETS)
    return mrc_cause_line(cause, EINVAL, "port %d: tx_sockets must be 1 to %d, not %d", port,
                          MRC_UDP_MAX_TX_SOCKETS, own->tx_sockets);
  for (int other = 1; other < port; other++) {
    const struct mrc_port_config *earlier = &config->ports[other - 1];
    if (own->family == earlier->family &&
        strncmp(own->ifname, earlier->ifname, sizeof own->ifname) == 0 &&
        (own->any || earlier->any || memcmp(own->address, earlier->address, 16) == 0))
      return mrc_cause_line(cause, EINVAL, "ports %d and %d have the same interface and address",
                            other, port);
  }
  return 0;
}

static void close_receivers(struct mrc_udp *udp) {
  for (int i = 0; i < udp->n_ports; i++) {
    if (udp->ports[i].receive_fd >= 0) close(udp->ports[i].receive_fd);
    udp->ports[i].receive_fd = -1;
  }
}

/* Opens every port's receive socket on one UDP port; 0 lets the kernel choose for the first. */
static int open_receivers(struct mrc_udp *udp, uint16_t udp_port, struct mrc_cause *cause) {
  for (int i = 0; i < udp->n_ports; i++) {
    int fd = mrc_socket_open_receive(&udp->ports[i].config, udp_port, cause);
    if (fd < 0) {
      close_receivers(udp);
      return fd;
    }
    udp->ports[i].receive_fd = fd;
    udp_port = mrc_socket_udp_port(fd);
  }
  udp->udp_port = udp_port;
  return 0;
}

/* A UDP port that is free on the first interface may be taken on another: then try others. */
static int choose_udp_port(struct mrc_udp *udp, uint16_t wanted, struct mrc_cause *cause) {
  int error = open_receivers(udp, wanted != 0 ? wanted : MRC_UDP_PORT, cause);
  if (wanted != 0) return error;
  for (int i = 0; error == -EADDRINUSE && i < PORT_TRIES; i++)
    error = open_receivers(udp, 0, cause);
  if (error == 0) *cause = (struct mrc_cause){0}; /* the port that was taken is no failure */
  return error;
}

static bool source_port_used(const struct mrc_udp *udp, uint16_t sport) {
  for (int i = 0; i < udp->n_ports; i++)
    for (int j = 0; j < udp->ports[i].n_transmitters; j++)
      if (udp->ports[i].transmitters[j].sport == sport) return true;
  return false;
}

/* Sockets of two interfaces can get the same source port; but an EV names one path only. */
static int open_transmitter(struct mrc_udp *udp, struct mrc_udp_port *port,
                            struct mrc_cause *cause) {
  for (int i = 0; i < SOURCE_PORT_TRIES; i++) {
    int fd = mrc_socket_open_transmit(&port->config, cause);
    if (fd < 0) return fd;
    uint16_t sport = mrc_socket_udp_port(fd);
    if (!source_port_used(udp, sport)) {
      port->transmitters[port->n_transmitters++] =
          (struct mrc_udp_transmitter){.fd = fd, .sport = sport};
      return 0;
    }
    close(fd);
  }
  return mrc_cause_line(cause, EADDRINUSE, "no unused source port");
}

static int open_transmitters(struct mrc_udp *udp, struct mrc_cause *cause) {
  for (int i = 0; i < udp->n_ports; i++) {
    struct mrc_udp_port *port = &udp->ports[i];
    port->transmitters = calloc(port->config.tx_sockets, sizeof *port->transmitters);
    if (!port->transmitters) return mrc_cause_errno(cause, ENOMEM, "transmit sockets");
    while (port->n_transmitters < port->config.tx_sockets) {
      int error = open_transmitter(udp, port, cause);
      if (error != 0) return error;
    }
  }
  return 0;
}

static void set_buffers(struct mrc_udp *udp) {
  for (int i = 0; i < udp->n_ports; i++) {
    struct mrc_udp_port *port = &udp->ports[i];
    port->rcvbuf_bytes = mrc_socket_set_buffer(port->receive_fd, SO_RCVBUF, udp->rcvbuf_wanted);
    port->sndbuf_bytes = UINT32_MAX;
    for (int j = 0; j < port->n_transmitters; j++) {
      uint32_t granted =
          mrc_socket_set_buffer(port->transmitters[j].fd, SO_SNDBUF, udp->sndbuf_wanted);
      port->sndbuf_bytes = mrc_min_u32(port->sndbuf_bytes, granted);
    }
  }
}

static int open_memory(struct mrc_udp *udp, const struct mrc_ctx_config *config) {
  *udp = (struct mrc_udp){.ports = calloc(config->n_ports, sizeof *udp->ports)};
  if (!udp->ports) return -ENOMEM;
  udp->n_ports = (int)config->n_ports;
  udp->rcvbuf_wanted = config->rcvbuf_bytes ? config->rcvbuf_bytes : DEFAULT_RCVBUF_BYTES;
  udp->sndbuf_wanted = config->sndbuf_bytes ? config->sndbuf_bytes : DEFAULT_SNDBUF_BYTES;
  for (int i = 0; i < udp->n_ports; i++)
    udp->ports[i] = (struct mrc_udp_port){.config = config->ports[i],
                                          .receive_fd = -1,
                                          .retry_ns = MRC_NEVER,
                                          .refused_ns = MRC_NEVER,
                                          .gso = true};
  int error = mrc_udp_inbox_open(udp);
  return error != 0 ? error : mrc_udp_outbox_open(udp);
}

int mrc_udp_open(struct mrc_udp *udp, const struct mrc_ctx_config *config,
                 struct mrc_cause *cause) {
  if (config->n_ports < 1 || config->n_ports > MRC_MAX_PORTS)
    return mrc_cause_line(cause, EINVAL, "n_ports must be 1 to %d, not %u", MRC_MAX_PORTS,
                          config->n_ports);
  for (int port = 1; port <= (int)config->n_ports; port++) {
    int error = check_port(config, port, cause);
    if (error != 0) return error;
  }
  int error = open_memory(udp, config);
  if (error != 0) mrc_cause_errno(cause, -error, "memory for %u ports", config->n_ports);
  if (error == 0) error = choose_udp_port(udp, config->udp_port, cause);
  if (error == 0) error = open_transmitters(udp, cause);
  if (error != 0) {
    mrc_udp_close(udp);
    return error;
  }
  set_buffers(udp);
  return 0;
}

void mrc_udp_abandon(struct mrc_udp *udp) {
  close_receivers(udp);
  for (int i = 0; i < udp->n_ports; i++)
    for (int j = 0; j < udp->ports[i].n_transmitters; j++)
      close(udp->ports[i].transmitters[j].fd);
}

void mrc_udp_close(struct mrc_udp *udp) {
  mrc_udp_abandon(udp);
  for (int i = 0; i < udp->n_ports; i++)
    free(udp->ports[i].transmitters);
  free(udp->ports);
  mrc_udp_inbox_close(udp);
  mrc_udp_outbox_close(udp);
  *udp = (struct mrc_udp){0};
}
