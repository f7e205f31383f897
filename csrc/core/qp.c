/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a QP: create, the moves between its states, destroy, query. */
#include "qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "loss.h"
#include "port_status.h"
#include "probe.h"
#include "requester.h"
#include "responder.h"

/* Legal moves, row from, column to: RESET INIT RTR RTS ERROR. */
static const bool moves[5][5] = {
    [MRC_QP_RESET] = {[MRC_QP_INIT] = true},
    [MRC_QP_INIT] = {[MRC_QP_RTR] = true, [MRC_QP_ERROR] = true, [MRC_QP_RESET] = true},
    [MRC_QP_RTR] = {[MRC_QP_RTS] = true, [MRC_QP_ERROR] = true},
    [MRC_QP_RTS] = {[MRC_QP_ERROR] = true},
};

bool mrc_qp_may_move(uint8_t from, uint8_t to) {
  return from <= MRC_QP_ERROR && to <= MRC_QP_ERROR && moves[from][to];
}

static void prefetch(const void *first, const void *end) {
  for (const char *at = first; at < (const char *)end; at += 64)
    __builtin_prefetch(at, 1);
}

void mrc_qp_prefetch(const struct mrc_qp *qp) {
  enum { PLANES = 4, TRIGGERS = 4 }; /* of them, the first ones */
  /* What a packet that arrives needs comes first: so many lines are under way at a time. */
  prefetch(qp, &qp->peer + 1);
  prefetch(&qp->resp, &qp->resp.triggers[TRIGGERS]);
  prefetch(&qp->resp.n_triggers, &qp->planes[PLANES]);
  prefetch(&qp->req, &qp->req + 1);
}

void mrc_qp_prefetch_parts(const struct mrc_qp *qp) {
  enum { SLOTS = 10 }; /* the first ones: the cache sees where that leads */
  const struct mrc_requester *req = &qp->req;
  const struct mrc_evset *set = &qp->evset;
  /* Up to the last one that it uses: an engine has room for ports that may come. */
  const uint32_t top = set->n == 0 ? 0 : 32u - (uint32_t)__builtin_clz(set->plane_mask);
  if (mrc_requester_is_busy(qp)) {
    const uint32_t slot = req->win.next_psn & req->win.mask;
    const uint32_t end = mrc_min_u32(slot + SLOTS, req->win.mask + 1);
    const struct mrc_wqe *wqe = &req->sq[req->sq_send & req->sq_mask];
    prefetch(&req->win.slots[slot], &req->win.slots[end]);
    prefetch(wqe, wqe + 1);
    prefetch(req->win.tosend.words, req->win.tosend.words + 1);
    prefetch(req->win.lists, &req->win.lists[top]);
  }
  if (set->n == 0) return;
  prefetch(set->planes, &set->planes[top]);
  prefetch(set->ends, &set->ends[mrc_min_u32(set->n_ends, top)]);
  prefetch(set->orders, set->orders + 1);
  for (uint32_t planes = set->plane_mask; planes != 0; planes &= planes - 1) {
    const uint16_t ev = qp->planes[__builtin_ctz(planes)].reverse_ev;
    if (ev != MRC_EV_NONE) prefetch(&set->evs[ev], &set->evs[ev + 1]);
  }
}

void mrc_qp_prefetch_evs(const struct mrc_qp *qp) {
  const struct mrc_evset *set = &qp->evset;
  if (!mrc_requester_is_busy(qp)) return; /* answers take those that brought them */
  for (uint32_t planes = set->plane_mask; planes != 0; planes &= planes - 1) {
    const struct mrc_ev_plane *plane = &set->planes[__builtin_ctz(planes)];
    const uint16_t ev = plane->order[plane->next < plane->n ? plane->next : 0];
    prefetch(&set->evs[ev], &set->evs[ev + 1]);
  }
}

static bool valid_create(const struct mrc_qp_attr *attr) {
  if (attr->qpn <= MRC_ENDPOINT_QPN || attr->qpn > 0xFFFFFF) return false;
  if (attr->sq_depth < 1 || attr->sq_depth > 65536) return false;
  if (attr->mpr < MRC_MPR_UNIT || attr->mpr > MRC_RXWIN_MAX_PSNS || attr->mpr % MRC_MPR_UNIT != 0)
    return false;
  return attr->max_wimm >= 1 && attr->max_wimm <= 1024;
}

static void free_qp(struct mrc_qp *qp) {
  mrc_requester_free(qp);
  mrc_responder_free(qp);
  mrc_evset_free(&qp->evset);
  free(qp);
}

int mrc_qp_create(struct mrc_engine *engine, const struct mrc_qp_attr *attr) {
  if (!valid_create(attr)) return -EINVAL;
  uint32_t index = 0;
  while (index < engine->config.max_qps && engine->qps[index] != NULL)
    index++;
  if (index == engine->config.max_qps) return -ENOSPC;
  if (mrc_keymap_get(&engine->by_qpn, attr->qpn) != MRC_KEYMAP_NONE) return -EEXIST;
  const uint32_t ports = engine->config.ports;
  struct mrc_qp *qp = calloc(1, sizeof *qp + ports * sizeof qp->planes[0]);
  if (qp == NULL) return -ENOMEM;
  qp->index = index;
  qp->qpn = attr->qpn;
  qp->attr = *attr;
  qp->noise_ns = engine->config.noise_ns;
  qp->ev_probe_ns = MRC_NEVER;
  for (uint32_t i = 0; i < ports; i++) {
    mrc_probation_init(&qp->planes[i].probation);
    qp->planes[i].reverse_ev = MRC_EV_NONE;
  }
  if (mrc_requester_init(qp, ports) != 0 || mrc_responder_init(qp) != 0) {
    free_qp(qp);
    return -ENOMEM;
  }
  const int error = mrc_keymap_put(&engine->by_qpn, qp->qpn, index);
  mrc_assert(error == 0);
  engine->qps[index] = qp;
  return 0;
}

int mrc_qp_set_evs(struct mrc_engine *engine, uint32_t qpn, const struct mrc_ev_attr *evs, int n) {
  struct mrc_qp *qp = mrc_engine_qp(engine, qpn);
  if (qp == NULL) return -ENOENT;
  if (qp->state != MRC_QP_INIT) return -EINVAL;
  struct mrc_evset set;
  const int error = mrc_evset_init(&set, evs, n, engine->config.ports, qp->noise_ns);
  if (error != 0) return error;
  mrc_evset_free(&qp->evset);
  qp->evset = set;
  return 0;
}

int mrc_qp_set_peer(struct mrc_engine *engine, uint32_t qpn, const struct mrc_peer_source *sources,
                    int n) {
  struct mrc_qp *qp = mrc_engine_qp(engine, qpn);
  if (qp == NULL) return -ENOENT;
  if (qp->state != MRC_QP_INIT || n < 1 || n > MRC_MAX_PEER_SOURCES) return -EINVAL;
  if (qp->peer != NULL || qp->evset.n == 0) return -EINVAL;
  return mrc_endpoint_add_qp(engine, qp, sources, n);
}

/* Back to what mrc_qp_create made. */
static void to_reset(struct mrc_engine *engine, struct mrc_qp *qp) {
  mrc_endpoint_drop_qp(engine, qp);
  mrc_evset_free(&qp->evset);
  for (uint32_t i = 0; i < engine->config.ports; i++)
    qp->planes[i].peer_down = false;
}

static int to_rtr(struct mrc_qp *qp, const struct mrc_qp_attr *attr) {
  if (qp->evset.n == 0 || qp->peer == NULL) return -EINVAL;
  if (attr->dest_qpn <= MRC_ENDPOINT_QPN || attr->dest_qpn > 0xFFFFFF) return -EINVAL;
  if (attr->rq_psn > MRC_PSN_MASK || attr->integrity > MRC_INTEGRITY_UDP) return -EINVAL;
  if (attr->dynamic_mpr > 1) return -EINVAL;
  qp->attr.dest_qpn = attr->dest_qpn;
  qp->attr.rq_psn = attr->rq_psn;
  qp->attr.integrity = attr->integrity;
  qp->attr.dynamic_mpr = attr->dynamic_mpr;
  mrc_rxwin_start(&qp->resp.win, attr->rq_psn);
  qp->resp.message_psn = attr->rq_psn;
  return 0;
}

/* Takes over the base RTTs of other QPs with the same peer. */
static void take_base_rtts(struct mrc_qp *qp) {
  for (const struct mrc_qp *other = qp->peer->qps; other != NULL; other = other->peer_next) {
    if (other == qp) continue;
    for (uint32_t planes = other->evset.plane_mask; planes != 0; planes &= planes - 1) {
      const int plane = __builtin_ctz(planes);
      const struct mrc_rtt *rtt = &other->planes[plane].rtt;
      if (mrc_rtt_known(rtt)) mrc_rtt_hint(&qp->planes[plane].rtt, rtt->base_ns);
    }
  }
}

static int to_rts(struct mrc_engine *engine, struct mrc_qp *qp, const struct mrc_qp_attr *attr,
                  uint64_t now_ns) {
  struct mrc_qp_attr merged = *attr;
  merged.qpn = qp->attr.qpn;
  merged.sq_depth = qp->attr.sq_depth;
  merged.mpr = qp->attr.mpr;
  merged.max_wimm = qp->attr.max_wimm;
  merged.dest_qpn = qp->attr.dest_qpn;
  merged.rq_psn = qp->attr.rq_psn;
  merged.integrity = qp->attr.integrity;
  merged.dynamic_mpr = qp->attr.dynamic_mpr;
  const struct mrc_qp_attr before = qp->attr;
  qp->attr = merged;
  const int error = mrc_requester_start(qp, now_ns);
  if (error != 0) {
    qp->attr = before;
    return error;
  }
  mrc_evset_start(&qp->evset, merged.ev_active_per_plane, &engine->prng);
  take_base_rtts(qp);
  for (uint32_t planes = qp->evset.plane_mask; planes != 0; planes &= planes - 1) {
    const uint32_t plane = (uint32_t)__builtin_ctz(planes);
    if (!(engine->ports_up >> plane & 1))
      mrc_loss_suspend_plane(engine, qp, plane, MRC_REASON_OWN_PORT, now_ns);
    else if (qp->planes[plane].peer_down)
      mrc_loss_on_peer_port_down(engine, qp, plane, now_ns);
  }
  return 0;
}

int mrc_qp_modify(struct mrc_engine *engine, uint32_t qpn, uint32_t state,
                  const struct mrc_qp_attr *attr, uint64_t now_ns) {
  struct mrc_qp *qp = mrc_engine_qp(engine, qpn);
  if (qp == NULL) return -ENOENT;
  engine->now_ns = now_ns;
  if (state > MRC_QP_ERROR || !mrc_qp_may_move(qp->state, (uint8_t)state)) return -EINVAL;
  if (state == MRC_QP_ERROR) {
    mrc_qp_fail(engine, qp, MRC_WC_WR_FLUSH_ERR, MRC_WC_WR_FLUSH_ERR);
    return 0;
  }
  int error = 0;
  if (state == MRC_QP_RESET) to_reset(engine, qp);
  if (state == MRC_QP_RTR) error = to_rtr(qp, attr);
  if (state == MRC_QP_RTS) error = to_rts(engine, qp, attr, now_ns);
  if (error != 0) return error;
  mrc_trace(engine, MRC_TRACE_QP_STATE, qpn, qp->state, state);
  qp->state = (uint8_t)state;
  if (state == MRC_QP_RTS) qp->ev_probe_ns = 0; /* EVs that failed at connect want probes */
  if (state == MRC_QP_RTR) mrc_port_status_on_change(engine, qp->peer);
  mrc_qp_touch(engine, qp);
  return 0;
}

void mrc_qp_fail(struct mrc_engine *engine, struct mrc_qp *qp, uint8_t status,
                 uint8_t oldest_status) {
  if (qp->state == MRC_QP_ERROR) return;
  mrc_trace(engine, MRC_TRACE_QP_STATE, qp->qpn, qp->state, MRC_QP_ERROR);
  qp->state = MRC_QP_ERROR;
  qp->status = status;
  qp->ev_probe_ns = MRC_NEVER;
  mrc_requester_flush(engine, qp, oldest_status);
  qp->resp.n_triggers = 0;
  qp->resp.n_nacks = 0;
  qp->resp.sack_now = false;
  qp->resp.sack_deadline_ns = MRC_NEVER;
  mrc_node_leave(&qp->held);
  const struct mrc_event event = {.type = MRC_EVENT_QP_ERROR, .qpn = qp->qpn, .status = status};
  mrc_event_push(engine, &event);
}

int mrc_qp_destroy(struct mrc_engine *engine, uint32_t qpn) {
  struct mrc_qp *qp = mrc_engine_qp(engine, qpn);
  if (qp == NULL) return -ENOENT;
  mrc_assert(!engine->committing);
  mrc_requester_flush(engine, qp, MRC_WC_WR_FLUSH_ERR);
  mrc_cq_orphan(&engine->cq, qpn);
  mrc_ev_probe_drop_qp(engine, qp);
  mrc_endpoint_drop_qp(engine, qp);
  mrc_keymap_remove(&engine->by_qpn, qpn);
  mrc_timers_set(&engine->timers, qp->index, MRC_NEVER);
  mrc_engine_forget(engine, qp);
  engine->qps[qp->index] = NULL;
  free_qp(qp);
  return 0;
}

int mrc_qp_post(struct mrc_engine *engine, uint32_t qpn, const struct mrc_wr *wr, uint64_t now_ns) {
  engine->now_ns = now_ns;
  struct mrc_qp *qp = mrc_engine_qp(engine, qpn);
  return qp == NULL ? -ENOENT : mrc_requester_post(engine, qp, wr, now_ns);
}

int mrc_qp_set_mpr(struct mrc_engine *engine, uint32_t qpn, uint32_t mpr, uint64_t now_ns) {
  engine->now_ns = now_ns;
  struct mrc_qp *qp = mrc_engine_qp(engine, qpn);
  if (qp == NULL) return -ENOENT;
  if (!mrc_qp_is_live(qp) || qp->attr.dynamic_mpr == 0) return -EINVAL;
  if (mpr < MRC_MPR_UNIT || mpr > qp->attr.mpr || mpr % MRC_MPR_UNIT != 0) return -EINVAL;
  qp->resp.mpr = mpr;
  qp->resp.sack_now = true;
  mrc_qp_touch_to_answer(engine, qp);
  return 0;
}

int mrc_qp_set_ev_state(struct mrc_engine *engine, uint32_t qpn, uint32_t ev_index, uint32_t state,
                        uint64_t now_ns) {
  engine->now_ns = now_ns;
  struct mrc_qp *qp = mrc_engine_qp(engine, qpn);
  if (qp == NULL) return -ENOENT;
  if (ev_index >= qp->evset.n) return -EINVAL;
  const uint16_t ev = (uint16_t)ev_index;
  bool changed = false;
  switch (state) {
    case MRC_EV_GOOD:
      changed = mrc_evset_on_trust(&qp->evset, ev);
      break;
    case MRC_EV_DENIED:
      changed = mrc_evset_on_deny(&qp->evset, ev);
      break;
    case MRC_EV_ASSUMED_BAD:
      mrc_loss_distrust_ev(engine, qp, ev, MRC_REASON_CONTROLLER, now_ns);
      break;
    default:
      return -EINVAL;
  }
  if (changed) mrc_loss_report_ev(engine, qp, ev, MRC_REASON_CONTROLLER);
  if (qp->state == MRC_QP_RTS) qp->ev_probe_ns = 0;
  mrc_qp_touch(engine, qp);
  return 0;
}
