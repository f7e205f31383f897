/* SPDX-License-Identifier: Apache-2.0 */
/* What a reviewer found: peers that mean harm, callers in odd order, numbers that wrap. */
#include "core/engine.h"

#include <errno.h>

#include "forge.h"
#include "scenario.h"
#include "sim/connect.h"

/* ---- a QP of its own, without a peer ---- */

static const struct mrc_qp_attr attr_of_4 = {.qpn = 0x100,
                                             .sq_depth = 4,
                                             .mpr = 4096,
                                             .max_wimm = 4,
                                             .dest_qpn = 0x200,
                                             .path_mtu = 256,
                                             .peer_mpr = 4096,
                                             .peer_max_wimm = 4,
                                             .timeout = 14,
                                             .retry_exp = 4,
                                             .cc = MRC_CC_NULL};

static void set_paths(mrc_engine *engine) {
  const struct mrc_ev_attr ev = {.ev = 1u << 16, .dport = 4791, .port = 1, .family = 6};
  const struct mrc_peer_source source = {.address = {0xFD}, .sport = 1};
  CHECK_EQ(mrc_qp_set_evs(engine, attr_of_4.qpn, &ev, 1), 0);
  CHECK_EQ(mrc_qp_set_peer(engine, attr_of_4.qpn, &source, 1), 0);
}

static void add_qp(mrc_engine *engine) {
  CHECK_EQ(mrc_qp_create(engine, &attr_of_4), 0);
  CHECK_EQ(mrc_qp_modify(engine, attr_of_4.qpn, MRC_QP_INIT, &attr_of_4, 1), 0);
  set_paths(engine);
  CHECK_EQ(mrc_qp_modify(engine, attr_of_4.qpn, MRC_QP_RTR, &attr_of_4, 1), 0);
  CHECK_EQ(mrc_qp_modify(engine, attr_of_4.qpn, MRC_QP_RTS, &attr_of_4, 1), 0);
}

static void post_empty(mrc_engine *engine, int n) {
  for (int i = 0; i < n; i++)
    CHECK_EQ(mrc_qp_post(engine, attr_of_4.qpn, &(struct mrc_wr){.wr_id = 1}, 2), 0);
}

/* A QP dies with completions that nobody has polled, and a new one takes its number: they are not
   the new one's, whose send queue would seem emptier than it is and overrun its ring. */
static void test_qpn__reused_before_the_old_completions_are_polled(void) {
  mrc_engine *engine = mrc_engine_create(&(struct mrc_engine_config){.max_qps = 2});
  struct mrc_wc wcs[16];
  add_qp(engine);
  post_empty(engine, 4);
  CHECK_EQ(mrc_qp_destroy(engine, attr_of_4.qpn), 0);
  add_qp(engine);
  post_empty(engine, 4);
  CHECK_EQ(mrc_cq_poll(engine, wcs, 16), 4);
  CHECK_EQ(wcs[3].status, MRC_WC_WR_FLUSH_ERR);
  CHECK_EQ(wcs[3].reserved, 0);
  CHECK_EQ(mrc_qp_post(engine, attr_of_4.qpn, &(struct mrc_wr){.wr_id = 1}, 2), -ENOBUFS);
  mrc_engine_destroy(engine);
}

/* ---- two ends ---- */

CHECK_MAIN(RUN(test_qpn__reused_before_the_old_completions_are_polled))
