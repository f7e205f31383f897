/* SPDX-License-Identifier: Apache-2.0 */
/* The answering half of endpoint operations. Only peers of a QP of ours are answered, and only so
   many at a time: nobody can use the engine to reflect traffic. */
#include <string.h>

#include "burst.h"
#include "loss.h"
#include "port_status.h"
#include "probe.h"

#define MAX_CLAIMS 4 /* of a source that nobody has proved: so many are looked at */
#define MAX_TRIES 8  /* for an EV that leads back */

static void drop_answers(struct mrc_engine *engine, const struct mrc_peer *peer) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < engine->n_answers; i++) {
    const struct mrc_answer answer = engine->answers[(engine->answer_head + i) % MRC_MAX_ANSWERS];
    if (answer.peer == peer->index) continue;
    engine->answers[(engine->answer_head + kept++) % MRC_MAX_ANSWERS] = answer;
  }
  engine->n_answers = kept;
  engine->n_answers_stuck = 0;
}

int mrc_endpoint_add_qp(struct mrc_engine *engine, struct mrc_qp *qp,
                        const struct mrc_peer_source *sources, int n) {
  const int error = mrc_peer_join(&engine->peers, qp, sources, n, qp->evset.ends[0].dport);
  if (error != 0) return error;
  struct mrc_peer *peer = qp->peer;
  if (peer->qps == qp) mrc_port_status_init(engine, peer);
  /* What it told QPs of which none is left may be old: it tells no others. */
  if (mrc_peer_live_qp(peer) == NULL) peer->ports_up = UINT32_MAX;
  for (uint32_t i = 0; i < engine->config.ports; i++)
    qp->planes[i].peer_down = (peer->ports_up >> i & 1) == 0;
  return 0;
}

void mrc_endpoint_drop_qp(struct mrc_engine *engine, struct mrc_qp *qp) {
  struct mrc_peer *peer = qp->peer;
  if (peer == NULL) return;
  if (peer->qps == qp && qp->peer_next == NULL) {
    mrc_port_status_drop(engine, peer);
    mrc_ev_probe_drop_messages(engine, peer);
    drop_answers(engine, peer);
  }
  mrc_peer_leave(&engine->peers, qp);
}

static void set_peer_ports(struct mrc_engine *engine, struct mrc_qp *qp, uint32_t changed,
                           uint32_t mask, uint64_t now_ns) {
  /* A peer with more ports than we have shares no plane on those. */
  for (changed &= mrc_all_ports(engine->config.ports); changed != 0; changed &= changed - 1) {
    const uint32_t plane = (uint32_t)__builtin_ctz(changed);
    const bool down = (mask >> plane & 1) == 0;
    qp->planes[plane].peer_down = down;
    if ((qp->evset.plane_mask >> plane & 1) == 0) continue;
    mrc_loss_report_port(engine, qp, plane, !down, MRC_REASON_PEER_PORT);
    if (qp->state != MRC_QP_RTS) continue;
    if (down)
      mrc_loss_on_peer_port_down(engine, qp, plane, now_ns);
    else
      mrc_loss_retry_plane(engine, qp, plane, now_ns);
  }
  mrc_qp_touch(engine, qp);
}

/* The status holds for every QP with that peer. Repetitions are no news and cost nothing. */
static void take_port_status(struct mrc_engine *engine, struct mrc_peer *peer,
                             const struct mrc_wire *packet, uint64_t now_ns) {
  const uint32_t mask = packet->endpoint.port_status_mask;
  const uint32_t changed = mask ^ peer->ports_up;
  if (changed == 0) return;
  peer->ports_up = mask;
  mrc_count(engine, MRC_COUNTER_RX_PORT_STATUS, 1);
  mrc_trace(engine, MRC_TRACE_PORT_STATUS_IN, peer->qps->qpn, packet->psn, mask);
  for (struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next)
    set_peer_ports(engine, qp, changed, mask, now_ns);
}

void mrc_endpoint_on_port_proved(struct mrc_engine *engine, struct mrc_peer *peer, uint32_t plane,
                                 uint64_t now_ns) {
  const uint32_t bit = 1u << plane;
  if ((peer->ports_up & bit) != 0) return;
  peer->ports_up |= bit;
  for (struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next)
    set_peer_ports(engine, qp, bit, peer->ports_up, now_ns);
}

static void queue_answer(struct mrc_engine *engine, struct mrc_answer answer) {
  mrc_assert(engine->n_answers < MRC_MAX_ANSWERS);
  const uint32_t tail = engine->answer_head + engine->n_answers++;
  engine->answers[tail % MRC_MAX_ANSWERS] = answer;
}

/* Whether this EV leads to an address that the peer sends from, but did not ask from. */
static bool leads_astray(const struct mrc_peers *peers, const struct mrc_answer *answer,
                         const struct mrc_peer *peer, const struct mrc_evset *set, uint16_t ev) {
  uint8_t src[16], dst[16];
  mrc_evset_addresses(set, ev, src, dst);
  return memcmp(dst, answer->asker, 16) != 0 && mrc_peer_sends_from(peers, peer, dst);
}

/* An EV of the plane that the request came by, so that both directions of it are tested; one that
   leads back, if there is any. */
static uint16_t answer_ev(const struct mrc_peers *peers, const struct mrc_answer *answer,
                          const struct mrc_peer *peer, struct mrc_qp **qp, bool *astray) {
  uint16_t ev = MRC_EV_NONE;
  *astray = false;
  for (*qp = peer->qps; *qp != NULL; *qp = (*qp)->peer_next) {
    struct mrc_evset *set = &(*qp)->evset;
    for (int tries = 0; tries < MAX_TRIES; tries++) {
      ev = mrc_evset_any(set, answer->port - 1u);
      *astray = ev != MRC_EV_NONE && leads_astray(peers, answer, peer, set, ev);
      if (!*astray) break;
    }
    if (ev != MRC_EV_NONE) break;
  }
  return ev;
}

/* Whose request it is: who has proved the source; else the newest of those who claim it to whom an
   answer goes back. */
static const struct mrc_peer *asker_of(const struct mrc_peers *peers, uint32_t first,
                                       const struct mrc_answer *answer) {
  const uint16_t sport = peers->entries[first].source.sport;
  const struct mrc_peer *asker = NULL;
  int claims = 0;
  if (mrc_peers_find(peers, answer->asker, sport, first) == 0) return mrc_peers_at(peers, first);
  for (uint32_t i = first; i != 0; i = mrc_peers_find(peers, answer->asker, sport, i)) {
    const struct mrc_peer *peer = mrc_peers_at(peers, i);
    struct mrc_qp *qp;
    bool astray;
    if (peers->entries[i].proved) return peer;
    if (asker != NULL || claims++ >= MAX_CLAIMS) continue;
    if (answer_ev(peers, answer, peer, &qp, &astray) != MRC_EV_NONE && !astray) asker = peer;
  }
  return asker != NULL ? asker : mrc_peers_at(peers, first);
}

int mrc_endpoint_on_request(struct mrc_engine *engine, const struct mrc_wire *packet,
                            const struct mrc_meta *meta, uint64_t now_ns) {
  const uint32_t entry = mrc_peers_find(&engine->peers, meta->src, meta->sport, 0);
  mrc_assert(entry != 0); /* others are dropped before their ICRC is computed */
  if (engine->n_answers == MRC_MAX_ANSWERS) {
    mrc_count(engine, MRC_COUNTER_ANSWERS_DROPPED, 1);
    return mrc_drop(engine, MRC_DROP_RATE, MRC_ENDPOINT_QPN, 0);
  }
  const bool status = packet->endpoint.op == MRC_ENDPOINT_PORT_STATUS;
  if (status && (packet->endpoint.port_status_mask >> (meta->port - 1) & 1) == 0)
    return mrc_drop(engine, MRC_DROP_PORT_STATUS, MRC_ENDPOINT_QPN, 0);
  if (status)
    for (uint32_t i = entry; i != 0; i = mrc_peers_find(&engine->peers, meta->src, meta->sport, i))
      take_port_status(engine, mrc_peers_at(&engine->peers, i), packet, now_ns);
  struct mrc_answer answer = {.id = (uint16_t)packet->psn,
                              .tx_timestamp = packet->endpoint.tx_timestamp,
                              .op = packet->endpoint.op,
                              .port = meta->port,
                              .m = meta->ecn == 3 ? MRC_M_SKIP_ONCE : MRC_M_NONE};
  memcpy(answer.asker, meta->src, sizeof answer.asker);
  answer.peer = asker_of(&engine->peers, entry, &answer)->index;
  queue_answer(engine, answer);
  return MRC_DROP_NONE;
}

static bool send_answer(struct mrc_engine *engine, const struct mrc_answer *answer) {
  struct mrc_qp *qp;
  bool astray; /* an answer that may get lost is better than none */
  const struct mrc_peer *peer = &engine->peers.peers[answer->peer];
  const uint16_t ev = answer_ev(&engine->peers, answer, peer, &qp, &astray);
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
