/* SPDX-License-Identifier: Apache-2.0 */
/* The route of a message out of the engine, in packets and bursts. The functions stand in the order
   of these stages; helpers stand before the function that uses them.

   1. schedule.c gives a QP its turn: mrc_requester_transmit adds some bursts.
   2. The next packet: one that was lost (loss.c) or refused comes first, else the next part of the
      oldest work request that the PSN windows allow.
   3. Its plane: the quick planes with room in their congestion windows (cc.c) in turn, or equal
      shares.
   4. Its EV: the next one of the plane's rotation (paths.c), and not the one that lost the packet.
   5. The size of the burst: a part of the plane's window.
   6. Each packet gets a PSN and a place in the send window (windows.c), and perhaps asks for a
   SACK.
   7. It is encoded (wire.c), padded, and gets its ICRC (crc.c) or is sealed (seal.c). Answers and
      probes of other files are built by the same functions.
   8. schedule.c reports what the kernel took. A refused packet keeps its PSN and is the next one.
   If no SACK shows a packet, schedule.c and loss.c send it through stage 2 again. */
#include "core/send.h"

#include <endian.h>
#include <string.h>

#include "core/crc.h"

/* ---- 2. the next packet ---- */

/* The next packet to send; retransmissions come first. A new packet gets its PSN only when it is
   certain to leave. */
struct candidate {
  struct mrc_wire wire;
  uint8_t dscp;    /* of its traffic class */
  uint16_t avoid;  /* EV that lost it, or MRC_EV_NONE */
  bool by_timeout; /* and no acknowledgment has shown that loss */
  bool fresh;      /* has no PSN yet */
  bool redundant;  /* leaves twice */
};

/* False if no packet may leave now. Writes each field in place: building a packet and copying it
   would cost more than all the computation. */
static bool next_candidate(const struct mrc_services *services, const struct mrc_qp *qp,
                           struct candidate *next) {
  const struct mrc_requester *req = &qp->req;
  const struct mrc_dscps *dscps = &services->config.dscps;
  struct mrc_wire *wire = &next->wire;
  uint32_t index = req->sq_send, k = req->opened, bytes; /* packet k of this work request */
  next->fresh = req->win.n_tosend == 0;
  if (next->fresh) {
    if (!mrc_requester_next_new(req, &qp->attr.rts, &bytes)) return false;
    wire->rtx = false;
    next->avoid = MRC_EV_NONE;
    next->by_timeout = false;
    next->redundant = req->sq[index & req->sq_mask].redundant;
  } else {
    const uint32_t psn = mrc_txwin_first_tosend(&req->win);
    const struct mrc_txslot *slot = mrc_txwin_slot(&req->win, psn);
    index = slot->wqe;
    k = mrc_psn_sub(psn, req->sq[index & req->sq_mask].first_psn);
    bytes = slot->bytes;
    wire->rtx = slot->state == MRC_TX_LOST;
    next->avoid = slot->ev_lost;
    next->by_timeout = slot->by_timeout;
    next->redundant = req->sq[index & req->sq_mask].redundant && !wire->rtx && !slot->redundant;
  }
  next->dscp = wire->rtx ? dscps->retransmission : dscps->data;
  const struct mrc_wqe *wqe = &req->sq[index & req->sq_mask];
  const uint64_t offset = (uint64_t)k * wqe->part_words * 4;
  const bool imm = wqe->opcode == MRC_WR_WRITE_IMM, last = offset + bytes == wqe->bytes;
  if (offset == 0 && last)
    wire->opcode = imm ? MRC_OP_WRITE_ONLY_IMM : MRC_OP_WRITE_ONLY;
  else if (last)
    wire->opcode = imm ? MRC_OP_WRITE_LAST_IMM : MRC_OP_WRITE_LAST;
  else
    wire->opcode = offset == 0 ? MRC_OP_WRITE_FIRST : MRC_OP_WRITE_MIDDLE;
  wire->psn = next->fresh && k == 0 ? req->win.next_psn : mrc_psn_add(wqe->first_psn, k);
  wire->rqmsn = wqe->rqmsn;
  wire->msn = (uint16_t)index;
  wire->va = wqe->va + offset;
  wire->rkey = wqe->rkey;
  wire->dma_bytes = wqe->bytes;
  wire->imm = wqe->imm;
  wire->payload = (const uint8_t *)(uintptr_t)(wqe->local + offset);
  wire->payload_bytes = bytes;
  return true;
}

/* ---- 3. the plane: which ones are quick ---- */

#define OLD_NS 500000000ull        /* older measurements are ignored */
#define IDLE_HALVES_NS 50000000ull /* of an idle plane */
#define LIMITED 4                  /* a plane this much slower, or worse, is limited */

uint64_t mrc_quick_answer_ns(const struct mrc_qp *qp, uint32_t index, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[index];
  const uint64_t ago_ns = now_ns - plane->heard_ns;
  if (ago_ns > OLD_NS) return 0;
  const bool idle = qp->req.win.lists[index].oldest == MRC_TX_NONE;
  const uint64_t faded_ns = plane->answer_ns >> (idle ? ago_ns / IDLE_HALVES_NS : 0);
  return mrc_max_u64(
      faded_ns, mrc_min_u64(plane->answer_ns, mrc_max_u64(plane->empty_ns, plane->rtt.base_ns)));
}

void mrc_quick_compare(const struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_quick quick = {.answer_ns = UINT64_MAX, .compared_ns = now_ns};
  const uint32_t planes = mrc_qp_eligible_planes(services, qp);
  uint64_t least_ns = UINT64_MAX;
  uint32_t least_losses = MRC_DELIVERY_ALL;
  MRC_EACH_BIT(index, planes) {
    struct mrc_delivery *delivery = &qp->planes[index].delivery;
    mrc_delivery_forget(delivery, OLD_NS, now_ns);
    const uint64_t takes_ns = mrc_delivery_takes_ns(delivery);
    if (takes_ns != 0) least_ns = mrc_min_u64(least_ns, takes_ns);
    least_losses = mrc_min_u32(least_losses, delivery->losses);
  }
  /* Limited planes take LIMITED times as long as the fastest one for the same bytes, or lose
     LIMITED times as many bursts as the best one. A plane that was limited remains so until it is
     half as bad, because the rates of the others vary too. What packets may wait in busy hosts is
     no lack of rate: many QPs in turn make each other wait. */
  const uint64_t longest_wait_ns = mrc_guard_ns(&qp->req.host_waits, now_ns) / 2;
  MRC_EACH_BIT(index, least_ns == UINT64_MAX ? 0 : planes) {
    const struct mrc_plane *plane = &qp->planes[index];
    const uint32_t times = (qp->choice.quick.limited >> index & 1) != 0 ? LIMITED / 2 : LIMITED;
    const uint64_t limit_ns = times * (least_ns + qp->noise_ns) + longest_wait_ns;
    if (mrc_delivery_takes_ns(&plane->delivery) > limit_ns ||
        (mrc_delivery_is_lossy(&plane->delivery) && plane->delivery.losses > times * least_losses))
      quick.limited |= 1u << index;
  }
  if (quick.limited == planes || qp->attr.rts.plane_shares == MRC_SHARES_EQUAL) quick.limited = 0;
  MRC_EACH_BIT(plane, planes & ~quick.limited) {
    const uint64_t ns = mrc_quick_answer_ns(qp, plane, now_ns);
    if (ns != 0) quick.answer_ns = mrc_min_u64(quick.answer_ns, ns);
  }
  if (quick.answer_ns == UINT64_MAX) quick.answer_ns = 0;
  const uint64_t limit_ns = 2 * quick.answer_ns + qp->noise_ns;
  MRC_EACH_BIT(plane, planes)
    if (mrc_quick_answer_ns(qp, plane, now_ns) <= limit_ns) quick.planes |= 1u << plane;
  qp->choice.quick = quick;
}

uint64_t mrc_quick_late_ns(const struct mrc_services *services, const struct mrc_qp *qp,
                           uint32_t plane) {
  const struct mrc_quick *quick = &qp->choice.quick;
  const uint32_t slow = quick->limited | (quick->planes != 0 ? ~quick->planes : 0);
  if (qp->attr.rts.plane_shares == MRC_SHARES_EQUAL) return MRC_NEVER; /* all carry the same */
  if ((slow >> plane & 1) == 0) return MRC_NEVER;
  uint64_t overdue_ns = MRC_NEVER;
  MRC_EACH_BIT(other, mrc_qp_eligible_planes(services, qp) & ~(1u << plane)) {
    const struct mrc_rtt *rtt = &qp->planes[other].rtt;
    if (rtt->smooth_ns != 0)
      overdue_ns = mrc_min_u64(overdue_ns,
                               mrc_qp_overdue_ns(qp, rtt, 2ull * qp->noise_ns, services->now_ns));
  }
  return overdue_ns;
}

uint64_t mrc_quick_queue_ns(const struct mrc_qp *qp, uint32_t index, uint32_t bytes) {
  const struct mrc_plane *plane = &qp->planes[index];
  const uint64_t ahead_bytes = qp->req.win.lists[index].bytes + bytes;
  const uint64_t takes_ns = mrc_delivery_takes_ns(&plane->delivery);
  const uint64_t resend_ns = mrc_delivery_is_lossy(&plane->delivery)
                                 ? 2 * mrc_rtt_overdue_ns(&qp->req.rtt, 2ull * qp->noise_ns)
                                 : 0;
  return resend_ns + mrc_mul_div(ahead_bytes, takes_ns, MRC_DELIVERY_BYTES);
}

/* ---- 3. the plane: equal shares, MRC's own rule ---- */

#define LEAD_BYTES 262144 /* how far the shares of two planes may differ */

void mrc_spray_start(struct mrc_qp *qp) {
  struct mrc_prng prng = {.state = qp->qpn};
  const uint32_t planes = qp->evset.plane_mask;
  const uint32_t n = (uint32_t)__builtin_popcount(planes);
  uint32_t turn = mrc_prng_below(&prng, n);
  MRC_EACH_BIT(plane, planes) {
    qp->planes[plane].share_bytes = turn; /* a few bytes decide between equal shares */
    turn = turn + 1 < n ? turn + 1 : 0;
  }
  qp->choice.sharing = planes;
}

/* A plane with a full socket holds the others back until the socket drains, up to a time limit. */
static bool holds_others_back(const struct mrc_services *services, const struct mrc_qp *qp,
                              uint32_t plane) {
  const uint64_t since_ns = services->ports.blocked_ns[qp->evset.planes[plane].port];
  return services->now_ns - since_ns < MRC_BLOCKED_PATIENCE_NS;
}

void mrc_spray_level(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes) {
  /* The planes that take equal shares now. A plane with a socket that stays full is left out. */
  const uint32_t blocked = mrc_qp_blocked(services, qp);
  uint32_t sharing = planes & ~blocked;
  MRC_EACH_BIT(plane, planes & blocked)
    if (holds_others_back(services, qp, plane)) sharing |= 1u << plane;
  const uint32_t stayed = sharing & qp->choice.sharing;
  qp->choice.sharing = sharing;
  if (stayed == sharing) return;
  uint64_t least = UINT64_MAX, most = 0;
  MRC_EACH_BIT(plane, qp->evset.plane_mask) {
    const uint64_t share = qp->planes[plane].share_bytes;
    if ((stayed >> plane & 1) != 0) least = mrc_min_u64(least, share);
    most = mrc_max_u64(most, share);
  }
  const uint64_t level = stayed != 0 ? least : most;
  MRC_EACH_BIT(plane, sharing & ~stayed)
    qp->planes[plane].share_bytes = mrc_max_u64(qp->planes[plane].share_bytes, level);
}

/* The plane with the smallest share; -1 when its window has no room, or when it would run too far
   ahead of a plane with a full socket. */
static int choose_equal(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes,
                        uint32_t bytes) {
  int best = -1;
  const uint32_t blocked = mrc_qp_blocked(services, qp);
  uint64_t least_blocked = UINT64_MAX;
  MRC_EACH_BIT(plane, planes) {
    const uint64_t share = qp->planes[plane].share_bytes;
    if ((blocked >> plane & 1) == 0) {
      if (best < 0 || share < qp->planes[best].share_bytes) best = (int)plane;
    } else if (holds_others_back(services, qp, plane)) {
      least_blocked = mrc_min_u64(least_blocked, share);
    }
  }
  if (best < 0 || !mrc_qp_has_room(qp, (uint32_t)best, bytes)) return -1;
  if (least_blocked != UINT64_MAX && qp->planes[best].share_bytes > least_blocked + LEAD_BYTES)
    return -1;
  return best;
}

/* ---- 3. the plane: measured shares, limited by the windows of the planes ---- */

static uint64_t may_send_bytes(const struct mrc_qp *qp) {
  const uint64_t psns = mrc_requester_window_left(&qp->req) / 4 * 3; /* a reserve must remain */
  return mrc_min_u64(qp->req.unsent_bytes, psns * qp->attr.rts.path_mtu);
}

/* The planes in `planes`, none of them quick, on which a packet arrives before the quick planes
   could finish all data that may be sent. So short messages, the ends of long messages and the
   shared window of PSNs do not wait for the slowest plane. */
static uint32_t worth_it(const struct mrc_qp *qp, uint32_t planes, uint64_t now_ns) {
  const struct mrc_quick *quick = &qp->choice.quick;
  const uint64_t may_bytes = may_send_bytes(qp);
  uint64_t inflight_bytes = 1; /* on the quick planes: they carry it in answer_ns */
  MRC_EACH_BIT(plane, quick->planes)
    inflight_bytes += qp->req.win.lists[plane].bytes;
  const uint64_t rounds = 1 + may_bytes / inflight_bytes;
  uint32_t worth = 0;
  const uint64_t limit_ns = rounds * quick->answer_ns + qp->noise_ns;
  MRC_EACH_BIT(plane, planes)
    if (mrc_quick_answer_ns(qp, plane, now_ns) <= limit_ns) worth |= 1u << plane;
  return worth;
}

/* The plane with the smallest share among those with room; -1: none. */
static int least_given(const struct mrc_qp *qp, uint32_t planes, uint32_t bytes) {
  int best = -1;
  MRC_EACH_BIT(plane, planes) {
    if (best >= 0 && qp->planes[plane].share_bytes >= qp->planes[best].share_bytes) continue;
    if (mrc_qp_has_room(qp, plane, bytes)) best = (int)plane;
  }
  return best;
}

/* Whether a plane has more in flight than another one, each relative to its window. Windows that
   differ less than twofold do not show that one plane is faster. */
static bool is_ahead(const struct mrc_qp *qp, uint32_t plane, uint32_t other) {
  const uint64_t bytes = qp->req.win.lists[plane].bytes, others = qp->req.win.lists[other].bytes;
  const uint64_t cwnd = mrc_qp_cc(qp, plane)->cwnd_bytes;
  const uint64_t others_cwnd = mrc_qp_cc(qp, other)->cwnd_bytes;
  if (cwnd < 2 * others_cwnd && others_cwnd < 2 * cwnd) return bytes > others;
  return bytes * others_cwnd > others * cwnd;
}

/* ---- 3. the plane: weights ---- */

#define WEIGHED_BYTES (16u << 20) /* what is weighed, by the plane that carries most */

static void weigh(struct mrc_qp *qp, uint32_t plane, uint32_t bytes) {
  if (qp->choice.curbed == 0) return;
  qp->planes[plane].weighed_bytes += bytes;
  if (qp->planes[plane].weighed_bytes < WEIGHED_BYTES) return;
  MRC_EACH_BIT(each, qp->evset.plane_mask)
    qp->planes[each].weighed_bytes /= 2;
}

/* The planes that have carried no more than their weight allows, beside those of the largest. */
static uint32_t within_weight(const struct mrc_qp *qp, uint32_t planes) {
  uint64_t most_bytes = 0;
  uint32_t heaviest = 0, within = 0;
  MRC_EACH_BIT(plane, planes)
    heaviest = mrc_max_u32(heaviest, qp->planes[plane].weight);
  MRC_EACH_BIT(plane, planes)
    if (qp->planes[plane].weight == heaviest)
      most_bytes = mrc_max_u64(most_bytes, qp->planes[plane].weighed_bytes);
  MRC_EACH_BIT(plane, planes) {
    const struct mrc_plane *its = &qp->planes[plane];
    if (its->weight == heaviest ||
        (uint64_t)its->weighed_bytes * heaviest <= its->weight * most_bytes)
      within |= 1u << plane;
  }
  return within;
}

/* Quick planes come first. A plane does not make up for data that it could not carry. */
int mrc_spray_choose(const struct mrc_services *services, struct mrc_qp *qp, uint32_t planes,
                     uint32_t bytes) {
  if ((planes & qp->choice.curbed) != 0) planes = within_weight(qp, planes);
  if (qp->attr.rts.plane_shares == MRC_SHARES_EQUAL)
    return choose_equal(services, qp, planes, bytes);
  /* Late are the limited planes that might deliver `bytes` later than the others deliver all data
     that may be sent. Rates are known roughly, so a limited plane must finish well before. */
  const uint32_t limited = planes & qp->choice.quick.limited;
  uint32_t late = 0;
  if (limited != 0) {
    uint64_t others_bytes = may_send_bytes(qp), others_rate = 0;
    MRC_EACH_BIT(plane, planes & ~limited) {
      const uint64_t takes_ns = mrc_delivery_takes_ns(&qp->planes[plane].delivery);
      if (takes_ns == 0) continue;
      others_bytes += qp->req.win.lists[plane].bytes;
      others_rate += ((uint64_t)MRC_DELIVERY_BYTES << 20) / takes_ns;
    }
    const uint64_t others_ns = others_rate != 0 ? (others_bytes << 20) / others_rate : UINT64_MAX;
    MRC_EACH_BIT(plane, limited)
      if (qp->planes[plane].rtt.base_ns + mrc_quick_queue_ns(qp, plane, bytes) + qp->noise_ns >
          others_ns / 4 * 3)
        late |= 1u << plane;
  }
  const uint32_t blocked = mrc_qp_blocked(services, qp);
  const uint32_t usable = planes & ~blocked & ~late;
  const uint32_t slow =
      (planes & qp->choice.quick.planes) != 0 ? usable & ~qp->choice.quick.planes : 0;
  int best = least_given(qp, usable & ~slow, bytes);
  if (best < 0 && slow != 0) best = least_given(qp, worth_it(qp, slow, services->now_ns), bytes);
  if (best < 0) return -1;
  /* Another plane may take the next burst as soon as its socket has drained. Otherwise, at the end
     of the data, the plane that drained first would take all that is left and finish last. */
  const struct mrc_txwin *win = &qp->req.win;
  const uint32_t full = planes & qp->choice.quick.planes & blocked;
  const bool ends =
      full != 0 &&
      mrc_requester_left_bytes(&qp->req, qp->attr.rts.path_mtu) < win->inflight_bytes &&
      (win->n_tosend == 0 ||
       mrc_txwin_slot(win, mrc_txwin_first_tosend(win))->state != MRC_TX_LOST);
  MRC_EACH_BIT(other, ends ? full : 0)
    if (holds_others_back(services, qp, other) && is_ahead(qp, (uint32_t)best, other)) return -1;
  struct mrc_plane *chosen = &qp->planes[best];
  if (chosen->share_bytes + LEAD_BYTES < qp->choice.most_share_bytes)
    chosen->share_bytes = qp->choice.most_share_bytes - LEAD_BYTES;
  return best;
}

/* ---- 4. the EV ---- */

/* Whether the plane may be silent: it has lost bursts, or an answer from it is overdue. */
static bool is_doubtful(const struct mrc_qp *qp, uint32_t index, uint64_t now_ns) {
  const struct mrc_plane *plane = &qp->planes[index];
  if (plane->strikes > 0 || plane->doubted_ns != 0) return true;
  const uint16_t oldest = qp->req.win.lists[index].oldest;
  if (oldest == MRC_TX_NONE || plane->rtt.smooth_ns == 0) return false;
  const uint64_t since_ns = mrc_max_u64(qp->req.win.slots[oldest].sent_ns, plane->heard_ns);
  return now_ns - since_ns > mrc_qp_overdue_ns(qp, &plane->rtt, 2ull * qp->noise_ns, now_ns);
}

/* The planes for a retransmission: those that deliver, if there are any. The message waits for it,
   and a silent plane has the smallest share, so it would be chosen again and again. A packet that
   the local timeout has declared lost avoids the plane that lost it. All of them have a socket with
   room: one that is full may stay so. */
static uint32_t planes_for_lost(const struct mrc_qp *qp, uint32_t planes, uint16_t avoid,
                                bool by_timeout, uint64_t now_ns) {
  const uint32_t others = by_timeout ? planes & ~(1u << qp->evset.evs[avoid].plane) : planes;
  uint32_t delivering = others;
  MRC_EACH_BIT(plane, others)
    if (is_doubtful(qp, plane, now_ns)) delivering &= ~(1u << plane);
  return delivering != 0 ? delivering : others != 0 ? others : planes;
}

/* Backups carry data while each other plane may be silent, not only once it is suspended. */
static void call_backups(const struct mrc_services *services, struct mrc_qp *qp) {
  if (qp->choice.backups == 0) return;
  qp->choice.needs_backups = false;
  uint32_t silent = mrc_qp_eligible_planes(services, qp);
  MRC_EACH_BIT(plane, silent)
    if (!is_doubtful(qp, plane, services->now_ns)) silent = 0;
  qp->choice.needs_backups = silent != 0;
}

/* The planes that yield and rest, if another one is there. */
static uint32_t resting(const struct mrc_qp *qp, uint32_t planes, uint64_t now_ns) {
  uint32_t found = 0;
  MRC_EACH_BIT(plane, planes & qp->choice.yielding)
    if (now_ns < qp->planes[plane].cc.rest_end_ns) found |= 1u << plane;
  return found != planes ? found : 0;
}

/* An EV for this packet: the next one of the chosen plane. A retransmission avoids the EV that lost
   the packet, unless no plane whose socket has room has another EV. */
static uint16_t choose_ev(struct mrc_services *services, struct mrc_qp *qp, uint16_t avoid,
                          bool by_timeout, uint32_t bytes) {
  call_backups(services, qp);
  uint32_t eligible = mrc_qp_eligible_planes(services, qp);
  /* The planes that have an EV for use now. At the start, each EV sends one burst and then waits
     for its answer, or for its loss. */
  uint32_t planes = 0;
  MRC_EACH_BIT(plane, eligible)
    if (mrc_evset_has_next(&qp->evset, plane)) planes |= 1u << plane;
  if (avoid == MRC_EV_NONE) planes &= ~resting(qp, planes, services->now_ns);
  uint32_t first = planes;
  mrc_spray_level(services, qp, planes);
  if (avoid != MRC_EV_NONE) {
    const uint32_t blocked = mrc_qp_blocked(services, qp);
    eligible &= ~blocked;
    planes &= ~blocked;
    first = planes_for_lost(qp, planes, avoid, by_timeout, services->now_ns);
  }
  for (int tries = 0;; tries++) {
    const int plane = mrc_spray_choose(services, qp, tries == 0 ? first : planes, bytes);
    if (plane < 0) return MRC_EV_NONE;
    uint16_t ev = mrc_evset_next(&qp->evset, (uint32_t)plane);
    if (ev == avoid && ev != MRC_EV_NONE) ev = mrc_evset_other(&qp->evset, (uint32_t)plane, avoid);
    if (ev != MRC_EV_NONE || tries > 0) return ev;
    planes &= ~(1u << plane);
    if (planes != 0) continue;
    MRC_EACH_BIT(other, eligible)
      if (qp->evset.planes[other].n_on_trial > 0) return MRC_EV_NONE;
    return avoid;
  }
}

/* ---- 5. the size of the burst ---- */

#define BURSTS_PER_PLANE 4   /* that a plane's share of the window is split into */
#define SHORT_BURST_NS 50000 /* for so long a plane may be busy when the others have finished */

/* The burst size in packets, each as large as the next one. It is 1 while the window is small and
   grows with it, but one lost burst stays a small part of the window and no plane runs ahead. */
static uint32_t burst_packets(const struct mrc_services *services, const struct mrc_qp *qp,
                              uint32_t plane, uint32_t next_bytes) {
  const uint32_t planes = (uint32_t)__builtin_popcount(mrc_qp_eligible_planes(services, qp));
  const uint32_t windows = qp->req.one_window ? mrc_max_u32(planes, 1) : 1;
  const uint64_t share = mrc_qp_cc(qp, plane)->cwnd_bytes / (BURSTS_PER_PLANE * windows);
  const uint32_t bytes = mrc_max_u32(next_bytes, MRC_DATA_OVERHEAD_BYTES);
  uint64_t packets = share / bytes;
  /* At the end of the data, the packets after which the planes finish together: an even part of
     what is left, or what the plane carries in a short time. */
  const uint64_t left_bytes = mrc_requester_left_bytes(&qp->req, qp->attr.rts.path_mtu);
  const uint64_t even = left_bytes / ((uint64_t)bytes * mrc_max_u32(planes, 1));
  const uint64_t rtt_ns = qp->planes[plane].rtt.smooth_ns;
  if (packets > even && rtt_ns != 0) {
    const uint64_t cwnd_bytes = mrc_qp_cc(qp, plane)->cwnd_bytes;
    const uint64_t quick = mrc_mul_div(cwnd_bytes, SHORT_BURST_NS, rtt_ns) / bytes;
    packets = mrc_min_u64(packets, mrc_max_u64(even, quick));
  }
  if ((qp->choice.quick.limited >> plane & 1) != 0) packets = 1;
  if (qp->attr.rts.spray != 0) packets = mrc_min_u64(packets, qp->attr.rts.spray);
  return (uint32_t)mrc_max_u64(1, mrc_min_u64(packets, MRC_MAX_BURST_PACKETS));
}

/* ---- 7. packets and bursts ---- */

_Static_assert(MRC_MAX_HEADER >= MRC_BTH_BYTES + MRC_SETH_BYTES + MRC_CC_STATE_BYTES, "SACK fits");

struct mrc_burst *mrc_burst_open(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                                 uint8_t dscp, uint8_t ecn) {
  if (!mrc_arena_may_open(&services->arena)) return NULL;
  mrc_assert(ev < qp->evset.n);
  const struct mrc_ev *from = &qp->evset.evs[ev];
  const struct mrc_ev_ends *ends = &qp->evset.ends[from->ends];
  mrc_assert(from->state != MRC_EV_DENIED &&
             (mrc_ports_usable(&services->ports) >> mrc_plane_of(from->port) & 1) != 0);
  struct mrc_burst *burst = &services->arena.bursts[services->arena.n_bursts++];
  *burst = (struct mrc_burst){.flow_label = ends->family == 6 ? from->value & 0xFFFF : 0,
                              .sport = (uint16_t)(from->value >> 16),
                              .dport = ends->dport,
                              .family = ends->family,
                              .port = from->port,
                              .tclass = (uint8_t)(dscp << 2 | ecn),
                              .tx_index = from->tx_index,
                              .packets = &services->arena.packets[services->arena.used],
                              ._qp = qp->index,
                              ._ev = ev};
  mrc_evset_addresses(&qp->evset, ev, burst->src, burst->dst);
  mrc_peer_do_nat(qp->peer, burst);
  services->arena.seal = qp->seal;
  services->arena.icrc = qp->attr.rtr.integrity == MRC_INTEGRITY_ICRC;
  return burst;
}

static void add_seal(struct mrc_seal *seal, const struct mrc_burst *burst,
                     struct mrc_packet *packet, uint32_t pad, uint8_t *staged) {
  const bool imm = packet->_kind <= MRC_KIND_COPY && packet->header_bytes == MRC_DATA_HEADER_BYTES;
  const struct mrc_sealing sealing = {.header = packet->header,
                                      .header_bytes = packet->header_bytes,
                                      .imm_bytes = imm ? MRC_IMM_BYTES : 0,
                                      .payload = packet->payload,
                                      .payload_bytes = packet->payload_bytes,
                                      .pad = pad,
                                      .ev = (uint32_t)burst->sport << 16 | burst->flow_label};
  mrc_seal_close(seal, &sealing, packet->trailer, staged);
}

/* Adds the packet to the burst, with padding, and ICRC or seal. The first packet sets the packet
   size of the burst; no later packet may be longer. */
static void end_packet(struct mrc_arena *arena, struct mrc_burst *burst, struct mrc_packet *packet,
                       uint32_t pad, bool icrc) {
  mrc_assert(burst == &arena->bursts[arena->n_bursts - 1]);
  arena->used++;
  burst->n_packets++;
  struct mrc_seal *sealed = arena->seal;
  const bool encrypts = sealed != NULL && sealed->mode == MRC_SEAL_AEAD;
  const uint32_t covered = packet->header_bytes + packet->payload_bytes;
  packet->trailer_bytes = (uint16_t)(pad + (sealed != NULL ? MRC_SEALED_BYTES : MRC_ICRC_BYTES));
  const uint32_t total = covered + packet->trailer_bytes;
  /* Its place behind the packets of its burst; NULL where the burst is not staged. */
  uint8_t *staged = arena->staged + arena->staged_bytes;
  if (burst->n_packets == 1 && (encrypts || total <= arena->staged_packet_bytes))
    burst->staged = staged;
  if (burst->staged == NULL) {
    staged = NULL;
  } else {
    mrc_assert(arena->staged_bytes + total <= (size_t)MRC_MAX_BURSTS * arena->max_burst_bytes);
    arena->staged_bytes += total;
    if (encrypts) arena->encrypted_bytes += total;
  }
  memset(packet->trailer, 0, 8); /* padding, and an ICRC that nobody checks */
  if (sealed != NULL) {
    add_seal(sealed, burst, packet, pad, staged);
  } else {
    if (staged != NULL) memcpy(staged, packet->header, packet->header_bytes);
    const bool copies = staged != NULL && packet->payload_bytes > 0;
    if (icrc) {
      /* The CRC of the IP and UDP headers: packets of a burst share it, but a shorter last one. */
      uint32_t crc = burst->_icrc;
      if (burst->n_packets == 1 || total != burst->packet_bytes) {
        const struct mrc_icrc_flow flow = {.src = burst->src,
                                           .dst = burst->dst,
                                           .sport = burst->sport,
                                           .dport = burst->dport,
                                           .family = burst->family};
        crc = mrc_icrc_begin(&flow, total);
        if (burst->n_packets == 1) burst->_icrc = crc;
      }
      /* The payload is read once, also if it is copied to where the packet is staged. */
      if (copies) {
        crc = mrc_crc32_copy(crc, staged + packet->header_bytes, packet->header_bytes,
                             packet->payload, packet->payload_bytes);
      } else {
        crc = mrc_crc32(crc, packet->header, packet->header_bytes);
        if (packet->payload_bytes > 0) crc = mrc_crc32(crc, packet->payload, packet->payload_bytes);
      }
      if (pad != 0) crc = mrc_crc32(crc, packet->trailer, pad);
      crc = htole32(crc);
      memcpy(packet->trailer + pad, &crc, sizeof crc);
    } else if (copies) {
      memcpy(staged + packet->header_bytes, packet->payload, packet->payload_bytes);
    }
    if (staged != NULL) memcpy(staged + covered, packet->trailer, packet->trailer_bytes);
  }
  if (burst->n_packets == 1) burst->packet_bytes = total;
  mrc_assert(total <= burst->packet_bytes);
}

void mrc_burst_add(struct mrc_services *services, struct mrc_burst *burst, struct mrc_wire *wire,
                   enum mrc_packet_kind kind, uint32_t slot) {
  struct mrc_arena *arena = &services->arena;
  mrc_assert(arena->used < MRC_ARENA_PACKETS);
  struct mrc_packet *packet = &arena->packets[arena->used];
  packet->_kind = kind;
  packet->_slot = slot;
  wire->sealed = arena->seal != NULL;
  wire->pad = kind == MRC_KIND_DATA ? (uint8_t)(-wire->payload_bytes & 3u) : 0;
  packet->header_bytes = (uint16_t)mrc_wire_encode(wire, packet->header);
  packet->payload = wire->payload;
  packet->payload_bytes = wire->payload_bytes;
  /* Endpoint messages have an ICRC on every QP. */
  const bool icrc = arena->icrc || kind == MRC_KIND_EV_PROBE || kind == MRC_KIND_ANSWER;
  end_packet(arena, burst, packet, wire->pad, icrc);
}

/* Adds the data packet after the last one of the burst: the next one of its message, which has the
   same size. Neither is the last of the message. */
static void add_next(struct mrc_arena *arena, struct mrc_burst *burst, uint32_t psn, bool ack_req) {
  mrc_assert(arena->used < MRC_ARENA_PACKETS);
  struct mrc_packet *packet = &arena->packets[arena->used];
  const struct mrc_packet *before = packet - 1;
  mrc_assert(burst->n_packets > 0 && before->_kind == MRC_KIND_DATA);
  packet->_kind = MRC_KIND_DATA;
  packet->_slot = psn;
  mrc_wire_encode_next(before->header, packet->header, psn, ack_req, before->payload_bytes);
  packet->header_bytes = before->header_bytes;
  packet->payload = before->payload + before->payload_bytes;
  packet->payload_bytes = before->payload_bytes;
  end_packet(arena, burst, packet, 0, arena->icrc);
}

/* An EV for the copy of a burst of `bytes`: on another plane that has room and delivers soon
   enough; else another EV of its plane, or MRC_EV_NONE. */
static uint16_t choose_for_copy(struct mrc_services *services, struct mrc_qp *qp,
                                const struct mrc_burst *burst, uint32_t bytes) {
  const uint32_t own = mrc_qp_plane_of(qp, burst);
  uint32_t planes = mrc_qp_eligible_planes(services, qp) & ~mrc_qp_blocked(services, qp);
  if ((planes & qp->choice.curbed) != 0) planes = within_weight(qp, planes);
  uint32_t others = 0;
  MRC_EACH_BIT(plane, planes & ~(1u << own))
    if (mrc_evset_has_next(&qp->evset, plane) && !is_doubtful(qp, plane, services->now_ns))
      others |= 1u << plane;
  const int plane = mrc_spray_choose(services, qp, others, bytes);
  const uint16_t ev = plane < 0 ? MRC_EV_NONE : mrc_evset_next(&qp->evset, (uint32_t)plane);
  if (ev != MRC_EV_NONE || !mrc_qp_has_room(qp, own, bytes)) return ev;
  return mrc_evset_other(&qp->evset, own, (uint16_t)burst->_ev);
}

/* Adds the same packets once more, on another EV. The window holds each packet once, with the EV on
   which it left first: a copy that the network or the kernel drops is not missed. */
static void add_copies(struct mrc_services *services, struct mrc_qp *qp,
                       const struct mrc_burst *burst, uint64_t now_ns) {
  struct mrc_arena *arena = &services->arena;
  const uint32_t bytes = burst->n_packets * burst->packet_bytes;
  const uint16_t ev =
      mrc_arena_may_open(arena) ? choose_for_copy(services, qp, burst, bytes) : MRC_EV_NONE;
  if (ev == MRC_EV_NONE) return;
  struct mrc_burst *copies = mrc_burst_open(services, qp, ev, burst->tclass >> 2, MRC_ECN_CAPABLE);
  for (int i = 0; i < burst->n_packets; i++) {
    const struct mrc_packet *from = &burst->packets[i];
    struct mrc_packet *packet = &arena->packets[arena->used];
    memcpy(packet->header, from->header, from->header_bytes);
    packet->header_bytes = from->header_bytes;
    packet->payload = from->payload;
    packet->payload_bytes = from->payload_bytes;
    packet->_kind = MRC_KIND_COPY;
    packet->_slot = from->_slot;
    end_packet(arena, copies, packet, -from->payload_bytes & 3u, arena->icrc);
    struct mrc_txslot *slot = mrc_txwin_slot(&qp->req.win, from->_slot);
    slot->redundant = true;
    slot->ev_lost = ev; /* if the kernel refuses the other one, it avoids this EV too */
  }
  const uint32_t plane = qp->evset.evs[ev].plane;
  qp->planes[plane].share_bytes += bytes;
  weigh(qp, plane, bytes);
  MRC_EACH_BIT(each, 1u << plane | 1u << mrc_qp_plane_of(qp, burst))
    mrc_plane_on_copy(&qp->planes[each], now_ns);
}

/* ---- 6. a PSN and a place in the window ---- */

/* Whether a packet of `bytes` requests a SACK: a few times per window, and in the last packet
   before a stop. The EV's last packet does so too. Call it after the packet joined the window. */
static bool asks_for_sack(const struct mrc_services *services, struct mrc_qp *qp, uint32_t plane,
                          uint32_t bytes) {
  const struct mrc_requester *req = &qp->req;
  uint32_t more;
  struct mrc_cc *cc = mrc_qp_cc(qp, plane);
  cc->unasked_bytes += bytes;
  const bool asks =
      mrc_cc_asks_for_sack(cc, mrc_qp_inflight_bytes(qp, plane),
                           services->config.sack_threshold_bytes,
                           qp->peer_next != NULL || qp->peer->qps != qp) ||
      (req->win.n_tosend == 0 && !mrc_requester_next_new(req, &qp->attr.rts, &more)) ||
      !mrc_evset_has_next(&qp->evset, plane);
  if (asks) cc->unasked_bytes = 0;
  return asks;
}

static void add_data(struct mrc_services *services, struct mrc_qp *qp, struct mrc_burst *burst,
                     struct candidate *next, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  const uint8_t plane = (uint8_t)mrc_qp_plane_of(qp, burst);
  const uint16_t ev = (uint16_t)burst->_ev;
  const uint32_t bytes = next->wire.payload_bytes;
  if (next->fresh) { /* gets its PSN */
    struct mrc_wqe *wqe = &req->sq[req->sq_send & req->sq_mask];
    const uint32_t psn = mrc_txwin_append(&req->win, req->sq_send, bytes, ev, plane, now_ns);
    mrc_assert(psn == next->wire.psn && req->unsent_bytes >= bytes);
    req->unsent_bytes -= bytes;
    if (req->opened == 0) {
      wqe->first_psn = psn;
      if (wqe->opcode == MRC_WR_WRITE_IMM) req->wimm_inflight++;
    }
    if ((uint64_t)++req->opened * wqe->part_words * 4 >= wqe->bytes) {
      req->opened = 0;
      req->sq_send++;
    }
  } else {
    mrc_txwin_on_send(&req->win, next->wire.psn, ev, plane, now_ns);
  }
  next->wire.ack_req = asks_for_sack(services, qp, plane, bytes);
  qp->planes[plane].share_bytes += bytes + MRC_DATA_OVERHEAD_BYTES;
  weigh(qp, plane, bytes);
  mrc_burst_add(services, burst, &next->wire, MRC_KIND_DATA, next->wire.psn);
  if (next->wire.rtx) mrc_trace(services, MRC_TRACE_RESEND, qp->qpn, next->wire.psn, burst->_ev);
}

/* Adds the packets that may follow a new packet of `bytes` in its burst before the last one of its
   message. They differ from it only in PSN and place. */
static void add_run(struct mrc_services *services, struct mrc_qp *qp, struct mrc_burst *burst,
                    uint32_t bytes, uint32_t limit, uint64_t now_ns) {
  struct mrc_requester *req = &qp->req;
  const struct mrc_wqe *wqe = &req->sq[req->sq_send & req->sq_mask];
  const uint8_t plane = (uint8_t)mrc_qp_plane_of(qp, burst);
  if (req->opened == 0 || req->win.n_tosend > 0 || burst->n_packets >= limit) return;
  const uint64_t left_bytes = wqe->bytes - (uint64_t)req->opened * bytes;
  const uint64_t cwnd_bytes = mrc_qp_cc(qp, plane)->cwnd_bytes;
  const uint64_t inflight_bytes = mrc_qp_inflight_bytes(qp, plane);
  if (inflight_bytes >= cwnd_bytes) return;
  const uint64_t most =
      mrc_min_u64((left_bytes - 1) / bytes, (cwnd_bytes - inflight_bytes) / bytes);
  const uint32_t fit = mrc_min_u32(services->arena.max_burst_bytes / burst->packet_bytes, limit);
  const uint32_t packets = fit > burst->n_packets ? fit - burst->n_packets : 0;
  const uint32_t n =
      (uint32_t)mrc_min_u64(most, mrc_min_u32(packets, mrc_requester_window_left(req)));
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t psn =
        mrc_txwin_append(&req->win, req->sq_send, bytes, (uint16_t)burst->_ev, plane, now_ns);
    req->opened++;
    add_next(&services->arena, burst, psn, asks_for_sack(services, qp, plane, bytes));
  }
  mrc_assert(req->unsent_bytes >= (uint64_t)n * bytes);
  req->unsent_bytes -= (uint64_t)n * bytes;
  qp->planes[plane].share_bytes += n * (bytes + MRC_DATA_OVERHEAD_BYTES);
  weigh(qp, plane, n * bytes);
}

/* ---- 1. the turn: stages 2 to 7 for each burst ---- */

enum fill { FILL_DRY, FILL_FULL, FILL_MORE };

static enum fill fill_burst(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct candidate next = {.wire = {.sealed = qp->seal != NULL,
                                    .dest_qpn = qp->attr.rtr.dest_qpn,
                                    .ts = true,
                                    .tsr = true,
                                    .tx_timestamp = mrc_timestamp(now_ns)}};
  if (!next_candidate(services, qp, &next)) return FILL_DRY;
  struct mrc_arena *arena = &services->arena;
  if (next.redundant && arena->n_bursts > 0 && arena->n_bursts + 2 > arena->capacity)
    arena->capacity = arena->n_bursts; /* its copy would not fit: this transmit is full */
  if (!mrc_arena_may_open(arena)) return FILL_FULL;
  const uint16_t ev = choose_ev(services, qp, next.avoid, next.by_timeout, next.wire.payload_bytes);
  if (ev == MRC_EV_NONE) return FILL_DRY;
  struct mrc_burst *burst = mrc_burst_open(services, qp, ev, next.dscp, MRC_ECN_CAPABLE);
  if (burst == NULL) return FILL_FULL;
  if (!qp->evset.evs[ev].proven) mrc_evset_on_burst(&qp->evset, ev);
  const uint32_t plane = mrc_qp_plane_of(qp, burst);
  if (qp->req.win.lists[plane].bytes == 0)
    mrc_delivery_on_flight(&qp->planes[plane].delivery, now_ns);
  const uint32_t limit = burst_packets(services, qp, plane, next.wire.payload_bytes);
  const uint32_t first_psn = qp->req.win.next_psn;
  const bool redundant = next.redundant;
  bool more = true;
  for (bool shorter = false; more && !shorter;) {
    const uint32_t bytes = next.wire.payload_bytes;
    const uint32_t packet_bytes = /* UDP payload */
        MRC_BTH_BYTES + MRC_METH_BYTES + MRC_TSETH_BYTES + MRC_RETH_BYTES +
        (mrc_opcode_has_imm(next.wire.opcode) ? MRC_IMM_BYTES : 0u) + ((bytes + 3u) & ~3u) +
        (next.wire.sealed ? MRC_SEALED_BYTES : MRC_ICRC_BYTES);
    /* It joins the burst if it may use the same EV, and its length fits. */
    if (burst->n_packets > 0 &&
        (burst->n_packets >= limit || !mrc_arena_has_room(&services->arena, burst) ||
         next.avoid == burst->_ev || packet_bytes > burst->packet_bytes ||
         next.redundant != redundant || (next.dscp << 2 | MRC_ECN_CAPABLE) != burst->tclass ||
         !mrc_qp_has_room(qp, plane, bytes)))
      break;
    shorter = burst->n_packets > 0 && packet_bytes < burst->packet_bytes;
    add_data(services, qp, burst, &next, now_ns);
    if (next.fresh && !shorter) add_run(services, qp, burst, bytes, limit, now_ns);
    more = next_candidate(services, qp, &next);
  }
  qp->choice.most_share_bytes =
      mrc_max_u64(qp->choice.most_share_bytes, qp->planes[plane].share_bytes);
  if (redundant) add_copies(services, qp, burst, now_ns);
  const struct mrc_requester *req = &qp->req;
  mrc_assert(mrc_txwin_outstanding(&req->win) <= req->win.psns);
  mrc_assert(mrc_psn_sub(req->win.next_psn, req->peer_next_psn) <= qp->attr.rts.peer_mpr);
  mrc_assert(req->wimm_inflight <= qp->attr.rts.peer_max_wimm);
  const uint64_t fresh = mrc_psn_sub(req->win.next_psn, first_psn);
  if (fresh > 0)
    mrc_trace(services, MRC_TRACE_SEND, qp->qpn, first_psn, burst->_ev | (fresh - 1) << 32);
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

/* ---- 8. what the kernel took ---- */

void mrc_requester_on_taken(struct mrc_services *services, struct mrc_qp *qp,
                            const struct mrc_burst *burst) {
  struct mrc_requester *req = &qp->req;
  const bool copies = burst->packets[0]._kind == MRC_KIND_COPY;
  uint64_t packets = 0, bytes = 0, again = 0, again_bytes = 0;
  for (int i = 0; i < burst->n_packets; i++) {
    const struct mrc_packet *packet = &burst->packets[i];
    mrc_assert(packet->_kind <= MRC_KIND_COPY);
    if (!mrc_txwin_holds(&req->win, packet->_slot)) continue;
    const struct mrc_txslot *slot = mrc_txwin_slot(&req->win, packet->_slot);
    packets++;
    bytes += slot->bytes;
    if (slot->tries < 2 || copies) continue;
    again++;
    again_bytes += slot->bytes;
  }
  struct mrc_ev *ev = &qp->evset.evs[burst->_ev];
  struct mrc_plane *plane = &qp->planes[mrc_qp_plane_of(qp, burst)];
  req->sent_packets += packets;
  if (!copies) req->first_sent_bytes += bytes - again_bytes;
  req->retransmitted_packets += again;
  ev->packets += packets;
  ev->bytes += bytes;
  plane->packets += packets;
  plane->bytes += bytes;
  mrc_count(services, MRC_COUNTER_TX_DATA, packets);
  mrc_count(services, MRC_COUNTER_TX_BYTES, bytes);
  mrc_count(services, MRC_COUNTER_TX_RETRANSMITTED, again);
  if (copies) mrc_count(services, MRC_COUNTER_TX_REDUNDANT, packets);
}

void mrc_requester_on_refused(struct mrc_services *services, struct mrc_qp *qp,
                              const struct mrc_packet *packet) {
  struct mrc_requester *req = &qp->req;
  if (packet->_kind == MRC_KIND_COPY) { /* the other one leaves alone, or has another try */
    struct mrc_txslot *slot = mrc_txwin_slot(&req->win, packet->_slot);
    slot->redundant = false;
    slot->ev_lost = MRC_TX_NONE;
    return;
  }
  if (packet->_kind == MRC_KIND_PROBE) {
    req->probe.outstanding = false;
    req->probe.wanted = true;
  } else {
    const struct mrc_txslot *slot = mrc_txwin_slot(&req->win, packet->_slot);
    struct mrc_plane *plane = &qp->planes[slot->plane];
    plane->share_bytes -= mrc_min_u64(plane->share_bytes, slot->bytes + MRC_DATA_OVERHEAD_BYTES);
    mrc_trace(services, MRC_TRACE_REFUSED, qp->qpn, packet->_slot, slot->ev);
    mrc_evset_on_missed(&qp->evset, slot->ev);
    mrc_txwin_on_refused(&req->win, packet->_slot);
    struct mrc_cc *cc = mrc_qp_cc(qp, slot->plane);
    mrc_cc_on_refused(cc, mrc_qp_inflight_bytes(qp, slot->plane));
    cc->unasked_bytes = cc->cwnd_bytes; /* its SACK request may be lost */
  }
  /* The packet did not leave, so the QP has the next turn. */
  mrc_node_leave(&qp->nodes.ready);
  mrc_list_append(services->ready.ready.next, &qp->nodes.ready) /* in front */;
}
