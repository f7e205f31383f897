/* SPDX-License-Identifier: Apache-2.0 */
/* Two or more engines joined in virtual time: every two hosts have `paths` paths in each of
   `planes` planes, and each host drives its engine with the same loop as a real driver. One seed
   decides everything. An auditor (audit.h) checks every packet and completion, and aborts the
   process at the first broken invariant. Planes and ports count from 1 as in mrc.h, hosts and paths
   from 0. */
#pragma once

#include <string.h>

#include "core/base.h"
#include "core/wire.h"
#include "mrc.h"
#include "virtual/audit.h"
#include "virtual/link.h"

/* ---- addresses ---- */

/* Addresses and UDP ports of a pair's hosts. The last bytes name host, plane and path, on IPv6 and
   IPv4 alike, so a packet's header shows its path. On IPv6 the destination names the path, as with
   SRv6; on IPv4 the source port does. */

enum {
  MRC_ADDRESS_NAT = 1,   /* byte that is 0, but for the address of a NAT in front of the host */
  MRC_ADDRESS_HOST = 13, /* byte of the host + 1 */
  MRC_ADDRESS_PLANE = 14,
  MRC_ADDRESS_PATH = 15, /* byte of the path + 1; 0: the host's own address in the plane */
  MRC_ADDRESS_SPORT = 49152
};

static inline void mrc_address_make(uint8_t out[16], int family, int host, int plane, int path) {
  static const uint8_t v6[16] = {0xFD};
  static const uint8_t v4[16] = {[10] = 0xFF, [11] = 0xFF, [12] = 10};
  memcpy(out, family == 4 ? v4 : v6, 16);
  out[MRC_ADDRESS_HOST] = (uint8_t)(host + 1);
  out[MRC_ADDRESS_PLANE] = (uint8_t)plane;
  out[MRC_ADDRESS_PATH] = (uint8_t)(family == 4 ? 1 : path + 1);
}

static inline uint16_t mrc_address_udp_port(int host) { return (uint16_t)(MRC_UDP_PORT + host); }

/* IPv6 has one transmit socket a port, IPv4 one a path. */
static inline int mrc_address_tx_index(int family, int path) { return family == 4 ? path : 0; }

static inline uint16_t mrc_address_sport(int plane, int tx_index) {
  return (uint16_t)(MRC_ADDRESS_SPORT + plane * 256 + tx_index);
}

static inline uint16_t mrc_address_label(int family, int plane, int path) {
  return family == 4 ? 0 : (uint16_t)(0x1000 * plane + path + 1);
}

static inline int mrc_address_host(const uint8_t dst[16]) { return dst[MRC_ADDRESS_HOST] - 1; }

static inline int mrc_address_path(int family, const uint8_t dst[16], uint16_t sport) {
  return family == 4 ? sport % 256 : dst[MRC_ADDRESS_PATH] - 1;
}

/* ---- packets ---- */

/* A packet in flight between the hosts of a pair: built from a burst as a socket would build it;
   links mark, trim and damage it. It holds its source and destination, but no times. */

struct mrc_datagram {
  struct mrc_datagram *next; /* in a host's inbox */
  struct mrc_meta meta;      /* for the receiving driver */
  int plane;
  int from; /* host */
  int to;
  int path;
  int hop;        /* links passed */
  uint8_t tclass; /* as the sender gave it */
  int flipped;    /* the bit that a fault flipped; -1: none */
  uint32_t n;     /* bytes of UDP payload */
  uint8_t bytes[];
};

/* Allocates; the caller frees. */
struct mrc_datagram *mrc_datagram_make(int from, const struct mrc_burst *burst,
                                       const struct mrc_packet *piece);
struct mrc_datagram *mrc_datagram_copy(const struct mrc_datagram *packet);
/* Applies a link's marking, trimming and damage to the packet. */
void mrc_datagram_suffer(struct mrc_datagram *packet, const struct mrc_link_fate *fate);

/* ---- the pair and its links: port link of the sender, path link, port link of the receiver ----
 */

#define MRC_PAIR_MAX_HOSTS 8
#define MRC_PAIR_MAX_PLANES 8
#define MRC_PAIR_MAX_PATHS 32 /* per plane and two hosts */
#define MRC_PAIR_MAX_ENDS 64  /* of QPs */
#define MRC_PAIR_MAX_RULES 16
#define MRC_PAIR_MAX_EVENTS 1024
#define MRC_PAIR_MAX_DROPS 64

#define MRC_PAIR_ANY UINT32_MAX
#define MRC_PAIR_TAP 4096
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
  int hosts;                             /* [2] */
  int planes;                            /* [1] */
  uint8_t ports[2][MRC_PAIR_MAX_PLANES]; /* port of each of two hosts in each plane [the plane] */
  uint32_t backups;                      /* bit n - 1: plane n */
  int late;                              /* the last planes: their EVs join later */
  int paths;                             /* [1] */
  int family;                            /* 6 or 4 [6] */
  bool udp_checksum;                     /* the kernel drops packets that a fault corrupted */
  struct mrc_engine_config engine;       /* of every host; seed and ports are filled in */
  struct mrc_link_config path;           /* of every path */
  struct mrc_link_config port_out;       /* of every port link to the fabric */
  struct mrc_link_config port_in;        /* of every port link to the host */
  struct mrc_pair_driver driver;         /* of every host */
};

/* The port of a host in a plane. */
static inline int mrc_pair_port(const struct mrc_pair_config *config, int host, int plane) {
  const int port = host < 2 ? config->ports[host][plane - 1] : 0;
  return port != 0 ? port : plane;
}

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
  bool denied[MRC_PAIR_MAX_PLANES][MRC_PAIR_MAX_PATHS];   /* EVs */
  bool unproven[MRC_PAIR_MAX_PLANES][MRC_PAIR_MAX_PATHS]; /* EVs that joined since */
  struct mrc_audit audit;
};

struct mrc_pair {
  /* Takes a completion, in place of the auditors, if it returns true; NULL: none. Then, after the
     completions of a turn, posts. */
  bool (*take)(struct mrc_pair *pair, int host, const struct mrc_wc *wc);
  void (*post)(struct mrc_pair *pair, int host);
  /* Sees each packet that a host sends, or is about to receive, and may change it; NULL: none. */
  void (*pass)(struct mrc_pair *pair, int host, struct mrc_datagram *packet, bool sent);
  struct mrc_datagram *tap[MRC_PAIR_TAP]; /* copies of the first packets sent, tap_room at most */
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
/* The most UDP payload of a burst. */
uint32_t mrc_pair_burst_bytes(const struct mrc_pair *pair);

/* ---- life, time and faults ---- */

struct mrc_pair *mrc_pair_create(const struct mrc_pair_config *config);
/* Checks all memory a last time. */
void mrc_pair_destroy(struct mrc_pair *pair);

void mrc_pair_run(struct mrc_pair *pair, uint64_t until_ns);
/* Runs all events of the next time that has one; false if there is none until `until_ns`. */
bool mrc_pair_step(struct mrc_pair *pair, uint64_t until_ns);
/* Runs the driver of a host. Call it after a call to its engine from outside. */
void mrc_pair_kick(struct mrc_pair *pair, int host);

/* Silences a plane of all hosts in both directions, or heals it. */
void mrc_pair_silence(struct mrc_pair *pair, int plane, bool silent);
/* A link of a host goes down or up; the engine is informed. */
void mrc_pair_port_up(struct mrc_pair *pair, int host, int port, bool up);
void mrc_pair_lose(struct mrc_pair *pair, struct mrc_pair_rule rule);
/* A UDP payload arrives at a host without a sender. Returns the result of mrc_engine_receive. */
int mrc_pair_forge(struct mrc_pair *pair, int host, const uint8_t *bytes, size_t n,
                   const struct mrc_meta *meta);
