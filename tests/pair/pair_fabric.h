/* SPDX-License-Identifier: Apache-2.0 */
/* A pair (two or more hosts) and the links between them: port link of the sender, path link, port
   link of the receiver. It moves packets to inboxes; the drivers are in driver.h. */
#pragma once

#include "core/wire.h"
#include "mrc.h"
#include "pair/datagram.h"
#include "virtual/audit.h"
#include "virtual/link.h"

#define MRC_PAIR_MAX_HOSTS 8
#define MRC_PAIR_MAX_PLANES 8
#define MRC_PAIR_MAX_PATHS 32 /* per plane and two hosts */
#define MRC_PAIR_MAX_ENDS 64  /* of QPs */
#define MRC_PAIR_MAX_RULES 16
#define MRC_PAIR_MAX_EVENTS 1024
#define MRC_PAIR_MAX_DROPS 64

#define MRC_PAIR_ANY UINT32_MAX
#define MRC_PAIR_DATA 0 /* opcode of a rule: every data packet */

/* How a host's driver treats its engine. */
struct mrc_pair_driver {
  int capacity;       /* bursts of one transmit call, 1..64 [16] */
  int refuse_one_in;  /* refuses one burst in this many, by chance; 0: none */
  bool unstamped;     /* packets have no arrival time, only the time of the driver's run */
  uint64_t wake_ns;   /* from the arrival of a packet to the run of the driver */
  uint64_t packet_ns; /* time per packet, for which the driver is busy after its run */
  uint32_t stall_ppm; /* share of runs that are late by up to `stall_ns`, as on a busy host */
  uint64_t stall_ns;
  uint64_t sndbuf_bytes; /* a port is blocked while its port link holds more; 0: never */
};

/* Zeros take the default in brackets. */
struct mrc_pair_config {
  uint64_t seed;
  int hosts;                       /* [2] */
  int planes;                      /* [1] */
  int paths;                       /* [1] */
  int family;                      /* 6 or 4 [6] */
  bool udp_checksum;               /* the kernel drops packets that a fault corrupted */
  struct mrc_engine_config engine; /* of every host; seed and ports are filled in */
  struct mrc_link_config path;     /* of every path */
  struct mrc_link_config port_out; /* of every port link to the fabric */
  struct mrc_link_config port_in;  /* of every port link to the host */
  struct mrc_pair_driver driver;   /* of every host */
};

/* Loses exactly the first `times` packets that match. */
struct mrc_pair_rule {
  int host;        /* the sender */
  uint32_t plane;  /* or MRC_PAIR_ANY */
  uint32_t opcode; /* enum mrc_opcode, or MRC_PAIR_DATA, or MRC_PAIR_ANY */
  uint32_t psn;    /* the first of `n_psns` PSNs; ignored if n_psns is 0 */
  uint32_t n_psns;
  uint32_t times;
};

enum mrc_pair_event { MRC_PAIR_ON_PACKET, MRC_PAIR_ON_RUN, MRC_PAIR_ON_UNBLOCK };

struct mrc_pair_host {
  mrc_engine *engine;
  struct mrc_pair_driver driver;
  struct mrc_datagram *inbox; /* arrived, not yet received by the driver; oldest first */
  struct mrc_datagram **inbox_end;
  bool stops_polling; /* the driver takes no completions and events */
  uint64_t run_at_ns; /* the earliest run that is scheduled */
  uint64_t busy_until_ns;
  uint64_t handled; /* packets received and sent in this run */
  uint64_t bursts;  /* offered by the engine */
  uint64_t refused;
  uint32_t blocked; /* bit n - 1: port n */
  uint32_t down;
  uint32_t unread; /* ports whose socket the driver does not read now: their packets wait there */
  int errors[MRC_PAIR_MAX_PLANES]; /* the kernel's answer to every burst of a port; 0: accepts it */
  int path_errors[MRC_PAIR_MAX_PLANES][MRC_PAIR_MAX_PATHS]; /* the same for a path: no route */
  uint64_t plane_bytes[MRC_PAIR_MAX_PLANES];                /* payload of data packets sent */
  uint64_t plane_packets[MRC_PAIR_MAX_PLANES];              /* of every kind, sent */
  uint64_t drops[MRC_PAIR_MAX_DROPS]; /* packets by result of mrc_engine_receive */
  struct mrc_event events[MRC_PAIR_MAX_EVENTS];
  int n_events;
};

/* One end of a connected QP. */
struct mrc_pair_end {
  int host;
  int peer; /* index of the other end */
  uint32_t qpn;
  uint32_t lkey; /* of the source, at this host */
  uint32_t rkey; /* of the target, at the peer's host */
  bool done;     /* destroyed */
  bool ended;    /* the scenario ended it: outstanding WRs are flushed */
  struct mrc_qp_attr attr;
  bool denied[MRC_PAIR_MAX_PLANES][MRC_PAIR_MAX_PATHS]; /* EVs */
  struct mrc_audit audit;
};

struct mrc_pair {
  /* Takes a completion, in place of the auditors, if it returns true; NULL: none. Then, after the
     completions of a turn, posts. */
  bool (*take)(struct mrc_pair *pair, int host, const struct mrc_wc *wc);
  void (*post)(struct mrc_pair *pair, int host);
  /* Sees each packet that a host sends, or is about to receive, and may change it; NULL: none. */
  void (*pass)(struct mrc_pair *pair, int host, struct mrc_datagram *packet, bool sent);
  struct mrc_datagram **tap; /* copies of the packets sent, until it is full; the caller frees */
  int tap_room;
  int n_tapped;
  struct mrc_pair_config config;
  uint64_t now_ns;
  struct mrc_prng prng;
  struct mrc_heap heap;
  struct mrc_pair_host hosts[MRC_PAIR_MAX_HOSTS];
  struct mrc_pair_end *ends[MRC_PAIR_MAX_ENDS];
  int n_ends;
  struct mrc_link *paths; /* [from][to][plane][path] */
  struct mrc_link port_out[MRC_PAIR_MAX_HOSTS][MRC_PAIR_MAX_PLANES];
  struct mrc_link port_in[MRC_PAIR_MAX_HOSTS][MRC_PAIR_MAX_PLANES];
  struct mrc_pair_rule rules[MRC_PAIR_MAX_RULES];
  int n_rules;
  uint64_t trace; /* hash of every packet sent */
};

struct mrc_link *mrc_pair_path(struct mrc_pair *pair, int from, int to, int plane, int path);
/* Runs the driver of a host at `at_ns` or earlier; unblocks a port at `at_ns`. */
void mrc_pair_run_at(struct mrc_pair *pair, int host, uint64_t at_ns);
void mrc_pair_unblock_at(struct mrc_pair *pair, int host, int port, uint64_t at_ns);
/* A driver sends a packet, which the pair owns from now on. */
void mrc_pair_send(struct mrc_pair *pair, struct mrc_datagram *packet, const struct mrc_wire *wire);
/* Moves a packet over its next links until one delays it. */
void mrc_pair_forward(struct mrc_pair *pair, struct mrc_datagram *packet);
