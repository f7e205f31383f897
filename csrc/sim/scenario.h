/* SPDX-License-Identifier: Apache-2.0 */
/* The input and output of a simulation: fabric, flows and faults; samples and counts. Python sees
   the part between the two cdef markers.

   Times are in nanoseconds from the start of the simulation, rates in bits per second,
   probabilities in parts per million; topology.h says how hosts, switches and paths are
   numbered. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sim/topology.h"

/* cdef begin */

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
  struct mrc_topology topology;
  uint32_t routing;       /* enum mrc_sim_routing */
  uint32_t transport;     /* enum mrc_sim_transport; go-back-N requires ECMP */
  uint32_t evs_per_plane; /* of each QP, chosen at random; 0: all paths */
  uint32_t probed;        /* enum mrc_sim_probing; unless it is UNPROBED, faults that begin at time
                             0 apply before it too */
  uint32_t shards;  /* parts of the fabric that are simulated side by side, at most one for each T0;
                       0: one for about 1,024 hosts. No result depends on it */
  uint32_t threads; /* that simulate shards; 0: one. No result depends on it */
  uint32_t single_path;    /* 1: each QP has one path, in a plane chosen at random */
  uint64_t sndbuf_bytes;   /* a host's port is blocked while more than this waits in it */
  uint64_t wake_ns;        /* from the arrival of a packet to the run of its host's driver */
  uint64_t wake_noise_ns;  /* longest extra delay of a host's wake-up, drawn each time */
  uint64_t sample_ns;      /* between two samples of each flow; 0: none */
  uint32_t samples_planes; /* 1: each sample has the bytes of each plane too */
  uint64_t cc_base_rtt_ns; /* round trip of the empty fabric */
  uint64_t memory_bytes;   /* of the memory region that all hosts share; at least one write */
  uint32_t ecn_last_hop;   /* 1: ports to hosts mark CE too */
  uint32_t one_class;      /* 1: in every queue, control packets wait behind data */
  uint32_t audit; /* 1: check every invariant after every event, with own memory and content for
                     each flow; MRC only; a run costs about five times as much */
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
  uint32_t backups;      /* planes of weight 0: bit p for plane p + 1 */
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
  uint32_t bytes;          /* of each write */
  uint32_t writes;
  uint32_t immediate; /* 1: every write carries an immediate; so too if another flow waits for this
                         one, or `bytes` is 0 */
  uint32_t redundant; /* 1: each packet leaves twice */
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
