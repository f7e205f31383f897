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
      PR_SAY_ONCE("work request %s is refused: MRC has only WRITE and WRITE_IMM", name_of(wr));
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

static int post_one(struct vb_qp *qp, const struct ibv_send_wr *wr, struct vb_copies *copies) {
  if (qp->sq_tail - qp->sq_head >= qp->cap.max_send_wr) return ENOMEM;
  const uint32_t place = qp->sq_tail;
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
  else
    vb_complete_done(qp);
  return error;
}

void vb_post_waiting(struct vb_qp *qp) {
  while (qp->sq_sent != qp->sq_tail) {
    const uint32_t place = qp->sq_sent++;
    if (!qp->sq[place % qp->sq_size].done) give(qp, &qp->waiting[place % qp->sq_size]);
  }
  vb_complete_done(qp);
}

int vb_post_recv(struct vb_qp *qp, struct ibv_recv_wr *list, struct ibv_recv_wr **bad) {
  int error = qp->ibv.qp.state == IBV_QPS_RESET ? EINVAL : 0;
  struct ibv_recv_wr *wr = list;
  for (; wr && error == 0; wr = wr->next) {
    if (wr->num_sge > (int)qp->cap.max_recv_sge) error = EINVAL;
    if (qp->rq_tail - qp->rq_head >= qp->cap.max_recv_wr) error = ENOMEM;
    if (error != 0) break;
    qp->rq[qp->rq_tail++ % qp->rq_size] = wr->wr_id;
  }
  if (error != 0 && bad) *bad = wr;
  vb_complete_held(qp);
  return error;
}
