/* SPDX-License-Identifier: Apache-2.0 */
#include "probe.h"

#include "acks.h"
#include "burst.h"

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

bool mrc_probe_send(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_reliability_probe *probe = &qp->req.probe;
  const uint32_t planes = mrc_qp_eligible_planes(services, qp) & ~services->ports.blocked;
  if (planes == 0) return true;
  uint32_t plane = probe->outstanding ? probe->plane + 1u : most_overdue_plane(qp);
  while ((planes >> plane % MRC_MAX_PORTS & 1) == 0)
    plane++; /* ends: one bit of the mask is set */
  const uint16_t ev = mrc_evset_any(&qp->evset, plane % MRC_MAX_PORTS);
  struct mrc_burst *burst = mrc_burst_open(services, qp, ev, MRC_TCLASS_DATA);
  if (burst == NULL) return false;
  *probe = (struct mrc_reliability_probe){.sent_ns = now_ns,
                                          .id = (uint16_t)(probe->id + 1),
                                          .ev = ev,
                                          .plane = (uint8_t)mrc_plane_of(burst->port),
                                          .outstanding = true};
  struct mrc_wire wire = {.opcode = MRC_OP_PROBE,
                          .dest_qpn = qp->attr.dest_qpn,
                          .probe = {.probe_id = probe->id,
                                    .spdcid = (uint16_t)qp->qpn,
                                    .dpdcid = (uint16_t)qp->attr.dest_qpn,
                                    .tx_timestamp = mrc_timestamp(now_ns),
                                    .tsr = true}};
  mrc_burst_add(services, burst, &wire, MRC_KIND_PROBE, 0, mrc_qp_has_icrc(qp));
  mrc_trace(services, MRC_TRACE_PROBE_OUT, qp->qpn, probe->id, probe->plane);
  return true;
}

void mrc_probe_on_answer(struct mrc_services *services, struct mrc_qp *qp,
                         const struct mrc_sack *sack, const struct mrc_meta *meta,
                         struct mrc_cc_ack *ack, uint64_t now_ns) {
  struct mrc_reliability_probe *probe = &qp->req.probe;
  const uint16_t id = (uint16_t)sack->ack_psn_offset;
  if (!probe->outstanding || probe->id != id) return;
  probe->outstanding = false;
  mrc_plane_on_delivered(&qp->planes[probe->plane], probe->sent_ns, now_ns);
  mrc_evset_on_delivered(&qp->evset, probe->ev, probe->sent_ns, qp->planes[probe->plane].rack_ns);
  const uint64_t rtt_ns = mrc_acks_round_trip_ns(meta, sack->tx_timestamp, probe->sent_ns);
  if (rtt_ns != 0) mrc_acks_on_rtt(qp, probe->ev, rtt_ns, ack);
  mrc_requester_on_progress(&qp->req, now_ns);
  mrc_trace(services, MRC_TRACE_PROBE_IN, qp->qpn, id, rtt_ns);
}
