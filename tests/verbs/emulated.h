/* SPDX-License-Identifier: Apache-2.0 */
/* Two ends with all rights, for the programs that are started with `mrc run --rc`. */
#pragma once

#include "pair.h"

enum {
  RNR_FOR_EVER = 7,
  ALL_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
      IBV_ACCESS_REMOTE_ATOMIC
};

static struct ibv_comp_channel *rc_channel; /* of the CQs of ends made from now on */

struct rc_end {
  struct ibv_pd *pd, *other_pd;
  struct ibv_mr *mr;      /* all rights */
  struct ibv_mr *plain;   /* the same memory, for WRITEs only */
  struct ibv_mr *foreign; /* the same, of another PD */
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  uint8_t *memory;
};

static inline struct rc_end make_rc_end(struct ibv_context *context, struct ibv_srq *srq) {
  struct rc_end end = {.pd = srq ? srq->pd : ibv_alloc_pd(context),
                       .other_pd = ibv_alloc_pd(context),
                       .memory = calloc(1, PAIR_BYTES)};
  CHECK(end.pd && end.other_pd && end.memory);
  end.mr = ibv_reg_mr(end.pd, end.memory, PAIR_BYTES, ALL_RIGHTS);
  end.plain =
      ibv_reg_mr(end.pd, end.memory, PAIR_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  end.foreign = ibv_reg_mr(end.other_pd, end.memory, PAIR_BYTES, ALL_RIGHTS);
  end.cq = ibv_create_cq(context, 4 * PAIR_DEPTH, NULL, rc_channel, 0);
  CHECK(end.mr && end.plain && end.foreign && end.cq);
  struct ibv_qp_init_attr init = {.send_cq = end.cq,
                                  .recv_cq = end.cq,
                                  .srq = srq,
                                  .qp_type = IBV_QPT_RC,
                                  .cap = {.max_send_wr = PAIR_DEPTH,
                                          .max_recv_wr = PAIR_DEPTH,
                                          .max_send_sge = PAIR_SGES,
                                          .max_recv_sge = PAIR_SGES,
                                          .max_inline_data = PAIR_INLINE}};
  end.qp = ibv_create_qp(end.pd, &init);
  CHECK(end.qp);
  return end;
}

static inline void destroy_end(struct rc_end *end) {
  struct ibv_srq *srq = end->qp->srq;
  CHECK(ibv_destroy_qp(end->qp) == 0 && ibv_destroy_cq(end->cq) == 0);
  CHECK(ibv_dereg_mr(end->mr) == 0 && ibv_dereg_mr(end->plain) == 0);
  CHECK(ibv_dereg_mr(end->foreign) == 0 && ibv_dealloc_pd(end->other_pd) == 0);
  CHECK(srq || ibv_dealloc_pd(end->pd) == 0);
  free(end->memory);
}

static inline void move(struct rc_end *end, uint32_t dest_qpn, uint8_t rnr_retry) {
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_RIGHTS};
  CHECK(ibv_modify_qp(end->qp, &attr, TO_INIT) == 0);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_4096;
  attr.dest_qp_num = dest_qpn;
  attr.max_dest_rd_atomic = 4;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  CHECK(ibv_query_gid(end->qp->context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
  CHECK(ibv_modify_qp(end->qp, &attr, TO_RTR) == 0);
  attr.qp_state = IBV_QPS_RTS;
  attr.rnr_retry = rnr_retry;
  attr.max_rd_atomic = 4;
  CHECK(ibv_modify_qp(end->qp, &attr, TO_RTS) == 0);
}

static inline void join_rc(struct rc_end *one, struct rc_end *other, uint8_t rnr_retry) {
  move(one, other->qp->qp_num, rnr_retry);
  move(other, one->qp->qp_num, rnr_retry);
}

/* ---- Work requests ---- */

static inline struct ibv_sge piece(const struct rc_end *end, uint32_t at, uint32_t bytes) {
  return (struct ibv_sge){
      .addr = (uintptr_t)end->memory + at, .length = bytes, .lkey = end->mr->lkey};
}

static inline void post_receive(struct rc_end *end, uint64_t id, struct ibv_sge *sges, int n) {
  struct ibv_recv_wr *bad, wr = {.wr_id = id, .sg_list = sges, .num_sge = n};
  CHECK((end->qp->srq ? ibv_post_srq_recv(end->qp->srq, &wr, &bad)
                      : ibv_post_recv(end->qp, &wr, &bad)) == 0);
}

static inline int post_request(struct rc_end *end, struct ibv_send_wr wr) {
  struct ibv_send_wr *bad;
  return ibv_post_send(end->qp, &wr, &bad);
}

static inline struct ibv_send_wr sending(uint64_t id, struct ibv_sge *sges, int n) {
  return (struct ibv_send_wr){.wr_id = id,
                              .opcode = IBV_WR_SEND,
                              .send_flags = IBV_SEND_SIGNALED,
                              .sg_list = sges,
                              .num_sge = n};
}

static inline struct ibv_send_wr reading(uint64_t id, struct ibv_sge *sges, int n,
                                         const struct rc_end *from, uint32_t at) {
  struct ibv_send_wr wr = sending(id, sges, n);
  wr.opcode = IBV_WR_RDMA_READ;
  wr.wr.rdma.remote_addr = (uintptr_t)from->memory + at;
  wr.wr.rdma.rkey = from->mr->rkey;
  return wr;
}

static inline struct ibv_send_wr adding(uint64_t id, struct ibv_sge *back, const struct rc_end *to,
                                        uint32_t at, uint64_t value) {
  struct ibv_send_wr wr = sending(id, back, 1);
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.wr.atomic.remote_addr = (uintptr_t)to->memory + at;
  wr.wr.atomic.rkey = to->mr->rkey;
  wr.wr.atomic.compare_add = value;
  return wr;
}

/* ---- Completions ---- */

static inline struct ibv_wc ends_with(struct rc_end *end, uint64_t id, enum ibv_wc_status status) {
  const struct ibv_wc wc = poll_one(end->cq);
  if (wc.status != status || wc.wr_id != id)
    fprintf(stderr, "%llu: %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
  CHECK(wc.status == status && wc.wr_id == id && wc.qp_num == end->qp->qp_num);
  return wc;
}

static inline struct ibv_wc ends_well(struct rc_end *end, uint64_t id, enum ibv_wc_opcode opcode) {
  const struct ibv_wc wc = ends_with(end, id, IBV_WC_SUCCESS);
  CHECK(wc.opcode == opcode);
  return wc;
}

static inline void none_within(struct rc_end *end, double time) {
  struct ibv_wc wc;
  for (const double until = seconds() + time; seconds() < until;)
    CHECK(ibv_poll_cq(end->cq, 1, &wc) == 0);
}

static inline void until_failed(struct rc_end *end) {
  struct ibv_wc wc;
  for (const double until = seconds() + PATIENCE_SECONDS; end->qp->state != IBV_QPS_ERR;) {
    ibv_poll_cq(end->cq, 1, &wc);
    CHECK(seconds() < until);
  }
}
