/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers: of hops, paths and shards in a fabric, and in headers; which links a fabric has. Planes
   count from 0 here. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sim/topology.h"

/* ---- Pods ---- */

static inline uint32_t mrc_topology_pods(const struct mrc_topology *topology) {
  return topology->pods ? topology->pods : 1;
}
static inline uint32_t mrc_topology_t0s_of_pod(const struct mrc_topology *topology) {
  return topology->t0 / mrc_topology_pods(topology);
}
static inline uint32_t mrc_topology_t1s_of_pod(const struct mrc_topology *topology) {
  return topology->t1 / mrc_topology_pods(topology);
}
static inline uint32_t mrc_topology_pod_of_t0(const struct mrc_topology *topology, uint32_t t0) {
  return topology->t2 ? t0 / mrc_topology_t0s_of_pod(topology) : 0;
}
static inline uint32_t mrc_topology_pod_of_t1(const struct mrc_topology *topology, uint32_t t1) {
  return topology->t2 ? t1 / mrc_topology_t1s_of_pod(topology) : 0;
}
/* The T1 of a pod over which a path goes. */
static inline uint32_t mrc_topology_t1_on(const struct mrc_topology *topology, uint32_t pod,
                                          uint32_t path) {
  const uint32_t each = mrc_topology_t1s_of_pod(topology);
  return pod * each + path % each;
}
/* Whether a T1 and a T2 have a link. */
static inline bool mrc_topology_are_joined(const struct mrc_topology *topology, uint32_t t1,
                                           uint32_t t2) {
  return mrc_topology_t1_on(topology, mrc_topology_pod_of_t1(topology, t1), t2) == t1;
}

/* ---- Hops ---- */

static inline uint32_t mrc_topology_links(const struct mrc_topology *topology,
                                          enum mrc_topology_tier tier) {
  if (tier == MRC_TIER_HOST) return topology->hosts;
  if (tier == MRC_TIER_UPLINK) return topology->t0 * mrc_topology_t1s_of_pod(topology);
  return mrc_topology_pods(topology) * topology->t2;
}

/* Hops of one plane, by number: tier by tier, the upward ones before the downward ones. */
static inline uint32_t mrc_topology_hops_per_plane(const struct mrc_topology *topology) {
  uint32_t links = 0;
  for (int tier = 0; tier < MRC_TIERS; tier++)
    links += mrc_topology_links(topology, (enum mrc_topology_tier)tier);
  return 2 * links;
}
static inline uint32_t mrc_topology_host_up(const struct mrc_topology *topology, uint32_t plane,
                                            uint32_t host) {
  return plane * mrc_topology_hops_per_plane(topology) + host;
}
static inline uint32_t mrc_topology_host_down(const struct mrc_topology *topology, uint32_t plane,
                                              uint32_t host) {
  return mrc_topology_host_up(topology, plane, host) + topology->hosts;
}
/* `t1` is in the pod of the T0. */
static inline uint32_t mrc_topology_t0_up(const struct mrc_topology *topology, uint32_t plane,
                                          uint32_t t0, uint32_t t1) {
  const uint32_t each = mrc_topology_t1s_of_pod(topology);
  return plane * mrc_topology_hops_per_plane(topology) + 2 * topology->hosts + t0 * each +
         t1 % each;
}
static inline uint32_t mrc_topology_t1_down(const struct mrc_topology *topology, uint32_t plane,
                                            uint32_t t0, uint32_t t1) {
  return mrc_topology_t0_up(topology, plane, t0, t1) +
         mrc_topology_links(topology, MRC_TIER_UPLINK);
}
/* The link between a pod and a T2. */
static inline uint32_t mrc_topology_t1_up(const struct mrc_topology *topology, uint32_t plane,
                                          uint32_t pod, uint32_t t2) {
  return plane * mrc_topology_hops_per_plane(topology) + 2 * topology->hosts +
         2 * mrc_topology_links(topology, MRC_TIER_UPLINK) + pod * topology->t2 + t2;
}
static inline uint32_t mrc_topology_t2_down(const struct mrc_topology *topology, uint32_t plane,
                                            uint32_t pod, uint32_t t2) {
  return mrc_topology_t1_up(topology, plane, pod, t2) + mrc_topology_links(topology, MRC_TIER_CORE);
}

/* ---- Hosts and paths ---- */

static inline uint32_t mrc_topology_hosts_per_t0(const struct mrc_topology *topology) {
  return topology->hosts / topology->t0;
}
/* Which T0 serves a host, in every plane. */
static inline uint32_t mrc_topology_t0_of(const struct mrc_topology *topology, uint32_t host) {
  return host / mrc_topology_hosts_per_t0(topology);
}
/* Where a hop is in its plane, and the nodes at the ends of its link. */
struct mrc_topology_place {
  enum mrc_topology_tier tier;
  bool down;
  uint32_t link;  /* within the tier */
  uint32_t first; /* hop of the tier, within the plane */
  uint32_t near;  /* T0 or T1 */
  uint32_t end;   /* host, T1 or T2 */
};
static inline struct mrc_topology_place mrc_topology_place_of(const struct mrc_topology *topology,
                                                              uint32_t hop) {
  struct mrc_topology_place place = {.link = hop % mrc_topology_hops_per_plane(topology)};
  uint32_t links = topology->hosts;
  while (place.link >= 2 * links) {
    place.first += 2 * links;
    place.link -= 2 * links;
    place.tier++;
    links = mrc_topology_links(topology, place.tier);
  }
  place.down = place.link >= links;
  place.link %= links;
  if (place.tier == MRC_TIER_HOST) {
    place.end = place.link;
    place.near = mrc_topology_t0_of(topology, place.end);
  } else if (place.tier == MRC_TIER_UPLINK) {
    const uint32_t each = mrc_topology_t1s_of_pod(topology);
    place.near = place.link / each;
    place.end = mrc_topology_t1_on(topology, mrc_topology_pod_of_t0(topology, place.near),
                                   place.link % each);
  } else {
    place.end = place.link % topology->t2;
    place.near = mrc_topology_t1_on(topology, place.link / topology->t2, place.end);
  }
  return place;
}

/* Paths of one plane between two hosts. */
static inline uint32_t mrc_topology_n_paths(const struct mrc_topology *topology, uint32_t a,
                                            uint32_t b) {
  const uint32_t from = mrc_topology_t0_of(topology, a), to = mrc_topology_t0_of(topology, b);
  if (from == to) return 1;
  const bool one_pod =
      mrc_topology_pod_of_t0(topology, from) == mrc_topology_pod_of_t0(topology, to);
  return one_pod ? mrc_topology_t1s_of_pod(topology) : topology->t2;
}

#define MRC_TOPOLOGY_INNER_HOPS 4 /* most between two T0s */

/* The hops between two T0s on a path, in their order; returns how many. */
static inline uint32_t mrc_topology_inner_hops(const struct mrc_topology *topology, uint32_t plane,
                                               uint32_t from_t0, uint32_t to_t0, uint32_t path,
                                               uint32_t hops[MRC_TOPOLOGY_INNER_HOPS]) {
  if (from_t0 == to_t0) return 0;
  const uint32_t from = mrc_topology_pod_of_t0(topology, from_t0);
  const uint32_t to = mrc_topology_pod_of_t0(topology, to_t0);
  uint32_t n = 0;
  hops[n++] =
      mrc_topology_t0_up(topology, plane, from_t0, mrc_topology_t1_on(topology, from, path));
  if (from != to) {
    hops[n++] = mrc_topology_t1_up(topology, plane, from, path);
    hops[n++] = mrc_topology_t2_down(topology, plane, to, path);
  }
  hops[n++] = mrc_topology_t1_down(topology, plane, to_t0, mrc_topology_t1_on(topology, to, path));
  return n;
}

/* ---- Shards ---- */

/* The least delay of a link that leads from shard to shard. */
static inline uint64_t mrc_topology_inner_delay_ns(const struct mrc_topology *topology) {
  const bool core = topology->t2 && topology->core_delay_ns < topology->fabric_delay_ns;
  return core ? topology->core_delay_ns : topology->fabric_delay_ns;
}
/* How many shards a fabric has, of which `wanted` are asked for; 0: one for about 1,024 hosts. Each
   has a run of T0s with their hosts, in all planes, and a share of the T1s and T2s. */
static inline uint32_t mrc_topology_shards(const struct mrc_topology *topology, uint32_t wanted) {
  const uint32_t hosts_of_one = 1024;
  if (wanted == 0) wanted = topology->hosts / hosts_of_one;
  if (wanted == 0 || mrc_topology_inner_delay_ns(topology) == 0) return 1;
  return wanted < topology->t0 ? wanted : topology->t0;
}
static inline uint32_t mrc_topology_shard_of_t0(const struct mrc_topology *topology,
                                                uint32_t shards, uint32_t t0) {
  return t0 * shards / topology->t0;
}
static inline uint32_t mrc_topology_shard_of_host(const struct mrc_topology *topology,
                                                  uint32_t shards, uint32_t host) {
  return mrc_topology_shard_of_t0(topology, shards, mrc_topology_t0_of(topology, host));
}

/* ---- Headers ---- */

/* Big-endian numbers of n bytes in headers. */
static inline void mrc_put_be(uint8_t *bytes, int n, uint64_t value) {
  for (int i = n; i-- > 0; value >>= 8)
    bytes[i] = (uint8_t)value;
}
static inline uint64_t mrc_get_be(const uint8_t *bytes, int n) {
  uint64_t value = 0;
  for (int i = 0; i < n; i++)
    value = value << 8 | bytes[i];
  return value;
}
static inline uint32_t mrc_get_u24(const uint8_t *bytes) { return (uint32_t)mrc_get_be(bytes, 3); }
/* The source port of packets in a plane. */
static inline uint16_t mrc_sim_source_port(uint32_t plane) { return (uint16_t)(49152 + plane); }

/* ---- Links ---- */

/* Whether a fabric can be built. */
bool mrc_topology_is_sound(const struct mrc_topology *topology);
/* Whether these nodes have a link: `near` is a T0 or T1, `end` the host, T1 or T2 at its other
   end. */
bool mrc_topology_has_link(const struct mrc_topology *topology, enum mrc_topology_tier tier,
                           uint32_t near, uint32_t end);
/* The number of one direction of such a link, in a plane from 0; or -EINVAL. */
int mrc_topology_hop(const struct mrc_topology *topology, enum mrc_topology_tier tier, bool down,
                     uint32_t plane, uint32_t near, uint32_t end);
