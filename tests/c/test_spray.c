/* SPDX-License-Identifier: Apache-2.0 */
#include "core/send.h"

#include "core/engine.h"
#include "pair/connect.h"
#include "scenario.h"

/* Only eligible planes share equally, and a plane with a full socket is not one: it starts level
   when it comes back. */
TEST(test_level__only_of_planes_that_may_be_chosen) {
  struct mrc_pair *p = open_pair(.planes = 3);
  const int end = open_qp(p, .plane_shares = MRC_SHARES_EQUAL);
  mrc_engine *engine = p->hosts[0].engine;
  struct mrc_qp *qp = inside(p, end);
  start_at_plane_1(p, end);
  mrc_engine_port_blocked(engine, 2, true, p->now_ns);
  mrc_engine_port_blocked(engine, 3, true, p->now_ns);
  mrc_spray_level(&engine->services, qp, 3);
  CHECK_EQ(qp->choice.sharing, 3); /* the second one's port has just become full */
  mrc_spray_give(qp, 0, 5000);
  mrc_spray_give(qp, 1, 4000);
  mrc_spray_level(&engine->services, qp, 7);
  CHECK_EQ(qp->choice.sharing, 7);
  CHECK_EQ(qp->planes[2].share_bytes, 4000);
  mrc_engine_port_blocked(engine, 2, false, p->now_ns);
  mrc_engine_port_blocked(engine, 3, false, p->now_ns);
  mrc_pair_destroy(p);
}

/* The first packets of many QPs do not meet on one plane. */
TEST(test_start__of_many_qps_is_spread) {
  struct mrc_pair *p = open_pair(.planes = 4);
  struct mrc_qp *qp = inside(p, open_qp(p));
  const struct mrc_services *services = &p->hosts[0].engine->services;
  const uint32_t qpn = qp->qpn;
  int first[4] = {0};
  for (qp->qpn = 0; qp->qpn < 128; qp->qpn += 2) {
    mrc_spray_start(qp);
    uint32_t given = 0;
    for (int i = 0; i < 4; i++) {
      const int plane = mrc_spray_choose(services, qp, 0xF, 64);
      CHECK(plane >= 0 && (given >> plane & 1) == 0);
      first[plane] += i == 0;
      given |= 1u << plane;
      mrc_spray_give(qp, (uint32_t)plane, 64);
    }
  }
  for (int plane = 0; plane < 4; plane++)
    CHECK(first[plane] >= 8 && first[plane] <= 24); /* of 64 */
  qp->qpn = qpn;
  mrc_pair_destroy(p);
}

/* The remaining window is the smaller of the peer's grant and the room in the send window. */
TEST(test_window_left__the_smaller_of_both) {
  struct mrc_requester req = {.peer_mpr = 48, .peer_next_psn = 0};
  CHECK_EQ(mrc_txwin_init(&req.win, 64, 1), 0);
  mrc_txwin_start(&req.win, 0);
  CHECK_EQ(mrc_requester_window_left(&req), 48);
  for (int i = 0; i < 10; i++)
    mrc_txwin_open(&req.win, 0, 1);
  CHECK_EQ(mrc_requester_window_left(&req), 38);
  req.peer_mpr = 200;
  CHECK_EQ(mrc_requester_window_left(&req), 54);
  req.peer_mpr = 4; /* it granted more before */
  CHECK_EQ(mrc_requester_window_left(&req), 0);
  mrc_txwin_free(&req.win);
}
