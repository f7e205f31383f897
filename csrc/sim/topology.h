/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of the fabric as numbers: which hop joins which nodes, which T0 serves a host. Planes
   count from 0 here. */
#pragma once

#include <stdbool.h>

#include "sim/scenario.h"

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
