/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UDP sockets of all ports and the driver's counters: the state that udp_open, udp_receive and
 * udp_send work on. None of them reads a clock or waits.
 */
#ifndef MRC_IO_UDP_H
#define MRC_IO_UDP_H

#include "core/base.h"
#include "mrc.h"

#define MRC_UDP_MAX_TX_SOCKETS 64
#define MRC_UDP_BURSTS 8 /* most bursts of one mrc_udp_send: what follows waits for all of them */
#define MRC_UDP_RECEIVED_AT_ONCE 16 /* messages; few enough to stay in a core's own cache */
/* A full local queue gives no sign when it drains; at 500 Mbit/s it sends 12 kB in this time. */
#define MRC_UDP_RETRY_NS 200000
/* What refused everything for so long is not full: it refuses the very packet, as a shaper does
   whose burst is smaller, or a veth whose far end has a smaller MTU. */
#define MRC_UDP_REFUSAL_NS 200000000

enum mrc_io_counter {
#define X(name, meaning) MRC_IO_##name,
#include "io/io_counters.def"
#undef X
  MRC_IO_COUNTERS
};

struct mrc_udp_transmitter {
  int fd;
  uint16_t sport; /* source port, of the kernel's choice */
  bool full;      /* its send buffer has no room: waits for EPOLLOUT */
};

struct mrc_udp_port {
  struct mrc_port_config config;
  struct mrc_udp_transmitter *transmitters;
  uint64_t retry_ns;      /* when to try again after ENOBUFS; MRC_NEVER: not waiting */
  uint64_t refused_ns;    /* first ENOBUFS since a message went; MRC_NEVER: none */
  uint32_t overflow_seen; /* the kernel's count of drops at the receive socket, when last seen */
  uint32_t rcvbuf_bytes;  /* granted */
  uint32_t sndbuf_bytes;  /* granted, the least of all transmit sockets */
  int receive_fd;         /* -1: the port is closed; what is below waits for it to come back */
  int n_transmitters;
  int n_full; /* transmit sockets without room */
  bool gso;   /* the interface takes UDP_SEGMENT */
};

struct mrc_udp_inbox;  /* in udp_receive.c */
struct mrc_udp_outbox; /* in udp_send.c */

struct mrc_udp {
  struct mrc_udp_port *ports; /* ports[n - 1] is port n */
  int n_slots;                /* ports that there may be */
  int n_ports;                /* none beyond this one was ever open */
  uint16_t udp_port;          /* the one of all receive sockets; 0: none was open yet */
  uint16_t udp_wanted;        /* as configured; 0: 4791 when free, another otherwise */
  uint32_t rcvbuf_wanted;     /* bytes, as configured or by default */
  uint32_t sndbuf_wanted;
  struct mrc_udp_inbox *inbox;
  struct mrc_udp_outbox *outbox;
  uint64_t counters[MRC_IO_COUNTERS];
};

static inline bool mrc_udp_port_is_open(const struct mrc_udp_port *port) {
  return port->receive_fd >= 0;
}

static inline struct mrc_udp_port *mrc_udp_port(const struct mrc_udp *udp, int port) {
  mrc_assert(port >= 1 && port <= udp->n_ports);
  return &udp->ports[port - 1];
}

#endif
