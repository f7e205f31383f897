/* SPDX-License-Identifier: Apache-2.0 */
#include "health.h"

void mrc_health_report_ev(struct mrc_services *services, const struct mrc_qp *qp, uint16_t index,
                          enum mrc_event_reason reason) {
  const struct mrc_ev *ev = &qp->evset.evs[index];
  mrc_trace(services, MRC_TRACE_EV_STATE, qp->qpn, index, ev->state);
  if (ev->state == MRC_EV_SKIP) return; /* events report only GOOD, ASSUMED_BAD and DENIED */
  const struct mrc_event event = {.type = MRC_EVENT_EV_STATE,
                                  .qpn = qp->qpn,
                                  .ev_index = index,
                                  .port = ev->port,
                                  .status = ev->state,
                                  .reason = reason};
  mrc_event_push(services, &event);
}

void mrc_health_report_plane(struct mrc_services *services, const struct mrc_qp *qp, uint32_t plane,
                             enum mrc_event_type type, bool alive, enum mrc_event_reason reason) {
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
