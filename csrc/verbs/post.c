/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The route of a list of work requests, in the order of its stages:
 *
 *   1. without the lock, the memory of requests with several pieces is copied: the engine sends
 *      from one MR (gather)
 *   2. under the lock, each request is checked, and its memory found (set_memory)
 *   3. it gets a place in the send queue (post_one; with emulated RC post_emulated)
 *   4. the engine gets it, or it waits until the QP is connected (give)
 *   5. what the engine never sees completes, and an idle engine runs at once (vb_post_send)
 *
 * Completions come back by wq.c. Posted receives have only the last two stages.
 */
#include "verbs/objects.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

/* ---- 1. Several pieces of memory ---- */

/* Of a work request with several pieces of memory that are not inline. */
struct copy {
  uint8_t *data; /* NULL: no bytes */
  uint32_t bytes;
  int error; /* a positive errno: EACCES if no MR of the PD covers a piece, EINVAL if they are too
                long together, ENOMEM */
};

/* In the order of the list; no more than a QP can take. */
struct copies {
  struct copy *first;
  uint32_t n;
  uint32_t taken;
};

/* The next of a list, from this one on, that has several pieces; NULL at the end. */
static const struct ibv_send_wr *next_of(const struct vb_qp *qp, const struct ibv_send_wr *wr) {
  for (; wr; wr = wr->next) {
    const bool writes = wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if ((writes || !qp->emulated) && wr->num_sge > 1 &&
        (uint32_t)wr->num_sge <= qp->cap.max_send_sge && !(wr->send_flags & IBV_SEND_INLINE))
      break;
  }
  return wr;
}

static void check(struct copy *copy, const struct ibv_pd *pd, const struct ibv_send_wr *wr) {
  uint64_t sum = 0;
  for (int i = 0; i < wr->num_sge && copy->error == 0; i++) {
    const struct ibv_sge *sge = &wr->sg_list[i];
    if (sge->length > 0 && !vb_process_covers(pd, sge, 0)) copy->error = EACCES;
    sum += sge->length;
  }
  if (copy->error == 0 && sum > UINT32_MAX) copy->error = EINVAL;
  if (copy->error == 0) copy->bytes = (uint32_t)sum;
}

static void fill(struct copy *copy, const struct ibv_send_wr *wr) {
  if (copy->bytes == 0) return;
  copy->data = malloc(copy->bytes);
  if (!copy->data) {
    copy->error = ENOMEM;
    return;
  }
  uint8_t *at = copy->data;
  for (int i = 0; i < wr->num_sge; at += wr->sg_list[i].length, i++)
    if (wr->sg_list[i].length > 0)
      memcpy(at, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
}

/* 0 or ENOMEM. Large copies take long, so only their check has the lock. */
static int gather(struct copies *copies, struct vb_qp *qp, const struct ibv_send_wr *list) {
  const struct ibv_send_wr *first = next_of(qp, list);
  *copies = (struct copies){0};
  for (const struct ibv_send_wr *wr = first; wr && copies->n < qp->cap.max_send_wr;
       wr = next_of(qp, wr->next))
    copies->n++;
  if (copies->n == 0) return 0;
  copies->first = calloc(copies->n, sizeof *copies->first);
  if (!copies->first) return ENOMEM;
  const struct ibv_send_wr *wr = first;
  pr_lock();
  for (uint32_t i = 0; i < copies->n; i++, wr = next_of(qp, wr->next))
    check(&copies->first[i], qp->ibv.qp.pd, wr);
  pr_unlock();
  wr = first;
  for (uint32_t i = 0; i < copies->n; i++, wr = next_of(qp, wr->next))
    fill(&copies->first[i], wr);
  return 0;
}

/* ---- 2. One request ---- */

/* What a work request is with emulated RC, and its completion. */
static const struct kind {
  const char *name;
  int emulated; /* enum mrc_rc_request_kind, or -1 */
  enum ibv_wc_opcode completion;
} kinds[] = {
    [IBV_WR_RDMA_WRITE] = {"WRITE", MRC_RC_DO_WRITE, IBV_WC_RDMA_WRITE},
    [IBV_WR_RDMA_WRITE_WITH_IMM] = {"WRITE", MRC_RC_DO_WRITE, IBV_WC_RDMA_WRITE},
    [IBV_WR_SEND] = {"SEND", MRC_RC_DO_SEND, IBV_WC_SEND},
    [IBV_WR_SEND_WITH_IMM] = {"SEND", MRC_RC_DO_SEND, IBV_WC_SEND},
    [IBV_WR_SEND_WITH_INV] = {"SEND", -1, IBV_WC_SEND},
    [IBV_WR_RDMA_READ] = {"READ", MRC_RC_DO_READ, IBV_WC_RDMA_READ},
    [IBV_WR_ATOMIC_CMP_AND_SWP] = {"ATOMIC", MRC_RC_DO_COMPARE_SWAP, IBV_WC_COMP_SWAP},
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = {"ATOMIC", MRC_RC_DO_FETCH_ADD, IBV_WC_FETCH_ADD},
};

static struct kind kind_of(const struct ibv_send_wr *wr) {
  const bool known = (size_t)wr->opcode < sizeof kinds / sizeof kinds[0];
  return known && kinds[wr->opcode].name ? kinds[wr->opcode]
                                         : (struct kind){"of another kind", -1, 0};
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
                      struct mrc_wr *to, struct copies *copies, uint8_t **gathered) {
  if ((uint32_t)wr->num_sge > qp->cap.max_send_sge) return EINVAL;
  if (wr->send_flags & IBV_SEND_INLINE) return copy_inline(qp, place, wr, to);
  if (wr->num_sge == 1) {
    to->local = wr->sg_list->addr;
    to->lkey = wr->sg_list->lkey;
    to->bytes = wr->sg_list->length;
    return 0;
  }
  if (wr->num_sge == 0) return 0;
  const struct copy *copy = &copies->first[copies->taken++];
  *gathered = copy->data;
  to->local = (uint64_t)(uintptr_t)copy->data;
  to->lkey = vb_objects.own_key;
  to->bytes = copy->bytes;
  return copy->error;
}

/* ---- 3. Its place in the send queue ---- */

static void give(struct vb_qp *qp, uint32_t place, const struct mrc_wr *wr, bool idle);

static int post_one(struct vb_qp *qp, const struct ibv_send_wr *wr, struct copies *copies,
                    bool idle) {
  const uint32_t place = qp->sq_tail;
  const bool imm = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (!imm && wr->opcode != IBV_WR_RDMA_WRITE) {
    PR_SAY_ONCE(
        "work request %s is refused: MRC has only WRITE and WRITE_IMM; mrc run --rc emulates it",
        kind_of(wr).name);
    return EOPNOTSUPP;
  }
  struct mrc_wr to = {.wr_id = place,
                      .va = wr->wr.rdma.remote_addr,
                      .rkey = wr->wr.rdma.rkey,
                      .opcode = (uint8_t)(imm ? MRC_WR_WRITE_IMM : MRC_WR_WRITE)};
  uint8_t *gathered = NULL;
  const int error = set_memory(qp, place, wr, &to, copies, &gathered);
  const bool refused = error == EACCES;
  if (error != 0 && !refused) return error;
  if (imm) to.imm = ntohl(wr->imm_data);
  struct vb_sent *sent = &qp->sq[place % qp->sq_size];
  free(sent->gathered); /* if its QP had failed */
  *sent = (struct vb_sent){.wr_id = wr->wr_id,
                           .bytes = to.bytes,
                           .opcode = IBV_WC_RDMA_WRITE,
                           .signaled = qp->signal_all || (wr->send_flags & IBV_SEND_SIGNALED),
                           .done = refused || (to.bytes == 0 && !imm),
                           .refused = refused,
                           .gathered = gathered};
  qp->sq_tail++;
  if (qp->connected) {
    qp->sq_sent = qp->sq_tail;
    give(qp, place, &to, idle);
  } else {
    qp->waiting[place % qp->sq_size] = to;
  }
  return 0;
}

/* ---- 3. The same with emulated RC ---- */

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

static int set_emulated(struct vb_qp *qp, const struct ibv_send_wr *wr, struct mrc_rc_request *to,
                        struct copies *copies, uint8_t **gathered) {
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

static int post_emulated(struct vb_qp *qp, const struct ibv_send_wr *wr, struct copies *copies) {
  struct mrc_rc_request to = {.fenced = wr->send_flags & IBV_SEND_FENCE,
                              .solicited = wr->send_flags & IBV_SEND_SOLICITED};
  const struct kind kind = kind_of(wr);
  if (kind.emulated < 0) {
    PR_SAY_ONCE("a work request of kind %d is refused: --rc does not emulate it", wr->opcode);
    return EOPNOTSUPP;
  }
  to.kind = (uint8_t)kind.emulated;
  to.with_imm = wr->opcode == IBV_WR_SEND_WITH_IMM || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (to.with_imm) to.imm = ntohl(wr->imm_data);
  if (to.kind != MRC_RC_DO_SEND) {
    const bool atomic = to.kind >= MRC_RC_DO_COMPARE_SWAP;
    to.va = atomic ? wr->wr.atomic.remote_addr : wr->wr.rdma.remote_addr;
    to.rkey = atomic ? wr->wr.atomic.rkey : wr->wr.rdma.rkey;
    if (atomic) to.value = wr->wr.atomic.compare_add;
    if (to.kind == MRC_RC_DO_COMPARE_SWAP) to.swap = wr->wr.atomic.swap;
  }
  uint8_t *gathered = NULL;
  const int error = set_emulated(qp, wr, &to, copies, &gathered);
  if (error != 0) return error;
  struct vb_sent *sent = &qp->sq[qp->sq_tail % qp->sq_size];
  free(sent->gathered); /* if its QP had failed */
  *sent = (struct vb_sent){.wr_id = wr->wr_id,
                           .bytes = to.bytes,
                           .opcode = (uint8_t)kind.completion,
                           .signaled = qp->signal_all || (wr->send_flags & IBV_SEND_SIGNALED),
                           .inlined = wr->send_flags & IBV_SEND_INLINE,
                           .n_sges = (uint8_t)wr->num_sge,
                           .gathered = gathered};
  qp->sq_sent = ++qp->sq_tail;
  if (!qp->failed) mrc_rc_post(&qp->rc->rc, &to);
  return 0;
}

/* ---- 4. To the engine ---- */

/* What the engine refuses ends with an error when it is the oldest. -EPERM: the QP is in ERROR, and
   its event follows. */
static void give(struct vb_qp *qp, uint32_t place, const struct mrc_wr *wr, bool idle) {
  struct vb_sent *sent = &qp->sq[place % qp->sq_size];
  if (sent->done) return;
  const int error = mrc_ctx_post(pr_process.ctx, qp->ibv.qp.qp_num, wr, idle);
  if (error != 0 && error != -EPERM && !qp->leaving) sent->done = sent->refused = true;
}

void vb_post_waiting(struct vb_qp *qp) {
  if (qp->emulated) return; /* its requests wait in rc.c */
  while (qp->sq_sent != qp->sq_tail) {
    const uint32_t place = qp->sq_sent++;
    give(qp, place, &qp->waiting[place % qp->sq_size], true);
  }
  vb_complete_done(qp);
}

/* ---- 5. The list ---- */

int vb_post_send(struct ibv_qp *qp, struct ibv_send_wr *list, struct ibv_send_wr **bad) {
  struct vb_qp *own = vb_qp_of(qp);
  struct ibv_send_wr *wr = list;
  struct copies copies;
  int error = pr_process.forked ? EIO : gather(&copies, own, list);
  if (error != 0) {
    if (bad) *bad = list;
    return error;
  }
  pr_lock();
  const bool idle = own->sq_ended == own->sq_tail;
  if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) error = EINVAL;
  while (wr && error == 0) {
    if (own->sq_tail - own->sq_head >= own->cap.max_send_wr)
      error = ENOMEM;
    else
      error = own->emulated ? post_emulated(own, wr, &copies) : post_one(own, wr, &copies, idle);
    if (error == 0) wr = wr->next;
  }
  if (error != 0 && bad) *bad = wr;
  if (own->failed)
    vb_complete_failed(own, IBV_WC_WR_FLUSH_ERR);
  else if (own->emulated)
    vb_rc_send(own);
  else
    vb_complete_done(own);
  if (own->connected) pr_engine_posted(idle);
  pr_unlock();
  for (uint32_t i = copies.taken; i < copies.n; i++)
    free(copies.first[i].data); /* nobody has taken it */
  free(copies.first);
  return error;
}

/* ---- Receives ---- */

int vb_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *list, struct ibv_recv_wr **bad) {
  struct vb_qp *own = vb_qp_of(qp);
  if (pr_process.forked) {
    if (bad) *bad = list;
    return EIO;
  }
  pr_lock();
  int error = EINVAL;
  if (qp->state == IBV_QPS_RESET || own->srq) {
    if (bad) *bad = list;
  } else {
    const uint32_t before = own->rq.tail;
    error = vb_receives_post(&own->rq, list, bad);
    vb_rc_receives(own, own->rq.tail - before);
    vb_complete_held(own);
  }
  if (mrc_node_joined(&own->touched)) pr_engine_owed();
  pr_unlock();
  return error;
}
