/* SPDX-License-Identifier: Apache-2.0 */
/* Random scenarios, each drawn from its seed: fabric, drivers, QPs, writes and faults. At the end
   injected faults stop, so every write must complete with every byte in its place. The auditors
   check every packet, and each seed must give the same trace twice.

     sweep FIRST COUNT      runs seeds FIRST .. FIRST + COUNT - 1
     sweep SEED 1 -v        runs one seed and prints what was drawn

   A failure prints its seed. A seed that found a defect becomes a test with a name. */
#include <errno.h>
#include <string.h>

#include "pair/connect.h"
#include "sweep.h"

enum { MAX_QPS = 4, MAX_FAULTS = 8, MAX_WRS = 200, MAX_QP_BYTES = 1 << 20 };

/* ---- draws ---- */

/* Each fault is off in most runs: some runs have only one fault, some have none. */
static struct mrc_link_config draw_path(struct mrc_prng *prng) {
  struct mrc_link_config path = {.delay_ns = 1 * US + below(prng, 200 * US)};
  if (one_in(prng, 4)) path.delay_ns += below(prng, 2 * MS);
  if (one_in(prng, 3)) path.loss_ppm = (uint32_t)PICK(prng, 100, 1000, 10000, 50000, 200000);
  if (one_in(prng, 5))
    path.loss_mask = mrc_prng_next(prng) & mrc_prng_next(prng) & mrc_prng_next(prng);
  if (one_in(prng, 4)) path.duplicate_ppm = (uint32_t)PICK(prng, 1000, 100000, 500000);
  if (one_in(prng, 4)) path.reorder_ppm = (uint32_t)PICK(prng, 1000, 50000, 500000);
  path.reorder_ns = 1 * US + below(prng, 300 * US);
  if (one_in(prng, 5)) path.corrupt_ppm = (uint32_t)PICK(prng, 100, 10000, 100000);
  if (one_in(prng, 4)) path.rate_bps = PICK(prng, 20000000, 500000000, 10000000000);
  if (path.rate_bps && one_in(prng, 2)) path.queue_bytes = 20000 + below(prng, 300000);
  if (path.rate_bps && one_in(prng, 2)) path.ecn_bytes = 1 + below(prng, 30000);
  path.trim = path.queue_bytes && one_in(prng, 3);
  if (one_in(prng, 12)) { /* long delay; with high loss too it would take too long */
    path.delay_ns += below(prng, 200 * MS);
    path.loss_ppm /= 20;
    path.corrupt_ppm = 0;
    path.loss_mask = 0;
  }
  return path;
}

/* Planes that share a port of a host, ports with other numbers there, backups. */
static void draw_wiring(struct mrc_pair_config *config) {
  struct mrc_prng prng = {.state = ~config->seed}; /* the draws before it do not depend on it */
  if (one_in(&prng, 3)) config->backups = below(&prng, 1u << config->planes);
  struct mrc_prng later = {.state = ~config->seed + 1};
  if (one_in(&later, 3)) config->late = (int)below(&later, (uint32_t)config->planes);
  if (config->hosts > 2 || config->family == 4 || !one_in(&prng, 3)) return;
  const int n = 1 + (int)below(&prng, (uint32_t)config->planes), host = (int)below(&prng, 2);
  for (int i = 0; i < config->planes; i++) {
    config->ports[host][i] = (uint8_t)(1 + i % n);
    config->ports[1 - host][i] = (uint8_t)(1 + i / n);
  }
}

static struct mrc_pair_config draw_pair(struct mrc_prng *prng) {
  struct mrc_pair_config config = {
      .seed = mrc_prng_next(prng),
      .hosts = one_in(prng, 4) ? 3 : 2,
      .planes = 1 + (int)below(prng, 4),
      .paths = 1 + (int)below(prng, 4),
      .family = one_in(prng, 4) ? 4 : 6,
      .path = draw_path(prng),
      .driver = {.capacity = 1 + (int)below(prng, 32)},
  };
  if (one_in(prng, 3)) config.driver.refuse_one_in = 2 + (int)below(prng, 20);
  if (one_in(prng, 3)) config.driver.wake_ns = below(prng, 200 * US);
  if (one_in(prng, 4)) config.driver.packet_ns = below(prng, 20 * US);
  if (one_in(prng, 4)) config.driver.stall_ppm = (uint32_t)PICK(prng, 1000, 50000);
  config.driver.unstamped = one_in(prng, 4);
  config.driver.stall_ns = 1 + below(prng, 20 * MS);
  if (one_in(prng, 3)) {
    config.port_out.rate_bps = PICK(prng, 100000000, 500000000, 10000000000);
    if (one_in(prng, 2)) config.port_out.queue_bytes = 100000 + below(prng, 1000000);
    if (one_in(prng, 2)) config.driver.sndbuf_bytes = 20000 + below(prng, 200000);
  }
  if (one_in(prng, 4)) config.port_in.rate_bps = PICK(prng, 100000000, 500000000, 10000000000);
  if (one_in(prng, 6)) config.engine.cq_depth = 16 + below(prng, 64);
  if (one_in(prng, 6)) config.engine.max_burst_bytes = 16384 + below(prng, 40000);
  config.engine.seal_epoch_bits = 11 + below(prng, 4);
  draw_wiring(&config);
  return config;
}

static struct mrc_pair_qp_config draw_qp(struct mrc_prng *prng, const struct mrc_pair *pair,
                                         bool dies) {
  const int from = (int)below(prng, (uint32_t)pair->config.hosts);
  struct mrc_pair_qp_config config = {
      .from = from,
      .to = (from + 1) % pair->config.hosts,
      .memory_bytes = MAX_QP_BYTES,
      .path_mtu = (uint32_t)PICK(prng, 256, 1024, 4096, 8844),
      .mpr = (uint32_t)PICK(prng, 128, 256, 1024, 4096),
      .sq_depth = 1 + below(prng, 64),
      .max_wimm = 1 + below(prng, 40),
      .spray = (uint32_t)PICK(prng, 0, 0, 1, 3),
      .ev_active_per_plane = below(prng, 3),
      .sq_psn = one_in(prng, 2) ? 0xFFFFFF - below(prng, 2000) : below(prng, 1u << 24),
      .timeout = (uint8_t)(10 + below(prng, 5)),
      .retry_linear = 7,
      .retry_exp = dies ? 3 : 25, /* 25 never gives up: after healing every write must complete */
      .cc = one_in(prng, 3) ? MRC_CC_NSCC : MRC_CC_DELAY,
  };
  config.dynamic_mpr = one_in(prng, 3);
  config.sack_times = one_in(prng, 2);
  /* With a long delay the round trip must be known before data, or timers expire before answers. */
  const bool is_far = pair->config.path.delay_ns > 5 * MS;
  config.probe = is_far || one_in(prng, 4);
  if (is_far) config.cc = MRC_CC_DELAY; /* NSCC's defaults are for short delays */
  /* Without congestion control a slow link with an unlimited queue never drains. */
  const bool is_slow =
      pair->config.path.rate_bps || pair->config.port_out.rate_bps || pair->config.port_in.rate_bps;
  if (!is_slow && one_in(prng, 5)) config.cc = MRC_CC_NULL;
  if (one_in(prng, 8)) config.integrity = MRC_INTEGRITY_UDP;
  config.seal = (uint8_t)PICK(prng, MRC_SEAL_NONE, MRC_SEAL_NONE, MRC_SEAL_AUTH, MRC_SEAL_AEAD);
  return config;
}

static uint32_t draw_bytes(struct mrc_prng *prng, uint32_t mtu) {
  switch (below(prng, 6)) {
    case 0:
      return 0;
    case 1:
      return 1 + below(prng, 8);
    case 2:
      return mtu - 1 + below(prng, 3);
    case 3:
      return mtu * (1 + below(prng, 20));
    default:
      return below(prng, one_in(prng, 5) ? 400000 : 20000);
  }
}

/* ---- run ---- */

struct run {
  struct mrc_pair *pair;
  struct mrc_prng prng;
  struct mrc_prng
      control; /* for draws of the controller; those of other runs do not depend on it */
  int wrs;     /* still to be posted */
  int faults;  /* still to inject */
  bool mute;   /* nothing passes the late planes */
  bool weighs;
  bool doubles; /* some writes are redundant */
  bool joined[MRC_PAIR_MAX_ENDS];
  bool dies; /* retries are finite, and at the end the network goes silent instead of healing */
};

static void post(struct run *run) {
  const int end = (int)below(&run->prng, (uint32_t)run->pair->n_ends);
  const struct mrc_pair_end *e = run->pair->ends[end];
  if (e->done) return;
  const uint64_t room = e->audit.memory_bytes - e->audit.used_bytes;
  uint32_t bytes = draw_bytes(&run->prng, e->audit.path_mtu);
  if (bytes > room) bytes = 0;
  const bool imm = one_in(&run->prng, 3) || bytes == 0;
  const bool twice = run->doubles && bytes <= MRC_MAX_REDUNDANT && one_in(&run->control, 2);
  const int error = twice ? mrc_pair_write_twice(run->pair, end, bytes, imm)
                    : imm ? mrc_pair_write_imm(run->pair, end, bytes)
                          : mrc_pair_write(run->pair, end, bytes);
  mrc_assert(error == 0 || error == -ENOBUFS || (error == -EPERM && (e->ended || run->dies)));
}

/* A responder grants another window, if dynamic_mpr is on. */
static void regrant(struct run *run) {
  const struct mrc_pair_end *end = run->pair->ends[below(&run->prng, (uint32_t)run->pair->n_ends)];
  if (end->done || end->ended || !end->attr.rtr.dynamic_mpr || run->dies) return;
  const uint32_t mpr = MRC_MPR_UNIT * (1 + below(&run->prng, end->attr.create.mpr / MRC_MPR_UNIT));
  mrc_assert(mrc_qp_set_mpr(run->pair->hosts[end->host].engine, end->qpn, mpr, run->pair->now_ns) ==
             0);
  mrc_pair_kick(run->pair, end->host);
}

/* The late planes join an end. From then on the controller probes their EVs, and trusts those that
   answered. */
static void join(struct run *run, int index) {
  struct mrc_pair *pair = run->pair;
  const struct mrc_pair_end *end = pair->ends[index];
  const struct mrc_pair_host *host = &pair->hosts[end->host];
  if (end->done || mrc_pair_info(pair, index).state != MRC_QP_RTS) return;
  if (!run->joined[index]) mrc_pair_join(pair, index);
  run->joined[index] = true;
  for (int plane = pair->config.planes - pair->config.late + 1; plane <= pair->config.planes;
       plane++) {
    for (int path = 0; path < pair->config.paths; path++) {
      const uint32_t ev = (uint32_t)((plane - 1) * pair->config.paths + path);
      if (!end->unproven[plane - 1][path]) continue;
      bool answered = false;
      for (int i = 0; i < host->n_events; i++) {
        const struct mrc_event *event = &host->events[i];
        answered |= event->type == MRC_EVENT_PROBE && event->qpn == end->qpn &&
                    event->ev_index == ev && event->result == 0;
      }
      const struct mrc_probe_attr probe = {
          .qpn = end->qpn, .ev_index = ev, .timeout_ns = SECOND, .bytes = end->attr.rts.path_mtu};
      if (answered)
        mrc_pair_deny(pair, index, plane, path, false);
      else
        mrc_assert(mrc_engine_probe_evs(host->engine, &probe, 1, pair->now_ns) >= 0);
    }
  }
  mrc_pair_kick(pair, end->host);
}

/* What a controller does in mid-run. */
static void control(struct run *run) {
  struct mrc_pair *pair = run->pair;
  const int index = (int)below(&run->control, (uint32_t)pair->n_ends);
  const struct mrc_pair_end *end = pair->ends[index];
  if (pair->config.late > 0 && one_in(&run->control, 4)) join(run, index);
  if (!run->weighs || end->done || !one_in(&run->control, 6)) return;
  const uint32_t plane = 1 + below(&run->control, (uint32_t)pair->config.planes);
  const uint32_t weight = (uint32_t)PICK(&run->control, 0, 0, 1, 25, 50, 100, 100);
  mrc_assert(
      mrc_qp_set_weight(pair->hosts[end->host].engine, end->qpn, plane, weight, pair->now_ns) == 0);
  /* Also planes that no others could replace, and all of them. */
  if (one_in(&run->control, 2))
    mrc_assert(mrc_qp_set_yielding(pair->hosts[end->host].engine, end->qpn,
                                   below(&run->control, 1u << pair->config.planes),
                                   pair->now_ns) == 0);
  mrc_pair_kick(pair, end->host);
}

/* Ends a QP at both ends, in one of two ways. */
static void end_qp(struct mrc_pair *pair, int end, bool destroy) {
  for (int i = 0; i < 2; i++, end = pair->ends[end]->peer) {
    if (pair->ends[end]->done) continue;
    if (destroy)
      mrc_pair_destroy_qp(pair, end);
    else if (mrc_pair_info(pair, end).state != MRC_QP_ERROR)
      mrc_pair_modify(pair, end, MRC_QP_ERROR);
    pair->ends[end]->ended = true;
  }
}

/* Random bytes from an address of a peer arrive at a host. */
static void receive_rubbish(struct mrc_pair *pair, struct mrc_prng *prng, int host) {
  uint8_t bytes[128];
  const size_t n = below(prng, sizeof bytes);
  struct mrc_meta meta = {.family = (uint8_t)pair->config.family, .port = 1};
  mrc_address_make(meta.src, meta.family, (host + 1) % pair->config.hosts, 1, 0);
  for (size_t i = 0; i < n; i++)
    bytes[i] = (uint8_t)mrc_prng_next(prng);
  mrc_assert(mrc_pair_forge(pair, host, bytes, n, &meta) > 0);
}

/* Starts or ends a random fault. */
static void fault(struct run *run) {
  struct mrc_pair *pair = run->pair;
  struct mrc_prng *prng = &run->prng;
  const int plane = 1 + (int)below(prng, (uint32_t)pair->config.planes);
  const int path = (int)below(prng, (uint32_t)pair->config.paths);
  const int host = (int)below(prng, (uint32_t)pair->config.hosts);
  const int end = (int)below(prng, (uint32_t)pair->n_ends);
  const bool on = one_in(prng, 2);
  if (one_in(prng, 12)) end_qp(pair, end, on);
  receive_rubbish(pair, prng, host);
  switch (below(prng, 5)) {
    case 0:
      mrc_pair_silence(pair, plane, on);
      break;
    case 1:
      mrc_pair_path(pair, host, (host + 1) % pair->config.hosts, plane, path)->config.silent = on;
      break;
    case 2:
      mrc_pair_port_up(pair, host, plane, on);
      break;
    case 3:
      if (!pair->ends[end]->done &&
          (run->joined[end] || plane <= pair->config.planes - pair->config.late))
        mrc_pair_deny(pair, end, plane, path, on);
      break;
    default:
      mrc_pair_path(pair, host, (host + 1) % pair->config.hosts, plane, path)->config.delay_ns =
          below(prng, 3 * MS);
  }
}

/* Ends the injected faults; the links keep their random loss, damage and delay. */
static void heal(struct mrc_pair *pair, bool mute) {
  for (int plane = 1; plane <= pair->config.planes; plane++) {
    for (int host = 0; host < pair->config.hosts; host++)
      if (pair->hosts[host].down >> (plane - 1) & 1) mrc_pair_port_up(pair, host, plane, true);
    for (int end = 0; end < pair->n_ends; end++)
      for (int path = 0; path < pair->config.paths; path++)
        if (pair->ends[end]->denied[plane - 1][path] && !pair->ends[end]->done)
          mrc_pair_deny(pair, end, plane, path, false);
    mrc_pair_silence(pair, plane, mute && plane > pair->config.planes - pair->config.late);
  }
}

static void break_all(struct mrc_pair *pair) {
  for (int plane = 1; plane <= pair->config.planes; plane++)
    mrc_pair_silence(pair, plane, true);
}

/* Whether no link loses packets by chance or overflow. */
static bool is_lossless(const struct mrc_pair_config *config) {
  const struct mrc_link_config *path = &config->path;
  return !path->loss_ppm && !path->loss_mask && !path->corrupt_ppm && !path->queue_bytes &&
         !config->port_out.queue_bytes;
}

/* In a healed and lossless network every EV and plane recovers, and then no packets are sent. */
static void check_recovery(struct mrc_pair *pair) {
  mrc_pair_run(pair, pair->now_ns + 15 * SECOND);
  for (int end = 0; end < pair->n_ends; end++) {
    if (pair->ends[end]->done || pair->ends[end]->ended) continue;
    const struct mrc_qp_info info = mrc_pair_info(pair, end);
    mrc_assert(info.inflight_bytes == 0 && info.outstanding == 0);
    for (int plane = 1; plane <= pair->config.planes; plane++) {
      bool proven = false;
      for (int path = 0; path < pair->config.paths; path++)
        proven |= mrc_pair_ev(pair, end, plane, path).state != MRC_EV_UNPROVEN;
      mrc_assert(!proven || !info.planes[plane - 1].suspended);
      for (int path = 0; path < pair->config.paths; path++)
        mrc_assert(mrc_pair_ev(pair, end, plane, path).state != MRC_EV_ASSUMED_BAD);
    }
  }
  const uint64_t trace = pair->trace;
  mrc_pair_run(pair, pair->now_ns + SECOND);
  mrc_assert(pair->trace == trace);
}

static void check_statuses(const struct run *run) {
  for (int i = 0; i < run->pair->n_ends; i++) {
    const struct mrc_pair_end *end = run->pair->ends[i];
    if (!run->dies && !end->ended)
      mrc_assert(end->audit.statuses[MRC_WC_SUCCESS] == end->audit.n_wrs);
    mrc_assert(end->audit.statuses[MRC_WC_REM_ACCESS_ERR] == 0);
    mrc_assert(end->audit.statuses[MRC_WC_REM_INV_REQ_ERR] == 0);
    mrc_assert(end->audit.statuses[MRC_WC_REM_OP_ERR] == 0);
    mrc_assert(end->audit.statuses[MRC_WC_RETRY_EXC_ERR] <= run->dies);
  }
}

static void tell(const struct mrc_pair *pair) {
  const struct mrc_pair_config *c = &pair->config;
  const struct mrc_link_config *path = &c->path;
  printf("%d hosts, %d planes x %d paths, %d late, backups %#x, IPv%d, %d QPs\n", c->hosts,
         c->planes, c->paths, c->late, c->backups, c->family, pair->n_ends / 2);
  printf("paths: %" PRIu64 " us, %" PRIu64 " bit/s, queue %" PRIu64 "%s, ECN %" PRIu64
         ", loss %u ppm %#" PRIx64 ", doubled %u, late %u, corrupt %u\n",
         path->delay_ns / US, path->rate_bps, path->queue_bytes, path->trim ? " trims" : "",
         path->ecn_bytes, path->loss_ppm, path->loss_mask, path->duplicate_ppm, path->reorder_ppm,
         path->corrupt_ppm);
  printf("ports: %" PRIu64 " bit/s out, %" PRIu64 " in; driver: wake %" PRIu64
         " us, refuses 1 of %d\n",
         c->port_out.rate_bps, c->port_in.rate_bps, c->driver.wake_ns / US,
         c->driver.refuse_one_in);
  for (int i = 0; i < pair->n_ends; i++) {
    const struct mrc_pair_end *end = pair->ends[i];
    printf("end %d at %d: MTU %u, MPR %u, timeout %u, cc %u, %" PRIu64 " WRs, %" PRIu64
           " bytes, %" PRIu64 " packets, %" PRIu64 " retransmitted, %" PRIu64 " copies\n",
           i, end->host, end->audit.path_mtu, end->audit.mpr, end->attr.rts.timeout,
           end->attr.rts.cc, end->audit.n_wrs, end->audit.used_bytes, end->audit.data_packets,
           end->audit.retransmitted, end->audit.copies);
  }
}

/* All writes must be done 300 s of simulated time after the last fault has ended. */
static uint64_t run_once(void) {
  struct run run = {.prng.state = seed};
  run.dies = one_in(&run.prng, 8);
  const struct mrc_pair_config config = draw_pair(&run.prng);
  run.pair = mrc_pair_create(&config);
  run.control.state = config.seed + 1;
  run.mute = config.late > 0 && one_in(&run.control, 4);
  run.weighs = one_in(&run.control, 4);
  run.doubles = one_in(&run.control, 3);
  for (int plane = config.planes - config.late + 1; run.mute && plane <= config.planes; plane++)
    mrc_pair_silence(run.pair, plane, true);
  const int n_qps = 1 + (int)below(&run.prng, MAX_QPS);
  for (int i = 0; i < n_qps; i++) {
    const struct mrc_pair_qp_config qp = draw_qp(&run.prng, run.pair, run.dies);
    run.pair->config.udp_checksum |= qp.integrity == MRC_INTEGRITY_UDP;
    mrc_pair_connect(run.pair, &qp);
  }
  run.wrs = (int)below(&run.prng, MAX_WRS);
  run.faults = one_in(&run.prng, 2) ? 0 : (int)below(&run.prng, MAX_FAULTS);
  while (run.wrs-- > 0) {
    post(&run);
    if (run.faults > 0 && one_in(&run.prng, 10)) {
      run.faults--;
      fault(&run);
    }
    if (one_in(&run.prng, 10)) regrant(&run);
    control(&run);
    if (one_in(&run.prng, 4))
      mrc_pair_run(run.pair,
                   run.pair->now_ns + below(&run.prng, one_in(&run.prng, 10) ? 50 * MS : MS));
  }
  if (run.dies)
    break_all(run.pair);
  else
    heal(run.pair, run.mute);
  const uint64_t healed_ns = run.pair->now_ns;
  const bool finished = mrc_pair_finish(run.pair, 300 * SECOND);
  if (!finished) tell(run.pair);
  mrc_assert(finished);
  check_statuses(&run);
  if (verbose) {
    tell(run.pair);
    printf("healed after %" PRIu64 " ms, done %" PRIu64 " ms later\n", (healed_ns - SECOND) / MS,
           (run.pair->now_ns - healed_ns) / MS);
  }
  if (!run.dies && !run.mute && is_lossless(&config)) check_recovery(run.pair);
  const uint64_t trace = run.pair->trace;
  mrc_pair_destroy(run.pair);
  return trace;
}

int main(int argc, char **argv) { return run_seeds("sweep", argc, argv, run_once); }
