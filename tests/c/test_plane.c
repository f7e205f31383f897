/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paths.h"

#include "check.h"

/* Planes 0 and 1 have one active EV each; plane 2 has none. */
struct three {
  struct mrc_plane planes[3];
  struct mrc_evset set;
  struct mrc_ports ports;
};

static struct three *make_three(void) {
  static struct three three;
  static struct mrc_ev_plane evs[3];
  evs[0].n_active = evs[1].n_active = 1;
  evs[2].n_active = 0;
  three = (struct three){.set = {.planes = evs, .plane_mask = 7}, .ports = {.up = 7}};
  for (int i = 0; i < 3; i++)
    mrc_plane_init(&three.planes[i]);
  return &three;
}

static uint32_t eligible(const struct three *three) {
  return mrc_planes_eligible(three->planes, &three->set, &three->ports);
}

TEST(test_eligible__suspended_planes_only_when_no_other_is_left) {
  struct three *three = make_three();
  CHECK_EQ(eligible(three), 3);
  three->planes[0].suspended = true;
  CHECK_EQ(eligible(three), 2);
  three->planes[1].suspended = three->planes[2].suspended = true;
  CHECK_EQ(eligible(three), 3); /* one EV is enough, none is not */
  three->planes[1].peer_down = true;
  CHECK_EQ(eligible(three), 1);
  three->ports.up = 6;
  CHECK_EQ(eligible(three), 0);
}
