/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reverse.h"

#define MAX_BACKOFF 6 /* doublings of timeout and interval while no probe is answered */
#define TIMEOUT_FLOOR_NS 5000000ull /* timeout of a probe, beyond the round trip */

/* A QP that sends data gets the state of its planes from SACKs; its reverse EVs are out of date. */
static bool is_in_use(const struct mrc_qp *qp) { return !mrc_requester_is_busy(&qp->req); }

/* The round trip of reverse probes; before the first answer, that of the probes at connect. */
static const struct mrc_rtt *rtt_of(const struct mrc_qp *qp) {
  return mrc_rtt_known(&qp->reverse.rtt) ? &qp->reverse.rtt : &qp->req.rtt;
}

static uint64_t interval_ns(const struct mrc_qp *qp) {
  const struct mrc_rtt *rtt = rtt_of(qp), *data = &qp->req.rtt;
  uint64_t base_ns = mrc_floor_ns(MRC_REVERSE_FIRST_NS, qp->noise_ns);
  if (mrc_rtt_known(rtt)) base_ns = rtt->base_ns;
  if (mrc_rtt_known(data)) base_ns = mrc_min_u64(base_ns, data->base_ns);
  return mrc_max_u64(qp->noise_ns, base_ns) << qp->reverse.backoff;
}

/* The planes on which own packets arrived lately, as a mask. That shows that a plane works, as a
   probe does: a QP that sends now and then, such as small requests for data, needs few probes. */
static uint32_t delivering_planes(const struct mrc_qp *qp, uint64_t now_ns) {
  const uint64_t planes = (uint64_t)__builtin_popcount(qp->evset.plane_mask);
  const uint64_t lately_ns = 2 * planes * interval_ns(qp);
  uint32_t delivering = 0;
  MRC_EACH_BIT(plane, qp->evset.plane_mask) {
    const uint64_t heard_ns = qp->planes[plane].heard_ns;
    if (heard_ns != 0 && now_ns - heard_ns < lately_ns) delivering |= 1u << plane;
  }
  return delivering;
}

/* The next plane in turn among `needy` that may be probed, or MRC_MAX_PORTS. */
static uint32_t next_plane(const struct mrc_services *services, const struct mrc_qp *qp,
                           uint32_t needy) {
  uint32_t planes = 0;
  MRC_EACH_BIT(plane, needy)
    if (mrc_port_is_usable(&services->ports, plane) && !qp->planes[plane].suspended &&
        !qp->planes[plane].peer_down && (qp->reverse.probing >> plane & 1) == 0)
      planes |= 1u << plane;
  const uint32_t later = planes & ~(UINT32_MAX >> (MRC_MAX_PORTS - 1 - qp->reverse.plane));
  if (planes == 0) return MRC_MAX_PORTS;
  return (uint32_t)__builtin_ctz(later != 0 ? later : planes);
}

/* The EV of a plane to probe. After a failure, the EV that was answered before shows whether the
   plane has failed or only another EV. */
static uint16_t ev_to_probe(struct mrc_qp *qp, uint32_t index) {
  const struct mrc_plane *plane = &qp->planes[index];
  const uint16_t known = plane->reverse_ev;
  const bool again = plane->reverse_failures > 0 && known != MRC_EV_NONE;
  if (again && qp->evset.evs[known].state != MRC_EV_DENIED) return known;
  return mrc_evset_any(&qp->evset, index);
}

bool mrc_reverse_probe(struct mrc_services *services, struct mrc_qp *qp, uint16_t ev,
                       uint64_t timeout_ns) {
  const struct mrc_ev_probe request = {
      .ev = ev, .qp = qp, .timeout_ns = timeout_ns, .purpose = MRC_EV_PROBE_REVERSE};
  return mrc_probes_start(&services->probes, &qp->probes, &request) != NULL;
}

void mrc_reverse_on_visit(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_reverse *reverse = &qp->reverse;
  const uint64_t arrived_ns = qp->resp.arrived_ns;
  if (arrived_ns == reverse->seen_ns || now_ns < reverse->next_ns) return;
  if (!mrc_qp_is_live(qp) || !is_in_use(qp)) return;
  const bool little = qp->resp.received_bytes - reverse->seen_bytes < MRC_REVERSE_BYTES;
  if (little && now_ns - reverse->next_ns < MRC_REVERSE_SLOW * interval_ns(qp)) return;
  reverse->seen_ns = arrived_ns;
  reverse->seen_bytes = qp->resp.received_bytes;
  reverse->next_ns = now_ns + mrc_services_crowd(services) * interval_ns(qp);
  const uint32_t delivering = delivering_planes(qp, now_ns);
  /* These planes have delivered since their probes. Their SACKs show the state of their EVs, so any
     EV may carry answers. */
  MRC_EACH_BIT(plane, delivering) {
    qp->planes[plane].reverse_ev = MRC_EV_NONE;
    qp->planes[plane].reverse_failures = 0;
  }
  const uint32_t plane = next_plane(services, qp, qp->evset.plane_mask & ~delivering);
  if (plane == MRC_MAX_PORTS) return;
  const uint16_t ev = ev_to_probe(qp, plane);
  const uint64_t floor_ns = mrc_floor_ns(TIMEOUT_FLOOR_NS, qp->noise_ns);
  const uint64_t timeout_ns = mrc_rtt_overdue_ns(rtt_of(qp), floor_ns) << reverse->backoff;
  if (ev == MRC_EV_NONE || !mrc_reverse_probe(services, qp, ev, timeout_ns)) return;
  reverse->plane = (uint8_t)plane;
  reverse->probing |= 1u << plane;
}

void mrc_reverse_on_answer(struct mrc_qp *qp, uint32_t plane, uint16_t ev, uint64_t rtt_ns) {
  struct mrc_reverse *reverse = &qp->reverse;
  mrc_rtt_sample(&reverse->rtt, rtt_ns);
  qp->planes[plane].reverse_ev = ev;
  qp->planes[plane].reverse_failures = 0;
  reverse->backoff = 0;
  reverse->probing &= ~(1u << plane);
}

void mrc_reverse_on_failure(struct mrc_qp *qp, uint32_t index, uint16_t ev, bool offered) {
  struct mrc_reverse *reverse = &qp->reverse;
  struct mrc_plane *plane = &qp->planes[index];
  reverse->probing &= ~(1u << index);
  if (!offered) return; /* it never reached the kernel: no evidence about the path */
  if (plane->reverse_ev == ev) plane->reverse_ev = MRC_EV_NONE;
  if (plane->reverse_failures < MRC_REVERSE_FAILURES) plane->reverse_failures++;
  if (reverse->backoff < MAX_BACKOFF) reverse->backoff++;
}

void mrc_reverse_on_request(struct mrc_qp *qp) {
  const bool again = qp->reverse.asked_bytes == qp->resp.received_bytes;
  qp->reverse.asked_bytes = qp->resp.received_bytes;
  MRC_EACH_BIT(plane, again ? qp->evset.plane_mask : 0)
    qp->planes[plane].reverse_ev = MRC_EV_NONE;
}

bool mrc_reverse_works(const struct mrc_qp *qp, uint32_t plane) {
  if (qp->planes[plane].suspended && qp->planes[plane].unsendable) return false;
  return !is_in_use(qp) || qp->planes[plane].reverse_failures < MRC_REVERSE_FAILURES;
}

uint16_t mrc_reverse_ev(struct mrc_qp *qp, uint32_t index) {
  const struct mrc_plane *plane = &qp->planes[index];
  uint16_t ev = is_in_use(qp) ? plane->reverse_ev : MRC_EV_NONE;
  if (plane->suspended && plane->probation.successes > 0) ev = plane->probed_ev;
  if (ev != MRC_EV_NONE && qp->evset.evs[ev].state != MRC_EV_DENIED) return ev;
  return mrc_evset_any(&qp->evset, index);
}

static uint16_t ev_of_plane(const struct mrc_services *services, struct mrc_qp *qp,
                            uint32_t plane) {
  if (!mrc_port_is_usable(&services->ports, plane) || qp->planes[plane].peer_down)
    return MRC_EV_NONE;
  return mrc_reverse_ev(qp, plane);
}

/* First choice is the plane of the packet to answer, unless answers get lost there. If that plane
   cannot send, any other plane serves; suspended planes come last. */
uint16_t mrc_reverse_choose(const struct mrc_services *services, struct mrc_qp *qp, uint8_t port) {
  uint16_t ev = MRC_EV_NONE;
  if (port != 0 && mrc_reverse_works(qp, mrc_plane_of(port)))
    ev = ev_of_plane(services, qp, mrc_plane_of(port));
  for (int lossy = 0; lossy < 2 && ev == MRC_EV_NONE; lossy++) {
    MRC_EACH_BIT(plane, qp->evset.plane_mask) {
      if (qp->planes[plane].suspended || mrc_reverse_works(qp, plane) == lossy) continue;
      ev = ev_of_plane(services, qp, plane);
      if (ev != MRC_EV_NONE) break;
    }
    if (ev == MRC_EV_NONE && port != 0) ev = ev_of_plane(services, qp, mrc_plane_of(port));
  }
  MRC_EACH_BIT(plane, ev == MRC_EV_NONE ? qp->evset.plane_mask : 0)
    if ((ev = ev_of_plane(services, qp, plane)) != MRC_EV_NONE) break;
  return ev;
}
