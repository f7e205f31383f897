/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator from outside: create, add, run, ask. */
#include "sim/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "sim/fabric.h"
#include "sim/memory.h"

enum { FILL = 0x5A }; /* byte of the target memory before anything was written */

/* ---- create ---- */

static bool is_within(uint64_t value, uint64_t low, uint64_t high) {
  return value >= low && value <= high;
}

static bool is_sound(const struct mrc_sim_config *config) {
  return is_within(config->hosts, 2, MRC_SIM_MAX_HOSTS) &&
         is_within(config->planes, 1, MRC_SIM_MAX_PLANES) &&
         is_within(config->t0, 1, MRC_SIM_MAX_T0) && is_within(config->t1, 1, MRC_SIM_MAX_T1) &&
         config->hosts % config->t0 == 0 && config->hosts / config->t0 <= MRC_SIM_MAX_PER_T0 &&
         config->host_rate_bps > 0 && config->fabric_rate_bps > 0 && config->qps_per_host > 0 &&
         config->memory_bytes > 0 && config->routing <= MRC_SIM_ECMP &&
         config->transport <= MRC_SIM_GO_BACK_N &&
         (config->transport == MRC_SIM_MRC ||
          (config->routing == MRC_SIM_ECMP && !config->audit)) &&
         (config->ecn_high_bytes == 0 || config->ecn_high_bytes > config->ecn_low_bytes) &&
         is_within(config->path_mtu, MRC_MIN_MTU, MRC_MAX_MTU) && config->path_mtu % 4 == 0;
}

/* The first half is what writes read, the second what they fill. */
static void fill_memory(struct mrc_sim *sim) {
  if (!sim->config.copies_payload) return;
  const uint64_t half = sim->config.memory_bytes / 2;
  for (uint64_t i = 0; i < half; i++)
    sim->memory[i] = (uint8_t)mrc_prng_next(&sim->prng);
  memset(sim->memory + half, FILL, half);
}

static const struct mrc_fabric_edge hosts = {.arrive = mrc_sim_host_arrive,
                                             .drained = mrc_sim_host_drained};

mrc_sim *mrc_sim_create(const struct mrc_sim_config *config) {
  if (!is_sound(config)) return NULL;
  struct mrc_sim *sim = calloc(1, sizeof(*sim));
  mrc_assert(sim);
  sim->config = *config;
  sim->edge = &hosts;
  mrc_agenda_init(&sim->agenda);
  sim->prng.state = config->seed;
  sim->memory = mrc_sim_memory_new(config->memory_bytes, !config->copies_payload && !config->audit);
  sim->scratch = calloc(1, MRC_MAX_HEADER + MRC_MAX_MTU + MRC_MAX_HEADER);
  sim->hosts = calloc(config->hosts, sizeof(*sim->hosts));
  mrc_assert(sim->scratch && sim->hosts);
  fill_memory(sim);
  mrc_fabric_build(sim);
  for (uint32_t i = 0; i < config->hosts; i++)
    mrc_sim_host_create(sim, i);
  return sim;
}

void mrc_sim_destroy(mrc_sim *sim) {
  if (sim == NULL) return;
  if (sim->config.audit) mrc_fabric_watch_end(sim);
  for (uint32_t i = 0; i < sim->config.hosts; i++)
    mrc_sim_host_destroy(sim, i);
  mrc_traffic_free(sim);
  mrc_record_free(sim);
  mrc_agenda_free(&sim->agenda);
  mrc_frame_pool_free(&sim->pool);
  free(sim->touched);
  free(sim->faults);
  free(sim->hops);
  free(sim->hosts);
  mrc_sim_memory_free(sim->memory, sim->config.memory_bytes);
  free(sim->scratch);
  free(sim);
}

uint8_t *mrc_sim_memory(mrc_sim *sim) { return sim->memory; }

int mrc_sim_add_flow(mrc_sim *sim, const struct mrc_sim_flow_config *config) {
  if (sim->started) return -EINVAL;
  return mrc_traffic_add(sim, config);
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
  if (sim->started || !is_in_fabric(&sim->config, fault) || fault->until_ns <= fault->at_ns ||
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
  if (sim->started || !is_in_fabric(&sim->config, change) ||
      !(is_rate || change->kind == MRC_SIM_DELAY))
    return -EINVAL;
  mrc_fabric_rebase(sim, change);
  return 0;
}

int mrc_sim_trace_to(mrc_sim *sim, const char *path) {
  mrc_assert(sim->record.file == NULL);
  sim->record.file = fopen(path, "w");
  return sim->record.file ? 0 : -errno;
}

/* ---- run ---- */

void mrc_sim_schedule(struct mrc_sim *sim, uint64_t at_ns, enum mrc_sim_event_kind kind,
                      uint32_t index, void *pointer) {
  mrc_assert(at_ns >= sim->now_ns);
  mrc_agenda_push(
      &sim->agenda,
      (struct mrc_heap_entry){.at_ns = at_ns, .kind = kind, .index = index, .pointer = pointer});
}

void mrc_sim_schedule_at(struct mrc_sim *sim, uint64_t at_ns, enum mrc_sim_event_kind kind,
                         uint32_t index) {
  mrc_sim_schedule(sim, sim->origin_ns + at_ns, kind, index, NULL);
}

/* What was counted while QPs were proved belongs to no flow. */
static void forget_proof(struct mrc_sim *sim) {
  sim->record.stats = (struct mrc_sim_stats){.trace = sim->record.stats.trace};
  for (uint32_t i = 0; i < sim->n_hops; i++) {
    struct mrc_hop *hop = &sim->hops[i];
    hop->busy_ns = 0;
    hop->queue.dropped = hop->queue.trimmed = hop->queue.marked = 0;
    hop->queue.peak_bytes = 0;
  }
}

/* Time begins for the outside when all QPs have connected. What ails the fabric from the start ails
   it before that too. */
static void start(struct mrc_sim *sim) {
  sim->started = true;
  sim->origin_ns = MRC_NEVER;
  for (uint32_t i = 0; i < sim->n_faults && sim->config.probed; i++)
    if (sim->faults[i].at_ns == 0) mrc_fabric_fault(sim, &sim->faults[i], true);
  mrc_traffic_connect(sim);
  if (sim->config.probed) forget_proof(sim);
  sim->origin_ns = sim->now_ns;
  for (uint32_t i = 0; i < sim->n_faults; i++) /* before one begins, another ends */
    if (sim->faults[i].until_ns != MRC_NEVER)
      mrc_sim_schedule_at(sim, sim->faults[i].until_ns, MRC_SIM_ON_HEAL, i);
  for (uint32_t i = 0; i < sim->n_faults; i++)
    if (sim->faults[i].at_ns > 0 || !sim->config.probed)
      mrc_sim_schedule_at(sim, sim->faults[i].at_ns, MRC_SIM_ON_FAULT, i);
  mrc_traffic_start(sim);
  if (sim->config.sample_ns) mrc_sim_schedule_at(sim, sim->config.sample_ns, MRC_SIM_ON_SAMPLE, 0);
}

static void handle(struct mrc_sim *sim, const struct mrc_heap_entry *event) {
  switch ((enum mrc_sim_event_kind)event->kind) {
    case MRC_SIM_ON_ARRIVAL:
      mrc_fabric_arrive(sim, event->index, event->pointer);
      break;
    case MRC_SIM_ON_DRAIN:
      mrc_fabric_drain(sim, event->index);
      break;
    case MRC_SIM_ON_RUN:
      mrc_sim_host_run(sim, event->index);
      break;
    case MRC_SIM_ON_POST:
      mrc_traffic_on_time(sim, event->index);
      break;
    case MRC_SIM_ON_ALLOW:
      mrc_traffic_allow(sim, event->index);
      break;
    case MRC_SIM_ON_FAULT:
      mrc_fabric_fault(sim, &sim->faults[event->index], true);
      break;
    case MRC_SIM_ON_HEAL:
      mrc_fabric_fault(sim, &sim->faults[event->index], false);
      break;
    case MRC_SIM_ON_SAMPLE:
      mrc_record_samples(sim);
      mrc_sim_schedule(sim, sim->now_ns + sim->config.sample_ns, MRC_SIM_ON_SAMPLE, 0, NULL);
      break;
  }
}

void mrc_sim_step(struct mrc_sim *sim) {
  struct mrc_heap_entry event;
  mrc_assert(mrc_agenda_pop(&sim->agenda, &event));
  sim->now_ns = event.at_ns;
  sim->record.stats.events++;
  handle(sim, &event);
}

int mrc_sim_run(mrc_sim *sim, uint64_t until_ns) {
  if (!sim->started) start(sim);
  const uint64_t end_ns = sim->origin_ns + mrc_min_u64(until_ns, MRC_NEVER - sim->origin_ns);
  while (sim->traffic.n_unfinished > 0) {
    if (mrc_agenda_next_ns(&sim->agenda) > end_ns) {
      sim->now_ns = end_ns;
      return 0;
    }
    mrc_sim_step(sim);
  }
  return 1;
}

/* ---- ask ---- */

void mrc_sim_stats(const mrc_sim *sim, struct mrc_sim_stats *stats) {
  *stats = sim->record.stats;
  stats->now_ns = mrc_sim_time(sim);
  for (uint32_t i = 0; i < sim->n_hops; i++) {
    const struct mrc_queue *queue = &sim->hops[i].queue;
    stats->dropped += queue->dropped;
    stats->trimmed += queue->trimmed;
    stats->marked += queue->marked;
  }
}

/* What the engines at both ends say of a flow. */
static void qp_info(const mrc_sim *sim, uint32_t index, struct mrc_sim_flow_info *info) {
  const struct mrc_sim_flow_config *flow = &sim->traffic.flows[index].config;
  struct mrc_qp_info from, to;
  mrc_assert(mrc_qp_query(sim->hosts[flow->from].engine, mrc_traffic_qpn(index, 0), &from) == 0);
  mrc_assert(mrc_qp_query(sim->hosts[flow->to].engine, mrc_traffic_qpn(index, 1), &to) == 0);
  info->bytes_received = to.bytes_received;
  info->packets_sent = from.packets_sent;
  info->packets_retransmitted = from.packets_retransmitted;
  info->packets_spurious = from.packets_spurious;
  info->packets_repeated = sim->traffic.flows[index].repeated;
  info->rtt_ns = from.rtt_ns;
  for (uint32_t plane = 0; plane < sim->config.planes; plane++)
    info->packets_lost += from.planes[plane].lost;
}

int mrc_sim_flow(const mrc_sim *sim, uint32_t index, struct mrc_sim_flow_info *info) {
  if (index >= sim->traffic.n_flows || !sim->started) return -EINVAL;
  const struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  *info = (struct mrc_sim_flow_info){.first_ns = flow->first_ns,
                                     .last_ns = flow->last_ns,
                                     .posted = flow->posted,
                                     .completed = flow->completed,
                                     .failed = flow->failed};
  if (flow->tcp)
    mrc_tcp_host_info(flow->tcp, info);
  else if (flow->gbn)
    mrc_gbn_host_info(flow->gbn, info);
  else
    qp_info(sim, index, info);
  return 0;
}

uint64_t mrc_sim_plane_bytes(const mrc_sim *sim, uint32_t index, uint32_t plane) {
  if (index >= sim->traffic.n_flows || !sim->started) return 0;
  if (!is_within(plane, 1, sim->config.planes)) return 0;
  const struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  if (flow->tcp) return flow->tcp->plane == plane - 1 ? flow->tcp->bytes_received : 0;
  if (flow->gbn) return flow->gbn->plane == plane - 1 ? flow->gbn->bytes_received : 0;
  struct mrc_qp_info to;
  mrc_assert(mrc_qp_query(sim->hosts[flow->config.to].engine, mrc_traffic_qpn(index, 1), &to) == 0);
  return to.planes[plane - 1].bytes_received;
}

static int port_info(const struct mrc_hop *hop, struct mrc_sim_port_info *info) {
  *info = (struct mrc_sim_port_info){.busy_ns = hop->busy_ns,
                                     .peak_bytes = hop->queue.peak_bytes,
                                     .trimmed = hop->queue.trimmed,
                                     .dropped = hop->queue.dropped,
                                     .marked = hop->queue.marked};
  return 0;
}

static bool has_port(const mrc_sim *sim, uint32_t host, uint32_t plane) {
  return host < sim->config.hosts && is_within(plane, 1, sim->config.planes);
}

int mrc_sim_last_hop(const mrc_sim *sim, uint32_t host, uint32_t plane,
                     struct mrc_sim_port_info *info) {
  if (!has_port(sim, host, plane)) return -EINVAL;
  return port_info(&sim->hops[mrc_fabric_host_down(sim, plane - 1, host)], info);
}

int mrc_sim_first_hop(const mrc_sim *sim, uint32_t host, uint32_t plane,
                      struct mrc_sim_port_info *info) {
  if (!has_port(sim, host, plane)) return -EINVAL;
  return port_info(&sim->hops[mrc_fabric_host_up(sim, plane - 1, host)], info);
}

/* Copies what fits; returns how many there are. */
static int copy_out(void *to, int capacity, const void *from, int n, size_t bytes) {
  const int copied = n < capacity ? n : capacity;
  if (copied > 0) memcpy(to, from, (size_t)copied * bytes);
  return n;
}

int mrc_sim_samples(const mrc_sim *sim, struct mrc_sim_sample *samples, int capacity) {
  const struct mrc_sim_record *record = &sim->record;
  return copy_out(samples, capacity, record->samples, record->n_samples, sizeof(*samples));
}

int mrc_sim_plane_samples(const mrc_sim *sim, uint32_t plane, uint64_t *bytes, int capacity) {
  const struct mrc_sim_record *record = &sim->record;
  if (!sim->config.samples_planes || !is_within(plane, 1, sim->config.planes)) return 0;
  for (int i = 0; i < record->n_samples && i < capacity; i++)
    bytes[i] = record->plane_bytes[(size_t)i * sim->config.planes + plane - 1];
  return record->n_samples;
}

int mrc_sim_events(const mrc_sim *sim, struct mrc_sim_event *events, int capacity) {
  const struct mrc_sim_record *record = &sim->record;
  return copy_out(events, capacity, record->events, record->n_events, sizeof(*events));
}

int mrc_sim_messages(const mrc_sim *sim, struct mrc_sim_message *messages, int capacity) {
  const struct mrc_sim_record *record = &sim->record;
  return copy_out(messages, capacity, record->messages, record->n_messages, sizeof(*messages));
}
