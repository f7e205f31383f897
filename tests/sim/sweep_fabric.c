/* SPDX-License-Identifier: Apache-2.0 */
/* Random fabrics, each drawn from its seed: topology, links, switches, transport, traffic, faults
   with their times. Every fault ends, so every write must complete with every byte in its place. In
   some runs the whole fabric goes silent for good instead; then every write must end, with success
   or failure. The auditors check every event, and each seed must give the same trace twice.

     sweep_fabric FIRST COUNT      runs seeds FIRST .. FIRST + COUNT - 1
     sweep_fabric SEED 1 -v        runs one seed and prints what was drawn

   A failure prints its seed. A seed that found a defect becomes a test with a name. */
#include "mrc.h"
#include "sim/numbers.h"
#include "sim/sim.h"
#include "sweep.h"

#define GBIT UINT64_C(1000000000)

enum { MAX_FLOWS = 12, MAX_FAULTS = 8, MAX_FLOW_BYTES = 400000 };

/* ---- draws ---- */

static void draw_topology(struct mrc_prng *prng, struct mrc_sim_config *config) {
  config->topology.planes = 1 + below(prng, 4);
  config->topology.t0 = 1 + below(prng, 3);
  config->topology.t1 = 1 + below(prng, 5);
  config->topology.hosts = config->topology.t0 * (1 + below(prng, 4));
  if (config->topology.hosts == 1) config->topology.hosts = 2;
  config->routing = one_in(prng, 4) ? MRC_SIM_ECMP : MRC_SIM_SOURCE_ROUTES;
  config->topology.host_rate_bps = PICK(prng, 1, 10, 100, 400) * GBIT;
  config->topology.fabric_rate_bps = PICK(prng, 1, 10, 100, 400) * GBIT;
  config->topology.host_delay_ns = below(prng, 5 * US);
  config->topology.fabric_delay_ns = below(prng, one_in(prng, 4) ? 200 * US : 5 * US);
  if (one_in(prng, 3)) config->topology.jitter_ns = below(prng, 20 * US);
  if (!one_in(prng, 3)) config->topology.buffer_bytes = 20000 + below(prng, 500000);
  config->topology.trims = !one_in(prng, 3);
  if (!one_in(prng, 3)) {
    config->topology.ecn_low_bytes = below(prng, 100000);
    config->topology.ecn_high_bytes = config->topology.ecn_low_bytes + 1 + below(prng, 200000);
  }
  config->sndbuf_bytes = (uint32_t)PICK(prng, 0, 8000, 65536, 1000000);
  config->wake_ns = below(prng, one_in(prng, 4) ? 50 * US : 2 * US);
}

static void draw_transport(struct mrc_prng *prng, struct mrc_sim_config *config, bool dies) {
  config->evs_per_plane = one_in(prng, 3) ? 1 + below(prng, 3) : 0;
  config->ev_active_per_plane = one_in(prng, 3) ? 1 + below(prng, 3) : 0;
  config->single_path = one_in(prng, 10);
  config->path_mtu = (uint32_t)PICK(prng, 256, 1024, 4096, 8844);
  config->mpr = (uint32_t)PICK(prng, 128, 256, 1024, 4096);
  config->spray = (uint32_t)PICK(prng, 0, 1, 1, 3);
  config->seal = !one_in(prng, 3)   ? MRC_SEAL_NONE
                 : config->seed % 2 ? MRC_SEAL_AUTH
                                    : MRC_SEAL_AEAD;
  config->first_psn = one_in(prng, 2) ? 0xFFFFFF - below(prng, 200) : below(prng, 1u << 24);
  config->timeout = 8 + below(prng, 7);
  config->retry_linear = 7;
  config->retry_exp =
      dies ? 3 : 25; /* 25 never gives up: after healing every write must complete */
  config->cc = (uint32_t)PICK(prng, MRC_CC_NSCC, MRC_CC_NSCC, MRC_CC_DELAY, MRC_CC_NULL);
  /* Without congestion control a slow link never drains: trimmed headers go first, and the headers
     of fast hosts alone can fill a slower fabric forever. */
  const uint64_t slowest_bps =
      mrc_min_u64(config->topology.host_rate_bps, config->topology.fabric_rate_bps);
  const bool fills =
      config->topology.trims && config->topology.fabric_rate_bps < config->topology.host_rate_bps;
  if (config->cc == MRC_CC_NULL && (slowest_bps < 10 * GBIT || fills)) config->cc = MRC_CC_DELAY;
  config->cc_base_rtt_ns =
      2 * (2 * config->topology.host_delay_ns + 2 * config->topology.fabric_delay_ns) +
      config->wake_ns + 2000;
  config->sack_threshold_bytes = (uint32_t)PICK(prng, 1, 16384, 100000);
  config->sack_delay_ns = 1000 + below(prng, 100 * US);
  config->noise_ns = (uint32_t)PICK(prng, 1000, 2000, 50000, 500000);
  struct mrc_prng later = {.state = ~config->seed}; /* the other draws do not depend on it */
  if (one_in(&later, 4)) config->backups = below(&later, 1u << config->topology.planes);
}

/* Draws how late hosts run (within their engines' noise_ns), where marks are made, and whether QPs
   have probed their paths. */
static void draw_hosts(struct mrc_prng *prng, struct mrc_sim_config *config) {
  if (one_in(prng, 4)) config->wake_noise_ns = below(prng, config->noise_ns);
  config->ecn_last_hop = one_in(prng, 4);
  config->probed = one_in(prng, 2);
}

/* Gives every fifth seed three tiers, from numbers of its own: pods like the fabric so far. */
static void draw_pods(struct mrc_sim_config *config) {
  if (seed % 5 != 3) return;
  struct mrc_prng prng = {.state = seed << 32};
  config->topology.pods = 2 + below(&prng, 2);
  config->topology.t2 = config->topology.t1 * (1 + below(&prng, 3));
  config->topology.hosts *= config->topology.pods;
  config->topology.t0 *= config->topology.pods;
  config->topology.t1 *= config->topology.pods;
  config->topology.core_rate_bps = PICK(&prng, 10, 100, 400) * GBIT;
  if (config->cc == MRC_CC_NULL) config->topology.core_rate_bps = config->topology.fabric_rate_bps;
  config->topology.core_delay_ns = below(&prng, 5 * US);
  config->cc_base_rtt_ns += 4 * config->topology.core_delay_ns + 2000;
}

/* The T1 at the place of `t1` in the pod of a T0. */
static uint32_t t1_above(const struct mrc_sim_config *config, uint32_t t0, uint32_t t1) {
  return mrc_topology_t1_on(&config->topology, mrc_topology_pod_of_t0(&config->topology, t0), t1);
}

/* Makes a part of three tiers a T2, or the link between a T2 and a T1. */
static void raise_part(struct mrc_prng *prng, const struct mrc_sim_config *config,
                       struct mrc_sim_fault *part) {
  if (config->topology.t2 == 0 || !one_in(prng, 3)) return;
  part->t2 = below(prng, config->topology.t2);
  part->target = one_in(prng, 2) ? MRC_SIM_T2 : MRC_SIM_CORE;
  part->index =
      part->target == MRC_SIM_T2
          ? part->t2
          : mrc_topology_t1_on(&config->topology, below(prng, config->topology.pods), part->t2);
}

/* Whether a part is above the T0s, and on other paths than those over the T1s at this place. */
static bool is_beside(const struct mrc_sim_config *config, const struct mrc_sim_fault *part,
                      uint32_t place) {
  const uint32_t each = mrc_topology_t1s_of_pod(&config->topology);
  switch (part->target) {
    case MRC_SIM_T1:
      return part->index % each != place;
    case MRC_SIM_UPLINK:
      return part->t1 % each != place;
    case MRC_SIM_T2:
    case MRC_SIM_CORE:
      return part->t2 % each != place;
    default:
      return false;
  }
}

/* Draws links and switches that do not exist, from numbers of its own. One plane keeps all links at
   the T1s of one place in their pods: every two hosts have a path. */
static void draw_absent(mrc_sim *sim, const struct mrc_sim_config *config) {
  struct mrc_prng prng = {.state = ~seed};
  if (!one_in(&prng, 3)) return;
  const uint32_t whole_plane = 1 + below(&prng, config->topology.planes),
                 whole_place =
                     below(&prng, config->topology.t1) % mrc_topology_t1s_of_pod(&config->topology);
  for (uint32_t n = 1 + below(&prng, 6); n > 0; n--) {
    struct mrc_sim_fault part = {
        .target = (uint32_t)PICK(&prng, MRC_SIM_T0, MRC_SIM_T1, MRC_SIM_UPLINK, MRC_SIM_UPLINK,
                                 MRC_SIM_PORT, MRC_SIM_PORT),
        .plane = 1 + below(&prng, config->topology.planes),
        .t1 = below(&prng, config->topology.t1)};
    const uint32_t many[] = {1,
                             1,
                             config->topology.t0,
                             config->topology.t1,
                             config->topology.t0,
                             config->topology.hosts};
    part.index = below(&prng, many[part.target]);
    if (part.target == MRC_SIM_UPLINK) part.t1 = t1_above(config, part.index, part.t1);
    raise_part(&prng, config, &part);
    if (part.plane == whole_plane && !is_beside(config, &part, whole_place)) continue;
    mrc_assert(mrc_sim_remove_links(sim, &part) == 0);
    if (verbose)
      printf("  absent: target %u plane %u index %u t1 %u t2 %u\n", part.target, part.plane,
             part.index, part.t1, part.t2);
  }
}

/* Draws planes that have a lower rate or a longer delay for the whole run. */
static void draw_planes(struct mrc_prng *prng, mrc_sim *sim, const struct mrc_sim_config *config) {
  const bool may_be_slow = config->cc != MRC_CC_NULL;
  for (uint32_t plane = 1; plane <= config->topology.planes; plane++) {
    struct mrc_sim_fault change = {
        .target = MRC_SIM_PLANE, .plane = plane, .kind = MRC_SIM_DELAY, .a = below(prng, 500 * US)};
    if (one_in(prng, 4)) mrc_assert(mrc_sim_set_links(sim, &change) == 0);
    change.kind = MRC_SIM_RATE;
    change.a = config->topology.host_rate_bps / PICK(prng, 2, 4, 10, 100);
    if (!one_in(prng, 4) || !may_be_slow) continue;
    mrc_assert(mrc_sim_set_links(sim, &change) == 0);
    if (verbose) printf("  plane %u of %" PRIu64 " Mbit/s\n", plane, change.a / 1000000);
  }
}

static void add_flow(struct mrc_prng *prng, mrc_sim *sim, uint32_t hosts, uint32_t n,
                     uint32_t *writes, bool dies) {
  const uint32_t from = below(prng, hosts);
  struct mrc_sim_flow_config flow = {.from = from,
                                     .to = (from + 1 + below(prng, hosts - 1)) % hosts,
                                     .start_ns = one_in(prng, 2) ? 0 : below(prng, 300 * US),
                                     .interval_ns = one_in(prng, 3) ? 1 + below(prng, 100 * US) : 0,
                                     .bytes = (uint32_t)PICK(prng, 0, 1, 4096, 5000, 65536, 300001),
                                     .immediate = one_in(prng, 2),
                                     .depth = 1 + below(prng, 16)};
  flow.writes = 1 + below(prng, flow.bytes ? mrc_min_u32(40, MAX_FLOW_BYTES / flow.bytes) : 40);
  if (n > 0 && !dies && one_in(prng, 6)) { /* no more writes than the other flow allows */
    flow.after = 1 + below(prng, n);
    flow.writes = mrc_min_u32(flow.writes, writes[flow.after - 1] + 1);
  }
  writes[n] = flow.writes;
  struct mrc_prng later = {.state = ~prng->state};
  flow.redundant = flow.bytes <= MRC_MAX_REDUNDANT && one_in(&later, 4);
  mrc_assert(mrc_sim_add_flow(sim, &flow) == (int)n);
}

/* Draws `a` and `b` for a fault of this kind. */
static void draw_degree(struct mrc_prng *prng, struct mrc_sim_fault *fault) {
  fault->a = PICK(prng, 100, 10000, 100000,
                  500000); /* a probability in ppm, unless the kind needs another unit */
  fault->b = 1 + below(prng, 50 * US);
  if (fault->kind == MRC_SIM_LOSE) {
    fault->b = 2 + below(prng, 30);
    fault->a = 1 + below(prng, (uint32_t)fault->b - 1);
  }
  if (fault->kind == MRC_SIM_MASK) fault->a = mrc_prng_next(prng) & mrc_prng_next(prng);
  if (fault->kind == MRC_SIM_BURST) fault->b = 1 + below(prng, 50);
  if (fault->kind == MRC_SIM_BURST) fault->a /= 10;
  if (fault->kind == MRC_SIM_DELAY || fault->kind == MRC_SIM_JITTER) fault->a = below(prng, MS);
  if (fault->kind == MRC_SIM_RATE) fault->a = PICK(prng, 1, 2, 10) * GBIT;
}

static void add_fault(struct mrc_prng *prng, mrc_sim *sim, const struct mrc_sim_config *config) {
  struct mrc_sim_fault fault = {.target = below(prng, MRC_SIM_PORT + 1),
                                .plane = 1 + below(prng, config->topology.planes),
                                .t1 = below(prng, config->topology.t1),
                                .kind = below(prng, MRC_SIM_RATE + 1),
                                .class = one_in(prng, 2) ? 0 : below(prng, 3),
                                .at_ns = below(prng, MS)};
  const uint32_t many[] = {
      1, 1, config->topology.t0, config->topology.t1, config->topology.t0, config->topology.hosts};
  fault.index = below(prng, many[fault.target]);
  if (fault.target == MRC_SIM_UPLINK) fault.t1 = t1_above(config, fault.index, fault.t1);
  raise_part(prng, config, &fault);
  fault.until_ns = fault.at_ns + 1 + below(prng, one_in(prng, 4) ? 100 * MS : 2 * MS);
  draw_degree(prng, &fault);
  mrc_assert(mrc_sim_add_fault(sim, &fault) == 0);
  if (verbose)
    printf("  fault %u of %u on target %u plane %u index %u t1 %u t2 %u: %" PRIu64 " %" PRIu64
           ", %" PRIu64 " to %" PRIu64 " us\n",
           fault.kind, fault.class, fault.target, fault.plane, fault.index, fault.t1, fault.t2,
           fault.a, fault.b, fault.at_ns / US, fault.until_ns / US);
}

static void tell(const struct mrc_sim_config *c) {
  const struct mrc_topology *topology = &c->topology;
  printf("%u hosts, %u planes, %u pods, %u T0s, %u T1s, %u T2s, routing %u; %" PRIu64
         " and %" PRIu64 " Gbit/s, %" PRIu64 " and %" PRIu64 " ns, jitter %" PRIu64
         "; buffer %" PRIu64 "%s, ECN %" PRIu64 " to %" PRIu64 ", send buffer %" PRIu64
         ", wake %" PRIu64 " + %" PRIu64 "\n",
         topology->hosts, topology->planes, mrc_topology_pods(topology), topology->t0, topology->t1,
         topology->t2, c->routing, topology->host_rate_bps / GBIT, topology->fabric_rate_bps / GBIT,
         topology->host_delay_ns, topology->fabric_delay_ns, topology->jitter_ns,
         topology->buffer_bytes, topology->trims ? " trims" : "", topology->ecn_low_bytes,
         topology->ecn_high_bytes, c->sndbuf_bytes, c->wake_ns, c->wake_noise_ns);
  printf(
      "  EVs %u, active %u%s, MTU %u, MPR %u, spray %u, timeout %u, cc %u, SACK %u B %u ns,"
      " noise %u%s\n",
      c->evs_per_plane, c->ev_active_per_plane, c->single_path ? ", one path" : "", c->path_mtu,
      c->mpr, c->spray, c->timeout, c->cc, c->sack_threshold_bytes, c->sack_delay_ns, c->noise_ns,
      c->probed ? ", probed" : "");
}

/* ---- run ---- */

static void check_flows(const mrc_sim *sim, uint32_t n_flows, bool dies) {
  for (uint32_t i = 0; i < n_flows; i++) {
    struct mrc_sim_flow_info info;
    mrc_assert(mrc_sim_flow(sim, i, &info) == 0);
    mrc_assert(dies || info.failed == 0);
    if (verbose)
      printf("  flow %u: %" PRIu64 " writes, %" PRIu64 " failed, %" PRIu64 " packets, %" PRIu64
             " retransmitted, %" PRIu64 " spurious\n",
             i, info.completed, info.failed, info.sent_packets, info.retransmitted_packets,
             info.spurious_packets);
  }
}

static uint64_t run_once(void) {
  struct mrc_prng prng = {.state = seed};
  struct mrc_sim_config config = {.seed = mrc_prng_next(&prng),
                                  .memory_bytes = 1 << 20,
                                  .qps_per_host = 2 * MAX_FLOWS,
                                  .audit = 1};
  const bool dies = one_in(&prng, 8);
  draw_topology(&prng, &config);
  draw_transport(&prng, &config, dies);
  draw_hosts(&prng, &config);
  draw_pods(&config);
  if (verbose) tell(&config);
  mrc_sim *sim = mrc_sim_create(&config);
  mrc_assert(sim);
  draw_absent(sim, &config);
  if (one_in(&prng, 3)) draw_planes(&prng, sim, &config);
  const uint32_t n_flows = 1 + below(&prng, MAX_FLOWS);
  uint32_t writes[MAX_FLOWS]; /* of each flow */
  for (uint32_t i = 0; i < n_flows; i++)
    add_flow(&prng, sim, config.topology.hosts, i, writes, dies);
  for (uint32_t n = one_in(&prng, 4) ? 0 : below(&prng, MAX_FAULTS); n > 0; n--)
    add_fault(&prng, sim, &config);
  if (dies) {
    const struct mrc_sim_fault end = {.at_ns = below(&prng, MS), .until_ns = UINT64_MAX};
    mrc_assert(mrc_sim_add_fault(sim, &end) == 0);
  }
  const bool finished = mrc_sim_run(sim, 300 * SECOND);
  struct mrc_sim_stats stats;
  mrc_sim_stats(sim, &stats);
  if (verbose)
    printf("  %s after %" PRIu64 " us, %" PRIu64 " packets\n", finished ? "done" : "NOT done",
           stats.now_ns / US, stats.packets);
  check_flows(sim, n_flows, dies);
  mrc_assert(finished);
  mrc_assert(stats.unroutable == 0);
  mrc_sim_destroy(sim);
  return stats.trace;
}

int main(int argc, char **argv) { return run_seeds("sweep_fabric", argc, argv, run_once); }
