/* SPDX-License-Identifier: Apache-2.0 */
#include "requester.h"

#include <errno.h>
#include <stdlib.h>

#include "core/wire.h"

int mrc_requester_init(struct mrc_requester *req, uint32_t sq_depth, uint32_t planes) {
  const uint32_t size = mrc_ceil_pow2(sq_depth);
  *req = (struct mrc_requester){.sq = calloc(size, sizeof *req->sq), .sq_mask = size - 1};
  if (req->sq == NULL) return -ENOMEM;
  return mrc_txwin_init(&req->win, 1, planes); /* mrc_requester_start sets the real size */
}

void mrc_requester_free(struct mrc_requester *req) {
  free(req->sq);
  mrc_txwin_free(&req->win);
}

int mrc_requester_start(struct mrc_requester *req, const struct mrc_qp_rts_attr *attr,
                        uint32_t psns, uint64_t now_ns) {
  struct mrc_txwin win;
  const int error = mrc_txwin_init(&win, psns, req->win.planes);
  if (error != 0) return error;
  mrc_txwin_free(&req->win);
  req->win = win;
  mrc_txwin_start(&req->win, attr->sq_psn);
  req->peer_next_psn = attr->sq_psn;
  req->peer_mpr = attr->peer_mpr;
  req->part_bytes = attr->path_mtu;
  req->progress_ns = now_ns;
  return 0;
}

uint32_t mrc_requester_window_left(const struct mrc_requester *req) {
  const uint32_t granted = mrc_psn_sub(req->win.next_psn, req->peer_next_psn);
  const uint32_t outstanding = mrc_txwin_outstanding(&req->win);
  return mrc_min_u32(req->peer_mpr - mrc_min_u32(granted, req->peer_mpr),
                     req->win.psns - mrc_min_u32(outstanding, req->win.psns));
}

uint32_t mrc_requester_open_new(struct mrc_requester *req, uint32_t bytes) {
  struct mrc_wqe *wqe = &req->sq[req->sq_send & req->sq_mask];
  const uint32_t psn = mrc_txwin_open(&req->win, req->sq_send, bytes);
  mrc_assert(req->unsent_bytes >= bytes);
  req->unsent_bytes -= bytes;
  if (req->opened == 0) {
    wqe->first_psn = psn;
    if (wqe->opcode == MRC_WR_WRITE_IMM) req->wimm_inflight++;
  }
  if ((uint64_t)++req->opened * mrc_wqe_part_bytes(wqe) >= wqe->bytes) {
    req->opened = 0;
    req->sq_send++;
  }
  return psn;
}

const struct mrc_txslot *mrc_requester_awaited(const struct mrc_requester *req,
                                               const struct mrc_qp_rts_attr *attr) {
  const struct mrc_txwin *win = &req->win;
  uint32_t bytes;
  if (win->una_psn == win->next_psn || win->n_tosend > 0) return NULL;
  if (mrc_requester_next_new(req, attr, &bytes)) return NULL;
  const struct mrc_txslot *oldest = mrc_txwin_slot(win, win->una_psn);
  return oldest->state == MRC_TX_INFLIGHT ? oldest : NULL;
}

void mrc_requester_prepare(const struct mrc_services *services, struct mrc_requester *req,
                           uint32_t ahead, const struct mrc_wr *wr, const struct mrc_mr *mr,
                           uint32_t part_bytes) {
  req->sq[(req->sq_tail + ahead) & req->sq_mask] =
      (struct mrc_wqe){.wr_id = wr->wr_id,
                       .local = wr->local,
                       .va = wr->va,
                       .mr = mr == NULL ? MRC_MR_NONE : (uint32_t)(mr - services->mrs.mrs),
                       .rkey = wr->rkey,
                       .bytes = wr->bytes,
                       .imm = wr->imm,
                       .part_words = (uint16_t)(part_bytes / 4 & 0x1FFF),
                       .opcode = wr->opcode & 3,
                       .unsignaled = wr->unsignaled != 0};
}

void mrc_requester_push(struct mrc_services *services, struct mrc_requester *req, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    struct mrc_wqe *wqe = &req->sq[req->sq_tail++ & req->sq_mask];
    if (wqe->mr != MRC_MR_NONE) services->mrs.mrs[wqe->mr].refs++;
    wqe->rqmsn = req->next_rqmsn;
    if (wqe->opcode == MRC_WR_WRITE_IMM) req->next_rqmsn++;
    req->unsent_bytes += wqe->bytes;
  }
  req->sq_used += n;
}

/* Whether any packet of that work request has a PSN. */
static bool is_opened(const struct mrc_requester *req, uint32_t index) {
  const int32_t ahead = (int32_t)(index - req->sq_send);
  return ahead < 0 || (ahead == 0 && req->opened > 0);
}

bool mrc_requester_complete(struct mrc_services *services, struct mrc_requester *req, uint32_t qpn,
                            uint8_t status) {
  mrc_assert(req->sq_head != req->sq_tail);
  const struct mrc_wqe *wqe = &req->sq[req->sq_head & req->sq_mask];
  if (wqe->mr != MRC_MR_NONE) {
    struct mrc_mr *mr = &services->mrs.mrs[wqe->mr];
    mrc_assert(mr->refs > 0);
    mr->refs--;
  }
  const bool imm = wqe->opcode == MRC_WR_WRITE_IMM;
  if (imm && is_opened(req, req->sq_head)) {
    mrc_assert(req->wimm_inflight > 0);
    req->wimm_inflight--;
  }
  mrc_trace(services, MRC_TRACE_COMPLETE, qpn, wqe->wr_id, status);
  req->sq_head++;
  if (wqe->unsignaled) {
    mrc_assert(req->sq_used > 0);
    req->sq_used--;
    return false;
  }
  const struct mrc_wc wc = {.wr_id = wqe->wr_id,
                            .qpn = qpn,
                            .bytes = wqe->bytes,
                            .status = status,
                            .opcode = imm ? MRC_WC_WRITE_IMM : MRC_WC_WRITE};
  mrc_cq_push(&services->cq, &wc);
  return true;
}

void mrc_requester_flush(struct mrc_services *services, struct mrc_requester *req, uint32_t qpn,
                         uint8_t status) {
  while (req->sq_head != req->sq_tail)
    if (mrc_requester_complete(services, req, qpn, status)) status = MRC_WC_WR_FLUSH_ERR;
  req->sq_send = req->sq_tail;
  req->opened = 0;
  req->unsent_bytes = 0;
  req->probe.outstanding = req->probe.wanted = false;
  mrc_txwin_clear(&req->win);
}

void mrc_requester_on_progress(struct mrc_requester *req, uint64_t now_ns) {
  req->progress_ns = now_ns;
  req->timeouts = 0;
  req->refused = false;
}

void mrc_requester_on_cumulative(struct mrc_requester *req, uint32_t next_psn) {
  if (mrc_psn_before(req->peer_next_psn, next_psn)) req->peer_next_psn = next_psn;
}

/* ---- how a message is cut ---- */

enum {
  MOST_PARTS = 16,   /* in larger messages the last burst is a small part of all */
  BURST_PACKETS = 32 /* packets that cost as much as a burst; measured: 30 to 60 */
};

static uint32_t packets_of_burst(uint32_t part_bytes, uint32_t max_burst_bytes) {
  const uint32_t packets = max_burst_bytes / (part_bytes + MRC_DATA_OVERHEAD_BYTES);
  return mrc_max_u32(1, mrc_min_u32(packets, MRC_MAX_BURST_PACKETS));
}

uint32_t mrc_part_bytes(uint32_t bytes, uint32_t path_mtu, uint32_t max_burst_bytes) {
  const uint32_t even = 1u << (31 - __builtin_clz(path_mtu));
  const uint32_t parts = mrc_parts(bytes, path_mtu), even_parts = bytes / even;
  if (parts == 1 || parts > MOST_PARTS || bytes % even != 0) return path_mtu;
  if (even_parts > parts + parts / 3) return path_mtu; /* the links carry more headers */
  const uint32_t bursts = (parts - 1) / packets_of_burst(path_mtu, max_burst_bytes) + 1;
  const uint32_t even_cost =
      even_parts * BURST_PACKETS / packets_of_burst(even, max_burst_bytes) + even_parts;
  return even_cost < bursts * BURST_PACKETS + parts ? even : path_mtu;
}
