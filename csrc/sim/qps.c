/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/qps.h"

#include <stdlib.h>
#include <string.h>

#include "sim/host_address.h"
#include "sim/topology.h"

enum { MAX_WIMM = 1024 };

#define PATIENCE_NS UINT64_C(2000000000) /* timeout of a probe */
#define TRIES 3

/* ---- connecting ---- */

/* Whether the flow's configuration allows a path from the start. */
static bool is_named(const struct mrc_sim_flow *flow, uint32_t path) {
  const uint64_t named = flow->config.paths;
  return named == 0 || (path < 64 && named >> path & 1);
}

/* Shuffles the flow's paths, so that the first ones are a random choice. Returns how many of them
   to use. */
static uint32_t choose_paths(struct mrc_world *world, const struct mrc_sim_flow *flow,
                             uint32_t *paths) {
  const uint32_t candidates =
      mrc_topology_n_paths(&world->config, flow->config.from, flow->config.to);
  uint32_t n = 0;
  for (uint32_t path = 0; path < candidates; path++)
    if (flow->config.paths_until_ns || is_named(flow, path)) paths[n++] = path;
  for (uint32_t i = n - 1; i > 0; i--) {
    const uint32_t other = mrc_prng_below(&world->prng, i + 1), path = paths[i];
    paths[i] = paths[other];
    paths[other] = path;
  }
  const uint32_t wanted = world->config.single_path ? 1 : world->config.evs_per_plane;
  return wanted ? mrc_min_u32(n, wanted) : n;
}

/* With source routes the label only distinguishes the EVs of a plane. With ECMP the switches hash
   it, so it must differ between QPs too. */
static uint32_t label_of(const struct mrc_world *world, uint32_t salt, uint32_t path) {
  return world->config.routing == MRC_SIM_ECMP ? (salt & 0xFF00) | path : path + 1;
}

static void make_evs(struct mrc_world *world, struct mrc_sim_flow *flow, uint32_t end) {
  const uint32_t from = mrc_flow_host(flow, end), to = mrc_flow_host(flow, 1 - end);
  struct mrc_ev_attr *evs = calloc(
      (size_t)world->config.planes * mrc_topology_n_paths(&world->config, from, to), sizeof(*evs));
  mrc_assert(evs);
  flow->n_evs = 0;
  flow->evs[end] = evs;
  if (world->config.single_path && end == MRC_FROM)
    flow->plane = mrc_prng_below(&world->prng, world->config.planes);
  for (uint32_t plane = 0; plane < world->config.planes; plane++) {
    if (world->config.single_path && plane != flow->plane) continue;
    uint32_t paths[MRC_SIM_MAX_T1];
    const uint32_t n = choose_paths(world, flow, paths);
    const uint32_t salt = (uint32_t)mrc_prng_next(&world->prng);
    for (uint32_t i = 0; i < n; i++) {
      struct mrc_ev_attr *ev = &evs[flow->n_evs++];
      ev->ev = (uint32_t)mrc_sim_source_port(plane) << 16 | label_of(world, salt, paths[i]);
      ev->dport = MRC_UDP_PORT;
      ev->port = (uint8_t)(plane + 1);
      ev->family = 6;
      mrc_sim_host_address(ev->src, from, plane);
      mrc_sim_path_address(ev->dst, to, plane, paths[i]);
    }
  }
}

static void set_paths(struct mrc_engines *engines, const struct mrc_sim_flow *flow, uint32_t end,
                      uint32_t qpn) {
  struct mrc_peer_source sources[MRC_SIM_MAX_PLANES] = {0};
  mrc_engine *engine = engines->of[mrc_flow_host(flow, end)];
  for (uint32_t plane = 0; plane < engines->hosts->world->config.planes; plane++) {
    mrc_sim_host_address(sources[plane].address, mrc_flow_host(flow, 1 - end), plane);
    sources[plane].sport = mrc_sim_source_port(plane);
  }
  mrc_assert(mrc_qp_set_evs(engine, qpn, flow->evs[end], flow->n_evs) == 0);
  mrc_assert(mrc_qp_set_peer(engine, qpn, sources, (int)engines->hosts->world->config.planes) == 0);
}

/* Secrets that only these two ends know; the other end has them the other way round. */
static void set_seal(struct mrc_engines *engines, uint32_t index, uint32_t end, uint32_t qpn) {
  struct mrc_seal_attr attr = {.mode = engines->hosts->world->config.seal,
                               .peer_qpn = mrc_flow_qpn(index, 1 - end)};
  const uint32_t secrets[2] = {2 * index, 2 * index + 1};
  memcpy(attr.send, &secrets[end], sizeof secrets[0]);
  memcpy(attr.receive, &secrets[1 - end], sizeof secrets[0]);
  mrc_engine *engine = engines->of[mrc_flow_host(&engines->hosts->flows->at[index], end)];
  mrc_assert(mrc_qp_set_seal(engine, qpn, &attr) == 0);
}

/* Whether the controller denies this EV of the flow until its `paths_until_ns`. */
static bool is_denied(const struct mrc_sim_flow *flow, const struct mrc_ev_attr *ev) {
  return flow->config.paths_until_ns && !is_named(flow, mrc_sim_path_of(ev->dst));
}

/* Denies the paths that the flow may not use yet, or allows them. */
static void deny_others(struct mrc_engines *engines, uint32_t index, uint32_t end, bool deny) {
  const struct mrc_sim_flow *flow = &engines->hosts->flows->at[index];
  mrc_engine *engine = engines->of[mrc_flow_host(flow, end)];
  for (uint32_t i = 0; i < (uint32_t)flow->n_evs; i++) {
    if (!is_denied(flow, &flow->evs[end][i])) continue;
    mrc_assert(mrc_qp_set_ev_state(engine, mrc_flow_qpn(index, end), i,
                                   deny ? MRC_EV_DENIED : MRC_EV_GOOD,
                                   engines->hosts->world->now_ns) == 0);
  }
}

static struct mrc_qp_attr attr_of(const struct mrc_engines *engines, uint32_t index, uint32_t end) {
  const struct mrc_sim_config *config = &engines->hosts->world->config;
  return (struct mrc_qp_attr){.create = {.qpn = mrc_flow_qpn(index, end),
                                         .sq_depth = engines->hosts->flows->at[index].config.depth,
                                         .mpr = config->mpr,
                                         .max_wimm = MAX_WIMM},
                              .rtr = {.dest_qpn = mrc_flow_qpn(index, 1 - end),
                                      .integrity = MRC_INTEGRITY_UDP,
                                      .sack_times = config->cc == MRC_CC_DELAY,
                                      .rq_psn = config->first_psn},
                              .rts = {.sq_psn = config->first_psn,
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
                                      .cc_profile = {.link_bps = config->host_rate_bps,
                                                     .base_rtt_ns = config->cc_base_rtt_ns}}};
}

static void modify(struct mrc_engines *engines, uint32_t index, uint32_t end, uint32_t state) {
  const struct mrc_qp_attr attr = attr_of(engines, index, end);
  mrc_engine *engine = engines->of[mrc_flow_host(&engines->hosts->flows->at[index], end)];
  mrc_assert(mrc_qp_modify(engine, attr.create.qpn, state, &attr.rtr, &attr.rts,
                           engines->hosts->world->now_ns) == 0);
}

static void create_end(struct mrc_engines *engines, uint32_t index, uint32_t end) {
  struct mrc_sim_flow *flow = &engines->hosts->flows->at[index];
  const struct mrc_qp_attr attr = attr_of(engines, index, end);
  mrc_engine *engine = engines->of[mrc_flow_host(flow, end)];
  mrc_assert(mrc_qp_create(engine, &attr.create) == 0);
  modify(engines, index, end, MRC_QP_INIT);
  if (engines->watch) {
    mrc_engine *const both[] = {engines->of[flow->config.from], engines->of[flow->config.to]};
    mrc_fabric_watch_connect(engines->watch, index, end, &attr, both, &engines->hosts->world->prng);
  }
  make_evs(engines->hosts->world, flow, end);
  if (engines->hosts->world->config.seal) set_seal(engines, index, end, attr.create.qpn);
  set_paths(engines, flow, end, attr.create.qpn);
  if (flow->config.paths_until_ns) deny_others(engines, index, end, true);
  modify(engines, index, end, MRC_QP_RTR);
}

static void connect(void *transport, uint32_t index) {
  create_end(transport, index, MRC_FROM);
  create_end(transport, index, MRC_TO);
}

void mrc_qps_open(struct mrc_engines *engines, uint32_t index) {
  modify(engines, index, MRC_FROM, MRC_QP_RTS);
  modify(engines, index, MRC_TO, MRC_QP_RTS);
}

void mrc_qps_allow(struct mrc_engines *engines, uint32_t index) {
  for (uint32_t end = MRC_FROM; end <= MRC_TO; end++)
    deny_others(engines, index, end, false);
  mrc_sim_host_kick(engines->hosts, engines->hosts->flows->at[index].config.from);
}

/* ---- proving ---- */

void mrc_prove_begin(struct mrc_sim_proof *proof, uint32_t index, uint32_t end) {
  const struct mrc_sim_flow *flow = &proof->engines->hosts->flows->at[index];
  const struct mrc_ev_attr *evs = flow->evs[end];
  *proof =
      (struct mrc_sim_proof){.engines = proof->engines, .flow = index, .end = end, .n_paths = 1};
  while (proof->n_paths < (uint32_t)flow->n_evs && evs[proof->n_paths].port == evs[0].port)
    proof->n_paths++;
}

void mrc_prove_on_answer(struct mrc_sim_proof *proof, const struct mrc_event *event) {
  mrc_assert(proof->waiting > 0);
  proof->waiting--;
  if (event->result == 0) proof->answered |= 1u << (event->port - 1);
}

/* Collects a probe of the current path for each plane that has not answered; returns how many. */
static int collect(const struct mrc_sim_proof *proof, struct mrc_probe_attr *probes) {
  const struct mrc_sim_hosts *hosts = proof->engines->hosts;
  const struct mrc_sim_flow *flow = &hosts->flows->at[proof->flow];
  int n = 0;
  for (uint32_t ev = proof->path; ev < (uint32_t)flow->n_evs; ev += proof->n_paths) {
    const struct mrc_ev_attr *attr = &flow->evs[proof->end][ev];
    if (is_denied(flow, attr) || proof->answered >> (attr->port - 1) & 1) continue;
    probes[n++] =
        (struct mrc_probe_attr){.qpn = mrc_flow_qpn(proof->flow, proof->end),
                                .ev_index = ev,
                                .bytes = hosts->world->config.path_mtu + MRC_DATA_OVERHEAD_BYTES,
                                .timeout_ns = PATIENCE_NS};
  }
  return n;
}

static void give_up(const struct mrc_sim_proof *proof, mrc_engine *engine,
                    const struct mrc_probe_attr *probes, int n) {
  for (int i = 0; i < n; i++)
    mrc_assert(mrc_qp_set_ev_state(engine, probes[i].qpn, probes[i].ev_index, MRC_EV_ASSUMED_BAD,
                                   proof->engines->hosts->world->now_ns) == 0);
}

bool mrc_prove_next(struct mrc_sim_proof *proof) {
  struct mrc_sim_hosts *hosts = proof->engines->hosts;
  const uint32_t host = mrc_flow_host(&hosts->flows->at[proof->flow], proof->end);
  mrc_engine *engine = proof->engines->of[host];
  mrc_assert(proof->waiting == 0);
  for (; proof->path < proof->n_paths; proof->path++, proof->tries = 0, proof->answered = 0) {
    struct mrc_probe_attr probes[MRC_SIM_MAX_PLANES];
    const int n = collect(proof, probes);
    if (n > 0 && proof->tries++ < TRIES) {
      proof->waiting = (uint32_t)n;
      mrc_assert(mrc_engine_probe_evs(engine, probes, n, hosts->world->now_ns) == n);
      mrc_sim_host_kick(hosts, host);
      return true;
    }
    give_up(proof, engine, probes, n);
  }
  return false;
}

/* ---- writes ---- */

static uint8_t opcode_of(const struct mrc_sim_flow *flow) {
  const bool tells = flow->dependents || flow->config.immediate; /* the receiver reports arrival */
  return tells || flow->config.bytes == 0 ? MRC_WR_WRITE_IMM : MRC_WR_WRITE;
}

static int post(void *transport, uint32_t index) {
  struct mrc_engines *engines = transport;
  const struct mrc_world *world = engines->hosts->world;
  const struct mrc_sim_flow *flow = &engines->hosts->flows->at[index];
  const struct mrc_sim_flow_config *config = &flow->config;
  const uint64_t target = world->config.copies_payload ? world->config.memory_bytes / 2 : 0;
  struct mrc_wr wr = {.wr_id = flow->posted,
                      .local = (uintptr_t)engines->memory + config->offset,
                      .va = (uintptr_t)engines->memory + target + config->offset,
                      .lkey = MRC_ENGINES_KEY,
                      .rkey = MRC_ENGINES_KEY,
                      .bytes = config->bytes,
                      .imm = flow->posted,
                      .opcode = opcode_of(flow)};
  if (engines->watch) mrc_fabric_watch_place(engines->watch, index, &wr);
  const int error =
      mrc_qp_post(engines->of[config->from], mrc_flow_qpn(index, MRC_FROM), &wr, 1, world->now_ns);
  if (error == 0 && engines->watch) mrc_fabric_watch_posted(engines->watch, index, &wr);
  return error;
}

/* ---- counters ---- */

static struct mrc_qp_info query(const struct mrc_engines *engines, uint32_t index, uint32_t end) {
  struct mrc_qp_info info;
  mrc_engine *engine = engines->of[mrc_flow_host(&engines->hosts->flows->at[index], end)];
  mrc_assert(mrc_qp_query(engine, mrc_flow_qpn(index, end), &info) == 0);
  return info;
}

static void info_of(const void *transport, uint32_t index, struct mrc_sim_flow_info *info) {
  const struct mrc_engines *engines = transport;
  const struct mrc_qp_info from = query(engines, index, MRC_FROM);
  info->received_bytes = query(engines, index, MRC_TO).received_bytes;
  info->sent_packets = from.sent_packets;
  info->retransmitted_packets = from.retransmitted_packets;
  info->spurious_packets = from.spurious_packets;
  info->repeated_packets = engines->hosts->flows->at[index].repeated;
  info->rtt_ns = from.rtt_ns;
  for (uint32_t plane = 0; plane < engines->hosts->world->config.planes; plane++)
    info->lost_packets += from.planes[plane].lost_packets;
}

static uint64_t plane_bytes(const void *transport, uint32_t index, uint32_t plane) {
  return query(transport, index, MRC_TO).planes[plane - 1].received_bytes;
}

const struct mrc_transport_calls mrc_qps_transport = {.receive = mrc_engines_receive,
                                                      .turn = mrc_engines_turn,
                                                      .port_room = mrc_engines_port_room,
                                                      .port_up = mrc_engines_port_up,
                                                      .connect = connect,
                                                      .post = post,
                                                      .info = info_of,
                                                      .plane_bytes = plane_bytes};
