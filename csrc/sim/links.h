/* SPDX-License-Identifier: Apache-2.0 */
/* Which links a fabric has, and the numbers of their two directions. */
#pragma once

#include "sim/topology.h"

/* Whether a fabric can be built. */
bool mrc_topology_is_sound(const struct mrc_topology *topology);
/* Whether these nodes have a link: `near` is a T0 or T1, `end` the host, T1 or T2 at its other
   end. */
bool mrc_topology_has_link(const struct mrc_topology *topology, enum mrc_topology_tier tier,
                           uint32_t near, uint32_t end);
/* The number of one direction of such a link, in a plane from 0; or -EINVAL. */
int mrc_topology_hop(const struct mrc_topology *topology, enum mrc_topology_tier tier, bool down,
                     uint32_t plane, uint32_t near, uint32_t end);
