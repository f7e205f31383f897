/* SPDX-License-Identifier: Apache-2.0 */
/* The answering half of endpoint operations. Only peers of a QP of ours are answered, and only so
   many at a time: nobody can use the engine to reflect traffic. */
#include <string.h>

#include "burst.h"
#include "probe.h"

static uint32_t source_key(const uint8_t address[16], uint16_t sport) {
  uint64_t hash = sport + 0x9E3779B97F4A7C15ull;
  for (int i = 0; i < 16; i++)
    hash = (hash ^ address[i]) * 0x100000001B3ull;
  return (uint32_t)(hash >> 16);
}

static bool has_source(const struct mrc_qp *qp, const uint8_t address[16], uint16_t sport) {
  for (uint32_t i = 0; i < qp->n_peer_sources; i++)
    if (qp->peer_sources[i].sport == sport && memcmp(qp->peer_sources[i].address, address, 16) == 0)
      return true;
  return false;
}

struct mrc_qp *mrc_endpoint_find_qp(const struct mrc_engine *engine, const uint8_t address[16],
                                    uint16_t sport) {
  const uint32_t index = mrc_keymap_get(&engine->by_source, source_key(address, sport));
  if (index == MRC_KEYMAP_NONE) return NULL;
  struct mrc_qp *qp = engine->qps[index];
  return has_source(qp, address, sport) ? qp : NULL;
}

void mrc_endpoint_add_sources(struct mrc_engine *engine, const struct mrc_qp *qp) {
  for (uint32_t i = 0; i < qp->n_peer_sources; i++) {
    const uint32_t key = source_key(qp->peer_sources[i].address, qp->peer_sources[i].sport);
    /* A source that another QP of the same peer brought, or no room: the first one answers. */
    if (mrc_keymap_put(&engine->by_source, key, qp->index) != 0) continue;
  }
}

void mrc_endpoint_drop_sources(struct mrc_engine *engine, const struct mrc_qp *qp) {
  bool removed = false;
  for (uint32_t i = 0; i < qp->n_peer_sources; i++) {
    const uint32_t key = source_key(qp->peer_sources[i].address, qp->peer_sources[i].sport);
    if (mrc_keymap_get(&engine->by_source, key) != qp->index) continue;
    mrc_keymap_remove(&engine->by_source, key);
    removed = true;
  }
  if (!removed) return;
  /* Other QPs of the same peer take over. */
  for (uint32_t i = 0; i < engine->config.max_qps; i++)
    if (engine->qps[i] != NULL && engine->qps[i] != qp)
      mrc_endpoint_add_sources(engine, engine->qps[i]);
}

static void set_peer_ports(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t mask) {
  for (uint32_t planes = qp->evset.plane_mask; planes != 0; planes &= planes - 1) {
    const uint32_t plane = (uint32_t)__builtin_ctz(planes);
    qp->planes[plane].peer_down = (mask >> plane & 1) == 0;
  }
  mrc_qp_touch(engine, qp);
}

/* The status holds for every QP with that peer. */
static void take_port_status(struct mrc_engine *engine, const struct mrc_meta *meta,
                             uint32_t mask) {
  for (uint32_t i = 0; i < engine->config.max_qps; i++)
    if (engine->qps[i] != NULL && has_source(engine->qps[i], meta->src, meta->sport))
      set_peer_ports(engine, engine->qps[i], mask);
}

static void queue_answer(struct mrc_engine *engine, struct mrc_answer answer) {
  mrc_assert(engine->n_answers < MRC_MAX_ANSWERS);
  const uint32_t tail = engine->answer_head + engine->n_answers++;
  engine->answers[tail % MRC_MAX_ANSWERS] = answer;
}

int mrc_endpoint_on_request(struct mrc_engine *engine, const struct mrc_wire *packet,
                            const struct mrc_meta *meta) {
  struct mrc_qp *qp = mrc_endpoint_find_qp(engine, meta->src, meta->sport);
  if (qp == NULL || qp->state == MRC_QP_RESET)
    return mrc_drop(engine, MRC_DROP_SOURCE, MRC_ENDPOINT_QPN, 0);
  if (engine->n_answers == MRC_MAX_ANSWERS) {
    mrc_count(engine, MRC_COUNTER_ANSWERS_DROPPED, 1);
    return mrc_drop(engine, MRC_DROP_RATE, MRC_ENDPOINT_QPN, 0);
  }
  if (packet->endpoint.op == MRC_ENDPOINT_PORT_STATUS)
    take_port_status(engine, meta, packet->endpoint.port_status_mask);
  queue_answer(engine, (struct mrc_answer){.qp = qp->index,
                                           .id = (uint16_t)packet->psn,
                                           .tx_timestamp = packet->endpoint.tx_timestamp,
                                           .op = packet->endpoint.op,
                                           .port = meta->port});
  return MRC_DROP_NONE;
}

static bool send_answer(struct mrc_engine *engine, const struct mrc_answer *answer) {
  struct mrc_qp *qp = engine->qps[answer->qp];
  /* On the plane that the request came by, so that both directions of it are tested. */
  const uint16_t ev = mrc_evset_any(&qp->evset, answer->port - 1u);
  if (ev == MRC_EV_NONE) return true;
  struct mrc_burst *burst = mrc_burst_open(engine, qp, ev, MRC_TCLASS_CONTROL);
  if (burst == NULL) return false;
  struct mrc_wire wire = {.opcode = MRC_OP_ENDPOINT_RESPONSE,
                          .dest_qpn = MRC_ENDPOINT_QPN,
                          .psn = answer->id,
                          .endpoint = {.op = answer->op, .tx_timestamp = answer->tx_timestamp}};
  mrc_burst_add(engine, burst, &wire, MRC_KIND_ANSWER, engine->answer_head % MRC_MAX_ANSWERS, true);
  return true;
}

bool mrc_endpoint_transmit_answers(struct mrc_engine *engine) {
  /* Half of a transmit at most: a peer that asks and asks must not keep QPs from sending. */
  const int most = (engine->burst_capacity + 1) / 2;
  engine->n_answers_stuck = 0;
  for (uint32_t n = engine->n_answers; n > 0 && engine->n_bursts < most; n--) {
    const struct mrc_answer answer = engine->answers[engine->answer_head % MRC_MAX_ANSWERS];
    const uint32_t plane = answer.port - 1u;
    const bool stuck = (engine->ports_up & engine->ports_blocked) >> plane & 1;
    const bool down = (engine->ports_up >> plane & 1) == 0;
    if (!stuck && !down && !send_answer(engine, &answer)) return false;
    engine->answer_head++;
    engine->n_answers--;
    if (!stuck) continue;
    queue_answer(engine, answer);
    engine->n_answers_stuck++;
  }
  return true;
}

/* Its place in the ring is still as it was: a transmit sends fewer answers than half the ring. */
_Static_assert(MRC_MAX_ANSWERS >= 2 * MRC_MAX_BURSTS, "a refused answer is not overwritten");

void mrc_endpoint_on_refused(struct mrc_engine *engine, uint32_t place) {
  if (engine->n_answers < MRC_MAX_ANSWERS) queue_answer(engine, engine->answers[place]);
}
