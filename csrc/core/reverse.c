/* SPDX-License-Identifier: Apache-2.0 */
#include "reverse.h"

#include "probe.h"
#include "requester.h"

#define TIMEOUT_FLOOR_NS 5000000ull /* patience with a probe, beyond the round trip */
#define MAX_BACKOFF 6 /* doublings of patience and interval while no probe is answered */

/* With data on its way, its SACKs tell about the planes; and what was learnt before is old. */
static bool is_in_use(const struct mrc_qp *qp) { return !mrc_requester_is_busy(qp); }

/* Before a probe of its own was answered, what the probes at connecting have found. */
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

static uint64_t patience_ns(const struct mrc_qp *qp) {
  const uint64_t floor_ns = mrc_floor_ns(TIMEOUT_FLOOR_NS, qp->noise_ns);
  return mrc_rtt_overdue_ns(rtt_of(qp), floor_ns) << qp->reverse.backoff;
}

static bool may_probe(const struct mrc_engine *engine, const struct mrc_qp *qp, uint32_t plane) {
  return mrc_port_usable(engine, plane) && !qp->planes[plane].peer_down &&
         !qp->planes[plane].suspended && (qp->reverse.probing >> plane & 1) == 0;
}

/* The next plane in turn that has no probe out, or MRC_MAX_PORTS. */
static uint32_t next_plane(const struct mrc_engine *engine, const struct mrc_qp *qp) {
  uint32_t planes = 0;
  for (uint32_t rest = qp->evset.plane_mask; rest != 0; rest &= rest - 1)
    if (may_probe(engine, qp, (uint32_t)__builtin_ctz(rest))) planes |= rest & -rest;
  const uint32_t later = planes & ~(UINT32_MAX >> (MRC_MAX_PORTS - 1 - qp->reverse.plane));
  if (planes == 0) return MRC_MAX_PORTS;
  return (uint32_t)__builtin_ctz(later != 0 ? later : planes);
}

void mrc_reverse_on_visit(struct mrc_engine *engine, struct mrc_qp *qp, uint64_t now_ns) {
  struct mrc_reverse *reverse = &qp->reverse;
  const uint64_t arrived_ns = qp->resp.arrived_ns;
  if (arrived_ns == reverse->seen_ns || now_ns < reverse->next_ns) return;
  if (!mrc_qp_is_live(qp) || !is_in_use(qp)) return;
  const bool little = qp->resp.bytes_received - reverse->seen_bytes < MRC_REVERSE_BYTES;
  if (little && now_ns - reverse->next_ns < MRC_REVERSE_SLOW * interval_ns(qp)) return;
  reverse->seen_ns = arrived_ns;
  reverse->seen_bytes = qp->resp.bytes_received;
  reverse->next_ns = now_ns + interval_ns(qp);
  const uint32_t plane = next_plane(engine, qp);
  if (plane == MRC_MAX_PORTS) return;
  const uint16_t ev = mrc_evset_any(&qp->evset, plane);
  if (ev == MRC_EV_NONE || !mrc_ev_probe_reverse(engine, qp, ev, patience_ns(qp))) return;
  reverse->plane = (uint8_t)plane;
  reverse->probing |= 1u << plane;
}

void mrc_reverse_on_answer(struct mrc_qp *qp, uint16_t ev, uint64_t rtt_ns) {
  const uint32_t plane = qp->evset.evs[ev].port - 1u;
  mrc_rtt_sample(&qp->reverse.rtt, rtt_ns);
  qp->planes[plane].reverse_ev = ev;
  qp->planes[plane].reverse_failures = 0;
  qp->reverse.backoff = 0;
  qp->reverse.probing &= ~(1u << plane);
}

void mrc_reverse_on_failure(struct mrc_qp *qp, uint16_t ev, bool offered) {
  const uint32_t index = qp->evset.evs[ev].port - 1u;
  struct mrc_reverse *reverse = &qp->reverse;
  struct mrc_plane *plane = &qp->planes[index];
  reverse->probing &= ~(1u << index);
  if (!offered) return; /* the kernel never saw it: that says nothing about the way */
  if (plane->reverse_ev == ev) plane->reverse_ev = MRC_EV_NONE;
  if (plane->reverse_failures < MRC_REVERSE_FAILURES) plane->reverse_failures++;
  if (reverse->backoff < MAX_BACKOFF) reverse->backoff++;
}

bool mrc_reverse_works(const struct mrc_qp *qp, uint32_t plane) {
  if (qp->planes[plane].suspended && qp->planes[plane].unsendable) return false;
  return !is_in_use(qp) || qp->planes[plane].reverse_failures < MRC_REVERSE_FAILURES;
}

uint16_t mrc_reverse_ev(struct mrc_qp *qp, uint32_t plane) {
  const uint16_t ev = qp->planes[plane].reverse_ev;
  if (is_in_use(qp) && ev != MRC_EV_NONE && qp->evset.evs[ev].state != MRC_EV_DENIED) return ev;
  return mrc_evset_any(&qp->evset, plane);
}
