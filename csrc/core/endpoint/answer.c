/* SPDX-License-Identifier: Apache-2.0 */
#include "answer.h"

#include <string.h>

#include "core/recv/reverse.h"
#include "core/send/burst.h"
#include "port_status.h"

#define MAX_CLAIMS 4 /* unproven claims to its source that are checked for one request */
#define MAX_TRIES 8  /* EVs tried per QP, to find one that leads back to the requesting address */

void mrc_answer_drop(struct mrc_answers *answers, const struct mrc_qp *qp, bool last) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < answers->n; i++) {
    const struct mrc_answer answer = answers->ring[(answers->head + i) % MRC_ANSWER_PLACES];
    if (answer.qp == qp || (last && answer.peer == qp->peer)) continue;
    answers->ring[(answers->head + kept++) % MRC_ANSWER_PLACES] = answer;
  }
  answers->n = kept;
  answers->n_stuck = 0;
}

static void push(struct mrc_answers *answers, struct mrc_answer answer) {
  mrc_assert(answers->n < MRC_MAX_ANSWERS);
  answers->ring[(answers->head + answers->n++) % MRC_ANSWER_PLACES] = answer;
}

/* Whether this EV leads to another address of the peer than the one that sent the request. */
static bool leads_astray(const struct mrc_peers *peers, const struct mrc_answer *answer,
                         const struct mrc_peer *peer, const struct mrc_evset *set, uint16_t ev) {
  uint8_t src[16], dst[16];
  mrc_evset_addresses(set, ev, src, dst);
  return memcmp(dst, answer->asker, 16) != 0 && mrc_peer_sends_from(peers, peer, dst);
}

/* An EV of the plane on which the request arrived, so that the request tests both directions of the
   plane: one that is known to work, so that its loss does not count against the EV of the request.
   If possible, it leads back to the requesting address. It is one of the QP that sealed the
   request: other QPs' keys may not be known to the peer yet. */
static uint16_t answer_ev(const struct mrc_peers *peers, const struct mrc_answer *answer,
                          const struct mrc_peer *peer, struct mrc_qp **qp, bool *astray) {
  uint16_t ev = MRC_EV_NONE;
  *astray = false;
  for (*qp = answer->qp != NULL ? answer->qp : peer->qps; *qp != NULL; *qp = (*qp)->peer_next) {
    struct mrc_evset *set = &(*qp)->evset;
    for (int tries = 0; tries < MAX_TRIES; tries++) {
      const uint32_t plane = mrc_plane_of(answer->port);
      ev = tries == 0 ? mrc_reverse_ev(*qp, plane) : mrc_evset_any(set, plane);
      *astray = ev != MRC_EV_NONE && leads_astray(peers, answer, peer, set, ev);
      if (!*astray) break;
    }
    if (ev != MRC_EV_NONE || answer->qp != NULL) break;
  }
  return ev;
}

/* The peer that sent the request: the one that has proven the source, otherwise the newest claimant
   whose EVs lead back to the requesting address. */
static const struct mrc_peer *asker_of(const struct mrc_peers *peers, uint32_t first,
                                       const struct mrc_answer *answer) {
  const uint16_t sport = peers->entries[first].source.sport;
  const struct mrc_peer *asker = NULL;
  int claims = 0;
  if (mrc_peers_find_plain(peers, answer->asker, sport, first) == 0)
    return mrc_peers_at(peers, first);
  for (uint32_t i = first; i != 0; i = mrc_peers_find_plain(peers, answer->asker, sport, i)) {
    const struct mrc_peer *peer = mrc_peers_at(peers, i);
    struct mrc_qp *qp;
    bool astray;
    if (peers->entries[i].proved) return peer;
    if (asker != NULL || claims++ >= MAX_CLAIMS) continue;
    if (answer_ev(peers, answer, peer, &qp, &astray) != MRC_EV_NONE && !astray) asker = peer;
  }
  return asker != NULL ? asker : mrc_peers_at(peers, first);
}

int mrc_answer_on_request(struct mrc_services *services, struct mrc_peers *peers,
                          struct mrc_answers *answers, const struct mrc_wire *wire,
                          const struct mrc_meta *meta, struct mrc_qp *sealer, uint64_t now_ns) {
  const uint32_t entry =
      sealer != NULL ? 0 : mrc_peers_find_plain(peers, meta->src, meta->sport, 0);
  mrc_assert(sealer != NULL || entry != 0); /* mrc_engine_receive drops what is from others */
  if (answers->n == MRC_MAX_ANSWERS) {
    mrc_count(services, MRC_COUNTER_ANSWERS_DROPPED, 1);
    return mrc_drop(services, MRC_DROP_RATE, MRC_ENDPOINT_QPN, 0);
  }
  const bool status = wire->endpoint.op == MRC_ENDPOINT_PORT_STATUS;
  if (status && (wire->endpoint.port_status_mask >> mrc_plane_of(meta->port) & 1) == 0)
    return mrc_drop(services, MRC_DROP_PORT_STATUS, MRC_ENDPOINT_QPN, 0);
  if (status && sealer != NULL) mrc_port_status_on_news(services, sealer->peer, wire, now_ns);
  if (status && sealer == NULL)
    for (uint32_t i = entry; i != 0; i = mrc_peers_find_plain(peers, meta->src, meta->sport, i))
      mrc_port_status_on_news(services, mrc_peers_at(peers, i), wire, now_ns);
  const bool marks =
      meta->ecn == 3 && (services->config.readings & (MRC_READING_S8_B | MRC_READING_C6_B)) == 0;
  struct mrc_answer answer = {.arrived_ns = meta->arrived_ns,
                              .qp = sealer,
                              .id = (uint16_t)wire->psn,
                              .tx_timestamp = wire->endpoint.tx_timestamp,
                              .op = wire->endpoint.op,
                              .port = meta->port,
                              .m = marks ? MRC_M_SKIP_ONCE : MRC_M_NONE};
  memcpy(answer.asker, meta->src, sizeof answer.asker);
  answer.peer = sealer != NULL ? sealer->peer : asker_of(peers, entry, &answer);
  push(answers, answer);
  return MRC_DROP_NONE;
}

/* How long a request waited here, in units of its timestamp, if its sender takes that: 0 without.
 */
static uint16_t waited_units(const struct mrc_services *services, const struct mrc_qp *qp,
                             const struct mrc_answer *answer) {
  if (qp->attr.rtr.service_times == 0 || answer->op != MRC_ENDPOINT_EV_PROBE) return 0;
  if (mrc_services_reads(services, MRC_READING_G15_B)) return 0;
  const uint64_t units = (services->now_ns - answer->arrived_ns) >> 10;
  return units <= INT16_MAX ? (uint16_t)units : 0;
}

static bool send(struct mrc_services *services, const struct mrc_peers *peers,
                 const struct mrc_answer *answer, uint32_t place) {
  struct mrc_qp *qp;
  bool astray; /* ignored: an answer that may get lost is better than none */
  const uint16_t ev = answer_ev(peers, answer, answer->peer, &qp, &astray);
  if (ev == MRC_EV_NONE) return true;
  struct mrc_burst *burst = mrc_burst_open(services, qp, ev, mrc_tclass_control(services));
  if (burst == NULL) return false;
  struct mrc_wire wire = {
      .opcode = MRC_OP_ENDPOINT_RESPONSE,
      .dest_qpn = MRC_ENDPOINT_QPN,
      .psn = answer->id,
      .endpoint = {
          .op = answer->op,
          .m = answer->m,
          .lifted = mrc_services_reads(services, MRC_READING_C6_B),
          .tx_timestamp = (uint16_t)(answer->tx_timestamp + waited_units(services, qp, answer))}};
  mrc_burst_add(services, burst, &wire, MRC_KIND_ANSWER, place, true);
  return true;
}

bool mrc_answer_transmit(struct mrc_services *services, const struct mrc_peers *peers,
                         struct mrc_answers *answers) {
  answers->n_stuck = 0;
  /* At most half of a transmit, so that a flood of requests cannot keep QPs from sending. */
  const int most = (services->arena.capacity + 1) / 2;
  const struct mrc_ports *ports = &services->ports;
  for (uint32_t n = answers->n; n > 0 && services->arena.n_bursts < most; n--) {
    const uint32_t place = answers->head % MRC_ANSWER_PLACES;
    const struct mrc_answer answer = answers->ring[place];
    const uint32_t plane = mrc_plane_of(answer.port);
    const bool usable = mrc_port_is_usable(ports, plane);
    const bool stuck = !usable && mrc_port_is_up(ports, plane);
    if (usable && !send(services, peers, &answer, place)) return false;
    answers->head++;
    answers->n--;
    if (!stuck) continue;
    push(answers, answer);
    answers->n_stuck++;
  }
  return true;
}

/* A refused answer is still in its place: half of the places are free, and a transmit moves no more
   than the other half. */
void mrc_answer_on_refused(struct mrc_answers *answers, uint32_t place) {
  if (answers->n < MRC_MAX_ANSWERS) push(answers, answers->ring[place]);
}
