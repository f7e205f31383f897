/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a simulation. Each part uses only the layers below it; see README.md. */
#pragma once

#include "sim/engines.h"
#include "sim/gbn_host.h"
#include "sim/qps.h"
#include "sim/tcp_host.h"
#include "sim/traffic.h"

/* The parts that run events: one set for each shard, which share hops, hosts, engines and flows;
   and one for what concerns all of them, before the run and between its windows. */
struct mrc_sim_parts {
  struct mrc_world world;
  struct mrc_sim_record record;
  struct mrc_fabric fabric;
  struct mrc_sim_hosts hosts;
  struct mrc_engines engines;
  struct mrc_gbn_hosts gbn;
  struct mrc_tcp_hosts tcp;
  struct mrc_sim_traffic traffic;
};

struct mrc_sim {
  struct mrc_sim_parts whole;
  struct mrc_sim_parts **shards; /* 0: the run has not begun */
  uint32_t n_shards;
  struct mrc_heap events; /* of the whole: faults, samples, paths that are allowed */
  uint64_t lookahead_ns;  /* no packet goes from shard to shard in less time */
  struct mrc_sim_flows flows;
  struct mrc_fabric_watch watch;
  struct mrc_sim_proof proof;
  struct mrc_record_file file;
  struct mrc_sim_fault *faults;
  uint32_t n_faults;
  struct mrc_sim_memory memory;
  bool started;
};

/* Gives each part pointers to the parts below it. */
void mrc_sim_join(struct mrc_sim *sim, struct mrc_sim_parts *parts);
/* Processes the next event of these parts; there must be one. */
void mrc_sim_step(struct mrc_sim_parts *parts);
