/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/numbers.h"

#include <errno.h>

static bool are_pods_sound(const struct mrc_topology *topology) {
  const uint32_t pods = mrc_topology_pods(topology);
  if (topology->t2 == 0) return pods == 1 && topology->t1 <= MRC_SIM_MAX_T1;
  return pods >= 2 && topology->t0 % pods == 0 && topology->t1 % pods == 0 &&
         topology->t1 <= MRC_SIM_MAX_ALL_T1 && topology->t1 / pods <= MRC_SIM_MAX_T1 &&
         topology->t2 <= MRC_SIM_MAX_T2 && topology->t2 % (topology->t1 / pods) == 0 &&
         topology->core_rate_bps > 0;
}

bool mrc_topology_is_sound(const struct mrc_topology *topology) {
  return topology->hosts >= 2 && topology->hosts <= MRC_SIM_MAX_HOSTS && topology->planes >= 1 &&
         topology->planes <= MRC_SIM_MAX_PLANES && topology->t0 >= 1 &&
         topology->t0 <= MRC_SIM_MAX_T0 && topology->hosts % topology->t0 == 0 &&
         mrc_topology_hosts_per_t0(topology) <= MRC_SIM_MAX_PER_T0 && topology->t1 >= 1 &&
         are_pods_sound(topology) && topology->host_rate_bps > 0 && topology->fabric_rate_bps > 0 &&
         (topology->ecn_high_bytes == 0 || topology->ecn_high_bytes > topology->ecn_low_bytes);
}

bool mrc_topology_has_link(const struct mrc_topology *topology, enum mrc_topology_tier tier,
                           uint32_t near, uint32_t end) {
  switch (tier) {
    case MRC_TIER_HOST:
      return end < topology->hosts && mrc_topology_t0_of(topology, end) == near;
    case MRC_TIER_UPLINK:
      return near < topology->t0 && end < topology->t1 &&
             mrc_topology_pod_of_t0(topology, near) == mrc_topology_pod_of_t1(topology, end);
    default:
      return near < topology->t1 && end < topology->t2 &&
             mrc_topology_are_joined(topology, near, end);
  }
}

int mrc_topology_hop(const struct mrc_topology *topology, enum mrc_topology_tier tier, bool down,
                     uint32_t plane, uint32_t near, uint32_t end) {
  if (plane >= topology->planes || tier >= MRC_TIERS ||
      !mrc_topology_has_link(topology, tier, near, end))
    return -EINVAL;
  uint32_t up = mrc_topology_host_up(topology, plane, end);
  if (tier == MRC_TIER_UPLINK) up = mrc_topology_t0_up(topology, plane, near, end);
  if (tier == MRC_TIER_CORE)
    up = mrc_topology_t1_up(topology, plane, mrc_topology_pod_of_t1(topology, near), end);
  return (int)(down ? up + mrc_topology_links(topology, tier) : up);
}
