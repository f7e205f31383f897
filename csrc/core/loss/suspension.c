/* SPDX-License-Identifier: Apache-2.0 */
#include "suspension.h"

#include "core/qp/peer_share.h"
#include "health.h"
#include "loss.h"

void mrc_suspension_begin(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                          enum mrc_event_reason reason, uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  struct mrc_txlist *list = &qp->req.win.lists[index];
  if (plane->suspended) return;
  mrc_plane_suspend(plane, qp->noise_ns, now_ns);
  mrc_peer_share_forget(qp, index);
  mrc_count(services, MRC_COUNTER_PLANES_SUSPENDED, 1);
  mrc_trace(services, MRC_TRACE_PLANE_SUSPEND, qp->qpn, mrc_port_of(index), list->bytes);
  while (list->oldest != MRC_TX_NONE)
    mrc_loss_mark(services, qp, mrc_txwin_psn_of(&qp->req.win, list->oldest),
                  MRC_COUNTER_LOST_BY_SILENCE, now_ns);
  /* Trust the EVs again that turned bad after the plane was last heard: the plane is now on
     probation instead. */
  for (uint16_t i = 0; i < qp->evset.planes[index].n; i++) {
    const uint16_t ev = qp->evset.planes[index].order[i];
    if (qp->evset.evs[ev].bad_since_ns >= plane->heard_ns)
      mrc_health_trust_ev(services, qp, ev, MRC_REASON_PLANE);
  }
  qp->ev_probe_ns = mrc_min_u64(qp->ev_probe_ns, plane->probation.next_ns);
  mrc_health_report_plane(services, qp, index, MRC_EVENT_PLANE, false, reason);
}

void mrc_suspension_on_peer_port_down(struct mrc_services *services, struct mrc_qp *qp,
                                      uint32_t index, uint64_t now_ns) {
  mrc_suspension_begin(services, qp, index, MRC_REASON_PEER_PORT, now_ns);
  mrc_probation_on_hearsay(&qp->planes[index].probation, qp->noise_ns, now_ns);
}

void mrc_suspension_retry(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                          uint64_t now_ns) {
  struct mrc_plane *plane = &qp->planes[index];
  if (plane->suspended) mrc_probation_on_mend(&plane->probation, now_ns);
  qp->ev_probe_ns = 0;
  mrc_qp_touch(services, qp);
}

void mrc_suspension_end(struct mrc_services *services, struct mrc_qp *qp, uint32_t index,
                        enum mrc_event_reason reason) {
  struct mrc_plane *plane = &qp->planes[index];
  if (!plane->suspended) return;
  if (plane->peer_down || !mrc_port_is_up(&services->ports, index))
    return; /* not before both ports are up */
  mrc_plane_resume(plane);
  mrc_peer_share_forget(qp, index);
  mrc_count(services, MRC_COUNTER_PLANES_RESUMED, 1);
  mrc_trace(services, MRC_TRACE_PLANE_RESUME, qp->qpn, mrc_port_of(index),
            plane->probation.relapses);
  mrc_health_report_plane(services, qp, index, MRC_EVENT_PLANE, true, reason);
  mrc_qp_touch(services, qp);
}
