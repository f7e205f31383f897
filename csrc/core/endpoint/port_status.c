/* SPDX-License-Identifier: Apache-2.0 */
#include "port_status.h"

#include <errno.h>
#include <stdlib.h>

#include "core/loss/health.h"

/* ---- our ports, reported to the peer ---- */

/* The peer's view is certain when it answered the newest message and no older message is in flight.
   An unanswered message may still be in flight: it could arrive last and undo the newest. So after
   an unanswered message, a second one follows when the older ones must be gone. */
enum { ANSWERS_IN_ORDER = 1, ANSWERS_IN_DOUBT = 2 };

int mrc_port_statuses_init(struct mrc_port_statuses *statuses, uint32_t max_peers) {
  statuses->of = calloc(max_peers, sizeof *statuses->of);
  struct mrc_timer_cell *cells = malloc(max_peers * sizeof *cells);
  mrc_timers_init(&statuses->timers, cells, max_peers);
  return statuses->of == NULL || cells == NULL ? -ENOMEM : 0;
}

void mrc_port_statuses_free(struct mrc_port_statuses *statuses) {
  free(statuses->of);
  free(statuses->timers.cells);
}

void mrc_port_status_init(const struct mrc_services *services, struct mrc_port_statuses *statuses,
                          struct mrc_peer *peer) {
  *mrc_port_status_of(statuses, peer) =
      (struct mrc_port_status){.peer = peer,
                               .confirmed = mrc_all_ports(services->config.ports),
                               .in_doubt = services->ports.was_down};
}

static void set_timer(struct mrc_port_statuses *statuses, const struct mrc_port_status *status,
                      uint64_t at_ns) {
  mrc_timers_set(&statuses->timers, status->peer->index, at_ns);
}

/* Whether the newest message has not left yet. */
static bool is_queued(const struct mrc_services *services, const struct mrc_port_status *status) {
  const struct mrc_ev_probe *message = mrc_probes_find(&services->probes, status->id);
  return message != NULL && message->user == &status->messages && !message->sent;
}

/* Queues a message now, or as soon as a slot is free. A message that is still queued needs no
   second one: it will report the ports that are up when it leaves. */
static void send(struct mrc_services *services, struct mrc_port_statuses *statuses,
                 struct mrc_port_status *status) {
  set_timer(statuses, status, MRC_NEVER);
  if (status->waits || is_queued(services, status)) return;
  const struct mrc_ev_probe request = {
      .peer = status->peer, .timeout_ns = status->interval_ns, .purpose = MRC_EV_PROBE_PORT_STATUS};
  const struct mrc_ev_probe *message =
      mrc_probes_start(&services->probes, &status->messages, &request);
  if (message != NULL) {
    status->id = message->id;
    return;
  }
  status->waits = true;
  status->next = statuses->waiting;
  statuses->waiting = status;
}

bool mrc_port_status_on_room(struct mrc_services *services, struct mrc_port_statuses *statuses) {
  struct mrc_port_status *status = statuses->waiting;
  if (status == NULL) return false;
  statuses->waiting = status->next;
  status->waits = false;
  send(services, statuses, status);
  return true;
}

void mrc_port_status_drop(struct mrc_port_statuses *statuses, const struct mrc_peer *peer) {
  const struct mrc_port_status *status = mrc_port_status_of(statuses, peer);
  set_timer(statuses, status, MRC_NEVER);
  if (!status->waits) return;
  struct mrc_port_status **at = &statuses->waiting;
  while (*at != status)
    at = &(*at)->next;
  *at = status->next;
}

static void inform(struct mrc_services *services, struct mrc_port_statuses *statuses,
                   struct mrc_port_status *status, uint8_t answers) {
  const struct mrc_qp *qp = mrc_peer_live_qp(status->peer);
  if (qp == NULL) return;
  const uint64_t first_ns = mrc_floor_ns(MRC_PORT_STATUS_FIRST_NS, services->config.noise_ns);
  status->answers_wanted = answers;
  status->interval_ns = mrc_max_u64(first_ns, 2 * mrc_rtt_overdue_ns(&qp->req.rtt, 0));
  send(services, statuses, status);
}

void mrc_port_status_on_change(struct mrc_services *services, struct mrc_port_statuses *statuses,
                               const struct mrc_peer *peer) {
  struct mrc_port_status *status = mrc_port_status_of(statuses, peer);
  if (status->answers_wanted != 0)
    inform(services, statuses, status, ANSWERS_IN_DOUBT);
  else if (status->confirmed != services->ports.up || status->in_doubt)
    inform(services, statuses, status, ANSWERS_IN_ORDER);
}

/* An EV of this plane, on any QP of the peer. */
static bool choose_on_plane(const struct mrc_peer *peer, uint32_t plane, bool suspended,
                            struct mrc_qp **qp, uint16_t *ev) {
  for (struct mrc_qp *at = peer->qps; at != NULL; at = at->peer_next) {
    if (!mrc_qp_is_live(at) || at->planes[plane].suspended != suspended) continue;
    *ev = mrc_evset_any(&at->evset, plane);
    *qp = at;
    if (*ev != MRC_EV_NONE) return true;
  }
  return false;
}

bool mrc_port_status_choose(const struct mrc_services *services, struct mrc_port_status *status,
                            uint32_t ports, struct mrc_qp **qp, uint16_t *ev) {
  const struct mrc_peer *peer = status->peer;
  const uint32_t wanted = ports & peer->ports_up & mrc_all_ports(services->config.ports);
  for (int suspended = 0; suspended < 2; suspended++) { /* suspended planes last */
    for (uint32_t turn = 1; turn <= MRC_MAX_PORTS; turn++) {
      const uint32_t plane = (status->plane + turn) % MRC_MAX_PORTS;
      if ((wanted >> plane & 1) == 0 || !choose_on_plane(peer, plane, suspended, qp, ev)) continue;
      status->plane = (uint8_t)plane;
      return true;
    }
  }
  return false;
}

void mrc_port_status_expire(struct mrc_services *services, struct mrc_port_statuses *statuses,
                            uint64_t now_ns) {
  for (;;) {
    const uint32_t index = mrc_timers_pop(&statuses->timers, now_ns);
    if (index == UINT32_MAX) return;
    struct mrc_port_status *status = &statuses->of[index];
    if (mrc_peer_live_qp(status->peer) != NULL)
      send(services, statuses, status); /* else the next QP to join starts again */
  }
}

/* The status of the message's peer if this is its newest message and answers are needed, else 0. */
static struct mrc_port_status *status_of(const struct mrc_port_statuses *statuses,
                                         const struct mrc_ev_probe *message) {
  struct mrc_port_status *status = mrc_port_status_of(statuses, message->peer);
  const bool newest = !status->waits && message->id == status->id;
  return newest && status->answers_wanted != 0 ? status : NULL;
}

void mrc_port_status_on_answer(struct mrc_services *services, struct mrc_port_statuses *statuses,
                               const struct mrc_ev_probe *message, uint64_t now_ns) {
  struct mrc_port_status *status = status_of(statuses, message);
  mrc_trace(services, MRC_TRACE_PORT_STATUS_TOLD, 0, message->id, message->ports_up);
  if (status == NULL) return;
  status->confirmed = message->ports_up;
  status->in_doubt = false;
  if (--status->answers_wanted > 0) set_timer(statuses, status, now_ns + MRC_PORT_STATUS_SETTLE_NS);
}

void mrc_port_status_on_failure(struct mrc_port_statuses *statuses,
                                const struct mrc_ev_probe *message, int error, uint64_t now_ns) {
  struct mrc_port_status *status = status_of(statuses, message);
  if (status == NULL) return;
  status->answers_wanted = ANSWERS_IN_DOUBT;
  status->interval_ns = mrc_min_u64(2 * status->interval_ns, MRC_PORT_STATUS_SLOWEST_NS);
  /* Repeat at once after a timeout; wait first if the kernel refused the message. */
  set_timer(statuses, status, error == -ETIMEDOUT ? now_ns : now_ns + status->interval_ns);
}

/* ---- the peer's ports ---- */

void mrc_port_status_on_joined(const struct mrc_services *services, struct mrc_qp *qp) {
  struct mrc_peer *peer = qp->peer;
  /* Without a live QP no reports arrive, so the last one may be out of date. */
  if (mrc_peer_live_qp(peer) == NULL) peer->ports_up = UINT32_MAX;
  for (uint32_t i = 0; i < services->config.ports; i++)
    qp->planes[i].peer_down = (peer->ports_up >> i & 1) == 0;
}

static void set_ports(struct mrc_services *services, struct mrc_qp *qp, uint32_t changed,
                      uint32_t mask, uint64_t now_ns) {
  /* The peer's ports beyond ours belong to no common plane. */
  MRC_EACH_BIT(plane, changed & mrc_all_ports(services->config.ports)) {
    const bool down = (mask >> plane & 1) == 0;
    qp->planes[plane].peer_down = down;
    if ((qp->evset.plane_mask >> plane & 1) == 0) continue;
    mrc_health_report_plane(services, qp, plane, MRC_EVENT_PORT, !down, MRC_REASON_PEER_PORT);
    if (qp->state != MRC_QP_RTS) continue;
    if (down)
      mrc_health_on_peer_port_down(services, qp, plane, now_ns);
    else
      mrc_health_retry_plane(services, qp, plane, now_ns);
  }
  mrc_qp_touch(services, qp);
}

void mrc_port_status_on_news(struct mrc_services *services, struct mrc_peer *peer,
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

void mrc_port_status_on_proved(struct mrc_services *services, struct mrc_peer *peer, uint32_t plane,
                               uint64_t now_ns) {
  const uint32_t bit = 1u << plane;
  if ((peer->ports_up & bit) != 0) return;
  peer->ports_up |= bit;
  for (struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next)
    set_ports(services, qp, bit, peer->ports_up, now_ns);
}
