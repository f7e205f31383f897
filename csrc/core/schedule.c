/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule.h"

#include "core/endpoint/ev_probe.h"
#include "core/loss/timeout.h"
#include "core/recv/responder_tx.h"
#include "core/recv/reverse.h"
#include "core/send/requester_tx.h"

#define MIN_WAIT_NS 20000ull     /* least time between a visit and the QP's timer */
#define STUCK_WAIT_NS 1000000ull /* the same while the QP is stuck */

static uint64_t qp_deadline(const struct mrc_services *services, const struct mrc_qp *qp,
                            uint64_t now_ns) {
  uint64_t deadline = qp->resp.sack_deadline_ns;
  deadline = mrc_min_u64(deadline, mrc_timeout_deadline(services, qp, now_ns));
  return qp->state == MRC_QP_RTS ? mrc_min_u64(deadline, qp->ev_probe_ns) : deadline;
}

/* The QP has had its turn and needs no other one: sets its timer. */
static void settle(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  const uint32_t usable = mrc_ports_usable(&services->ports);
  if ((qp->evset.plane_mask & ~usable) != 0)
    mrc_list_append(&services->ready.port_waiting, &qp->nodes.port_waiting);
  /* No port can send, or no EV may carry an answer that is due. */
  const bool stuck = (qp->evset.plane_mask & usable) == 0 || qp->resp.sack_deadline_ns <= now_ns;
  const uint64_t soonest =
      now_ns + mrc_floor_ns(stuck ? STUCK_WAIT_NS : MIN_WAIT_NS, services->config.noise_ns);
  uint64_t deadline = qp_deadline(services, qp, now_ns);
  if ((qp->evset.plane_mask & services->ports.blocked) != 0 && mrc_requester_is_busy(&qp->req))
    deadline = mrc_min_u64(deadline, now_ns + MRC_BLOCKED_PATIENCE_NS);
  /* A visit during the wait does not restart it. */
  const uint64_t wait_ns = mrc_min_u64(soonest, mrc_timers_at(&services->ready.timers, qp->index));
  mrc_timers_set(&services->ready.timers, qp->index,
                 deadline == MRC_NEVER ? MRC_NEVER : mrc_max_u64(deadline, wait_ns));
}

/* The transmit is full before the QP was done. A QP without a whole turn keeps its place. A QP that
   had one goes to the end: long answers, requested again and again, would fill every transmit. */
static void give_back(struct mrc_services *services, struct mrc_qp *qp, int n_bursts) {
  const int turn =
      services->arena.capacity < MRC_QUANTUM_BURSTS ? services->arena.capacity : MRC_QUANTUM_BURSTS;
  if (n_bursts < turn)
    mrc_list_prepend(&services->ready.ready, &qp->nodes.ready);
  else
    mrc_qp_touch(services, qp);
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

/* Answers leave before the data of all QPs: a peer that waits for a SACK stops sending, or counts
   packets as lost that have arrived. Answers take at most half of a transmit, so that peers that
   request many of them cannot stop our data. The other answers leave when their QPs have their
   turn. A QP without data has its whole turn here, while received packets keep it in the cache. */
static void transmit_answers(struct mrc_services *services, uint64_t now_ns) {
  const int capacity = services->arena.capacity;
  services->arena.capacity = capacity / 2;
  while (!mrc_list_is_empty(&services->ready.answering) && mrc_arena_may_open(&services->arena)) {
    struct mrc_qp *qp =
        MRC_NODE_OWNER(services->ready.answering.next, struct mrc_qp, nodes.answering);
    mrc_node_leave(&qp->nodes.answering);
    if (!mrc_list_is_empty(&services->ready.answering))
      mrc_qp_prefetch_parts(
          MRC_NODE_OWNER(services->ready.answering.next, struct mrc_qp, nodes.answering));
    /* If it is not done, this half is full, or no EV may carry its answer now. */
    if (mrc_requester_is_busy(&qp->req))
      mrc_responder_transmit(services, qp, now_ns);
    else if (visit(services, qp, now_ns))
      settle(services, qp, now_ns);
    else
      mrc_qp_touch(services, qp); /* behind the QPs that have had no turn */
  }
  services->arena.capacity = capacity;
}

/* Prefetches for this turn, the next one and the one after that. */
static void prefetch_ahead(const struct mrc_services *services, const struct mrc_qp *qp) {
  const struct mrc_node *next = qp->nodes.ready.next;
  mrc_qp_prefetch_evs(qp);
  if (next == &services->ready.ready) return;
  mrc_qp_prefetch_parts(MRC_NODE_OWNER(next, struct mrc_qp, nodes.ready));
  if (next->next != &services->ready.ready)
    mrc_qp_prefetch(MRC_NODE_OWNER(next->next, struct mrc_qp, nodes.ready));
}

bool mrc_schedule_transmit(struct mrc_services *services, uint64_t now_ns) {
  struct mrc_node *const ready = &services->ready.ready;
  const struct mrc_arena *arena = &services->arena;
  transmit_answers(services, now_ns);
  bool room = true;
  while (room && !mrc_list_is_empty(ready)) {
    struct mrc_qp *qp = MRC_NODE_OWNER(ready->next, struct mrc_qp, nodes.ready);
    const int before = arena->n_bursts;
    prefetch_ahead(services, qp);
    room = visit(services, qp, now_ns) || mrc_arena_may_open(arena);
    if (!room)
      give_back(services, qp, arena->n_bursts - before);
    else if (!mrc_node_joined(&qp->nodes.ready))
      settle(services, qp, now_ns);
    mrc_assert(!room || !mrc_node_joined(&qp->nodes.ready) ||
               arena->n_bursts > before); /* else the loop would not end */
  }
  return room;
}

void mrc_schedule_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  mrc_timeout_on_deadline(services, qp, now_ns);
  if (qp->resp.sack_deadline_ns <= now_ns)
    mrc_qp_touch_to_answer(services, qp);
  else
    mrc_qp_touch(services, qp);
}
