/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/shards.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "sim_config.h"

enum { HOSTS = 64, T0S = 64, T1S = 4, PLANES = 2, CAPACITY = 4096 };
#ifdef __SANITIZE_THREAD__
enum { ROWS = 2 }; /* one thread runs them: the sanitizer finds nothing more in the others */
#else
enum { ROWS = 16 };
#endif

/* Everything that a run reports. */
struct results {
  int done;
  struct mrc_sim_stats stats;
  uint64_t received_bytes;
  struct mrc_sim_flow_info flows[HOSTS + 2];
  struct mrc_sim_port_info ports[HOSTS][PLANES];
  int n_samples, n_events, n_messages;
  struct mrc_sim_sample samples[CAPACITY];
  uint64_t plane_bytes[CAPACITY];
  struct mrc_sim_event events[CAPACITY];
  struct mrc_sim_message messages[CAPACITY];
};

static struct mrc_sim_config config_of(int row, uint32_t shards, uint32_t threads) {
  const struct mrc_sim_config config = {.seed = 1 + (uint64_t)row,
                                        .topology.hosts = HOSTS,
                                        .topology.planes = PLANES,
                                        .topology.t0 = T0S,
                                        .topology.t1 = T1S,
                                        .shards = shards,
                                        .threads = threads,
                                        .topology.host_rate_bps = 100 * GBIT,
                                        .topology.fabric_rate_bps = 100 * GBIT,
                                        .topology.host_delay_ns = 500,
                                        .topology.fabric_delay_ns = 500,
                                        .topology.buffer_bytes = 100000,
                                        .topology.ecn_low_bytes = 20000,
                                        .topology.ecn_high_bytes = 80000,
                                        .sndbuf_bytes = 65536,
                                        .wake_ns = 1000,
                                        .memory_bytes = 1 << 17,
                                        .topology.trims = 1,
                                        .qps_per_host = 32,
                                        .path_mtu = 4096,
                                        .mpr = 128,
                                        .spray = 1,
                                        .timeout = 10,
                                        .retry_linear = 7,
                                        .retry_exp = 7,
                                        .cc = MRC_CC_NSCC,
                                        .cc_base_rtt_ns = 9000,
                                        .sack_threshold_bytes = 16384,
                                        .sack_delay_ns = 10000};
  return config;
}

/* What distinguishes a row: each has what only one part of the simulator does. */
static void vary(int row, struct mrc_sim_config *config) {
  if (row == 1) config->probed = MRC_SIM_PROBED;
  if (row == 2) config->probed = MRC_SIM_COMPUTED;
  if (row == 3) config->wake_noise_ns = 3000;
  if (row == 4) config->audit = 1;
  if (row == 5) config->seal = MRC_SEAL_AEAD;
  if (row == 6) config->routing = MRC_SIM_ECMP;
  if (row == 7) config->transport = MRC_SIM_GO_BACK_N;
  if (row == 7) config->routing = MRC_SIM_ECMP;
  if (row == 8) config->topology.jitter_ns = 700;
  if (row == 9) config->topology.host_rate_bps = config->topology.fabric_rate_bps = 4000 * GBIT;
  if (row == 10) config->wake_ns = 0;
  if (row >= 13) {
    config->topology.pods = 4;
    config->topology.t1 = 4 * T1S;
    config->topology.t2 = 2 * T1S;
    config->topology.core_rate_bps = 100 * GBIT;
    config->topology.core_delay_ns = row == 14 ? 300 : 900;
    config->cc_base_rtt_ns = 12000;
  }
  if (row == 15) config->routing = MRC_SIM_ECMP;
  if (row == 11) {
    config->topology.fabric_delay_ns = 3000;
    config->cc_base_rtt_ns = 20000;
  }
  if (row % 2 == 0) config->sample_ns = 2000;
  if (row % 4 == 0) config->samples_planes = 1;
}

/* All hosts are a ring of two steps, which each begin when the last host has done the one before.
 */
static void add_job(mrc_sim *sim) {
  enum { FROM = HOSTS / 2 - 1, TO = HOSTS - FROM };
  for (uint32_t host = 0; host < HOSTS; host++)
    CHECK(add_flow(sim, .from = host, .to = (host + TO) % HOSTS, .bytes = 20000, .writes = 4,
                   .depth = 2, .start_ns = host == 9 ? 3000 : 0, .after = 1 + (host + FROM) % HOSTS,
                   .step_writes = 2, .job = 1, .job_flows = HOSTS, .pause_ns = 500) == (int)host);
}

static void add_flows(mrc_sim *sim, int row) {
  if (row == 12) {
    add_job(sim);
    return;
  }
  for (uint32_t host = 0; host < HOSTS; host++) {
    struct mrc_sim_flow_config flow = {.from = host,
                                       .to = (host + HOSTS / 2 + 1) % HOSTS,
                                       .bytes = 20000,
                                       .writes = 2,
                                       .depth = 2};
    if (host % 8 == 1) flow.to = 5; /* an incast */
    if (host % 8 == 2) flow.interval_ns = 5000;
    if (host % 8 == 3) flow.start_ns = 3000;
    if (host == 5) flow.after = 1 + 9;
    if (host % 16 == 4 && row != 7) {
      flow.paths = 1;
      flow.paths_until_ns = 8000;
    }
    CHECK_EQ(mrc_sim_add_flow(sim, &flow), (int)host);
  }
  if (row % 3 == 0)
    /* between neighbours among seven shards: threads simulate them at the same time */
    CHECK(add_flow(sim, .from = 45, .to = 50, .bytes = 4096, .tcp_plane = 1) == HOSTS);
}

static void add_faults(mrc_sim *sim, int row) {
  if (row % 3 == 0) return;
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_T1, .index = 1, .kind = MRC_SIM_SILENT, .at_ns = 6000,
                     .until_ns = 40000),
           0);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_PORT, .index = 40, .kind = MRC_SIM_DOWN, .at_ns = 7000,
                     .until_ns = 30000),
           0);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_PLANE, .plane = 2, .kind = MRC_SIM_LOSS, .a = 30000),
           0);
  if (row % 3 == 1) return;
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_UPLINK, .index = 3, .t1 = 2, .kind = MRC_SIM_DELAY,
                     .at_ns = 5000, .a = 90),
           0);
  if (row == 14)
    CHECK_EQ(add_fault(sim, .target = MRC_SIM_T2, .index = 6, .kind = MRC_SIM_SILENT, .at_ns = 5500,
                       .until_ns = 30000),
             0);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_T0, .index = 7, .kind = MRC_SIM_DUPLICATE, .a = 300000),
           0);
}

static void read_results(const mrc_sim *sim, struct results *results) {
  mrc_sim_stats(sim, &results->stats);
  results->received_bytes = mrc_sim_received_bytes(sim);
  for (uint32_t i = 0; i < sim->flows.n; i++)
    CHECK_EQ(mrc_sim_flow(sim, i, &results->flows[i]), 0);
  for (uint32_t host = 0; host < HOSTS; host++)
    for (uint32_t plane = 0; plane < PLANES; plane++)
      CHECK_EQ(mrc_sim_last_hop(sim, host, plane + 1, &results->ports[host][plane]), 0);
  results->n_samples = mrc_sim_samples(sim, results->samples, CAPACITY);
  results->n_events = mrc_sim_events(sim, results->events, CAPACITY);
  results->n_messages = mrc_sim_messages(sim, results->messages, CAPACITY);
  (void)mrc_sim_plane_samples(sim, 2, results->plane_bytes, CAPACITY);
}

/* The caller frees the results. */
static struct results *run(int row, uint32_t shards, uint32_t threads) {
  struct mrc_sim_config config = config_of(row, shards, threads);
  vary(row, &config);
  mrc_sim *sim = mrc_sim_create(&config);
  CHECK(sim != NULL);
  add_flows(sim, row);
  add_faults(sim, row);
  struct results *results = calloc(1, sizeof(*results));
  CHECK(results != NULL);
  CHECK_EQ(mrc_sim_run(sim, 4321), 0); /* as between two looks at the progress */
  results->done = mrc_sim_run(sim, 80000);
  read_results(sim, results);
  CHECK_EQ(sim->n_shards, shards);
  mrc_sim_destroy(sim);
  return results;
}

static void check_equal(const struct results *a, const struct results *b) {
  CHECK_EQ(a->stats.trace, b->stats.trace);
  CHECK_EQ(a->stats.now_ns, b->stats.now_ns);
  CHECK_EQ(a->stats.events, b->stats.events);
  CHECK_EQ(a->n_samples, b->n_samples);
  CHECK_EQ(a->n_events, b->n_events);
  CHECK_EQ(a->n_messages, b->n_messages);
  CHECK_MEM_EQ(a->events, b->events, sizeof a->events);
  CHECK_MEM_EQ(a->messages, b->messages, sizeof a->messages);
  CHECK_MEM_EQ(a, b, sizeof *a);
}

/* Whatever happens in the fabric, no result depends on how it is divided. */
static void compare(const uint32_t *shards, int n) {
  for (int row = 0; row < ROWS; row++) {
    struct results *one = run(row, 1, 1);
    CHECK_ROW(row);
    CHECK(one->stats.packets > 5 * HOSTS && one->n_messages > HOSTS / 2);
    CHECK((row % 3 == 0) == (one->stats.lost == 0));
    for (int i = 0; i < n; i++) {
      CHECK_ROW(100 * row + i);
      struct results *several = run(row, shards[i], 1);
      check_equal(one, several);
      free(several);
    }
    free(one);
  }
}

MORE(test_run__no_result_depends_on_shards) { compare((const uint32_t[]){7}, 1); }

SLOW(test_run__nor_on_few_or_many) { compare((const uint32_t[]){2, 64}, 2); }

/* Nor on threads. */
TEST(test_run__no_result_depends_on_threads) {
  static const int rows[] = {0, 5, 7};
  for (int i = 0; i < 3; i++) {
    CHECK_ROW(rows[i]);
    struct results *one = run(rows[i], 7, 1), *several = run(rows[i], 7, 2);
    check_equal(one, several);
    free(several);
    free(one);
  }
}

/* A trace has its lines in the order of time, and without delay between shards there is no window.
 */
TEST(test_make__one_shard_where_there_can_be_no_more) {
  SIM sim = open_sim(.shards = 2);
  CHECK_EQ(add_flow(sim), 0);
  CHECK_EQ(mrc_sim_trace_to(sim, "/dev/null"), 0);
  CHECK_EQ(mrc_sim_run(sim, 10 * MS), 1);
  CHECK_EQ(sim->n_shards, 1);
  mrc_sim_destroy(sim);
  sim = open_sim(.shards = 2);
  CHECK_EQ(add_flow(sim), 0);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_UPLINK, .kind = MRC_SIM_DELAY, .at_ns = 5000), 0);
  CHECK_EQ(mrc_sim_run(sim, 10 * MS), 1);
  CHECK_EQ(sim->n_shards, 1);
  mrc_sim_destroy(sim);
  sim = open_sim(.shards = 2);
  CHECK_EQ(add_flow(sim), 0);
  CHECK_EQ(add_flow(sim, .after = 1), 1); /* flow 0 arrives at host 2, and this one is at host 0 */
  CHECK_EQ(mrc_sim_run(sim, 10 * MS), 1);
  CHECK_EQ(sim->n_shards, 1);
  mrc_sim_destroy(sim);
  sim = open_sim(.shards = 9);
  CHECK_EQ(add_flow(sim), 0);
  CHECK_EQ(mrc_sim_run(sim, 10 * MS), 1);
  CHECK_EQ(sim->n_shards, 2); /* one for each T0 */
  CHECK_EQ(mrc_sim_trace_to(sim, "/dev/null"), -EINVAL);
}
