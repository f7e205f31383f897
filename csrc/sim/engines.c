/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/engines.h"

#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "core/send.h"
#include "core/services.h"
#include "core/turn.h"
#include "core/wire.h"
#include "sim/host_address.h"
#include "sim/topology.h"
#include "virtual/sealer.h"

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

/* Assembles the packet in one piece. If payload is not copied, its bytes stay zeros. */
static uint8_t *assemble(const struct mrc_engines *engines, const struct mrc_frame *packet) {
  uint8_t *at = engines->scratch;
  memset(at, 0, MRC_MAX_HEADER);
  memcpy(at, packet->header, packet->header_bytes);
  at += packet->header_bytes;
  if ((engines->hosts->world->config.copies_payload || engines->watch) && packet->payload_bytes)
    memcpy(at, packet->payload, packet->payload_bytes);
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
  packet->to = mrc_sim_host_of(burst->dst);
  packet->path = mrc_sim_path_of(burst->dst);
  packet->plane = (uint8_t)(burst->port - 1);
  packet->ecn = burst->tclass & 3;
  packet->control = (burst->tclass & 3) == MRC_ECN_NONE;
  packet->transport = MRC_HOST_MRC;
  mrc_fabric_set_usids(fabric, packet);
  mrc_assert(piece->header_bytes + piece->trailer_bytes <= sizeof packet->header);
  memcpy(packet->header, piece->header, piece->header_bytes);
  memcpy(packet->header + piece->header_bytes, piece->trailer, piece->trailer_bytes);
  if (engines->watch) {
    mrc_fabric_watch_sent(engines->watch, packet, assemble(engines, packet),
                          host->full[MRC_HOST_MRC], host->down);
    clear_scratch(engines, packet);
  }
  mrc_fabric_send(fabric, packet);
}

static bool send_burst(struct mrc_engines *engines, uint32_t host, const struct mrc_burst *burst) {
  if (!mrc_sim_host_takes(engines->hosts, host, MRC_HOST_MRC, burst->port - 1u,
                          engines->hosts->world->config.sndbuf_bytes))
    return false;
  for (int i = 0; i < burst->n_packets; i++)
    send_packet(engines, host, burst, &burst->packets[i]);
  return true;
}

static uint32_t send_bursts(void *driver, const struct mrc_burst *bursts, int *taken, int n,
                            uint64_t now_ns) {
  (void)now_ns;
  struct mrc_engines *engines = ((struct driver *)driver)->engines;
  const uint32_t host = ((struct driver *)driver)->host;
  const uint32_t *full = &engines->hosts->at[host].full[MRC_HOST_MRC], before = *full;
  for (int i = 0; i < n; i++)
    taken[i] = send_burst(engines, host, &bursts[i]);
  return *full & ~before;
}

/* ---- receiving ---- */

void mrc_engines_receive(void *transport, uint32_t host, const struct mrc_frame *packet) {
  struct mrc_engines *engines = transport;
  struct mrc_meta meta = {.flow_label = packet->flow_label,
                          .sport = packet->sport,
                          .dport = MRC_UDP_PORT,
                          .family = 6,
                          .port = (uint8_t)(packet->plane + 1),
                          .ecn = packet->ecn,
                          .trimmed = packet->trimmed};
  mrc_sim_host_address(meta.src, packet->from, packet->plane);
  mrc_sim_path_address(meta.dst, packet->to, packet->plane, packet->path);
  uint8_t *bytes = assemble(engines, packet);
  const size_t n = mrc_frame_udp_bytes(packet);
  const int drop =
      mrc_engine_receive(engines->of[host], bytes, n, n, &meta, engines->hosts->world->now_ns);
  if (drop == MRC_DROP_DUPLICATE && !packet->extra)
    engines->hosts->flows->at[mrc_flow_of(mrc_get_u24(&packet->header[QPN_AT]))].repeated++;
  if (drop == MRC_DROP_NONE && !packet->trimmed && mrc_opcode_is_data(packet->header[0]))
    engines->hosts->fabric->record->received_bytes += packet->payload_bytes;
  if (engines->watch) mrc_fabric_watch_received(engines->watch, packet, bytes, drop);
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

uint64_t mrc_engines_turn(void *transport, uint32_t host) {
  struct mrc_engines *engines = transport;
  struct driver driver = {.engines = engines, .host = host};
  struct mrc_turn turn = {
      .calls = &calls, .driver = &driver, .engine = engines->of[host], .capacity = CAPACITY};
  const uint64_t deadline_ns = mrc_turn_run_dry(&turn, engines->hosts->world->now_ns);
  if (engines->watch) mrc_fabric_watch_state(engines->watch);
  return deadline_ns;
}

void mrc_engines_port_room(void *transport, uint32_t host, uint32_t port) {
  struct mrc_engines *engines = transport;
  mrc_engine_port_blocked(engines->of[host], (int)port, false, engines->hosts->world->now_ns);
}

void mrc_engines_port_up(void *transport, uint32_t host, uint32_t port, bool up) {
  struct mrc_engines *engines = transport;
  mrc_engine_port_up(engines->of[host], (int)port, up, engines->hosts->world->now_ns);
}

/* ---- life ---- */

uint8_t *mrc_engines_memory(const struct mrc_engines *engines, uint32_t host) {
  return mrc_sim_memory_at(
      engines->memory,
      mrc_topology_shard_of_host(&engines->hosts->world->config, engines->shards, host));
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
  engines->of = calloc(config->hosts, sizeof(*engines->of));
  engines->shared = calloc(engines->shards, sizeof(struct mrc_scratch *));
  mrc_assert(engines->shared && engines->of);
  for (uint32_t i = 0; i < config->hosts; i++) {
    struct mrc_engine_config own = {.seed = mrc_prng_next(&world->prng),
                                    .max_qps = config->qps_per_host,
                                    .max_mrs = 4 + 2 * config->qps_per_host,
                                    .ports = config->planes,
                                    .cq_depth = 4096 + 4 * config->qps_per_host,
                                    .trace_entries = TRACE_ENTRIES,
                                    .sack_threshold_bytes = config->sack_threshold_bytes,
                                    .sack_delay_ns = config->sack_delay_ns,
                                    .seal_epoch_bits = MRC_SEALER_EPOCH_BITS,
                                    .noise_ns = config->noise_ns,
                                    .aead = &mrc_sealer_of_headers};
    struct mrc_scratch **shared =
        &engines->shared[mrc_topology_shard_of_host(config, engines->shards, i)];
    if (*shared == NULL) *shared = mrc_scratch_create(&own);
    own.scratch = *shared;
    engines->of[i] = mrc_engine_create(&own);
    mrc_assert(engines->of[i]);
    mrc_assert(mrc_mr_register(engines->of[i], (uintptr_t)mrc_engines_memory(engines, i),
                               config->memory_bytes, MRC_ENGINES_KEY,
                               MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE, 0) == 0);
  }
}

void mrc_engines_free(struct mrc_engines *engines) {
  for (uint32_t i = 0; i < engines->hosts->world->config.hosts; i++)
    mrc_engine_destroy(engines->of[i]);
  for (uint32_t i = 0; i < engines->shards; i++)
    mrc_scratch_destroy(engines->shared[i]);
  free(engines->shared);
  free(engines->of);
  free(engines->scratch);
}
