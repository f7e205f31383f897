/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/traffic.h"

#include <errno.h>

#include "sim/numbers.h"

static struct mrc_sim_flow *flow_at(const struct mrc_sim_traffic *traffic, uint32_t index) {
  return &traffic->hosts->flows->at[index];
}

const struct mrc_transport *mrc_traffic_transport(const struct mrc_sim_traffic *traffic,
                                                  uint32_t index) {
  const struct mrc_transport *transports = traffic->hosts->transports;
  if (flow_at(traffic, index)->config.tcp_plane) return &transports[MRC_HOST_TCP];
  const bool gbn = traffic->hosts->world->config.transport == MRC_SIM_GO_BACK_N;
  return &transports[gbn ? MRC_HOST_GBN : MRC_HOST_MRC];
}

static uint64_t time_of(const struct mrc_sim_traffic *traffic) {
  return mrc_world_time(traffic->hosts->world);
}

/* ---- posting ---- */

static void end_writes(struct mrc_sim_traffic *traffic, struct mrc_sim_flow *flow,
                       uint32_t failed) {
  flow->failed += failed;
  if (flow->completed + flow->failed < flow->config.writes) return;
  traffic->n_unfinished--;
  traffic->done_ns = traffic->hosts->world->now_ns;
}

/* Passes the next write to the transport; an error when the QP has failed. */
static int post_write(struct mrc_sim_traffic *traffic, uint32_t index) {
  const struct mrc_transport *transport = mrc_traffic_transport(traffic, index);
  return transport->calls->post(transport->transport, index);
}

static void post(struct mrc_sim_traffic *traffic, uint32_t index) {
  struct mrc_sim_flow *flow = flow_at(traffic, index);
  const struct mrc_sim_flow_config *config = &flow->config;
  while (flow->posted < flow->wanted &&
         flow->posted - flow->completed - flow->failed < config->depth) {
    if (post_write(traffic, index) != 0) {
      const uint32_t left = config->writes - flow->posted; /* the QP is in ERROR */
      flow->wanted = flow->posted = config->writes;
      end_writes(traffic, flow, left);
      return;
    }
    if (flow->posted++ == 0) flow->first_ns = time_of(traffic);
  }
  mrc_sim_host_kick(traffic->hosts, config->from);
}

static void want(struct mrc_sim_traffic *traffic, uint32_t index, uint32_t wanted) {
  struct mrc_sim_flow *flow = flow_at(traffic, index);
  const uint32_t most = flow->config.step_writes ? flow->allowed : flow->config.writes;
  for (wanted = mrc_min_u32(wanted, most); flow->wanted < wanted; flow->wanted++)
    flow->wanted_ns[flow->wanted] = time_of(traffic);
  post(traffic, index);
}

/* Exponentially distributed with the given mean; von Neumann's method, which needs no logarithm. */
static uint64_t draw_interval(struct mrc_prng *prng, uint64_t mean_ns) {
  for (uint64_t whole = 0;; whole++) {
    const uint32_t first = (uint32_t)(mrc_prng_next(prng) >> 32);
    uint32_t least = first, n = 1;
    for (uint32_t next; (next = (uint32_t)(mrc_prng_next(prng) >> 32)) < least; n++)
      least = next; /* ends: a falling run of length n has chance 1 / n! */
    if (n % 2 == 1) return whole * mean_ns + (uint64_t)((__uint128_t)mean_ns * first >> 32);
  }
}

/* When all flows of a job have done a step, the next one begins at all of them. */
static void count_step(struct mrc_sim_traffic *traffic, struct mrc_world *world,
                       const struct mrc_sim_flow *flow) {
  const uint32_t first = flow->config.job - 1;
  struct mrc_sim_flow *job = flow_at(traffic, first);
  job->job_done_ns = mrc_max_u64(job->job_done_ns, flow->step_ns);
  if (++job->job_done < job->config.job_flows) return;
  job->job_done = 0;
  for (uint32_t i = 0; i < job->config.job_flows; i++)
    mrc_world_schedule(world, job->job_done_ns + job->config.pause_ns, MRC_SIM_ON_POST, first + i,
                       NULL);
}

void mrc_traffic_end_steps(struct mrc_sim_traffic *traffic, struct mrc_world *world) {
  for (uint32_t next = traffic->steps_done; next; next = flow_at(traffic, next - 1)->next_done)
    count_step(traffic, world, flow_at(traffic, next - 1));
  traffic->steps_done = 0;
}

/* The next write of a flow is due. */
static void on_time(struct mrc_sim_traffic *traffic, uint32_t index) {
  struct mrc_world *world = traffic->hosts->world;
  struct mrc_sim_flow *flow = flow_at(traffic, index);
  const struct mrc_sim_flow_config *config = &flow->config;
  if (config->tcp_plane) {
    /* It never ends: it only starts, and none of its data counts as posted. */
    flow->first_ns = time_of(traffic);
    mrc_assert(post_write(traffic, index) == 0);
    mrc_sim_host_kick(traffic->hosts, config->from);
    return;
  }
  flow->allowed += config->step_writes;
  if (config->interval_ns == 0) {
    /* Writes that it waits for may have arrived before it starts. */
    want(traffic, index,
         config->after ? flow_at(traffic, config->after - 1)->arrived + 1 : config->writes);
    return;
  }
  want(traffic, index, flow->wanted + 1);
  if (flow->wanted == config->writes) return;
  mrc_world_schedule(world, world->now_ns + draw_interval(&flow->intervals, config->interval_ns),
                     MRC_SIM_ON_POST, index, NULL);
}

/* ---- completions and events ---- */

static void on_completion(void *context, const struct mrc_wc *wc) {
  struct mrc_sim_traffic *traffic = context;
  const uint32_t index = mrc_flow_of(wc->qpn);
  struct mrc_sim_flow *flow = flow_at(traffic, index);
  if (traffic->watch) mrc_fabric_watch_completion(traffic->watch, wc);
  if (wc->opcode == MRC_WC_RECV_IMM) {
    flow->arrived++;
    for (uint32_t next = flow->dependents; next; next = flow_at(traffic, next - 1)->next_after)
      if (flow_at(traffic, next - 1)->wanted > 0) want(traffic, next - 1, flow->arrived + 1);
    return;
  }
  flow->last_ns = time_of(traffic);
  if (wc->status == MRC_WC_SUCCESS) {
    flow->completed++;
    mrc_record_message(traffic->record, index, flow->wanted_ns[wc->wr_id]);
  }
  end_writes(traffic, flow, wc->status != MRC_WC_SUCCESS);
  if (flow->config.step_writes && flow->completed == flow->allowed &&
      flow->completed < flow->config.writes) { /* no other host knows before the window ends */
    flow->step_ns = traffic->hosts->world->now_ns;
    flow->next_done = traffic->steps_done;
    traffic->steps_done = index + 1;
  }
  post(traffic, index);
}

static void on_event(void *context, const struct mrc_event *event) {
  struct mrc_sim_traffic *traffic = context;
  if (event->type == MRC_EVENT_PROBE) mrc_prove_on_answer(traffic->proof, event);
  static const uint8_t types[] = {[MRC_EVENT_EV_STATE] = MRC_SIM_EV_STATE + 1,
                                  [MRC_EVENT_PLANE] = MRC_SIM_PLANE_STATE + 1,
                                  [MRC_EVENT_PLANE_SHARE] = MRC_SIM_PLANE_SHARE + 1,
                                  [MRC_EVENT_QP_ERROR] = MRC_SIM_QP_ERROR + 1};
  if (event->type >= sizeof(types) || types[event->type] == 0) return;
  const uint32_t index = mrc_flow_of(event->qpn), end = mrc_flow_end_of(event->qpn);
  const struct mrc_sim_ev *evs = flow_at(traffic, index)->evs[end];
  const bool share = event->type == MRC_EVENT_PLANE_SHARE;
  struct mrc_sim_event news = {.now_ns = time_of(traffic),
                               .flow = index,
                               .plane = event->port,
                               .type = types[event->type] - 1,
                               .status = event->status,
                               .percent = share ? (uint16_t)event->result : 0,
                               .receiver = (uint8_t)end};
  if (event->type == MRC_EVENT_EV_STATE) news.path = evs[event->ev_index].path;
  mrc_record_event(traffic->record, &news);
  if (traffic->watch && event->type == MRC_EVENT_EV_STATE)
    mrc_fabric_watch_rotation(traffic->watch, event->qpn);
}

const struct mrc_host_results mrc_traffic_results = {.on_completion = on_completion,
                                                     .on_event = on_event};

/* ---- life ---- */

/* Whether the flow has a path. */
static bool can_flow(const struct mrc_fabric *fabric, const struct mrc_sim_flow_config *config) {
  const struct mrc_sim_config *sim = &fabric->world->config;
  const uint32_t n_paths = mrc_topology_n_paths(&sim->topology, config->from, config->to);
  if (config->paths && n_paths < 64 && config->paths >> n_paths) return false;
  if (fabric->n_absent == 0) return true;
  for (uint32_t plane = 0; plane < sim->topology.planes; plane++) {
    if (config->tcp_plane && plane != config->tcp_plane - 1) continue;
    for (uint32_t path = 0; path < n_paths; path++)
      if ((config->paths == 0 || (path < 64 && config->paths >> path & 1)) &&
          mrc_fabric_has_path(fabric, plane, config->from, config->to, path))
        return true;
  }
  return false;
}

int mrc_traffic_add(struct mrc_sim_traffic *traffic, const struct mrc_sim_flow_config *config) {
  const struct mrc_sim_config *sim = &traffic->hosts->world->config;
  if (config->from >= sim->topology.hosts || config->to >= sim->topology.hosts ||
      config->from == config->to || config->writes == 0 || config->depth == 0 ||
      config->depth > 4096 || config->tcp_plane > sim->topology.planes ||
      (config->tcp_plane && (config->bytes == 0 || config->paths_until_ns || config->after)))
    return -EINVAL;
  if (config->step_writes &&
      (config->job == 0 || config->pause_ns < sim->topology.fabric_delay_ns ||
       config->writes % config->step_writes || config->interval_ns))
    return -EINVAL;
  if (!can_flow(traffic->hosts->fabric, config)) return -EINVAL;
  if (config->bytes > sim->memory_bytes) return -EINVAL;
  if (sim->audit && (uint64_t)config->bytes * config->writes > MRC_FABRIC_WATCH_MAX_BYTES)
    return -EINVAL;
  traffic->n_unfinished++;
  return (int)mrc_flows_add(traffic->hosts->flows, config);
}

void mrc_traffic_start(struct mrc_sim_traffic *traffic) {
  const struct mrc_sim_flows *flows = traffic->hosts->flows;
  struct mrc_world *world = traffic->hosts->world;
  for (uint32_t i = 0; i < flows->n; i++) {
    struct mrc_sim_flow *flow = &flows->at[i];
    const uint64_t until_ns = flow->config.paths_until_ns;
    flow->intervals = mrc_world_stream(world, MRC_SIM_STREAM_FLOW, i);
    mrc_world_schedule(world, world->now_ns + flow->config.start_ns, MRC_SIM_ON_POST, i, NULL);
    if (until_ns) mrc_world_schedule(world, world->now_ns + until_ns, MRC_SIM_ON_ALLOW, i, NULL);
    if (flow->config.after == 0) continue;
    mrc_assert(flow->config.after <= flows->n);
    struct mrc_sim_flow *first = &flows->at[flow->config.after - 1];
    flow->next_after = first->dependents;
    first->dependents = i + 1;
  }
}

/* ---- the parts of a simulation ---- */

void mrc_sim_join(struct mrc_sim *sim, struct mrc_sim_parts *parts) {
  struct mrc_fabric_watch *watch = parts->world.config.audit ? &sim->watch : NULL;
  parts->record.world = &parts->world;
  parts->record.file = &sim->file;
  parts->fabric.world = &parts->world;
  parts->fabric.record = &parts->record;
  parts->fabric.calls = &mrc_sim_hosts_edge;
  parts->fabric.edge = &parts->hosts;
  parts->hosts.world = &parts->world;
  parts->hosts.fabric = &parts->fabric;
  parts->hosts.flows = &sim->flows;
  parts->hosts.results = &mrc_traffic_results;
  parts->hosts.traffic = &parts->traffic;
  parts->engines.hosts = parts->gbn.hosts = parts->tcp.hosts = &parts->hosts;
  parts->engines.watch = watch;
  parts->engines.memory = &sim->memory;
  parts->gbn.memory = parts->tcp.memory = sim->memory.at;
  parts->tcp.tcp = true;
  parts->traffic.hosts = &parts->hosts;
  parts->traffic.record = &parts->record;
  parts->traffic.watch = watch;
  parts->traffic.proof = &sim->proof;
  struct mrc_transport *transports = parts->hosts.transports;
  if (parts->world.config.transport == MRC_SIM_GO_BACK_N)
    transports[MRC_HOST_GBN] = (struct mrc_transport){&mrc_baseline_transport, &parts->gbn};
  else
    transports[MRC_HOST_MRC] = (struct mrc_transport){&mrc_qps_transport, &parts->engines};
  transports[MRC_HOST_TCP] = (struct mrc_transport){&mrc_baseline_transport, &parts->tcp};
  /* What the most frequent events read. */
  struct mrc_agenda_array *arrays = parts->world.agenda.arrays;
  const struct mrc_agenda_array hops = {(const uint8_t *)parts->fabric.hops,
                                        sizeof(struct mrc_hop)};
  arrays[MRC_SIM_ON_ARRIVAL] = arrays[MRC_SIM_ON_DRAIN] = hops;
  arrays[MRC_SIM_ON_RUN] =
      (struct mrc_agenda_array){(const uint8_t *)parts->hosts.at, sizeof(struct mrc_sim_host)};
}

void mrc_sim_step(struct mrc_sim_parts *parts) {
  struct mrc_heap_entry event;
  mrc_assert(mrc_agenda_pop(&parts->world.agenda, &event));
  parts->world.now_ns = event.at_ns;
  parts->record.stats.events++;
  switch ((enum mrc_sim_event_kind)event.kind) {
    case MRC_SIM_ON_POST:
      on_time(&parts->traffic, event.index);
      break;
    case MRC_SIM_ON_ARRIVAL:
      mrc_fabric_arrive(&parts->fabric, event.index, event.pointer);
      break;
    case MRC_SIM_ON_DRAIN:
      mrc_fabric_drain(&parts->fabric, event.index);
      break;
    case MRC_SIM_ON_RUN:
      mrc_sim_host_run(&parts->hosts, event.index);
      break;
    default:
      mrc_assert(false); /* an event of the whole */
  }
}
