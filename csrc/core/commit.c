/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of packets after the driver has offered them to the kernel. */
#include <errno.h>

#include "engine.h"
#include "loss.h"
#include "probe.h"
#include "requester.h"
#include "responder.h"

/* Whether an outright failure takes an EV or a plane out of use, so that a second try takes another
   way. */
static bool is_blamed(const struct mrc_qp *qp, const struct mrc_burst *burst) {
  const struct mrc_ev_plane *rotation = &qp->evset.planes[burst->port - 1];
  return qp->state == MRC_QP_RTS && !qp->planes[burst->port - 1].suspended &&
         qp->evset.evs[burst->_ev].place < rotation->n_active;
}

/* What was not sent keeps its place and is tried again at once, unless the same would happen again.
   Then it is left to the timers, as if it were lost on the way. */
static void commit_packet(struct mrc_engine *engine, struct mrc_qp *qp,
                          const struct mrc_burst *burst, const struct mrc_packet *packet, int taken,
                          uint64_t now_ns) {
  static const enum mrc_counter counter_of[] = {[MRC_KIND_SACK] = MRC_COUNTER_TX_SACKS,
                                                [MRC_KIND_NACK] = MRC_COUNTER_TX_NACKS,
                                                [MRC_KIND_ACK] = MRC_COUNTER_TX_ACKS,
                                                [MRC_KIND_PROBE] = MRC_COUNTER_TX_PROBES,
                                                [MRC_KIND_ANSWER] = MRC_COUNTER_TX_EV_ANSWERS};
  if (packet->_kind == MRC_KIND_EV_PROBE) {
    mrc_ev_probe_on_commit(engine, packet->_slot, taken, now_ns);
  } else if (taken == 1) {
    if (packet->_kind == MRC_KIND_DATA)
      mrc_requester_on_taken(engine, qp, packet);
    else
      mrc_count(engine, counter_of[packet->_kind], 1);
  } else if (taken == 0 || is_blamed(qp, burst)) {
    mrc_count(engine, MRC_COUNTER_TX_REFUSED, 1);
    if (packet->_kind == MRC_KIND_DATA || packet->_kind == MRC_KIND_PROBE)
      mrc_requester_on_refused(engine, qp, packet);
    else if (packet->_kind == MRC_KIND_ANSWER)
      mrc_endpoint_on_refused(engine, packet->_slot);
    else
      mrc_responder_on_refused(engine, qp, packet);
  }
}

/* The interface is down or gone, whichever path the packet was to take. */
static bool is_of_interface(int error) {
  return error == -ENETDOWN || error == -ENODEV || error == -ENXIO;
}

/* A send failed outright, for example without a route. Under SRv6 each EV has its own route, so the
   EV is to blame, and the plane only when its rotation cannot get any smaller. An EV probe blames
   nobody: its error is its result. */
static void blame(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_burst *burst,
                  int error, uint64_t now_ns) {
  const uint16_t ev = (uint16_t)burst->_ev;
  struct mrc_plane *plane = &qp->planes[burst->port - 1];
  if (qp->state != MRC_QP_RTS || burst->packets[0]._kind == MRC_KIND_EV_PROBE) return;
  const bool of_plane =
      plane->suspended || is_of_interface(error) || !mrc_evset_can_spare(&qp->evset, ev);
  if (plane->reverse_ev == ev) plane->reverse_ev = MRC_EV_NONE; /* answers take another */
  if (of_plane) {
    plane->unsendable = true;
    mrc_loss_suspend_plane(engine, qp, burst->port - 1u, MRC_REASON_SEND, now_ns);
  } else {
    mrc_loss_distrust_ev(engine, qp, ev, MRC_REASON_SEND, now_ns);
  }
  mrc_qp_touch(engine, qp);
}

void mrc_engine_commit(struct mrc_engine *engine, const struct mrc_burst *bursts, const int *taken,
                       int n, uint64_t now_ns) {
  mrc_assert(engine->committing && n == engine->n_bursts);
  engine->committing = false;
  engine->now_ns = now_ns;
  /* Backwards, so that refused packets return to the ends of their lists in order. */
  for (int i = n - 1; i >= 0; i--) {
    struct mrc_qp *qp = engine->qps[bursts[i]._qp];
    mrc_assert(qp != NULL);
    for (int k = bursts[i].n_packets - 1; k >= 0; k--)
      commit_packet(engine, qp, &bursts[i], &bursts[i].packets[k], taken[i], now_ns);
  }
  /* Only now: a suspension takes all that is in flight there for lost, also of bursts before. */
  for (int i = 0; i < n; i++)
    if (taken[i] < 0) blame(engine, engine->qps[bursts[i]._qp], &bursts[i], taken[i], now_ns);
}
