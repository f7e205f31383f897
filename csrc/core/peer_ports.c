/* SPDX-License-Identifier: Apache-2.0 */
#include "peer_ports.h"

#include "health.h"
#include "suspension.h"

void mrc_peer_ports_on_joined(const struct mrc_services *services, struct mrc_qp *qp) {
  struct mrc_peer *peer = qp->peer;
  /* What it told QPs of which none is left may be old: it tells no others. */
  if (mrc_peer_live_qp(peer) == NULL) peer->ports_up = UINT32_MAX;
  for (uint32_t i = 0; i < services->config.ports; i++)
    qp->planes[i].peer_down = (peer->ports_up >> i & 1) == 0;
}

static void set_ports(struct mrc_services *services, struct mrc_qp *qp, uint32_t changed,
                      uint32_t mask, uint64_t now_ns) {
  /* A peer with more ports than we have shares no plane on those. */
  MRC_EACH_BIT(plane, changed & mrc_all_ports(services->config.ports)) {
    const bool down = (mask >> plane & 1) == 0;
    qp->planes[plane].peer_down = down;
    if ((qp->evset.plane_mask >> plane & 1) == 0) continue;
    mrc_health_report_plane(services, qp, plane, MRC_EVENT_PORT, !down, MRC_REASON_PEER_PORT);
    if (qp->state != MRC_QP_RTS) continue;
    if (down)
      mrc_suspension_on_peer_port_down(services, qp, plane, now_ns);
    else
      mrc_suspension_retry(services, qp, plane, now_ns);
  }
  mrc_qp_touch(services, qp);
}

void mrc_peer_ports_on_status(struct mrc_services *services, struct mrc_peer *peer,
                              const struct mrc_wire *wire, uint64_t now_ns) {
  const uint32_t mask = wire->endpoint.port_status_mask;
  const uint32_t changed = mask ^ peer->ports_up;
  if (changed == 0) return;
  peer->ports_up = mask;
  mrc_count(services, MRC_COUNTER_RX_PORT_STATUS, 1);
  mrc_trace(services, MRC_TRACE_PORT_STATUS_IN, peer->qps->qpn, wire->psn, mask);
  for (struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next)
    set_ports(services, qp, changed, mask, now_ns);
}

void mrc_peer_ports_on_proved(struct mrc_services *services, struct mrc_peer *peer, uint32_t plane,
                              uint64_t now_ns) {
  const uint32_t bit = 1u << plane;
  if ((peer->ports_up & bit) != 0) return;
  peer->ports_up |= bit;
  for (struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next)
    set_ports(services, qp, bit, peer->ports_up, now_ns);
}
