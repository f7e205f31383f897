/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UDP sockets of all ports: what arrives is cut into packets and given to the engine, bursts of
 * the engine become messages of the kernel. It owns the sockets, their buffers and the driver's
 * counters; it never reads a clock and never waits.
 */
#ifndef MRC_IO_UDP_H
#define MRC_IO_UDP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base.h"
#include "io/cause.h"
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

/* Opens the sockets of all ports that have an address. On failure nothing stays open, and `cause`
   tells. */
int mrc_udp_open(struct mrc_udp *udp, const struct mrc_ctx_config *config,
                 struct mrc_cause *cause) MRC_MUST_CHECK;
void mrc_udp_close(struct mrc_udp *udp);
/* Closes the sockets and leaves the memory alone: in a child of fork, to which they do not belong.
 */
void mrc_udp_abandon(struct mrc_udp *udp);

/* Opens a port that is closed. `used` has the ports that EVs name, bit n - 1 for port n: such a
   port opens only with the address and the source ports that it had. -EEXIST: it is open. -EBUSY:
   it is used and would not be the same. On failure the port stays as it was. */
int mrc_udp_open_port(struct mrc_udp *udp, int port, const struct mrc_port_config *config,
                      uint32_t used, struct mrc_cause *cause) MRC_MUST_CHECK;
/* Closes its sockets; its source ports stay known. */
void mrc_udp_close_port(struct mrc_udp *udp, int port);

static inline bool mrc_udp_port_is_open(const struct mrc_udp_port *port) {
  return port->receive_fd >= 0;
}

static inline struct mrc_udp_port *mrc_udp_port(const struct mrc_udp *udp, int port) {
  mrc_assert(port >= 1 && port <= udp->n_ports);
  return &udp->ports[port - 1];
}

/* Takes what waits at one port's receive socket, up to a fixed amount, into the inbox. Returns the
   number of messages; 0 when there is none. */
int mrc_udp_receive(struct mrc_udp *udp, int port);
/* Gives the packets of the inbox to the engine, and counts them. `now_ns` must not be earlier than
   the receive. */
struct mrc_udp_delivered {
  uint64_t bytes;
  uint32_t packets;
};
struct mrc_udp_delivered mrc_udp_deliver(struct mrc_udp *udp, int port, mrc_engine *engine,
                                         uint64_t now_ns);

/* Sends up to MRC_UDP_BURSTS bursts and writes their fates for mrc_engine_commit. Returns the set
   of ports that refused one and wait now, bit n - 1 for port n. */
uint32_t mrc_udp_send(struct mrc_udp *udp, const struct mrc_burst *bursts, int n, int *taken,
                      uint64_t now_ns);

/* A transmit socket has room again. True when its whole port may send again. */
bool mrc_udp_on_room(struct mrc_udp *udp, int port, int tx_index);
/* The next time at which mrc_udp_retry has work; MRC_NEVER when none. */
uint64_t mrc_udp_deadline(const struct mrc_udp *udp);
/* Returns the set of ports that may try again, as mrc_udp_send does. */
uint32_t mrc_udp_retry(struct mrc_udp *udp, uint64_t now_ns);

/* Empties the error queue of a transmit socket and returns how many reports it held. */
int mrc_udp_drain_errors(struct mrc_udp *udp, int port, int tx_index);

/* Called by open and close only. */
int mrc_udp_inbox_open(struct mrc_udp *udp) MRC_MUST_CHECK;
void mrc_udp_inbox_close(struct mrc_udp *udp);
int mrc_udp_outbox_open(struct mrc_udp *udp) MRC_MUST_CHECK;
void mrc_udp_outbox_close(struct mrc_udp *udp);

#endif
