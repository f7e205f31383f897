/* SPDX-License-Identifier: Apache-2.0 */
/* The answering half of endpoint operations. Only peers of a QP of ours are answered, and only so
   many at a time: nobody can use the engine to reflect traffic. */
#include <string.h>

#include "burst.h"
#include "loss.h"
#include "port_status.h"
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

struct mrc_qp *mrc_endpoint_speaker(const struct mrc_engine *engine, struct mrc_qp *qp) {
  if (qp->n_peer_sources == 0) return NULL;
  struct mrc_qp *speaker =
      mrc_endpoint_find_qp(engine, qp->peer_sources[0].address, qp->peer_sources[0].sport);
  return speaker != NULL ? speaker : qp; /* the map had no room for its peer */
}

void mrc_endpoint_add_sources(struct mrc_engine *engine, struct mrc_qp *qp) {
  struct mrc_qp *before = mrc_endpoint_speaker(engine, qp);
  for (uint32_t i = 0; i < qp->n_peer_sources; i++) {
    const uint32_t key = source_key(qp->peer_sources[i].address, qp->peer_sources[i].sport);
    const uint32_t holder = mrc_keymap_get(&engine->by_source, key);
    /* A source that another QP of the same peer brought, or no room: the first one answers, as long
       as it lives. */
    if (holder != MRC_KEYMAP_NONE && engine->qps[holder]->state == MRC_QP_ERROR)
      mrc_keymap_remove(&engine->by_source, key);
    if (mrc_keymap_put(&engine->by_source, key, qp->index) != 0) continue;
  }
  if (before != NULL && before != qp && mrc_endpoint_speaker(engine, qp) == qp)
    mrc_port_status_take_over(engine, qp, before);
}

void mrc_endpoint_drop_sources(struct mrc_engine *engine, struct mrc_qp *qp) {
  const bool spoke = mrc_endpoint_speaker(engine, qp) == qp;
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
  struct mrc_qp *next = mrc_endpoint_speaker(engine, qp);
  if (spoke && next != qp) mrc_port_status_take_over(engine, next, qp);
}

void mrc_endpoint_yield(struct mrc_engine *engine, struct mrc_qp *qp) {
  if (mrc_endpoint_speaker(engine, qp) != qp) return;
  for (uint32_t i = 0; i < engine->config.max_qps; i++) {
    struct mrc_qp *other = engine->qps[i];
    if (other == NULL || !mrc_qp_is_live(other)) continue;
    if (!has_source(other, qp->peer_sources[0].address, qp->peer_sources[0].sport)) continue;
    mrc_endpoint_add_sources(engine, other);
    return;
  }
}

void mrc_endpoint_take_peer_ports(const struct mrc_engine *engine, struct mrc_qp *qp) {
  const struct mrc_qp *speaker = mrc_endpoint_speaker(engine, qp);
  if (speaker == NULL || speaker == qp || !mrc_qp_is_live(speaker)) return;
  for (int i = 0; i < MRC_MAX_PORTS; i++)
    qp->planes[i].peer_down = speaker->planes[i].peer_down;
}

static uint32_t peer_ports_up(const struct mrc_qp *qp) {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < MRC_MAX_PORTS; i++)
    mask |= (uint32_t)!qp->planes[i].peer_down << i;
  return mask;
}

static void set_peer_ports(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t mask,
                           uint64_t now_ns) {
  for (uint32_t changed = peer_ports_up(qp) ^ mask; changed != 0; changed &= changed - 1) {
    const uint32_t plane = (uint32_t)__builtin_ctz(changed);
    const bool down = (mask >> plane & 1) == 0;
    qp->planes[plane].peer_down = down;
    if ((qp->evset.plane_mask >> plane & 1) == 0) continue;
    mrc_loss_report_port(engine, qp, plane, !down, MRC_REASON_PEER_PORT);
    if (qp->state != MRC_QP_RTS) continue;
    if (down)
      mrc_loss_suspend_plane(engine, qp, plane, MRC_REASON_PEER_PORT, now_ns);
    else
      mrc_loss_retry_plane(engine, qp, plane, now_ns);
  }
  mrc_qp_touch(engine, qp);
}

/* The status holds for every QP with that peer. `qp` stands for them: what is no news to it is none
   to the others, so repetitions cost nothing. */
static void take_port_status(struct mrc_engine *engine, struct mrc_qp *qp,
                             const struct mrc_wire *packet, const struct mrc_meta *meta,
                             uint64_t now_ns) {
  const uint32_t mask = packet->endpoint.port_status_mask;
  if (mask == peer_ports_up(qp)) return;
  mrc_count(engine, MRC_COUNTER_RX_PORT_STATUS, 1);
  mrc_trace(engine, MRC_TRACE_PORT_STATUS_IN, qp->qpn, packet->psn, mask);
  for (uint32_t i = 0; i < engine->config.max_qps; i++)
    if (engine->qps[i] != NULL && has_source(engine->qps[i], meta->src, meta->sport))
      set_peer_ports(engine, engine->qps[i], mask, now_ns);
}

static void queue_answer(struct mrc_engine *engine, struct mrc_answer answer) {
  mrc_assert(engine->n_answers < MRC_MAX_ANSWERS);
  const uint32_t tail = engine->answer_head + engine->n_answers++;
  engine->answers[tail % MRC_MAX_ANSWERS] = answer;
}

int mrc_endpoint_on_request(struct mrc_engine *engine, const struct mrc_wire *packet,
                            const struct mrc_meta *meta, uint64_t now_ns) {
  struct mrc_qp *qp = mrc_endpoint_find_qp(engine, meta->src, meta->sport);
  if (qp == NULL || qp->state == MRC_QP_RESET)
    return mrc_drop(engine, MRC_DROP_SOURCE, MRC_ENDPOINT_QPN, 0);
  if (engine->n_answers == MRC_MAX_ANSWERS) {
    mrc_count(engine, MRC_COUNTER_ANSWERS_DROPPED, 1);
    return mrc_drop(engine, MRC_DROP_RATE, MRC_ENDPOINT_QPN, 0);
  }
  if (packet->endpoint.op == MRC_ENDPOINT_PORT_STATUS)
    take_port_status(engine, qp, packet, meta, now_ns);
  queue_answer(engine, (struct mrc_answer){.qp = qp->index,
                                           .id = (uint16_t)packet->psn,
                                           .tx_timestamp = packet->endpoint.tx_timestamp,
                                           .op = packet->endpoint.op,
                                           .port = meta->port,
                                           .m = meta->ecn == 3 ? MRC_M_SKIP_ONCE : MRC_M_NONE});
  return MRC_DROP_NONE;
}

static bool send_answer(struct mrc_engine *engine, const struct mrc_answer *answer) {
  struct mrc_qp *qp = engine->qps[answer->qp];
  /* On the plane that the request came by, so that both directions of it are tested. */
  const uint16_t ev = mrc_evset_any(&qp->evset, answer->port - 1u);
  if (ev == MRC_EV_NONE) return true;
  struct mrc_burst *burst = mrc_burst_open(engine, qp, ev, MRC_TCLASS_CONTROL);
  if (burst == NULL) return false;
  struct mrc_wire wire = {
      .opcode = MRC_OP_ENDPOINT_RESPONSE,
      .dest_qpn = MRC_ENDPOINT_QPN,
      .psn = answer->id,
      .endpoint = {.op = answer->op, .m = answer->m, .tx_timestamp = answer->tx_timestamp}};
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
