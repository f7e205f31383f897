/* SPDX-License-Identifier: Apache-2.0 */
/* Cost of a packet in the simulator by number of hosts, of QPs per host and of EVs per QP. Host i
   sends one write over each of its QPs to host i + HOSTS / 2, so every packet takes the four hops.
   The bytes of a host do not depend on QPS and EVS.

     cost HOSTS QPS EVS KIB      prints the packets sent, the CPU time of the run in ns, and the
                                 most memory that was resident, in KiB

   To count only the run with callgrind, use --toggle-collect=run. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "core/base.h"
#include "mrc.h"
#include "sim/sim.h"

enum { HOSTS_PER_T0 = 32, T1S = 8, GBIT = 1000000000, BASE_RTT_NS = 9000 };

static uint64_t cpu_ns(void) {
  struct timespec now;
  mrc_assert(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static mrc_sim *make(uint32_t hosts, uint32_t qps, uint32_t evs, uint32_t bytes) {
  const struct mrc_sim_config config = {.seed = 1,
                                        .topology.hosts = hosts,
                                        .topology.planes = 8,
                                        .topology.t0 = hosts / HOSTS_PER_T0,
                                        .topology.t1 = T1S,
                                        .evs_per_plane = evs / 8,
                                        .topology.host_rate_bps = (uint64_t)100 * GBIT,
                                        .topology.fabric_rate_bps = (uint64_t)400 * GBIT,
                                        .topology.host_delay_ns = 500,
                                        .topology.fabric_delay_ns = 500,
                                        .sndbuf_bytes = 65536,
                                        .wake_ns = 1000,
                                        .cc_base_rtt_ns = BASE_RTT_NS,
                                        .memory_bytes = bytes,
                                        .qps_per_host = 2 * qps,
                                        .path_mtu = 4096,
                                        .mpr = 1024,
                                        .spray = 1,
                                        .timeout = 16,
                                        .retry_linear = 7,
                                        .retry_exp = 6,
                                        .cc = MRC_CC_NSCC,
                                        .sack_threshold_bytes = 16384,
                                        .sack_delay_ns = 10000,
                                        .noise_ns = 2000};
  mrc_sim *sim = mrc_sim_create(&config);
  mrc_assert(sim);
  for (uint32_t host = 0; host < hosts; host++) {
    const struct mrc_sim_flow_config flow = {
        .from = host, .to = (host + hosts / 2) % hosts, .bytes = bytes, .writes = 1, .depth = 1};
    for (uint32_t i = 0; i < qps; i++)
      mrc_assert(mrc_sim_add_flow(sim, &flow) >= 0);
  }
  return sim;
}

/* The measured part: without the start, which creates QPs and touches memory for the first time. */
__attribute__((noinline)) static void run(mrc_sim *sim) {
  mrc_assert(mrc_sim_run(sim, UINT64_C(1000000000)) == 1);
}

int main(int argc, char **argv) {
  mrc_assert(argc == 5);
  const uint32_t hosts = (uint32_t)atoi(argv[1]), qps = (uint32_t)atoi(argv[2]);
  const uint32_t evs = (uint32_t)atoi(argv[3]), kib = (uint32_t)atoi(argv[4]);
  mrc_sim *sim = make(hosts, qps, evs, kib * 1024 / qps);
  mrc_assert(mrc_sim_run(sim, 0) == 0);
  const uint64_t before_ns = cpu_ns();
  run(sim);
  const uint64_t ns = cpu_ns() - before_ns;
  struct mrc_sim_stats stats;
  mrc_sim_stats(sim, &stats);
  struct rusage usage;
  mrc_assert(getrusage(RUSAGE_SELF, &usage) == 0);
  printf("%" PRIu64 " %" PRIu64 " %ld\n", stats.packets, ns, usage.ru_maxrss);
  mrc_sim_destroy(sim);
  return 0;
}
