/* SPDX-License-Identifier: Apache-2.0 */
#include "plane.h"

#define GUARD_HALF_LIFE_NS 5000000000ull

void mrc_plane_init(struct mrc_plane *plane) {
  mrc_probation_init(&plane->probation);
  plane->reverse_ev = MRC_EV_NONE;
}

void mrc_plane_suspend(struct mrc_plane *plane, uint32_t noise_ns, uint64_t now_ns) {
  plane->suspended = true;
  mrc_probation_on_failure(&plane->probation, noise_ns, now_ns);
}

void mrc_plane_resume(struct mrc_plane *plane) {
  plane->suspended = false;
  plane->strikes = 0;
  plane->probation.next_ns = MRC_NEVER;
}

uint64_t mrc_guard_ns(const struct mrc_guard *guard, uint64_t now_ns) {
  const uint64_t halvings = (now_ns - guard->since_ns) / GUARD_HALF_LIFE_NS;
  return halvings < 64 ? guard->ns >> halvings : 0;
}

void mrc_guard_grow(struct mrc_guard *guard, uint64_t least_ns, uint64_t most_ns, uint64_t now_ns) {
  const uint64_t wider_ns = mrc_max_u64(2 * mrc_guard_ns(guard, now_ns), least_ns);
  *guard = (struct mrc_guard){.ns = mrc_min_u64(wider_ns, most_ns), .since_ns = now_ns};
}
