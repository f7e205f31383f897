/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of the simulator: create, add, run, query. It joins the parts and passes each event
   to its part. */
#define _GNU_SOURCE 1
#include "sim/sim.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/fabric.h"
#include "sim/numbers.h"
#include "sim/shards.h"

/* ---- create ---- */

static bool is_within(uint64_t value, uint64_t low, uint64_t high) {
  return value >= low && value <= high;
}

const char *mrc_sim_refusal(const struct mrc_sim_config *config) {
  if (!mrc_topology_is_sound(&config->topology))
    return "no fabric has these hosts, planes, pods, T0s, T1s, T2s and rates";
  if (config->qps_per_host == 0 || config->memory_bytes == 0) return "there is no traffic";
  if (config->routing > MRC_SIM_ECMP || config->transport > MRC_SIM_GO_BACK_N ||
      config->probed > MRC_SIM_COMPUTED)
    return "unknown routing, transport or probing";
  if (config->transport != MRC_SIM_MRC && (config->routing != MRC_SIM_ECMP || config->audit))
    return "go-back-n requires ecmp, and has no auditors";
  if (!is_within(config->path_mtu, MRC_MIN_MTU, MRC_MAX_MTU) || config->path_mtu % 4 != 0)
    return "no packet has a payload of path_mtu";
  if (!mrc_qps_can_control(config))
    return "congestion control does not work at such rates, delays and wake-ups: a round trip of "
           "at "
           "most 1 s, 10 Tbit/s, and at least one packet of path_mtu in flight";
  return NULL;
}

#define PIECE_BYTES UINT64_C(65536) /* a multiple of the page; fits the cache of a core */
#define MAX_PIECES UINT64_C(4096)   /* mappings: the kernel allows some 65,000 */

static uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

/* Maps the same piece repeatedly over a whole region. */
static void fold(uint8_t *memory, uint64_t bytes, uint64_t piece) {
  const int file = memfd_create("mrc-sim", MFD_CLOEXEC);
  mrc_assert(file >= 0 && ftruncate(file, (off_t)piece) == 0);
  for (uint64_t at = 0; at < bytes; at += piece)
    mrc_assert(mmap(memory + at, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
               memory + at);
  mrc_assert(close(file) == 0);
}

static struct mrc_sim_memory new_memory(uint64_t bytes, uint32_t regions, bool folded) {
  const uint64_t piece =
      round_up(mrc_max_u64(PIECE_BYTES, bytes * regions / MAX_PIECES), PIECE_BYTES);
  const struct mrc_sim_memory memory = {
      .at = mmap(NULL, round_up(bytes, piece) * regions, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
      .stride = round_up(bytes, piece),
      .regions = regions};
  mrc_assert(memory.at != MAP_FAILED);
  for (uint32_t i = 0; i < regions && folded; i++)
    fold(memory.at + i * memory.stride, memory.stride, piece);
  return memory;
}

mrc_sim *mrc_sim_create(const struct mrc_sim_config *config) {
  if (mrc_sim_refusal(config) != NULL) return NULL;
  struct mrc_sim *sim = calloc(1, sizeof(*sim));
  mrc_assert(sim);
  struct mrc_sim_parts *whole = &sim->whole;
  whole->world.config = *config;
  whole->world.prng.state = config->seed;
  mrc_agenda_init(&whole->world.agenda);
  sim->lookahead_ns = mrc_topology_inner_delay_ns(&config->topology);
  sim->proof.engines = &whole->engines;
  sim->watch = (struct mrc_fabric_watch){.config = &whole->world.config, .flows = &sim->flows};
  whole->engines.shards = mrc_topology_shards(&config->topology, config->shards);
  /* Without content, the hosts of each shard have a region of their own: no two threads write to
     one place. */
  sim->memory =
      new_memory(config->memory_bytes, config->audit ? 1 : whole->engines.shards, !config->audit);
  mrc_sim_join(sim, whole);
  mrc_fabric_build(&whole->fabric);
  mrc_sim_hosts_create(&whole->hosts);
  mrc_engines_create(&whole->engines);
  mrc_baseline_create(&whole->gbn);
  mrc_baseline_create(&whole->tcp);
  return sim;
}

/* Packets that links carry, or that no longer count because a shard has put them back. */
static uint64_t count_frames(const struct mrc_sim_parts *parts) {
  return mrc_agenda_count(&parts->world.agenda, MRC_SIM_ON_ARRIVAL) - parts->fabric.pool.n_used;
}

/* The last checks of the auditors: no packet leaked, and the memory holds only what was written. */
static void end_watch(const struct mrc_sim *sim) {
  uint64_t n = count_frames(&sim->whole) + mrc_fabric_count_frames(&sim->whole.fabric) +
               mrc_sim_hosts_count_frames(&sim->whole.hosts);
  for (uint32_t i = 0; i < sim->n_shards; i++)
    n += count_frames(sim->shards[i]);
  mrc_assert(n == 0);
  mrc_fabric_watch_end(&sim->watch);
}

void mrc_sim_destroy(mrc_sim *sim) {
  if (sim == NULL) return;
  struct mrc_sim_parts *whole = &sim->whole;
  if (whole->world.config.audit) end_watch(sim);
  mrc_baseline_free(&whole->tcp);
  mrc_baseline_free(&whole->gbn);
  mrc_engines_free(&whole->engines);
  mrc_shards_free(sim);
  mrc_sim_hosts_free(&whole->hosts);
  mrc_fabric_watch_free(&sim->watch);
  mrc_flows_free(&sim->flows);
  mrc_fabric_free(&whole->fabric);
  mrc_record_free(&whole->record);
  (void)mrc_record_end_file(&sim->file);
  mrc_agenda_free(&whole->world.agenda);
  mrc_assert(munmap(sim->memory.at, sim->memory.stride * sim->memory.regions) == 0);
  free(sim->faults);
  free(sim);
#ifdef __GLIBC__
  malloc_trim(0); /* otherwise the next fabric of this process takes memory of its own */
#endif
}

int mrc_sim_add_flow(mrc_sim *sim, const struct mrc_sim_flow_config *config) {
  if (sim->started) return -EINVAL;
  return mrc_traffic_add(&sim->whole.traffic, config);
}

static bool is_in_fabric(const struct mrc_sim_config *config, const struct mrc_sim_fault *fault) {
  if (fault->target == MRC_SIM_ALL) return true;
  if (!is_within(fault->plane, 1, config->topology.planes)) return false;
  switch (fault->target) {
    case MRC_SIM_PLANE:
      return true;
    case MRC_SIM_T0:
      return fault->index < config->topology.t0;
    case MRC_SIM_T1:
      return fault->index < config->topology.t1;
    case MRC_SIM_UPLINK:
      return mrc_topology_has_link(&config->topology, MRC_TIER_UPLINK, fault->index, fault->t1);
    case MRC_SIM_T2:
      return fault->index < config->topology.t2;
    case MRC_SIM_CORE:
      return mrc_topology_has_link(&config->topology, MRC_TIER_CORE, fault->index, fault->t2);
    default:
      return fault->target == MRC_SIM_PORT && fault->index < config->topology.hosts;
  }
}

/* Windows are shorter than any delay. */
static void note_delay(struct mrc_sim *sim, const struct mrc_sim_fault *change) {
  if (change->kind == MRC_SIM_DELAY) sim->lookahead_ns = mrc_min_u64(sim->lookahead_ns, change->a);
}

int mrc_sim_add_fault(mrc_sim *sim, const struct mrc_sim_fault *fault) {
  if (sim->started || !is_in_fabric(&sim->whole.world.config, fault) ||
      fault->until_ns <= fault->at_ns || fault->kind > MRC_SIM_MTU ||
      fault->class > MRC_SIM_DATA_CLASS || fault->direction > MRC_SIM_DOWNWARD ||
      (fault->kind == MRC_SIM_DOWN && fault->direction != MRC_SIM_BOTH) ||
      (fault->kind == MRC_SIM_RATE && fault->a == 0 && fault->b == 0))
    return -EINVAL;
  sim->faults = realloc(sim->faults, (sim->n_faults + 1) * sizeof(*sim->faults));
  mrc_assert(sim->faults);
  sim->faults[sim->n_faults++] = *fault;
  note_delay(sim, fault);
  return 0;
}

int mrc_sim_set_links(mrc_sim *sim, const struct mrc_sim_fault *change) {
  const bool is_rate = change->kind == MRC_SIM_RATE && change->a > 0;
  const bool is_other =
      change->kind == MRC_SIM_DELAY || change->kind == MRC_SIM_LOSS || change->kind == MRC_SIM_MTU;
  if (sim->started || !is_in_fabric(&sim->whole.world.config, change) ||
      change->direction > MRC_SIM_DOWNWARD || !(is_rate || is_other))
    return -EINVAL;
  mrc_fault_rebase(&sim->whole.fabric, change);
  note_delay(sim, change);
  return 0;
}

int mrc_sim_remove_links(mrc_sim *sim, const struct mrc_sim_fault *target) {
  if (sim->flows.n > 0 || !is_in_fabric(&sim->whole.world.config, target) ||
      target->direction != MRC_SIM_BOTH)
    return -EINVAL;
  mrc_fault_remove(&sim->whole.fabric, target);
  return 0;
}

int mrc_sim_trace_to(mrc_sim *sim, const char *path) {
  mrc_assert(sim->file.lines == NULL);
  if (sim->n_shards > 1) return -EINVAL;
  sim->file.lines = fopen(path, "w");
  return sim->file.lines ? 0 : -errno;
}

/* ---- start ---- */

static void prove(struct mrc_sim *sim, uint32_t flow, uint32_t end) {
  mrc_prove_begin(&sim->proof, flow, end);
  while (mrc_prove_next(&sim->proof))
    while (sim->proof.waiting > 0) /* ends, because probes time out */
      mrc_sim_step(&sim->whole);
}

/* Takes simulated time if QPs are probed. */
static void connect(struct mrc_sim *sim, uint32_t index) {
  const struct mrc_transport *transport = mrc_traffic_transport(&sim->whole.traffic, index);
  transport->calls->connect(transport->transport, index);
  if (transport->transport != &sim->whole.engines) return;
  if (sim->whole.world.config.probed == MRC_SIM_COMPUTED)
    mrc_qps_compute(&sim->whole.engines, index);
  if (sim->whole.world.config.probed == MRC_SIM_PROBED) {
    prove(sim, index, MRC_FROM);
    prove(sim, index, MRC_TO);
  }
  mrc_qps_open(&sim->whole.engines, index);
}

/* Resets the counts of the probes, which belong to no flow. */
static void forget_proof(struct mrc_sim *sim) {
  sim->whole.record.stats = (struct mrc_sim_stats){.trace = sim->whole.record.stats.trace};
  for (uint32_t i = 0; i < sim->whole.fabric.n_hops; i++) {
    struct mrc_hop *hop = &sim->whole.fabric.hops[i];
    hop->busy_ns = 0;
    hop->queue.dropped = hop->queue.trimmed = hop->queue.marked = 0;
    hop->queue.peak_bytes = 0;
  }
}

/* When probes were sent that nobody sends: long enough ago for each to have an answer. */
#define COMPUTED_NS UINT64_C(1000000000)

/* Reported time starts when all QPs have connected. Faults that begin at time 0 apply before that
   too. */
static void start(struct mrc_sim *sim) {
  struct mrc_world *world = &sim->whole.world;
  const bool probed = world->config.probed;
  sim->started = true;
  world->origin_ns = MRC_NEVER;
  if (world->config.probed == MRC_SIM_COMPUTED) world->now_ns = COMPUTED_NS;
  for (uint32_t i = 0; i < sim->n_faults && probed; i++)
    if (sim->faults[i].at_ns == 0) mrc_fault_switch(&sim->whole.fabric, &sim->faults[i], true);
  for (uint32_t i = 0; i < sim->flows.n; i++)
    connect(sim, i);
  if (probed) forget_proof(sim);
  const uint64_t origin_ns = world->origin_ns = world->now_ns;
  for (uint32_t i = 0; i < sim->n_faults; i++)
    if (sim->faults[i].until_ns != MRC_NEVER)
      mrc_world_schedule(world, origin_ns + sim->faults[i].until_ns, MRC_SIM_ON_HEAL, i, NULL);
  for (uint32_t i = 0; i < sim->n_faults; i++)
    if (sim->faults[i].at_ns > 0 || !probed)
      mrc_world_schedule(world, origin_ns + sim->faults[i].at_ns, MRC_SIM_ON_FAULT, i, NULL);
  mrc_traffic_start(&sim->whole.traffic);
  if (world->config.sample_ns)
    mrc_world_schedule(world, origin_ns + world->config.sample_ns, MRC_SIM_ON_SAMPLE, 0, NULL);
  mrc_shards_make(sim);
}

/* ---- run ---- */

static void take_samples(struct mrc_sim *sim) {
  struct mrc_sim_parts *whole = &sim->whole;
  const uint32_t planes =
      whole->world.config.samples_planes ? whole->world.config.topology.planes : 0;
  for (uint32_t i = 0; i < sim->flows.n; i++) {
    struct mrc_sim_flow_info info;
    mrc_assert(mrc_sim_flow(sim, i, &info) == 0);
    mrc_record_sample(&whole->record, i, &info);
    for (uint32_t plane = 1; plane <= planes; plane++)
      mrc_record_plane_bytes(&whole->record, plane, mrc_sim_plane_bytes(sim, i, plane));
  }
  mrc_world_schedule(&whole->world, whole->world.now_ns + whole->world.config.sample_ns,
                     MRC_SIM_ON_SAMPLE, 0, NULL);
}

/* Handles the next event of the whole, when all shards have come to its time. */
static void step_whole(struct mrc_sim *sim) {
  struct mrc_heap_entry event;
  mrc_assert(mrc_heap_pop(&sim->events, &event));
  sim->whole.world.now_ns = event.at_ns;
  sim->whole.record.stats.events++;
  switch ((enum mrc_sim_event_kind)event.kind) {
    case MRC_SIM_ON_HEAL:
    case MRC_SIM_ON_FAULT:
      mrc_fault_switch(&sim->whole.fabric, &sim->faults[event.index],
                       event.kind == MRC_SIM_ON_FAULT);
      break;
    case MRC_SIM_ON_ALLOW:
      mrc_qps_allow(&sim->whole.engines, event.index);
      break;
    default:
      take_samples(sim);
  }
  mrc_shards_hand_out(sim);
}

/* Longer windows would run far beyond the last write. */
#define MAX_WINDOW_NS UINT64_C(10000)

/* Runs until `end_ns`, or to the end of the window in which the last write ends. */
static bool run_windows(struct mrc_sim *sim, struct mrc_crew *crew, uint64_t end_ns) {
  while (mrc_shards_unfinished(sim) > 0) {
    const uint64_t next_ns = mrc_shards_next_ns(sim);
    const uint64_t whole_ns = mrc_heap_next_ns(&sim->events);
    if (mrc_min_u64(next_ns, whole_ns) > end_ns) return false;
    if (whole_ns <= next_ns) {
      step_whole(sim);
      continue;
    }
    const uint64_t most_ns = mrc_min_u64(whole_ns, end_ns == MRC_NEVER ? MRC_NEVER : end_ns + 1);
    mrc_shards_run(
        sim, crew,
        next_ns + mrc_min_u64(mrc_max_u64(1, mrc_min_u64(sim->lookahead_ns, MAX_WINDOW_NS)),
                              most_ns - next_ns));
  }
  return true;
}

int mrc_sim_run(mrc_sim *sim, uint64_t until_ns) {
  if (!sim->started) start(sim);
  struct mrc_world *world = &sim->whole.world;
  const uint64_t end_ns = world->origin_ns + mrc_min_u64(until_ns, MRC_NEVER - world->origin_ns);
  /* An auditor looks at both ends of a flow. */
  const uint32_t threads = world->config.audit ? 1 : mrc_max_u32(1, world->config.threads);
  struct mrc_crew *crew = mrc_crew_create(mrc_min_u32(threads, sim->n_shards));
  const bool done = run_windows(sim, crew, end_ns);
  mrc_crew_destroy(crew);
  mrc_shards_collect(sim);
  world->now_ns = done ? mrc_shards_done_ns(sim) : end_ns;
  return done;
}

int mrc_sim_end_trace(mrc_sim *sim) { return mrc_record_end_file(&sim->file); }

/* ---- query ---- */

void mrc_sim_stats(const mrc_sim *sim, struct mrc_sim_stats *stats) {
  *stats = sim->whole.record.stats;
  for (uint32_t i = 0; i < sim->n_shards; i++)
    mrc_record_add_stats(stats, &sim->shards[i]->record.stats);
  stats->now_ns = mrc_world_time(&sim->whole.world);
  for (uint32_t i = 0; i < sim->whole.fabric.n_hops; i++) {
    const struct mrc_queue *queue = &sim->whole.fabric.hops[i].queue;
    stats->dropped += queue->dropped;
    stats->trimmed += queue->trimmed;
    stats->marked += queue->marked;
  }
}

uint64_t mrc_sim_received_bytes(const mrc_sim *sim) {
  uint64_t bytes = sim->whole.record.received_bytes;
  for (uint32_t i = 0; i < sim->n_shards; i++)
    bytes += sim->shards[i]->record.received_bytes;
  return bytes;
}

int mrc_sim_flow(const mrc_sim *sim, uint32_t index, struct mrc_sim_flow_info *info) {
  if (index >= sim->flows.n || !sim->started) return -EINVAL;
  const struct mrc_sim_flow *flow = &sim->flows.at[index];
  *info = (struct mrc_sim_flow_info){.first_ns = flow->first_ns,
                                     .last_ns = flow->last_ns,
                                     .posted = flow->posted,
                                     .completed = flow->completed,
                                     .failed = flow->failed,
                                     .received_bytes = flow->received_bytes};
  const struct mrc_transport *transport = mrc_traffic_transport(&sim->whole.traffic, index);
  transport->calls->info(transport->transport, index, info);
  return 0;
}

uint64_t mrc_sim_plane_bytes(const mrc_sim *sim, uint32_t index, uint32_t plane) {
  if (index >= sim->flows.n || !sim->started) return 0;
  if (!is_within(plane, 1, sim->whole.world.config.topology.planes)) return 0;
  const struct mrc_sim_flow *flow = &sim->flows.at[index];
  const struct mrc_transport *transport = mrc_traffic_transport(&sim->whole.traffic, index);
  if (transport->calls->plane_bytes)
    return transport->calls->plane_bytes(transport->transport, index, plane);
  return flow->plane == plane - 1 ? flow->received_bytes : 0;
}

static struct mrc_sim_port_info port_info(const struct mrc_hop *hop) {
  return (struct mrc_sim_port_info){.busy_ns = hop->busy_ns,
                                    .peak_bytes = hop->queue.peak_bytes,
                                    .trimmed = hop->queue.trimmed,
                                    .dropped = hop->queue.dropped,
                                    .marked = hop->queue.marked};
}

int mrc_sim_last_hop(const mrc_sim *sim, uint32_t host, uint32_t plane,
                     struct mrc_sim_port_info *info) {
  const struct mrc_sim_config *config = &sim->whole.world.config;
  if (host >= config->topology.hosts || !is_within(plane, 1, config->topology.planes))
    return -EINVAL;
  const struct mrc_hop *hop =
      &sim->whole.fabric.hops[mrc_topology_host_down(&config->topology, plane - 1, host)];
  *info = port_info(hop);
  return 0;
}

int mrc_sim_inner_ports(const mrc_sim *sim, uint32_t plane, struct mrc_sim_port_info *ports,
                        int capacity) {
  const struct mrc_sim_config *config = &sim->whole.world.config;
  if (!is_within(plane, 1, config->topology.planes)) return 0;
  const struct mrc_hop *hops =
      &sim->whole.fabric.hops[mrc_topology_t0_up(&config->topology, plane - 1, 0, 0)];
  int n = 0;
  const uint32_t links = mrc_topology_links(&config->topology, MRC_TIER_UPLINK) +
                         mrc_topology_links(&config->topology, MRC_TIER_CORE);
  for (uint32_t i = 0; i < 2 * links; i++) {
    if (hops[i].is_absent) continue;
    if (n < capacity) ports[n] = port_info(&hops[i]);
    n++;
  }
  return n;
}

/* Copies up to `capacity` of the n items; returns n. */
static int copy_out(void *to, int capacity, const void *from, uint32_t n, size_t bytes) {
  const int copied = (int)n < capacity ? (int)n : capacity;
  if (copied > 0) memcpy(to, from, (size_t)copied * bytes);
  return (int)n;
}

int mrc_sim_samples(const mrc_sim *sim, struct mrc_sim_sample *samples, int capacity) {
  const struct mrc_sim_record *record = &sim->whole.record;
  return copy_out(samples, capacity, record->samples, record->n_samples, sizeof(*samples));
}

int mrc_sim_plane_samples(const mrc_sim *sim, uint32_t plane, uint64_t *bytes, int capacity) {
  const struct mrc_sim_record *record = &sim->whole.record;
  if (!sim->whole.world.config.samples_planes ||
      !is_within(plane, 1, sim->whole.world.config.topology.planes))
    return 0;
  for (int i = 0; i < (int)record->n_samples && i < capacity; i++)
    bytes[i] = record->plane_bytes[(size_t)i * sim->whole.world.config.topology.planes + plane - 1];
  return (int)record->n_samples;
}

int mrc_sim_events(const mrc_sim *sim, struct mrc_sim_event *events, int capacity) {
  const struct mrc_sim_record *record = &sim->whole.record;
  return copy_out(events, capacity, record->events, record->n_events, sizeof(*events));
}

int mrc_sim_messages(const mrc_sim *sim, struct mrc_sim_message *messages, int capacity) {
  const struct mrc_sim_record *record = &sim->whole.record;
  return copy_out(messages, capacity, record->messages, record->n_messages, sizeof(*messages));
}
