/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/gbn.h"

#include "check.h"
#include "sim_config.h"

#define open_gbn(...) \
  open_sim(.transport = MRC_SIM_GO_BACK_N, .routing = MRC_SIM_ECMP, .planes = 2, __VA_ARGS__)

static struct mrc_sim_flow_info info_of(const mrc_sim *sim, uint32_t flow) {
  struct mrc_sim_flow_info info = {0};
  CHECK_EQ(mrc_sim_flow(sim, flow, &info), 0);
  return info;
}

TEST(test_run__one_path_at_line_rate) {
  mrc_sim *sim = open_gbn(.cc_base_rtt_ns = 8000, .cc = MRC_CC_NSCC);
  CHECK_EQ(add_flow(sim, .bytes = 1000001, .writes = 8), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  const struct mrc_sim_flow_info info = info_of(sim, 0);
  CHECK_EQ(info.received_bytes, 8000008);
  CHECK_EQ(info.completed, 8);
  CHECK_EQ(info.sent_packets, 8 * 245); /* none twice */
  /* one of two planes: 640 us of payload at 100 Gbit/s */
  CHECK(info.last_ns > 660 * US && info.last_ns < 720 * US);
  mrc_sim_destroy(sim);
}

TEST(test_run__goes_back_for_what_is_lost) {
  mrc_sim *sim = open_gbn(.cc = MRC_CC_NULL, .mpr = 128, .timeout = 6);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_ALL, .kind = MRC_SIM_LOSE, .a = 1, .b = 200), 0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 4), 0);
  CHECK_EQ(add_flow(sim, .bytes = 5, .writes = 40), 1);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  CHECK_EQ(info_of(sim, 0).received_bytes, 4 << 20);
  CHECK_EQ(info_of(sim, 1).received_bytes, 200);
  CHECK(info_of(sim, 0).retransmitted_packets > 20);
  mrc_sim_destroy(sim);
}

TEST(test_run__full_buffers_drop) {
  mrc_sim *sim = open_gbn(.cc = MRC_CC_NULL, .buffer_bytes = 100000, .timeout = 6);
  for (uint32_t from = 1; from < 4; from++)
    CHECK_EQ(add_flow(sim, .from = from, .to = 0), (int)from - 1);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  struct mrc_sim_stats stats;
  mrc_sim_stats(sim, &stats);
  CHECK_EQ(stats.completed_writes, 3);
  CHECK(stats.dropped > 0);
  CHECK_EQ(stats.trimmed, 0); /* only MRC packets are trimmed */
  mrc_sim_destroy(sim);
}

TEST(test_run__no_path_ends_the_flow) {
  mrc_sim *sim = open_gbn(.retry_linear = 2, .timeout = 6);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_ALL, .at_ns = 5 * US), 0);
  CHECK_EQ(add_flow(sim, .writes = 20, .depth = 4), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  CHECK_EQ(info_of(sim, 0).failed, 20);
  struct mrc_sim_event event;
  CHECK_EQ(mrc_sim_events(sim, &event, 1), 1);
  CHECK_EQ(event.type, MRC_SIM_QP_ERROR);
  mrc_sim_destroy(sim);
}

TEST(test_run__writes_wait_for_another_flow) {
  mrc_sim *sim = open_gbn(.cc = MRC_CC_NULL);
  CHECK_EQ(add_flow(sim, .from = 0, .to = 2, .writes = 3), 0);
  CHECK_EQ(add_flow(sim, .from = 2, .to = 0, .writes = 4, .after = 1), 1);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  CHECK_EQ(info_of(sim, 1).completed, 4);
  mrc_sim_destroy(sim);
}

TEST(test_create__needs_ecmp) { CHECK_PTR_EQ(open_sim(.transport = MRC_SIM_GO_BACK_N), NULL); }
