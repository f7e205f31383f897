/* SPDX-License-Identifier: Apache-2.0 */
/* Whole simulations, and the auditors that watch them. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "sim/engines.h"
#include "sim/numbers.h"
#include "sim/sim.h"
#include "sim/traffic.h"
#include "sim_config.h"

TEST(test_create__refuses_nonsense) {
  CHECK_PTR_EQ(open_sim(.topology.hosts = 1), NULL);
  CHECK_PTR_EQ(open_sim(.topology.hosts = 5), NULL); /* not a multiple of the T0s */
  CHECK_PTR_EQ(open_sim(.topology.planes = 33), NULL);
  CHECK_PTR_EQ(open_sim(.topology.t1 = 0), NULL);
  CHECK_PTR_EQ(open_sim(.topology.host_rate_bps = 0), NULL);
  CHECK_PTR_EQ(open_sim(.path_mtu = 4095), NULL);
  CHECK_PTR_EQ(open_sim(.topology.ecn_low_bytes = 400000), NULL);
}

TEST(test_add__refuses_nonsense) {
  SIM sim = open_sim();
  CHECK_EQ(add_flow(sim, .to = 4), -EINVAL);
  CHECK_EQ(add_flow(sim, .to = 0), -EINVAL);
  CHECK_EQ(add_flow(sim, .bytes = (1 << 20) + 1), -EINVAL);
  CHECK_EQ(add_flow(sim, .writes = 0), -EINVAL);
  CHECK_EQ(add_flow(sim, .paths = 4), -EINVAL);          /* only paths 0 and 1 exist */
  CHECK_EQ(add_flow(sim, .to = 1, .paths = 2), -EINVAL); /* below one T0 only path 0 exists */
  CHECK_EQ(add_fault(sim, .plane = 2, .target = MRC_SIM_PLANE), -EINVAL);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_PORT, .index = 4), -EINVAL);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_UPLINK, .t1 = 2), -EINVAL);
  CHECK_EQ(add_fault(sim, .at_ns = 5, .until_ns = 5), -EINVAL);
  CHECK_EQ(add_fault(sim, .kind = MRC_SIM_RATE), -EINVAL);
  CHECK_EQ(add_flow(sim), 0);
  CHECK_EQ(mrc_sim_run(sim, 10 * MS), 1);
  CHECK_EQ(add_flow(sim), -EINVAL); /* the run has begun */
  CHECK_EQ(add_fault(sim), -EINVAL);
}

/* All bytes arrive in place, whatever the links do. */
TEST(test_run__contents) {
  static const struct mrc_sim_fault faults[] = {
      {.kind = MRC_SIM_RATE, .a = 50 * GBIT},
      {.kind = MRC_SIM_LOSS, .a = 50000},
      {.kind = MRC_SIM_LOSE, .a = 1, .b = 20},
      {.kind = MRC_SIM_MASK, .a = 0x8001},
      {.kind = MRC_SIM_BURST, .a = 5000, .b = 8},
      {.kind = MRC_SIM_CORRUPT, .a = 50000},
      {.kind = MRC_SIM_DUPLICATE, .a = 100000, .b = 5000},
      {.kind = MRC_SIM_REORDER, .a = 100000, .b = 5000},
      {.kind = MRC_SIM_JITTER, .a = 2000},
      {.kind = MRC_SIM_DELAY, .a = 20000},
  };
  EACH_ROW(i, faults) {
    SIM sim = open_sim(.audit = 1, .topology.planes = 2);
    struct mrc_sim_fault fault = faults[i];
    fault.target = MRC_SIM_PLANE;
    fault.plane = 1;
    fault.until_ns = UINT64_MAX;
    CHECK_EQ(mrc_sim_add_fault(sim, &fault), 0);
    CHECK_EQ(add_flow(sim, .bytes = 500001), 0);
    CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
    CHECK_EQ(sim->watch.of[0]->ends[0].verified,
             1); /* all of its bytes; and at the end, no others */
    CHECK_EQ(info_of(sim, 0).received_bytes, 500001);
  }
}

TEST(test_run__faults_have_their_time) {
  SIM sim = open_sim(.sample_ns = 100 * US);
  CHECK_EQ(add_fault(sim, .at_ns = 200 * US, .until_ns = 300 * US, .target = MRC_SIM_ALL,
                     .kind = MRC_SIM_RATE, .a = GBIT),
           0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 8), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  struct mrc_sim_sample samples[8] = {0};
  CHECK(mrc_sim_samples(sim, samples, 8) > 4);
  const uint64_t before = samples[1].received_bytes - samples[0].received_bytes;
  const uint64_t during = samples[2].received_bytes - samples[1].received_bytes;
  CHECK_EQ(samples[2].now_ns, 300 * US);
  CHECK(before > 1000000 && before < 1250000); /* 100 Gbit/s */
  CHECK(during < before / 10);
}

/* A fault's rate may be a share of the link's rate, its own rate included. A fault may begin when
   another ends. */
TEST(test_run__rates_take_turns) {
  SIM sim = open_sim(.sample_ns = 100 * US);
  const struct mrc_sim_fault own = {
      .target = MRC_SIM_PLANE, .plane = 1, .kind = MRC_SIM_RATE, .a = 40 * GBIT};
  CHECK_EQ(mrc_sim_set_links(sim, &own), 0);
  for (uint64_t turn = 0; turn < 4; turn++) /* in reverse order */
    CHECK_EQ(add_fault(sim, .at_ns = (700 - 200 * turn) * US, .until_ns = (800 - 200 * turn) * US,
                       .target = MRC_SIM_PLANE, .kind = MRC_SIM_RATE, .b = 100000),
             0);
  for (uint64_t turn = 0; turn < 3; turn++)
    CHECK_EQ(add_fault(sim, .at_ns = (200 + 200 * turn) * US, .until_ns = (300 + 200 * turn) * US,
                       .target = MRC_SIM_PLANE, .kind = MRC_SIM_RATE, .b = 500000),
             0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 8), 0);
  CHECK_EQ(mrc_sim_run(sim, 800 * US), 0);
  struct mrc_sim_sample samples[8] = {0};
  CHECK(mrc_sim_samples(sim, samples, 8) >= 7);
  for (int i = 1; i < 7; i++) { /* at 4 and 20 Gbit/s in turn */
    CHECK_ROW(i);
    const uint64_t bytes = samples[i].received_bytes - samples[i - 1].received_bytes;
    const bool is_slow = i % 2 == 1;
    CHECK(bytes < (is_slow ? 60000 : 260000));
    CHECK(bytes > (is_slow ? 30000 : 150000));
  }
}

/* Hosts sleep for up to 1 ms: a round trip includes the sleep of both, 0.5 ms each on average. */
TEST(test_run__busy_hosts_are_late) {
  SIM sim = open_sim(.wake_noise_ns = MS, .noise_ns = MS, .timeout = 16);
  CHECK_EQ(add_flow(sim, .bytes = 1, .writes = 100, .depth = 1), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  const struct mrc_sim_flow_info info = info_of(sim, 0);
  CHECK_EQ(info.completed, 100);
  CHECK(info.last_ns > 80 * MS && info.last_ns < 130 * MS);
}

/* Packets are delayed by 3 ms for a while: they are declared lost, and all of them arrive. */
TEST(test_run__repeated_is_what_came_twice) {
  SIM sim = open_sim(.topology.planes = 2);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_PLANE, .at_ns = 100 * US, .until_ns = 110 * US,
                     .kind = MRC_SIM_DELAY, .a = 3 * MS),
           0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 200), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  const struct mrc_sim_flow_info info = info_of(sim, 0);
  CHECK_EQ(stats_of(sim).lost, 0);
  CHECK(info.retransmitted_packets > 0);
  CHECK_EQ(info.repeated_packets, info.retransmitted_packets);
}

TEST(test_run__copies_of_a_fault_are_not_repeated) {
  SIM sim = open_sim();
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_ALL, .kind = MRC_SIM_DUPLICATE, .a = 100000, .b = 100),
           0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 8), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  CHECK_EQ(info_of(sim, 0).retransmitted_packets, 0);
  CHECK_EQ(info_of(sim, 0).repeated_packets, 0);
}

TEST(test_run__loss_of_control_spares_data) {
  SIM sim = open_sim();
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_ALL, .kind = MRC_SIM_LOSE, .a = 1, .b = 4,
                     .class = MRC_SIM_CONTROL_CLASS),
           0);
  CHECK_EQ(add_flow(sim), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  CHECK(stats_of(sim).lost > 0);
  CHECK_EQ(info_of(sim, 0).received_bytes, 1 << 18);
  struct mrc_sim_port_info arrived;
  CHECK_EQ(mrc_sim_last_hop(sim, 2, 1, &arrived), 0);
  const uint64_t packet_ns = 4096 * 8 / 100; /* of data, and less than its headers make it */
  CHECK(mrc_fabric_port(&sim->whole.fabric, 0, 0)->busy_ns < arrived.busy_ns + packet_ns);
}

TEST(test_run__a_host_sees_its_port_down) {
  SIM sim = open_sim(.topology.planes = 2);
  CHECK_EQ(add_fault(sim, .at_ns = 50 * US, .target = MRC_SIM_PORT, .index = 0, .plane = 2,
                     .kind = MRC_SIM_DOWN),
           0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 4), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  struct mrc_sim_event events[4] = {0};
  CHECK(mrc_sim_events(sim, events, 4) >= 1);
  CHECK_EQ(events[0].now_ns, 50 * US);
  CHECK_EQ(events[0].type, MRC_SIM_PLANE_STATE);
  CHECK_EQ(events[0].plane, 2);
  CHECK_EQ(events[0].status, 0);
}

TEST(test_run__a_host_sees_a_slow_plane) {
  SIM sim = open_sim(.topology.planes = 2, .topology.host_rate_bps = GBIT, .memory_bytes = 64 << 20,
                     .noise_ns = 50000);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_PORT, .index = 0, .plane = 2, .kind = MRC_SIM_RATE,
                     .a = GBIT / 10),
           0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 24), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  struct mrc_sim_event events[4] = {0};
  CHECK_EQ(mrc_sim_events(sim, events, 4), 1);
  CHECK_EQ(events[0].type, MRC_SIM_PLANE_SHARE);
  CHECK_EQ(events[0].plane, 2);
  CHECK_EQ(events[0].status, 0);
  CHECK(events[0].percent >= 5 && events[0].percent < 50);
}

TEST(test_run__no_path_ends_the_flow) {
  SIM sim = open_sim(.retry_linear = 1, .retry_exp = 1);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_ALL, .kind = MRC_SIM_SILENT), 0);
  CHECK_EQ(add_flow(sim, .writes = 20, .depth = 4), 0);
  CHECK_EQ(mrc_sim_run(sim, 1000 * MS), 1);
  CHECK_EQ(info_of(sim, 0).completed, 0);
  CHECK_EQ(info_of(sim, 0).failed, 20); /* includes writes that were never posted */
  struct mrc_sim_event events[8] = {0};
  const int n = mrc_sim_events(sim, events, 8);
  CHECK(n >= 1 && n <= 8);
  CHECK_EQ(events[n - 1].type, MRC_SIM_QP_ERROR);
  CHECK_EQ(events[n - 1].status, MRC_WC_RETRY_EXC_ERR);
}

/* A plane falls silent permanently: the hosts' timeouts depend on the configured noise of hosts. */
TEST(test_run__patience_follows_the_noise_of_hosts) {
  static const struct {
    uint32_t noise_ns;
    uint64_t soonest_ns, latest_ns;
  } rows[] = {{0, 5 * MS, 20 * MS}, {50000, 500 * US, 3 * MS}, {2000, 150 * US, 400 * US}};
  EACH_ROW(i, rows) {
    SIM sim = open_sim(.topology.planes = 2, .timeout = 16, .noise_ns = rows[i].noise_ns);
    CHECK_EQ(add_fault(sim, .at_ns = 20 * US, .target = MRC_SIM_PLANE, .plane = 2), 0);
    CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 2), 0);
    CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
    const uint64_t end_ns = stats_of(sim).now_ns;
    CHECK(end_ns >= rows[i].soonest_ns && end_ns <= rows[i].latest_ns);
  }
}

/* Write n + 1 of the second flow leaves its host when write n of the first has arrived. */
TEST(test_traffic__after_another_flow) {
  SIM sim = open_sim();
  CHECK_EQ(add_flow(sim, .from = 0, .to = 2, .writes = 3, .interval_ns = 500 * US), 0);
  CHECK_EQ(add_flow(sim, .from = 2, .to = 0, .writes = 4, .after = 1), 1);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  struct mrc_sim_message messages[8] = {0};
  CHECK_EQ(mrc_sim_messages(sim, messages, 8), 7);
  uint64_t arrived_ns = 0, gap_ns = 0;
  for (int i = 0, n = 0; i < 7; i++) {
    if (messages[i].flow == 0) arrived_ns = messages[i].done_ns;
    if (messages[i].flow != 1 || n++ == 0) continue;
    gap_ns = arrived_ns - messages[i].wanted_ns; /* the host learns of the arrival a little later */
    CHECK(gap_ns < 10 * US);
  }
  CHECK(gap_ns > 0);
}

TEST(test_traffic__begins_after_what_it_waits_for) {
  SIM sim = open_sim();
  CHECK_EQ(add_flow(sim, .from = 0, .to = 2, .writes = 3), 0);
  CHECK_EQ(add_flow(sim, .from = 2, .to = 0, .writes = 4, .after = 1, .start_ns = MS), 1);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  CHECK_EQ(info_of(sim, 1).completed, 4);
}

TEST(test_traffic__open_loop_keeps_its_mean) {
  SIM sim = open_sim();
  CHECK_EQ(add_flow(sim, .bytes = 4096, .writes = 2000, .interval_ns = 5 * US), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  static struct mrc_sim_message messages[2000];
  CHECK_EQ(mrc_sim_messages(sim, messages, 2000), 2000);
  const uint64_t span_ns = messages[1999].wanted_ns - messages[0].wanted_ns;
  CHECK(span_ns > 9500 * US && span_ns < 10500 * US);
  int long_gaps = 0; /* 1 / e of the gaps are longer than the mean */
  for (int i = 1; i < 2000; i++)
    long_gaps += messages[i].wanted_ns - messages[i - 1].wanted_ns > 5 * US;
  CHECK(long_gaps > 680 && long_gaps < 790);
}

TEST(test_traffic__keeps_to_its_paths) {
  SIM sim = open_sim(.topology.planes = 2, .topology.t1 = 4);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_T1, .index = 0, .kind = MRC_SIM_SILENT), 0);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_T1, .index = 3, .plane = 2, .kind = MRC_SIM_SILENT), 0);
  CHECK_EQ(add_flow(sim, .paths = 0x6), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  CHECK_EQ(stats_of(sim).lost, 0);
  CHECK_EQ(stats_of(sim).completed_writes, 1);
}

TEST(test_traffic__other_paths_later) {
  SIM sim = open_sim(.topology.planes = 1, .topology.t1 = 4);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_T1, .index = 3, .kind = MRC_SIM_SILENT), 0);
  CHECK_EQ(add_flow(sim, .paths = 0x1, .paths_until_ns = 5 * MS, .bytes = 1 << 20, .writes = 1000),
           0);
  CHECK_EQ(mrc_sim_run(sim, 5 * MS - 1), 0);
  CHECK_EQ(stats_of(sim).lost, 0);
  CHECK_EQ(mrc_sim_run(sim, 6 * MS), 0);
  CHECK(stats_of(sim).lost > 0);
}

/* Up, T0 by T0; then down. The flow may use one T1 of two, whose link to the other T0 is absent. */
TEST(test_inner_ports__of_the_links_that_exist) {
  SIM sim = open_sim(.topology.planes = 2);
  const struct mrc_sim_fault link = {.target = MRC_SIM_UPLINK, .plane = 1, .index = 1, .t1 = 0};
  CHECK_EQ(mrc_sim_remove_links(sim, &link), 0);
  CHECK_EQ(add_flow(sim, .from = 0, .to = 2), 0);
  CHECK_EQ(mrc_sim_run(sim, 10 * MS), 1);
  struct mrc_sim_port_info ports[8];
  CHECK_EQ(mrc_sim_inner_ports(sim, 1, ports, 8), 6);
  CHECK(ports[0].busy_ns == 0 && ports[1].busy_ns > 10000);               /* from T0 0 */
  CHECK(ports[2].busy_ns > 0 && ports[2].busy_ns < ports[1].busy_ns);     /* SACKs, from T0 1 */
  CHECK(ports[3].busy_ns == 0 && ports[4].busy_ns == ports[2].busy_ns);   /* to T0 0 */
  CHECK(ports[5].busy_ns == ports[1].busy_ns && ports[5].peak_bytes > 0); /* to T0 1 */
  CHECK_EQ(mrc_sim_inner_ports(sim, 2, ports, 1), 8);
  CHECK_EQ(mrc_sim_inner_ports(sim, 3, ports, 8), 0);
}

TEST(test_incast__trims_at_the_last_hop) {
  SIM sim = open_sim(.topology.hosts = 8, .topology.t0 = 2, .topology.t1 = 4,
                     .topology.buffer_bytes = 200000);
  for (uint32_t from = 1; from < 8; from++)
    CHECK_EQ(add_flow(sim, .from = from, .to = 0, .writes = 4), (int)from - 1);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  struct mrc_sim_port_info last;
  CHECK_EQ(mrc_sim_last_hop(sim, 0, 1, &last), 0);
  CHECK(last.trimmed > 0);
  CHECK_EQ(last.marked, 0);
  CHECK(last.peak_bytes > 190000 && last.peak_bytes < 400001);
  CHECK_EQ(stats_of(sim).completed_writes, 28);
  CHECK_EQ(mrc_sim_last_hop(sim, 8, 1, &last), -EINVAL);
  CHECK_EQ(mrc_sim_last_hop(sim, 0, 2, &last), -EINVAL);
}

/* ---- QPs that have probed their paths before the first write ---- */

/* The time of a flow of 64 KiB over 8 paths of 9.5 us, without other traffic. */
static uint64_t short_flow_ns(uint32_t probed) {
  mrc_sim *sim =
      open_sim(.topology.t1 = 8, .topology.host_delay_ns = 1000, .topology.fabric_delay_ns = 1000,
               .wake_ns = 0, .cc = MRC_CC_NSCC, .cc_base_rtt_ns = 9500, .noise_ns = 2000,
               .sack_threshold_bytes = 16384, .probed = probed);
  CHECK_EQ(add_flow(sim, .bytes = 65536), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  CHECK_EQ(info_of(sim, 0).first_ns, 0);
  const uint64_t done_ns = info_of(sim, 0).last_ns;
  CHECK_EQ(stats_of(sim).now_ns, done_ns);
  mrc_sim_destroy(sim);
  return done_ns;
}

TEST(test_probed__a_short_flow_takes_the_ideal_time) {
  const uint64_t ideal_ns = 9500 + 15 * 4266 * 8 / 100; /* one round trip, 15 packets more */
  CHECK(short_flow_ns(1) < ideal_ns * 103 / 100);
  CHECK(short_flow_ns(0) > ideal_ns * 140 / 100); /* one packet a path first, then the rest */
}

/* Probes measured the round trips: paths longer than the local timeout cause no retransmission. */
TEST(test_probed__long_and_slow_ways) {
  const struct mrc_sim_fault rows[] = {
      {.target = MRC_SIM_ALL, .kind = MRC_SIM_DELAY, .a = 31250000},          /* 250 ms and back */
      {.target = MRC_SIM_PLANE, .plane = 2, .kind = MRC_SIM_RATE, .a = GBIT}, /* not 100 Gbit/s */
  };
  EACH_ROW(i, rows) {
    SIM sim = open_sim(.topology.planes = 4, .timeout = 16, .cc = MRC_CC_DELAY, .noise_ns = 2000,
                       .probed = 1);
    CHECK_EQ(mrc_sim_set_links(sim, &rows[i]), 0);
    CHECK_EQ(add_flow(sim, .bytes = 1 << 18, .writes = 4), 0);
    CHECK_EQ(mrc_sim_run(sim, 30000 * MS), 1);
    const struct mrc_sim_flow_info info = info_of(sim, 0);
    CHECK_EQ(info.retransmitted_packets, 0);
    CHECK_EQ(info.lost_packets, 0);
    CHECK_EQ(stats_of(sim).completed_writes, 4);
  }
}

/* Probes find the initial faults before the first write. Later faults and samples use times that
   start at the first write. */
TEST(test_probed__time_begins_after_the_probes) {
  SIM sim = open_sim(.topology.planes = 2, .sample_ns = 100 * US, .probed = 1);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_T1, .index = 1, .kind = MRC_SIM_SILENT), 0);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_ALL, .kind = MRC_SIM_RATE, .a = GBIT, .at_ns = 200 * US,
                     .until_ns = 300 * US),
           0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 8), 0);
  CHECK_EQ(mrc_sim_run(sim, 350 * US), 0);
  CHECK_EQ(stats_of(sim).now_ns, 350 * US);
  CHECK_EQ(info_of(sim, 0).lost_packets, 0);
  struct mrc_sim_event events[4] = {0};
  CHECK_EQ(mrc_sim_events(sim, events, 4), 2); /* one of each end */
  CHECK(events[0].plane == 1 && events[0].path == 1 && events[0].now_ns == 0);
  CHECK_EQ(events[0].status, MRC_EV_ASSUMED_BAD);
  struct mrc_sim_sample samples[4] = {0};
  CHECK_EQ(mrc_sim_samples(sim, samples, 4), 3);
  CHECK_EQ(samples[0].now_ns, 100 * US);
  const uint64_t before = samples[1].received_bytes - samples[0].received_bytes;
  CHECK(before > 2000000 && before < 2500000);
  CHECK(samples[2].received_bytes - samples[1].received_bytes < before / 10);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
}

/* A path that the controller denies is not probed and not reported as lost. */
TEST(test_probed__denied_paths_stay_denied) {
  SIM sim = open_sim(.topology.t1 = 4, .probed = 1);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_T1, .index = 3, .kind = MRC_SIM_SILENT), 0);
  CHECK_EQ(add_flow(sim, .paths = 0x1, .paths_until_ns = 1 * MS, .bytes = 1 << 20, .writes = 200),
           0);
  CHECK_EQ(mrc_sim_run(sim, 1 * MS - 1), 0);
  CHECK_EQ(stats_of(sim).lost, 0);
  struct mrc_sim_event events[8];
  const int n_events = mrc_sim_events(sim, events, 8);
  CHECK_EQ(n_events, 6); /* three paths of each end */
  for (int i = 0; i < n_events; i++)
    CHECK_EQ(events[i].status, MRC_EV_DENIED);
  CHECK_EQ(mrc_sim_run(sim, 2 * MS), 0);
  CHECK(stats_of(sim).lost > 0);
}

/* ---- The watch of the auditors ---- */

static mrc_sim *open_run(void) {
  mrc_sim *sim = open_sim(.audit = 1, .topology.planes = 2, .first_psn = 0xFFFFF0);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_ALL, .kind = MRC_SIM_LOSS, .a = 20000), 0);
  CHECK_EQ(add_flow(sim, .bytes = 100001, .writes = 5, .immediate = 1), 0);
  CHECK_EQ(add_flow(sim, .from = 2, .to = 1, .bytes = 5000, .writes = 5), 1);
  return sim;
}

TEST(test_watch__sees_bytes_in_their_place) {
  SIM sim = open_run();
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  const struct mrc_audit *audit = &sim->watch.of[0]->ends[0];
  CHECK_EQ(audit->verified, 5);
  CHECK_EQ(audit->n_immediates, 5);
  CHECK(audit->retransmitted > 0);
  CHECK_EQ(sim->watch.of[1]->ends[0].verified, 5);
  CHECK_EQ(sim->watch.n_touched, 0);
}

TEST(test_watch__refuses_what_it_cannot_see) {
  mrc_sim *sim = open_sim(.audit = 1);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 257), -EINVAL); /* 256 MiB at most */
  mrc_sim_destroy(sim);
  CHECK_PTR_EQ(open_sim(.audit = 1, .routing = MRC_SIM_ECMP, .transport = MRC_SIM_GO_BACK_N), NULL);
}

/* ---- The watch stops at errors ---- */

static void do_nothing(mrc_sim *sim) { (void)sim; }

static void place_twice(mrc_sim *sim) { sim->watch.of[0]->ends[0].target[7] ^= 0xFF; }

static void write_astray(mrc_sim *sim) { sim->watch.of[0]->ends[0].target[-1] = 0; }

static void lose_a_frame(mrc_sim *sim) { mrc_frame_pool_get(&sim->whole.fabric.pool); }

static void lose_the_carrier(mrc_sim *sim) { sim->whole.hosts.at[0].down = 3; }

static void narrow_the_window(mrc_sim *sim) { sim->watch.of[0]->ends[0].mpr = 1; }

TEST(test_watch__stops_at_what_is_wrong) {
  static const struct {
    void (*harm)(mrc_sim *);
    uint64_t at_ns;
    bool right;
  } rows[] = {{do_nothing, 20 * US, true},    {place_twice, 200 * MS, false},
              {write_astray, 20 * US, false}, {lose_a_frame, 20 * US, false},
              {lose_the_carrier, 0, false},   {narrow_the_window, 0, false}};
  EACH_ROW(i, rows) {
    const pid_t child = fork();
    if (child == 0) {
      freopen("/dev/null", "w", stderr);
      mrc_sim *sim = open_run();
      mrc_sim_run(sim, rows[i].at_ns);
      rows[i].harm(sim);
      mrc_sim_run(sim, 500 * MS);
      mrc_sim_destroy(sim);
      _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, !rows[i].right);
    if (rows[i].right) CHECK_EQ(status, 0);
  }
}
