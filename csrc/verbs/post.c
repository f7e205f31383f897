/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/post.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program/say.h"
#include "verbs/complete.h"
#include "verbs/gather.h"
#include "verbs/process.h"
#include "verbs/rc.h"
#include "verbs/receives.h"

static const char *name_of(const struct ibv_send_wr *wr) {
  switch (wr->opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
      return "SEND";
    case IBV_WR_RDMA_READ:
      return "READ";
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return "ATOMIC";
    default:
      return "of another kind";
  }
}

static int opcode_of(const struct ibv_send_wr *wr, enum mrc_wr_opcode *opcode) {
  switch (wr->opcode) {
    case IBV_WR_RDMA_WRITE:
      *opcode = MRC_WR_WRITE;
      return 0;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      *opcode = MRC_WR_WRITE_IMM;
      return 0;
    default:
      PR_SAY_ONCE(
          "work request %s is refused: MRC has only WRITE and WRITE_IMM; mrc run --rc emulates it",
          name_of(wr));
      return EOPNOTSUPP;
  }
}

/* Copies inline data: a program may reuse its memory at once. */
static int copy_inline(struct vb_qp *qp, uint32_t place, const struct ibv_send_wr *wr,
                       struct mrc_wr *to) {
  uint8_t *data = NULL; /* no byte fits */
  if (qp->inlined) data = qp->inlined + (size_t)(place % qp->sq_size) * VB_INLINE_BYTES;
  uint32_t bytes = 0;
  for (int i = 0; i < wr->num_sge; i++) {
    const struct ibv_sge *sge = &wr->sg_list[i];
    if (sge->length > qp->cap.max_inline_data - bytes) return EINVAL;
    if (sge->length > 0) memcpy(data + bytes, (const void *)(uintptr_t)sge->addr, sge->length);
    bytes += sge->length;
  }
  to->local = (uint64_t)(uintptr_t)data;
  to->lkey = vb_objects.own_key;
  to->bytes = bytes;
  return 0;
}

/* EACCES: a piece of several is not registered; the engine finds out about a single one. */
static int set_memory(struct vb_qp *qp, uint32_t place, const struct ibv_send_wr *wr,
                      struct mrc_wr *to, struct vb_copies *copies, uint8_t **gathered) {
  if ((uint32_t)wr->num_sge > qp->cap.max_send_sge) return EINVAL;
  if (wr->send_flags & IBV_SEND_INLINE) return copy_inline(qp, place, wr, to);
  if (wr->num_sge == 1) {
    to->local = wr->sg_list->addr;
    to->lkey = wr->sg_list->lkey;
    to->bytes = wr->sg_list->length;
    return 0;
  }
  if (wr->num_sge == 0) return 0;
  const struct vb_copy *copy = &copies->first[copies->taken++];
  *gathered = copy->data;
  to->local = (uint64_t)(uintptr_t)copy->data;
  to->lkey = vb_objects.own_key;
  to->bytes = copy->bytes;
  return copy->error;
}

static void give(struct vb_qp *qp, const struct mrc_wr *wr) {
  pr_submit(&(struct mrc_command){.op = MRC_COMMAND_QP_POST,
                                  .cookie = vb_post_cookie(qp->ibv.qp.qp_num, (uint32_t)wr->wr_id),
                                  .qpn = qp->ibv.qp.qp_num,
                                  .wr = *wr});
}

/* ---- Emulated RC ---- */

/* What a work request is there; -1: refused. */
static int kind_of(const struct ibv_send_wr *wr, struct mrc_rc_request *to, uint8_t *opcode) {
  switch (wr->opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      *opcode = IBV_WC_RDMA_WRITE;
      return MRC_RC_DO_WRITE;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      *opcode = IBV_WC_SEND;
      return MRC_RC_DO_SEND;
    case IBV_WR_RDMA_READ:
      *opcode = IBV_WC_RDMA_READ;
      return MRC_RC_DO_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      *opcode = IBV_WC_COMP_SWAP;
      to->value = wr->wr.atomic.compare_add;
      to->swap = wr->wr.atomic.swap;
      return MRC_RC_DO_COMPARE_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      *opcode = IBV_WC_FETCH_ADD;
      to->value = wr->wr.atomic.compare_add;
      return MRC_RC_DO_FETCH_ADD;
    default:
      PR_SAY_ONCE("a work request of kind %d is refused: --rc does not emulate it", wr->opcode);
      return -1;
  }
}

/* Keeps where the memory is: it is copied when its turn comes. Positive errno. */
static int keep_sges(struct vb_qp *qp, const struct ibv_send_wr *wr, uint32_t *bytes) {
  uint64_t sum = 0;
  if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge) return EINVAL;
  for (int i = 0; i < wr->num_sge; i++)
    sum += wr->sg_list[i].length;
  if (sum > UINT32_MAX) return EINVAL;
  const size_t first = (size_t)(qp->sq_tail % qp->sq_size) * qp->cap.max_send_sge;
  if (wr->num_sge > 0)
    memcpy(qp->sq_sges + first, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
  *bytes = (uint32_t)sum;
  return 0;
}

static void set_target(const struct ibv_send_wr *wr, struct mrc_rc_request *to) {
  const bool atomic = to->kind >= MRC_RC_DO_COMPARE_SWAP;
  to->va = atomic ? wr->wr.atomic.remote_addr : wr->wr.rdma.remote_addr;
  to->rkey = atomic ? wr->wr.atomic.rkey : wr->wr.rdma.rkey;
}

static int set_emulated(struct vb_qp *qp, const struct ibv_send_wr *wr, struct mrc_rc_request *to,
                        struct vb_copies *copies, uint8_t **gathered) {
  const bool answered = to->kind >= MRC_RC_DO_READ;
  const bool is_inline = wr->send_flags & IBV_SEND_INLINE;
  if (is_inline && answered) return EINVAL;
  if (is_inline || to->kind == MRC_RC_DO_WRITE) {
    struct mrc_wr memory = {0};
    const int error = set_memory(qp, qp->sq_tail, wr, &memory, copies, gathered);
    to->local = memory.local;
    to->lkey = error == EACCES ? 0 : memory.lkey; /* of nobody: the engine refuses it */
    to->bytes = memory.bytes;
    return error == EACCES ? 0 : error;
  }
  const int error = keep_sges(qp, wr, &to->bytes);
  if (error == 0 && to->kind >= MRC_RC_DO_COMPARE_SWAP && to->bytes != sizeof(uint64_t))
    return EINVAL;
  return error;
}

static int post_emulated(struct vb_qp *qp, const struct ibv_send_wr *wr, struct vb_copies *copies) {
  struct mrc_rc_request to = {.fenced = wr->send_flags & IBV_SEND_FENCE,
                              .solicited = wr->send_flags & IBV_SEND_SOLICITED};
  uint8_t opcode;
  const int kind = kind_of(wr, &to, &opcode);
  if (kind < 0) return EOPNOTSUPP;
  to.kind = (uint8_t)kind;
  to.with_imm = wr->opcode == IBV_WR_SEND_WITH_IMM || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (to.with_imm) to.imm = ntohl(wr->imm_data);
  if (to.kind != MRC_RC_DO_SEND) set_target(wr, &to);
  uint8_t *gathered = NULL;
  const int error = set_emulated(qp, wr, &to, copies, &gathered);
  if (error != 0) return error;
  struct vb_sent *sent = &qp->sq[qp->sq_tail % qp->sq_size];
  free(sent->gathered); /* if its QP had failed */
  *sent = (struct vb_sent){.wr_id = wr->wr_id,
                           .bytes = to.bytes,
                           .opcode = opcode,
                           .signaled = qp->signal_all || (wr->send_flags & IBV_SEND_SIGNALED),
                           .inlined = wr->send_flags & IBV_SEND_INLINE,
                           .n_sges = (uint8_t)wr->num_sge,
                           .gathered = gathered};
  qp->sq_sent = ++qp->sq_tail;
  if (qp->failed) return 0;
  mrc_rc_post(&qp->rc->rc, &to);
  return 0;
}

static int post_one(struct vb_qp *qp, const struct ibv_send_wr *wr, struct vb_copies *copies) {
  if (qp->sq_tail - qp->sq_head >= qp->cap.max_send_wr) return ENOMEM;
  const uint32_t place = qp->sq_tail;
  if (qp->emulated) return post_emulated(qp, wr, copies);
  enum mrc_wr_opcode opcode;
  int error = opcode_of(wr, &opcode);
  if (error != 0) return error;
  struct mrc_wr to = {.wr_id = place,
                      .va = wr->wr.rdma.remote_addr,
                      .rkey = wr->wr.rdma.rkey,
                      .opcode = (uint8_t)opcode};
  uint8_t *gathered = NULL;
  error = set_memory(qp, place, wr, &to, copies, &gathered);
  const bool refused = error == EACCES;
  if (error != 0 && !refused) return error;
  if (opcode == MRC_WR_WRITE_IMM) to.imm = ntohl(wr->imm_data);
  struct vb_sent *sent = &qp->sq[place % qp->sq_size];
  free(sent->gathered); /* if its QP had failed */
  *sent = (struct vb_sent){.wr_id = wr->wr_id,
                           .bytes = to.bytes,
                           .opcode = IBV_WC_RDMA_WRITE,
                           .signaled = qp->signal_all || (wr->send_flags & IBV_SEND_SIGNALED),
                           .done = refused || (to.bytes == 0 && opcode == MRC_WR_WRITE),
                           .refused = refused,
                           .gathered = gathered};
  qp->sq_tail++;
  if (!qp->connected)
    qp->waiting[place % qp->sq_size] = to;
  else {
    qp->sq_sent = qp->sq_tail;
    if (!sent->done) give(qp, &to);
  }
  return 0;
}

int vb_post_send(struct vb_qp *qp, struct ibv_send_wr *list, struct vb_copies *copies,
                 struct ibv_send_wr **bad) {
  const enum ibv_qp_state state = qp->ibv.qp.state;
  int error = state == IBV_QPS_RTS || state == IBV_QPS_ERR ? 0 : EINVAL;
  struct ibv_send_wr *wr = list;
  for (; wr && error == 0; wr = wr->next) {
    error = post_one(qp, wr, copies);
    if (error != 0) break;
  }
  if (error != 0 && bad) *bad = wr;
  if (qp->failed)
    vb_complete_failed(qp, IBV_WC_WR_FLUSH_ERR);
  else if (qp->emulated)
    vb_rc_send(qp);
  else
    vb_complete_done(qp);
  return error;
}

void vb_post_waiting(struct vb_qp *qp) {
  if (qp->emulated) return; /* its requests wait in csrc/rc */
  while (qp->sq_sent != qp->sq_tail) {
    const uint32_t place = qp->sq_sent++;
    if (!qp->sq[place % qp->sq_size].done) give(qp, &qp->waiting[place % qp->sq_size]);
  }
  vb_complete_done(qp);
}

int vb_post_recv(struct vb_qp *qp, struct ibv_recv_wr *list, struct ibv_recv_wr **bad) {
  if (qp->ibv.qp.state == IBV_QPS_RESET || qp->srq) {
    if (bad) *bad = list;
    return EINVAL;
  }
  const uint32_t before = qp->rq.tail;
  const int error = vb_receives_post(&qp->rq, list, bad);
  vb_rc_receives(qp, qp->rq.tail - before);
  vb_complete_held(qp);
  return error;
}
