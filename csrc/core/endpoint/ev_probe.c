/* SPDX-License-Identifier: Apache-2.0 */
#include "ev_probe.h"

#include "core/loss/health.h"
#include "core/recv/reverse.h"
#include "port_status.h"

#define HEALTH_TIMEOUT_FLOOR_NS 10000000ull /* minimum timeout of a probe */
#define PATIENT_NS 1000000000ull            /* timeout of a patient one */
#define PATIENT_AFTER 3                     /* probes in a row that timed out */

/* Timeout of a probe. The QP's round trip comes from EVs that answer. An EV on a much longer path
   would always time out and stay bad, so the round trip of its own probes counts too, and on a
   suspended plane that of its patient probes. */
static uint64_t patience_ns(const struct mrc_qp *qp, const struct mrc_ev *ev) {
  const struct mrc_plane *plane = &qp->planes[mrc_plane_of(ev->port)];
  const uint64_t floor_ns = mrc_floor_ns(HEALTH_TIMEOUT_FLOOR_NS, qp->noise_ns);
  uint64_t overdue_ns = mrc_max_u64(mrc_rtt_overdue_ns(&qp->req.rtt, 0), ev->rtt_ns);
  if (plane->suspended) overdue_ns = mrc_max_u64(overdue_ns, plane->rtt.smooth_ns);
  return mrc_max_u64(2 * overdue_ns, floor_ns);
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
  const struct mrc_ev_probe probe = {
      .ev = ev,
      .qp = qp,
      .bytes = mrc_probation_is_in_doubt(probation) ? 0 : mrc_qp_full_bytes(qp),
      .timeout_ns = patience_ns(qp, &qp->evset.evs[ev]),
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
  struct mrc_plane *plane = &qp->planes[mrc_evset_plane_of(&qp->evset, ev)];
  if (plane->patient || plane->unsendable || plane->peer_down) return;
  if (plane->probation.doublings < PATIENT_AFTER) return;
  const struct mrc_ev_probe probe = {.ev = ev,
                                     .qp = qp,
                                     .bytes = mrc_qp_full_bytes(qp),
                                     .timeout_ns = PATIENT_NS,
                                     .purpose = MRC_EV_PROBE_PATIENT};
  plane->patient = mrc_probes_start(&services->probes, &qp->probes, &probe) != NULL;
}

/* The EV whose probe may bring a suspended plane back: each in turn, the rotation first, until one
   answers. That one is probed again, because the others may be dead. */
static uint16_t ev_for_plane(const struct mrc_qp *qp, uint32_t index) {
  const struct mrc_plane *plane = &qp->planes[index];
  const uint16_t last = plane->probed_ev;
  const bool answered = last != MRC_EV_NONE && plane->probation.successes > 0;
  if (answered && qp->evset.evs[last].state != MRC_EV_DENIED) return last;
  return mrc_evset_after(&qp->evset, index, last);
}

/* Probes the planes whose probe is due. Returns the time of the next one. */
static uint64_t probe_planes(struct mrc_services *services, struct mrc_qp *qp, bool *room,
                             uint64_t now_ns) {
  uint64_t next_ns = MRC_NEVER;
  MRC_EACH_BIT(index, qp->evset.plane_mask) {
    struct mrc_plane *plane = &qp->planes[index];
    if (!plane->suspended || !mrc_port_is_up(&services->ports, index)) continue;
    if (now_ns >= plane->probation.next_ns && *room) {
      const uint16_t ev = ev_for_plane(qp, index);
      probe_patiently(services, qp, ev);
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
    if (ev->state != MRC_EV_ASSUMED_BAD || qp->planes[mrc_plane_of(ev->port)].suspended) continue;
    if (now_ns >= ev->probation.next_ns && *room) {
      *room = probe_for(services, qp, i, MRC_EV_PROBE_EV, &ev->probation, now_ns);
      if (!*room) qp->next_ev_probe = i;
    }
    if (ev->probation.next_ns > now_ns) next_ns = mrc_min_u64(next_ns, ev->probation.next_ns);
  }
  return next_ns;
}

void mrc_ev_probe_on_deadline(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  if (qp->state != MRC_QP_RTS || now_ns < qp->ev_probe_ns) return;
  bool room = true;
  const uint64_t plane_ns = probe_planes(services, qp, &room, now_ns);
  qp->ev_probe_ns = mrc_min_u64(plane_ns, probe_evs(services, qp, &room, now_ns));
  if (room) return;
  mrc_list_append(&services->ready.slot_waiting, &qp->nodes.slot_waiting);
  /* A free slot may go to a QP that no longer needs it. So this QP tries again after this time. */
  const uint64_t longest_ns = mrc_probation_slowest_ns(qp->noise_ns);
  qp->ev_probe_ns = mrc_min_u64(qp->ev_probe_ns, now_ns + longest_ns);
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
      .port = qp->evset.evs[probe->ev].port,
      .result = result,
      .status = ce,
      .rtt_ns = result == 0 ? (int64_t)round_trip_ns(probe, now_ns) : 0};
  mrc_event_push(services, &event);
}

void mrc_ev_probe_on_failure(struct mrc_services *services, const struct mrc_ev_probe *probe,
                             int error, uint64_t now_ns) {
  struct mrc_qp *qp = probe->qp;
  struct mrc_ev *ev = &qp->evset.evs[probe->ev];
  const uint32_t plane = mrc_evset_plane_of(&qp->evset, probe->ev);
  if (probe->purpose == MRC_EV_PROBE_COMMAND) end_command(services, probe, error, false, now_ns);
  if (probe->purpose == MRC_EV_PROBE_REVERSE)
    mrc_reverse_on_failure(qp, plane, probe->ev, probe->sent_ns != 0);
  if (probe->purpose == MRC_EV_PROBE_EV)
    mrc_probation_on_timeout(&ev->probation, qp->noise_ns, now_ns);
  if (probe->purpose == MRC_EV_PROBE_PLANE)
    mrc_probation_on_timeout(&qp->planes[plane].probation, qp->noise_ns, now_ns);
  if (probe->purpose == MRC_EV_PROBE_PATIENT) qp->planes[plane].patient = false;
  if (probe->purpose == MRC_EV_PROBE_EV || probe->purpose == MRC_EV_PROBE_PLANE)
    qp->ev_probe_ns = 0; /* check again at once */
  mrc_qp_touch(services, qp);
}

/* A probe of an EV or plane on probation was answered. */
static void on_alive(struct mrc_services *services, const struct mrc_ev_probe *probe,
                     struct mrc_qp *qp, bool ce, uint64_t now_ns) {
  struct mrc_ev *ev = &qp->evset.evs[probe->ev];
  const uint32_t index = mrc_plane_of(ev->port);
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
    mrc_port_status_on_proved(services, qp->peer, index, now_ns);
    mrc_health_trust_ev(services, qp, probe->ev, MRC_REASON_PROBES);
    mrc_health_resume_plane(services, qp, index, MRC_REASON_PROBES);
  }
  if (probe->purpose == MRC_EV_PROBE_PATIENT) plane->patient = false;
  qp->ev_probe_ns = 0;
}

void mrc_ev_probe_measured(struct mrc_qp *qp, uint16_t index, uint64_t sent_ns, uint64_t rtt_ns) {
  struct mrc_plane *plane = &qp->planes[mrc_evset_plane_of(&qp->evset, index)];
  mrc_rtt_smooth(&qp->evset.evs[index].rtt_ns, rtt_ns);
  mrc_evset_on_delivered(&qp->evset, index, 0, plane->rack_ns);
  if (plane->suspended) mrc_rtt_sample(&plane->rtt, rtt_ns); /* nothing else measures it */
  if (qp->state != MRC_QP_RTR) return;
  /* So that the first data on a long path does not time out early. */
  mrc_rtt_sample(&plane->rtt, rtt_ns);
  mrc_plane_on_answer(plane, sent_ns, rtt_ns);
  mrc_rtt_sample(&qp->req.rtt, rtt_ns);
}

void mrc_ev_probe_on_answer(struct mrc_services *services, const struct mrc_ev_probe *probe,
                            bool ce, uint64_t now_ns) {
  struct mrc_qp *qp = probe->qp;
  const uint32_t plane = mrc_evset_plane_of(&qp->evset, probe->ev);
  const uint64_t rtt_ns = round_trip_ns(probe, now_ns);
  mrc_trace(services, MRC_TRACE_EV_PROBE_IN, qp->qpn, probe->id, rtt_ns);
  if (probe->purpose == MRC_EV_PROBE_PATIENT) /* what was before counts no more */
    qp->planes[plane].rtt = (struct mrc_rtt){.base_ns = qp->planes[plane].rtt.base_ns};
  mrc_ev_probe_measured(qp, probe->ev, probe->sent_ns, rtt_ns);
  /* Until data flows: a dead path would lose answers to the peer's probes. */
  if (qp->state == MRC_QP_RTR) qp->planes[plane].reverse_ev = probe->ev;
  if (probe->purpose == MRC_EV_PROBE_COMMAND)
    end_command(services, probe, 0, ce, now_ns);
  else if (probe->purpose == MRC_EV_PROBE_REVERSE)
    mrc_reverse_on_answer(qp, plane, probe->ev, rtt_ns);
  else
    on_alive(services, probe, qp, ce, now_ns);
  mrc_qp_touch(services, qp);
}
