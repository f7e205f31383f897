/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the state of an engine: QPs, EVs, counters, drops, trace, and their names. */
#include "query.h"

#include <errno.h>

#include "core/qp.h"
#include "engine.h"

static int64_t ns_or_unknown(const struct mrc_rtt *rtt, uint64_t value_ns) {
  return mrc_rtt_known(rtt) ? (int64_t)value_ns : -1;
}

int mrc_qp_query(const struct mrc_engine *engine, uint32_t qpn, struct mrc_qp_info *info) {
  const struct mrc_qp *qp = mrc_engine_qp(engine, qpn);
  if (qp == NULL) return -ENOENT;
  const struct mrc_requester *req = &qp->req;
  *info = (struct mrc_qp_info){.qpn = qpn,
                               .state = qp->state,
                               .status = qp->status,
                               .outstanding = req->sq_tail - req->sq_head,
                               .sent_packets = req->sent_packets,
                               .retransmitted_packets = req->retransmitted_packets,
                               .spurious_packets = req->spurious_packets,
                               .first_sent_bytes = req->first_sent_bytes,
                               .acknowledged_bytes = req->acknowledged_bytes,
                               .received_bytes = qp->resp.received_bytes,
                               .inflight_bytes = req->win.inflight_bytes,
                               .rtt_ns = ns_or_unknown(&req->rtt, req->rtt.smooth_ns),
                               .path_mtu = qp->attr.rts.path_mtu,
                               .timeouts = req->timeouts,
                               .peer_mpr = req->peer_mpr};
  for (uint32_t i = 0; i < engine->services.config.ports; i++) {
    const struct mrc_plane *plane = &qp->planes[i];
    const struct mrc_share share = mrc_share_of(qp, i);
    info->planes[i] =
        (struct mrc_plane_info){.sent_packets = plane->packets,
                                .sent_bytes = plane->bytes,
                                .lost_packets = plane->lost,
                                .received_packets = plane->received_packets,
                                .received_bytes = plane->received_bytes,
                                .rtt_ns = ns_or_unknown(&plane->rtt, plane->rtt.smooth_ns),
                                .base_rtt_ns = ns_or_unknown(&plane->rtt, plane->rtt.base_ns),
                                .inflight_bytes = req->win.lists[i].bytes,
                                .cwnd_bytes = mrc_qp_const_cc(qp, i)->cwnd_bytes,
                                .suspended = plane->suspended,
                                .slow = share.slow,
                                .share_percent = share.compared ? share.percent : 100};
    if (!req->one_window || i == 0) info->cwnd_bytes += info->planes[i].cwnd_bytes;
  }
  return 0;
}

uint32_t mrc_engine_ports_used(const struct mrc_engine *engine) {
  uint32_t used = 0;
  for (uint32_t i = 0; i < engine->services.config.max_qps; i++)
    if (engine->qps[i] != NULL) used |= engine->qps[i]->evset.plane_mask;
  return used;
}

int mrc_qp_query_evs(const struct mrc_engine *engine, uint32_t qpn, struct mrc_ev_info *infos,
                     int capacity) {
  const struct mrc_qp *qp = mrc_engine_qp(engine, qpn);
  if (qp == NULL) return -ENOENT;
  for (int i = 0; i < qp->evset.n && i < capacity; i++) {
    const struct mrc_ev *ev = &qp->evset.evs[i];
    infos[i] = (struct mrc_ev_info){
        .ev = ev->value,
        .port = ev->port,
        .state = ev->state,
        .active = ev->place < qp->evset.planes[mrc_plane_of(ev->port)].n_active,
        .sent_packets = ev->packets,
        .sent_bytes = ev->bytes,
        .lost_packets = ev->lost,
        .sent_probes = ev->probes,
        .rtt_ns = ev->rtt_ns != 0 ? (int64_t)ev->rtt_ns : -1};
  }
  return qp->evset.n;
}

int mrc_qp_record(struct mrc_engine *engine, uint32_t qpn, bool recorded) {
  struct mrc_qp *qp = mrc_engine_qp(engine, qpn);
  if (qp == NULL) return -ENOENT;
  qp->resp.recorded = recorded;
  return 0;
}

static int copy_values(uint64_t *values, int capacity, const uint64_t *from, int n) {
  for (int i = 0; i < n && i < capacity; i++)
    values[i] = from[i];
  return n;
}

int mrc_engine_counters(const struct mrc_engine *engine, uint64_t *values, int capacity) {
  return copy_values(values, capacity, engine->services.counters, MRC_COUNTERS);
}

int mrc_engine_drops(const struct mrc_engine *engine, uint64_t *values, int capacity) {
  return copy_values(values, capacity, engine->services.drops, MRC_DROP_COUNT);
}

int mrc_engine_trace(const struct mrc_engine *engine, struct mrc_trace_entry *entries,
                     int capacity) {
  const struct mrc_trace_ring *ring = &engine->services.trace;
  const uint64_t kept = mrc_min_u64(ring->n, ring->mask + 1);
  const uint64_t n = mrc_min_u64(kept, capacity < 0 ? 0 : (uint64_t)capacity);
  for (uint64_t i = 0; i < n; i++)
    entries[i] = ring->entries[(ring->n - n + i) & ring->mask];
  return (int)n;
}

int mrc_engine_events(struct mrc_engine *engine, struct mrc_event *events, int capacity) {
  return mrc_events_take(&engine->services.events, events, capacity);
}

const char *mrc_engine_counter_name(int index) {
  static const char *const names[] = {
#define X(name, meaning) #name,
#include "core/counters.def"
#undef X
  };
  return index >= 0 && index < MRC_COUNTERS ? names[index] : NULL;
}

const char *mrc_engine_counter_meaning(int index) {
  static const char *const meanings[] = {
#define X(name, meaning) meaning,
#include "core/counters.def"
#undef X
  };
  return index >= 0 && index < MRC_COUNTERS ? meanings[index] : NULL;
}

const char *mrc_drop_name(int reason) {
  static const char *const names[] = {
      "NONE",
#define X(name, meaning) #name,
#include "core/drops.def"
#undef X
  };
  return reason >= 0 && reason < MRC_DROP_COUNT ? names[reason] : NULL;
}

const char *mrc_trace_name(int point) {
  static const char *const names[] = {
#define X(name, a, b) #name,
#include "core/trace.def"
#undef X
  };
  return point >= 0 && point < MRC_TRACE_POINTS ? names[point] : NULL;
}

void mrc_engine_set_aead(struct mrc_engine *engine, const struct mrc_aead *aead) {
  mrc_assert(engine->services.arena.staged != NULL);
  engine->services.config.aead = aead;
}
