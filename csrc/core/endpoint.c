/* SPDX-License-Identifier: Apache-2.0 */
/* Four parts: our ports, as reported to peers; ports of peers; EV probes of a QP, with what follows
   from their results; answers to requests of peers. Below them stands what they share: a request
   waits for a slot (services.h), leaves, and ends with an answer or a failure. */
#include "core/endpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/loss.h"
#include "core/send.h"

/* ---- our ports, reported to the peer ---- */

/* The peer's view is certain when it answered the newest message and no older message is in flight.
   An unanswered message may still be in flight: it could arrive last and undo the newest. So after
   an unanswered message, a second one follows when the older ones must be gone. */
enum { ANSWERS_IN_ORDER = 1, ANSWERS_IN_DOUBT = 2 };

static void set_timer(struct mrc_port_statuses *statuses, const struct mrc_port_status *status,
                      uint64_t at_ns) {
  mrc_timers_set(&statuses->timers, status->peer->index, at_ns);
}

/* Queues a message now, or as soon as a slot is free. A message that is still queued needs no
   second one: it will report the ports that are up when it leaves. */
static void send_status(struct mrc_services *services, struct mrc_port_statuses *statuses,
                        struct mrc_port_status *status) {
  set_timer(statuses, status, MRC_NEVER);
  const struct mrc_ev_probe *newest = mrc_probes_find(&services->probes, status->id);
  const bool queued = newest != NULL && newest->user == &status->messages && !newest->sent;
  if (status->waits || queued) return;
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

static void inform(struct mrc_services *services, struct mrc_port_statuses *statuses,
                   struct mrc_port_status *status, uint8_t answers) {
  const struct mrc_qp *qp = mrc_peer_live_qp(status->peer);
  if (qp == NULL) return;
  const uint64_t first_ns = mrc_floor_ns(MRC_PORT_STATUS_FIRST_NS, services->config.noise_ns);
  status->answers_wanted = answers;
  status->interval_ns = mrc_max_u64(first_ns, 2 * mrc_rtt_overdue_ns(&qp->req.rtt, 0));
  send_status(services, statuses, status);
}

void mrc_port_status_on_change(struct mrc_services *services, struct mrc_port_statuses *statuses,
                               const struct mrc_peer *peer) {
  struct mrc_port_status *status = mrc_port_status_of(statuses, peer);
  if (status->answers_wanted != 0)
    inform(services, statuses, status, ANSWERS_IN_DOUBT);
  else if (status->confirmed != services->ports.up || status->in_doubt)
    inform(services, statuses, status, ANSWERS_IN_ORDER);
}

/* An EV of this plane, on any QP of the peer, if its port here is in `ports` and that of the peer
   is up. */
static bool choose_on_plane(const struct mrc_peer *peer, uint32_t plane, uint32_t ports,
                            bool suspended, struct mrc_qp **qp, uint16_t *ev) {
  for (struct mrc_qp *at = peer->qps; at != NULL; at = at->peer_next) {
    const uint32_t planes = mrc_evset_on_ports(&at->evset, ports) &
                            mrc_evset_crossing(&at->evset, peer->ports_up, true) &
                            ~at->evset.unproven;
    if (!mrc_qp_is_live(at) || (planes >> plane & 1) == 0) continue;
    if (at->planes[plane].suspended != suspended) continue;
    *ev = mrc_evset_any(&at->evset, plane);
    *qp = at;
    if (*ev != MRC_EV_NONE) return true;
  }
  return false;
}

/* Chooses the QP and the EV of the message, on the next plane in turn among `ports`. False when
   none of these ports has a usable EV. */
static bool choose_for_status(const struct mrc_services *services, struct mrc_port_status *status,
                              uint32_t ports, struct mrc_qp **qp, uint16_t *ev) {
  const uint32_t n = services->config.ports;
  for (int suspended = 0; suspended < 2; suspended++) { /* suspended planes last */
    for (uint32_t turn = 1; turn <= n; turn++) {
      const uint32_t plane = (status->plane + turn) % n;
      if (!choose_on_plane(status->peer, plane, ports, suspended, qp, ev)) continue;
      status->plane = (uint8_t)plane;
      return true;
    }
  }
  return false;
}

/* The status of the message's peer if this is its newest message and answers are needed, else 0. */
static struct mrc_port_status *status_of(const struct mrc_port_statuses *statuses,
                                         const struct mrc_ev_probe *message) {
  struct mrc_port_status *status = mrc_port_status_of(statuses, message->peer);
  const bool newest = !status->waits && message->id == status->id;
  return newest && status->answers_wanted != 0 ? status : NULL;
}

/* A message has ended and its slot is free: the peer answered, or it failed with -ETIMEDOUT or the
   kernel's error. */
static void on_status_answer(struct mrc_services *services, struct mrc_port_statuses *statuses,
                             const struct mrc_ev_probe *message, uint64_t now_ns) {
  struct mrc_port_status *status = status_of(statuses, message);
  mrc_trace(services, MRC_TRACE_PORT_STATUS_TOLD, 0, message->id, message->ports_up);
  if (status == NULL) return;
  status->confirmed = message->ports_up;
  status->in_doubt = false;
  if (--status->answers_wanted > 0) set_timer(statuses, status, now_ns + MRC_PORT_STATUS_SETTLE_NS);
}

static void on_status_failure(struct mrc_port_statuses *statuses,
                              const struct mrc_ev_probe *message, int error, uint64_t now_ns) {
  struct mrc_port_status *status = status_of(statuses, message);
  if (status == NULL) return;
  status->answers_wanted = ANSWERS_IN_DOUBT;
  status->interval_ns = mrc_min_u64(2 * status->interval_ns, MRC_PORT_STATUS_SLOWEST_NS);
  /* Repeat at once after a timeout; wait first if the kernel refused the message. */
  set_timer(statuses, status, error == -ETIMEDOUT ? now_ns : now_ns + status->interval_ns);
}

/* ---- the peer's ports ---- */

static void set_ports(struct mrc_services *services, struct mrc_qp *qp, uint32_t changed,
                      uint32_t mask, uint64_t now_ns) {
  MRC_EACH_BIT(plane, mrc_evset_crossing(&qp->evset, changed, true)) {
    const bool down = (mask >> qp->evset.planes[plane].peer_port & 1) == 0;
    qp->planes[plane].peer_down = down;
    mrc_health_report_plane(services, qp, plane, MRC_EVENT_PORT, !down, MRC_REASON_PEER_PORT);
    if (qp->state != MRC_QP_RTS) continue;
    if (down)
      mrc_health_on_peer_port_down(services, qp, plane, now_ns);
    else
      mrc_health_retry_plane(services, qp, plane, now_ns);
  }
  mrc_qp_touch(services, qp);
}

/* A port status came from this peer. It holds for every QP of the peer; repeats have no effect. */
static void on_news(struct mrc_services *services, struct mrc_peer *peer,
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

/* The peer answered probes on a plane of the QP: its port is up, even if a port status said
   otherwise. */
static void on_proved(struct mrc_services *services, const struct mrc_qp *proving, uint32_t plane,
                      uint64_t now_ns) {
  struct mrc_peer *peer = proving->peer;
  const uint32_t bit = 1u << proving->evset.planes[plane].peer_port;
  if ((peer->ports_up & bit) != 0) return;
  peer->ports_up |= bit;
  for (struct mrc_qp *qp = peer->qps; qp != NULL; qp = qp->peer_next)
    set_ports(services, qp, bit, peer->ports_up, now_ns);
}

/* ---- EV probes of a QP ---- */

#define HEALTH_TIMEOUT_FLOOR_NS 10000000ull /* minimum timeout of a probe */
#define PATIENT_NS 1000000000ull            /* timeout of a patient one */
#define PATIENT_AFTER 3                     /* probes in a row that timed out */
#define BACKUP_NS 1000000000ull             /* between probes of a backup that is not needed */

/* The backups that carry nothing, because another plane works: their links may have a price. */
static uint32_t spare_planes(const struct mrc_services *services, const struct mrc_qp *qp) {
  const bool spare = (mrc_qp_planes(services, qp, false) & ~qp->choice.backups) != 0;
  return spare ? qp->choice.backups : 0;
}

/* Probes are as large as a full packet: a path is not trusted if its MTU shrank, or if full packets
   are slow on it. After a probe without an answer the next one is small, because the path is
   probably dead, and probes take room on the link from data. False if there is no slot; the probe
   stays due. */
static bool probe_for(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                      uint8_t purpose, struct mrc_probation *probation, uint64_t now_ns) {
  if (ev == MRC_EV_NONE) { /* all EVs of the plane are DENIED */
    mrc_probation_on_timeout(probation, qp->noise_ns, now_ns);
    return true;
  }
  /* The QP's round trip comes from EVs that answer. An EV on a much longer path would always time
     out and stay bad, so the round trip of its own probes counts too, and on a suspended plane that
     of its patient probes. */
  const struct mrc_plane *plane = &qp->planes[qp->evset.evs[ev].plane];
  const uint64_t floor_ns = mrc_floor_ns(HEALTH_TIMEOUT_FLOOR_NS, qp->noise_ns);
  uint64_t overdue_ns = mrc_max_u64(mrc_rtt_overdue_ns(&qp->req.rtt, 0), qp->evset.evs[ev].rtt_ns);
  if (plane->suspended) overdue_ns = mrc_max_u64(overdue_ns, plane->rtt.smooth_ns);
  const struct mrc_ev_probe probe = {
      .ev = ev,
      .qp = qp,
      .bytes = mrc_probation_is_in_doubt(probation) ? 0 : mrc_qp_full_bytes(qp),
      .timeout_ns = mrc_max_u64(2 * overdue_ns, floor_ns),
      .purpose = purpose};
  if (mrc_probes_start(&services->probes, &qp->probes, &probe) == NULL) return false;
  mrc_probation_on_probe(probation);
  return true;
}

/* Other traffic may fill a queue of the plane; then each answer comes after the timeout of its
   probe, for as long as that traffic lasts. So beside the frequent probes, which find a plane that
   returns soon, one at a time has a long timeout. The round trip that it measures sets the timeout
   of the others. */
static void probe_patiently(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev) {
  if (ev == MRC_EV_NONE) return;
  struct mrc_plane *plane = &qp->planes[qp->evset.evs[ev].plane];
  if (plane->patient || plane->unsendable || plane->peer_down) return;
  if (plane->probation.doublings < PATIENT_AFTER) return;
  const struct mrc_ev_probe probe = {.ev = ev,
                                     .qp = qp,
                                     .bytes = mrc_qp_full_bytes(qp),
                                     .timeout_ns = PATIENT_NS,
                                     .purpose = MRC_EV_PROBE_PATIENT};
  plane->patient = mrc_probes_start(&services->probes, &qp->probes, &probe) != NULL;
}

/* Probes the planes whose probe is due. Returns the time of the next one. */
static uint64_t probe_planes(struct mrc_services *services, struct mrc_qp *qp, bool *room,
                             uint64_t now_ns) {
  uint64_t next_ns = MRC_NEVER;
  const uint32_t up = mrc_evset_on_ports(&qp->evset, services->ports.up);
  const uint32_t spare = spare_planes(services, qp);
  MRC_EACH_BIT(index, qp->evset.plane_mask & ~qp->evset.unproven) {
    struct mrc_plane *plane = &qp->planes[index];
    if (!plane->suspended || (up >> index & 1) == 0) continue;
    /* A backup that is needed now does not wait any longer. */
    const uint64_t slowest_ns = now_ns + mrc_probation_interval_ns(&plane->probation, qp->noise_ns);
    if ((spare >> index & 1) == 0 && plane->probation.next_ns != MRC_NEVER)
      plane->probation.next_ns = mrc_min_u64(plane->probation.next_ns, slowest_ns);
    if (now_ns >= plane->probation.next_ns && *room) {
      /* The EV whose probe may bring the plane back: each in turn, the rotation first, until one
         answers. That one is probed again, because the others may be dead. */
      uint16_t ev = plane->probed_ev;
      const bool answered = ev != MRC_EV_NONE && plane->probation.successes > 0;
      if (!answered || mrc_ev_is_barred(&qp->evset.evs[ev]))
        ev = mrc_evset_after(&qp->evset, index, ev);
      if ((spare >> index & 1) == 0) probe_patiently(services, qp, ev);
      *room = probe_for(services, qp, ev, MRC_EV_PROBE_PLANE, &plane->probation, now_ns);
      if (*room) plane->probed_ev = ev;
    }
    if (plane->probation.next_ns > now_ns) next_ns = mrc_min_u64(next_ns, plane->probation.next_ns);
  }
  return next_ns;
}

/* Likewise for EVs. Begins with the EV that got no slot the last time, so that all get a turn. */
static uint64_t probe_evs(struct mrc_services *services, struct mrc_qp *qp, bool *room,
                          uint64_t now_ns) {
  uint64_t next_ns = MRC_NEVER;
  const uint16_t first = qp->next_ev_probe;
  for (uint16_t k = 0; k < qp->evset.n; k++) {
    const uint16_t i = (uint16_t)((first + k) % qp->evset.n);
    struct mrc_ev *ev = &qp->evset.evs[i];
    if (ev->state != MRC_EV_ASSUMED_BAD || qp->planes[ev->plane].suspended) continue;
    if (now_ns >= ev->probation.next_ns && *room) {
      *room = probe_for(services, qp, i, MRC_EV_PROBE_EV, &ev->probation, now_ns);
      if (!*room) qp->next_ev_probe = i;
    }
    if (ev->probation.next_ns > now_ns) next_ns = mrc_min_u64(next_ns, ev->probation.next_ns);
  }
  return next_ns;
}

void mrc_ev_probe_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  bool room = true;
  const uint64_t plane_ns = probe_planes(services, qp, &room, now_ns);
  qp->ev_probe_ns = mrc_min_u64(plane_ns, probe_evs(services, qp, &room, now_ns));
  if (room) return;
  mrc_list_append(&services->ready.slot_waiting, &qp->nodes.slot_waiting);
  /* A free slot may go to a QP that no longer needs it. So this QP tries again after this time. */
  const uint64_t longest_ns = mrc_probation_slowest_ns(qp->noise_ns);
  qp->ev_probe_ns = mrc_min_u64(qp->ev_probe_ns, now_ns + longest_ns);
}

void mrc_ev_probe_backups(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  qp->backup_probe_ns = now_ns + BACKUP_NS;
  MRC_EACH_BIT(index, spare_planes(services, qp) & mrc_qp_planes(services, qp, false)) {
    const struct mrc_plane *plane = &qp->planes[index];
    if (qp->req.win.lists[index].oldest != MRC_TX_NONE) continue; /* it carries data yet */
    const uint64_t floor_ns = mrc_floor_ns(HEALTH_TIMEOUT_FLOOR_NS, qp->noise_ns);
    const uint64_t overdue_ns = plane->rtt.smooth_ns != 0 ? mrc_rtt_overdue_ns(&plane->rtt, 0) : 0;
    const struct mrc_ev_probe probe = {
        .ev = mrc_evset_any(&qp->evset, index),
        .qp = qp,
        .timeout_ns = overdue_ns != 0 ? mrc_max_u64(2 * overdue_ns, floor_ns) : PATIENT_NS,
        .purpose = MRC_EV_PROBE_BACKUP};
    if (probe.ev != MRC_EV_NONE && mrc_probes_start(&services->probes, &qp->probes, &probe) == NULL)
      return; /* no slot: in a second */
  }
}

/* Without the time that the probe waited at the peer. */
static uint64_t round_trip_ns(const struct mrc_ev_probe *probe, uint64_t now_ns) {
  return now_ns - probe->sent_ns - probe->waited_ns;
}

static void end_command(struct mrc_services *services, const struct mrc_ev_probe *probe, int result,
                        bool ce, uint64_t now_ns) {
  const struct mrc_qp *qp = probe->qp;
  const struct mrc_event event = {
      .type = MRC_EVENT_PROBE,
      .cookie = probe->cookie,
      .qpn = qp->qpn,
      .ev_index = probe->ev,
      .port = mrc_port_of(qp->evset.evs[probe->ev].plane),
      .result = result,
      .status = ce,
      .rtt_ns = result == 0 ? (int64_t)round_trip_ns(probe, now_ns) : 0};
  mrc_event_push(services, &event);
}

/* A probe of this QP ended, and its slot is free again: it was answered, with or without a mark; or
   it failed with -ETIMEDOUT or the error of the send. */
static void on_probe_failure(struct mrc_services *services, const struct mrc_ev_probe *probe,
                             int error, uint64_t now_ns) {
  struct mrc_qp *qp = probe->qp;
  struct mrc_ev *ev = &qp->evset.evs[probe->ev];
  const uint32_t plane = qp->evset.evs[probe->ev].plane;
  if (probe->purpose == MRC_EV_PROBE_COMMAND) end_command(services, probe, error, false, now_ns);
  if (probe->purpose == MRC_EV_PROBE_REVERSE)
    mrc_reverse_on_failure(qp, plane, probe->ev, probe->sent_ns != 0);
  if (probe->purpose == MRC_EV_PROBE_EV)
    mrc_probation_on_timeout(&ev->probation, qp->noise_ns, now_ns);
  if (probe->purpose == MRC_EV_PROBE_PLANE) {
    struct mrc_probation *probation = &qp->planes[plane].probation;
    mrc_probation_on_timeout(probation, qp->noise_ns, now_ns);
    if ((spare_planes(services, qp) >> plane & 1) != 0 && probation->doublings > PATIENT_AFTER)
      probation->next_ns = mrc_max_u64(probation->next_ns, now_ns + BACKUP_NS);
  }
  if (probe->purpose == MRC_EV_PROBE_BACKUP && error == -ETIMEDOUT) {
    qp->backup_probe_ns = 0; /* again at once: one probe may get lost */
    if (!qp->planes[plane].suspended && ++qp->planes[plane].strikes >= MRC_LOSS_STRIKES)
      mrc_health_suspend_plane(services, qp, plane, MRC_REASON_SILENCE, now_ns);
  }
  if (probe->purpose == MRC_EV_PROBE_PATIENT) qp->planes[plane].patient = false;
  if (probe->purpose == MRC_EV_PROBE_EV || probe->purpose == MRC_EV_PROBE_PLANE)
    qp->ev_probe_ns = 0; /* check again at once */
  mrc_qp_touch(services, qp);
}

/* A probe of an EV or plane on probation was answered. */
static void on_alive(struct mrc_services *services, const struct mrc_ev_probe *probe,
                     struct mrc_qp *qp, bool ce, uint64_t now_ns) {
  struct mrc_ev *ev = &qp->evset.evs[probe->ev];
  const uint32_t index = ev->plane;
  struct mrc_plane *plane = &qp->planes[index];
  if (probe->purpose == MRC_EV_PROBE_EV && ev->state == MRC_EV_ASSUMED_BAD &&
      mrc_probation_on_success(&ev->probation, qp->noise_ns, now_ns)) {
    mrc_evset_on_trust(&qp->evset, probe->ev);
    mrc_count(services, MRC_COUNTER_EVS_TRUSTED, 1);
    mrc_health_report_ev(services, qp, probe->ev, MRC_REASON_PROBES);
    if (ce)
      mrc_evset_on_skip(&qp->evset, probe->ev, probe->sent_ns, now_ns); /* alive, but congested */
  }
  if (probe->purpose == MRC_EV_PROBE_PLANE && plane->suspended &&
      mrc_probation_on_success(&plane->probation, qp->noise_ns, now_ns)) {
    on_proved(services, qp, index, now_ns);
    mrc_health_trust_ev(services, qp, probe->ev, MRC_REASON_PROBES);
    mrc_health_resume_plane(services, qp, index, MRC_REASON_PROBES);
  }
  if (probe->purpose == MRC_EV_PROBE_PATIENT) plane->patient = false;
  qp->ev_probe_ns = 0;
}

void mrc_ev_probe_measured(struct mrc_qp *qp, uint16_t index, uint64_t sent_ns, uint64_t rtt_ns) {
  struct mrc_plane *plane = &qp->planes[qp->evset.evs[index].plane];
  mrc_rtt_smooth(&qp->evset.evs[index].rtt_ns, rtt_ns);
  mrc_evset_on_delivered(&qp->evset, index, 0, plane->rack_ns);
  if (plane->suspended) mrc_rtt_sample(&plane->rtt, rtt_ns); /* nothing else measures it */
  if (qp->state != MRC_QP_RTR) return;
  /* So that the first data on a long path does not time out early. */
  mrc_rtt_sample(&plane->rtt, rtt_ns);
  mrc_plane_on_answer(plane, sent_ns, rtt_ns);
  mrc_rtt_sample(&qp->req.rtt, rtt_ns);
}

static void on_probe_answer(struct mrc_services *services, const struct mrc_ev_probe *probe,
                            bool ce, uint64_t now_ns) {
  struct mrc_qp *qp = probe->qp;
  const uint32_t plane = qp->evset.evs[probe->ev].plane;
  const uint64_t rtt_ns = round_trip_ns(probe, now_ns);
  mrc_trace(services, MRC_TRACE_EV_PROBE_IN, qp->qpn, probe->id, rtt_ns);
  if (probe->purpose == MRC_EV_PROBE_PATIENT) /* what was before counts no more */
    qp->planes[plane].rtt = (struct mrc_rtt){.base_ns = qp->planes[plane].rtt.base_ns};
  mrc_ev_probe_measured(qp, probe->ev, probe->sent_ns, rtt_ns);
  /* Until data flows: a dead path would lose answers to the peer's probes. */
  if (qp->state == MRC_QP_RTR) qp->planes[plane].reverse_ev = probe->ev;
  if (probe->purpose == MRC_EV_PROBE_BACKUP) {
    struct mrc_rtt *rtt = &qp->planes[plane].rtt;
    const uint64_t base_ns = rtt->base_ns;
    mrc_rtt_sample(rtt, rtt_ns);
    if (base_ns != 0) rtt->base_ns = base_ns; /* that of data, which takes longer */
    qp->planes[plane].strikes = 0;
  } else if (probe->purpose == MRC_EV_PROBE_COMMAND)
    end_command(services, probe, 0, ce, now_ns);
  else if (probe->purpose == MRC_EV_PROBE_REVERSE)
    mrc_reverse_on_answer(qp, plane, probe->ev, rtt_ns);
  else
    on_alive(services, probe, qp, ce, now_ns);
  mrc_qp_touch(services, qp);
}

/* ---- answers to requests of peers ---- */

#define MAX_CLAIMS 4 /* unproven claims to its source that are checked for one request */
#define MAX_TRIES 8  /* EVs tried per QP, to find one that leads back to the requesting address */

/* Removes the answers that this QP seals, and if it is the last one of its peer those to the peer.
 */
static void drop_answers(struct mrc_answers *answers, const struct mrc_qp *qp, bool last) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < answers->n; i++) {
    const struct mrc_answer answer = answers->ring[(answers->head + i) % MRC_ANSWER_PLACES];
    if (answer.qp == qp || (last && answer.peer == qp->peer)) continue;
    answers->ring[(answers->head + kept++) % MRC_ANSWER_PLACES] = answer;
  }
  answers->n = kept;
  answers->n_stuck = 0;
}

static void push(struct mrc_answers *answers, struct mrc_answer answer) {
  mrc_assert(answers->n < MRC_MAX_ANSWERS);
  answers->ring[(answers->head + answers->n++) % MRC_ANSWER_PLACES] = answer;
}

/* An EV of the plane on which the request arrived, so that the request tests both directions of the
   plane: one that is known to work, so that its loss does not count against the EV of the request.
   If possible, it leads back to the requesting address. It is one of the QP that sealed the
   request: other QPs' keys may not be known to the peer yet. */
static uint16_t answer_ev(const struct mrc_peers *peers, const struct mrc_answer *answer,
                          const struct mrc_peer *peer, struct mrc_qp **qp, bool *astray) {
  uint16_t ev = MRC_EV_NONE;
  uint8_t src[16], dst[16];
  *astray = false; /* whether the EV leads to another address of the peer than the requesting one */
  for (*qp = answer->qp != NULL ? answer->qp : peer->qps; *qp != NULL; *qp = (*qp)->peer_next) {
    struct mrc_evset *set = &(*qp)->evset;
    for (int tries = 0; tries < MAX_TRIES; tries++) {
      const uint32_t plane = mrc_evset_plane_from(set, mrc_plane_of(answer->port), answer->asker);
      ev = tries == 0 ? mrc_reverse_ev(*qp, plane) : mrc_evset_any(set, plane);
      if (ev == MRC_EV_NONE) break;
      mrc_evset_addresses(set, ev, src, dst);
      *astray = memcmp(dst, answer->asker, 16) != 0 && mrc_peer_sends_from(peers, peer, dst);
      if (!*astray) break;
    }
    if (ev != MRC_EV_NONE || answer->qp != NULL) break;
  }
  return ev;
}

/* The peer that sent the request: the one that has proven the source, otherwise the newest claimant
   whose EVs lead back to the requesting address. */
static const struct mrc_peer *asker_of(const struct mrc_peers *peers, uint32_t first,
                                       const struct mrc_answer *answer) {
  const uint16_t sport = peers->entries[first].source.sport;
  const struct mrc_peer *asker = NULL;
  int claims = 0;
  if (mrc_peers_find(peers, answer->asker, sport, true, first) == 0)
    return mrc_peers_at(peers, first);
  for (uint32_t i = first; i != 0; i = mrc_peers_find(peers, answer->asker, sport, true, i)) {
    const struct mrc_peer *peer = mrc_peers_at(peers, i);
    struct mrc_qp *qp;
    bool astray;
    if (peers->entries[i].proved) return peer;
    if (asker != NULL || claims++ >= MAX_CLAIMS) continue;
    if (answer_ev(peers, answer, peer, &qp, &astray) != MRC_EV_NONE && !astray) asker = peer;
  }
  return asker != NULL ? asker : mrc_peers_at(peers, first);
}

/* The index of the peer's port that the packet left. */
static uint32_t port_it_left(const struct mrc_peer *peer, const struct mrc_meta *meta) {
  const struct mrc_evset *set = &peer->qps->evset;
  const uint32_t plane = mrc_evset_plane_from(set, mrc_plane_of(meta->port), meta->src);
  return (set->plane_mask >> plane & 1) != 0 ? set->planes[plane].peer_port : plane;
}

/* Takes an endpoint request that `sealer` has opened, or, if that is NULL, a plain one with a good
   ICRC, from a source that at least one plain peer claims. Returns 0 or a drop reason. */
static int on_request(struct mrc_services *services, struct mrc_peers *peers,
                      struct mrc_answers *answers, const struct mrc_wire *wire,
                      const struct mrc_meta *meta, struct mrc_qp *sealer, uint64_t now_ns) {
  const uint32_t entry =
      sealer != NULL ? 0 : mrc_peers_find(peers, meta->src, meta->sport, true, 0);
  mrc_assert(sealer != NULL || entry != 0); /* mrc_engine_receive drops what is from others */
  if (answers->n == MRC_MAX_ANSWERS) {
    mrc_count(services, MRC_COUNTER_ANSWERS_DROPPED, 1);
    return mrc_drop(services, MRC_DROP_RATE, MRC_ENDPOINT_QPN, 0);
  }
  const bool status = wire->endpoint.op == MRC_ENDPOINT_PORT_STATUS;
  const struct mrc_peer *from = sealer != NULL ? sealer->peer : mrc_peers_at(peers, entry);
  if (status && (wire->endpoint.port_status_mask >> port_it_left(from, meta) & 1) == 0)
    return mrc_drop(services, MRC_DROP_PORT_STATUS, MRC_ENDPOINT_QPN, 0);
  if (status && sealer != NULL) on_news(services, sealer->peer, wire, now_ns);
  if (status && sealer == NULL)
    for (uint32_t i = entry; i != 0; i = mrc_peers_find(peers, meta->src, meta->sport, true, i))
      on_news(services, mrc_peers_at(peers, i), wire, now_ns);
  const bool marks =
      meta->ecn == 3 && (services->config.readings & (MRC_READING_S8_B | MRC_READING_C6_B)) == 0;
  struct mrc_answer answer = {.arrived_ns = meta->arrived_ns,
                              .qp = sealer,
                              .id = (uint16_t)wire->psn,
                              .tx_timestamp = wire->endpoint.tx_timestamp,
                              .op = wire->endpoint.op,
                              .port = meta->port,
                              .m = marks ? MRC_M_SKIP_ONCE : MRC_M_NONE};
  memcpy(answer.asker, meta->src, sizeof answer.asker);
  answer.peer = sealer != NULL ? sealer->peer : asker_of(peers, entry, &answer);
  push(answers, answer);
  return MRC_DROP_NONE;
}

bool mrc_answer_transmit(struct mrc_services *services, const struct mrc_peers *peers,
                         struct mrc_answers *answers) {
  answers->n_stuck = 0;
  /* At most half of a transmit, so that a flood of requests cannot keep QPs from sending. */
  const int most = (services->arena.capacity + 1) / 2;
  for (uint32_t n = answers->n; n > 0 && services->arena.n_bursts < most; n--) {
    const uint32_t place = answers->head % MRC_ANSWER_PLACES;
    const struct mrc_answer answer = answers->ring[place];
    uint32_t port = 1u << mrc_plane_of(answer.port);
    struct mrc_qp *qp;
    bool astray; /* ignored: an answer that may get lost is better than none */
    uint16_t ev = MRC_EV_NONE;
    if ((mrc_ports_usable(&services->ports) & port) != 0) {
      ev = answer_ev(peers, &answer, answer.peer, &qp, &astray);
      /* Planes are pairs of ports: the EV may have another port than the request came to. */
      if (ev != MRC_EV_NONE) port = 1u << mrc_plane_of(qp->evset.evs[ev].port);
    }
    const bool usable = (mrc_ports_usable(&services->ports) & port) != 0;
    const bool stuck = !usable && (services->ports.up & port) != 0;
    struct mrc_burst *burst = NULL;
    if (usable && ev != MRC_EV_NONE) {
      burst = mrc_burst_open(services, qp, ev, services->config.dscps.control, MRC_ECN_NONE);
      if (burst == NULL) return false;
    }
    answers->head++;
    answers->n--;
    if (stuck) {
      push(answers, answer);
      answers->n_stuck++;
    }
    if (burst == NULL) continue;
    /* How long the request waited here, in units of its timestamp, if its sender takes that. */
    uint64_t waited_units = (services->now_ns - answer.arrived_ns) >> 10;
    if (qp->attr.rtr.service_times == 0 || answer.op != MRC_ENDPOINT_EV_PROBE ||
        (services->config.readings & MRC_READING_G15_B) != 0 || waited_units > INT16_MAX)
      waited_units = 0;
    struct mrc_wire wire = {
        .opcode = MRC_OP_ENDPOINT_RESPONSE,
        .dest_qpn = MRC_ENDPOINT_QPN,
        .psn = answer.id,
        .endpoint = {.op = answer.op,
                     .m = answer.m,
                     .lifted = (services->config.readings & MRC_READING_C6_B) != 0,
                     .tx_timestamp = (uint16_t)(answer.tx_timestamp + waited_units)}};
    mrc_burst_add(services, burst, &wire, MRC_KIND_ANSWER, place);
  }
  return true;
}

/* A refused answer is still in its place: half of the places are free, and a transmit moves no more
   than the other half. */
void mrc_answer_on_refused(struct mrc_answers *answers, uint32_t place) {
  if (answers->n < MRC_MAX_ANSWERS) push(answers, answers->ring[place]);
}

/* ---- the endpoint ---- */

#define MAX_SOURCES 65536 /* limit of the table of peers' sources */

int mrc_endpoint_init(struct mrc_endpoint *endpoint, const struct mrc_engine_config *config) {
  const uint32_t sources = mrc_min_u32(MAX_SOURCES, config->max_qps * MRC_MAX_PEER_SOURCES);
  const int error = mrc_peers_init(&endpoint->peers, config->max_qps, sources, config->seed);
  if (error != 0) return error;
  struct mrc_port_statuses *statuses = &endpoint->statuses;
  const uint32_t max_peers = endpoint->peers.max_peers;
  statuses->of = calloc(max_peers, sizeof *statuses->of);
  struct mrc_timer_cell *cells = malloc(max_peers * sizeof *cells);
  mrc_timers_init(&statuses->timers, cells, max_peers);
  return statuses->of == NULL || cells == NULL ? -ENOMEM : 0;
}

void mrc_endpoint_free(struct mrc_endpoint *endpoint) {
  mrc_peers_free(&endpoint->peers);
  free(endpoint->statuses.of);
  free(endpoint->statuses.timers.cells);
}

/* A slot is free: gives it to a waiting port status message, otherwise to the next QP in turn. */
static void wake(struct mrc_services *services, struct mrc_endpoint *endpoint) {
  struct mrc_node *waiting = &services->ready.slot_waiting;
  struct mrc_port_status *status = endpoint->statuses.waiting;
  if (status != NULL) {
    endpoint->statuses.waiting = status->next;
    status->waits = false;
    send_status(services, &endpoint->statuses, status);
    return;
  }
  if (mrc_list_is_empty(waiting)) return;
  struct mrc_qp *qp = MRC_NODE_OWNER(waiting->next, struct mrc_qp, nodes.slot_waiting);
  mrc_node_leave(&qp->nodes.slot_waiting);
  qp->ev_probe_ns = 0;
  mrc_qp_touch(services, qp);
}

/* Removes every request of the user. Frees all slots before it gives any of them away. */
static void drop_requests(struct mrc_services *services, struct mrc_endpoint *endpoint,
                          const struct mrc_probe_user *user) {
  for (uint32_t n = mrc_probes_drop(&services->probes, user); n > 0; n--)
    wake(services, endpoint);
}

int mrc_endpoint_add_qp(struct mrc_services *services, struct mrc_endpoint *endpoint,
                        struct mrc_qp *qp, const struct mrc_peer_source *sources, int n) {
  const int error = mrc_peer_join(&endpoint->peers, qp, sources, n, qp->evset.ends[0].dport);
  if (error != 0) return error;
  struct mrc_peer *peer = qp->peer;
  /* A new peer assumes that all ports are up. If a port was ever down, that is in doubt: the peer
     may have an older view. */
  if (peer->qps == qp)
    *mrc_port_status_of(&endpoint->statuses, peer) =
        (struct mrc_port_status){.peer = peer,
                                 .confirmed = mrc_all_ports(services->config.ports),
                                 .in_doubt = services->ports.was_down};
  /* The known state of the peer's ports. Without a live QP no reports arrive, so the last one may
     be out of date. */
  if (mrc_peer_live_qp(peer) == NULL) peer->ports_up = UINT32_MAX;
  mrc_endpoint_know_ports(qp, qp->evset.plane_mask);
  return 0;
}

void mrc_endpoint_know_ports(struct mrc_qp *qp, uint32_t planes) {
  const uint32_t up = mrc_evset_crossing(&qp->evset, qp->peer->ports_up, true);
  MRC_EACH_BIT(plane, planes)
    qp->planes[plane].peer_down = (up >> plane & 1) == 0;
}

void mrc_endpoint_drop_qp(struct mrc_services *services, struct mrc_endpoint *endpoint,
                          struct mrc_qp *qp) {
  struct mrc_peer *peer = qp->peer;
  mrc_node_leave(&qp->nodes.slot_waiting);
  drop_requests(services, endpoint, &qp->probes);
  if (peer == NULL) return;
  const bool last = peer->qps == qp && qp->peer_next == NULL;
  if (last) { /* the peer is about to be freed: its timer stops and its message no longer waits */
    struct mrc_port_status *status = mrc_port_status_of(&endpoint->statuses, peer);
    set_timer(&endpoint->statuses, status, MRC_NEVER);
    struct mrc_port_status **at = &endpoint->statuses.waiting;
    while (status->waits && *at != status)
      at = &(*at)->next;
    if (status->waits) *at = status->next;
    drop_requests(services, endpoint, &status->messages);
  }
  drop_answers(&endpoint->answers, qp, last);
  mrc_peer_leave(&endpoint->peers, qp);
}

void mrc_endpoint_on_port_change(struct mrc_services *services, struct mrc_endpoint *endpoint) {
  services->probes.n_stuck = 0; /* waiting probes may fail now, and messages may leave on it */
  for (uint32_t i = 0; i < endpoint->peers.n_peers; i++)
    if (endpoint->peers.peers[i].qps != NULL)
      mrc_port_status_on_change(services, &endpoint->statuses, &endpoint->peers.peers[i]);
}

/* ---- the end of a probe ---- */

/* Frees the slot, gives it to the next user that waits, and returns the probe that ended. */
static struct mrc_ev_probe end(struct mrc_services *services, struct mrc_endpoint *endpoint,
                               struct mrc_ev_probe *probe) {
  const struct mrc_ev_probe ended = *probe;
  mrc_probes_end(&services->probes, probe);
  wake(services, endpoint);
  return ended;
}

static void fail(struct mrc_services *services, struct mrc_endpoint *endpoint,
                 struct mrc_ev_probe *probe, int error, uint64_t now_ns) {
  const struct mrc_ev_probe ended = end(services, endpoint, probe);
  if (ended.purpose == MRC_EV_PROBE_PORT_STATUS)
    on_status_failure(&endpoint->statuses, &ended, error, now_ns);
  else
    on_probe_failure(services, &ended, error, now_ns);
}

int mrc_endpoint_receive(struct mrc_services *services, struct mrc_endpoint *endpoint,
                         const struct mrc_wire *wire, const struct mrc_meta *meta,
                         struct mrc_qp *sealer, uint64_t now_ns) {
  if (wire->opcode == MRC_OP_ENDPOINT_REQUEST)
    return on_request(services, &endpoint->peers, &endpoint->answers, wire, meta, sealer, now_ns);
  struct mrc_peers *peers = &endpoint->peers;
  struct mrc_ev_probe *probe = mrc_probes_find(&services->probes, (uint16_t)wire->psn);
  const bool status = probe != NULL && probe->purpose == MRC_EV_PROBE_PORT_STATUS;
  if (probe == NULL || !probe->sent ||
      wire->endpoint.op != (status ? MRC_ENDPOINT_PORT_STATUS : MRC_ENDPOINT_EV_PROBE))
    return mrc_drop(services, MRC_DROP_UNKNOWN_ID, MRC_ENDPOINT_QPN, 0);
  /* The peer may have added to the timestamp of an EV probe how long the probe waited there, if
     both sides agreed to that. */
  const uint16_t waited_units = (uint16_t)(wire->endpoint.tx_timestamp - probe->tx_timestamp);
  const uint64_t waited_ns = (uint64_t)waited_units << 10;
  if (waited_units != 0 &&
      (status || waited_units > INT16_MAX || probe->qp->attr.rtr.service_times == 0 ||
       waited_ns >= now_ns - probe->sent_ns))
    return mrc_drop(services, MRC_DROP_UNKNOWN_ID, MRC_ENDPOINT_QPN, 0);
  struct mrc_peer *peer = status ? probe->peer : probe->qp->peer;
  if (sealer != NULL ? sealer->peer != peer : peer->sealed)
    return mrc_drop(services, MRC_DROP_SEAL, MRC_ENDPOINT_QPN, 0);
  /* The answer comes from the destination of the probe. Under SRv6 the peer does not send from the
     destination address of an EV; then any source of the peer is accepted. */
  bool is_from_destination = true;
  if (!status) { /* the QP of a status may be gone */
    uint8_t src[16], dst[16];
    mrc_evset_addresses(&probe->qp->evset, probe->ev, src, dst);
    is_from_destination = memcmp(dst, meta->src, 16) == 0 || !mrc_peer_sends_from(peers, peer, dst);
  }
  if (!mrc_peer_knows(peers, peer, meta->src, meta->sport) || !is_from_destination)
    return mrc_drop(services, MRC_DROP_SOURCE, MRC_ENDPOINT_QPN, 0);
  mrc_peer_prove(peers, peer);
  probe->waited_ns = waited_ns;
  const struct mrc_ev_probe ended = end(services, endpoint, probe);
  if (status)
    on_status_answer(services, &endpoint->statuses, &ended, now_ns);
  else
    on_probe_answer(services, &ended, wire->endpoint.m == MRC_M_SKIP_ONCE, now_ns);
  return MRC_DROP_NONE;
}

/* ---- sending probes ---- */

static const uint8_t zeros[MRC_MAX_MTU + MRC_MAX_HEADER]; /* padding */

static bool send_probe(struct mrc_services *services, struct mrc_ev_probe *probe, uint64_t now_ns) {
  struct mrc_qp *qp = probe->qp;
  const struct mrc_dscps *dscps = &services->config.dscps;
  uint8_t dscp = probe->purpose == MRC_EV_PROBE_COMMAND ? dscps->data : dscps->control;
  if (probe->dscp != 0) dscp = probe->dscp;
  struct mrc_burst *burst = mrc_burst_open(services, qp, probe->ev, dscp, MRC_ECN_CAPABLE);
  if (burst == NULL) return false;
  const bool port_status = probe->purpose == MRC_EV_PROBE_PORT_STATUS;
  probe->ports_up = services->ports.up;
  probe->tx_timestamp = mrc_timestamp(now_ns);
  /* Padded to `bytes` of UDP payload. */
  const uint32_t bare = MRC_BTH_BYTES + MRC_ERTH_BYTES +
                        (qp->seal != NULL ? (uint32_t)MRC_SEALED_BYTES : MRC_ICRC_BYTES);
  const uint32_t padding = probe->bytes - mrc_min_u32(probe->bytes, bare);
  mrc_assert(padding <= sizeof zeros);
  struct mrc_wire wire = {
      .opcode = MRC_OP_ENDPOINT_REQUEST,
      .dest_qpn = MRC_ENDPOINT_QPN,
      .psn = probe->id,
      .payload = padding > 0 ? zeros : NULL,
      .payload_bytes = padding,
      .endpoint = {.op = port_status ? MRC_ENDPOINT_PORT_STATUS : MRC_ENDPOINT_EV_PROBE,
                   .port_status_mask = port_status ? probe->ports_up : 0,
                   .tx_timestamp = probe->tx_timestamp,
                   .tsr = true}};
  const uint32_t slot = (uint32_t)(probe - services->probes.slots);
  mrc_burst_add(services, burst, &wire, MRC_KIND_EV_PROBE, slot);
  mrc_trace(services, port_status ? MRC_TRACE_PORT_STATUS_OUT : MRC_TRACE_EV_PROBE_OUT, qp->qpn,
            probe->id, port_status ? probe->ports_up : probe->ev);
  return true;
}

/* Checks every waiting probe once. A probe whose port is full stays in the queue. */
bool mrc_endpoint_transmit_probes(struct mrc_services *services, struct mrc_endpoint *endpoint,
                                  uint64_t now_ns) {
  struct mrc_probes *probes = &services->probes;
  const struct mrc_ports *ports = &services->ports;
  probes->n_stuck = 0;
  if (__builtin_expect(probes->n_unsent == 0, true)) return true;
  for (uint32_t n = probes->n_unsent; n > 0; n--) {
    struct mrc_ev_probe *probe = mrc_probes_dequeue(probes);
    bool reachable, now; /* `now`: and the socket of its port has room */
    if (probe->purpose == MRC_EV_PROBE_PORT_STATUS) { /* uses any port with room */
      struct mrc_port_status *status = mrc_port_status_of(&endpoint->statuses, probe->peer);
      now = choose_for_status(services, status, mrc_ports_usable(ports), &probe->qp, &probe->ev);
      reachable = now || choose_for_status(services, status, ports->up, &probe->qp, &probe->ev);
    } else {
      const struct mrc_ev *ev = &probe->qp->evset.evs[probe->ev];
      const uint32_t port = mrc_plane_of(ev->port);
      reachable = ev->state != MRC_EV_DENIED && (ports->up >> port & 1) != 0;
      now = (mrc_ports_usable(ports) >> port & 1) != 0;
    }
    if (!reachable) {
      fail(services, endpoint, probe, -ENETUNREACH, now_ns);
    } else if (!now) {
      mrc_probes_enqueue(probes, probe);
      probes->n_stuck++;
    } else if (!send_probe(services, probe, now_ns)) {
      mrc_probes_enqueue(probes, probe);
      return false;
    }
  }
  return true;
}

void mrc_endpoint_on_commit(struct mrc_services *services, struct mrc_endpoint *endpoint,
                            uint32_t slot, int taken, uint64_t now_ns) {
  struct mrc_ev_probe *probe = &services->probes.slots[slot];
  if (probe->purpose == MRC_EV_PROBE_FREE) return;
  if (taken == 0) {
    mrc_probes_enqueue(&services->probes, probe);
    return;
  }
  probe->sent_ns = now_ns;
  if (taken < 0) {
    fail(services, endpoint, probe, taken, now_ns);
    return;
  }
  probe->sent = true;
  mrc_timers_set(&services->probes.timers, slot, now_ns + probe->timeout_ns);
  if (probe->purpose == MRC_EV_PROBE_PORT_STATUS) {
    mrc_count(services, MRC_COUNTER_TX_PORT_STATUS, 1);
    return;
  }
  struct mrc_qp *qp = probe->qp;
  qp->evset.evs[probe->ev].probes++;
  qp->planes[qp->evset.evs[probe->ev].plane].unsendable = false;
  mrc_count(services, MRC_COUNTER_TX_EV_PROBES, 1);
}

/* ---- time ---- */

void mrc_endpoint_expire(struct mrc_services *services, struct mrc_endpoint *endpoint,
                         uint64_t now_ns) {
  for (uint32_t slot; (slot = mrc_timers_pop(&services->probes.timers, now_ns)) != UINT32_MAX;)
    fail(services, endpoint, &services->probes.slots[slot], -ETIMEDOUT, now_ns);
  for (;;) { /* the port statuses that are due */
    const uint32_t index = mrc_timers_pop(&endpoint->statuses.timers, now_ns);
    if (index == UINT32_MAX) return;
    struct mrc_port_status *status = &endpoint->statuses.of[index];
    if (mrc_peer_live_qp(status->peer) != NULL)
      send_status(services, &endpoint->statuses,
                  status); /* else the next QP to join starts again */
  }
}
