/* SPDX-License-Identifier: Apache-2.0 */
/* EVs and planes that join a QP which is set up, while data is in flight on the others. */
#include "core/calls.h"

#include <errno.h>

#include "pair/connect.h"
#include "scenario.h"

/* Whether mrc_qp_set_evs refuses these EVs, and all EVs stay as they were. */
static int join_evs(struct mrc_pair *p, int end, struct mrc_ev_attr *evs, int n) {
  static struct mrc_ev_info before[MRC_MAX_EVS], after[MRC_MAX_EVS];
  mrc_engine *engine = p->hosts[0].engine;
  const uint32_t qpn = p->ends[end]->qpn, mask = inside(p, end)->evset.plane_mask;
  const int n_before = mrc_qp_query_evs(engine, qpn, before, MRC_MAX_EVS);
  const int error = mrc_qp_set_evs(engine, qpn, evs, n);
  const int n_after = mrc_qp_query_evs(engine, qpn, after, MRC_MAX_EVS);
  CHECK_EQ(n_after, error == 0 ? n_before + n : n_before);
  CHECK_MEM_EQ(after, before, (size_t)n_before * sizeof *before);
  if (error != 0) CHECK_EQ(inside(p, end)->evset.plane_mask, mask);
  return error;
}

/* An EV that may join plane 2 of a pair. */
static struct mrc_ev_attr joining_ev(uint32_t value) {
  struct mrc_ev_attr ev = {
      .ev = value, .dport = mrc_address_udp_port(1), .port = 2, .plane = 2, .family = 6};
  mrc_address_make(ev.src, 6, 0, 2, 0);
  mrc_address_make(ev.dst, 6, 1, 2, 0);
  return ev;
}

/* EVs that may not join: all stays as it was, while data is in flight. */
TEST(test_join__refuses_what_does_not_fit) {
  static struct mrc_ev_attr many[MRC_MAX_EVS + 1];
  PAIR p = open_pair(.planes = 3, .paths = 2, .late = 1, .port_out.rate_bps = 100000000);
  int end = open_qp(p, .memory_bytes = 8u << 20, .path_mtu = 4096);
  write_many(p, end, 1u << 20, 8);
  run_for(p, 10 * MS);
  const struct {
    struct mrc_ev_attr ev;
    int error;
  } rows[] = {
      {{.ev = 77, .port = 0, .family = 6}, -EINVAL},
      {{.ev = 77, .port = 4, .family = 6}, -EINVAL}, /* no such port */
      {{.ev = 77, .port = 3, .plane = 4, .family = 6}, -EINVAL},
      {{.ev = 77, .port = 3, .plane = 3, .peer_port = MRC_MAX_PORTS + 1, .family = 6}, -EINVAL},
      {{.ev = 77, .port = 3, .family = 5}, -EINVAL},
      {{.ev = 77, .port = 3, .plane = 2, .family = 6}, -EINVAL}, /* that plane has port 2 */
      {{.ev = 77, .port = 2, .plane = 2, .peer_port = 1, .family = 6}, -EINVAL},
      {joining_ev(1), -EINVAL}, /* the value of the one before it */
      {joining_ev(0), -EINVAL}, /* a value of the QP; filled in below */
  };
  EACH_ROW(i, rows) {
    struct mrc_ev_attr evs[2] = {joining_ev(1), rows[i].ev};
    if (i == 8) evs[1].ev = inside(p, end)->evset.evs[0].value;
    CHECK_EQ(join_evs(p, end, evs, 2), rows[i].error);
  }
  for (int i = 0; i <= MRC_MAX_EVS; i++)
    many[i] = joining_ev((uint32_t)i);
  CHECK_EQ(join_evs(p, end, many, 0), -ENOSPC);
  CHECK_EQ(join_evs(p, end, many, -1), -ENOSPC);
  CHECK_EQ(join_evs(p, end, many, MRC_MAX_EVS - 4 + 1), -ENOSPC);
  CHECK_EQ(join_evs(p, end, many, MRC_MAX_EVS), -ENOSPC);
  CHECK_EQ(join_evs(p, end, many, MRC_MAX_EVS - 4), 0); /* as many as there is room for */
  CHECK_EQ(join_evs(p, end, &many[MRC_MAX_EVS - 4], 1), -ENOSPC);
  CHECK(mrc_pair_finish(p, 2000 * MS));
  CHECK_EQ(retransmitted(p, end), 0);
  mrc_pair_modify(p, end, MRC_QP_ERROR);
  CHECK_EQ(mrc_qp_set_evs(p->hosts[0].engine, p->ends[end]->qpn, many, 1), -EINVAL);
}

/* A plane joins in RTR or in RTS, with data in flight on all others, with its port up or down, with
   one window for all planes or with one for each. It carries nothing before the controller trusts
   it, and its part from then on. */
TEST(test_join__carries_its_part_once_trusted) {
  const struct {
    uint8_t cc, shares;
    bool in_rtr, down;
  } rows[] = {
      {.cc = MRC_CC_DELAY},
      {.cc = MRC_CC_DELAY, .in_rtr = true},
      {.cc = MRC_CC_DELAY, .down = true},
      {.cc = MRC_CC_NSCC},
      {.cc = MRC_CC_NSCC, .shares = MRC_SHARES_EQUAL},
      {.cc = MRC_CC_NSCC, .shares = MRC_SHARES_EQUAL, .in_rtr = true},
      {.cc = MRC_CC_NSCC, .down = true},
  };
  EACH_ROW(i, rows) {
    PAIR p = open_pair(.planes = 3, .paths = 2, .late = 1, .port_out.rate_bps = 100000000,
                       .port_out.queue_bytes = 200000, .port_out.ecn_bytes = 20000);
    const struct mrc_pair_qp_config config = {.memory_bytes = 32u << 20,
                                              .path_mtu = 4096,
                                              .mpr = 128,
                                              .timeout = 14,
                                              .retry_linear = 3,
                                              .retry_exp = 4,
                                              .cc = rows[i].cc,
                                              .plane_shares = rows[i].shares};
    const int end = mrc_pair_create_qp(p, &config), peer = p->ends[end]->peer;
    mrc_pair_modify(p, end, MRC_QP_RTR);
    mrc_pair_modify(p, peer, MRC_QP_RTR);
    if (rows[i].in_rtr) mrc_pair_join(p, end);
    if (rows[i].in_rtr) mrc_pair_join(p, peer);
    mrc_pair_modify(p, end, MRC_QP_RTS);
    mrc_pair_modify(p, peer, MRC_QP_RTS);
    write_many(p, end, 1u << 20, 16);
    run_for(p, 20 * MS);
    if (rows[i].down) mrc_pair_port_up(p, 0, 3, false);
    if (!rows[i].in_rtr) mrc_pair_join(p, end);
    if (!rows[i].in_rtr) mrc_pair_join(p, peer); /* it answers probes of this plane from now on */
    run_for(p, 20 * MS);
    CHECK_EQ(mrc_pair_info(p, end).planes[2].sent_packets, 0);
    CHECK_EQ(mrc_pair_ev(p, end, 3, 0).sent_probes, 0);
    CHECK_EQ(mrc_pair_ev(p, end, 3, 1).state, MRC_EV_UNPROVEN);
    CHECK_EQ(mrc_pair_info(p, end).planes[2].suspended, rows[i].down);
    mrc_pair_deny(p, end, 3, 1, false);
    if (rows[i].down) mrc_pair_port_up(p, 0, 3, true);
    run_for(p, 20 * MS);
    const uint64_t before = mrc_pair_info(p, end).planes[2].sent_bytes;
    run_for(p, 100 * MS);
    CHECK(mrc_pair_info(p, end).planes[2].sent_bytes - before > 1250000 / 2);
    CHECK_EQ(mrc_pair_ev(p, end, 3, 0).sent_packets, 0);
    CHECK(mrc_pair_finish(p, 2000 * MS));
    CHECK_EQ(succeeded(p, end), 16);
  }
}

/* The lowest plane joins last: the one window of all planes goes on. */
TEST(test_join__keeps_the_one_window) {
  PAIR p = open_pair(.planes = 2, .paths = 1, .port_out.rate_bps = 100000000,
                     .port_out.queue_bytes = 200000, .port_out.ecn_bytes = 20000);
  const int end =
      mrc_pair_create_qp(p, &(struct mrc_pair_qp_config){.memory_bytes = 4u << 20,
                                                         .path_mtu = 4096,
                                                         .timeout = 14,
                                                         .retry_linear = 3,
                                                         .cc = MRC_CC_NSCC,
                                                         .plane_shares = MRC_SHARES_EQUAL});
  mrc_engine *engine = p->hosts[0].engine;
  const uint32_t qpn = p->ends[end]->qpn;
  struct mrc_ev_attr evs[2];
  EACH_OF(int, plane, 1, 3) {
    const uint32_t label = mrc_address_label(6, plane, 0);
    struct mrc_ev_attr ev = joining_ev((uint32_t)mrc_address_sport(plane, 0) << 16 | label);
    ev.port = ev.plane = (uint8_t)plane;
    mrc_address_make(ev.src, 6, 0, plane, 0);
    mrc_address_make(ev.dst, 6, 1, plane, 0);
    evs[plane - 1] = ev;
  }
  CHECK_EQ(mrc_qp_set_evs(engine, qpn, &evs[1], 1), 0);
  mrc_pair_modify(p, end, MRC_QP_RTR);
  mrc_pair_modify(p, p->ends[end]->peer, MRC_QP_RTR);
  mrc_pair_modify(p, end, MRC_QP_RTS);
  mrc_pair_modify(p, p->ends[end]->peer, MRC_QP_RTS);
  write_many(p, end, 1u << 20, 4);
  run_for(p, 50 * MS);
  const uint64_t cwnd_bytes = mrc_pair_info(p, end).cwnd_bytes;
  CHECK_EQ(mrc_qp_set_evs(engine, qpn, &evs[0], 1), 0);
  CHECK_EQ(mrc_pair_info(p, end).cwnd_bytes, cwnd_bytes);
  CHECK_EQ(mrc_qp_set_ev_state(engine, qpn, 1, MRC_EV_GOOD, p->now_ns), 0);
  CHECK(mrc_pair_finish(p, 2000 * MS));
  CHECK(mrc_pair_info(p, end).planes[0].sent_packets > 100);
}
