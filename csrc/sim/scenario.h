/* SPDX-License-Identifier: Apache-2.0 */
/* The input and output of a simulation: fabric, flows and faults; samples and counts. Python sees
   the part between the two cdef markers.

   Every plane has its own T0s and T1s; each T0 has an uplink to every T1 and serves the same
   number of hosts. Hosts, T0s, T1s, paths and flows are numbered from 0, planes from 1. Path n
   of a plane goes over T1 n; two hosts at the same T0 have only path 0, over this T0. Times are
   in nanoseconds from the start of the simulation, rates in bits per second, probabilities in
   parts per million.

   With T2s, a plane has three tiers. Its T0s and T1s are divided into pods, in order, and a T0 has
   an uplink to every T1 of its pod. T2 n has one link to each pod: to the T1 with the place n
   modulo the number of T1s in a pod. Path n between two pods goes over T2 n, and so over the T1 at
   this place in both; path n within a pod goes over the T1 at place n. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* cdef begin */

#define MRC_SIM_MAX_HOSTS 131072
#define MRC_SIM_MAX_PLANES 32
#define MRC_SIM_MAX_T0 4096     /* of a plane */
#define MRC_SIM_MAX_PER_T0 8192 /* hosts: the number of uSIDs for the ports of a T0 */
#define MRC_SIM_MAX_T1 256      /* above one T0: a path number fills a byte of the EV */
#define MRC_SIM_MAX_ALL_T1 4096 /* of a plane with T2s */
#define MRC_SIM_MAX_T2 4096     /* of a plane */

enum mrc_sim_routing {
  MRC_SIM_SOURCE_ROUTES, /* each EV holds the uSIDs of its path */
  MRC_SIM_ECMP           /* switches choose the uplink by a hash of addresses, ports, flow label */
};

enum mrc_sim_transport {
  MRC_SIM_MRC,
  MRC_SIM_GO_BACK_N /* a baseline: in order, on one path that switches choose */
};

/* How the EVs of MRC's QPs are measured before the first write. */
enum mrc_sim_probing {
  MRC_SIM_UNPROBED,
  MRC_SIM_PROBED,  /* by probes of every EV, one QP after the other, before time 0 */
  MRC_SIM_COMPUTED /* without packets, as if an idle fabric had answered each probe */
};

struct mrc_sim_config {
  uint64_t seed;
  uint32_t hosts; /* a multiple of t0 */
  uint32_t planes;
  uint32_t t0;            /* of each plane */
  uint32_t t1;            /* of each plane */
  uint32_t pods;          /* of each plane; both t0 and t1 are multiples of it; 0: one */
  uint32_t t2;            /* of each plane, a multiple of the T1s in a pod; 0: two tiers, one pod */
  uint32_t routing;       /* enum mrc_sim_routing */
  uint32_t transport;     /* enum mrc_sim_transport; go-back-N requires ECMP */
  uint32_t evs_per_plane; /* of each QP, chosen at random; 0: all paths */
  uint32_t probed;        /* enum mrc_sim_probing; unless it is UNPROBED, faults that begin at time
                             0 apply before it too */
  uint32_t shards;  /* parts of the fabric that are simulated side by side, at most one for each T0;
                       0: one for about 1,024 hosts. No result depends on it */
  uint32_t threads; /* that simulate shards; 0: one. No result depends on it */
  uint32_t single_path;     /* 1: each QP has one path, in a plane chosen at random */
  uint64_t host_rate_bps;   /* of a link between host and T0 */
  uint64_t fabric_rate_bps; /* of a link between T0 and T1 */
  uint64_t core_rate_bps;   /* of a link between T1 and T2 */
  uint64_t host_delay_ns;
  uint64_t fabric_delay_ns;
  uint64_t core_delay_ns;
  uint64_t jitter_ns;      /* random extra delay of every link up to this; order is kept */
  uint64_t buffer_bytes;   /* of each class of a switch port; 0: no limit */
  uint64_t ecn_low_bytes;  /* the ramp of ECN marking, on the ports of switches */
  uint64_t ecn_high_bytes; /* 0: no marking */
  uint64_t sndbuf_bytes;   /* a host's port is blocked while more than this waits in it */
  uint64_t wake_ns;        /* from the arrival of a packet to the run of its host's driver */
  uint64_t wake_noise_ns;  /* longest extra delay of a host's wake-up, drawn each time */
  uint64_t sample_ns;      /* between two samples of each flow; 0: none */
  uint32_t samples_planes; /* 1: each sample has the bytes of each plane too */
  uint64_t cc_base_rtt_ns; /* round trip of the empty fabric */
  uint64_t memory_bytes;   /* of the memory region that all hosts share; at least one write */
  uint32_t ecn_last_hop;   /* 1: ports to hosts mark CE too */
  uint32_t one_class;      /* 1: in every queue, control packets wait behind data */
  uint32_t trims;          /* 1: a full buffer trims writes to their header */
  uint32_t audit; /* 1: check every invariant after every event, with own memory and content for
                     each flow; MRC only; a run costs about five times as much */
  uint32_t copies_payload; /* 1: payload is copied from the first half of the memory to the second;
                              0: every write consists of zeros, which costs less */
  /* of every engine and QP; see mrc.h */
  uint32_t qps_per_host;
  uint32_t path_mtu;
  uint32_t mpr;
  uint32_t spray;
  uint32_t seal;                /* enum mrc_seal_mode of every QP */
  uint32_t ev_active_per_plane; /* 0: all */
  uint32_t first_psn;           /* of every QP, both ways */
  uint32_t timeout;
  uint32_t retry_linear;
  uint32_t retry_exp;
  uint32_t plane_shares; /* enum mrc_plane_shares */
  uint32_t cc;           /* enum mrc_cc_kind; NSCC gets host_rate_bps and cc_base_rtt_ns */
  uint32_t sack_threshold_bytes;
  uint32_t sack_delay_ns;
  uint32_t noise_ns;
};

/* Writes from one host to another over their own QP; or a TCP flow, which never ends and uses the
   first of `paths`. */
struct mrc_sim_flow_config {
  uint32_t from;
  uint32_t to;
  uint64_t start_ns;
  uint64_t interval_ns;    /* open loop: mean time between two writes; 0: as soon as depth allows */
  uint64_t paths;          /* bit n: its QP may use path n of every plane; 0: all paths */
  uint64_t paths_until_ns; /* until then all other paths are DENIED; 0: the QP has no others */
  uint64_t offset;         /* into each half of the memory, when payload is copied */
  uint32_t bytes;          /* of each write */
  uint32_t writes;
  uint32_t immediate; /* 1: every write carries an immediate; so too if another flow waits for this
                         one, or `bytes` is 0 */
  uint32_t depth;     /* most writes in the send queue */
  uint32_t tcp_plane; /* plane of a TCP flow, whose segments have `bytes`; 0: a QP */
  uint32_t after;     /* number + 1 of the flow whose n-th write must arrive at `from` before write
                         n + 1 is posted; 0: none */
  /* A job: flows that work in steps. The next step starts at all of them when all have done their
     writes of this one, and `pause_ns` have passed. */
  uint32_t step_writes; /* of this flow; 0: it is part of no job */
  uint32_t job;         /* number + 1 of the first flow of the job; the others follow it */
  uint32_t job_flows;
  uint64_t pause_ns; /* at least fabric_delay_ns, so that no host hears of others too early */
};

enum mrc_sim_target {
  MRC_SIM_ALL,    /* every link */
  MRC_SIM_PLANE,  /* every link of a plane */
  MRC_SIM_T0,     /* every link of T0 `index` */
  MRC_SIM_T1,     /* every link of T1 `index` */
  MRC_SIM_UPLINK, /* the link between T0 `index` and T1 `t1` */
  MRC_SIM_PORT,   /* the link between host `index` and its T0 */
  MRC_SIM_T2,     /* every link of T2 `index` */
  MRC_SIM_CORE    /* the link between T1 `index` and T2 `t2` */
};

enum mrc_sim_direction { MRC_SIM_BOTH, MRC_SIM_UPWARD, MRC_SIM_DOWNWARD };

enum mrc_sim_fault_kind {
  MRC_SIM_SILENT,    /* loses every packet; ports stay up */
  MRC_SIM_DOWN,      /* loses every packet; the hosts' ports go down */
  MRC_SIM_LOSS,      /* loses by chance: `a` ppm */
  MRC_SIM_LOSE,      /* loses the first `a` of every `b` packets */
  MRC_SIM_MASK,      /* loses packet i of every 64 whose bit i of `a` is set */
  MRC_SIM_BURST,     /* loses `b` packets in a row, beginning by chance: `a` ppm */
  MRC_SIM_CORRUPT,   /* flips a bit by chance: `a` ppm */
  MRC_SIM_DUPLICATE, /* delivers twice by chance: `a` ppm, the second `b` ns later */
  MRC_SIM_REORDER,   /* delays by chance: `a` ppm, by up to `b` ns */
  MRC_SIM_DELAY,     /* propagation takes `a` ns */
  MRC_SIM_JITTER,    /* random extra delay up to `a` ns; order is kept */
  MRC_SIM_RATE,      /* sends at `a` bits per second; 0: at `b` ppm of the topology's rate */
  MRC_SIM_MTU        /* loses larger IPv6 packets than `a` bytes; 0: none */
};

enum mrc_sim_class { MRC_SIM_EVERY_CLASS, MRC_SIM_CONTROL_CLASS, MRC_SIM_DATA_CLASS };

/* At until_ns the property that the fault changed returns to the topology's value. */
struct mrc_sim_fault {
  uint64_t at_ns;
  uint64_t until_ns; /* UINT64_MAX: never ends */
  uint64_t a;
  uint64_t b;
  uint32_t target; /* enum mrc_sim_target */
  uint32_t plane;
  uint32_t index;
  uint32_t t1;
  uint32_t t2;
  uint32_t kind;      /* enum mrc_sim_fault_kind */
  uint32_t class;     /* enum mrc_sim_class: packets to lose, damage, duplicate or reorder */
  uint32_t direction; /* enum mrc_sim_direction of the target's links */
};

struct mrc_sim_flow_info {
  uint64_t first_ns; /* first write posted */
  uint64_t last_ns;  /* last write completed so far */
  uint64_t posted;
  uint64_t completed; /* with success */
  uint64_t failed;
  uint64_t received_bytes;
  uint64_t sent_packets;
  uint64_t retransmitted_packets;
  uint64_t spurious_packets; /* retransmitted needlessly, in the sender's view */
  uint64_t repeated_packets; /* received with payload that was received before; without copies made
                                by faults */
  uint64_t lost_packets;     /* in the sender's view, on all planes */
  int64_t rtt_ns;
};

/* A flow at one time: counts since the start. */
struct mrc_sim_sample {
  uint64_t now_ns;
  uint64_t received_bytes;
  uint64_t retransmitted_packets;
  uint32_t flow;
  uint32_t reserved; /* 0 */
};

enum mrc_sim_event_type {
  MRC_SIM_EV_STATE,    /* `status` is an enum mrc_ev_state */
  MRC_SIM_PLANE_STATE, /* `status` 0: suspended, 1: resumed */
  MRC_SIM_QP_ERROR,    /* `status` is an enum mrc_wc_status */
  MRC_SIM_PLANE_SHARE  /* `status` 0: slow, 1: no longer; `percent` of the mean of the others */
};

/* An event of the engine at one end of a flow. */
struct mrc_sim_event {
  uint64_t now_ns;
  uint32_t flow;
  uint16_t path;
  uint8_t plane;
  uint8_t type;      /* enum mrc_sim_event_type */
  uint8_t status;    /* see the type */
  uint8_t receiver;  /* 1: from the receiving end of the flow */
  uint16_t percent;  /* see the type */
  uint32_t reserved; /* 0 */
};

/* One write from request to completion. */
struct mrc_sim_message {
  uint64_t wanted_ns; /* when the traffic requested it */
  uint64_t done_ns;
  uint32_t flow;
  uint32_t reserved; /* 0 */
};

/* Sums over the whole fabric since the start. */
struct mrc_sim_stats {
  uint64_t now_ns;
  uint64_t events;  /* of the simulator */
  uint64_t packets; /* sent by hosts */
  uint64_t hops;    /* packets sent by hosts and switches */
  uint64_t lost;    /* by faults */
  uint64_t corrupt; /* dropped by the UDP checksum of a host */
  uint64_t dropped; /* full buffers */
  uint64_t trimmed;
  uint64_t marked; /* CE */
  uint64_t unroutable;
  uint64_t first_lost_ns; /* by a fault; 0: none */
  uint64_t completed_writes;
  uint64_t trace; /* hash of every packet: when, where, what */
};

/* One direction of a link. */
struct mrc_sim_port_info {
  uint64_t busy_ns;    /* time spent sending */
  uint64_t peak_bytes; /* longest queue */
  uint64_t trimmed;
  uint64_t dropped;
  uint64_t marked;
};

/* cdef end */

/* The shape of the fabric as numbers: which hop joins which nodes, which T0 serves a host. Planes
   count from 0 here. */

/* ---- pods ---- */

static inline uint32_t mrc_topology_pods(const struct mrc_sim_config *config) {
  return config->pods ? config->pods : 1;
}
static inline uint32_t mrc_topology_t0s_of_pod(const struct mrc_sim_config *config) {
  return config->t0 / mrc_topology_pods(config);
}
static inline uint32_t mrc_topology_t1s_of_pod(const struct mrc_sim_config *config) {
  return config->t1 / mrc_topology_pods(config);
}
static inline uint32_t mrc_topology_pod_of_t0(const struct mrc_sim_config *config, uint32_t t0) {
  return config->t2 ? t0 / mrc_topology_t0s_of_pod(config) : 0;
}
static inline uint32_t mrc_topology_pod_of_t1(const struct mrc_sim_config *config, uint32_t t1) {
  return config->t2 ? t1 / mrc_topology_t1s_of_pod(config) : 0;
}
/* The T1 of a pod over which a path goes. */
static inline uint32_t mrc_topology_t1_on(const struct mrc_sim_config *config, uint32_t pod,
                                          uint32_t path) {
  const uint32_t each = mrc_topology_t1s_of_pod(config);
  return pod * each + path % each;
}
/* Whether a T1 and a T2 have a link. */
static inline bool mrc_topology_are_joined(const struct mrc_sim_config *config, uint32_t t1,
                                           uint32_t t2) {
  return mrc_topology_t1_on(config, mrc_topology_pod_of_t1(config, t1), t2) == t1;
}

/* ---- hops ---- */

/* The links of a plane by tier; those of a tier are numbered from 0. */
enum mrc_topology_tier {
  MRC_TIER_HOST,   /* by host */
  MRC_TIER_UPLINK, /* between T0s and T1s: T0 by T0 */
  MRC_TIER_CORE,   /* between T1s and T2s: pod by pod, each in the order of T2s */
  MRC_TIERS
};

static inline uint32_t mrc_topology_links(const struct mrc_sim_config *config,
                                          enum mrc_topology_tier tier) {
  if (tier == MRC_TIER_HOST) return config->hosts;
  if (tier == MRC_TIER_UPLINK) return config->t0 * mrc_topology_t1s_of_pod(config);
  return mrc_topology_pods(config) * config->t2;
}

/* Hops of one plane, by number: tier by tier, the upward ones before the downward ones. */
static inline uint32_t mrc_topology_hops_per_plane(const struct mrc_sim_config *config) {
  uint32_t links = 0;
  for (int tier = 0; tier < MRC_TIERS; tier++)
    links += mrc_topology_links(config, (enum mrc_topology_tier)tier);
  return 2 * links;
}
static inline uint32_t mrc_topology_host_up(const struct mrc_sim_config *config, uint32_t plane,
                                            uint32_t host) {
  return plane * mrc_topology_hops_per_plane(config) + host;
}
static inline uint32_t mrc_topology_host_down(const struct mrc_sim_config *config, uint32_t plane,
                                              uint32_t host) {
  return mrc_topology_host_up(config, plane, host) + config->hosts;
}
/* `t1` is in the pod of the T0. */
static inline uint32_t mrc_topology_t0_up(const struct mrc_sim_config *config, uint32_t plane,
                                          uint32_t t0, uint32_t t1) {
  const uint32_t each = mrc_topology_t1s_of_pod(config);
  return plane * mrc_topology_hops_per_plane(config) + 2 * config->hosts + t0 * each + t1 % each;
}
static inline uint32_t mrc_topology_t1_down(const struct mrc_sim_config *config, uint32_t plane,
                                            uint32_t t0, uint32_t t1) {
  return mrc_topology_t0_up(config, plane, t0, t1) + mrc_topology_links(config, MRC_TIER_UPLINK);
}
/* The link between a pod and a T2. */
static inline uint32_t mrc_topology_t1_up(const struct mrc_sim_config *config, uint32_t plane,
                                          uint32_t pod, uint32_t t2) {
  return plane * mrc_topology_hops_per_plane(config) + 2 * config->hosts +
         2 * mrc_topology_links(config, MRC_TIER_UPLINK) + pod * config->t2 + t2;
}
static inline uint32_t mrc_topology_t2_down(const struct mrc_sim_config *config, uint32_t plane,
                                            uint32_t pod, uint32_t t2) {
  return mrc_topology_t1_up(config, plane, pod, t2) + mrc_topology_links(config, MRC_TIER_CORE);
}

/* Where a hop is in its plane. */
struct mrc_topology_place {
  enum mrc_topology_tier tier;
  bool down;
  uint32_t link;  /* within the tier */
  uint32_t first; /* hop of the tier, within the plane */
};
static inline struct mrc_topology_place mrc_topology_place_of(const struct mrc_sim_config *config,
                                                              uint32_t hop) {
  struct mrc_topology_place place = {.link = hop % mrc_topology_hops_per_plane(config)};
  uint32_t links = config->hosts;
  while (place.link >= 2 * links) {
    place.first += 2 * links;
    place.link -= 2 * links;
    place.tier++;
    links = mrc_topology_links(config, place.tier);
  }
  place.down = place.link >= links;
  place.link %= links;
  return place;
}

/* ---- hosts and paths ---- */

static inline uint32_t mrc_topology_hosts_per_t0(const struct mrc_sim_config *config) {
  return config->hosts / config->t0;
}
/* Which T0 serves a host, in every plane. */
static inline uint32_t mrc_topology_t0_of(const struct mrc_sim_config *config, uint32_t host) {
  return host / mrc_topology_hosts_per_t0(config);
}
/* Paths of one plane between two hosts. */
static inline uint32_t mrc_topology_n_paths(const struct mrc_sim_config *config, uint32_t a,
                                            uint32_t b) {
  const uint32_t from = mrc_topology_t0_of(config, a), to = mrc_topology_t0_of(config, b);
  if (from == to) return 1;
  const bool one_pod = mrc_topology_pod_of_t0(config, from) == mrc_topology_pod_of_t0(config, to);
  return one_pod ? mrc_topology_t1s_of_pod(config) : config->t2;
}

#define MRC_TOPOLOGY_INNER_HOPS 4 /* most between two T0s */

/* The hops between two T0s on a path, in their order; returns how many. */
static inline uint32_t mrc_topology_inner_hops(const struct mrc_sim_config *config, uint32_t plane,
                                               uint32_t from_t0, uint32_t to_t0, uint32_t path,
                                               uint32_t hops[MRC_TOPOLOGY_INNER_HOPS]) {
  if (from_t0 == to_t0) return 0;
  const uint32_t from = mrc_topology_pod_of_t0(config, from_t0);
  const uint32_t to = mrc_topology_pod_of_t0(config, to_t0);
  uint32_t n = 0;
  hops[n++] = mrc_topology_t0_up(config, plane, from_t0, mrc_topology_t1_on(config, from, path));
  if (from != to) {
    hops[n++] = mrc_topology_t1_up(config, plane, from, path);
    hops[n++] = mrc_topology_t2_down(config, plane, to, path);
  }
  hops[n++] = mrc_topology_t1_down(config, plane, to_t0, mrc_topology_t1_on(config, to, path));
  return n;
}

/* ---- shards ---- */

/* The least delay of a link that leads from shard to shard. */
static inline uint64_t mrc_topology_inner_delay_ns(const struct mrc_sim_config *config) {
  const bool core = config->t2 && config->core_delay_ns < config->fabric_delay_ns;
  return core ? config->core_delay_ns : config->fabric_delay_ns;
}
/* The shards that the configuration asks for: each has a run of T0s with their hosts, in all
   planes, and a share of the T1s and T2s. */
static inline uint32_t mrc_topology_shards(const struct mrc_sim_config *config) {
  const uint32_t hosts_of_one = 1024;
  const uint32_t wanted = config->shards ? config->shards : config->hosts / hosts_of_one;
  if (wanted == 0 || mrc_topology_inner_delay_ns(config) == 0) return 1;
  return wanted < config->t0 ? wanted : config->t0;
}
static inline uint32_t mrc_topology_shard_of_t0(const struct mrc_sim_config *config,
                                                uint32_t shards, uint32_t t0) {
  return t0 * shards / config->t0;
}
static inline uint32_t mrc_topology_shard_of_t1(const struct mrc_sim_config *config,
                                                uint32_t shards, uint32_t t1) {
  return t1 * shards / config->t1;
}
static inline uint32_t mrc_topology_shard_of_t2(const struct mrc_sim_config *config,
                                                uint32_t shards, uint32_t t2) {
  return t2 * shards / config->t2;
}
static inline uint32_t mrc_topology_shard_of_host(const struct mrc_sim_config *config,
                                                  uint32_t shards, uint32_t host) {
  return mrc_topology_shard_of_t0(config, shards, mrc_topology_t0_of(config, host));
}

/* ---- limits ---- */

static inline bool mrc_topology_are_pods_sound(const struct mrc_sim_config *config) {
  const uint32_t pods = mrc_topology_pods(config);
  if (config->t2 == 0) return pods == 1 && config->t1 <= MRC_SIM_MAX_T1;
  return pods >= 2 && config->t0 % pods == 0 && config->t1 % pods == 0 &&
         config->t1 <= MRC_SIM_MAX_ALL_T1 && config->t1 / pods <= MRC_SIM_MAX_T1 &&
         config->t2 <= MRC_SIM_MAX_T2 && config->t2 % (config->t1 / pods) == 0 &&
         config->core_rate_bps > 0;
}

/* Whether a fabric can be built from the configuration. */
static inline bool mrc_topology_is_sound(const struct mrc_sim_config *config) {
  return config->hosts >= 2 && config->hosts <= MRC_SIM_MAX_HOSTS && config->planes >= 1 &&
         config->planes <= MRC_SIM_MAX_PLANES && config->t0 >= 1 && config->t0 <= MRC_SIM_MAX_T0 &&
         config->hosts % config->t0 == 0 &&
         mrc_topology_hosts_per_t0(config) <= MRC_SIM_MAX_PER_T0 && config->t1 >= 1 &&
         mrc_topology_are_pods_sound(config) && config->host_rate_bps > 0 &&
         config->fabric_rate_bps > 0 &&
         (config->ecn_high_bytes == 0 || config->ecn_high_bytes > config->ecn_low_bytes);
}

/* ---- addresses of hosts ---- */

/* Addresses of the simulated hosts, with which QPs are connected. Planes count from 0. */

/* Bytes of an address that name host, plane and path + 1; path 0 is the host's own address. */
enum { MRC_SIM_HOST_AT = 3, MRC_SIM_PLANE_AT = 11, MRC_SIM_PATH_AT = 14 };

static inline void mrc_sim_path_address(uint8_t out[16], uint32_t host, uint32_t plane,
                                        uint32_t path) {
  memset(out, 0, 16);
  out[0] = 0xFD;
  out[MRC_SIM_HOST_AT] = (uint8_t)(host >> 16);
  out[MRC_SIM_HOST_AT + 1] = (uint8_t)(host >> 8);
  out[MRC_SIM_HOST_AT + 2] = (uint8_t)host;
  out[MRC_SIM_PLANE_AT] = (uint8_t)plane;
  out[MRC_SIM_PATH_AT] = (uint8_t)((path + 1) >> 8);
  out[MRC_SIM_PATH_AT + 1] = (uint8_t)(path + 1);
}
static inline void mrc_sim_host_address(uint8_t out[16], uint32_t host, uint32_t plane) {
  mrc_sim_path_address(out, host, plane, UINT32_MAX);
}
/* The host and the path in an address. */
static inline uint32_t mrc_sim_host_of(const uint8_t address[16]) {
  return (uint32_t)(address[MRC_SIM_HOST_AT] << 16 | address[MRC_SIM_HOST_AT + 1] << 8 |
                    address[MRC_SIM_HOST_AT + 2]);
}
static inline uint16_t mrc_sim_path_of(const uint8_t address[16]) {
  return (uint16_t)((address[MRC_SIM_PATH_AT] << 8 | address[MRC_SIM_PATH_AT + 1]) - 1);
}
static inline uint16_t mrc_sim_source_port(uint32_t plane) { return (uint16_t)(49152 + plane); }
