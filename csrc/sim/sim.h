/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator: engines on the hosts of a multi-plane Clos network, in virtual time: its input,
   its output and its calls. One seed decides everything. Python sees the part between the two cdef
   markers.

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

typedef struct mrc_sim mrc_sim;

/* Why no simulation has this configuration, in one sentence; 0: it can. */
const char *mrc_sim_refusal(const struct mrc_sim_config *config);
/* Returns NULL for a configuration that is refused. */
mrc_sim *mrc_sim_create(const struct mrc_sim_config *config);
void mrc_sim_destroy(mrc_sim *sim);
/* Before the first run. The number of the flow, or -EINVAL. */
int mrc_sim_add_flow(mrc_sim *sim, const struct mrc_sim_flow_config *config);
/* Before the first run. 0 or -EINVAL. */
int mrc_sim_add_fault(mrc_sim *sim, const struct mrc_sim_fault *fault);
/* Before the first run: sets the rate, delay, loss or MTU of a target's links for the whole run, in
   the form of a fault of that kind. 0 or -EINVAL. */
int mrc_sim_set_links(mrc_sim *sim, const struct mrc_sim_fault *change);
/* Before the first flow: removes the links of a target, in both directions. 0 or -EINVAL. */
int mrc_sim_remove_links(mrc_sim *sim, const struct mrc_sim_fault *target);
/* Writes a line for every packet sent, lost, trimmed or delivered from now on. 0 or -errno. */
int mrc_sim_trace_to(mrc_sim *sim, const char *path);
/* Closes that file; 0, or the -errno with which it is not whole. */
int mrc_sim_end_trace(mrc_sim *sim);
/* Runs until `until_ns` (returns 0) or until every write is done (returns 1). */
int mrc_sim_run(mrc_sim *sim, uint64_t until_ns);

void mrc_sim_stats(const mrc_sim *sim, struct mrc_sim_stats *stats);
/* Payload that has arrived in all flows but those of TCP. */
uint64_t mrc_sim_received_bytes(const mrc_sim *sim);
/* 0 or -EINVAL. */
int mrc_sim_flow(const mrc_sim *sim, uint32_t flow, struct mrc_sim_flow_info *info);
/* The port of a T0 towards a host; 0 or -EINVAL. */
int mrc_sim_last_hop(const mrc_sim *sim, uint32_t host, uint32_t plane,
                     struct mrc_sim_port_info *info);
/* The ports of the links between T0s and T1s of a plane that exist: up, T0 by T0, then down. Copies
   up to `capacity` of them; returns how many there are. */
int mrc_sim_inner_ports(const mrc_sim *sim, uint32_t plane, struct mrc_sim_port_info *ports,
                        int capacity);
/* Each returns the number of items, and copies up to `capacity` of them, from the first on. */
int mrc_sim_samples(const mrc_sim *sim, struct mrc_sim_sample *samples, int capacity);
/* The payload received in a plane at the time of each sample, when samples_planes is set. */
int mrc_sim_plane_samples(const mrc_sim *sim, uint32_t plane, uint64_t *bytes, int capacity);
/* The payload received in a plane so far; 0 if the plane or flow does not exist. */
uint64_t mrc_sim_plane_bytes(const mrc_sim *sim, uint32_t flow, uint32_t plane);
int mrc_sim_events(const mrc_sim *sim, struct mrc_sim_event *events, int capacity);
int mrc_sim_messages(const mrc_sim *sim, struct mrc_sim_message *messages, int capacity);

/* cdef end */
