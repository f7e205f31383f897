/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/traffic.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base.h"
#include "sim/fabric.h"

enum {
  KEY = 1, /* of the shared memory, at every host */
  FIRST_QPN = 3,
  MAX_WIMM = 1024,
  FROM = 0, /* ends of a flow */
  TO = 1
};

uint32_t mrc_traffic_qpn(uint32_t flow, uint32_t end) { return FIRST_QPN + 2 * flow + end; }

uint32_t mrc_traffic_flow_of(uint32_t qpn) { return (qpn - FIRST_QPN) / 2; }

uint32_t mrc_traffic_end_of(uint32_t qpn) { return (qpn - FIRST_QPN) % 2; }

static uint32_t host_of(const struct mrc_sim_flow *flow, uint32_t end) {
  return end == FROM ? flow->config.from : flow->config.to;
}

/* ---- connecting ---- */

/* Whether the flow's configuration lets it use a path from the start. */
static bool is_named(const struct mrc_sim_flow *flow, uint32_t path) {
  const uint64_t named = flow->config.paths;
  return named == 0 || (path < 64 && named >> path & 1);
}

/* Shuffles the paths that the flow may use, so that the first ones are a random choice. Returns how
   many there are. */
static uint32_t choose_paths(struct mrc_sim *sim, const struct mrc_sim_flow *flow,
                             uint32_t *paths) {
  const uint32_t candidates = mrc_fabric_n_paths(sim, flow->config.from, flow->config.to);
  uint32_t n = 0;
  for (uint32_t path = 0; path < candidates; path++)
    if (flow->config.paths_until_ns || is_named(flow, path)) paths[n++] = path;
  for (uint32_t i = n - 1; i > 0; i--) {
    const uint32_t other = mrc_prng_below(&sim->prng, i + 1), path = paths[i];
    paths[i] = paths[other];
    paths[other] = path;
  }
  const uint32_t wanted = sim->config.single_path ? 1 : sim->config.evs_per_plane;
  return wanted ? mrc_min_u32(n, wanted) : n;
}

/* Under source routes the label only tells the EVs of a plane apart; under ECMP it is what the
   switches hash, so that it must differ between QPs too. */
static uint32_t label_of(const struct mrc_sim *sim, uint32_t salt, uint32_t path) {
  return sim->config.routing == MRC_SIM_ECMP ? (salt & 0xFF00) | path : path + 1;
}

static void make_evs(struct mrc_sim *sim, struct mrc_sim_flow *flow, uint32_t end) {
  const uint32_t from = host_of(flow, end), to = host_of(flow, 1 - end);
  struct mrc_ev_attr *evs =
      calloc((size_t)sim->config.planes * mrc_fabric_n_paths(sim, from, to), sizeof(*evs));
  mrc_assert(evs);
  flow->n_evs = 0;
  flow->evs[end] = evs;
  if (sim->config.single_path && end == FROM)
    flow->plane = mrc_prng_below(&sim->prng, sim->config.planes);
  for (uint32_t plane = 0; plane < sim->config.planes; plane++) {
    if (sim->config.single_path && plane != flow->plane) continue;
    uint32_t paths[MRC_SIM_MAX_T1];
    const uint32_t n = choose_paths(sim, flow, paths);
    const uint32_t salt = (uint32_t)mrc_prng_next(&sim->prng);
    for (uint32_t i = 0; i < n; i++) {
      struct mrc_ev_attr *ev = &evs[flow->n_evs++];
      ev->ev = (uint32_t)mrc_sim_source_port(plane) << 16 | label_of(sim, salt, paths[i]);
      ev->dport = MRC_UDP_PORT;
      ev->port = (uint8_t)(plane + 1);
      ev->family = 6;
      mrc_sim_host_address(ev->src, from, plane);
      mrc_sim_path_address(ev->dst, to, plane, paths[i]);
    }
  }
}

static void set_paths(struct mrc_sim *sim, const struct mrc_sim_flow *flow, uint32_t end,
                      uint32_t qpn) {
  struct mrc_peer_source sources[MRC_SIM_MAX_PLANES] = {0};
  mrc_engine *engine = sim->hosts[host_of(flow, end)].engine;
  for (uint32_t plane = 0; plane < sim->config.planes; plane++) {
    mrc_sim_host_address(sources[plane].address, host_of(flow, 1 - end), plane);
    sources[plane].sport = mrc_sim_source_port(plane);
  }
  mrc_assert(mrc_qp_set_evs(engine, qpn, flow->evs[end], flow->n_evs) == 0);
  mrc_assert(mrc_qp_set_peer(engine, qpn, sources, (int)sim->config.planes) == 0);
}

bool mrc_traffic_is_denied(const struct mrc_sim_flow *flow, const struct mrc_ev_attr *ev) {
  return flow->config.paths_until_ns && !is_named(flow, mrc_sim_path_of(ev->dst));
}

/* Denies the paths that the flow may not use yet, or allows them. */
static void deny_others(struct mrc_sim *sim, uint32_t index, uint32_t end, bool deny) {
  const struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  mrc_engine *engine = sim->hosts[host_of(flow, end)].engine;
  for (uint32_t i = 0; i < (uint32_t)flow->n_evs; i++) {
    if (!mrc_traffic_is_denied(flow, &flow->evs[end][i])) continue;
    mrc_assert(mrc_qp_set_ev_state(engine, mrc_traffic_qpn(index, end), i,
                                   deny ? MRC_EV_DENIED : MRC_EV_GOOD, sim->now_ns) == 0);
  }
}

static struct mrc_qp_attr attr_of(const struct mrc_sim *sim, uint32_t index, uint32_t end) {
  const struct mrc_sim_config *config = &sim->config;
  return (struct mrc_qp_attr){
      .qpn = mrc_traffic_qpn(index, end),
      .sq_depth = sim->traffic.flows[index].config.depth,
      .mpr = config->mpr,
      .max_wimm = MAX_WIMM,
      .dest_qpn = mrc_traffic_qpn(index, 1 - end),
      .integrity = MRC_INTEGRITY_UDP,
      .sq_psn = config->first_psn,
      .rq_psn = config->first_psn,
      .path_mtu = config->path_mtu,
      .ev_active_per_plane = config->ev_active_per_plane,
      .peer_mpr = config->mpr,
      .peer_max_wimm = MAX_WIMM,
      .spray = config->spray,
      .timeout = (uint8_t)config->timeout,
      .retry_linear = (uint8_t)config->retry_linear,
      .retry_exp = (uint8_t)config->retry_exp,
      .cc = (uint8_t)config->cc,
      .plane_shares = config->plane_shares,
      .cc_profile = {.link_bps = config->host_rate_bps, .base_rtt_ns = config->cc_base_rtt_ns}};
}

static void modify(struct mrc_sim *sim, uint32_t index, uint32_t end, uint32_t state) {
  const struct mrc_qp_attr attr = attr_of(sim, index, end);
  mrc_engine *engine = sim->hosts[host_of(&sim->traffic.flows[index], end)].engine;
  mrc_assert(mrc_qp_modify(engine, attr.qpn, state, &attr, sim->now_ns) == 0);
}

static void create_end(struct mrc_sim *sim, uint32_t index, uint32_t end) {
  struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  const struct mrc_qp_attr attr = attr_of(sim, index, end);
  mrc_engine *engine = sim->hosts[host_of(flow, end)].engine;
  mrc_assert(mrc_qp_create(engine, &attr) == 0);
  modify(sim, index, end, MRC_QP_INIT);
  if (sim->config.audit) mrc_fabric_watch_connect(sim, index, end, &attr);
  make_evs(sim, flow, end);
  set_paths(sim, flow, end, attr.qpn);
  if (flow->config.paths_until_ns) deny_others(sim, index, end, true);
  modify(sim, index, end, MRC_QP_RTR);
}

static void connect(struct mrc_sim *sim, uint32_t index) {
  if (sim->traffic.flows[index].config.tcp_plane) {
    mrc_tcp_host_connect(sim, index);
    return;
  }
  if (sim->config.transport == MRC_SIM_GO_BACK_N) {
    mrc_gbn_host_connect(sim, index);
    return;
  }
  create_end(sim, index, FROM);
  create_end(sim, index, TO);
  if (sim->config.probed) {
    mrc_prove_evs(sim, index, FROM);
    mrc_prove_evs(sim, index, TO);
  }
  modify(sim, index, FROM, MRC_QP_RTS);
  modify(sim, index, TO, MRC_QP_RTS);
}

/* ---- posting ---- */

static uint8_t opcode_of(const struct mrc_sim_flow *flow) {
  const bool tells = flow->dependents || flow->config.immediate; /* of arrival */
  return tells || flow->config.bytes == 0 ? MRC_WR_WRITE_IMM : MRC_WR_WRITE;
}

static void end_writes(struct mrc_sim *sim, struct mrc_sim_flow *flow, uint32_t failed) {
  flow->failed += failed;
  if (flow->completed + flow->failed == flow->config.writes) sim->traffic.n_unfinished--;
}

/* Hands the next write over to the transport; an error when the QP has failed. */
static int post_write(struct mrc_sim *sim, uint32_t index) {
  const struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  const struct mrc_sim_flow_config *config = &flow->config;
  if (flow->gbn) return mrc_gbn_host_post(sim, index);
  const uint64_t target = sim->config.copies_payload ? sim->config.memory_bytes / 2 : 0;
  struct mrc_wr wr = {.wr_id = flow->posted,
                      .local = (uintptr_t)sim->memory + config->offset,
                      .va = (uintptr_t)sim->memory + target + config->offset,
                      .lkey = KEY,
                      .rkey = KEY,
                      .bytes = config->bytes,
                      .imm = flow->posted,
                      .opcode = opcode_of(flow)};
  mrc_engine *engine = sim->hosts[config->from].engine;
  if (flow->watch) mrc_fabric_watch_place(flow->watch, &wr);
  const int error = mrc_qp_post(engine, mrc_traffic_qpn(index, FROM), &wr, sim->now_ns);
  if (error == 0 && flow->watch)
    mrc_audit_posted(&flow->watch->ends[FROM], wr.bytes, wr.opcode == MRC_WR_WRITE_IMM, wr.imm);
  return error;
}

static void post(struct mrc_sim *sim, uint32_t index) {
  struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  const struct mrc_sim_flow_config *config = &flow->config;
  while (flow->posted < flow->wanted &&
         flow->posted - flow->completed - flow->failed < config->depth) {
    if (post_write(sim, index) != 0) {
      const uint32_t left = config->writes - flow->posted; /* the QP is in ERROR */
      flow->wanted = flow->posted = config->writes;
      end_writes(sim, flow, left);
      return;
    }
    if (flow->posted++ == 0) flow->first_ns = mrc_sim_time(sim);
  }
  mrc_sim_host_kick(sim, config->from);
}

static void want(struct mrc_sim *sim, uint32_t index, uint32_t wanted) {
  struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  for (wanted = mrc_min_u32(wanted, flow->config.writes); flow->wanted < wanted; flow->wanted++)
    flow->wanted_ns[flow->wanted] = mrc_sim_time(sim);
  post(sim, index);
}

/* Exponentially distributed with the given mean: von Neumann's way, which needs no logarithm. */
static uint64_t draw_interval(struct mrc_prng *prng, uint64_t mean_ns) {
  for (uint64_t whole = 0;; whole++) {
    const uint32_t first = (uint32_t)(mrc_prng_next(prng) >> 32);
    uint32_t least = first, n = 1;
    for (uint32_t next; (next = (uint32_t)(mrc_prng_next(prng) >> 32)) < least; n++)
      least = next; /* ends: a falling run of length n has chance 1 / n! */
    if (n % 2 == 1) return whole * mean_ns + (uint64_t)((__uint128_t)mean_ns * first >> 32);
  }
}

void mrc_traffic_on_time(struct mrc_sim *sim, uint32_t index) {
  struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  const struct mrc_sim_flow_config *config = &flow->config;
  if (flow->tcp) {
    mrc_tcp_host_start(sim, index);
    return;
  }
  if (config->interval_ns == 0) {
    /* Some of what it waits for may have arrived before it begins. */
    want(sim, index,
         config->after ? sim->traffic.flows[config->after - 1].arrived + 1 : config->writes);
    return;
  }
  want(sim, index, flow->wanted + 1);
  if (flow->wanted == config->writes) return;
  mrc_sim_schedule(sim, sim->now_ns + draw_interval(&sim->prng, config->interval_ns),
                   MRC_SIM_ON_POST, index, NULL);
}

void mrc_traffic_allow(struct mrc_sim *sim, uint32_t index) {
  for (uint32_t end = FROM; end <= TO; end++)
    deny_others(sim, index, end, false);
  mrc_sim_host_kick(sim, sim->traffic.flows[index].config.from);
}

/* ---- what engines tell ---- */

static void on_arrival(struct mrc_sim *sim, struct mrc_sim_flow *flow) {
  flow->arrived++;
  for (uint32_t next = flow->dependents; next; next = sim->traffic.flows[next - 1].next_after)
    if (sim->traffic.flows[next - 1].wanted > 0) want(sim, next - 1, flow->arrived + 1);
}

void mrc_traffic_on_completion(struct mrc_sim *sim, const struct mrc_wc *wc) {
  const uint32_t index = mrc_traffic_flow_of(wc->qpn);
  struct mrc_sim_flow *flow = &sim->traffic.flows[index];
  if (flow->watch) mrc_fabric_watch_completion(sim, wc);
  if (wc->opcode == MRC_WC_RECV_IMM) {
    on_arrival(sim, flow);
    return;
  }
  flow->last_ns = mrc_sim_time(sim);
  if (wc->status == MRC_WC_SUCCESS) {
    flow->completed++;
    mrc_record_message(sim, index, flow->wanted_ns[wc->wr_id]);
  }
  end_writes(sim, flow, wc->status != MRC_WC_SUCCESS);
  post(sim, index);
}

void mrc_traffic_on_repeated(struct mrc_sim *sim, uint32_t qpn) {
  sim->traffic.flows[mrc_traffic_flow_of(qpn)].repeated++;
}

void mrc_traffic_on_event(struct mrc_sim *sim, const struct mrc_event *event) {
  if (event->type == MRC_EVENT_PROBE) mrc_prove_on_answer(sim, event);
  static const uint8_t types[] = {[MRC_EVENT_EV_STATE] = MRC_SIM_EV_STATE + 1,
                                  [MRC_EVENT_PLANE] = MRC_SIM_PLANE_STATE + 1,
                                  [MRC_EVENT_PLANE_SHARE] = MRC_SIM_PLANE_SHARE + 1,
                                  [MRC_EVENT_QP_ERROR] = MRC_SIM_QP_ERROR + 1};
  if (event->type >= sizeof(types) || types[event->type] == 0) return;
  const struct mrc_sim_flow *flow = &sim->traffic.flows[mrc_traffic_flow_of(event->qpn)];
  const struct mrc_ev_attr *evs = flow->evs[mrc_traffic_end_of(event->qpn)];
  const bool share = event->type == MRC_EVENT_PLANE_SHARE;
  struct mrc_sim_event news = {.now_ns = mrc_sim_time(sim),
                               .flow = mrc_traffic_flow_of(event->qpn),
                               .plane = event->port,
                               .type = types[event->type] - 1,
                               .status = event->status,
                               .percent = share ? (uint16_t)event->result : 0,
                               .receiver = (uint8_t)mrc_traffic_end_of(event->qpn)};
  if (event->type == MRC_EVENT_EV_STATE) news.path = mrc_sim_path_of(evs[event->ev_index].dst);
  mrc_record_event(sim, &news);
  if (flow->watch && event->type == MRC_EVENT_EV_STATE)
    mrc_fabric_watch_rotation(sim, news.flow, news.receiver);
}

/* ---- life ---- */

int mrc_traffic_add(struct mrc_sim *sim, const struct mrc_sim_flow_config *config) {
  struct mrc_sim_traffic *traffic = &sim->traffic;
  if (config->from >= sim->config.hosts || config->to >= sim->config.hosts ||
      config->from == config->to || config->writes == 0 || config->depth == 0 ||
      config->depth > 4096 || config->tcp_plane > sim->config.planes ||
      (config->tcp_plane && (config->bytes == 0 || config->paths_until_ns || config->after)))
    return -EINVAL;
  const uint32_t n_paths = mrc_fabric_n_paths(sim, config->from, config->to);
  if (config->paths && n_paths < 64 && config->paths >> n_paths) return -EINVAL;
  const uint64_t room = sim->config.memory_bytes / (sim->config.copies_payload ? 2 : 1);
  if (config->offset > room || config->bytes > room - config->offset) return -EINVAL;
  if (sim->config.audit && (uint64_t)config->bytes * config->writes > MRC_FABRIC_WATCH_MAX_BYTES)
    return -EINVAL;
  if (traffic->n_flows == traffic->capacity) {
    traffic->capacity = traffic->capacity ? 2 * traffic->capacity : 64;
    traffic->flows = realloc(traffic->flows, traffic->capacity * sizeof(*traffic->flows));
    mrc_assert(traffic->flows);
  }
  struct mrc_sim_flow *flow = &traffic->flows[traffic->n_flows];
  *flow = (struct mrc_sim_flow){.config = *config,
                                .wanted_ns = calloc(config->writes, sizeof(uint64_t))};
  mrc_assert(flow->wanted_ns);
  return (int)traffic->n_flows++;
}

void mrc_traffic_connect(struct mrc_sim *sim) {
  struct mrc_sim_traffic *traffic = &sim->traffic;
  for (uint32_t host = 0; host < sim->config.hosts; host++)
    mrc_assert(mrc_mr_register(sim->hosts[host].engine, (uintptr_t)sim->memory,
                               sim->config.memory_bytes, KEY,
                               MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE) == 0);
  traffic->n_unfinished = traffic->n_flows;
  for (uint32_t i = 0; i < traffic->n_flows; i++)
    connect(sim, i);
}

void mrc_traffic_start(struct mrc_sim *sim) {
  struct mrc_sim_traffic *traffic = &sim->traffic;
  for (uint32_t i = 0; i < traffic->n_flows; i++) {
    struct mrc_sim_flow *flow = &traffic->flows[i];
    const uint64_t until_ns = flow->config.paths_until_ns;
    mrc_sim_schedule_at(sim, flow->config.start_ns, MRC_SIM_ON_POST, i);
    if (until_ns) mrc_sim_schedule_at(sim, until_ns, MRC_SIM_ON_ALLOW, i);
    if (flow->config.after == 0) continue;
    mrc_assert(flow->config.after <= traffic->n_flows);
    struct mrc_sim_flow *first = &traffic->flows[flow->config.after - 1];
    flow->next_after = first->dependents;
    first->dependents = i + 1;
  }
}

void mrc_traffic_free(struct mrc_sim *sim) {
  for (uint32_t i = 0; i < sim->traffic.n_flows; i++) {
    free(sim->traffic.flows[i].wanted_ns);
    free(sim->traffic.flows[i].evs[FROM]);
    free(sim->traffic.flows[i].evs[TO]);
    mrc_fabric_watch_free(sim->traffic.flows[i].watch);
    mrc_gbn_host_free(sim->traffic.flows[i].gbn);
    mrc_tcp_host_free(sim->traffic.flows[i].tcp);
  }
  free(sim->traffic.flows);
}
