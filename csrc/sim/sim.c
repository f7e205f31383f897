/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of the simulator: create, add, run, query. It joins the parts and passes each event
   to its part. */
#include "sim/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim/fault.h"
#include "sim/memory.h"
#include "sim/sim_parts.h"
#include "sim/topology.h"

enum { FILL = 0x5A }; /* initial value of the bytes of the target memory */

/* ---- create ---- */

static bool is_within(uint64_t value, uint64_t low, uint64_t high) {
  return value >= low && value <= high;
}

const char *mrc_sim_refusal(const struct mrc_sim_config *config) {
  if (!mrc_topology_is_sound(config))
    return "no fabric has these hosts, planes, T0s, T1s and rates";
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

/* Writes read the first half and fill the second. */
static void fill_memory(struct mrc_sim *sim) {
  if (!sim->world.config.copies_payload) return;
  const uint64_t half = sim->world.config.memory_bytes / 2;
  for (uint64_t i = 0; i < half; i++)
    sim->memory[i] = (uint8_t)mrc_prng_next(&sim->world.prng);
  memset(sim->memory + half, FILL, half);
}

/* What the most frequent events read. */
static void look_ahead(struct mrc_sim *sim) {
  struct mrc_agenda_array *arrays = sim->world.agenda.arrays;
  const struct mrc_agenda_array hops = {(const uint8_t *)sim->fabric.hops, sizeof(struct mrc_hop)};
  arrays[MRC_SIM_ON_ARRIVAL] = arrays[MRC_SIM_ON_DRAIN] = hops;
  arrays[MRC_SIM_ON_RUN] =
      (struct mrc_agenda_array){(const uint8_t *)sim->hosts.at, sizeof(struct mrc_sim_host)};
}

/* Gives each part pointers to the parts below it. */
static void join_parts(struct mrc_sim *sim) {
  const bool gbn = sim->world.config.transport == MRC_SIM_GO_BACK_N;
  struct mrc_fabric_watch *watch = sim->world.config.audit ? &sim->watch : NULL;
  sim->record.world = &sim->world;
  sim->fabric = (struct mrc_fabric){.world = &sim->world,
                                    .record = &sim->record,
                                    .calls = &mrc_sim_hosts_edge,
                                    .edge = &sim->hosts};
  sim->watch = (struct mrc_fabric_watch){.config = &sim->world.config, .flows = &sim->flows};
  sim->hosts = (struct mrc_sim_hosts){.world = &sim->world,
                                      .fabric = &sim->fabric,
                                      .flows = &sim->flows,
                                      .results = &mrc_traffic_results,
                                      .traffic = &sim->traffic};
  sim->engines = (struct mrc_engines){.hosts = &sim->hosts, .watch = watch, .memory = sim->memory};
  sim->gbn = (struct mrc_gbn_hosts){.hosts = &sim->hosts, .memory = sim->memory};
  sim->tcp = (struct mrc_tcp_hosts){.hosts = &sim->hosts, .memory = sim->memory};
  struct mrc_transport *transports = sim->hosts.transports;
  if (gbn)
    transports[MRC_HOST_GBN] = (struct mrc_transport){&mrc_gbn_transport, &sim->gbn};
  else
    transports[MRC_HOST_MRC] = (struct mrc_transport){&mrc_qps_transport, &sim->engines};
  transports[MRC_HOST_TCP] = (struct mrc_transport){&mrc_tcp_transport, &sim->tcp};
  sim->proof.engines = &sim->engines;
  sim->traffic = (struct mrc_sim_traffic){
      .hosts = &sim->hosts, .record = &sim->record, .watch = watch, .proof = &sim->proof};
}

mrc_sim *mrc_sim_create(const struct mrc_sim_config *config) {
  if (mrc_sim_refusal(config) != NULL) return NULL;
  struct mrc_sim *sim = calloc(1, sizeof(*sim));
  mrc_assert(sim);
  sim->world.config = *config;
  sim->world.prng.state = config->seed;
  mrc_agenda_init(&sim->world.agenda);
  sim->memory = mrc_sim_memory_new(config->memory_bytes, !config->copies_payload && !config->audit);
  join_parts(sim);
  fill_memory(sim);
  mrc_fabric_build(&sim->fabric);
  mrc_sim_hosts_create(&sim->hosts);
  look_ahead(sim);
  mrc_engines_create(&sim->engines);
  mrc_gbn_hosts_create(&sim->gbn);
  mrc_tcp_hosts_create(&sim->tcp);
  return sim;
}

/* The last checks of the auditors: no packet leaked, and the memory holds only what was written. */
static void end_watch(const struct mrc_sim *sim) {
  mrc_assert(mrc_fabric_count_frames(&sim->fabric) + mrc_sim_hosts_count_frames(&sim->hosts) ==
             sim->fabric.pool.n_used);
  mrc_fabric_watch_end(&sim->watch);
}

void mrc_sim_destroy(mrc_sim *sim) {
  if (sim == NULL) return;
  if (sim->world.config.audit) end_watch(sim);
  mrc_tcp_hosts_free(&sim->tcp);
  mrc_gbn_hosts_free(&sim->gbn);
  mrc_engines_free(&sim->engines);
  mrc_sim_hosts_free(&sim->hosts);
  mrc_fabric_watch_free(&sim->watch);
  mrc_flows_free(&sim->flows);
  mrc_fabric_free(&sim->fabric);
  mrc_record_free(&sim->record);
  mrc_agenda_free(&sim->world.agenda);
  mrc_sim_memory_free(sim->memory, sim->world.config.memory_bytes);
  free(sim->faults);
  free(sim);
}

uint8_t *mrc_sim_memory(mrc_sim *sim) { return sim->memory; }

int mrc_sim_add_flow(mrc_sim *sim, const struct mrc_sim_flow_config *config) {
  if (sim->started) return -EINVAL;
  return mrc_traffic_add(&sim->traffic, config);
}

static bool is_in_fabric(const struct mrc_sim_config *config, const struct mrc_sim_fault *fault) {
  if (fault->target == MRC_SIM_ALL) return true;
  if (!is_within(fault->plane, 1, config->planes)) return false;
  switch (fault->target) {
    case MRC_SIM_PLANE:
      return true;
    case MRC_SIM_T0:
      return fault->index < config->t0;
    case MRC_SIM_T1:
      return fault->index < config->t1;
    case MRC_SIM_UPLINK:
      return fault->index < config->t0 && fault->t1 < config->t1;
    default:
      return fault->target == MRC_SIM_PORT && fault->index < config->hosts;
  }
}

int mrc_sim_add_fault(mrc_sim *sim, const struct mrc_sim_fault *fault) {
  if (sim->started || !is_in_fabric(&sim->world.config, fault) || fault->until_ns <= fault->at_ns ||
      fault->kind > MRC_SIM_RATE || fault->class > MRC_SIM_DATA_CLASS ||
      (fault->kind == MRC_SIM_RATE && fault->a == 0 && fault->b == 0))
    return -EINVAL;
  sim->faults = realloc(sim->faults, (sim->n_faults + 1) * sizeof(*sim->faults));
  mrc_assert(sim->faults);
  sim->faults[sim->n_faults++] = *fault;
  return 0;
}

int mrc_sim_set_links(mrc_sim *sim, const struct mrc_sim_fault *change) {
  const bool is_rate = change->kind == MRC_SIM_RATE && change->a > 0;
  if (sim->started || !is_in_fabric(&sim->world.config, change) ||
      !(is_rate || change->kind == MRC_SIM_DELAY))
    return -EINVAL;
  mrc_fault_rebase(&sim->fabric, change);
  return 0;
}

int mrc_sim_trace_to(mrc_sim *sim, const char *path) {
  mrc_assert(sim->record.file == NULL);
  sim->record.file = fopen(path, "w");
  return sim->record.file ? 0 : -errno;
}

/* ---- run ---- */

static void take_samples(struct mrc_sim *sim) {
  const uint32_t planes = sim->world.config.samples_planes ? sim->world.config.planes : 0;
  for (uint32_t i = 0; i < sim->flows.n; i++) {
    struct mrc_sim_flow_info info;
    mrc_assert(mrc_sim_flow(sim, i, &info) == 0);
    mrc_record_sample(&sim->record, i, &info);
    for (uint32_t plane = 1; plane <= planes; plane++)
      mrc_record_plane_bytes(&sim->record, plane, mrc_sim_plane_bytes(sim, i, plane));
  }
  mrc_world_schedule(&sim->world, sim->world.now_ns + sim->world.config.sample_ns,
                     MRC_SIM_ON_SAMPLE, 0, NULL);
}

static void handle(struct mrc_sim *sim, const struct mrc_heap_entry *event) {
  switch ((enum mrc_sim_event_kind)event->kind) {
    case MRC_SIM_ON_ARRIVAL:
      mrc_fabric_arrive(&sim->fabric, event->index, event->pointer);
      break;
    case MRC_SIM_ON_DRAIN:
      mrc_fabric_drain(&sim->fabric, event->index);
      break;
    case MRC_SIM_ON_RUN:
      mrc_sim_host_run(&sim->hosts, event->index);
      break;
    case MRC_SIM_ON_POST:
      mrc_traffic_on_time(&sim->traffic, event->index);
      break;
    case MRC_SIM_ON_ALLOW:
      mrc_qps_allow(&sim->engines, event->index);
      break;
    case MRC_SIM_ON_FAULT:
      mrc_fault_switch(&sim->fabric, &sim->faults[event->index], true);
      break;
    case MRC_SIM_ON_HEAL:
      mrc_fault_switch(&sim->fabric, &sim->faults[event->index], false);
      break;
    case MRC_SIM_ON_SAMPLE:
      take_samples(sim);
      break;
  }
}

/* Processes the next event; there must be one. */
static void step(struct mrc_sim *sim) {
  struct mrc_heap_entry event;
  mrc_assert(mrc_agenda_pop(&sim->world.agenda, &event));
  sim->world.now_ns = event.at_ns;
  sim->record.stats.events++;
  handle(sim, &event);
}

static void prove(struct mrc_sim *sim, uint32_t flow, uint32_t end) {
  mrc_prove_begin(&sim->proof, flow, end);
  while (mrc_prove_next(&sim->proof))
    while (sim->proof.waiting > 0) /* ends, because probes time out */
      step(sim);
}

/* Takes simulated time if QPs are probed. */
static void connect(struct mrc_sim *sim, uint32_t index) {
  const struct mrc_transport *transport = mrc_traffic_transport(&sim->traffic, index);
  transport->calls->connect(transport->transport, index);
  if (transport->transport != &sim->engines) return;
  if (sim->world.config.probed == MRC_SIM_COMPUTED) mrc_qps_compute(&sim->engines, index);
  if (sim->world.config.probed == MRC_SIM_PROBED) {
    prove(sim, index, MRC_FROM);
    prove(sim, index, MRC_TO);
  }
  mrc_qps_open(&sim->engines, index);
}

/* Resets the counts of the probes, which belong to no flow. */
static void forget_proof(struct mrc_sim *sim) {
  sim->record.stats = (struct mrc_sim_stats){.trace = sim->record.stats.trace};
  for (uint32_t i = 0; i < sim->fabric.n_hops; i++) {
    struct mrc_hop *hop = &sim->fabric.hops[i];
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
  struct mrc_world *world = &sim->world;
  const bool probed = world->config.probed;
  sim->started = true;
  world->origin_ns = MRC_NEVER;
  if (world->config.probed == MRC_SIM_COMPUTED) world->now_ns = COMPUTED_NS;
  for (uint32_t i = 0; i < sim->n_faults && probed; i++)
    if (sim->faults[i].at_ns == 0) mrc_fault_switch(&sim->fabric, &sim->faults[i], true);
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
  mrc_traffic_start(&sim->traffic);
  if (world->config.sample_ns)
    mrc_world_schedule(world, origin_ns + world->config.sample_ns, MRC_SIM_ON_SAMPLE, 0, NULL);
}

int mrc_sim_end_trace(mrc_sim *sim) { return mrc_record_end_file(&sim->record); }

int mrc_sim_run(mrc_sim *sim, uint64_t until_ns) {
  if (!sim->started) start(sim);
  const uint64_t origin_ns = sim->world.origin_ns;
  const uint64_t end_ns = origin_ns + mrc_min_u64(until_ns, MRC_NEVER - origin_ns);
  while (sim->traffic.n_unfinished > 0) {
    if (mrc_agenda_next_ns(&sim->world.agenda) > end_ns) {
      sim->world.now_ns = end_ns;
      return 0;
    }
    step(sim);
  }
  return 1;
}

/* ---- query ---- */

void mrc_sim_stats(const mrc_sim *sim, struct mrc_sim_stats *stats) {
  *stats = sim->record.stats;
  stats->now_ns = mrc_world_time(&sim->world);
  for (uint32_t i = 0; i < sim->fabric.n_hops; i++) {
    const struct mrc_queue *queue = &sim->fabric.hops[i].queue;
    stats->dropped += queue->dropped;
    stats->trimmed += queue->trimmed;
    stats->marked += queue->marked;
  }
}

uint64_t mrc_sim_received_bytes(const mrc_sim *sim) { return sim->flows.received_bytes; }

int mrc_sim_flow(const mrc_sim *sim, uint32_t index, struct mrc_sim_flow_info *info) {
  if (index >= sim->flows.n || !sim->started) return -EINVAL;
  const struct mrc_sim_flow *flow = &sim->flows.at[index];
  *info = (struct mrc_sim_flow_info){.first_ns = flow->first_ns,
                                     .last_ns = flow->last_ns,
                                     .posted = flow->posted,
                                     .completed = flow->completed,
                                     .failed = flow->failed,
                                     .received_bytes = flow->received_bytes};
  const struct mrc_transport *transport = mrc_traffic_transport(&sim->traffic, index);
  transport->calls->info(transport->transport, index, info);
  return 0;
}

uint64_t mrc_sim_plane_bytes(const mrc_sim *sim, uint32_t index, uint32_t plane) {
  if (index >= sim->flows.n || !sim->started) return 0;
  if (!is_within(plane, 1, sim->world.config.planes)) return 0;
  const struct mrc_sim_flow *flow = &sim->flows.at[index];
  const struct mrc_transport *transport = mrc_traffic_transport(&sim->traffic, index);
  if (transport->calls->plane_bytes)
    return transport->calls->plane_bytes(transport->transport, index, plane);
  return flow->plane == plane - 1 ? flow->received_bytes : 0;
}

int mrc_sim_last_hop(const mrc_sim *sim, uint32_t host, uint32_t plane,
                     struct mrc_sim_port_info *info) {
  const struct mrc_sim_config *config = &sim->world.config;
  if (host >= config->hosts || !is_within(plane, 1, config->planes)) return -EINVAL;
  const struct mrc_hop *hop = &sim->fabric.hops[mrc_topology_host_down(config, plane - 1, host)];
  *info = (struct mrc_sim_port_info){.busy_ns = hop->busy_ns,
                                     .peak_bytes = hop->queue.peak_bytes,
                                     .trimmed = hop->queue.trimmed,
                                     .dropped = hop->queue.dropped,
                                     .marked = hop->queue.marked};
  return 0;
}

/* Copies up to `capacity` of the n items; returns n. */
static int copy_out(void *to, int capacity, const void *from, uint32_t n, size_t bytes) {
  const int copied = (int)n < capacity ? (int)n : capacity;
  if (copied > 0) memcpy(to, from, (size_t)copied * bytes);
  return (int)n;
}

int mrc_sim_samples(const mrc_sim *sim, struct mrc_sim_sample *samples, int capacity) {
  const struct mrc_sim_record *record = &sim->record;
  return copy_out(samples, capacity, record->samples, record->n_samples, sizeof(*samples));
}

int mrc_sim_plane_samples(const mrc_sim *sim, uint32_t plane, uint64_t *bytes, int capacity) {
  const struct mrc_sim_record *record = &sim->record;
  if (!sim->world.config.samples_planes || !is_within(plane, 1, sim->world.config.planes)) return 0;
  for (int i = 0; i < (int)record->n_samples && i < capacity; i++)
    bytes[i] = record->plane_bytes[(size_t)i * sim->world.config.planes + plane - 1];
  return (int)record->n_samples;
}

int mrc_sim_events(const mrc_sim *sim, struct mrc_sim_event *events, int capacity) {
  const struct mrc_sim_record *record = &sim->record;
  return copy_out(events, capacity, record->events, record->n_events, sizeof(*events));
}

int mrc_sim_messages(const mrc_sim *sim, struct mrc_sim_message *messages, int capacity) {
  const struct mrc_sim_record *record = &sim->record;
  return copy_out(messages, capacity, record->messages, record->n_messages, sizeof(*messages));
}
