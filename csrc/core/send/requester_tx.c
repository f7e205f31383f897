/* SPDX-License-Identifier: Apache-2.0 */
#include "requester_tx.h"

#include "burst.h"
#include "core/qp.h"
#include "quick.h"
#include "spray.h"

#define BURSTS_PER_PLANE 4   /* that a plane's share of the window is split into */
#define SHORT_BURST_NS 50000 /* for so long a plane may be busy when the others have finished */

/* The planes that have an EV for use now. At the start, each EV sends one burst and then waits for
   its answer. */
static uint32_t ready_planes(const struct mrc_qp *qp, uint32_t planes) {
  uint32_t ready = 0;
  MRC_EACH_BIT(plane, planes)
    if (mrc_evset_has_next(&qp->evset, plane)) ready |= 1u << plane;
  return ready;
}

/* Whether an EV of the planes still waits for the answer to its first burst, or for its loss. */
static bool any_on_trial(const struct mrc_qp *qp, uint32_t planes) {
  MRC_EACH_BIT(plane, planes)
    if (qp->evset.planes[plane].n_on_trial > 0) return true;
  return false;
}

/* The next EV of the plane that is not `avoid`, or MRC_EV_NONE. */
static uint16_t other_ev(struct mrc_qp *qp, uint32_t plane, uint16_t avoid) {
  const uint16_t ev = mrc_evset_next(&qp->evset, plane);
  return ev != avoid || ev == MRC_EV_NONE ? ev : mrc_evset_other(&qp->evset, plane, avoid);
}

/* Whether the plane may be silent: it has lost bursts, or an answer from it is overdue. */
static bool is_doubtful(const struct mrc_qp *qp, uint32_t index, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[index];
  if (plane->strikes > 0 || plane->doubted_ns != 0) return true;
  const uint16_t oldest = qp->req.win.lists[index].oldest;
  if (oldest == MRC_TX_NONE || !mrc_rtt_known(&plane->rtt)) return false;
  const uint64_t since_ns = mrc_max_u64(qp->req.win.slots[oldest].sent_ns, plane->heard_ns);
  return now_ns - since_ns > mrc_qp_overdue_ns(qp, &plane->rtt, 2ull * qp->noise_ns, now_ns);
}

/* The planes for a retransmission: those that deliver, if there are any. The message waits for it,
   and a silent plane has the smallest share, so it would be chosen again and again. A packet that
   the local timeout has declared lost avoids the plane that lost it. All of them have a socket with
   room: one that is full may stay so. */
static uint32_t planes_for_lost(const struct mrc_qp *qp, uint32_t planes, uint16_t avoid,
                                bool by_timeout, uint64_t now_ns) {
  const uint32_t others =
      by_timeout ? planes & ~(1u << mrc_evset_plane_of(&qp->evset, avoid)) : planes;
  uint32_t delivering = others;
  MRC_EACH_BIT(plane, others)
    if (is_doubtful(qp, plane, now_ns)) delivering &= ~(1u << plane);
  return delivering != 0 ? delivering : others != 0 ? others : planes;
}

/* An EV for this packet: the next one of the chosen plane. A retransmission avoids the EV that lost
   the packet, unless no plane whose socket has room has another EV. */
static uint16_t choose_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t avoid,
                          bool by_timeout, uint32_t bytes) {
  uint32_t eligible = mrc_qp_eligible_planes(services, qp);
  uint32_t planes = ready_planes(qp, eligible), first = planes;
  mrc_spray_level(services, qp, planes);
  if (avoid != MRC_EV_NONE) {
    eligible &= ~services->ports.blocked;
    planes &= ~services->ports.blocked;
    first = planes_for_lost(qp, planes, avoid, by_timeout, services->now_ns);
  }
  int plane = mrc_spray_choose(services, qp, first, bytes);
  if (plane < 0) return MRC_EV_NONE;
  const uint16_t ev = other_ev(qp, (uint32_t)plane, avoid);
  if (ev != MRC_EV_NONE) return ev;
  planes &= ~(1u << plane);
  if (planes == 0) return any_on_trial(qp, eligible) ? MRC_EV_NONE : avoid;
  plane = mrc_spray_choose(services, qp, planes, bytes);
  return plane < 0 ? MRC_EV_NONE : other_ev(qp, (uint32_t)plane, avoid);
}

/* At the end of the data, the packets of a burst after which the planes finish together: an even
   part of what is left, or what the plane carries in a short time. */
static uint64_t even_packets(const struct mrc_qp *qp, uint32_t plane, uint32_t planes,
                             uint64_t packets, uint32_t bytes) {
  const uint64_t left_bytes = mrc_requester_left_bytes(&qp->req, qp->attr.rts.path_mtu);
  const uint64_t even = left_bytes / ((uint64_t)bytes * mrc_max_u32(planes, 1));
  const uint64_t rtt_ns = qp->planes[plane].rtt.smooth_ns;
  if (packets <= even || rtt_ns == 0) return packets;
  const uint64_t cwnd_bytes = mrc_qp_const_cc(qp, plane)->cwnd_bytes;
  const uint64_t quick = mrc_mul_div(cwnd_bytes, SHORT_BURST_NS, rtt_ns) / bytes;
  return mrc_min_u64(packets, mrc_max_u64(even, quick));
}

/* The burst size in packets, each as large as the next one. It is 1 while the window is small and
   grows with it, but one lost burst stays a small part of the window and no plane runs ahead. */
static uint32_t burst_packets(const struct mrc_services *services, const struct mrc_qp *qp,
                              uint32_t plane, uint32_t next_bytes) {
  const uint32_t planes = (uint32_t)__builtin_popcount(mrc_qp_eligible_planes(services, qp));
  const uint32_t windows = qp->req.one_window ? mrc_max_u32(planes, 1) : 1;
  const uint64_t share = mrc_qp_const_cc(qp, plane)->cwnd_bytes / (BURSTS_PER_PLANE * windows);
  const uint32_t bytes = mrc_max_u32(next_bytes, MRC_DATA_OVERHEAD_BYTES);
  uint64_t packets = even_packets(qp, plane, planes, share / bytes, bytes);
  if (mrc_quick_is_limited(qp, plane)) packets = 1;
  if (qp->attr.rts.spray != 0) packets = mrc_min_u64(packets, qp->attr.rts.spray);
  return (uint32_t)mrc_max_u64(1, mrc_min_u64(packets, MRC_MAX_BURST_PACKETS));
}

static uint8_t opcode_of(const struct mrc_wqe *wqe, uint64_t offset, uint32_t bytes) {
  const bool imm = wqe->opcode == MRC_WR_WRITE_IMM, last = offset + bytes == wqe->bytes;
  if (offset == 0 && last) return imm ? MRC_OP_WRITE_ONLY_IMM : MRC_OP_WRITE_ONLY;
  if (offset == 0) return MRC_OP_WRITE_FIRST;
  if (!last) return MRC_OP_WRITE_MIDDLE;
  return imm ? MRC_OP_WRITE_LAST_IMM : MRC_OP_WRITE_LAST;
}

/* Makes `wire` packet k of the work request at `index`. It writes each field in place: building a
   packet and copying it would cost more than all the computation. */
static void set_data_packet(struct mrc_wire *wire, const struct mrc_qp *qp, uint32_t index,
                            uint32_t k, uint32_t bytes) {
  const struct mrc_wqe *wqe = &qp->req.sq[index & qp->req.sq_mask];
  const uint64_t offset = (uint64_t)k * mrc_wqe_part_bytes(wqe);
  wire->opcode = opcode_of(wqe, offset, bytes);
  wire->rtx = false;
  wire->psn = mrc_psn_add(wqe->first_psn, k);
  wire->rqmsn = wqe->rqmsn;
  wire->msn = (uint16_t)index;
  wire->va = wqe->va + offset;
  wire->rkey = wqe->rkey;
  wire->dma_bytes = wqe->bytes;
  wire->imm = wqe->imm;
  wire->payload = (const uint8_t *)(uintptr_t)(wqe->local + offset);
  wire->payload_bytes = bytes;
}

/* The next packet to send; retransmissions come first. A new packet gets its PSN only when it is
   certain to leave. */
struct candidate {
  struct mrc_wire wire;
  uint16_t avoid;  /* EV that lost it, or MRC_EV_NONE */
  bool by_timeout; /* and no acknowledgment has shown that loss */
  bool fresh;      /* has no PSN yet */
};

static bool next_candidate(const struct mrc_qp *qp, struct candidate *next) {
  const struct mrc_requester *req = &qp->req;
  if (req->win.n_tosend > 0) {
    const uint32_t psn = mrc_txwin_first_tosend(&req->win);
    const struct mrc_txslot *slot = mrc_txwin_slot(&req->win, psn);
    const uint32_t first_psn = req->sq[slot->wqe & req->sq_mask].first_psn;
    set_data_packet(&next->wire, qp, slot->wqe, mrc_psn_sub(psn, first_psn), slot->bytes);
    next->wire.rtx = slot->state == MRC_TX_LOST;
    next->avoid = slot->ev_lost;
    next->by_timeout = slot->by_timeout;
    next->fresh = false;
    return true;
  }
  uint32_t bytes;
  if (!mrc_requester_next_new(&qp->req, &qp->attr.rts, &bytes)) return false;
  set_data_packet(&next->wire, qp, req->sq_send, req->opened, bytes);
  if (req->opened == 0) next->wire.psn = req->win.next_psn;
  next->avoid = MRC_EV_NONE;
  next->by_timeout = false;
  next->fresh = true;
  return true;
}

/* Whether the packet may join the burst: it may use the same EV, and its length fits. */
static bool fits(const struct mrc_services *services, const struct mrc_burst *burst,
                 const struct candidate *next, uint32_t bytes, uint32_t limit) {
  if (burst->n_packets == 0) return true;
  if (burst->n_packets >= limit || !mrc_arena_has_room(&services->arena, burst)) return false;
  if (next->avoid == burst->_ev) return false;
  if (mrc_tclass_data(services, next->wire.rtx) != burst->tclass) return false;
  return bytes <= burst->packet_bytes;
}

/* Whether a packet of `bytes` requests a SACK: a few times per window, and in the last packet
   before a stop. The EV's last packet does so too. Call it after the packet joined the window. */
static bool asks_for_sack(const struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                          uint32_t bytes) {
  const struct mrc_requester *req = &qp->req;
  uint32_t more;
  uint64_t *unasked_bytes = &qp->planes[mrc_qp_window_of(qp, plane)].unasked_bytes;
  *unasked_bytes += bytes;
  const bool asks =
      mrc_cc_asks_for_sack(mrc_qp_const_cc(qp, plane), mrc_qp_inflight_bytes(qp, plane),
                           *unasked_bytes, services->config.sack_threshold_bytes,
                           mrc_peer_is_shared(qp)) ||
      (req->win.n_tosend == 0 && !mrc_requester_next_new(req, &qp->attr.rts, &more)) ||
      !mrc_evset_has_next(&qp->evset, plane);
  if (asks) *unasked_bytes = 0;
  return asks;
}

static void add_data(struct mrc_services *services, struct mrc_qp *qp, struct mrc_burst *burst,
                     struct candidate *next, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  const uint8_t plane = (uint8_t)mrc_plane_of(burst->port);
  const uint32_t bytes = next->wire.payload_bytes;
  if (next->fresh) {
    const uint32_t psn = mrc_requester_open_new(&qp->req, bytes);
    mrc_assert(psn == next->wire.psn);
  }
  mrc_txwin_on_send(&req->win, next->wire.psn, (uint16_t)burst->_ev, plane, now_ns);
  next->wire.ack_req = asks_for_sack(services, qp, plane, bytes);
  mrc_spray_give(qp, plane, bytes + MRC_DATA_OVERHEAD_BYTES);
  mrc_burst_add(services, burst, &next->wire, MRC_KIND_DATA, next->wire.psn, mrc_qp_has_icrc(qp));
  if (next->wire.rtx) mrc_trace(services, MRC_TRACE_RESEND, qp->qpn, next->wire.psn, burst->_ev);
}

/* Packets that may follow a new packet of `bytes` in its burst before the last one of its message.
   They differ from it only in PSN and place. */
static uint32_t run_length(const struct mrc_services *services, const struct mrc_qp *qp,
                           const struct mrc_burst *burst, uint32_t plane, uint32_t bytes,
                           uint32_t limit) {
  const struct mrc_requester *req = &qp->req;
  const struct mrc_wqe *wqe = &req->sq[req->sq_send & req->sq_mask];
  if (req->opened == 0 || req->win.n_tosend > 0 || burst->n_packets >= limit) return 0;
  const uint64_t left_bytes = wqe->bytes - (uint64_t)req->opened * bytes;
  const uint64_t cwnd_bytes = mrc_qp_const_cc(qp, plane)->cwnd_bytes;
  const uint64_t inflight_bytes = mrc_qp_inflight_bytes(qp, plane);
  if (inflight_bytes >= cwnd_bytes) return 0;
  const uint64_t most =
      mrc_min_u64((left_bytes - 1) / bytes, (cwnd_bytes - inflight_bytes) / bytes);
  const uint32_t room = mrc_arena_room(&services->arena, burst);
  const uint32_t packets = mrc_min_u32(limit - burst->n_packets, room);
  return (uint32_t)mrc_min_u64(most, mrc_min_u32(packets, mrc_requester_window_left(req)));
}

/* Adds n packets after the last one of the burst, which is a new one. */
static void add_run(struct mrc_services *services, struct mrc_qp *qp, struct mrc_burst *burst,
                    uint32_t n, uint32_t bytes, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  const uint8_t plane = (uint8_t)mrc_plane_of(burst->port);
  const bool icrc = mrc_qp_has_icrc(qp);
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t psn =
        mrc_txwin_append(&req->win, req->sq_send, bytes, (uint16_t)burst->_ev, plane, now_ns);
    req->opened++;
    mrc_burst_add_next(services, burst, psn, asks_for_sack(services, qp, plane, bytes), icrc);
  }
  mrc_assert(req->unsent_bytes >= (uint64_t)n * bytes);
  req->unsent_bytes -= (uint64_t)n * bytes;
  mrc_spray_give(qp, plane, n * (bytes + MRC_DATA_OVERHEAD_BYTES));
}

/* Ends a burst: its new packets have the PSNs from `first_psn` on. */
static void end_burst(struct mrc_services *services, const struct mrc_qp *qp,
                      const struct mrc_burst *burst, uint32_t first_psn) {
  const struct mrc_requester *req = &qp->req;
  mrc_assert(mrc_txwin_outstanding(&req->win) <= req->win.psns);
  mrc_assert(mrc_psn_sub(req->win.next_psn, req->peer_next_psn) <= qp->attr.rts.peer_mpr);
  mrc_assert(req->wimm_inflight <= qp->attr.rts.peer_max_wimm);
  const uint64_t fresh = mrc_psn_sub(req->win.next_psn, first_psn);
  if (fresh > 0)
    mrc_trace(services, MRC_TRACE_SEND, qp->qpn, first_psn, burst->_ev | (fresh - 1) << 32);
}

enum fill { FILL_DRY, FILL_FULL, FILL_MORE };

static enum fill fill_burst(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct candidate next = {.wire = {.sealed = qp->seal != NULL,
                                    .dest_qpn = qp->attr.rtr.dest_qpn,
                                    .ts = true,
                                    .tsr = true,
                                    .tx_timestamp = mrc_timestamp(now_ns)}};
  if (!next_candidate(qp, &next)) return FILL_DRY;
  if (!mrc_arena_may_open(&services->arena)) return FILL_FULL;
  const uint16_t ev = choose_ev(services, qp, next.avoid, next.by_timeout, next.wire.payload_bytes);
  if (ev == MRC_EV_NONE) return FILL_DRY;
  struct mrc_burst *burst =
      mrc_burst_open(services, qp, ev, mrc_tclass_data(services, next.wire.rtx));
  if (burst == NULL) return FILL_FULL;
  mrc_evset_on_burst(&qp->evset, ev);
  const uint32_t plane = mrc_plane_of(burst->port);
  if (qp->req.win.lists[plane].bytes == 0)
    mrc_delivery_on_flight(&qp->planes[plane].delivery, now_ns);
  const uint32_t limit = burst_packets(services, qp, plane, next.wire.payload_bytes);
  const uint32_t first_psn = qp->req.win.next_psn;
  bool more = true;
  for (bool shorter = false; more && !shorter;) {
    const uint32_t bytes = next.wire.payload_bytes;
    const uint32_t packet_bytes = mrc_burst_packet_bytes(&next.wire);
    if (!fits(services, burst, &next, packet_bytes, limit)) break;
    if (burst->n_packets > 0 && !mrc_qp_has_room(qp, plane, bytes)) break;
    shorter = burst->n_packets > 0 && packet_bytes < burst->packet_bytes;
    add_data(services, qp, burst, &next, now_ns);
    if (next.fresh && !shorter)
      add_run(services, qp, burst, run_length(services, qp, burst, plane, bytes, limit), bytes,
              now_ns);
    more = next_candidate(qp, &next);
  }
  end_burst(services, qp, burst, first_psn);
  return more ? FILL_MORE : FILL_DRY;
}

bool mrc_requester_transmit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  for (int i = 0; i < MRC_QUANTUM_BURSTS; i++) {
    const enum fill fill = fill_burst(services, qp, now_ns);
    if (fill == FILL_FULL) return false;
    if (fill == FILL_DRY) return true;
    /* With `spray` set, QPs take turns after each burst too: four packets in a row to one peer,
       from many hosts at once, build a queue there. A turn costs a tenth as much as a packet. */
    if (qp->attr.rts.spray != 0 && !mrc_list_is_empty(&services->ready.ready)) break;
  }
  mrc_qp_touch(services, qp); /* its next turn comes after the others' */
  return true;
}

void mrc_requester_on_taken(struct mrc_services *services, struct mrc_qp *qp,
                            const struct mrc_burst *burst) {
  struct mrc_requester *req = &qp->req;
  uint64_t packets = 0, bytes = 0, again = 0, again_bytes = 0;
  for (int i = 0; i < burst->n_packets; i++) {
    const struct mrc_packet *packet = &burst->packets[i];
    mrc_assert(packet->_kind == MRC_KIND_DATA);
    if (!mrc_txwin_holds(&req->win, packet->_slot)) continue;
    const struct mrc_txslot *slot = mrc_txwin_slot(&req->win, packet->_slot);
    packets++;
    bytes += slot->bytes;
    if (slot->tries < 2) continue;
    again++;
    again_bytes += slot->bytes;
  }
  struct mrc_ev *ev = &qp->evset.evs[burst->_ev];
  struct mrc_plane *plane = &qp->planes[mrc_plane_of(burst->port)];
  req->sent_packets += packets;
  req->first_sent_bytes += bytes - again_bytes;
  req->retransmitted_packets += again;
  ev->packets += packets;
  ev->bytes += bytes;
  plane->packets += packets;
  plane->bytes += bytes;
  mrc_count(services, MRC_COUNTER_TX_DATA, packets);
  mrc_count(services, MRC_COUNTER_TX_BYTES, bytes);
  mrc_count(services, MRC_COUNTER_TX_RETRANSMITTED, again);
}

void mrc_requester_on_refused(struct mrc_services *services, struct mrc_qp *qp,
                              const struct mrc_packet *packet) {
  struct mrc_requester *req = &qp->req;
  if (packet->_kind == MRC_KIND_PROBE) {
    req->probe.outstanding = false;
    req->probe.wanted = true;
  } else {
    const struct mrc_txslot *slot = mrc_txwin_slot(&req->win, packet->_slot);
    mrc_spray_take_back(qp, slot->plane, slot->bytes + MRC_DATA_OVERHEAD_BYTES);
    mrc_trace(services, MRC_TRACE_REFUSED, qp->qpn, packet->_slot, slot->ev);
    mrc_evset_on_missed(&qp->evset, slot->ev);
    mrc_txwin_on_refused(&req->win, packet->_slot);
    mrc_cc_on_refused(mrc_qp_cc(qp, slot->plane), mrc_qp_inflight_bytes(qp, slot->plane));
    struct mrc_plane *asker = &qp->planes[mrc_qp_window_of(qp, slot->plane)];
    asker->unasked_bytes = asker->cc.cwnd_bytes; /* its SACK request may be lost */
  }
  /* The packet did not leave, so the QP has the next turn. */
  mrc_node_leave(&qp->nodes.ready);
  mrc_list_prepend(&services->ready.ready, &qp->nodes.ready);
}
