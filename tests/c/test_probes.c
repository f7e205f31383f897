/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of endpoint requests, without an engine. */
#include "core/services.h"

#include "check.h"

static struct mrc_probes *open_probes(void) {
  static struct mrc_probes probes;
  static struct mrc_probe_room room;
  mrc_probes_init(&probes, &room, 1);
  return &probes;
}

static const struct mrc_ev_probe *start(struct mrc_probes *probes, struct mrc_probe_user *user,
                                        enum mrc_ev_probe_purpose purpose) {
  return mrc_probes_start(probes, user, &(struct mrc_ev_probe){.purpose = (uint8_t)purpose});
}

/* QPs that use all slots allowed to them leave exactly 64 to port status, which may use every slot.
 */
TEST(test_start__keeps_slots_for_port_status) {
  enum { KEPT = 64 };
  static struct mrc_probe_user users[MRC_MAX_EV_PROBES], status;
  struct mrc_probes *probes = open_probes();
  for (int i = 0; i < MRC_MAX_EV_PROBES - KEPT; i++)
    CHECK(start(probes, &users[i], MRC_EV_PROBE_EV) != NULL);
  CHECK_EQ(probes->n, MRC_MAX_EV_PROBES - KEPT);
  CHECK(start(probes, &users[MRC_MAX_EV_PROBES - KEPT], MRC_EV_PROBE_EV) == NULL);
  CHECK(start(probes, &users[0], MRC_EV_PROBE_COMMAND) == NULL);
  for (int i = 0; i < KEPT; i++)
    CHECK(start(probes, &status, MRC_EV_PROBE_PORT_STATUS) != NULL);
  CHECK(start(probes, &status, MRC_EV_PROBE_PORT_STATUS) == NULL);
  CHECK_EQ(probes->n, MRC_MAX_EV_PROBES);
}

/* Requests leave in the order in which they came; requests that could not leave go to the end. */
TEST(test_queue__first_come_first_served) {
  static struct mrc_probe_user user;
  struct mrc_probes *probes = open_probes();
  const struct mrc_ev_probe *first = start(probes, &user, MRC_EV_PROBE_PORT_STATUS);
  const struct mrc_ev_probe *second = start(probes, &user, MRC_EV_PROBE_PORT_STATUS);
  CHECK(first->id != second->id);
  CHECK_PTR_EQ(mrc_probes_find(probes, first->id), first);
  CHECK_PTR_EQ(mrc_probes_dequeue(probes), first);
  mrc_probes_enqueue(probes, mrc_probes_find(probes, first->id));
  CHECK_PTR_EQ(mrc_probes_dequeue(probes), second);
  CHECK_PTR_EQ(mrc_probes_dequeue(probes), first);
  CHECK_EQ(probes->n_unsent, 0);
  mrc_probes_end(probes, mrc_probes_find(probes, first->id));
  CHECK(mrc_probes_find(probes, first->id) == NULL);
  CHECK_EQ(probes->n, 1);
}

/* When a QP ends, its queued and sent requests are dropped, and no others. */
TEST(test_drop__forgets_those_of_one_user) {
  static struct mrc_probe_user gone, stays;
  struct mrc_probes *probes = open_probes();
  for (int i = 0; i < 3; i++) {
    start(probes, &gone, MRC_EV_PROBE_COMMAND);
    start(probes, &stays, MRC_EV_PROBE_COMMAND);
  }
  CHECK_EQ(gone.n_commanded, 3);
  mrc_probes_dequeue(probes);
  CHECK_EQ(mrc_probes_drop(probes, &gone), 3);
  CHECK_EQ(gone.n_commanded, 0);
  CHECK_EQ(probes->n, 3);
  CHECK_EQ(probes->n_commanded, 3);
  CHECK_EQ(probes->n_unsent, 3);
  for (int i = 0; i < 3; i++)
    CHECK_PTR_EQ(mrc_probes_dequeue(probes)->user, &stays);
}
