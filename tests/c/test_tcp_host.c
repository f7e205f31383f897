/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/tcp.h"

#include <errno.h>

#include "check.h"
#include "sim/scenario.h"
#include "sim/traffic.h"
#include "sim_config.h"

#define MBIT 1000000ull
#define SECOND (1000 * MS)

/* Slow enough for TCP: 1 Gbit/s to hosts, 200 Mbit/s between T0 and T1, a round trip of 10 ms. */
#define open_slow(...)                                                                          \
  open_sim(.host_rate_bps = GBIT, .fabric_rate_bps = 200 * MBIT, .fabric_delay_ns = 2 * MS,     \
           .ecn_high_bytes = 0, .ecn_low_bytes = 0, .wake_ns = 10 * US, .buffer_bytes = 500000, \
           .noise_ns = MS, __VA_ARGS__)
#define add_tcp(sim, ...) add_flow(sim, .bytes = 1448, .tcp_plane = 1, __VA_ARGS__)

static struct mrc_sim_flow_info info_of(const mrc_sim *sim, uint32_t flow) {
  struct mrc_sim_flow_info info = {0};
  CHECK_EQ(mrc_sim_flow(sim, flow, &info), 0);
  return info;
}

TEST(test_add__refuses_nonsense) {
  mrc_sim *sim = open_slow();
  CHECK_EQ(add_tcp(sim, .tcp_plane = 2), -EINVAL);
  CHECK_EQ(add_tcp(sim, .bytes = 0), -EINVAL);
  CHECK_EQ(add_tcp(sim, .paths = 1, .paths_until_ns = MS), -EINVAL);
  CHECK_EQ(add_tcp(sim, .paths = 4), -EINVAL); /* only paths 0 and 1 exist */
  mrc_sim_destroy(sim);
}

TEST(test_run__fills_its_path_and_never_ends) {
  mrc_sim *sim = open_slow();
  CHECK_EQ(add_tcp(sim, .paths = 2, .start_ns = 100 * MS), 0);
  CHECK_EQ(mrc_sim_run(sim, 5 * SECOND), 0);
  const struct mrc_sim_flow_info info = info_of(sim, 0);
  CHECK_EQ(info.first_ns, 100 * MS);
  CHECK(info.received_bytes > 4 * 200 * MBIT / 8 * 1448 / 1598);
  CHECK_EQ(info.retransmitted_packets, info.lost_packets);
  CHECK_EQ(info.repeated_packets, 0);
  CHECK_EQ(sim->whole.fabric.hops[mrc_topology_t0_up(&sim->whole.world.config, 0, 0, 0)].packets,
           0);
  CHECK(sim->whole.fabric.hops[mrc_topology_t0_up(&sim->whole.world.config, 0, 0, 1)].packets > 0);
  mrc_sim_destroy(sim);
}

/* The fabric neither marks nor trims TCP data: it drops it. */
TEST(test_run__full_buffers_drop) {
  mrc_sim *sim = open_slow(.ecn_low_bytes = 1, .ecn_high_bytes = 2);
  CHECK_EQ(add_tcp(sim), 0);
  CHECK_EQ(mrc_sim_run(sim, 2 * SECOND), 0);
  struct mrc_sim_stats stats;
  mrc_sim_stats(sim, &stats);
  CHECK(stats.dropped > 0);
  CHECK_EQ(stats.trimmed, 0);
  CHECK_EQ(stats.marked, 0);
  mrc_sim_destroy(sim);
}

SLOW(test_run__survives_what_links_do) {
  static const struct mrc_sim_fault faults[] = {
      {.kind = MRC_SIM_LOSS, .a = 10000},
      {.kind = MRC_SIM_CORRUPT, .a = 10000},
      {.kind = MRC_SIM_DUPLICATE, .a = 100000, .b = 5000},
      {.kind = MRC_SIM_REORDER, .a = 100000, .b = 5000},
      {.kind = MRC_SIM_SILENT, .at_ns = SECOND, .until_ns = 2 * SECOND},
  };
  for (int i = 0; i < (int)(sizeof faults / sizeof *faults); i++) {
    CHECK_ROW(i);
    mrc_sim *sim = open_slow();
    struct mrc_sim_fault fault = faults[i];
    if (fault.until_ns == 0) fault.until_ns = UINT64_MAX;
    CHECK_EQ(mrc_sim_add_fault(sim, &fault), 0);
    CHECK_EQ(add_tcp(sim), 0);
    CHECK_EQ(mrc_sim_run(sim, 3 * SECOND), 0);
    const uint64_t before = info_of(sim, 0).received_bytes;
    CHECK_EQ(mrc_sim_run(sim, 6 * SECOND), 0);
    CHECK(info_of(sim, 0).received_bytes - before > 1000000);
    mrc_sim_destroy(sim);
  }
}

/* An MRC write from the same host at the same time, checked by the auditors. */
TEST(test_run__beside_writes) {
  mrc_sim *sim = open_slow(.audit = 1, .cc = MRC_CC_DELAY);
  CHECK_EQ(add_tcp(sim, .paths = 1), 0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 8), 1);
  CHECK_EQ(mrc_sim_run(sim, 3 * SECOND), 0);
  CHECK_EQ(info_of(sim, 1).completed, 8);
  CHECK(info_of(sim, 0).received_bytes > 10000000);
  mrc_sim_destroy(sim);
}

/* Two flows share the port of one host: neither MRC nor TCP keeps the other out. */
TEST(test_run__shares_the_port_of_its_host) {
  mrc_sim *sim = open_slow(.host_rate_bps = 100 * MBIT, .cc = MRC_CC_NULL, .mpr = 128);
  CHECK_EQ(add_tcp(sim), 0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 100), 1);
  CHECK_EQ(mrc_sim_run(sim, 2 * SECOND), 0);
  const uint64_t all = 2 * 100 * MBIT / 8;
  CHECK(info_of(sim, 0).received_bytes > all / 4);
  CHECK(info_of(sim, 1).received_bytes > all / 4);
  mrc_sim_destroy(sim);
}

static uint64_t trace_of(uint64_t seed) {
  mrc_sim *sim = open_slow(.seed = seed);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_ALL, .kind = MRC_SIM_LOSS, .a = 1000), 0);
  CHECK_EQ(add_tcp(sim), 0);
  CHECK_EQ(mrc_sim_run(sim, SECOND), 0);
  struct mrc_sim_stats stats;
  mrc_sim_stats(sim, &stats);
  mrc_sim_destroy(sim);
  return stats.trace;
}

TEST(test_run__same_seed_same_trace) {
  CHECK(trace_of(3) == trace_of(3));
  CHECK(trace_of(3) != trace_of(4));
}
