/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule.h"

#include "ev_probe.h"
#include "requester_tx.h"
#include "responder_tx.h"
#include "reverse.h"
#include "timeout.h"

#define MIN_WAIT_NS 20000ull     /* a timer never comes sooner than this after a visit */
#define STUCK_WAIT_NS 1000000ull /* nor sooner than this while it is stuck */

static uint64_t qp_deadline(const struct mrc_services *services, const struct mrc_qp *qp,
                            uint64_t now_ns) {
  uint64_t deadline = qp->resp.sack_deadline_ns;
  deadline = mrc_min_u64(deadline, mrc_timeout_deadline(services, qp, now_ns));
  return qp->state == MRC_QP_RTS ? mrc_min_u64(deadline, qp->ev_probe_ns) : deadline;
}

/* The QP has had its turn and is not waiting for another. */
static void settle(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  const uint32_t usable = mrc_ports_usable(&services->ports);
  if ((qp->evset.plane_mask & ~usable) != 0)
    mrc_list_append(&services->ready.port_waiting, &qp->nodes.port_waiting);
  /* No port can be sent on, or an answer is due that no EV may carry. */
  const bool stuck = (qp->evset.plane_mask & usable) == 0 || qp->resp.sack_deadline_ns <= now_ns;
  const uint64_t soonest =
      now_ns + mrc_floor_ns(stuck ? STUCK_WAIT_NS : MIN_WAIT_NS, services->config.noise_ns);
  uint64_t deadline = qp_deadline(services, qp, now_ns);
  if ((qp->evset.plane_mask & services->ports.blocked) != 0 && mrc_requester_is_busy(&qp->req))
    deadline = mrc_min_u64(deadline, now_ns + MRC_BLOCKED_PATIENCE_NS);
  /* Visits that come sooner than the wait is over do not start it again. */
  const uint64_t wait_ns = mrc_min_u64(soonest, mrc_timers_at(&services->ready.timers, qp->index));
  mrc_timers_set(&services->ready.timers, qp->index,
                 deadline == MRC_NEVER ? MRC_NEVER : mrc_max_u64(deadline, wait_ns));
}

/* The transmit is full before the QP was done. Whoever had no whole turn keeps its place. Not so
   who had: long answers, asked for again and again, would fill every transmit. */
static void give_back(struct mrc_services *services, struct mrc_qp *qp, int n_bursts) {
  const int turn =
      services->arena.capacity < MRC_QUANTUM_BURSTS ? services->arena.capacity : MRC_QUANTUM_BURSTS;
  if (n_bursts < turn)
    mrc_list_prepend(&services->ready.ready, &qp->nodes.ready);
  else
    mrc_qp_touch(services, qp);
}

/* The QP's turn; false when it was not done with all it had to send. */
static bool visit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  mrc_node_leave(&qp->nodes.ready);
  mrc_node_leave(&qp->nodes.answering);
  mrc_ev_probe_on_deadline(services, qp, now_ns);
  mrc_reverse_on_visit(services, qp, now_ns);
  return mrc_responder_transmit(services, qp, now_ns) &&
         mrc_requester_transmit(services, qp, now_ns);
}

/* What QPs owe their peers leaves before the data of any: a peer that waits for a SACK stands
   still, or takes for lost what has arrived. At most half a transmit, so that whoever keeps us
   answering does not keep us from sending; the rest has its turn with the data. A QP without data
   has its whole turn here, while it is still in the cache from what came. */
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
    /* One that is not done has filled this half, or no EV may carry its answer now. */
    if (mrc_requester_is_busy(&qp->req))
      mrc_responder_transmit(services, qp, now_ns);
    else if (visit(services, qp, now_ns))
      settle(services, qp, now_ns);
    else
      mrc_qp_touch(services, qp); /* behind those that have had no turn */
  }
  services->arena.capacity = capacity;
}

/* For this turn, the next and the one after that. */
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
               arena->n_bursts > before); /* else this would not end */
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
