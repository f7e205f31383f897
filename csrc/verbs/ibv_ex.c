/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/ibv_ex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program/drive.h"
#include "program/say.h"
#include "verbs/cq.h"
#include "verbs/ibv_ops.h"
#include "verbs/rc.h"

/* ---- CQs: the completion that start_poll and next_poll have taken ---- */

static struct vb_cq *of_ex(struct ibv_cq_ex *cq) { return (struct vb_cq *)cq; }

static int take_next(struct ibv_cq_ex *cq) {
  struct vb_cq *ours = of_ex(cq);
  const int taken = vb_poll_cq(&ours->ibv.cq, 1, &ours->current);
  if (taken < 0) return EIO;
  if (taken == 0) return ENOENT;
  cq->wr_id = ours->current.wr_id;
  cq->status = ours->current.status;
  return 0;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr) {
  return attr->comp_mask ? EINVAL : take_next(cq);
}

static void end_poll(struct ibv_cq_ex *cq) { (void)cq; }
static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq) { return of_ex(cq)->current.opcode; }
static uint32_t read_vendor_err(struct ibv_cq_ex *cq) { return of_ex(cq)->current.vendor_err; }
static uint32_t read_byte_len(struct ibv_cq_ex *cq) { return of_ex(cq)->current.byte_len; }
static __be32 read_imm_data(struct ibv_cq_ex *cq) { return of_ex(cq)->current.imm_data; }
static uint32_t read_qp_num(struct ibv_cq_ex *cq) { return of_ex(cq)->current.qp_num; }
static uint32_t read_src_qp(struct ibv_cq_ex *cq) { return of_ex(cq)->current.src_qp; }
static unsigned int read_wc_flags(struct ibv_cq_ex *cq) { return of_ex(cq)->current.wc_flags; }
static uint32_t read_slid(struct ibv_cq_ex *cq) { return of_ex(cq)->current.slid; }
static uint8_t read_sl(struct ibv_cq_ex *cq) { return of_ex(cq)->current.sl; }
static uint8_t read_dlid(struct ibv_cq_ex *cq) { return of_ex(cq)->current.dlid_path_bits; }

struct ibv_cq_ex *vb_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr) {
  const uint64_t served = IBV_WC_STANDARD_FLAGS;
  const bool flags_set = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS;
  const uint32_t known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  if (attr->comp_mask & ~(uint32_t)IBV_CQ_INIT_ATTR_MASK_FLAGS || attr->wc_flags & ~served ||
      (flags_set && attr->flags & ~known)) {
    errno = EOPNOTSUPP;
    return NULL;
  }
  if (attr->comp_vector >= (uint32_t)context->num_comp_vectors || attr->cqe > VB_MAX_CQE) {
    errno = EINVAL;
    return NULL;
  }
  struct vb_cq *cq = vb_cq_create(context, (int)attr->cqe, attr->cq_context, attr->channel);
  if (!cq) return NULL;
  struct ibv_cq_ex *ex = &cq->ibv.ex;
  ex->start_poll = start_poll;
  ex->next_poll = take_next;
  ex->end_poll = end_poll;
  ex->read_opcode = read_opcode;
  ex->read_vendor_err = read_vendor_err;
  ex->read_byte_len = read_byte_len;
  ex->read_imm_data = read_imm_data;
  ex->read_qp_num = read_qp_num;
  ex->read_src_qp = read_src_qp;
  ex->read_wc_flags = read_wc_flags;
  ex->read_slid = read_slid;
  ex->read_sl = read_sl;
  ex->read_dlid_path_bits = read_dlid;
  return ex;
}

/* ---- QPs: the list between wr_start and wr_complete ---- */

static struct vb_qp *of_qp_ex(struct ibv_qp_ex *qp) { return (struct vb_qp *)qp; }

static void wr_start(struct ibv_qp_ex *qp) {
  struct vb_qp *ours = of_qp_ex(qp);
  pthread_mutex_lock(&qp->qp_base.mutex);
  ours->list_n = 0;
  ours->list_error = 0;
}

static struct ibv_send_wr *add(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey,
                               uint64_t remote_addr) {
  struct vb_qp *ours = of_qp_ex(qp);
  if (ours->list_n == ours->list_size) {
    if (ours->list_error == 0) ours->list_error = ENOMEM;
    return NULL;
  }
  struct ibv_send_wr *wr = &ours->list[ours->list_n];
  *wr = (struct ibv_send_wr){.wr_id = qp->wr_id,
                             .sg_list = &ours->list_sges[ours->list_n * ours->cap.max_send_sge],
                             .opcode = opcode,
                             .send_flags = qp->wr_flags,
                             .wr.rdma = {.remote_addr = remote_addr, .rkey = rkey}};
  if (ours->list_n > 0) wr[-1].next = wr;
  ours->list_n++;
  return wr;
}

static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr) {
  add(qp, IBV_WR_RDMA_WRITE, rkey, remote_addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
                              __be32 imm_data) {
  struct ibv_send_wr *wr = add(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr);
  if (wr) wr->imm_data = imm_data;
}

static void wr_send(struct ibv_qp_ex *qp) { add(qp, IBV_WR_SEND, 0, 0); }

static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm_data) {
  struct ibv_send_wr *wr = add(qp, IBV_WR_SEND_WITH_IMM, 0, 0);
  if (wr) wr->imm_data = imm_data;
}

static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr) {
  add(qp, IBV_WR_RDMA_READ, rkey, remote_addr);
}

static void add_atomic(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey,
                       uint64_t remote_addr, uint64_t compare_add, uint64_t swap) {
  struct ibv_send_wr *wr = add(qp, opcode, 0, 0);
  if (!wr) return;
  wr->wr.atomic.remote_addr = remote_addr;
  wr->wr.atomic.rkey = rkey;
  wr->wr.atomic.compare_add = compare_add;
  wr->wr.atomic.swap = swap;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
                              uint64_t compare, uint64_t swap) {
  add_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
                                uint64_t value) {
  add_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr, value, 0);
}

static struct ibv_send_wr *newest(struct ibv_qp_ex *qp) {
  struct vb_qp *ours = of_qp_ex(qp);
  return ours->list_n > 0 ? &ours->list[ours->list_n - 1] : NULL;
}

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t n, const struct ibv_sge *sges) {
  struct vb_qp *ours = of_qp_ex(qp);
  struct ibv_send_wr *wr = newest(qp);
  if (!wr) return;
  if (n > ours->cap.max_send_sge) {
    ours->list_error = EINVAL;
    return;
  }
  if (n > 0) memcpy(wr->sg_list, sges, n * sizeof *sges);
  wr->num_sge = (int)n;
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length) {
  const struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};
  wr_set_sge_list(qp, 1, &sge);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t n,
                                    const struct ibv_data_buf *parts) {
  struct vb_qp *ours = of_qp_ex(qp);
  struct ibv_send_wr *wr = newest(qp);
  if (!wr) return;
  uint8_t *data = NULL; /* no byte fits */
  if (ours->list_inlined) data = ours->list_inlined + (size_t)(ours->list_n - 1) * VB_INLINE_BYTES;
  size_t bytes = 0;
  for (size_t i = 0; i < n; i++) {
    if (parts[i].length > ours->cap.max_inline_data - bytes) {
      ours->list_error = EINVAL;
      return;
    }
    if (parts[i].length > 0) memcpy(data + bytes, parts[i].addr, parts[i].length);
    bytes += parts[i].length;
  }
  *wr->sg_list = (struct ibv_sge){.addr = (uint64_t)(uintptr_t)data, .length = (uint32_t)bytes};
  wr->num_sge = 1;
  wr->send_flags |= IBV_SEND_INLINE;
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length) {
  wr_set_inline_data_list(qp, 1, &(struct ibv_data_buf){.addr = addr, .length = length});
}

static int wr_complete(struct ibv_qp_ex *qp) {
  struct vb_qp *ours = of_qp_ex(qp);
  struct ibv_send_wr *bad;
  int error = ours->list_error;
  if (error == 0 && ours->list_n > 0) error = vb_ops_post_send(&qp->qp_base, ours->list, &bad);
  pthread_mutex_unlock(&qp->qp_base.mutex);
  return error;
}

static void wr_abort(struct ibv_qp_ex *qp) { pthread_mutex_unlock(&qp->qp_base.mutex); }

static bool allocate_list(struct vb_qp *qp) {
  const uint32_t n = qp->sq_size;
  qp->list = calloc(n, sizeof *qp->list);
  qp->list_sges = calloc((size_t)n * qp->cap.max_send_sge, sizeof *qp->list_sges);
  if (qp->inlined) qp->list_inlined = calloc(n, VB_INLINE_BYTES);
  qp->list_size = n;
  return qp->list && qp->list_sges && (!qp->inlined || qp->list_inlined);
}

struct ibv_qp *vb_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr) {
  (void)context;
  const uint32_t known =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  const uint64_t emulated = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                            IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                            IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  const uint64_t served = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                          (vb_rc_is_on() ? emulated : 0);
  const bool ex = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  const bool flags = attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr->create_flags != 0;
  const bool sends_others = ex && attr->send_ops_flags & ~served;
  if (sends_others)
    PR_SAY_ONCE(
        "a QP for other work requests than WRITE and WRITE_IMM is refused: MRC has no others;"
        " mrc run --rc emulates some");
  if (attr->comp_mask & ~known || !(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || flags ||
      sends_others) {
    errno = EOPNOTSUPP;
    return NULL;
  }
  struct ibv_qp_init_attr plain = {.qp_context = attr->qp_context,
                                   .send_cq = attr->send_cq,
                                   .recv_cq = attr->recv_cq,
                                   .srq = attr->srq,
                                   .cap = attr->cap,
                                   .qp_type = attr->qp_type,
                                   .sq_sig_all = attr->sq_sig_all};
  struct ibv_qp *qp = vb_create_qp(attr->pd, &plain);
  if (qp) attr->cap = plain.cap;
  if (!qp || !ex) return qp;
  struct vb_qp *ours = vb_qp_of(qp);
  if (!allocate_list(ours)) {
    ibv_destroy_qp(qp);
    errno = ENOMEM;
    return NULL;
  }
  ours->ibv.ex.wr_start = wr_start;
  ours->ibv.ex.wr_complete = wr_complete;
  ours->ibv.ex.wr_abort = wr_abort;
  ours->ibv.ex.wr_rdma_write = wr_rdma_write;
  ours->ibv.ex.wr_rdma_write_imm = wr_rdma_write_imm;
  ours->ibv.ex.wr_send = wr_send;
  ours->ibv.ex.wr_send_imm = wr_send_imm;
  ours->ibv.ex.wr_rdma_read = wr_rdma_read;
  ours->ibv.ex.wr_atomic_cmp_swp = wr_atomic_cmp_swp;
  ours->ibv.ex.wr_atomic_fetch_add = wr_atomic_fetch_add;
  ours->ibv.ex.wr_set_sge = wr_set_sge;
  ours->ibv.ex.wr_set_sge_list = wr_set_sge_list;
  ours->ibv.ex.wr_set_inline_data = wr_set_inline_data;
  ours->ibv.ex.wr_set_inline_data_list = wr_set_inline_data_list;
  return qp;
}
