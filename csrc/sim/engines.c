/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/engines.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "core/engine.h"
#include "core/turn.h"
#include "core/wire.h"
#include "sim/numbers.h"
#include "virtual/link.h"
#include "virtual/sealer.h"

static struct mrc_audit *audit_of(const struct mrc_fabric_watch *watch, uint32_t flow,
                                  uint32_t end) {
  return &watch->of[flow]->ends[end];
}

/* ---- the watch ---- */

static void make_audits(struct mrc_fabric_watch *watch, uint32_t flow) {
  if (watch->of == NULL) {
    watch->n = watch->flows->n;
    watch->of = calloc(watch->n, sizeof(*watch->of));
    mrc_assert(watch->of);
  }
  watch->of[flow] = calloc(1, sizeof(*watch->of[flow]));
  mrc_assert(watch->of[flow]);
}

static void make_memory(struct mrc_fabric_watch *watch, uint32_t flow, mrc_engine *const engines[2],
                        uint64_t seed) {
  struct mrc_audit *audit = audit_of(watch, flow, MRC_FROM);
  const struct mrc_sim_flow_config *config = &watch->flows->at[flow].config;
  const uint32_t key = mrc_flow_qpn(flow, MRC_FROM);
  mrc_audit_init(audit, (uint64_t)config->bytes * config->writes, seed);
  mrc_audit_init(audit_of(watch, flow, MRC_TO), 0, 0); /* no writes in this direction */
  if (audit->memory_bytes == 0) return;
  mrc_assert(mrc_mr_register(engines[MRC_FROM], (uintptr_t)audit->source, audit->memory_bytes, key,
                             MRC_ACCESS_LOCAL_READ, 0) == 0);
  mrc_assert(mrc_mr_register(engines[MRC_TO], (uintptr_t)audit->target, audit->memory_bytes, key,
                             MRC_ACCESS_REMOTE_WRITE, 0) == 0);
}

/* An end of a flow has its attributes, but is not connected yet. */
static void watch_connect(struct mrc_fabric_watch *watch, uint32_t flow, uint32_t end,
                          const struct mrc_qp_attr *attr, mrc_engine *const engines[2],
                          struct mrc_prng *prng) {
  if (end == MRC_FROM) {
    make_audits(watch, flow);
    make_memory(watch, flow, engines, mrc_prng_next(prng));
  }
  struct mrc_audit *audit = audit_of(watch, flow, end);
  audit->engine = engines[end];
  audit->qpn = attr->create.qpn;
  audit->sq_psn = attr->rts.sq_psn;
  audit->rq_psn = attr->rtr.rq_psn;
  audit->path_mtu = attr->rts.path_mtu;
  audit->burst_bytes = attr->rts.spray == 0 ? MRC_BURST_BYTES : 0;
  audit->mpr = attr->rts.peer_mpr;
  audit->max_wimm = attr->rts.peer_max_wimm;
}

void mrc_fabric_watch_free(struct mrc_fabric_watch *watch) {
  for (uint32_t i = 0; i < watch->n; i++) {
    if (watch->of[i] == NULL) continue;
    mrc_audit_free(&watch->of[i]->ends[MRC_FROM]);
    mrc_audit_free(&watch->of[i]->ends[MRC_TO]);
    free(watch->of[i]);
  }
  free(watch->of);
  free(watch->touched);
}

/* ---- packets of the watch ---- */

/* Finds the flow and end that a packet is for; false for endpoint operations, which have no QP. */
static bool find_end(const struct mrc_fabric_watch *watch, uint32_t qpn, uint32_t *flow,
                     uint32_t *end) {
  if (qpn < mrc_flow_qpn(0, MRC_FROM)) return false;
  *flow = mrc_flow_of(qpn);
  *end = mrc_flow_end_of(qpn);
  mrc_assert(*flow < watch->n);
  return true;
}

static void touch(struct mrc_fabric_watch *watch, uint32_t flow, uint32_t end) {
  if (watch->of[flow]->touched[end]) return;
  watch->of[flow]->touched[end] = true;
  watch->touched =
      mrc_grow(watch->touched, watch->n_touched, &watch->touched_capacity, sizeof(*watch->touched));
  watch->touched[watch->n_touched++] = mrc_flow_qpn(flow, end);
}

/* A host passes a packet to a port; `full` and `down` are the host's masks. Its engine has accepted
   a packet (`drop` 0), or dropped it. `bytes` is the whole packet. */
static void sent(struct mrc_fabric_watch *watch, const struct mrc_frame *packet,
                 const uint8_t *bytes, uint32_t full, uint32_t down) {
  struct mrc_wire wire;
  uint32_t flow, to;
  mrc_assert(!(down >> packet->plane & 1)); /* no packet leaves a port that is down */
  mrc_assert(mrc_wire_decode(bytes, mrc_frame_udp_bytes(packet), false, &wire) == 0);
  if (!find_end(watch, wire.dest_qpn, &flow, &to)) return;
  struct mrc_audit *audit = audit_of(watch, flow, 1 - to);
  touch(watch, flow, 1 - to);
  const uint32_t ev = (uint32_t)packet->sport << 16 | (packet->flow_label & 0xFFFF);
  mrc_audit_sent(audit, audit_of(watch, flow, to), &wire, ev, packet->plane + 1u, ~(full | down));
}

static void received(struct mrc_fabric_watch *watch, const struct mrc_frame *packet,
                     const uint8_t *bytes, int drop) {
  struct mrc_wire wire;
  uint32_t flow, end;
  if (packet->trimmed || drop != 0) return;
  mrc_assert(mrc_wire_decode(bytes, mrc_frame_udp_bytes(packet), false, &wire) == 0);
  if (!find_end(watch, wire.dest_qpn, &flow, &end)) return;
  struct mrc_audit *audit = audit_of(watch, flow, end);
  touch(watch, flow, end);
  mrc_audit_received(audit, audit_of(watch, flow, 1 - end), &wire);
}

void mrc_fabric_watch_completion(struct mrc_fabric_watch *watch, const struct mrc_wc *wc) {
  mrc_audit_completed(audit_of(watch, mrc_flow_of(wc->qpn), MRC_FROM), wc);
}

/* ---- states ---- */

/* Each plane's rotation is full as long as the plane has good EVs to fill it. */
void mrc_fabric_watch_rotation(const struct mrc_fabric_watch *watch, uint32_t qpn) {
  const struct mrc_audit *audit = audit_of(watch, mrc_flow_of(qpn), mrc_flow_end_of(qpn));
  static struct mrc_ev_info infos[MRC_MAX_EVS];
  uint32_t active[MRC_MAX_PORTS] = {0}, spare[MRC_MAX_PORTS] = {0}, all[MRC_MAX_PORTS] = {0};
  const int n = mrc_qp_query_evs(audit->engine, qpn, infos, MRC_MAX_EVS);
  for (int i = 0; i < n; i++) {
    const uint32_t plane = infos[i].plane - 1u;
    all[plane]++;
    active[plane] += infos[i].active;
    spare[plane] += !infos[i].active && infos[i].state == MRC_EV_GOOD;
    mrc_assert(!infos[i].active || infos[i].state <= MRC_EV_SKIP);
  }
  const uint32_t wanted = watch->config->ev_active_per_plane;
  for (uint32_t plane = 0; plane < watch->config->topology.planes; plane++) {
    const uint32_t target = wanted ? mrc_min_u32(wanted, all[plane]) : all[plane];
    mrc_assert(active[plane] <= target);
    mrc_assert(active[plane] == target || spare[plane] == 0);
  }
}

/* The driver of a host has finished its turn. */
static void watch_state(struct mrc_fabric_watch *watch) {
  for (uint32_t i = 0; i < watch->n_touched; i++) {
    const uint32_t flow = mrc_flow_of(watch->touched[i]);
    const uint32_t end = mrc_flow_end_of(watch->touched[i]);
    watch->of[flow]->touched[end] = false;
    mrc_audit_state(audit_of(watch, flow, end));
  }
  watch->n_touched = 0;
}

/* ---- the end ---- */

void mrc_fabric_watch_end(const struct mrc_fabric_watch *watch) {
  for (uint32_t i = 0; i < watch->n; i++) {
    const struct mrc_sim_flow *flow = &watch->flows->at[i];
    if (watch->of[i] && flow->completed == flow->posted)
      mrc_audit_memory(audit_of(watch, i, MRC_FROM));
  }
}

enum {
  CAPACITY = 16,      /* bursts of one transmit call */
  TRACE_ENTRIES = 64, /* the fabric has a trace of its own */
  QPN_AT = 5          /* byte of the BTH */
};

/* A host in its turn. */
struct driver {
  struct mrc_engines *engines;
  uint32_t host;
};

/* ---- addresses of hosts ---- */

/* Addresses of the simulated hosts, with which QPs are connected. Planes count from 0. */

/* Bytes of an address that name host, plane and path + 1; path 0 is the host's own address. */
enum { HOST_AT = 3, PLANE_AT = 11, PATH_AT = 14 };

static void path_address(uint8_t out[16], uint32_t host, uint32_t plane, uint32_t path) {
  memset(out, 0, 16);
  out[0] = 0xFD;
  out[HOST_AT] = (uint8_t)(host >> 16);
  out[HOST_AT + 1] = (uint8_t)(host >> 8);
  out[HOST_AT + 2] = (uint8_t)host;
  out[PLANE_AT] = (uint8_t)plane;
  out[PATH_AT] = (uint8_t)((path + 1) >> 8);
  out[PATH_AT + 1] = (uint8_t)(path + 1);
}
static void host_address(uint8_t out[16], uint32_t host, uint32_t plane) {
  path_address(out, host, plane, UINT32_MAX);
}
/* The host and the path in an address. */
static uint32_t host_of(const uint8_t address[16]) {
  return (uint32_t)(address[HOST_AT] << 16 | address[HOST_AT + 1] << 8 | address[HOST_AT + 2]);
}
static uint16_t path_of(const uint8_t address[16]) {
  return (uint16_t)((address[PATH_AT] << 8 | address[PATH_AT + 1]) - 1);
}

/* ---- packets ---- */

/* Assembles the packet in one piece. Without auditors, its payload stays zeros. */
static uint8_t *assemble(const struct mrc_engines *engines, const struct mrc_frame *packet) {
  uint8_t *at = engines->scratch;
  memset(at, 0, MRC_MAX_HEADER);
  memcpy(at, packet->header, packet->header_bytes);
  at += packet->header_bytes;
  if (engines->watch && packet->payload_bytes) memcpy(at, packet->payload, packet->payload_bytes);
  memcpy(at + packet->payload_bytes, packet->header + packet->header_bytes, packet->trailer_bytes);
  return engines->scratch;
}

static void clear_scratch(const struct mrc_engines *engines, const struct mrc_frame *packet) {
  const uint32_t bytes = mrc_frame_udp_bytes(packet);
  memset(engines->scratch + bytes - packet->trailer_bytes, 0, packet->trailer_bytes);
}

/* ---- sending ---- */

static void send_packet(struct mrc_engines *engines, uint32_t from, const struct mrc_burst *burst,
                        const struct mrc_packet *piece) {
  struct mrc_fabric *fabric = engines->hosts->fabric;
  const struct mrc_sim_host *host = &engines->hosts->at[from];
  struct mrc_frame *packet = mrc_frame_pool_get(&fabric->pool);
  packet->payload = piece->payload;
  packet->payload_bytes = (uint16_t)piece->payload_bytes;
  packet->header_bytes = (uint8_t)piece->header_bytes;
  packet->trailer_bytes = (uint8_t)piece->trailer_bytes;
  packet->flow_label = burst->flow_label;
  packet->sport = burst->sport;
  packet->from = from;
  packet->to = host_of(burst->dst);
  packet->path = path_of(burst->dst);
  packet->plane = (uint8_t)(burst->port - 1);
  packet->ecn = burst->tclass & 3;
  packet->control = (burst->tclass & 3) == MRC_ECN_NONE;
  packet->transport = MRC_HOST_MRC;
  mrc_fabric_set_usids(fabric, packet);
  mrc_assert(piece->header_bytes + piece->trailer_bytes <= sizeof packet->header);
  memcpy(packet->header, piece->header, piece->header_bytes);
  memcpy(packet->header + piece->header_bytes, piece->trailer, piece->trailer_bytes);
  if (engines->watch) {
    sent(engines->watch, packet, assemble(engines, packet), host->full[MRC_HOST_MRC], host->down);
    clear_scratch(engines, packet);
  }
  mrc_fabric_send(fabric, packet);
}

static uint32_t send_bursts(void *driver, const struct mrc_burst *bursts, int *taken, int n,
                            uint64_t now_ns) {
  (void)now_ns;
  struct mrc_engines *engines = ((struct driver *)driver)->engines;
  const uint32_t host = ((struct driver *)driver)->host;
  const uint32_t *full = &engines->hosts->at[host].full[MRC_HOST_MRC], before = *full;
  for (int i = 0; i < n; i++) {
    taken[i] = mrc_sim_host_takes(engines->hosts, host, MRC_HOST_MRC, bursts[i].port - 1u,
                                  engines->hosts->world->config.sndbuf_bytes);
    for (int each = 0; taken[i] && each < bursts[i].n_packets; each++)
      send_packet(engines, host, &bursts[i], &bursts[i].packets[each]);
  }
  return *full & ~before;
}

/* ---- receiving ---- */

/* See struct mrc_transport_calls. */
static void engines_receive(void *transport, uint32_t host, const struct mrc_frame *packet) {
  struct mrc_engines *engines = transport;
  struct mrc_meta meta = {.flow_label = packet->flow_label,
                          .sport = packet->sport,
                          .dport = MRC_UDP_PORT,
                          .family = 6,
                          .port = (uint8_t)(packet->plane + 1),
                          .ecn = packet->ecn,
                          .trimmed = packet->trimmed};
  host_address(meta.src, packet->from, packet->plane);
  path_address(meta.dst, packet->to, packet->plane, packet->path);
  uint8_t *bytes = assemble(engines, packet);
  const size_t n = mrc_frame_udp_bytes(packet);
  const int drop =
      mrc_engine_receive(engines->of[host], bytes, n, n, &meta, engines->hosts->world->now_ns);
  if (drop == MRC_DROP_DUPLICATE && !packet->extra)
    engines->hosts->flows->at[mrc_flow_of(mrc_get_u24(&packet->header[QPN_AT]))].repeated++;
  if (drop == MRC_DROP_NONE && !packet->trimmed && mrc_opcode_is_data(packet->header[0]))
    engines->hosts->fabric->record->received_bytes += packet->payload_bytes;
  if (engines->watch) received(engines->watch, packet, bytes, drop);
  clear_scratch(engines, packet);
}

/* ---- the turn ---- */

static uint64_t now(void *driver) {
  return ((struct driver *)driver)->engines->hosts->world->now_ns;
}

static bool publish(void *driver) {
  const struct mrc_sim_hosts *hosts = ((struct driver *)driver)->engines->hosts;
  mrc_engine *engine = ((struct driver *)driver)->engines->of[((struct driver *)driver)->host];
  struct mrc_wc wcs[CAPACITY];
  for (int n; (n = mrc_cq_poll(engine, wcs, CAPACITY)) > 0;)
    for (int i = 0; i < n; i++)
      hosts->results->on_completion(hosts->traffic, &wcs[i]);
  struct mrc_event events[CAPACITY];
  for (int n; (n = mrc_engine_events(engine, events, CAPACITY)) > 0;)
    for (int i = 0; i < n; i++)
      hosts->results->on_event(hosts->traffic, &events[i]);
  return false;
}

static const struct mrc_turn_calls calls = {.now = now, .publish = publish, .send = send_bursts};

static uint64_t engines_turn(void *transport, uint32_t host) {
  struct mrc_engines *engines = transport;
  struct driver driver = {.engines = engines, .host = host};
  struct mrc_turn turn = {
      .calls = &calls, .driver = &driver, .engine = engines->of[host], .capacity = CAPACITY};
  const uint64_t deadline_ns = mrc_turn_run_dry(&turn, engines->hosts->world->now_ns);
  if (engines->watch) watch_state(engines->watch);
  return deadline_ns;
}

static void engines_port_room(void *transport, uint32_t host, uint32_t port) {
  struct mrc_engines *engines = transport;
  mrc_engine_port_blocked(engines->of[host], (int)port, false, engines->hosts->world->now_ns);
}

static void engines_port_up(void *transport, uint32_t host, uint32_t port, bool up) {
  struct mrc_engines *engines = transport;
  mrc_engine_port_up(engines->of[host], (int)port, up, engines->hosts->world->now_ns);
}

/* ---- life ---- */

/* The memory of a host. */
static uint8_t *engines_memory(const struct mrc_engines *engines, uint32_t host) {
  const struct mrc_sim_memory *memory = engines->memory;
  const uint32_t shard =
      mrc_topology_shard_of_host(&engines->hosts->world->config.topology, engines->shards, host);
  return memory->at + mrc_min_u32(shard, memory->regions - 1) * memory->stride;
}

uint8_t *mrc_engines_new_scratch(void) {
  uint8_t *scratch = calloc(1, MRC_MAX_HEADER + MRC_MAX_MTU + MRC_MAX_HEADER);
  mrc_assert(scratch);
  return scratch;
}

void mrc_engines_create(struct mrc_engines *engines) {
  struct mrc_world *world = engines->hosts->world;
  const struct mrc_sim_config *config = &world->config;
  engines->scratch = mrc_engines_new_scratch();
  engines->of = calloc(config->topology.hosts, sizeof(*engines->of));
  engines->shared = calloc(engines->shards, sizeof(struct mrc_scratch *));
  mrc_assert(engines->shared && engines->of);
  for (uint32_t i = 0; i < config->topology.hosts; i++) {
    struct mrc_engine_config own = {.seed = mrc_prng_next(&world->prng),
                                    .max_qps = config->qps_per_host,
                                    .max_mrs = 4 + 2 * config->qps_per_host,
                                    .ports = config->topology.planes,
                                    .cq_depth = 4096 + 4 * config->qps_per_host,
                                    .trace_entries = TRACE_ENTRIES,
                                    .sack_threshold_bytes = config->sack_threshold_bytes,
                                    .sack_delay_ns = config->sack_delay_ns,
                                    .seal_epoch_bits = MRC_SEALER_EPOCH_BITS,
                                    .noise_ns = config->noise_ns,
                                    .aead = &mrc_sealer_of_headers};
    struct mrc_scratch **shared =
        &engines->shared[mrc_topology_shard_of_host(&config->topology, engines->shards, i)];
    if (*shared == NULL) *shared = mrc_scratch_create(&own);
    own.scratch = *shared;
    engines->of[i] = mrc_engine_create(&own);
    mrc_assert(engines->of[i]);
    mrc_assert(mrc_mr_register(engines->of[i], (uintptr_t)engines_memory(engines, i),
                               config->memory_bytes, MRC_ENGINES_KEY,
                               MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE, 0) == 0);
  }
}

void mrc_engines_free(struct mrc_engines *engines) {
  for (uint32_t i = 0; i < engines->hosts->world->config.topology.hosts; i++)
    mrc_engine_destroy(engines->of[i]);
  for (uint32_t i = 0; i < engines->shards; i++)
    mrc_scratch_destroy(engines->shared[i]);
  free(engines->shared);
  free(engines->of);
  free(engines->scratch);
}

enum { MILLION = 1000000 };

#define PATIENCE_NS UINT64_C(2000000000) /* timeout of a probe */
#define TRIES 3
#define SECOND_NS UINT64_C(1000000000)
#define ANSWER_BYTES (52 + MRC_FRAME_OVERHEAD_BYTES) /* of a probe */

/* ---- connecting ---- */

/* Whether the flow's configuration allows a path from the start. */
static bool is_named(const struct mrc_sim_flow *flow, uint32_t path) {
  const uint64_t named = flow->config.paths;
  return named == 0 || (path < 64 && named >> path & 1);
}

/* Shuffles the flow's paths, so that the first ones are a random choice. Returns how many of them
   to use. */
static uint32_t choose_paths(const struct mrc_fabric *fabric, const struct mrc_sim_flow *flow,
                             uint32_t plane, uint32_t *paths) {
  struct mrc_world *world = fabric->world;
  const uint32_t candidates =
      mrc_topology_n_paths(&world->config.topology, flow->config.from, flow->config.to);
  uint32_t n = 0;
  for (uint32_t path = 0; path < candidates; path++)
    if ((flow->config.paths_until_ns || is_named(flow, path)) &&
        mrc_fabric_has_path(fabric, plane, flow->config.from, flow->config.to, path))
      paths[n++] = path;
  for (uint32_t i = n; i > 1; i--) {
    const uint32_t other = mrc_prng_below(&world->prng, i), path = paths[i - 1];
    paths[i - 1] = paths[other];
    paths[other] = path;
  }
  const uint32_t wanted = world->config.single_path ? 1 : world->config.evs_per_plane;
  return wanted ? mrc_min_u32(n, wanted) : n;
}

/* With source routes the label only distinguishes the EVs of a plane. With ECMP the switches hash
   it, so it must differ between QPs too. */
static uint32_t label_of(const struct mrc_world *world, uint32_t salt, uint32_t path) {
  const uint32_t of_paths = world->config.topology.t2 > 256 ? 0x0FFF : 0x00FF;
  if (world->config.routing != MRC_SIM_ECMP) return path + 1;
  return (salt & 0xFFFF & ~of_paths) | path;
}

static void make_evs(const struct mrc_fabric *fabric, struct mrc_sim_flow *flow, uint32_t end,
                     struct mrc_ev_attr *attrs) {
  struct mrc_world *world = fabric->world;
  const uint32_t from = mrc_flow_host(flow, end), to = mrc_flow_host(flow, 1 - end);
  struct mrc_sim_ev evs[MRC_MAX_EVS];
  flow->n_evs = 0;
  if (world->config.single_path && end == MRC_FROM)
    flow->plane = mrc_fabric_draw_plane(fabric, from, to);
  for (uint32_t plane = 0; plane < world->config.topology.planes; plane++) {
    if (world->config.single_path && plane != flow->plane) continue;
    uint32_t paths[MRC_SIM_MAX_T2];
    const uint32_t n = choose_paths(fabric, flow, plane, paths);
    const uint32_t salt = (uint32_t)mrc_prng_next(&world->prng);
    for (uint32_t i = 0; i < n; i++) {
      mrc_assert(flow->n_evs < MRC_MAX_EVS);
      struct mrc_ev_attr *attr = &attrs[flow->n_evs];
      evs[flow->n_evs++] = (struct mrc_sim_ev){.path = (uint16_t)paths[i], .plane = (uint8_t)plane};
      *attr = (struct mrc_ev_attr){
          .ev = (uint32_t)mrc_sim_source_port(plane) << 16 | label_of(world, salt, paths[i]),
          .dport = MRC_UDP_PORT,
          .port = (uint8_t)(plane + 1),
          .family = 6};
      host_address(attr->src, from, plane);
      path_address(attr->dst, to, plane, paths[i]);
    }
  }
  flow->evs[end] = malloc((size_t)flow->n_evs * sizeof(*evs));
  mrc_assert(flow->evs[end]);
  memcpy(flow->evs[end], evs, (size_t)flow->n_evs * sizeof(*evs));
}

static void set_paths(struct mrc_engines *engines, struct mrc_sim_flow *flow, uint32_t end,
                      uint32_t qpn) {
  struct mrc_peer_source sources[MRC_SIM_MAX_PLANES] = {0};
  struct mrc_ev_attr evs[MRC_MAX_EVS];
  make_evs(engines->hosts->fabric, flow, end, evs);
  mrc_engine *engine = engines->of[mrc_flow_host(flow, end)];
  for (uint32_t plane = 0; plane < engines->hosts->world->config.topology.planes; plane++) {
    host_address(sources[plane].address, mrc_flow_host(flow, 1 - end), plane);
    sources[plane].sport = mrc_sim_source_port(plane);
  }
  mrc_assert(mrc_qp_set_evs(engine, qpn, evs, flow->n_evs) == 0);
  mrc_assert(mrc_qp_set_peer(engine, qpn, sources,
                             (int)engines->hosts->world->config.topology.planes) == 0);
  MRC_EACH_BIT(plane, engines->hosts->world->config.backups)
    mrc_assert(mrc_qp_set_weight(engine, qpn, plane + 1, 0, 0) == 0);
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
static bool is_denied(const struct mrc_sim_flow *flow, const struct mrc_sim_ev *ev) {
  return flow->config.paths_until_ns && !is_named(flow, ev->path);
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

static struct mrc_cc_profile profile_of(const struct mrc_sim_config *config) {
  return (struct mrc_cc_profile){.link_bps = config->topology.host_rate_bps,
                                 .base_rtt_ns = config->cc_base_rtt_ns};
}

bool mrc_qps_can_control(const struct mrc_sim_config *config) {
  struct mrc_cc cc;
  const bool one = config->cc == MRC_CC_NSCC && config->plane_shares == MRC_SHARES_EQUAL;
  const uint32_t planes = config->single_path ? 1 : config->topology.planes;
  const struct mrc_cc_config given = {.max_bytes = (uint64_t)config->mpr * config->path_mtu,
                                      .mtu_bytes = config->path_mtu,
                                      .planes = one ? planes : 1,
                                      .windows = one ? 1 : planes,
                                      .kind = (uint8_t)config->cc,
                                      .profile = profile_of(config)};
  return mrc_cc_init(&cc, &given) == 0;
}

static struct mrc_qp_attr attr_of(const struct mrc_engines *engines, uint32_t index, uint32_t end) {
  const struct mrc_sim_config *config = &engines->hosts->world->config;
  const uint32_t depth = engines->hosts->flows->at[index].config.depth;
  return (struct mrc_qp_attr){.create = {.qpn = mrc_flow_qpn(index, end),
                                         .sq_depth = depth,
                                         .mpr = config->mpr,
                                         .max_wimm = depth},
                              .rtr = {.dest_qpn = mrc_flow_qpn(index, 1 - end),
                                      .integrity = MRC_INTEGRITY_UDP,
                                      .sack_times = config->cc == MRC_CC_DELAY,
                                      .rq_psn = config->first_psn},
                              .rts = {.sq_psn = config->first_psn,
                                      .path_mtu = config->path_mtu,
                                      .ev_active_per_plane = config->ev_active_per_plane,
                                      .peer_mpr = config->mpr,
                                      .peer_max_wimm = depth,
                                      .spray = config->spray,
                                      .timeout = (uint8_t)config->timeout,
                                      .retry_linear = (uint8_t)config->retry_linear,
                                      .retry_exp = (uint8_t)config->retry_exp,
                                      .cc = (uint8_t)config->cc,
                                      .plane_shares = config->plane_shares,
                                      .cc_profile = profile_of(config)}};
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
    watch_connect(engines->watch, index, end, &attr, both, &engines->hosts->world->prng);
  }
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
  const struct mrc_sim_ev *evs = flow->evs[end];
  *proof = (struct mrc_sim_proof){.engines = proof->engines, .flow = index, .end = end};
  uint32_t ev = 0;
  for (uint32_t plane = 0; plane < MRC_SIM_MAX_PLANES; plane++) {
    while (ev < (uint32_t)flow->n_evs && evs[ev].plane == plane)
      ev++;
    proof->first_ev[plane + 1] = ev;
    proof->n_paths = mrc_max_u32(proof->n_paths, ev - proof->first_ev[plane]);
  }
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
  for (uint32_t plane = 0; plane < hosts->world->config.topology.planes; plane++) {
    const uint32_t ev = proof->first_ev[plane] + proof->path;
    if (ev >= proof->first_ev[plane + 1] || proof->answered >> plane & 1) continue;
    if (is_denied(flow, &flow->evs[proof->end][ev])) continue;
    probes[n++] =
        (struct mrc_probe_attr){.qpn = mrc_flow_qpn(proof->flow, proof->end),
                                .ev_index = ev,
                                .bytes = hosts->world->config.path_mtu + MRC_DATA_OVERHEAD_BYTES,
                                .timeout_ns = PATIENCE_NS};
  }
  return n;
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
    for (int i = 0; i < n; i++)
      mrc_assert(mrc_qp_set_ev_state(engine, probes[i].qpn, probes[i].ev_index, MRC_EV_ASSUMED_BAD,
                                     proof->engines->hosts->world->now_ns) == 0);
  }
  return false;
}

/* ---- computing what probes would find ---- */

/* From sending a packet to its arrival over this path of an idle fabric; MRC_NEVER: it is lost. */
static uint64_t way_ns(const struct mrc_fabric *fabric, uint32_t from, uint32_t to,
                       const struct mrc_sim_ev *ev, uint32_t bytes) {
  const struct mrc_sim_config *config = &fabric->world->config;
  uint32_t hops[2 + MRC_TOPOLOGY_INNER_HOPS] = {
      mrc_topology_host_up(&config->topology, ev->plane, from),
      mrc_topology_host_down(&config->topology, ev->plane, to)};
  const uint32_t n =
      2 + mrc_topology_inner_hops(&config->topology, ev->plane,
                                  mrc_topology_t0_of(&config->topology, from),
                                  mrc_topology_t0_of(&config->topology, to), ev->path, hops + 2);
  const bool certain = config->routing != MRC_SIM_ECMP;
  uint64_t ns = 0;
  for (uint32_t i = 0; i < n; i++) {
    const struct mrc_hop_config *hop = &fabric->hops[hops[i]].kind->config;
    if ((hop->link.silent || hop->link.loss_ppm == MILLION ||
         (hop->link.mtu_bytes && bytes > hop->link.mtu_bytes)) &&
        (i < 2 || certain))
      return MRC_NEVER;
    ns += hop->link.delay_ns + (uint64_t)bytes * 8 * SECOND_NS / hop->rate_bps;
  }
  return ns;
}

static void compute_end(struct mrc_engines *engines, uint32_t index, uint32_t end) {
  const struct mrc_sim_flow *flow = &engines->hosts->flows->at[index];
  const struct mrc_world *world = engines->hosts->world;
  const uint32_t from = mrc_flow_host(flow, end), to = mrc_flow_host(flow, 1 - end);
  const uint32_t full = world->config.path_mtu + MRC_DATA_OVERHEAD_BYTES + MRC_FRAME_OVERHEAD_BYTES;
  mrc_engine *engine = engines->of[from];
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, mrc_flow_qpn(index, end));
  for (uint32_t i = 0; i < (uint32_t)flow->n_evs; i++) {
    const struct mrc_sim_ev *ev = &flow->evs[end][i];
    if (is_denied(flow, ev)) continue;
    const uint64_t there_ns = way_ns(engines->hosts->fabric, from, to, ev, full);
    const uint64_t back_ns = way_ns(engines->hosts->fabric, to, from, ev, ANSWER_BYTES);
    if (there_ns == MRC_NEVER || back_ns == MRC_NEVER) {
      mrc_assert(mrc_qp_set_ev_state(engine, qp->qpn, i, MRC_EV_ASSUMED_BAD, world->now_ns) == 0);
      continue;
    }
    const uint64_t rtt_ns = there_ns + back_ns + 2 * world->config.wake_ns;
    mrc_ev_probe_measured(qp, (uint16_t)i, world->now_ns - mrc_min_u64(rtt_ns, world->now_ns),
                          rtt_ns);
  }
}

void mrc_qps_compute(struct mrc_engines *engines, uint32_t index) {
  compute_end(engines, index, MRC_FROM);
  compute_end(engines, index, MRC_TO);
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
  struct mrc_wr wr = {.wr_id = flow->posted,
                      .local = (uintptr_t)engines_memory(engines, config->from),
                      .va = (uintptr_t)engines_memory(engines, config->to),
                      .lkey = MRC_ENGINES_KEY,
                      .rkey = MRC_ENGINES_KEY,
                      .bytes = config->bytes,
                      .imm = flow->posted,
                      .opcode = opcode_of(flow),
                      .redundant = config->redundant != 0};
  struct mrc_audit *audit = NULL;
  if (engines->watch) { /* the write has a place of its own in the memory */
    audit = audit_of(engines->watch, index, MRC_FROM);
    wr.local = (uintptr_t)audit->source + audit->used_bytes;
    wr.va = (uintptr_t)audit->target + audit->used_bytes;
    wr.lkey = wr.rkey = audit->qpn;
  }
  const int error =
      mrc_qp_post(engines->of[config->from], mrc_flow_qpn(index, MRC_FROM), &wr, 1, world->now_ns);
  if (error == 0 && audit) mrc_audit_posted(audit, &wr);
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
  for (uint32_t plane = 0; plane < engines->hosts->world->config.topology.planes; plane++)
    info->lost_packets += from.planes[plane].lost_packets;
}

static uint64_t plane_bytes(const void *transport, uint32_t index, uint32_t plane) {
  return query(transport, index, MRC_TO).planes[plane - 1].received_bytes;
}

const struct mrc_transport_calls mrc_qps_transport = {.receive = engines_receive,
                                                      .turn = engines_turn,
                                                      .port_room = engines_port_room,
                                                      .port_up = engines_port_up,
                                                      .connect = connect,
                                                      .post = post,
                                                      .info = info_of,
                                                      .plane_bytes = plane_bytes};
