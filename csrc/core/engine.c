/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's loop: who takes a packet, whose turn it is to send, whose deadline has come. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#include "burst.h"
#include "icrc.h"
#include "loss.h"
#include "port_status.h"
#include "probe.h"
#include "requester.h"
#include "responder.h"
#include "reverse.h"

#define MIN_WAIT_NS 20000ull     /* a timer never comes sooner than this after a visit */
#define STUCK_WAIT_NS 1000000ull /* nor sooner than this while it is stuck */
#define MAX_SOURCES 65536        /* peers' source addresses known at once */

/* ---- create and destroy ---- */

static uint32_t or_default(uint32_t value, uint32_t otherwise) {
  return value != 0 ? value : otherwise;
}

static bool fill_config(struct mrc_engine_config *config) {
  config->max_qps = or_default(config->max_qps, 1024);
  config->max_mrs = or_default(config->max_mrs, 1024);
  config->ports = or_default(config->ports, 1);
  config->cq_depth = or_default(config->cq_depth, 65536);
  config->trace_entries = or_default(config->trace_entries, 4096);
  config->max_burst_bytes = or_default(config->max_burst_bytes, 63488);
  config->sack_threshold_bytes = or_default(config->sack_threshold_bytes, 262144);
  config->sack_delay_ns = or_default(config->sack_delay_ns, 500000);
  config->noise_ns = or_default(config->noise_ns, MRC_NOISE_NS);
  return config->ports <= MRC_MAX_PORTS && config->max_qps <= 1u << 20 &&
         config->max_mrs <= 1u << 20 && config->noise_ns >= 1000 &&
         config->noise_ns <= 1000000000u && config->cq_depth <= 1u << 24 &&
         (config->trace_entries & (config->trace_entries - 1)) == 0 &&
         config->trace_entries <= 1u << 24;
}

static uint32_t max_sources(const struct mrc_engine_config *config) {
  return mrc_min_u32(MAX_SOURCES, config->max_qps * MRC_MAX_PEER_SOURCES);
}

struct mrc_engine *mrc_engine_create(const struct mrc_engine_config *config) {
  struct mrc_engine *engine = calloc(1, sizeof *engine);
  if (engine == NULL) return NULL;
  engine->config = *config;
  if (!fill_config(&engine->config)) {
    free(engine);
    return NULL;
  }
  config = &engine->config;
  engine->prng.state = config->seed;
  engine->ev_probe_ids.key[0] = config->seed;
  engine->ports_up = mrc_all_ports(config->ports);
  mrc_list_init(&engine->ready);
  mrc_list_init(&engine->answering);
  mrc_list_init(&engine->waiting);
  mrc_list_init(&engine->held);
  mrc_list_init(&engine->slot_waiting);
  engine->qps = calloc(config->max_qps, sizeof *engine->qps);
  engine->ev_probes = calloc(MRC_MAX_EV_PROBES, sizeof *engine->ev_probes);
  engine->arena = calloc(MRC_ARENA_PACKETS, sizeof *engine->arena);
  engine->trace = calloc(config->trace_entries, sizeof *engine->trace);
  engine->events = calloc(MRC_EVENT_RING, sizeof *engine->events);
  const bool ok =
      engine->qps != NULL && engine->ev_probes != NULL && engine->arena != NULL &&
      engine->trace != NULL && engine->events != NULL &&
      mrc_keymap_init(&engine->by_qpn, config->max_qps) == 0 &&
      mrc_peers_init(&engine->peers, config->max_qps, max_sources(config), config->seed) == 0 &&
      mrc_mr_table_init(&engine->mrs, config->max_mrs) == 0 &&
      mrc_cq_init(&engine->cq, config->cq_depth) == 0 &&
      mrc_timers_init(&engine->timers, config->max_qps) == 0 &&
      mrc_timers_init(&engine->peer_timers, config->max_qps + 1) == 0 &&
      mrc_timers_init(&engine->ev_probe_timers, MRC_MAX_EV_PROBES) == 0;
  if (ok) return engine;
  mrc_engine_destroy(engine);
  return NULL;
}

void mrc_engine_destroy(struct mrc_engine *engine) {
  if (engine == NULL) return;
  engine->committing = false;
  for (uint32_t i = 0; engine->qps != NULL && i < engine->config.max_qps; i++)
    if (engine->qps[i] != NULL) mrc_qp_destroy(engine, engine->qps[i]->qpn);
  free(engine->qps);
  free(engine->ev_probes);
  free(engine->arena);
  free(engine->trace);
  free(engine->events);
  mrc_keymap_free(&engine->by_qpn);
  mrc_peers_free(&engine->peers);
  mrc_mr_table_free(&engine->mrs);
  mrc_cq_free(&engine->cq);
  mrc_timers_free(&engine->timers);
  mrc_timers_free(&engine->ev_probe_timers);
  mrc_timers_free(&engine->peer_timers);
  free(engine);
}

/* ---- services ---- */

void mrc_trace(struct mrc_engine *engine, enum mrc_trace_point point, uint32_t qpn, uint64_t a,
               uint64_t b) {
  engine->trace[engine->n_traced++ & (engine->config.trace_entries - 1)] = (struct mrc_trace_entry){
      .now_ns = engine->now_ns, .point = point, .qpn = qpn, .a = a, .b = b};
}

int mrc_drop(struct mrc_engine *engine, enum mrc_drop reason, uint32_t qpn, size_t bytes) {
  engine->drops[reason]++;
  mrc_count(engine, MRC_COUNTER_RX_DROPPED, 1);
  mrc_trace(engine, MRC_TRACE_DROP, qpn, reason, bytes);
  return (int)reason;
}

struct mrc_qp *mrc_engine_qp(const struct mrc_engine *engine, uint32_t qpn) {
  const uint32_t index = mrc_keymap_get(&engine->by_qpn, qpn);
  return index == MRC_KEYMAP_NONE ? NULL : engine->qps[index];
}

int mrc_mr_register(struct mrc_engine *engine, uint64_t address, uint64_t bytes, uint32_t key,
                    uint32_t access) {
  return mrc_mr_table_add(&engine->mrs, address, bytes, key, access);
}

int mrc_mr_deregister(struct mrc_engine *engine, uint32_t key) {
  mrc_assert(!engine->committing); /* bursts point into it */
  return mrc_mr_table_remove(&engine->mrs, key);
}

/* ---- lists: who may have something to send ---- */

static struct mrc_qp *first_ready(const struct mrc_engine *engine) {
  return MRC_NODE_OWNER(engine->ready.next, struct mrc_qp, ready);
}

void mrc_engine_forget(struct mrc_engine *engine, struct mrc_qp *qp) {
  (void)engine;
  mrc_node_leave(&qp->ready);
  mrc_node_leave(&qp->answering);
  mrc_node_leave(&qp->waiting);
  mrc_node_leave(&qp->held);
}

void mrc_qp_touch(struct mrc_engine *engine, struct mrc_qp *qp) {
  mrc_list_append(&engine->ready, &qp->ready);
}

void mrc_qp_touch_first(struct mrc_engine *engine, struct mrc_qp *qp) {
  mrc_node_leave(&qp->ready);
  mrc_list_prepend(&engine->ready, &qp->ready);
}

void mrc_qp_touch_to_answer(struct mrc_engine *engine, struct mrc_qp *qp) {
  mrc_list_append(&engine->ready, &qp->ready);
  mrc_list_append(&engine->answering, &qp->answering);
}

/* A port can be sent on again: whoever had to do without it gets a turn, and what it owed meanwhile
   leaves first. Data would fill a small socket again, each time. */
static void wake_waiting(struct mrc_engine *engine) {
  while (!mrc_list_is_empty(&engine->waiting)) {
    struct mrc_qp *qp = MRC_NODE_OWNER(engine->waiting.next, struct mrc_qp, waiting);
    mrc_node_leave(&qp->waiting);
    mrc_qp_touch_to_answer(engine, qp);
  }
}

/* ---- receive ---- */

static bool icrc_is_good(struct mrc_engine *engine, const uint8_t *packet, size_t bytes,
                         const struct mrc_meta *meta) {
  const struct mrc_icrc_flow flow = {.src = meta->src,
                                     .dst = meta->dst,
                                     .sport = meta->sport,
                                     .dport = meta->dport,
                                     .family = meta->family};
  return mrc_icrc_is_good(&engine->begun, &flow, packet, bytes);
}

static int to_endpoint(struct mrc_engine *engine, const struct mrc_wire *wire,
                       const struct mrc_meta *meta, uint64_t now_ns) {
  if (wire->opcode == MRC_OP_ENDPOINT_REQUEST)
    return mrc_endpoint_on_request(engine, wire, meta, now_ns);
  return mrc_endpoint_on_response(engine, wire, meta, now_ns);
}

static int to_qp(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_wire *wire,
                 const struct mrc_meta *meta, uint64_t now_ns) {
  if (qp->state == MRC_QP_ERROR) {
    mrc_responder_on_error_packet(engine, qp, meta, now_ns);
    return mrc_drop(engine, MRC_DROP_QP_STATE, qp->qpn, 0);
  }
  if (mrc_opcode_is_data(wire->opcode)) {
    if (meta->trimmed) return mrc_responder_on_trimmed(engine, qp, wire, meta);
    return mrc_responder_on_data(engine, qp, wire, meta, now_ns);
  }
  if (wire->opcode == MRC_OP_PROBE) return mrc_responder_on_probe(engine, qp, wire, meta);
  if (qp->state != MRC_QP_RTS) return mrc_drop(engine, MRC_DROP_QP_STATE, qp->qpn, 0);
  switch (wire->opcode) {
    case MRC_OP_SACK:
      return mrc_requester_on_sack(engine, qp, wire, meta, now_ns);
    case MRC_OP_NACK:
      return mrc_requester_on_nack(engine, qp, wire, now_ns);
    default:
      mrc_assert(wire->opcode == MRC_OP_ACK);
      return mrc_requester_on_ack(engine, qp, wire, now_ns);
  }
}

int mrc_engine_receive(struct mrc_engine *engine, const uint8_t *packet, size_t bytes,
                       const struct mrc_meta *meta, uint64_t now_ns) {
  mrc_assert(!engine->committing);
  engine->now_ns = now_ns;
  mrc_count(engine, MRC_COUNTER_RX_PACKETS, 1);
  if (meta->port < 1 || meta->port > engine->config.ports)
    return mrc_drop(engine, MRC_DROP_PORT, 0, bytes);
  struct mrc_wire wire;
  const int reason = mrc_wire_decode(packet, bytes, meta->trimmed, &wire);
  if (reason != MRC_DROP_NONE) return mrc_drop(engine, (enum mrc_drop)reason, 0, bytes);
  if (meta->ecn == 3) mrc_count(engine, MRC_COUNTER_RX_CE, 1);
  struct mrc_meta arrived = *meta; /* with a time of arrival in any case, and never in the future */
  if (arrived.arrived_ns == 0 || arrived.arrived_ns > now_ns) arrived.arrived_ns = now_ns;
  meta = &arrived;
  const bool endpoint =
      wire.opcode == MRC_OP_ENDPOINT_REQUEST || wire.opcode == MRC_OP_ENDPOINT_RESPONSE;
  struct mrc_qp *qp = NULL;
  /* Cheap refusals first: a flood of rubbish costs no CRC. */
  if (!endpoint) {
    qp = mrc_engine_qp(engine, wire.dest_qpn);
    if (qp == NULL) return mrc_drop(engine, MRC_DROP_QPN, wire.dest_qpn, bytes);
    if (!mrc_node_joined(&qp->ready))
      mrc_qp_prefetch(qp); /* the first packet since its last turn */
    if (qp->state < MRC_QP_RTR) return mrc_drop(engine, MRC_DROP_QP_STATE, qp->qpn, bytes);
    if (!mrc_peer_knows(&engine->peers, qp->peer, meta->src, meta->sport))
      return mrc_drop(engine, MRC_DROP_SOURCE, qp->qpn, bytes);
  } else if (mrc_peers_find(&engine->peers, meta->src, meta->sport, 0) == 0) {
    return mrc_drop(engine, MRC_DROP_SOURCE, wire.dest_qpn, bytes);
  }
  const bool cut_off = meta->trimmed && mrc_opcode_is_data(wire.opcode); /* the ICRC went too */
  const bool checked = endpoint || (mrc_qp_has_icrc(qp) && !cut_off);
  if (checked && !icrc_is_good(engine, packet, bytes, meta))
    return mrc_drop(engine, MRC_DROP_ICRC, wire.dest_qpn, bytes);
  return endpoint ? to_endpoint(engine, &wire, meta, now_ns)
                  : to_qp(engine, qp, &wire, meta, now_ns);
}

/* ---- transmit ---- */

static uint64_t qp_deadline(const struct mrc_engine *engine, const struct mrc_qp *qp,
                            uint64_t now_ns) {
  uint64_t deadline = mrc_responder_deadline(qp);
  deadline = mrc_min_u64(deadline, mrc_loss_deadline(engine, qp, now_ns));
  return qp->state == MRC_QP_RTS ? mrc_min_u64(deadline, qp->ev_probe_ns) : deadline;
}

/* The QP has had its turn and is not waiting for another. */
static void settle(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns) {
  const uint32_t usable = engine->ports_up & ~engine->ports_blocked;
  if ((qp->evset.plane_mask & ~usable) != 0) mrc_list_append(&engine->waiting, &qp->waiting);
  /* No port can be sent on, or an answer is due that no EV may carry. */
  const bool stuck = (qp->evset.plane_mask & usable) == 0 || mrc_responder_deadline(qp) <= now_ns;
  const uint64_t soonest =
      now_ns + mrc_floor_ns(stuck ? STUCK_WAIT_NS : MIN_WAIT_NS, engine->config.noise_ns);
  uint64_t deadline = qp_deadline(engine, qp, now_ns);
  if ((qp->evset.plane_mask & engine->ports_blocked) != 0 && mrc_requester_is_busy(qp))
    deadline = mrc_min_u64(deadline, now_ns + MRC_BLOCKED_PATIENCE_NS);
  /* Visits that come sooner than the wait is over do not start it again. */
  const uint64_t wait_ns = mrc_min_u64(soonest, mrc_timers_at(&engine->timers, qp->index));
  mrc_timers_set(&engine->timers, qp->index,
                 deadline == MRC_NEVER ? MRC_NEVER : mrc_max_u64(deadline, wait_ns));
}

/* The transmit is full before the QP was done. Whoever had no whole turn keeps its place. Not so
   who had: long answers, asked for again and again, would fill every transmit. */
static void give_back(struct mrc_engine *engine, struct mrc_qp *qp, int n_bursts) {
  const int turn =
      engine->burst_capacity < MRC_QUANTUM_BURSTS ? engine->burst_capacity : MRC_QUANTUM_BURSTS;
  if (n_bursts < turn)
    mrc_list_prepend(&engine->ready, &qp->ready);
  else
    mrc_qp_touch(engine, qp);
}

/* The QP's turn; false when it was not done with all it had to send. */
static bool visit(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns) {
  mrc_node_leave(&qp->ready);
  mrc_node_leave(&qp->answering);
  mrc_ev_probe_on_deadline(engine, qp, now_ns);
  mrc_reverse_on_visit(engine, qp, now_ns);
  return mrc_responder_transmit(engine, qp, now_ns) && mrc_requester_transmit(engine, qp, now_ns);
}

/* What QPs owe their peers leaves before the data of any: a peer that waits for a SACK stands
   still, or takes for lost what has arrived. At most half a transmit, so that whoever keeps us
   answering does not keep us from sending; the rest has its turn with the data. A QP without data
   has its whole turn here, while it is still in the cache from what came. */
static void transmit_answers(struct mrc_engine *engine, uint64_t now_ns) {
  const int capacity = engine->burst_capacity;
  engine->burst_capacity = capacity / 2;
  while (!mrc_list_is_empty(&engine->answering) && mrc_burst_may_open(engine)) {
    struct mrc_qp *qp = MRC_NODE_OWNER(engine->answering.next, struct mrc_qp, answering);
    mrc_node_leave(&qp->answering);
    if (!mrc_list_is_empty(&engine->answering))
      mrc_qp_prefetch_parts(MRC_NODE_OWNER(engine->answering.next, struct mrc_qp, answering));
    /* One that is not done has filled this half, or no EV may carry its answer now. */
    if (mrc_requester_is_busy(qp))
      mrc_responder_transmit(engine, qp, now_ns);
    else if (visit(engine, qp, now_ns))
      settle(engine, qp, now_ns);
    else
      mrc_qp_touch(engine, qp); /* behind those that have had no turn */
  }
  engine->burst_capacity = capacity;
}

/* For this turn, the next and the one after that. */
static void prefetch_ahead(const struct mrc_engine *engine, const struct mrc_qp *qp) {
  const struct mrc_node *next = qp->ready.next;
  mrc_qp_prefetch_evs(qp);
  if (next == &engine->ready) return;
  mrc_qp_prefetch_parts(MRC_NODE_OWNER(next, struct mrc_qp, ready));
  if (next->next != &engine->ready)
    mrc_qp_prefetch(MRC_NODE_OWNER(next->next, struct mrc_qp, ready));
}

int mrc_engine_transmit(struct mrc_engine *engine, struct mrc_burst *bursts, int capacity,
                        uint64_t now_ns) {
  mrc_assert(!engine->committing && capacity > 0);
  engine->now_ns = now_ns;
  engine->bursts = bursts;
  engine->burst_capacity = capacity < MRC_MAX_BURSTS ? capacity : MRC_MAX_BURSTS;
  engine->n_bursts = 0;
  engine->arena_used = 0;
  bool room = mrc_endpoint_transmit_answers(engine) && mrc_ev_probe_transmit(engine, now_ns);
  if (room) transmit_answers(engine, now_ns);
  while (room && !mrc_list_is_empty(&engine->ready)) {
    struct mrc_qp *qp = first_ready(engine);
    const int before = engine->n_bursts;
    prefetch_ahead(engine, qp);
    room = visit(engine, qp, now_ns) || mrc_burst_may_open(engine);
    if (!room)
      give_back(engine, qp, engine->n_bursts - before);
    else if (!mrc_node_joined(&qp->ready))
      settle(engine, qp, now_ns);
    mrc_assert(!room || !mrc_node_joined(&qp->ready) ||
               engine->n_bursts > before); /* else this would not end */
  }
  if (room) room = mrc_ev_probe_transmit(engine, now_ns);
  engine->committing = engine->n_bursts > 0;
  return engine->n_bursts;
}

void mrc_engine_port_blocked(struct mrc_engine *engine, int port, bool blocked, uint64_t now_ns) {
  engine->now_ns = now_ns;
  mrc_assert(port >= 1 && (uint32_t)port <= engine->config.ports);
  const uint32_t bit = 1u << (port - 1);
  if (((engine->ports_blocked & bit) != 0) == blocked) return;
  engine->ports_blocked ^= bit;
  if (blocked) {
    engine->blocked_ns[port - 1] = now_ns;
  } else {
    engine->n_answers_stuck = engine->n_ev_probes_stuck = 0;
    wake_waiting(engine);
  }
}

void mrc_engine_port_up(struct mrc_engine *engine, int port, bool up, uint64_t now_ns) {
  engine->now_ns = now_ns;
  mrc_assert(port >= 1 && (uint32_t)port <= engine->config.ports);
  const uint32_t bit = 1u << (port - 1), plane = (uint32_t)port - 1;
  if (((engine->ports_up & bit) != 0) == up) return;
  engine->ports_up ^= bit;
  engine->port_was_down = true;
  engine->n_ev_probes_stuck = 0; /* probes may be in vain now, or messages may leave here */
  for (uint32_t i = 0; i < engine->peers.n_peers; i++)
    if (engine->peers.peers[i].qps != NULL)
      mrc_port_status_on_change(engine, &engine->peers.peers[i]);
  for (uint32_t i = 0; i < engine->config.max_qps; i++) {
    struct mrc_qp *qp = engine->qps[i];
    if (qp == NULL) continue;
    if ((qp->evset.plane_mask & bit) == 0) continue;
    mrc_loss_report_port(engine, qp, plane, up, MRC_REASON_OWN_PORT);
    if (qp->state != MRC_QP_RTS) continue;
    if (up)
      mrc_loss_retry_plane(engine, qp, plane, now_ns);
    else
      mrc_loss_suspend_plane(engine, qp, plane, MRC_REASON_OWN_PORT, now_ns);
  }
}

/* ---- time ---- */

uint64_t mrc_engine_deadline(const struct mrc_engine *engine) {
  if (!mrc_list_is_empty(&engine->ready) || engine->n_answers > engine->n_answers_stuck ||
      engine->n_unsent_ev_probes > engine->n_ev_probes_stuck)
    return 0; /* there is something to send */
  const uint64_t probe_ns = mrc_timers_next(&engine->ev_probe_timers);
  const uint64_t peer_ns = mrc_timers_next(&engine->peer_timers);
  return mrc_min_u64(mrc_timers_next(&engine->timers), mrc_min_u64(probe_ns, peer_ns));
}

void mrc_engine_expire(struct mrc_engine *engine, uint64_t now_ns) {
  mrc_assert(!engine->committing);
  engine->now_ns = now_ns;
  mrc_ev_probe_expire(engine, now_ns);
  mrc_port_status_expire(engine, now_ns);
  for (;;) {
    const uint32_t index = mrc_timers_pop(&engine->timers, now_ns);
    if (index == UINT32_MAX) return;
    struct mrc_qp *qp = engine->qps[index];
    mrc_assert(qp != NULL);
    mrc_loss_on_deadline(engine, qp, now_ns);
    if (mrc_responder_deadline(qp) <= now_ns)
      mrc_qp_touch_to_answer(engine, qp);
    else
      mrc_qp_touch(engine, qp);
  }
}
