/* SPDX-License-Identifier: Apache-2.0 */
/* A small fabric for tests: four hosts under two T0s, two T1s, one plane of 100 Gbit/s. */
#pragma once

#include "check.h"
#include "mrc.h"
#include "sim/sim.h"

#define US 1000ull
#define MS 1000000ull
#define GBIT 1000000000ull

/* A field that a test names overrides the default here. */
#pragma GCC diagnostic ignored "-Woverride-init"
#define open_sim(...)                                                             \
  mrc_sim_create(&(struct mrc_sim_config){.seed = 1,                              \
                                          .topology.hosts = 4,                    \
                                          .topology.planes = 1,                   \
                                          .topology.t0 = 2,                       \
                                          .topology.t1 = 2,                       \
                                          .topology.host_rate_bps = 100 * GBIT,   \
                                          .topology.fabric_rate_bps = 100 * GBIT, \
                                          .topology.host_delay_ns = 500,          \
                                          .topology.fabric_delay_ns = 500,        \
                                          .topology.buffer_bytes = 1000000,       \
                                          .topology.ecn_low_bytes = 100000,       \
                                          .topology.ecn_high_bytes = 400000,      \
                                          .sndbuf_bytes = 65536,                  \
                                          .wake_ns = 1000,                        \
                                          .memory_bytes = 1 << 20,                \
                                          .topology.trims = 1,                    \
                                          .qps_per_host = 16,                     \
                                          .path_mtu = 4096,                       \
                                          .mpr = 1024,                            \
                                          .spray = 1,                             \
                                          .timeout = 10,                          \
                                          .retry_linear = 7,                      \
                                          .retry_exp = 7,                         \
                                          .sack_delay_ns = 10000,                 \
                                          __VA_ARGS__})
#define add_flow(sim, ...)                \
  mrc_sim_add_flow(                       \
      sim, &(struct mrc_sim_flow_config){ \
               .from = 0, .to = 2, .bytes = 1 << 18, .writes = 1, .depth = 16, __VA_ARGS__})
#define add_fault(sim, ...) \
  mrc_sim_add_fault(sim, &(struct mrc_sim_fault){.until_ns = UINT64_MAX, .plane = 1, __VA_ARGS__})

/* A simulation that ends with the block that declares it. */
#define SIM FREED_BY(destroy_sim) mrc_sim *
__attribute__((unused)) static void destroy_sim(mrc_sim **sim) { mrc_sim_destroy(*sim); }

__attribute__((unused)) static struct mrc_sim_stats stats_of(const mrc_sim *sim) {
  struct mrc_sim_stats stats;
  mrc_sim_stats(sim, &stats);
  return stats;
}

__attribute__((unused)) static struct mrc_sim_flow_info info_of(const mrc_sim *sim, uint32_t flow) {
  struct mrc_sim_flow_info info = {0};
  CHECK_EQ(mrc_sim_flow(sim, flow, &info), 0);
  return info;
}
