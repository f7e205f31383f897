/* SPDX-License-Identifier: Apache-2.0 */
/* The route of a SACK through the requester, and what follows from a loss. The functions stand in
   the order of these stages; helpers stand before the function that walks over them.

   1. A SACK is dropped if it names PSNs that were never sent, or belongs to an earlier QP.
   2. The packet that triggered it gives a round trip; if it answers a reliability probe, the probe
      does. What both waited in the hosts and on the way back is taken off.
   3. The EV that it reflects was marked, or not.
   4. The PSNs that it shows are acknowledged: each tells of its EV and its plane.
   5. Congestion windows grow or shrink, once for each plane.
   6. Holes in its bitmap are lost by order: a packet sent later on the same EV arrived.
      mrc_loss_on_sack walks over stages 1 to 6. NACKs and transport ACKs take parts of this route.
   7. After all input (schedule.c): a packet is lost by time if the plane delivered much later ones,
      and by silence if only other planes did.
   8. A lost packet is queued to be sent again (send.c). Congestion control, its EV or its plane is
      blamed; if the original arrives after all, the blame is taken back.
   9. Planes that are silent or whose port is down are suspended. Probes of endpoint.c bring EVs and
      planes back. */
#include "core/loss.h"

#include "core/send.h"

static void on_spurious(struct mrc_services *services, struct mrc_qp *qp,
                        const struct mrc_txslot *slot, uint32_t psn);

/* ---- 1. is it a SACK of this QP? ---- */

/* An acknowledgement further back than this is stale, however slow the planes: it belongs to an
   earlier QP with the same QPN. The limit exceeds any window, even over the slowest plane. It is a
   small part of all 2^24 PSNs, and the first PSN of a QP is random, so that few acknowledgements of
   an earlier QP fall within it. */
#define STALE_PSNS 65536

/* Whether some PSN up to `last_psn` was never sent, so that an acknowledgement of it is false. */
static bool names_unsent(const struct mrc_txwin *win, uint32_t last_psn) {
  if (win->n_tosend == 0) return false;
  for (uint32_t psn = win->una_psn; mrc_psn_diff(last_psn, psn) >= 0; psn = mrc_psn_add(psn, 1))
    if (mrc_txwin_slot(win, psn)->state == MRC_TX_UNSENT && !mrc_txwin_slot(win, psn)->redundant)
      return true;
  return false;
}

/* ---- 2. a round trip ---- */

uint64_t mrc_loss_patience_ns(const struct mrc_qp *qp, uint64_t now_ns) {
  const struct mrc_rtt *rtt = &qp->req.rtt;
  if (rtt->smooth_ns == 0) return mrc_floor_ns(MRC_PROBE_FIRST_NS, qp->noise_ns);
  const uint64_t floor_ns = mrc_floor_ns(MRC_PROBE_FLOOR_NS, qp->noise_ns);
  return mrc_qp_overdue_ns(qp, rtt, floor_ns, now_ns) + rtt->smooth_ns;
}

/* Round trip of a packet sent at `sent_ns`, without the peer's service time; 0 if the reflected
   timestamp is impossible. The peer shifted the timestamp by its service time. The timestamp serves
   no other purpose, so its 16 bits limit the service time and not the round trip. */
static uint64_t round_trip_ns(const struct mrc_meta *meta, uint16_t reflected, uint64_t sent_ns) {
  const uint16_t service_units = (uint16_t)(reflected - mrc_timestamp(sent_ns));
  const uint64_t service_ns = (uint64_t)service_units << 10;
  const uint64_t whole_ns = meta->arrived_ns > sent_ns ? meta->arrived_ns - sent_ns : 0;
  if (service_units > INT16_MAX || service_ns > whole_ns) return 0;
  return mrc_max_u64(whole_ns - service_ns, 1);
}

/* Takes a round trip measured on this EV. */
static void take_rtt(struct mrc_qp *qp, uint16_t ev, uint64_t rtt_ns, struct mrc_cc_ack *ack) {
  const uint32_t plane = qp->evset.evs[ev].plane;
  mrc_rtt_smooth(&qp->evset.evs[ev].rtt_ns, rtt_ns);
  if (mrc_evset_is_slow(&qp->evset, ev, rtt_ns)) return;
  mrc_rtt_sample(&qp->planes[plane].rtt, rtt_ns);
  mrc_rtt_sample(&qp->req.rtt, rtt_ns);
  ack->rtt_ns = rtt_ns;
  ack->base_rtt_ns = qp->planes[plane].rtt.base_ns;
  ack->smooth_rtt_ns = qp->planes[plane].rtt.smooth_ns;
  ack->plane = plane;
}

/* The triggering packet gives a round trip when it was sent only once; 0: it gives none. */
static uint64_t on_trigger(const struct mrc_services *services, struct mrc_qp *qp,
                           const struct mrc_txslot *slot, const struct mrc_sack *sack,
                           const struct mrc_meta *meta, struct mrc_cc_ack *ack) {
  if (slot->tries != 1) return 0;
  mrc_assert(slot->ev < qp->evset.n);
  /* Of a packet that left twice, the SACK names the EV of the copy that arrived. */
  const uint16_t ev = slot->redundant ? *mrc_evset_find(&qp->evset, sack->ev) : slot->ev;
  if (ev == MRC_EV_NONE) return 0;
  struct mrc_plane *plane = &qp->planes[qp->evset.evs[ev].plane];
  /* A SACK may repeat a trigger that is too old for the range of its timestamp. */
  const bool old = meta->arrived_ns - slot->sent_ns > MRC_TIMESTAMP_MOST_NS;
  if (slot->state != MRC_TX_INFLIGHT && old) return 0;
  const uint64_t rtt_ns = round_trip_ns(meta, sack->tx_timestamp, slot->sent_ns);
  if (rtt_ns == 0) return 0;
  /* The rest is what the packet and its SACK waited in the hosts, on purpose up to the delay of
     SACKs, and beyond that in the sockets of a busy host. The next wait may be twice as long. */
  const uint64_t wait_ns = services->now_ns - slot->sent_ns - rtt_ns;
  const uint64_t busy_ns = wait_ns - mrc_min_u64(wait_ns, services->config.sack_delay_ns);
  const uint64_t most_ns = mrc_floor_ns(MRC_TIMESTAMP_MOST_NS, qp->noise_ns);
  const uint64_t next_ns = mrc_min_u64(2 * busy_ns, most_ns);
  if (next_ns > mrc_guard_ns(&qp->req.host_waits, services->now_ns))
    qp->req.host_waits = (struct mrc_guard){.ns = next_ns, .since_ns = services->now_ns};
  if (slot->state == MRC_TX_LOST) return 0;
  if (slot->redundant) { /* acknowledge() cannot tell which copy arrived */
    mrc_plane_on_delivered(plane, slot->sent_ns, services->now_ns);
    mrc_plane_on_reported(plane, slot->sent_ns);
    mrc_evset_on_delivered(&qp->evset, ev, slot->sent_ns, plane->rack_ns);
  }
  take_rtt(qp, ev, rtt_ns, ack);
  /* How long the SACK waited on the way back, if it has its send time. In a long round trip the
     wait could exceed the range of the timestamps, which would corrupt the shortest way back. */
  if (sack->cc_type == MRC_CC_TYPE_TIMES && rtt_ns <= MRC_TIMESTAMP_MOST_NS)
    ack->reverse_ns = mrc_reverse_queue_ns(&qp->planes[mrc_plane_of(meta->port)].reverse_queue,
                                           sack->sent_timestamp, meta->arrived_ns);
  mrc_plane_on_answer(plane, slot->sent_ns, rtt_ns - mrc_min_u64(ack->reverse_ns, rtt_ns));
  return rtt_ns;
}

/* The answer to a reliability probe counts as an acknowledgement at the send time of the probe. */
static void on_probe_answer(struct mrc_services *services, struct mrc_qp *qp,
                            const struct mrc_sack *sack, const struct mrc_meta *meta,
                            struct mrc_cc_ack *ack, uint64_t now_ns) {
  struct mrc_reliability_probe *probe = &qp->req.probe;
  const uint16_t id = (uint16_t)sack->ack_psn_offset;
  if (!probe->outstanding || probe->id != id) return;
  struct mrc_plane *plane = &qp->planes[probe->plane];
  probe->outstanding = false;
  mrc_plane_on_delivered(plane, probe->sent_ns, now_ns);
  mrc_plane_on_reported(plane, probe->sent_ns);
  mrc_evset_on_delivered(&qp->evset, probe->ev, probe->sent_ns, plane->rack_ns);
  const uint64_t rtt_ns = round_trip_ns(meta, sack->tx_timestamp, probe->sent_ns);
  if (rtt_ns != 0) {
    const uint64_t base_ns = plane->rtt.base_ns;
    take_rtt(qp, probe->ev, rtt_ns, ack);
    /* A probe is small and takes less time than data: against that, data would show a queue. */
    if (base_ns != 0) plane->rtt.base_ns = ack->base_rtt_ns = base_ns;
    mrc_plane_on_answer(plane, probe->sent_ns, rtt_ns);
  }
  mrc_requester_on_progress(&qp->req, now_ns);
  qp->req.probe_wait_ns = mrc_loss_patience_ns(qp, now_ns); /* for a packet that is lost again */
  mrc_trace(services, MRC_TRACE_PROBE_IN, qp->qpn, id, rtt_ns);
}

/* ---- 3. the EV that the SACK reflects ---- */

/* Handles the SACK's report on the EV that it reflects. This EV also names the SACK's plane.
   `trigger`: the packet that triggered the SACK, or 0. */
static void on_ev_feedback(struct mrc_services *services, struct mrc_qp *qp,
                           const struct mrc_txslot *trigger, const struct mrc_sack *sack,
                           struct mrc_cc_ack *ack, uint64_t rtt_ns, uint64_t now_ns) {
  const uint16_t ev = *mrc_evset_find(&qp->evset, sack->ev);
  if (ev == MRC_EV_NONE) return;
  const uint32_t plane = qp->evset.evs[ev].plane;
  if (ack->rtt_ns == 0) ack->plane = plane;
  qp->planes[plane].doubted_ns = 0; /* also a packet that was sent again elsewhere proves it */
  qp->planes[plane].copied_units = 0;
  if (sack->m == MRC_M_ALWAYS_SKIP) {
    mrc_health_distrust_ev(services, qp, ev, MRC_REASON_PEER, now_ns);
    return;
  }
  /* When the packet that triggered the SACK left on this EV; 0: unknown. */
  const bool known =
      trigger != NULL && (trigger->ev == ev || trigger->redundant) && trigger->state != MRC_TX_LOST;
  const uint64_t sent_ns = known ? trigger->sent_ns : 0;
  if (sack->m == MRC_M_NONE)
    mrc_evset_on_clear(&qp->evset, ev, sent_ns, rtt_ns, now_ns);
  else if (mrc_evset_on_skip(&qp->evset, ev, sent_ns, now_ns))
    mrc_health_report_ev(services, qp, ev, MRC_REASON_PEER);
}

/* ---- 4. acknowledged PSNs ---- */

/* The peer received one PSN. Returns the bytes newly acknowledged, and also adds them to
   newly_acked_bytes of their plane. */
static uint32_t acknowledge(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn,
                            uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  const struct mrc_txslot slot = *mrc_txwin_slot(&req->win, psn);
  if (slot.state == MRC_TX_ACKED || (slot.state == MRC_TX_UNSENT && !slot.redundant)) return 0;
  mrc_txwin_on_acked(&req->win, psn);
  struct mrc_plane *plane = &qp->planes[slot.plane];
  /* Whether the original transmission arrived, although the packet was declared lost or sent again:
     the answer came sooner than any answer to a retransmission could. */
  const bool original = !slot.redundant && (slot.state == MRC_TX_LOST ||
                                            (slot.tries >= 2 && slot.ev_lost != MRC_TX_NONE &&
                                             now_ns - slot.sent_ns < plane->rtt.base_ns / 2));
  /* Whether this shows which transmission arrived. If the packet was sent again, an answer within
     the usual round trip may still belong to the original. If it left twice, either may have. */
  const bool evidence = !slot.redundant && !original &&
                        (slot.tries < 2 || now_ns - slot.sent_ns >= plane->rtt.smooth_ns);
  mrc_txwin_slot(&req->win, psn)->of_original = slot.state == MRC_TX_INFLIGHT && !evidence;
  if (original) on_spurious(services, qp, &slot, psn);
  if (evidence) {
    mrc_plane_on_delivered(plane, slot.sent_ns, now_ns);
    mrc_evset_on_delivered(&qp->evset, slot.ev, slot.sent_ns, plane->rack_ns);
  } else {
    mrc_evset_on_missed(&qp->evset, slot.ev); /* ends a trial without a result */
  }
  req->fruitless = 0;
  req->acknowledged_bytes += slot.bytes;
  plane->newly_acked_bytes += slot.bytes;
  req->acked_planes |= 1u << slot.plane;
  return slot.bytes;
}

/* Acknowledges all PSNs up to the cumulative PSN and those in the bitmap. Returns the bytes newly
   acknowledged, and also adds them to newly_acked_bytes of their planes. */
static uint64_t acknowledge_all(struct mrc_services *services, struct mrc_qp *qp, uint32_t cum_psn,
                                uint32_t base, uint64_t bitmap, uint64_t now_ns) {
  struct mrc_txwin *win = &qp->req.win;
  uint64_t bytes = 0;
  while (win->una_psn != win->next_psn && mrc_psn_diff(cum_psn, win->una_psn) >= 0)
    bytes += acknowledge(services, qp, win->una_psn, now_ns);
  for (uint64_t bits = bitmap; bits != 0; bits &= bits - 1) {
    const uint32_t psn = mrc_psn_add(base, (uint32_t)__builtin_ctzll(bits));
    if (mrc_txwin_holds(win, psn)) bytes += acknowledge(services, qp, psn, now_ns);
  }
  return bytes;
}

/* ---- 5. congestion windows ---- */

/* What the planes on one port show: the shortest base RTT, and the longest queue. */
struct beside {
  uint64_t base_ns;
  uint64_t queue_ns;
};

static struct beside beside(const struct mrc_qp *qp, uint32_t planes) {
  struct beside found = {.base_ns = UINT64_MAX};
  MRC_EACH_BIT(plane, planes) {
    const struct mrc_rtt *rtt = &qp->planes[plane].rtt;
    if (rtt->smooth_ns == 0) continue;
    found.base_ns = mrc_min_u64(found.base_ns, rtt->base_ns);
    found.queue_ns = mrc_max_u64(found.queue_ns, rtt->smooth_ns - rtt->base_ns);
  }
  return found;
}

/* The base RTT of a plane that yields, after the round trip `rtt_ns`. When it began, the planes on
   its ports had queues, and its smallest sample contains these. So their base RTT counts, unless
   their queues are too short to explain the difference. Where for some round trips they are too
   short to explain the round trip, the way has become longer: a plane that yields does not drain to
   find that out. */
static uint64_t yielding_base_ns(struct mrc_qp *qp, uint32_t index, uint64_t rtt_ns,
                                 uint64_t now_ns) {
  const struct mrc_ev_plane *ends = &qp->evset.planes[index];
  const uint32_t others = ~(1u << index);
  const struct beside near = beside(qp, mrc_evset_on_ports(&qp->evset, 1u << ends->port) & others);
  const struct beside far =
      beside(qp, mrc_evset_crossing(&qp->evset, 1u << ends->peer_port, true) & others);
  const uint64_t queues_ns = near.queue_ns + far.queue_ns;
  uint64_t *own_ns = &qp->planes[index].rtt.base_ns, *since_ns = &qp->planes[index].longer_ns;
  const bool longer = rtt_ns > *own_ns + queues_ns + 2 * MRC_CC_TARGET_DELAY_NS;
  if (!longer)
    *since_ns = 0;
  else if (*since_ns == 0)
    *since_ns = now_ns;
  else if (now_ns - *since_ns > 8 * rtt_ns)
    *own_ns = rtt_ns - queues_ns;
  const uint64_t base_ns = mrc_min_u64(*own_ns, mrc_max_u64(near.base_ns, far.base_ns));
  return *own_ns - base_ns <= queues_ns + MRC_CC_TARGET_DELAY_NS ? base_ns : *own_ns;
}

/* An acknowledgement was handled. `ack` has its data on one plane; newly_acked_bytes of each plane
   has the bytes that it newly acknowledged. */
static void update_windows(struct mrc_services *services, struct mrc_qp *qp, struct mrc_cc_ack *ack,
                           uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  uint64_t all_bytes = 0;
  MRC_EACH_BIT(index, req->acked_planes) {
    struct mrc_plane *plane = &qp->planes[index];
    mrc_delivery_on_ack(&plane->delivery, plane->newly_acked_bytes, plane->rack_ns, &plane->rtt,
                        now_ns);
    plane->share_acked_bytes += plane->newly_acked_bytes;
    all_bytes += plane->newly_acked_bytes;
  }
  /* The window of the plane with the data, and those of the other planes with bytes. */
  const uint32_t own = 1u << ack->plane;
  const uint32_t live = qp->choice.yielding != 0 ? mrc_qp_planes(services, qp, false) : 0;
  const uint8_t coupled = (uint8_t)__builtin_popcount(live);
  uint64_t drain_ns = 0; /* the round trip of a plane that drains, and shares links with others */
  MRC_EACH_BIT(index, req->one_window ? own : own | req->acked_planes) {
    struct mrc_plane *plane = &qp->planes[index];
    struct mrc_cc_ack other = {.plane = index}, *its = index == ack->plane ? ack : &other;
    its->coupled = coupled;
    if ((qp->choice.yielding >> index & 1) != 0 && its->rtt_ns != 0)
      its->base_rtt_ns = yielding_base_ns(qp, index, its->rtt_ns, now_ns);
    its->bytes = req->one_window ? all_bytes : plane->newly_acked_bytes;
    its->inflight_bytes = mrc_qp_inflight_bytes(qp, index) + its->bytes;
    struct mrc_cc *cc = mrc_qp_cc(qp, index);
    const bool drained = mrc_cc_begins_drain(cc);
    const uint64_t base_ns = mrc_cc_on_ack(cc, its, now_ns);
    if (qp->choice.yielding != 0 && mrc_cc_begins_drain(cc) && !drained)
      drain_ns = plane->rtt.smooth_ns;
    if (base_ns != 0) /* the path has become longer: the old smallest sample is out of date */
      plane->rtt.base_ns = mrc_min_u64(base_ns, mrc_max_u64(plane->rtt.last_ns, 1));
  }
  MRC_EACH_BIT(index, drain_ns != 0 ? qp->evset.plane_mask : 0)
    mrc_cc_drain(&qp->planes[index].cc, drain_ns, now_ns);
  MRC_EACH_BIT(index, req->acked_planes)
    qp->planes[index].newly_acked_bytes = 0;
  req->acked_planes = 0;
  if (all_bytes > 0) mrc_share_on_acked(services, qp, all_bytes, now_ns);
}

/* ---- 6. holes: loss by order ---- */

/* Notes the newest packet of each EV among the packets that this SACK shows as received. If the
   original of a packet arrived, that says nothing about the EV of its retransmission. */
static void note_order(struct mrc_order *order, const struct mrc_txwin *win, uint32_t base,
                       uint64_t bitmap) {
  order->serial++;
  for (uint64_t bits = bitmap; bits != 0; bits &= bits - 1) {
    const uint32_t psn = mrc_psn_add(base, (uint32_t)__builtin_ctzll(bits));
    if (!mrc_txwin_holds(win, psn)) continue;
    const struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
    if (slot->state != MRC_TX_ACKED || slot->of_original) continue;
    struct mrc_newest *newest = &order->newest[slot->ev];
    if (newest->serial == order->serial && !mrc_txslot_after(slot, &win->slots[newest->slot]))
      continue;
    *newest = (struct mrc_newest){.serial = order->serial, .slot = (uint16_t)(slot - win->slots)};
  }
}

/* Paths are FIFO: a packet is lost if a packet sent later on the same EV arrived. The guard is for
   hosts whose receive side has reordered packets. */
static bool lost_by_order(const struct mrc_services *services, const struct mrc_qp *qp,
                          const struct mrc_txslot *slot, uint64_t now_ns) {
  const struct mrc_order *order = &services->arena.scratch->order;
  const struct mrc_newest *newest = &order->newest[slot->ev];
  if (newest->serial != order->serial) return false;
  if (!mrc_txslot_after(&qp->req.win.slots[newest->slot], slot)) return false;
  const struct mrc_plane *plane = &qp->planes[slot->plane];
  const uint64_t guard_ns = mrc_guard_ns(&plane->reorder, now_ns);
  return guard_ns == 0 || now_ns >= slot->sent_ns + plane->rtt.smooth_ns + guard_ns;
}

/* Checks the holes that a SACK shows. The evidence must be in the same SACK, because SACKs travel
   on several planes and an older SACK may arrive after a newer one. */
static void find_holes(struct mrc_services *services, struct mrc_qp *qp, uint32_t base,
                       uint64_t bitmap, uint64_t now_ns) {
  if (bitmap == 0) return;
  const struct mrc_txwin *win = &qp->req.win;
  const uint32_t top = 63 - (uint32_t)__builtin_clzll(bitmap);
  uint64_t holes = ~bitmap & ((1ull << top) - 1);
  if (holes == 0) return;
  note_order(&services->arena.scratch->order, win, base, bitmap);
  for (; holes != 0; holes &= holes - 1) {
    const uint32_t psn = mrc_psn_add(base, (uint32_t)__builtin_ctzll(holes));
    if (!mrc_txwin_holds(win, psn)) continue;
    const struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
    if (slot->state == MRC_TX_INFLIGHT && lost_by_order(services, qp, slot, now_ns))
      mrc_loss_declare(services, qp, psn, MRC_COUNTER_LOST_BY_ORDER, now_ns);
  }
}

int mrc_loss_on_sack(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                     const struct mrc_meta *meta, uint64_t now_ns) {
  const struct mrc_sack *sack = &wire->sack;
  struct mrc_requester *req = &qp->req;
  const uint32_t base = (sack->cum_psn + (uint32_t)(int32_t)sack->sack_offset) & MRC_PSN_MASK;
  const uint32_t top = sack->bitmap == 0
                           ? sack->cum_psn
                           : mrc_psn_add(base, 63 - (uint32_t)__builtin_clzll(sack->bitmap));
  if (mrc_psn_diff(sack->cum_psn, req->win.next_psn) >= 0 ||
      mrc_psn_diff(top, req->win.next_psn) >= 0 || names_unsent(&req->win, sack->cum_psn))
    return mrc_drop(services, MRC_DROP_ACK_UNSENT, qp->qpn, 0);
  if (mrc_psn_sub(req->win.next_psn, mrc_psn_add(sack->cum_psn, 1)) > STALE_PSNS)
    return mrc_drop(services, MRC_DROP_STALE, qp->qpn, 0);
  mrc_count(services, MRC_COUNTER_RX_SACKS, 1);
  mrc_trace(services, MRC_TRACE_SACK_IN, qp->qpn, sack->cum_psn, sack->bitmap);
  struct mrc_cc_ack ack = {.plane = (uint32_t)__builtin_ctz(qp->evset.plane_mask),
                           .ce = sack->m == MRC_M_SKIP_ONCE,
                           .restore_window = sack->restore_cwnd,
                           .penalty = sack->rcv_cwnd_pen};
  /* The packet that triggered the SACK, or 0. Another SACK may have acknowledged the packet
     already: its slot remains valid until the ring of slots reuses it. */
  const uint32_t psn = (sack->cum_psn + (uint32_t)(int32_t)sack->ack_psn_offset) & MRC_PSN_MASK;
  const uint32_t ago = mrc_psn_sub(req->win.next_psn, psn);
  const bool remembered = !sack->pr && ago > 0 && ago <= req->win.mask + 1 - req->win.fresh;
  const struct mrc_txslot *trigger = remembered ? mrc_txwin_slot(&req->win, psn) : NULL;
  uint64_t rtt_ns = 0;
  if (sack->pr)
    on_probe_answer(services, qp, sack, meta, &ack, now_ns);
  else if (trigger != NULL)
    rtt_ns = on_trigger(services, qp, trigger, sack, meta, &ack);
  on_ev_feedback(services, qp, trigger, sack, &ack, rtt_ns, now_ns);
  const uint64_t bytes = acknowledge_all(services, qp, sack->cum_psn, base, sack->bitmap, now_ns);
  /* The SACK reports all that the plane of its trigger delivered until then, and of other planes
     what its bitmap happens to show. So packets that left before the trigger on its plane are late.
   */
  if (trigger != NULL && trigger->state == MRC_TX_ACKED && !trigger->of_original)
    mrc_plane_on_reported(&qp->planes[trigger->plane], trigger->sent_ns);
  const uint32_t peer_next_psn = mrc_psn_add(sack->cum_psn, 1);
  if (mrc_psn_diff(req->peer_next_psn, peer_next_psn) < 0) req->peer_next_psn = peer_next_psn;
  /* A narrower window of the peer only delays new packets. A SACK that was overtaken by a newer one
     on another plane is ignored here: its MPR is out of date. */
  const uint32_t mpr = mrc_min_u32((uint32_t)sack->mpr * MRC_MPR_UNIT, qp->attr.rts.peer_mpr);
  if (qp->attr.rtr.dynamic_mpr != 0 && sack->mpr != 0 && mpr != req->peer_mpr &&
      mrc_psn_diff(peer_next_psn, req->peer_next_psn) >= 0) {
    mrc_trace(services, MRC_TRACE_PEER_MPR, qp->qpn, req->peer_mpr, mpr);
    req->peer_mpr = mpr;
  }
  if (bytes > 0) {
    mrc_requester_on_progress(req, now_ns);
    req->probe_wait_ns = mrc_loss_patience_ns(qp, now_ns);
  }
  update_windows(services, qp, &ack, now_ns);
  if (now_ns - qp->choice.quick.compared_ns >= qp->noise_ns / 4)
    mrc_quick_compare(services, qp, now_ns);
  find_holes(services, qp, base, sack->bitmap, now_ns);
  mrc_qp_touch(services, qp); /* checks loss by time after all received packets */
  return MRC_DROP_NONE;
}

/* ---- NACKs and transport ACKs ---- */

/* The peer has refused a packet for lack of room, which is marked as lost. The refusal counts as a
   retry, like a local timeout. May fail the QP. */
static void on_refusal(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn) {
  struct mrc_requester *req = &qp->req;
  /* The peer may refuse the whole window in one round trip: only the first packet counts. */
  if (req->refused && req->refused_psn != psn) return;
  req->refused = true;
  req->refused_psn = psn;
  req->timeouts++;
  if (mrc_qp_has_no_retry_left(qp))
    mrc_qp_fail(services, qp, MRC_WC_RETRY_EXC_ERR, MRC_WC_RETRY_EXC_ERR);
}

int mrc_loss_on_nack(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                     uint64_t now_ns) {
  const struct mrc_nack *nack = &wire->nack;
  struct mrc_txwin *win = &qp->req.win;
  if (!mrc_txwin_holds(win, nack->nack_psn)) return mrc_drop(services, MRC_DROP_STALE, qp->qpn, 0);
  struct mrc_txslot *slot = mrc_txwin_slot(win, nack->nack_psn);
  if (slot->state != MRC_TX_INFLIGHT || qp->evset.evs[slot->ev].value != nack->ev)
    return mrc_drop(services, MRC_DROP_STALE, qp->qpn, 0);
  mrc_count(services, MRC_COUNTER_RX_NACKS, 1);
  mrc_trace(services, MRC_TRACE_NACK_IN, qp->qpn, nack->nack_psn, nack->reason);
  /* The NACK proves that the path is alive. */
  mrc_evset_on_delivered(&qp->evset, slot->ev, 0, qp->planes[slot->plane].rack_ns);
  if (nack->reason == MRC_NACK_UNEXP_EVENT) {
    mrc_qp_fail(services, qp, MRC_WC_REM_OP_ERR, MRC_WC_REM_OP_ERR);
    return MRC_DROP_NONE;
  }
  const bool trimmed = nack->reason == MRC_NACK_TRIMMED || nack->reason == MRC_NACK_TRIMMED_LASTHOP;
  const uint32_t bytes = slot->bytes, plane = slot->plane;
  if (nack->reason == MRC_NACK_TRIMMED &&
      mrc_evset_on_skip(&qp->evset, slot->ev, slot->sent_ns, now_ns))
    mrc_health_report_ev(services, qp, slot->ev, MRC_REASON_PEER);
  mrc_loss_declare(services, qp, nack->nack_psn, MRC_COUNTER_LOST_BY_NACK, now_ns);
  if (trimmed) {
    const struct mrc_cc_loss loss = {.cause = MRC_CC_LOSS_TRIMMED,
                                     .bytes = bytes,
                                     .inflight_bytes = mrc_qp_inflight_bytes(qp, plane)};
    mrc_cc_on_loss(mrc_qp_cc(qp, plane), &loss, now_ns);
  } else {
    on_refusal(services, qp, nack->nack_psn);
  }
  mrc_qp_touch(services, qp);
  return MRC_DROP_NONE;
}

static uint8_t status_of(uint8_t syndrome) {
  switch (syndrome) {
    case MRC_SYNDROME_NAK_INV_REQ:
      return MRC_WC_REM_INV_REQ_ERR;
    case MRC_SYNDROME_NAK_REM_ACCESS:
      return MRC_WC_REM_ACCESS_ERR;
    default:
      return MRC_WC_REM_OP_ERR;
  }
}

int mrc_loss_on_ack(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_wire *wire,
                    uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  const struct mrc_txwin *win = &req->win;
  const uint32_t done = (wire->aeth.msn - req->acked_msn) & 0xFFFFFF;
  if (done >= 1u << 23 || mrc_psn_sub(win->next_psn, mrc_psn_add(wire->psn, 1)) > STALE_PSNS)
    return mrc_drop(services, MRC_DROP_STALE, qp->qpn, 0);
  const bool nak = wire->aeth.syndrome != MRC_SYNDROME_ACK;
  /* The request that failed is outstanding, or stands just before the oldest outstanding PSN. */
  const uint32_t failed = mrc_psn_sub(mrc_psn_add(wire->psn, 1), win->una_psn);
  if (nak && failed > mrc_txwin_outstanding(win))
    return mrc_drop(services, MRC_DROP_STALE, qp->qpn, 0);
  if (done > req->sq_send - req->sq_head)
    return mrc_drop(services, MRC_DROP_ACK_UNSENT, qp->qpn, 0);
  if (done > 0) {
    const struct mrc_wqe *newest = &req->sq[(req->sq_head + done - 1) & req->sq_mask];
    const uint32_t last_psn =
        mrc_psn_add(newest->first_psn, mrc_parts(newest->bytes, newest->part_words * 4u) - 1);
    /* If SACKs arrived and ACKs were lost, the message may be so old that its PSNs look new. */
    if (mrc_txwin_holds(win, last_psn)) {
      if (names_unsent(win, last_psn)) return mrc_drop(services, MRC_DROP_ACK_UNSENT, qp->qpn, 0);
      /* Completed messages have arrived whole, even if their SACKs were lost. */
      struct mrc_cc_ack ack = {.plane = (uint32_t)__builtin_ctz(qp->evset.plane_mask)};
      if (acknowledge_all(services, qp, last_psn, 0, 0, now_ns) > 0)
        update_windows(services, qp, &ack, now_ns);
      if (mrc_psn_diff(req->peer_next_psn, mrc_psn_add(last_psn, 1)) < 0)
        req->peer_next_psn = mrc_psn_add(last_psn, 1);
    }
  }
  mrc_count(services, MRC_COUNTER_RX_ACKS, 1);
  mrc_trace(services, MRC_TRACE_ACK_IN, qp->qpn, wire->aeth.syndrome, wire->aeth.msn);
  for (uint32_t i = 0; i < done; i++)
    mrc_requester_complete(services, req, qp->qpn, MRC_WC_SUCCESS);
  req->acked_msn = wire->aeth.msn & 0xFFFFFF;
  if (done > 0) mrc_requester_on_progress(req, now_ns);
  if (nak) {
    const uint8_t status = status_of(wire->aeth.syndrome);
    mrc_qp_fail(services, qp, status, status);
  }
  mrc_qp_touch(services, qp);
  return MRC_DROP_NONE;
}

/* ---- 7. after all input: loss by time and by silence ---- */

#define SLOW_TIMES 2   /* times the longer round trip of a slow path, until its silence tells */
#define DOUBT_ROUNDS 2 /* times an overdue answer, until a plane that owes answers is silent */

/* Loss by time compares send times with send times, never with the clock: a stalled host delays
   every answer although nothing is lost. A packet is missing only if packets that were sent much
   later have arrived. */

/* The oldest packet in flight on the plane that is lost by time, or late on an EV that can still be
   avoided; 0 if there is none. It is lost if a packet sent later by the spread on the same EV
   arrived. It is also lost if the EV delivers nothing, while the plane delivers packets sent later
   by the spread and the slack. Else its path may only be slow. */
static const struct mrc_txslot *find_missing(const struct mrc_qp *qp, uint32_t index, bool *lost,
                                             uint64_t now_ns) {
  const struct mrc_txwin *win = &qp->req.win;
  const struct mrc_plane *plane = &qp->planes[index];
  /* The send time up to which the peer has told what this plane delivered. What another plane's
     SACK shows of this plane counts later, when an own SACK would be overdue: until then the report
     on the packets before it may still be on its way. Own SACKs are missing when their path is
     dead. */
  const uint64_t overdue_ns = mrc_qp_overdue_ns(qp, &plane->rtt, 2ull * qp->noise_ns, now_ns);
  const uint64_t told_ns =
      mrc_max_u64(plane->reported_ns, plane->rack_ns - mrc_min_u64(plane->rack_ns, overdue_ns));
  /* By how much the delays of the paths of one plane may differ. */
  const uint64_t usual_ns = plane->rtt.smooth_ns;
  const uint64_t floor_ns = mrc_floor_ns(MRC_LOSS_REORDER_FLOOR_NS, qp->noise_ns);
  const uint64_t spread_ns =
      mrc_max_u64(mrc_max_u64(floor_ns, usual_ns / 2), 2 * plane->rtt.var_ns) +
      mrc_guard_ns(&plane->spread, now_ns) + mrc_guard_ns(&plane->reorder, now_ns);
  for (uint16_t at = win->lists[index].oldest; at != MRC_TX_NONE; at = win->slots[at].newer) {
    const struct mrc_txslot *slot = &win->slots[at];
    if (told_ns <= slot->sent_ns + spread_ns) return NULL; /* told of no packet sent much later */
    /* By how much more than the spread an EV that delivers nothing may be late. A path with a
       longer round trip than its plane has a queue, which may grow. NSCC requires switches that
       trim: they may hold a packet in a queue for any time. */
    const uint64_t rtt_ns = qp->evset.evs[slot->ev].rtt_ns;
    const uint64_t slack_ns = qp->evset.by_delay
                                  ? SLOW_TIMES * (rtt_ns - mrc_min_u64(rtt_ns, usual_ns))
                                  : usual_ns + rtt_ns;
    const struct mrc_ev_rack *rack = &qp->evset.racks[slot->ev];
    const uint64_t heard_ns = mrc_max_u64(slot->sent_ns, rack->heard_ns);
    *lost =
        rack->newest_ns > slot->sent_ns + spread_ns || told_ns > heard_ns + spread_ns + slack_ns;
    const uint64_t late_ns = told_ns - slot->sent_ns;
    if (*lost || mrc_evset_can_avoid(&qp->evset, slot->ev, slot->sent_ns, late_ns)) return slot;
  }
  return NULL;
}

/* How much later another plane must have sent a packet that arrived, to prove this plane silent. */
static uint64_t silence_ns(const struct mrc_qp *qp, const struct mrc_plane *plane,
                           uint64_t now_ns) {
  const bool known = plane->rtt.smooth_ns != 0;
  const uint64_t overdue_ns = mrc_qp_overdue_ns(qp, known ? &plane->rtt : &qp->req.rtt, 0, now_ns);
  const uint64_t floor_ns = mrc_floor_ns(MRC_LOSS_SILENCE_FLOOR_NS, qp->noise_ns);
  uint64_t patience_ns = mrc_max_u64(floor_ns, overdue_ns) + mrc_guard_ns(&plane->reorder, now_ns);
  if (!known) /* it may be much longer than the others, but not longer than the local timeout */
    patience_ns = mrc_max_u64(patience_ns, mrc_min_u64(MRC_LOSS_SKEW * overdue_ns,
                                                       (1024ull << qp->attr.rts.timeout) / 4));
  return patience_ns;
}

uint64_t mrc_loss_silent_ns(const struct mrc_qp *qp, const struct mrc_txslot *oldest,
                            uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[oldest->plane];
  const uint64_t since_ns = mrc_max_u64(oldest->sent_ns, plane->rack_ns);
  return mrc_max_u64(since_ns, plane->heard_ns) + silence_ns(qp, plane, now_ns) + 1;
}

/* Whether the plane delivered nothing, while another plane delivered packets that were sent much
   later. A plane that keeps delivering is slow, not silent. */
static bool lost_by_silence(const struct mrc_qp *qp, uint32_t index,
                            const struct mrc_txslot *oldest, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[index];
  const uint64_t since_ns = mrc_max_u64(oldest->sent_ns, plane->rack_ns);
  const uint64_t patience_ns = silence_ns(qp, plane, now_ns);
  MRC_EACH_BIT(at, qp->evset.plane_mask & ~(1u << index)) {
    const struct mrc_plane *other = &qp->planes[at];
    const bool later = other->rack_ns > since_ns + patience_ns;
    if (later && other->heard_ns > plane->heard_ns + patience_ns) return true;
  }
  return false;
}

/* Declares the burst lost that begins with this packet in flight. */
static void lose_burst(struct mrc_services *services, struct mrc_qp *qp,
                       const struct mrc_txslot *first, enum mrc_counter why, uint64_t now_ns) {
  const struct mrc_txwin *win = &qp->req.win;
  const uint16_t ev = first->ev;
  const uint64_t sent_ns = first->sent_ns;
  for (uint16_t at = (uint16_t)(first - win->slots), next;
       at != MRC_TX_NONE && win->slots[at].ev == ev && win->slots[at].sent_ns == sent_ns;
       at = next) {
    next = win->slots[at].newer;
    mrc_loss_declare(services, qp, mrc_txwin_psn_of(win, at), why, now_ns);
  }
}

/* Whether a plane has delivered nothing since `since_ns` (0: not in doubt) for this time, while
   other planes delivered. */
static bool stays_silent(const struct mrc_qp *qp, uint32_t index, uint64_t since_ns,
                         uint64_t patience_ns) {
  if (since_ns == 0 || qp->planes[index].suspended) return false;
  MRC_EACH_BIT(other, qp->evset.plane_mask & ~(1u << index))
    if (qp->planes[other].heard_ns > since_ns + patience_ns) return true;
  return false;
}

/* Suspends a plane that has delivered nothing since its packets were sent again elsewhere, for
   DOUBT_ROUNDS times an overdue answer. The same for packets that left twice, of which any one may
   be lost, several times in a row. */
static void detect_silence(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                           uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  if (plane->doubted_ns == 0 && plane->copied_units == 0) return;
  const uint64_t floor_ns = mrc_floor_ns(MRC_LOSS_SILENCE_FLOOR_NS, qp->noise_ns);
  const uint64_t patience_ns = DOUBT_ROUNDS * mrc_qp_overdue_ns(qp, &plane->rtt, floor_ns, now_ns);
  bool silent = stays_silent(qp, index, plane->doubted_ns, patience_ns);
  const uint64_t longer_ns = mrc_max_u64(patience_ns, silence_ns(qp, plane, now_ns));
  if (stays_silent(qp, index, mrc_plane_copied_ns(plane, now_ns), longer_ns)) {
    plane->copied_units = 0;
    silent |= ++plane->strikes >= MRC_LOSS_STRIKES;
  }
  if (silent) mrc_health_suspend_plane(services, qp, index, MRC_REASON_SILENCE, now_ns);
}

static void detect_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                         uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  const struct mrc_txwin *win = &qp->req.win;
  const struct mrc_txlist *list = &win->lists[index];
  detect_silence(services, qp, index, now_ns);
  while (list->oldest != MRC_TX_NONE) {
    const struct mrc_txslot *oldest = &win->slots[list->oldest];
    bool lost;
    const struct mrc_txslot *missing = find_missing(qp, index, &lost, now_ns);
    if (missing != NULL && lost) {
      lose_burst(services, qp, missing, MRC_COUNTER_LOST_BY_TIME, now_ns);
    } else if (missing != NULL) {
      if (mrc_evset_on_late(&qp->evset, missing->ev, now_ns))
        mrc_health_report_ev(services, qp, missing->ev, MRC_REASON_LOSS);
    } else if (lost_by_silence(qp, index, oldest, now_ns)) {
      lose_burst(services, qp, oldest, MRC_COUNTER_LOST_BY_SILENCE, now_ns);
      if (++plane->strikes >= MRC_LOSS_STRIKES)
        mrc_health_suspend_plane(services, qp, index, MRC_REASON_SILENCE, now_ns);
    } else {
      return;
    }
  }
}

void mrc_loss_on_time(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  MRC_EACH_BIT(plane, qp->evset.plane_mask)
    detect_plane(services, qp, plane, now_ns);
}

bool mrc_loss_is_due(const struct mrc_qp *qp, uint64_t now_ns) {
  const struct mrc_txwin *win = &qp->req.win;
  bool lost;
  MRC_EACH_BIT(plane, qp->evset.plane_mask) {
    if (win->lists[plane].oldest == MRC_TX_NONE) continue;
    const struct mrc_txslot *oldest = &win->slots[win->lists[plane].oldest];
    if (find_missing(qp, plane, &lost, now_ns) != NULL ||
        lost_by_silence(qp, plane, oldest, now_ns))
      return true;
  }
  return false;
}

/* ---- 8. a lost packet ---- */

/* The network lost the packet. Reports the loss to congestion control. Then the EV becomes
   ASSUMED_BAD; or, if the loss counts as congestion, it sits out a turn. */
static void blame(struct mrc_services *services, struct mrc_qp *qp, const struct mrc_txslot *slot,
                  enum mrc_counter why, uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[slot->plane];
  /* MRC's switches trim, so a packet lost without a trim means a failed path there. Ordinary queues
     overflow, so a loss while the plane's delay is high counts as overflow. */
  const struct mrc_rtt *rtt = &plane->rtt;
  const uint64_t delay_ns = rtt->smooth_ns != 0 ? rtt->last_ns - rtt->base_ns : 0;
  struct mrc_cc *cc = mrc_qp_cc(qp, slot->plane);
  const bool overflow = !plane->suspended && mrc_cc_is_congestion(cc, delay_ns);
  const struct mrc_cc_loss loss = {.cause = overflow ? MRC_CC_LOSS_OVERFLOW : MRC_CC_LOSS_PATH,
                                   .bytes = slot->bytes,
                                   .inflight_bytes = mrc_qp_inflight_bytes(qp, slot->plane)};
  mrc_cc_on_loss(cc, &loss, now_ns);
  if (plane->suspended) return; /* the plane is to blame, not this EV */
  if (overflow) {
    mrc_count(services, MRC_COUNTER_LOST_TO_CONGESTION, 1);
    if (mrc_evset_on_skip(&qp->evset, slot->ev, slot->sent_ns, now_ns))
      mrc_health_report_ev(services, qp, slot->ev, MRC_REASON_LOSS);
    return;
  }
  if (why != MRC_COUNTER_LOST_BY_SILENCE)
    mrc_delivery_on_lost(&plane->delivery, slot->sent_ns, &plane->rtt);
  mrc_health_distrust_ev(services, qp, slot->ev, MRC_REASON_LOSS, now_ns);
}

void mrc_loss_declare(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn,
                      enum mrc_counter why, uint64_t now_ns) {
  struct mrc_txslot *slot = mrc_txwin_slot(&qp->req.win, psn);
  mrc_txwin_on_lost(&qp->req.win, psn);
  mrc_evset_on_missed(&qp->evset, slot->ev);
  slot->by_timeout = why == MRC_COUNTER_LOST_BY_TIMEOUT;
  slot->by_time = why == MRC_COUNTER_LOST_BY_TIME;
  slot->reinjected = false;
  qp->planes[slot->plane].lost++;
  qp->evset.evs[slot->ev].lost++;
  mrc_count(services, why, 1);
  mrc_trace(services, MRC_TRACE_LOST, qp->qpn, psn, why);
  if (why != MRC_COUNTER_LOST_BY_TIMEOUT && why != MRC_COUNTER_LOST_BY_NACK)
    blame(services, qp, slot, why, now_ns);
}

/* A packet was declared lost, but its original arrived. */
static void on_spurious(struct mrc_services *services, struct mrc_qp *qp,
                        const struct mrc_txslot *slot, uint32_t psn) {
  mrc_assert(slot->ev_lost != MRC_TX_NONE);
  qp->req.spurious_packets++;
  mrc_count(services, MRC_COUNTER_SPURIOUS, 1);
  mrc_trace(services, MRC_TRACE_SPURIOUS, qp->qpn, psn, slot->ev_lost);
  if (slot->reinjected) return; /* neither an EV nor a plane was blamed */
  if (slot->by_timeout) {
    /* The peer answered late; the network has not changed. */
    MRC_EACH_BIT(plane, qp->evset.plane_mask)
      mrc_cc_on_spurious_timeout(&qp->planes[plane].cc);
    return;
  }
  struct mrc_plane *plane = &qp->planes[qp->evset.evs[slot->ev_lost].plane];
  const uint64_t least_ns = mrc_floor_ns(MRC_LOSS_REORDER_FLOOR_NS / 4, qp->noise_ns);
  mrc_delivery_on_spurious(&plane->delivery);
  /* The guard doubles, within limits. */
  struct mrc_guard *guard = slot->by_time ? &plane->spread : &plane->reorder;
  const uint64_t wider_ns = mrc_max_u64(2 * mrc_guard_ns(guard, services->now_ns), least_ns);
  *guard = (struct mrc_guard){.ns = mrc_min_u64(wider_ns, 4 * mrc_max_u64(plane->rtt.smooth_ns, 1)),
                              .since_ns = services->now_ns};
  mrc_health_trust_ev(services, qp, slot->ev_lost, MRC_REASON_SPURIOUS);
}

/* ---- 9. EVs and planes ---- */

void mrc_health_report_ev(struct mrc_services *services, const struct mrc_qp *qp, uint16_t index,
                          enum mrc_event_reason reason) {
  const struct mrc_ev *ev = &qp->evset.evs[index];
  mrc_trace(services, MRC_TRACE_EV_STATE, qp->qpn, index, ev->state);
  if (ev->state == MRC_EV_SKIP) return; /* events report only GOOD, ASSUMED_BAD and DENIED */
  const struct mrc_event event = {.type = MRC_EVENT_EV_STATE,
                                  .qpn = qp->qpn,
                                  .ev_index = index,
                                  .port = mrc_port_of(ev->plane),
                                  .status = ev->state,
                                  .reason = reason};
  mrc_event_push(services, &event);
}

void mrc_health_report_plane(struct mrc_services *services, const struct mrc_qp *qp, uint32_t plane,
                             enum mrc_event_type type, bool alive, enum mrc_event_reason reason) {
  if ((qp->evset.unproven >> plane & 1) != 0) return; /* it has not joined */
  const struct mrc_event event = {
      .type = type, .qpn = qp->qpn, .port = mrc_port_of(plane), .status = alive, .reason = reason};
  mrc_event_push(services, &event);
}

void mrc_health_distrust_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                            enum mrc_event_reason reason, uint64_t now_ns) {
  uint16_t back;
  if (!mrc_evset_on_loss(&qp->evset, ev, &back, now_ns)) return;
  mrc_count(services, MRC_COUNTER_EVS_BAD, 1);
  mrc_health_report_ev(services, qp, ev, reason);
  if (back != MRC_EV_NONE) mrc_health_report_ev(services, qp, back, MRC_REASON_FLOOR);
  qp->ev_probe_ns = mrc_min_u64(qp->ev_probe_ns, qp->evset.evs[ev].probation.next_ns);
}

void mrc_health_trust_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                         enum mrc_event_reason reason) {
  if (qp->evset.evs[ev].state != MRC_EV_ASSUMED_BAD) return;
  if (mrc_evset_on_trust(&qp->evset, ev)) mrc_health_report_ev(services, qp, ev, reason);
}

void mrc_health_suspend_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                              enum mrc_event_reason reason, uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  struct mrc_txlist *list = &qp->req.win.lists[index];
  if (plane->suspended) return;
  plane->suspended = true;        /* from now on it sends only probes */
  plane->probed_ev = MRC_EV_NONE; /* the rotation comes first */
  mrc_probation_on_failure(&plane->probation, qp->noise_ns, now_ns);
  mrc_share_forget(qp, index);
  mrc_count(services, MRC_COUNTER_PLANES_SUSPENDED, 1);
  mrc_trace(services, MRC_TRACE_PLANE_SUSPEND, qp->qpn, mrc_port_of(index), list->bytes);
  while (list->oldest != MRC_TX_NONE)
    mrc_loss_declare(services, qp, mrc_txwin_psn_of(&qp->req.win, list->oldest),
                     MRC_COUNTER_LOST_BY_SILENCE, now_ns);
  /* Trust the EVs again that turned bad after the plane was last heard: the plane is now on
     probation instead. What they delivered before proves nothing: when the plane resumes, some of
     them may still be dead, and one burst of each is enough to tell. */
  for (uint16_t i = 0; i < qp->evset.planes[index].n; i++) {
    const uint16_t ev = qp->evset.planes[index].order[i];
    qp->evset.evs[ev].proven = false;
    if (qp->evset.evs[ev].bad_since_ns >= plane->heard_ns)
      mrc_health_trust_ev(services, qp, ev, MRC_REASON_PLANE);
  }
  qp->ev_probe_ns = mrc_min_u64(qp->ev_probe_ns, plane->probation.next_ns);
  mrc_health_report_plane(services, qp, index, MRC_EVENT_PLANE, false, reason);
}

void mrc_health_on_peer_port_down(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                                  uint64_t now_ns) {
  mrc_health_suspend_plane(services, qp, index, MRC_REASON_PEER_PORT, now_ns);
  struct mrc_probation *probation = &qp->planes[index].probation;
  probation->successes = 0;
  probation->doublings =
      MRC_PROBATION_MAX_DOUBLINGS; /* the longest spacing, until one is answered */
  mrc_probation_wait(probation, qp->noise_ns, now_ns);
}

void mrc_health_retry_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                            uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  if (plane->suspended) mrc_probation_on_mend(&plane->probation, now_ns);
  qp->ev_probe_ns = 0;
  mrc_qp_touch(services, qp);
}

void mrc_health_resume_plane(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                             enum mrc_event_reason reason) {
  struct mrc_plane *plane = &qp->planes[index];
  if (!plane->suspended) return;
  if (plane->peer_down || (services->ports.up >> qp->evset.planes[index].port & 1) == 0)
    return; /* not before both ports are up */
  plane->suspended = false;
  plane->strikes = 0;
  plane->doubted_ns = 0; /* answered probes have settled it */
  plane->copied_units = 0;
  plane->probation.next_ns = MRC_NEVER;
  mrc_share_forget(qp, index);
  mrc_count(services, MRC_COUNTER_PLANES_RESUMED, 1);
  mrc_trace(services, MRC_TRACE_PLANE_RESUME, qp->qpn, mrc_port_of(index),
            plane->probation.relapses);
  mrc_health_report_plane(services, qp, index, MRC_EVENT_PLANE, true, reason);
  mrc_qp_touch(services, qp);
}
