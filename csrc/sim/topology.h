/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a fabric, simulated or emulated. Python sees the part between the two cdef markers.

   Every plane has its own T0s and T1s; each T0 has an uplink to every T1 and serves the same
   number of hosts. Hosts, T0s, T1s, paths and flows are numbered from 0, planes from 1. Path n
   of a plane goes over T1 n; two hosts at the same T0 have only path 0, over this T0.

   With T2s, a plane has three tiers. Its T0s and T1s are divided into pods, in order, and a T0 has
   an uplink to every T1 of its pod. T2 n has one link to each pod: to the T1 with the place n
   modulo the number of T1s in a pod. Path n between two pods goes over T2 n, and so over the T1 at
   this place in both; path n within a pod goes over the T1 at place n. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* cdef begin */

#define MRC_SIM_MAX_HOSTS 131072
#define MRC_SIM_MAX_PLANES 32
#define MRC_SIM_MAX_T0 4096     /* of a plane */
#define MRC_SIM_MAX_PER_T0 8192 /* hosts: the number of uSIDs for the ports of a T0 */
#define MRC_SIM_MAX_T1 256      /* above one T0: a path number fills a byte of the EV */
#define MRC_SIM_MAX_ALL_T1 4096 /* of a plane with T2s */
#define MRC_SIM_MAX_T2 4096     /* of a plane */

/* A fabric: every plane is a Clos network of its own. Rates and delays are of one direction of a
   link. */
struct mrc_topology {
  uint32_t hosts; /* a multiple of t0 */
  uint32_t planes;
  uint32_t t0;            /* of each plane */
  uint32_t t1;            /* of each plane */
  uint32_t pods;          /* of each plane; both t0 and t1 are multiples of it; 0: one */
  uint32_t t2;            /* of each plane, a multiple of the T1s in a pod; 0: two tiers, one pod */
  uint64_t host_rate_bps; /* of a link between host and T0 */
  uint64_t fabric_rate_bps; /* of a link between T0 and T1 */
  uint64_t core_rate_bps;   /* of a link between T1 and T2 */
  uint64_t host_delay_ns;
  uint64_t fabric_delay_ns;
  uint64_t core_delay_ns;
  uint64_t jitter_ns;      /* random extra delay of every link up to this; order is kept */
  uint64_t buffer_bytes;   /* of each class of a switch port; 0: no limit */
  uint64_t ecn_low_bytes;  /* the ramp of ECN marking, on the ports of switches */
  uint64_t ecn_high_bytes; /* 0: no marking */
  uint32_t trims;          /* 1: a full buffer trims writes to their header */
};

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

/* cdef end */

/* The links of a plane by tier; those of a tier are numbered from 0. */
enum mrc_topology_tier {
  MRC_TIER_HOST,   /* by host */
  MRC_TIER_UPLINK, /* between T0s and T1s: T0 by T0 */
  MRC_TIER_CORE,   /* between T1s and T2s: pod by pod, each in the order of T2s */
  MRC_TIERS
};
