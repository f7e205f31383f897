/* SPDX-License-Identifier: Apache-2.0 */
/* When a requester is due, whose turn it is to send, what the kernel took of it, and when the
   engine is due again.

   The timers of a requester: when nothing is heard, a reliability probe requests a report of all
   PSNs that have arrived; at last the local timeout declares everything in flight lost. A packet on
   a slow plane that blocks all others is sent again on another plane, without evidence that it is
   lost, and the window of the slow plane shrinks. For EV probes see endpoint.h. */
#include <errno.h>

#include "core/endpoint.h"
#include "core/engine.h"
#include "core/loss.h"
#include "core/receive.h"
#include "core/send.h"

#define MAX_REINJECTIONS 3        /* of one packet */
#define MAX_FRUITLESS_DOUBLINGS 6 /* of the local timeout, while probes are answered */

/* ---- the local timeout ---- */

/* The local timeout: fixed for the linear tries, then doubling. */
static uint64_t timeout_ns(const struct mrc_qp *qp, uint64_t now_ns) {
  const struct mrc_txwin *win = &qp->req.win;
  /* The time after which the answer to the oldest packet is overdue. Its plane may be much slower
     than the planes that most round trips come from. */
  uint64_t overdue_ns =
      qp->req.rtt.smooth_ns != 0 ? mrc_qp_overdue_ns(qp, &qp->req.rtt, 0, now_ns) : 0;
  const struct mrc_txslot *oldest = mrc_txwin_slot(win, win->una_psn);
  if (win->una_psn != win->next_psn && oldest->state == MRC_TX_INFLIGHT) {
    const struct mrc_rtt *rtt = &qp->planes[oldest->plane].rtt;
    if (rtt->smooth_ns != 0)
      overdue_ns = mrc_max_u64(overdue_ns, mrc_qp_overdue_ns(qp, rtt, 0, now_ns));
  }
  const uint64_t base = mrc_max_u64(1024ull << qp->attr.rts.timeout, 2 * overdue_ns);
  const uint32_t linear = qp->attr.rts.retry_linear, tries = qp->req.timeouts;
  const uint32_t fruitless = qp->req.fruitless;
  /* Answered probes show that the peer is there, but not that data can arrive so soon: packets that
     are sent again and again fill the queue that they wait in. */
  return base << mrc_max_u32(
             mrc_min_u32(tries - mrc_min_u32(tries, linear), 24),
             mrc_min_u32(fruitless - mrc_min_u32(fruitless, linear), MAX_FRUITLESS_DOUBLINGS));
}

/* Whether another plane delivered a packet sent after all that this plane delivered and after its
   oldest packet in flight. Then this plane has failed, and not the peer or the whole network. */
static bool falls_behind(const struct mrc_qp *qp, uint32_t index) {
  const struct mrc_txlist *list = &qp->req.win.lists[index];
  uint64_t since_ns = qp->planes[index].rack_ns;
  if (list->oldest != MRC_TX_NONE)
    since_ns = mrc_max_u64(since_ns, qp->req.win.slots[list->oldest].sent_ns);
  else if (!qp->planes[index].suspended)
    return false; /* nothing in flight: nothing is missing */
  MRC_EACH_BIT(other, qp->evset.plane_mask & ~(1u << index))
    if (qp->planes[other].rack_ns > since_ns) return true;
  return false;
}

/* The local timeout for one plane. At the first timeout, other planes may show that this one fails.
   At the next timeout that evidence is out of date, and every plane is tried again. */
static void time_out_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                           uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  const struct mrc_txlist *list = &qp->req.win.lists[index];
  const bool behind = qp->req.timeouts == 1 && falls_behind(qp, index);
  if (behind && !plane->suspended && ++plane->strikes >= MRC_LOSS_STRIKES)
    mrc_health_suspend_plane(services, qp, index, MRC_REASON_SILENCE, now_ns);
  while (list->oldest != MRC_TX_NONE)
    mrc_loss_declare(services, qp, mrc_txwin_psn_of(&qp->req.win, list->oldest),
                     MRC_COUNTER_LOST_BY_TIMEOUT, now_ns);
  if (!behind) mrc_health_resume_plane(services, qp, index, MRC_REASON_TIMEOUT);
}

/* Everything in flight may be lost. */
static void on_timeout(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  req->timeouts++;
  req->fruitless++;
  mrc_count(services, MRC_COUNTER_TIMEOUTS, 1);
  if (mrc_qp_has_no_retry_left(qp)) {
    mrc_qp_fail(services, qp, MRC_WC_RETRY_EXC_ERR, MRC_WC_RETRY_EXC_ERR);
    return;
  }
  mrc_trace(services, MRC_TRACE_TIMEOUT, qp->qpn, req->timeouts, timeout_ns(qp, now_ns));
  MRC_EACH_BIT(plane, qp->evset.plane_mask) {
    time_out_plane(services, qp, plane, now_ns);
    mrc_cc_on_timeout(&qp->planes[plane].cc);
  }
  req->progress_ns = now_ns; /* the next interval starts here */
  req->probe.wanted = true;
  req->probed_ns = now_ns;
}

/* ---- the reliability probe ---- */

/* The plane whose oldest packet in flight was sent first; a plane of the QP in any case. */
static uint32_t most_overdue_plane(const struct mrc_qp *qp) {
  const struct mrc_txwin *win = &qp->req.win;
  uint32_t worst = (uint32_t)__builtin_ctz(qp->evset.plane_mask);
  uint64_t first_ns = UINT64_MAX;
  MRC_EACH_BIT(plane, qp->evset.plane_mask) {
    const uint16_t oldest = win->lists[plane].oldest;
    if (oldest == MRC_TX_NONE || win->slots[oldest].sent_ns >= first_ns) continue;
    first_ns = win->slots[oldest].sent_ns;
    worst = plane;
  }
  return worst;
}

/* The other planes that are idle at the end of the data, as a mask: they have delivered their
   part. */
static uint32_t idle_planes(const struct mrc_services *services, const struct mrc_qp *qp,
                            const struct mrc_txslot *oldest) {
  const struct mrc_txwin *win = &qp->req.win;
  uint32_t idle = 0;
  if (qp->req.sq_send != qp->req.sq_tail || win->n_tosend > 0) return 0; /* more to send */
  MRC_EACH_BIT(other, mrc_qp_probed_planes(services, qp) & ~(1u << oldest->plane))
    if (win->lists[other].oldest == MRC_TX_NONE && qp->planes[other].strikes == 0)
      idle |= 1u << other;
  return idle;
}

/* The plane of a first probe: the most overdue one, so that the answer shows what was lost there.
   If that plane may be silent, another one: its answer is the proof. */
static uint32_t first_probed_plane(const struct mrc_services *services, const struct mrc_qp *qp,
                                   uint64_t now_ns) {
  const uint32_t overdue = most_overdue_plane(qp);
  if (qp->req.win.lists[overdue].oldest == MRC_TX_NONE) return overdue;
  const struct mrc_txslot *oldest = &qp->req.win.slots[qp->req.win.lists[overdue].oldest];
  const uint32_t idle = idle_planes(services, qp, oldest) | (mrc_qp_probed_planes(services, qp) &
                                                             qp->choice.backups & ~(1u << overdue));
  if (idle != 0 && now_ns >= mrc_loss_silent_ns(qp, oldest, now_ns))
    return (uint32_t)__builtin_ctz(idle);
  const bool probed = qp->req.probe.sent_ns > oldest->sent_ns;
  return probed || !falls_behind(qp, overdue) ? overdue : overdue + 1;
}

/* Sends the probe: first on the plane with the most overdue packet, because an answer proves that
   packet lost, or on the next plane if that plane may be silent. Then the planes take turns, so
   that a dead plane does not drop every probe. False when the transmit is full. */
static bool send_probe(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_reliability_probe *probe = &qp->req.probe;
  const uint32_t planes = mrc_qp_probed_planes(services, qp) & ~mrc_qp_blocked(services, qp);
  if (planes == 0) return true;
  uint32_t plane =
      probe->outstanding ? probe->plane + 1u : first_probed_plane(services, qp, now_ns);
  while ((planes >> plane % MRC_MAX_PORTS & 1) == 0)
    plane++; /* ends: one bit of the mask is set */
  const uint16_t ev = mrc_evset_any(&qp->evset, plane % MRC_MAX_PORTS);
  struct mrc_burst *burst =
      mrc_burst_open(services, qp, ev, services->config.dscps.control, MRC_ECN_CAPABLE);
  if (burst == NULL) return false;
  *probe = (struct mrc_reliability_probe){.sent_ns = now_ns,
                                          .id = (uint16_t)(probe->id + 1),
                                          .ev = ev,
                                          .plane = qp->evset.evs[ev].plane,
                                          .outstanding = true};
  struct mrc_wire wire = {.opcode = MRC_OP_PROBE,
                          .dest_qpn = qp->attr.rtr.dest_qpn,
                          .probe = {.probe_id = probe->id,
                                    .spdcid = (uint16_t)qp->qpn,
                                    .dpdcid = (uint16_t)qp->attr.rtr.dest_qpn,
                                    .tx_timestamp = mrc_timestamp(now_ns),
                                    .tsr = true}};
  mrc_burst_add(services, burst, &wire, MRC_KIND_PROBE, 0);
  mrc_trace(services, MRC_TRACE_PROBE_OUT, qp->qpn, probe->id, probe->plane);
  return true;
}

/* Usually due when no plane is heard. Due earlier when no later packet can be sent to prove a
   packet lost whose answer is overdue: it has closed the window of PSNs, or other planes have
   delivered their part of the last data. */
static uint64_t probe_deadline_ns(const struct mrc_services *services, const struct mrc_qp *qp,
                                  uint64_t now_ns) {
  const struct mrc_requester *req = &qp->req;
  const uint64_t silent_ns = mrc_max_u64(req->progress_ns, req->probed_ns) + req->probe_wait_ns;
  const struct mrc_txslot *oldest = mrc_requester_awaited(&qp->req, &qp->attr.rts);
  if (oldest == NULL) return silent_ns;
  if (req->sq_send == req->sq_tail) { /* every posted packet has a PSN */
    const uint64_t proves_ns = mrc_loss_silent_ns(qp, oldest, now_ns);
    if (req->probed_ns >= proves_ns || idle_planes(services, qp, oldest) == 0) return silent_ns;
    return mrc_min_u64(silent_ns, proves_ns);
  }
  const struct mrc_rtt *rtt = &qp->planes[oldest->plane].rtt;
  if (rtt->smooth_ns == 0) return silent_ns;
  const uint64_t spare_ns = mrc_max_u64(rtt->smooth_ns / 4, rtt->var_ns);
  const uint64_t closed_ns = mrc_max_u64(oldest->sent_ns, req->probed_ns) + rtt->smooth_ns +
                             mrc_max_u64(spare_ns, mrc_floor_ns(MRC_PROBE_FLOOR_NS, qp->noise_ns));
  return mrc_min_u64(silent_ns, closed_ns);
}

/* ---- the packet that blocks all others, on a slow plane ---- */

/* Whether a limited plane holds up the end of the data: an idle plane would deliver its packets
   sooner than its queue does. */
static bool holds_up_end(const struct mrc_services *services, const struct mrc_qp *qp,
                         const struct mrc_txslot *oldest) {
  if ((qp->choice.quick.limited >> oldest->plane & 1) == 0) return false;
  uint64_t idle_ns = UINT64_MAX;
  const uint32_t planes = mrc_qp_eligible_planes(services, qp) & ~qp->choice.quick.limited;
  MRC_EACH_BIT(other, idle_planes(services, qp, oldest) & planes)
    idle_ns = mrc_min_u64(idle_ns, qp->planes[other].rtt.base_ns);
  if (idle_ns == UINT64_MAX) return false;
  const uint64_t way_ns = qp->planes[oldest->plane].rtt.base_ns * 3 / 2;
  return mrc_quick_queue_ns(qp, oldest->plane, 0) > 2 * idle_ns + way_ns + qp->noise_ns;
}

/* When the blocking packet is sent again on another plane. With more data to send, that is when the
   quickest plane would have delivered it. At the end of the data, a plane with a long path but no
   queue does not count as late. The wait doubles each time, at most MAX_REINJECTIONS times. */
static uint64_t reinject_deadline_ns(const struct mrc_services *services, const struct mrc_qp *qp) {
  const struct mrc_txslot *oldest = mrc_requester_awaited(&qp->req, &qp->attr.rts);
  if (oldest == NULL || oldest->tries > MAX_REINJECTIONS) return MRC_NEVER;
  if (holds_up_end(services, qp, oldest)) return oldest->sent_ns;
  const uint64_t wait_ns = mrc_quick_late_ns(services, qp, oldest->plane);
  if (wait_ns == MRC_NEVER) return MRC_NEVER;
  const bool at_end = qp->req.sq_send == qp->req.sq_tail;
  const uint64_t way_ns = at_end ? qp->planes[oldest->plane].rtt.base_ns * 3 / 2 : 0;
  return oldest->sent_ns + (mrc_max_u64(wait_ns, way_ns) << (oldest->tries - 1));
}

/* Sends packets of the blocking plane again on another plane: the oldest burst, or at the end of
   the data all. */
static void reinject(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_txwin *win = &qp->req.win;
  const struct mrc_txslot oldest = *mrc_txwin_slot(win, win->una_psn);
  struct mrc_plane *plane = &qp->planes[oldest.plane];
  const bool all = holds_up_end(services, qp, &oldest);
  if (plane->doubted_ns == 0) plane->doubted_ns = now_ns;
  for (uint32_t psn = win->una_psn; mrc_txwin_holds(win, psn); psn = mrc_psn_add(psn, 1)) {
    struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
    const bool ours = slot->state == MRC_TX_INFLIGHT && slot->plane == oldest.plane;
    if (all && !ours) continue;
    if (!all && (!ours || slot->ev != oldest.ev || slot->sent_ns != oldest.sent_ns)) return;
    mrc_delivery_on_late(&plane->delivery, slot->bytes, now_ns);
    slot->reinjected = true;
    mrc_txwin_on_lost(win, psn);
    mrc_evset_on_missed(&qp->evset, slot->ev);
    mrc_count(services, MRC_COUNTER_REINJECTED, 1);
    mrc_trace(services, MRC_TRACE_REINJECT, qp->qpn, psn, slot->ev);
  }
}

/* Shrinks the congestion window of a slow plane: packets in its queue hold up the window of PSNs
   that all planes share. */
static void relieve_window(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  const struct mrc_txslot *oldest = mrc_requester_awaited(&qp->req, &qp->attr.rts);
  if (oldest == NULL || qp->req.sq_send == qp->req.sq_tail) return;
  const uint64_t wait_ns = mrc_quick_late_ns(services, qp, oldest->plane);
  if (wait_ns == MRC_NEVER || now_ns < oldest->sent_ns + wait_ns) return;
  const struct mrc_cc_loss loss = {.cause = MRC_CC_LOSS_LATE,
                                   .bytes = oldest->bytes,
                                   .inflight_bytes = mrc_qp_inflight_bytes(qp, oldest->plane)};
  mrc_cc_on_loss(mrc_qp_cc(qp, oldest->plane), &loss, now_ns);
}

/* ---- the deadline of a requester ---- */

/* Declares packets lost by time. If nothing is heard, requests a probe and at last times out. May
   fail the QP. Call it only after all received packets were handled. */
static void on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  if (qp->state != MRC_QP_RTS || !mrc_requester_is_busy(&qp->req)) return;
  mrc_loss_on_time(services, qp, now_ns);
  relieve_window(services, qp, now_ns);
  if (now_ns >= reinject_deadline_ns(services, qp)) reinject(services, qp, now_ns);
  if (now_ns >= qp->req.progress_ns + timeout_ns(qp, now_ns)) {
    on_timeout(services, qp, now_ns);
  } else if (now_ns >= probe_deadline_ns(services, qp, now_ns)) {
    req->probe.wanted = true;
    req->probed_ns = now_ns;
    /* The wait covers the time of an answer, because a new probe replaces the last one. */
    const uint64_t longest_ns =
        mrc_max_u64(1024ull << qp->attr.rts.timeout, mrc_loss_patience_ns(qp, now_ns));
    /* Twice the time would be too long where every other probe or answer is lost: the mean wait
       would have no bound but the longest. */
    req->probe_wait_ns = mrc_min_u64(3 * req->probe_wait_ns / 2, longest_ns);
  }
  mrc_qp_touch(services, qp);
}

/* ---- the turns of QPs ---- */

#define MIN_WAIT_NS 20000ull     /* least time between a visit and the QP's timer */
#define STUCK_WAIT_NS 1000000ull /* the same while the QP is stuck */

/* The QP has had its turn and needs no other one: sets its timer. */
static void settle(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  const uint32_t usable = mrc_evset_on_ports(&qp->evset, mrc_ports_usable(&services->ports));
  if (usable != qp->evset.plane_mask)
    mrc_list_append(&services->ready.port_waiting, &qp->nodes.port_waiting);
  /* No port can send, or no EV may carry an answer that is due. */
  const bool stuck = usable == 0 || qp->resp.sack_deadline_ns <= now_ns;
  const uint64_t soonest =
      now_ns + mrc_floor_ns(stuck ? STUCK_WAIT_NS : MIN_WAIT_NS, services->config.noise_ns);
  uint64_t deadline = qp->resp.sack_deadline_ns;
  if (qp->state == MRC_QP_RTS) deadline = mrc_min_u64(deadline, qp->ev_probe_ns);
  if (qp->state == MRC_QP_RTS && mrc_requester_is_busy(&qp->req)) {
    if (qp->choice.backups != 0) deadline = mrc_min_u64(deadline, qp->backup_probe_ns);
    if (mrc_qp_blocked(services, qp) != 0)
      deadline = mrc_min_u64(deadline, now_ns + MRC_BLOCKED_PATIENCE_NS);
    deadline = mrc_min_u64(deadline, qp->req.progress_ns + timeout_ns(qp, now_ns));
    deadline = mrc_min_u64(deadline, probe_deadline_ns(services, qp, now_ns));
    deadline = mrc_min_u64(deadline, reinject_deadline_ns(services, qp));
    if (mrc_loss_is_due(qp, now_ns)) deadline = 0;
  }
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
  if (qp->state == MRC_QP_RTS && now_ns >= qp->ev_probe_ns)
    mrc_ev_probe_on_deadline(services, qp, now_ns);
  if (qp->choice.backups != 0 && qp->state == MRC_QP_RTS && now_ns >= qp->backup_probe_ns &&
      mrc_requester_is_busy(&qp->req))
    mrc_ev_probe_backups(services, qp, now_ns);
  mrc_reverse_on_visit(services, qp, now_ns);
  if (!mrc_responder_transmit(services, qp, now_ns)) return false;
  if (qp->state != MRC_QP_RTS) return true;
  if (qp->req.probe.wanted && !send_probe(services, qp, now_ns)) return false;
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
  struct mrc_plane *plane = &qp->planes[mrc_qp_plane_of(qp, burst)];
  if (qp->state != MRC_QP_RTS || burst->packets[0]._kind == MRC_KIND_EV_PROBE) return;
  const bool of_interface = error == -ENETDOWN || error == -ENODEV || error == -ENXIO;
  const bool of_plane = plane->suspended || of_interface || !mrc_evset_can_spare(&qp->evset, ev);
  if (plane->reverse_ev == ev) plane->reverse_ev = MRC_EV_NONE; /* answers use another EV */
  if (of_plane) {
    plane->unsendable = true;
    mrc_health_suspend_plane(services, qp, mrc_qp_plane_of(qp, burst), MRC_REASON_SEND, now_ns);
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
    struct mrc_qp *qp = engine->qps.at[bursts[i]._qp];
    mrc_assert(qp != NULL);
    if (taken[i] == 1 && bursts[i].packets[0]._kind <= MRC_KIND_COPY) {
      mrc_requester_on_taken(services, qp, &bursts[i]);
      continue;
    }
    /* A packet that was not sent keeps its place and is tried again at once. If the send failed and
       the next try would use the same path, the packet is left to the timers, as if the network
       lost it: unless a failed send takes its EV or its plane out of use. */
    const uint32_t plane = mrc_qp_plane_of(qp, &bursts[i]);
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
        if (packet->_kind <= MRC_KIND_COPY || packet->_kind == MRC_KIND_PROBE)
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
    if (taken[i] < 0) blame(services, engine->qps.at[bursts[i]._qp], &bursts[i], taken[i], now_ns);
}

/* ---- time ---- */

uint64_t mrc_engine_deadline(const struct mrc_engine *engine) {
  const struct mrc_ready *ready = &engine->services.ready;
  const struct mrc_probes *probes = &engine->services.probes;
  const struct mrc_endpoint *endpoint = &engine->endpoint;
  if (!mrc_list_is_empty(&ready->ready) || probes->n_unsent > probes->n_stuck ||
      endpoint->answers.n > endpoint->answers.n_stuck)
    return 0; /* there is something to send */
  return mrc_min_u64(
      mrc_timers_next(&ready->timers),
      mrc_min_u64(mrc_timers_next(&probes->timers), mrc_timers_next(&endpoint->statuses.timers)));
}

void mrc_engine_expire(struct mrc_engine *engine, uint64_t now_ns) {
  struct mrc_services *services = &engine->services;
  mrc_assert(!engine->committing);
  services->now_ns = now_ns;
  mrc_endpoint_expire(services, &engine->endpoint, now_ns);
  for (;;) {
    const uint32_t index = mrc_timers_pop(&services->ready.timers, now_ns);
    if (index == UINT32_MAX) return;
    struct mrc_qp *qp = engine->qps.at[index];
    mrc_assert(qp != NULL);
    on_deadline(services, qp, now_ns);
    if (qp->resp.sack_deadline_ns <= now_ns)
      mrc_qp_touch_to_answer(services, qp);
    else
      mrc_qp_touch(services, qp);
  }
}
