/* SPDX-License-Identifier: Apache-2.0 */
#include "commit.h"

#include <errno.h>

#include "core/loss/health.h"
#include "core/recv/responder_tx.h"
#include "core/send/requester_tx.h"

/* Whether a failed send takes an EV or a plane out of use, so that the next try uses another path.
 */
static bool is_blamed(const struct mrc_qp *qp, const struct mrc_burst *burst) {
  const struct mrc_ev_plane *rotation = &qp->evset.planes[mrc_plane_of(burst->port)];
  return qp->state == MRC_QP_RTS && !qp->planes[mrc_plane_of(burst->port)].suspended &&
         qp->evset.evs[burst->_ev].place < rotation->n_active;
}

/* A packet that was not sent keeps its place and is tried again at once. If the send failed and the
   next try would use the same path, the packet is left to the timers, as if the network lost it. */
static void commit_packet(struct mrc_services *services, struct mrc_endpoint *endpoint,
                          struct mrc_qp *qp, const struct mrc_burst *burst,
                          const struct mrc_packet *packet, int taken, uint64_t now_ns) {
  static const enum mrc_counter counter_of[] = {[MRC_KIND_SACK] = MRC_COUNTER_TX_SACKS,
                                                [MRC_KIND_NACK] = MRC_COUNTER_TX_NACKS,
                                                [MRC_KIND_ACK] = MRC_COUNTER_TX_ACKS,
                                                [MRC_KIND_PROBE] = MRC_COUNTER_TX_PROBES,
                                                [MRC_KIND_ANSWER] = MRC_COUNTER_TX_EV_ANSWERS};
  if (packet->_kind == MRC_KIND_EV_PROBE) {
    mrc_endpoint_on_commit(services, endpoint, packet->_slot, taken, now_ns);
  } else if (taken == 1) {
    mrc_count(services, counter_of[packet->_kind], 1);
  } else if (taken == 0 || is_blamed(qp, burst)) {
    mrc_count(services, MRC_COUNTER_TX_REFUSED, 1);
    if (packet->_kind == MRC_KIND_DATA || packet->_kind == MRC_KIND_PROBE)
      mrc_requester_on_refused(services, qp, packet);
    else if (packet->_kind == MRC_KIND_ANSWER)
      mrc_answer_on_refused(&endpoint->answers, packet->_slot);
    else
      mrc_responder_on_refused(services, qp, packet);
  }
}

void mrc_commit_burst(struct mrc_services *services, struct mrc_endpoint *endpoint,
                      struct mrc_qp *qp, const struct mrc_burst *burst, int taken,
                      uint64_t now_ns) {
  if (taken == 1 && burst->packets[0]._kind == MRC_KIND_DATA) {
    mrc_requester_on_taken(services, qp, burst);
    return;
  }
  /* Last to first, so that refused packets return to their queues in order. */
  for (int k = burst->n_packets - 1; k >= 0; k--)
    commit_packet(services, endpoint, qp, burst, &burst->packets[k], taken, now_ns);
}

/* Whether the error concerns the whole interface, not just a path: the interface is down or gone.
 */
static bool is_of_interface(int error) {
  return error == -ENETDOWN || error == -ENODEV || error == -ENXIO;
}

void mrc_commit_blame(struct mrc_services *services, struct mrc_qp *qp,
                      const struct mrc_burst *burst, int error, uint64_t now_ns) {
  const uint16_t ev = (uint16_t)burst->_ev;
  struct mrc_plane *plane = &qp->planes[mrc_plane_of(burst->port)];
  if (qp->state != MRC_QP_RTS || burst->packets[0]._kind == MRC_KIND_EV_PROBE) return;
  const bool of_plane =
      plane->suspended || is_of_interface(error) || !mrc_evset_can_spare(&qp->evset, ev);
  if (plane->reverse_ev == ev) plane->reverse_ev = MRC_EV_NONE; /* answers use another EV */
  if (of_plane) {
    plane->unsendable = true;
    mrc_health_suspend_plane(services, qp, mrc_plane_of(burst->port), MRC_REASON_SEND, now_ns);
  } else {
    mrc_health_distrust_ev(services, qp, ev, MRC_REASON_SEND, now_ns);
  }
  mrc_qp_touch(services, qp);
}
