/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is to send, what the kernel took of it, and when the engine is due again. */
#include <errno.h>

#include "core/endpoint.h"
#include "core/engine.h"
#include "core/loss.h"
#include "core/receive.h"
#include "core/send.h"
#include "core/timeout.h"

/* ---- the turns of QPs ---- */

#define MIN_WAIT_NS 20000ull     /* least time between a visit and the QP's timer */
#define STUCK_WAIT_NS 1000000ull /* the same while the QP is stuck */

/* The QP has had its turn and needs no other one: sets its timer. */
static void settle(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  const uint32_t usable = mrc_ports_usable(&services->ports);
  if ((qp->evset.plane_mask & ~usable) != 0)
    mrc_list_append(&services->ready.port_waiting, &qp->nodes.port_waiting);
  /* No port can send, or no EV may carry an answer that is due. */
  const bool stuck = (qp->evset.plane_mask & usable) == 0 || qp->resp.sack_deadline_ns <= now_ns;
  const uint64_t soonest =
      now_ns + mrc_floor_ns(stuck ? STUCK_WAIT_NS : MIN_WAIT_NS, services->config.noise_ns);
  uint64_t deadline =
      mrc_min_u64(qp->resp.sack_deadline_ns, mrc_timeout_deadline(services, qp, now_ns));
  if (qp->state == MRC_QP_RTS) deadline = mrc_min_u64(deadline, qp->ev_probe_ns);
  if ((qp->evset.plane_mask & services->ports.blocked) != 0 && mrc_requester_is_busy(&qp->req))
    deadline = mrc_min_u64(deadline, now_ns + MRC_BLOCKED_PATIENCE_NS);
  /* A visit during the wait does not restart it. */
  const uint64_t wait_ns = mrc_min_u64(soonest, mrc_timers_at(&services->ready.timers, qp->index));
  mrc_timers_set(&services->ready.timers, qp->index,
                 deadline == MRC_NEVER ? MRC_NEVER : mrc_max_u64(deadline, wait_ns));
}

/* The QP's turn; false if it has more to send. */
static bool visit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  mrc_node_leave(&qp->nodes.ready);
  mrc_node_leave(&qp->nodes.answering);
  if (qp->seal != NULL && mrc_seal_is_spent(qp->seal))
    mrc_qp_fail(services, qp, MRC_WC_WR_FLUSH_ERR, MRC_WC_WR_FLUSH_ERR);
  mrc_ev_probe_on_deadline(services, qp, now_ns);
  mrc_reverse_on_visit(services, qp, now_ns);
  if (!mrc_responder_transmit(services, qp, now_ns)) return false;
  if (qp->state != MRC_QP_RTS) return true;
  if (qp->req.probe.wanted && !mrc_timeout_send_probe(services, qp, now_ns)) return false;
  return mrc_requester_transmit(services, qp, now_ns);
}

/* Gives QPs their turns until there is nothing to send (true) or the transmit is full (false). */
static bool transmit_qps(struct mrc_services *services, uint64_t now_ns) {
  struct mrc_node *const ready = &services->ready.ready, *answering = &services->ready.answering;
  struct mrc_arena *arena = &services->arena;
  /* Answers leave before the data of all QPs: a peer that waits for a SACK stops sending, or counts
     packets as lost that have arrived. Answers take at most half of a transmit, so that peers that
     request many of them cannot stop our data. The other answers leave when their QPs have their
     turn. A QP without data has its whole turn here, while received packets keep it in the cache.
   */
  const int capacity = arena->capacity;
  arena->capacity = capacity / 2;
  while (!mrc_list_is_empty(answering) && mrc_arena_may_open(arena)) {
    struct mrc_qp *qp = MRC_NODE_OWNER(answering->next, struct mrc_qp, nodes.answering);
    mrc_node_leave(&qp->nodes.answering);
    if (!mrc_list_is_empty(answering))
      mrc_qp_prefetch_parts(MRC_NODE_OWNER(answering->next, struct mrc_qp, nodes.answering));
    /* If it is not done, this half is full, or no EV may carry its answer now. */
    if (mrc_requester_is_busy(&qp->req))
      mrc_responder_transmit(services, qp, now_ns);
    else if (visit(services, qp, now_ns))
      settle(services, qp, now_ns);
    else
      mrc_qp_touch(services, qp); /* behind the QPs that have had no turn */
  }
  arena->capacity = capacity;
  bool room = true;
  while (room && !mrc_list_is_empty(ready)) {
    struct mrc_qp *qp = MRC_NODE_OWNER(ready->next, struct mrc_qp, nodes.ready);
    const int before = arena->n_bursts;
    /* Prefetches for this turn, the next one and the one after that. */
    const struct mrc_node *next = qp->nodes.ready.next;
    mrc_qp_prefetch_evs(qp);
    if (next != ready) {
      mrc_qp_prefetch_parts(MRC_NODE_OWNER(next, struct mrc_qp, nodes.ready));
      if (next->next != ready)
        mrc_qp_prefetch(MRC_NODE_OWNER(next->next, struct mrc_qp, nodes.ready));
    }
    room = visit(services, qp, now_ns) || mrc_arena_may_open(arena);
    /* The transmit is full before the QP was done. A QP without a whole turn keeps its place. A QP
       that had one goes to the end: long answers, requested again and again, would fill every
       transmit. */
    const int turn = arena->capacity < MRC_QUANTUM_BURSTS ? arena->capacity : MRC_QUANTUM_BURSTS;
    if (!room && arena->n_bursts - before < turn)
      mrc_list_append(ready->next, &qp->nodes.ready) /* in front */;
    else if (!room)
      mrc_qp_touch(services, qp);
    else if (!mrc_node_joined(&qp->nodes.ready))
      settle(services, qp, now_ns);
    mrc_assert(!room || !mrc_node_joined(&qp->nodes.ready) ||
               arena->n_bursts > before); /* else the loop would not end */
  }
  return room;
}

int mrc_engine_transmit(struct mrc_engine *engine, struct mrc_burst *bursts, int capacity,
                        uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  struct mrc_endpoint *endpoint = &engine->endpoint;
  mrc_assert(!engine->committing && capacity > 0);
  services->now_ns = now_ns;
  struct mrc_arena *arena = &services->arena;
  arena->bursts = bursts;
  arena->capacity = capacity < MRC_MAX_BURSTS ? capacity : MRC_MAX_BURSTS;
  arena->n_bursts = 0;
  arena->used = 0;
  arena->staged_bytes = arena->encrypted_bytes = 0;
  if (mrc_answer_transmit(services, &endpoint->peers, &endpoint->answers) &&
      mrc_endpoint_transmit_probes(services, endpoint, now_ns) && transmit_qps(services, now_ns))
    mrc_endpoint_transmit_probes(services, endpoint, now_ns);
  engine->committing = arena->n_bursts > 0;
  return arena->n_bursts;
}

/* ---- what the kernel took ---- */

/* A send failed, for example because there is no route. Under SRv6 each EV has its own route, so
   the EV becomes ASSUMED_BAD. The plane is suspended instead if its rotation is at the minimum or
   the error concerns the interface. The error of an EV probe is only the result of that probe. */
static void blame(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_burst *burst,
                  int error, uint64_t now_ns) {
  const uint16_t ev = (uint16_t)burst->_ev;
  struct mrc_plane *plane = &qp->planes[mrc_plane_of(burst->port)];
  if (qp->state != MRC_QP_RTS || burst->packets[0]._kind == MRC_KIND_EV_PROBE) return;
  const bool of_interface = error == -ENETDOWN || error == -ENODEV || error == -ENXIO;
  const bool of_plane = plane->suspended || of_interface || !mrc_evset_can_spare(&qp->evset, ev);
  if (plane->reverse_ev == ev) plane->reverse_ev = MRC_EV_NONE; /* answers use another EV */
  if (of_plane) {
    plane->unsendable = true;
    mrc_health_suspend_plane(services, qp, mrc_plane_of(burst->port), MRC_REASON_SEND, now_ns);
  } else {
    mrc_health_distrust_ev(services, qp, ev, MRC_REASON_SEND, now_ns);
  }
  mrc_qp_touch(services, qp);
}

void mrc_engine_commit(struct mrc_engine *engine, const struct mrc_burst *bursts, const int *taken,
                       int n, uint64_t now_ns) {
  static const enum mrc_counter counter_of[] = {[MRC_KIND_SACK] = MRC_COUNTER_TX_SACKS,
                                                [MRC_KIND_NACK] = MRC_COUNTER_TX_NACKS,
                                                [MRC_KIND_ACK] = MRC_COUNTER_TX_ACKS,
                                                [MRC_KIND_PROBE] = MRC_COUNTER_TX_PROBES,
                                                [MRC_KIND_ANSWER] = MRC_COUNTER_TX_EV_ANSWERS};
  struct mrc_services *services = &engine->services;
  mrc_assert(engine->committing && n == services->arena.n_bursts);
  engine->committing = false;
  services->now_ns = now_ns;
  /* Last to first, so that refused packets and their QPs return to their queues in order. */
  for (int i = n - 1; i >= 0; i--) {
    struct mrc_qp *qp = engine->qps[bursts[i]._qp];
    mrc_assert(qp != NULL);
    if (taken[i] == 1 && bursts[i].packets[0]._kind == MRC_KIND_DATA) {
      mrc_requester_on_taken(services, qp, &bursts[i]);
      continue;
    }
    /* A packet that was not sent keeps its place and is tried again at once. If the send failed and
       the next try would use the same path, the packet is left to the timers, as if the network
       lost it: unless a failed send takes its EV or its plane out of use. */
    const uint32_t plane = mrc_plane_of(bursts[i].port);
    const bool blamed = qp->state == MRC_QP_RTS && !qp->planes[plane].suspended &&
                        qp->evset.evs[bursts[i]._ev].place < qp->evset.planes[plane].n_active;
    for (int k = bursts[i].n_packets - 1; k >= 0; k--) {
      const struct mrc_packet *packet = &bursts[i].packets[k];
      if (packet->_kind == MRC_KIND_EV_PROBE) {
        mrc_endpoint_on_commit(services, &engine->endpoint, packet->_slot, taken[i], now_ns);
      } else if (taken[i] == 1) {
        mrc_count(services, counter_of[packet->_kind], 1);
      } else if (taken[i] == 0 || blamed) {
        mrc_count(services, MRC_COUNTER_TX_REFUSED, 1);
        if (packet->_kind == MRC_KIND_DATA || packet->_kind == MRC_KIND_PROBE)
          mrc_requester_on_refused(services, qp, packet);
        else if (packet->_kind == MRC_KIND_ANSWER)
          mrc_answer_on_refused(&engine->endpoint.answers, packet->_slot);
        else
          mrc_responder_on_refused(services, qp, packet);
      }
    }
  }
  /* After all commits: a suspension declares lost all packets in flight on the plane, and these
     include packets of other bursts of this transmit. */
  for (int i = 0; i < n; i++)
    if (taken[i] < 0) blame(services, engine->qps[bursts[i]._qp], &bursts[i], taken[i], now_ns);
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
    struct mrc_qp *qp = engine->qps[index];
    mrc_assert(qp != NULL);
    mrc_timeout_on_deadline(services, qp, now_ns);
    if (qp->resp.sack_deadline_ns <= now_ns)
      mrc_qp_touch_to_answer(services, qp);
    else
      mrc_qp_touch(services, qp);
  }
}
