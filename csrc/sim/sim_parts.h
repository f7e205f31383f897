/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a simulation. Each part uses only the layers below it; see README.md. */
#ifndef MRC_SIM_SIM_PARTS_H
#define MRC_SIM_SIM_PARTS_H

#include "sim/engines.h"
#include "sim/gbn_host.h"
#include "sim/qps.h"
#include "sim/tcp_host.h"
#include "sim/traffic.h"

struct mrc_sim {
  struct mrc_world world;
  struct mrc_sim_record record;
  struct mrc_fabric fabric;
  struct mrc_sim_flows flows;
  struct mrc_fabric_watch watch;
  struct mrc_sim_hosts hosts;
  struct mrc_engines engines;
  struct mrc_gbn_hosts gbn;
  struct mrc_tcp_hosts tcp;
  struct mrc_sim_proof proof;
  struct mrc_sim_traffic traffic;
  struct mrc_sim_fault *faults;
  uint32_t n_faults;
  uint8_t *memory; /* shared by all hosts */
  bool started;
};

#endif
