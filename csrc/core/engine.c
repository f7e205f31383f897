/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of the driver: create, receive, transmit, commit, ports, time. */
#include "engine.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "commit.h"
#include "core/loss/health.h"
#include "core/loss/requester_rx.h"
#include "core/loss/sack_take.h"
#include "core/recv/responder_rx.h"
#include "core/windows.h"
#include "core/wire.h"
#include "schedule.h"

/* ---- create and destroy ---- */

static uint32_t or_default(uint32_t value, uint32_t otherwise) {
  return value != 0 ? value : otherwise;
}

static uint32_t sack_threshold_bytes(uint32_t readings) {
  if ((readings & MRC_READING_G2_A) != 0) return 16384;
  return (readings & MRC_READING_G2_B) != 0 ? 4096 : 262144;
}

static bool fill_config(struct mrc_engine_config *config) {
  config->max_qps = or_default(config->max_qps, 1024);
  config->max_mrs = or_default(config->max_mrs, 1024);
  config->ports = or_default(config->ports, 1);
  config->cq_depth = or_default(config->cq_depth, 65536);
  config->trace_entries = or_default(config->trace_entries, 4096);
  config->max_burst_bytes = or_default(config->max_burst_bytes, MRC_BURST_BYTES);
  config->sack_threshold_bytes =
      or_default(config->sack_threshold_bytes, sack_threshold_bytes(config->readings));
  config->sack_delay_ns = or_default(config->sack_delay_ns, 500000);
  config->noise_ns = or_default(config->noise_ns, MRC_NOISE_NS);
  config->seal_epoch_bits = or_default(config->seal_epoch_bits, MRC_SEAL_EPOCH_BITS);
  return mrc_dscps_fill(&config->dscps) && (config->readings & ~(uint32_t)MRC_ALL_READINGS) == 0 &&
         config->ports <= MRC_MAX_PORTS && config->max_qps <= 1u << 20 &&
         config->max_mrs <= 1u << 20 && config->noise_ns >= 1000 &&
         config->noise_ns <= 1000000000u && config->cq_depth <= 1u << 24 &&
         config->seal_epoch_bits >= 6 && config->seal_epoch_bits <= MRC_SEAL_EPOCH_BITS &&
         (config->trace_entries & (config->trace_entries - 1)) == 0 &&
         config->trace_entries <= 1u << 24;
}

struct mrc_engine *mrc_engine_create(const struct mrc_engine_config *given) {
  struct mrc_engine_config config = *given;
  if (!fill_config(&config)) return NULL;
  struct mrc_engine *engine = malloc(sizeof *engine);
  if (engine == NULL) return NULL;
  memset(engine, 0, offsetof(struct mrc_engine, probe_room));
  engine->prng.state = config.seed;
  engine->services.events.ring = engine->events;
  engine->endpoint.answers.ring = engine->answers;
  mrc_probes_init(&engine->services.probes, &engine->probe_room, config.seed);
  engine->qps = calloc(config.max_qps, sizeof *engine->qps);
  const bool ok = engine->qps != NULL && mrc_services_init(&engine->services, &config) == 0 &&
                  mrc_endpoint_init(&engine->endpoint, &config) == 0 &&
                  mrc_keymap_init(&engine->by_qpn, config.max_qps) == 0;
  if (ok) return engine;
  mrc_engine_destroy(engine);
  return NULL;
}

void mrc_engine_destroy(struct mrc_engine *engine) {
  if (engine == NULL) return;
  for (uint32_t i = 0; engine->qps != NULL && i < engine->services.config.max_qps; i++)
    if (engine->qps[i] != NULL) mrc_qp_free(engine->qps[i]);
  free(engine->qps);
  mrc_services_free(&engine->services);
  mrc_endpoint_free(&engine->endpoint);
  mrc_keymap_free(&engine->by_qpn);
  free(engine);
}

struct mrc_qp *mrc_engine_qp(const struct mrc_engine *engine, uint32_t qpn) {
  const uint32_t index = mrc_keymap_get(&engine->by_qpn, qpn);
  return index == MRC_KEYMAP_NONE ? NULL : engine->qps[index];
}

/* ---- receive ---- */

/* What packets that arrived together have in common. */
struct arrival {
  const struct mrc_meta *meta;
  struct mrc_qp *qp; /* of the last packet; NULL: unknown */
  bool hashed;       /* the engine's ICRC prefix is that of `meta` */
};

static bool icrc_is_good(struct mrc_engine *engine, const uint8_t *packet, size_t bytes,
                         struct arrival *arrival) {
  const struct mrc_meta *meta = arrival->meta;
  if (!arrival->hashed || bytes != engine->icrc_prefix.bytes) {
    const struct mrc_icrc_flow flow = {.src = meta->src,
                                       .dst = meta->dst,
                                       .sport = meta->sport,
                                       .dport = meta->dport,
                                       .family = meta->family};
    mrc_icrc_prefix_set(&engine->icrc_prefix, &flow, bytes);
    arrival->hashed = true;
  }
  return mrc_icrc_is_good(&engine->icrc_prefix, packet);
}

static int to_qp(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                 const struct mrc_meta *meta, uint64_t now_ns) {
  if (qp->state == MRC_QP_ERROR) {
    mrc_responder_on_error_packet(services, qp, meta, now_ns);
    return mrc_drop(services, MRC_DROP_QP_STATE, qp->qpn, 0);
  }
  if (mrc_opcode_is_data(wire->opcode) && !meta->trimmed)
    return mrc_responder_on_data(services, qp, wire, meta, now_ns);
  mrc_responder_account(services, qp, meta);
  if (mrc_opcode_is_data(wire->opcode)) return mrc_responder_on_trimmed(services, qp, wire, meta);
  if (wire->opcode == MRC_OP_PROBE) return mrc_responder_on_probe(services, qp, wire, meta);
  if (qp->state != MRC_QP_RTS) return mrc_drop(services, MRC_DROP_QP_STATE, qp->qpn, 0);
  switch (wire->opcode) {
    case MRC_OP_SACK:
      return mrc_sack_take(services, qp, wire, meta, now_ns);
    case MRC_OP_NACK:
      return mrc_requester_on_nack(services, qp, wire, now_ns);
    default:
      mrc_assert(wire->opcode == MRC_OP_ACK);
      return mrc_requester_on_ack(services, qp, wire, now_ns);
  }
}

/* Ends the common work for the QP of the last packets. */
static void leave_qp(struct mrc_services *services, struct arrival *arrival) {
  if (arrival->qp != NULL) mrc_responder_account(services, arrival->qp, arrival->meta);
  arrival->qp = NULL;
}

/* Sets `arrival->qp` to the destination, or returns a drop reason. */
static int enter_qp(struct mrc_engine *engine, struct arrival *arrival, uint32_t qpn,
                    size_t bytes) {
  struct mrc_services *services = &engine->services;
  const struct mrc_meta *meta = arrival->meta;
  leave_qp(services, arrival);
  struct mrc_qp *qp = mrc_engine_qp(engine, qpn);
  if (qp == NULL) return mrc_drop(services, MRC_DROP_QPN, qpn, bytes);
  if (!mrc_node_joined(&qp->nodes.ready))
    mrc_qp_prefetch(qp); /* the first packet since its last turn */
  if (qp->state < MRC_QP_RTR) return mrc_drop(services, MRC_DROP_QP_STATE, qp->qpn, bytes);
  if (!mrc_peer_knows(&engine->endpoint.peers, qp->peer, meta->src, meta->sport))
    return mrc_drop(services, MRC_DROP_SOURCE, qp->qpn, bytes);
  arrival->qp = qp;
  return MRC_DROP_NONE;
}

/* The QP whose key seals this endpoint packet, or NULL. */
static struct mrc_qp *sealing_qp(struct mrc_engine *engine, const struct mrc_meta *meta,
                                 const uint8_t *packet, size_t bytes) {
  const struct mrc_wire_seal stamp = mrc_wire_decode_seal(packet + bytes - MRC_SEALED_BYTES);
  struct mrc_qp *qp = mrc_engine_qp(engine, stamp.qpn);
  if (qp == NULL || qp->seal == NULL) return NULL;
  return mrc_peer_knows(&engine->endpoint.peers, qp->peer, meta->src, meta->sport) ? qp : NULL;
}

static int receive_sealed_endpoint(struct mrc_engine *engine, struct mrc_wire *wire,
                                   const struct mrc_meta *meta, uint8_t *packet, size_t bytes,
                                   uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  uint64_t counter;
  const bool whole = !meta->trimmed; /* a trimmed one may lack its seal */
  struct mrc_qp *qp = whole ? sealing_qp(engine, meta, packet, bytes) : NULL;
  if (qp == NULL) return mrc_drop(services, MRC_DROP_SOURCE, wire->dest_qpn, bytes);
  const int reason =
      mrc_seal_open(qp->seal, packet, bytes, mrc_meta_ev(meta), wire, &counter, now_ns);
  if (reason != MRC_DROP_NONE) return mrc_drop(services, (enum mrc_drop)reason, qp->qpn, bytes);
  if (wire->opcode == MRC_OP_ENDPOINT_REQUEST && wire->endpoint.op == MRC_ENDPOINT_PORT_STATUS) {
    if (counter < qp->seal->status) return mrc_drop(services, MRC_DROP_REPLAY, qp->qpn, bytes);
    qp->seal->status = counter + 1;
  }
  return mrc_endpoint_receive(services, &engine->endpoint, wire, meta, qp, now_ns);
}

static int receive_endpoint(struct mrc_engine *engine, struct arrival *arrival,
                            struct mrc_wire *wire, uint8_t *packet, size_t bytes, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  const struct mrc_meta *meta = arrival->meta;
  leave_qp(services, arrival);
  if (wire->opcode == MRC_OP_ENDPOINT_RESPONSE && mrc_services_reads(services, MRC_READING_C6_B))
    mrc_wire_lift_response(packet, wire);
  if (wire->sealed) return receive_sealed_endpoint(engine, wire, meta, packet, bytes, now_ns);
  if (mrc_peers_find_plain(&engine->endpoint.peers, meta->src, meta->sport, 0) == 0)
    return mrc_drop(services, MRC_DROP_SOURCE, wire->dest_qpn, bytes);
  if (!icrc_is_good(engine, packet, bytes, arrival))
    return mrc_drop(services, MRC_DROP_ICRC, wire->dest_qpn, bytes);
  return mrc_endpoint_receive(services, &engine->endpoint, wire, meta, NULL, now_ns);
}

/* Checks ICRC or seal, and decrypts. Returns 0 or a drop reason. */
static int check_packet(struct mrc_engine *engine, struct arrival *arrival, struct mrc_wire *wire,
                        uint8_t *packet, size_t bytes, uint64_t now_ns) {
  struct mrc_seal *seal = arrival->qp->seal;
  uint64_t counter;
  if (wire->sealed != (seal != NULL)) return MRC_DROP_SEAL;
  if (arrival->meta->trimmed && mrc_opcode_is_data(wire->opcode))
    return MRC_DROP_NONE; /* cut off: has neither; only a hint to send again */
  if (seal != NULL)
    return mrc_seal_open(seal, packet, bytes, mrc_meta_ev(arrival->meta), wire, &counter, now_ns);
  const bool good = !mrc_qp_has_icrc(arrival->qp) || icrc_is_good(engine, packet, bytes, arrival);
  return good ? MRC_DROP_NONE : MRC_DROP_ICRC;
}

/* The peer answers by the readings of this engine. */
static void translate(const struct mrc_services *services, struct mrc_wire *wire) {
  if (wire->opcode == MRC_OP_SACK) wire->sack.ev = mrc_services_ev(services, wire->sack.ev);
  if (wire->opcode == MRC_OP_NACK) wire->nack.ev = mrc_services_ev(services, wire->nack.ev);
}

/* Cheap checks come first, so that a flood of invalid packets costs neither CRC nor cipher. */
static int receive(struct mrc_engine *engine, struct arrival *arrival, uint8_t *packet,
                   size_t bytes, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  const struct mrc_meta *meta = arrival->meta;
  struct mrc_wire wire;
  int reason = mrc_wire_decode(packet, bytes, meta->trimmed, &wire);
  if (reason != MRC_DROP_NONE) return mrc_drop(services, (enum mrc_drop)reason, 0, bytes);
  if (meta->ecn == 3) mrc_count(services, MRC_COUNTER_RX_CE, 1);
  if (wire.opcode == MRC_OP_ENDPOINT_REQUEST || wire.opcode == MRC_OP_ENDPOINT_RESPONSE)
    return receive_endpoint(engine, arrival, &wire, packet, bytes, now_ns);
  if (arrival->qp == NULL || arrival->qp->qpn != wire.dest_qpn) {
    reason = enter_qp(engine, arrival, wire.dest_qpn, bytes);
    if (reason != MRC_DROP_NONE) return reason;
  }
  reason = check_packet(engine, arrival, &wire, packet, bytes, now_ns);
  if (reason != MRC_DROP_NONE)
    return mrc_drop(services, (enum mrc_drop)reason, wire.dest_qpn, bytes);
  translate(services, &wire);
  return to_qp(services, arrival->qp, &wire, meta, now_ns);
}

/* Header and trailer of the packet after this one: both are read before the rest, which the CPU
   then fetches by itself. */
static void prefetch_ends(const uint8_t *packet, size_t n) {
  __builtin_prefetch(packet);
  if (n < MRC_SEALED_BYTES) return;
  __builtin_prefetch(packet + n - MRC_SEALED_BYTES);
  __builtin_prefetch(packet + n - 1);
}

int mrc_engine_receive(struct mrc_engine *engine, uint8_t *packets, size_t bytes,
                       size_t packet_bytes, const struct mrc_meta *meta, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  mrc_assert(!engine->committing && (packet_bytes > 0 || bytes == 0));
  services->now_ns = now_ns;
  if (meta->overflowed) services->overflow_ns = now_ns;
  const bool known_port = meta->port >= 1 && meta->port <= services->config.ports;
  struct mrc_meta dated;
  if (meta->arrived_ns == 0 || meta->arrived_ns > now_ns) { /* unknown, or in the future */
    dated = *meta;
    dated.arrived_ns = now_ns;
    meta = &dated;
  }
  struct arrival arrival = {.meta = meta};
  size_t offset = 0;
  int reason;
  do { /* an empty datagram is a packet too: it counts as too short */
    const size_t left = bytes - offset, n = packet_bytes < left ? packet_bytes : left;
    const size_t after = left - n;
    if (after > 0) prefetch_ends(packets + offset + n, packet_bytes < after ? packet_bytes : after);
    mrc_count(services, MRC_COUNTER_RX_PACKETS, 1);
    reason = known_port ? receive(engine, &arrival, packets + offset, n, now_ns)
                        : mrc_drop(services, MRC_DROP_PORT, 0, n);
    offset += n;
  } while (offset < bytes);
  leave_qp(services, &arrival);
  return reason;
}

/* ---- transmit ---- */

int mrc_engine_transmit(struct mrc_engine *engine, struct mrc_burst *bursts, int capacity,
                        uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  struct mrc_endpoint *endpoint = &engine->endpoint;
  mrc_assert(!engine->committing && capacity > 0);
  services->now_ns = now_ns;
  mrc_arena_begin(&services->arena, bursts, capacity);
  if (mrc_answer_transmit(services, &endpoint->peers, &endpoint->answers) &&
      mrc_endpoint_transmit_probes(services, endpoint, now_ns) &&
      mrc_schedule_transmit(services, now_ns))
    mrc_endpoint_transmit_probes(services, endpoint, now_ns);
  engine->committing = services->arena.n_bursts > 0;
  return services->arena.n_bursts;
}

void mrc_engine_commit(struct mrc_engine *engine, const struct mrc_burst *bursts, const int *taken,
                       int n, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  mrc_assert(engine->committing && n == services->arena.n_bursts);
  engine->committing = false;
  services->now_ns = now_ns;
  /* Last to first, so that refused packets and their QPs return to their queues in order. */
  for (int i = n - 1; i >= 0; i--) {
    struct mrc_qp *qp = engine->qps[bursts[i]._qp];
    mrc_assert(qp != NULL);
    mrc_commit_burst(services, &engine->endpoint, qp, &bursts[i], taken[i], now_ns);
  }
  /* After all commits: a suspension declares lost all packets in flight on the plane, and these
     include packets of other bursts of this transmit. */
  for (int i = 0; i < n; i++)
    if (taken[i] < 0)
      mrc_commit_blame(services, engine->qps[bursts[i]._qp], &bursts[i], taken[i], now_ns);
}

/* ---- ports ---- */

/* Begins a call about this port. Returns its plane. */
static uint32_t begin_port(struct mrc_services *services, int port, uint64_t now_ns) {
  mrc_assert(port >= 1 && (uint32_t)port <= services->config.ports);
  services->now_ns = now_ns;
  return mrc_plane_of((uint32_t)port);
}

void mrc_engine_port_blocked(struct mrc_engine *engine, int port, bool blocked, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  const uint32_t plane = begin_port(services, port, now_ns), bit = 1u << plane;
  if (((services->ports.blocked & bit) != 0) == blocked) return;
  services->ports.blocked ^= bit;
  if (blocked) {
    services->ports.blocked_ns[plane] = now_ns;
  } else {
    engine->endpoint.answers.n_stuck = services->probes.n_stuck = 0;
    mrc_ready_wake_port_waiting(&services->ready);
  }
}

void mrc_engine_port_up(struct mrc_engine *engine, int port, bool up, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  const uint32_t plane = begin_port(services, port, now_ns), bit = 1u << plane;
  if (((services->ports.up & bit) != 0) == up) return;
  services->ports.up ^= bit;
  services->ports.was_down = true;
  mrc_endpoint_on_port_change(services, &engine->endpoint);
  for (uint32_t i = 0; i < services->config.max_qps; i++) {
    struct mrc_qp *qp = engine->qps[i];
    if (qp == NULL || (qp->evset.plane_mask & bit) == 0) continue;
    mrc_health_report_plane(services, qp, plane, MRC_EVENT_PORT, up, MRC_REASON_OWN_PORT);
    if (qp->state != MRC_QP_RTS) continue;
    if (up)
      mrc_health_retry_plane(services, qp, plane, now_ns);
    else
      mrc_health_suspend_plane(services, qp, plane, MRC_REASON_OWN_PORT, now_ns);
  }
}

/* ---- time ---- */

uint64_t mrc_engine_deadline(const struct mrc_engine *engine) {
  const struct mrc_ready *ready = &engine->services.ready;
  if (!mrc_list_is_empty(&ready->ready)) return 0; /* there is something to send */
  return mrc_min_u64(mrc_timers_next(&ready->timers),
                     mrc_endpoint_deadline(&engine->services, &engine->endpoint));
}

void mrc_engine_expire(struct mrc_engine *engine, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  mrc_assert(!engine->committing);
  services->now_ns = now_ns;
  mrc_endpoint_expire(services, &engine->endpoint, now_ns);
  for (;;) {
    const uint32_t index = mrc_timers_pop(&services->ready.timers, now_ns);
    if (index == UINT32_MAX) return;
    mrc_assert(engine->qps[index] != NULL);
    mrc_schedule_on_deadline(services, engine->qps[index], now_ns);
  }
}
