/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UDP sockets of all ports and the driver's counters: the state that udp.c, receive.c
 * and send.c work on. None of them reads a clock or waits.
 */
#pragma once

#include <netinet/in.h>
/* After it: the two headers agree only in this order. */
#include <linux/in6.h>

#include "core/base.h"
#include "mrc.h"

#define MRC_UDP_MAX_TX_SOCKETS 64
#define MRC_UDP_BURSTS 8            /* limit of one mrc_udp_send, because other work waits for it */
#define MRC_UDP_RECEIVED_AT_ONCE 16 /* messages; few enough to stay in a core's own cache */
/* The kernel does not report when a full local queue drains. At 500 Mbit/s this is 12 kB. */
#define MRC_UDP_RETRY_NS 200000
/* A queue that refuses everything for this long is not full. It refuses the packet itself: a shaper
   with a smaller burst, or a veth whose far end has a smaller MTU. */
#define MRC_UDP_REFUSAL_NS 200000000

enum mrc_io_counter {
#define X(name, meaning) MRC_IO_##name,
#include "io/io_counters.def"
#undef X
  MRC_IO_COUNTERS
};

struct mrc_udp_transmitter {
  int fd;
  uint16_t sport; /* source port, chosen by the kernel */
  bool full;      /* its send buffer has no room: waits for EPOLLOUT */
};

struct mrc_udp_port {
  struct mrc_port_config config;
  struct mrc_udp_transmitter *transmitters;
  uint64_t retry_ns;      /* when to try again after ENOBUFS; MRC_NEVER: not waiting */
  uint64_t refused_ns;    /* first ENOBUFS since the last message sent; MRC_NEVER: none */
  uint32_t overflow_seen; /* the kernel's count of drops at the receive socket, when last read */
  uint32_t rcvbuf_bytes;  /* granted */
  uint32_t sndbuf_bytes;  /* granted, the smallest of all transmit sockets */
  int receive_fd;         /* -1: the port is closed; its source ports are kept */
  int n_transmitters;
  int n_full; /* transmit sockets without room */
  bool gso;   /* the interface supports UDP_SEGMENT */
};

struct mrc_udp_inbox;  /* in receive.c, which opens it */
struct mrc_udp_outbox; /* in send.c, which opens it */

struct mrc_udp {
  struct mrc_udp_port *ports; /* ports[n - 1] is port n */
  int n_slots;                /* room for ports */
  int n_ports;                /* the highest port that was ever open */
  uint16_t udp_port;          /* of all receive sockets; 0: none was ever open */
  uint16_t udp_wanted;        /* as configured; 0: 4791 when free, another otherwise */
  uint32_t rcvbuf_wanted;     /* bytes, as configured or by default */
  uint32_t sndbuf_wanted;
  int namespace_fd;       /* a copy of that of struct mrc_ctx_config; 0: none */
  struct mrc_dscps dscps; /* with every default filled in */
  struct mrc_udp_inbox *inbox;
  struct mrc_udp_outbox *outbox;
  uint64_t counters[MRC_IO_COUNTERS];
};

static inline bool mrc_udp_port_is_open(const struct mrc_udp_port *port) {
  return port->receive_fd >= 0;
}

/* The socket that an EV names: a transmit socket, or after the last one the receive socket, whose
   source port is the UDP port. A NAT lets packets back to it. */
static inline int mrc_udp_socket(const struct mrc_udp_port *port, int tx_index) {
  mrc_assert(tx_index <= port->n_transmitters);
  return tx_index < port->n_transmitters ? port->transmitters[tx_index].fd : port->receive_fd;
}

static inline struct mrc_udp_port *mrc_udp_port(const struct mrc_udp *udp, int port) {
  mrc_assert(port >= 1 && port <= udp->n_ports);
  return &udp->ports[port - 1];
}

/* ---- Why a set-up failed ---- */

/* A negative errno and one line of text. */
struct mrc_cause {
  int error; /* -errno; 0: no error */
  char message[240];
};

/* Writes the line, ": " and the text of the errno, and returns -error. `error` is positive. */
int mrc_cause_errno(struct mrc_cause *cause, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same without the text of the errno, if the line explains enough. */
int mrc_cause_line(struct mrc_cause *cause, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- One socket: the descriptors are the caller's ---- */

/* The headers of older kernels hide these options, which the kernels have. */
#ifndef IPV6_FLOWINFO
#define IPV6_FLOWINFO 11
#define IPV6_FLOWINFO_SEND 33
#endif

union mrc_sockaddr {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
};

/* Fills `target` with a 16-byte address and port, and returns its length. */
socklen_t mrc_sockaddr_set(union mrc_sockaddr *target, const uint8_t address[16], int family,
                           uint16_t udp_port, uint32_t flow_label);

/* Opens the receive socket of a port on udp_port (0: any free one), non-blocking. Returns the
   descriptor or a negative errno with its cause; -EADDRINUSE when the UDP port is taken.
   namespace_fd: as in struct mrc_ctx_config. */
int mrc_socket_open_receive(int namespace_fd, const struct mrc_port_config *port, uint16_t udp_port,
                            struct mrc_cause *cause) MRC_MUST_CHECK;
/* Opens a transmit socket on the port's address and a source port; 0: the kernel chooses. */
int mrc_socket_open_transmit(int namespace_fd, const struct mrc_port_config *port, uint16_t sport,
                             struct mrc_cause *cause) MRC_MUST_CHECK;

/* ---- The sockets of all ports, or of one at run time ---- */

/* Opens the sockets of all ports that have an address. On failure nothing stays open, and `cause`
   has the reason. */
int mrc_udp_open(struct mrc_udp *udp, const struct mrc_ctx_config *config,
                 struct mrc_cause *cause) MRC_MUST_CHECK;
void mrc_udp_close(struct mrc_udp *udp);
/* In a child of fork: closes the child's copies of the sockets, and frees no memory. */
void mrc_udp_abandon(struct mrc_udp *udp);

/* Opens a port that is closed. `used`: the ports that EVs use, bit n - 1 for port n. A used port
   opens only with its previous address and source ports. -EEXIST: it is already open. -EBUSY: it is
   used, and its address or source ports would change. On failure the port is unchanged. */
int mrc_udp_open_port(struct mrc_udp *udp, int port, const struct mrc_port_config *config,
                      uint32_t used, struct mrc_cause *cause) MRC_MUST_CHECK;
/* Closes the port's sockets and keeps its source ports for mrc_udp_open_port. */
void mrc_udp_close_port(struct mrc_udp *udp, int port);
