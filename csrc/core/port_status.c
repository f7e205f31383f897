/* SPDX-License-Identifier: Apache-2.0 */
#include "port_status.h"

#include <errno.h>

#include "probe.h"

/* The peer's view is certain when the newest message was answered and no other is on its way. One
   that was not answered may be: it could arrive last and undo the newest. So after any such a
   second message is sent, when the older ones are gone. */
enum { ANSWERS_IN_ORDER = 1, ANSWERS_IN_DOUBT = 2 };

void mrc_port_status_init(const struct mrc_engine *engine, struct mrc_peer *peer) {
  peer->status = (struct mrc_port_status){.told = mrc_all_ports(engine->config.ports),
                                          .in_doubt = engine->port_was_down};
}

static void set_timer(struct mrc_engine *engine, const struct mrc_peer *peer, uint64_t at_ns) {
  mrc_timers_set(&engine->peer_timers, peer->index, at_ns);
}

/* Queues a message now, or as soon as there is a slot for it. One that has not left yet will carry
   the news as well. */
static void send(struct mrc_engine *engine, struct mrc_peer *peer) {
  struct mrc_port_status *status = &peer->status;
  set_timer(engine, peer, MRC_NEVER);
  if (status->waits || mrc_ev_probe_is_queued(engine, peer, status->id)) return;
  const struct mrc_ev_probe *message = mrc_port_status_message(engine, peer, status->interval_ns);
  if (message != NULL) {
    status->id = message->id;
    return;
  }
  status->waits = true;
  status->next = engine->status_waiting;
  engine->status_waiting = peer;
}

bool mrc_port_status_on_room(struct mrc_engine *engine) {
  struct mrc_peer *peer = engine->status_waiting;
  if (peer == NULL) return false;
  engine->status_waiting = peer->status.next;
  peer->status.waits = false;
  send(engine, peer);
  return true;
}

void mrc_port_status_drop(struct mrc_engine *engine, struct mrc_peer *peer) {
  set_timer(engine, peer, MRC_NEVER);
  if (!peer->status.waits) return;
  struct mrc_peer **at = &engine->status_waiting;
  while (*at != peer)
    at = &(*at)->status.next;
  *at = peer->status.next;
}

static void tell(struct mrc_engine *engine, struct mrc_peer *peer, uint8_t answers) {
  struct mrc_port_status *status = &peer->status;
  const struct mrc_qp *qp = mrc_peer_live_qp(peer);
  if (qp == NULL) return;
  status->answers_wanted = answers;
  status->interval_ns = mrc_max_u64(mrc_floor_ns(MRC_PORT_STATUS_FIRST_NS, engine->config.noise_ns),
                                    2 * mrc_rtt_overdue_ns(&qp->req.rtt, 0));
  send(engine, peer);
}

void mrc_port_status_on_change(struct mrc_engine *engine, struct mrc_peer *peer) {
  const struct mrc_port_status *status = &peer->status;
  if (status->answers_wanted != 0)
    tell(engine, peer, ANSWERS_IN_DOUBT);
  else if (status->told != engine->ports_up || status->in_doubt)
    tell(engine, peer, ANSWERS_IN_ORDER);
}

/* An EV of this plane, on any QP of the peer. */
static bool choose_on_plane(struct mrc_peer *peer, uint32_t plane, bool suspended,
                            struct mrc_qp **qp, uint16_t *ev) {
  for (struct mrc_qp *at = peer->qps; at != NULL; at = at->peer_next) {
    if (!mrc_qp_is_live(at) || at->planes[plane].suspended != suspended) continue;
    *ev = mrc_evset_any(&at->evset, plane);
    *qp = at;
    if (*ev != MRC_EV_NONE) return true;
  }
  return false;
}

bool mrc_port_status_choose(struct mrc_engine *engine, struct mrc_peer *peer, uint32_t ports,
                            struct mrc_qp **qp, uint16_t *ev) {
  const uint32_t wanted = ports & peer->ports_up & mrc_all_ports(engine->config.ports);
  for (int suspended = 0; suspended < 2; suspended++) { /* suspended planes for want of others */
    for (uint32_t turn = 1; turn <= MRC_MAX_PORTS; turn++) {
      const uint32_t plane = (peer->status.plane + turn) % MRC_MAX_PORTS;
      if ((wanted >> plane & 1) == 0 || !choose_on_plane(peer, plane, suspended, qp, ev)) continue;
      peer->status.plane = (uint8_t)plane;
      return true;
    }
  }
  return false;
}

void mrc_port_status_expire(struct mrc_engine *engine, uint64_t now_ns) {
  for (;;) {
    const uint32_t index = mrc_timers_pop(&engine->peer_timers, now_ns);
    if (index == UINT32_MAX) return;
    struct mrc_peer *peer = &engine->peers.peers[index];
    if (mrc_peer_live_qp(peer) != NULL) send(engine, peer); /* else a new QP asks again */
  }
}

void mrc_port_status_on_answer(struct mrc_engine *engine, struct mrc_peer *peer,
                               const struct mrc_ev_probe *message, uint64_t now_ns) {
  struct mrc_port_status *status = &peer->status;
  mrc_trace(engine, MRC_TRACE_PORT_STATUS_TOLD, 0, message->id, message->ports_up);
  if (status->waits || message->id != status->id || status->answers_wanted == 0) return;
  status->told = message->ports_up;
  status->in_doubt = false;
  if (--status->answers_wanted > 0) set_timer(engine, peer, now_ns + MRC_PORT_STATUS_SETTLE_NS);
}

void mrc_port_status_on_failure(struct mrc_engine *engine, struct mrc_peer *peer,
                                const struct mrc_ev_probe *message, int error, uint64_t now_ns) {
  struct mrc_port_status *status = &peer->status;
  if (status->waits || message->id != status->id || status->answers_wanted == 0) return;
  status->answers_wanted = ANSWERS_IN_DOUBT;
  status->interval_ns = mrc_min_u64(2 * status->interval_ns, MRC_PORT_STATUS_SLOWEST_NS);
  /* An answer was waited for long enough; what the kernel refused is not offered again at once. */
  set_timer(engine, peer, error == -ETIMEDOUT ? now_ns : now_ns + status->interval_ns);
}
