/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of the fabric as numbers: which hop joins which nodes, which T0 serves a host. Planes
   count from 0 here. */
#ifndef MRC_SIM_TOPOLOGY_H
#define MRC_SIM_TOPOLOGY_H

#include <stdbool.h>

#include "sim/scenario.h"

/* Hops of one plane, by number: hosts to T0s, T0s to hosts, T0s to T1s, T1s to T0s. */
static inline uint32_t mrc_topology_hops_per_plane(const struct mrc_sim_config *config) {
  return 2 * config->hosts + 2 * config->t0 * config->t1;
}
static inline uint32_t mrc_topology_host_up(const struct mrc_sim_config *config, uint32_t plane,
                                            uint32_t host) {
  return plane * mrc_topology_hops_per_plane(config) + host;
}
static inline uint32_t mrc_topology_host_down(const struct mrc_sim_config *config, uint32_t plane,
                                              uint32_t host) {
  return mrc_topology_host_up(config, plane, host) + config->hosts;
}
static inline uint32_t mrc_topology_t0_up(const struct mrc_sim_config *config, uint32_t plane,
                                          uint32_t t0, uint32_t t1) {
  return plane * mrc_topology_hops_per_plane(config) + 2 * config->hosts + t0 * config->t1 + t1;
}
static inline uint32_t mrc_topology_t1_down(const struct mrc_sim_config *config, uint32_t plane,
                                            uint32_t t0, uint32_t t1) {
  return mrc_topology_t0_up(config, plane, t0, t1) + config->t0 * config->t1;
}

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
  return mrc_topology_t0_of(config, a) == mrc_topology_t0_of(config, b) ? 1 : config->t1;
}
/* The shards that the configuration asks for: each has a run of T0s with their hosts, in all
   planes, and a share of the T1s. */
static inline uint32_t mrc_topology_shards(const struct mrc_sim_config *config) {
  const uint32_t hosts_of_one = 1024;
  const uint32_t wanted = config->shards ? config->shards : config->hosts / hosts_of_one;
  if (wanted == 0 || config->fabric_delay_ns == 0) return 1;
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
static inline uint32_t mrc_topology_shard_of_host(const struct mrc_sim_config *config,
                                                  uint32_t shards, uint32_t host) {
  return mrc_topology_shard_of_t0(config, shards, mrc_topology_t0_of(config, host));
}

/* Whether a fabric can be built from the configuration. */
static inline bool mrc_topology_is_sound(const struct mrc_sim_config *config) {
  return config->hosts >= 2 && config->hosts <= MRC_SIM_MAX_HOSTS && config->planes >= 1 &&
         config->planes <= MRC_SIM_MAX_PLANES && config->t0 >= 1 && config->t0 <= MRC_SIM_MAX_T0 &&
         config->hosts % config->t0 == 0 &&
         mrc_topology_hosts_per_t0(config) <= MRC_SIM_MAX_PER_T0 && config->t1 >= 1 &&
         config->t1 <= MRC_SIM_MAX_T1 && config->host_rate_bps > 0 && config->fabric_rate_bps > 0 &&
         (config->ecn_high_bytes == 0 || config->ecn_high_bytes > config->ecn_low_bytes);
}

#endif
