/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated fabric: the simulator's switches, queues and faults, in real time, between the
   interfaces of real hosts. Python sees the part between the two cdef markers.

   It runs in a network namespace in which each host has an interface for each plane. One thread
   moves packets (mrc_emu_run); other threads may query and change the fabric at the same time.
   Hosts and switches are numbered from 0, planes from 1; every T0 serves the same number of
   hosts. */
#pragma once

#include <stdint.h>

#include "sim/topology.h"

/* cdef begin */

/* By tier, the upward direction first. */
enum mrc_emu_hop_kind {
  MRC_EMU_HOST_UP,   /* host to its T0 */
  MRC_EMU_HOST_DOWN, /* the other direction */
  MRC_EMU_T0_UP,     /* T0 to T1 */
  MRC_EMU_T1_DOWN,   /* the other direction */
  MRC_EMU_T1_UP,     /* T1 to T2 */
  MRC_EMU_T2_DOWN    /* the other direction */
};

struct mrc_emu_config {
  uint64_t seed; /* of all random numbers */
  struct mrc_topology topology;
  uint32_t block; /* first 16 bits of every locator block; the plane is in the next 16 */
  uint32_t mtu;
};

struct mrc_emu_fault {
  uint64_t a;
  uint64_t b;
  uint32_t kind; /* enum mrc_sim_fault_kind */
};

/* Counts since the start. */
struct mrc_emu_stats {
  uint64_t received; /* packets from hosts */
  uint64_t sent;     /* to hosts */
  uint64_t lost;     /* by faults */
  uint64_t dropped;  /* by full buffers */
  uint64_t trimmed;
  uint64_t marked;
  uint64_t unroutable; /* no switch has a route, or the hop limit ran out */
  uint64_t refused;    /* the host's interface was down */
  uint64_t offloaded;  /* dropped: the host offloaded segmentation or an unsupported checksum */
  uint64_t overloaded; /* dropped by the emulator or the kernel, not by the scenario */
  uint64_t late[64];   /* packets sent 2^(n-1) .. 2^n ns after they were due */
};

struct mrc_emu_hop {
  uint64_t packets; /* sent, or lost by a fault */
  uint64_t bytes;   /* on the wire */
  uint64_t busy_ns;
  uint64_t queue_bytes; /* now */
  uint64_t peak_bytes;
  uint64_t lost;
  uint64_t dropped;
  uint64_t trimmed;
  uint64_t marked;
};

typedef struct mrc_emu mrc_emu;

/* `ifindices` has the interface of each host in each plane, ordered by plane; 0: none. 0 or -errno;
   -EINVAL: the configuration is invalid. */
int mrc_emu_create(const struct mrc_emu_config *config, const int *ifindices, mrc_emu **out);
void mrc_emu_destroy(mrc_emu *emu);
/* Moves packets until mrc_emu_stop. */
void mrc_emu_run(mrc_emu *emu);
void mrc_emu_stop(mrc_emu *emu);

/* The number of the hop between a T0 and a host or a T1 (`end`), or between a T1 and a T2 (`end`);
   or -EINVAL. */
int mrc_emu_hop_number(mrc_emu *emu, int kind, int plane, int near, int end);
/* Before the run: sets the properties of a hop. It loses `loss_ppm` of the packets by chance, and
   IPv6 packets larger than `mtu`. 0 or -EINVAL. */
int mrc_emu_set_link(mrc_emu *emu, int hop, uint64_t rate_bps, uint64_t delay_ns, uint32_t loss_ppm,
                     uint32_t mtu);
/* Before the run: the fabric does not have this hop. 0 or -EINVAL. */
int mrc_emu_remove_hop(mrc_emu *emu, int hop);
/* Replaces the faults of the hop by these. 0 or -EINVAL. */
int mrc_emu_set_faults(mrc_emu *emu, int hop, const struct mrc_emu_fault *faults, int n);
void mrc_emu_ask(mrc_emu *emu, struct mrc_emu_stats *stats);
/* 0 or -EINVAL. */
int mrc_emu_ask_hop(mrc_emu *emu, int hop, struct mrc_emu_hop *info);

/* cdef end */
