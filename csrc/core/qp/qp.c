/* SPDX-License-Identifier: Apache-2.0 */
#include "qp.h"

#include <stdlib.h>

/* Legal moves, row from, column to: RESET INIT RTR RTS ERROR. */
static const bool moves[5][5] = {
    [MRC_QP_RESET] = {[MRC_QP_INIT] = true, [MRC_QP_ERROR] = true},
    [MRC_QP_INIT] = {[MRC_QP_RTR] = true, [MRC_QP_ERROR] = true, [MRC_QP_RESET] = true},
    [MRC_QP_RTR] = {[MRC_QP_RTS] = true, [MRC_QP_ERROR] = true},
    [MRC_QP_RTS] = {[MRC_QP_ERROR] = true},
};

bool mrc_qp_may_move(uint32_t from, uint32_t to) {
  return from <= MRC_QP_ERROR && to <= MRC_QP_ERROR && moves[from][to];
}

struct mrc_qp *mrc_qp_new(const struct mrc_qp_create_attr *attr, uint32_t index,
                          const struct mrc_engine_config *config) {
  struct mrc_qp *qp = calloc(1, sizeof *qp + config->ports * sizeof qp->planes[0]);
  if (qp == NULL) return NULL;
  qp->index = index;
  qp->qpn = attr->qpn;
  qp->attr.create = *attr;
  qp->noise_ns = config->noise_ns;
  qp->ev_probe_ns = MRC_NEVER;
  for (uint32_t i = 0; i < config->ports; i++)
    mrc_plane_init(&qp->planes[i]);
  if (mrc_requester_init(&qp->req, attr->sq_depth, config->ports) == 0 &&
      mrc_responder_init(&qp->resp, attr->mpr, attr->max_wimm) == 0)
    return qp;
  mrc_qp_free(qp);
  return NULL;
}

void mrc_qp_free(struct mrc_qp *qp) {
  mrc_requester_free(&qp->req);
  mrc_responder_free(&qp->resp);
  mrc_evset_free(&qp->evset);
  mrc_seal_free(qp->seal);
  free(qp);
}

static void prefetch(const void *first, const void *end) {
  for (const char *at = first; at < (const char *)end; at += 64)
    __builtin_prefetch(at, 1);
}

void mrc_qp_prefetch(const struct mrc_qp *qp) {
  enum { PLANES = 4, TRIGGERS = 4 }; /* of each array, the first ones */
  /* First the lines that an arriving packet needs: the CPU fetches only a few at a time. */
  prefetch(qp, &qp->peer + 1);
  prefetch(&qp->resp, &qp->resp.triggers[TRIGGERS]);
  prefetch(&qp->resp.n_triggers, &qp->planes[PLANES]);
  prefetch(&qp->req, &qp->req + 1);
}

void mrc_qp_prefetch_parts(const struct mrc_qp *qp) {
  enum { SLOTS = 10 }; /* the first ones: the hardware prefetcher fetches the rest */
  const struct mrc_requester *req = &qp->req;
  const struct mrc_evset *set = &qp->evset;
  /* Only up to the last plane in use: the engine may have more ports than that. */
  const uint32_t top = set->n == 0 ? 0 : 32u - (uint32_t)__builtin_clz(set->plane_mask);
  if (mrc_requester_is_busy(&qp->req)) {
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
  MRC_EACH_BIT(plane, set->plane_mask) {
    const uint16_t ev = qp->planes[plane].reverse_ev;
    if (ev != MRC_EV_NONE) prefetch(&set->evs[ev], &set->evs[ev + 1]);
  }
}

void mrc_qp_prefetch_evs(const struct mrc_qp *qp) {
  const struct mrc_evset *set = &qp->evset;
  if (!mrc_requester_is_busy(&qp->req)) return; /* answers use the reverse EVs */
  MRC_EACH_BIT(index, set->plane_mask) {
    const struct mrc_ev_plane *plane = &set->planes[index];
    const uint16_t ev = plane->order[plane->next < plane->n ? plane->next : 0];
    prefetch(&set->evs[ev], &set->evs[ev + 1]);
  }
}

void mrc_qp_fail(struct mrc_services *services, struct mrc_qp *qp, uint8_t status,
                 uint8_t oldest_status) {
  if (qp->state == MRC_QP_ERROR) return;
  mrc_trace(services, MRC_TRACE_QP_STATE, qp->qpn, qp->state, MRC_QP_ERROR);
  qp->state = MRC_QP_ERROR;
  qp->status = status;
  qp->ev_probe_ns = MRC_NEVER;
  mrc_requester_flush(services, &qp->req, qp->qpn, oldest_status);
  mrc_responder_clear(services, &qp->resp);
  mrc_node_leave(&qp->nodes.cq_waiting);
  const struct mrc_event event = {.type = MRC_EVENT_QP_ERROR, .qpn = qp->qpn, .status = status};
  mrc_event_push(services, &event);
}
