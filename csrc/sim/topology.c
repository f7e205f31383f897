/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/topology.h"

uint32_t mrc_topology_host_up(const struct mrc_sim_config *config, uint32_t plane, uint32_t host) {
  return plane * mrc_topology_hops_per_plane(config) + host;
}

uint32_t mrc_topology_host_down(const struct mrc_sim_config *config, uint32_t plane,
                                uint32_t host) {
  return mrc_topology_host_up(config, plane, host) + config->hosts;
}

uint32_t mrc_topology_t0_up(const struct mrc_sim_config *config, uint32_t plane, uint32_t t0,
                            uint32_t t1) {
  return plane * mrc_topology_hops_per_plane(config) + 2 * config->hosts + t0 * config->t1 + t1;
}

uint32_t mrc_topology_t1_down(const struct mrc_sim_config *config, uint32_t plane, uint32_t t0,
                              uint32_t t1) {
  return mrc_topology_t0_up(config, plane, t0, t1) + config->t0 * config->t1;
}
