/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/objects.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

int vb_receives_init(struct vb_receives *receives, uint32_t most, uint32_t max_sge,
                     bool with_memory) {
  *receives = (struct vb_receives){.max_sge = max_sge, .size = mrc_ceil_pow2(most), .most = most};
  receives->ring = calloc(receives->size, sizeof *receives->ring);
  if (with_memory && max_sge > 0)
    receives->sges = calloc((size_t)receives->size * max_sge, sizeof *receives->sges);
  const bool complete = receives->ring && (receives->sges || !with_memory || max_sge == 0);
  return complete ? 0 : ENOMEM;
}

void vb_receives_free(struct vb_receives *receives) {
  free(receives->ring);
  free(receives->sges);
}

static struct ibv_sge *sges_at(const struct vb_receives *receives, uint32_t place) {
  return receives->sges + (size_t)(place & (receives->size - 1)) * receives->max_sge;
}

int vb_receives_post(struct vb_receives *receives, struct ibv_recv_wr *list,
                     struct ibv_recv_wr **bad) {
  int error = 0;
  struct ibv_recv_wr *wr = list;
  for (; wr && error == 0; wr = wr->next) {
    if (wr->num_sge < 0 || wr->num_sge > (int)receives->max_sge) error = EINVAL;
    if (vb_receives_n(receives) >= receives->most) error = ENOMEM;
    if (error != 0) break;
    const uint32_t place = receives->tail++;
    const uint32_t n = (uint32_t)wr->num_sge;
    receives->ring[place & (receives->size - 1)] =
        (struct vb_receive){.wr_id = wr->wr_id, .n_sges = n};
    if (receives->sges && n > 0)
      memcpy(sges_at(receives, place), wr->sg_list, n * sizeof *wr->sg_list);
  }
  if (error != 0 && bad) *bad = wr;
  return error;
}

struct vb_receive vb_receives_take(struct vb_receives *receives, struct ibv_sge *sges) {
  const uint32_t place = receives->head++;
  const struct vb_receive taken = receives->ring[place & (receives->size - 1)];
  if (sges && receives->sges && taken.n_sges > 0)
    memcpy(sges, sges_at(receives, place), taken.n_sges * sizeof *sges);
  return taken;
}

/* ==== Shared receive queues ==== */

/* ---- The QPs that want receives ---- */

/* Grants what is free, to the QPs in turn. */
static void serve(struct vb_srq *srq) {
  while (!mrc_list_is_empty(&srq->turns) && srq->reserved < vb_receives_n(&srq->rq)) {
    struct vb_qp *qp = MRC_NODE_OWNER(srq->turns.next, struct vb_qp, turn);
    mrc_node_leave(&qp->turn);
    srq->reserved++;
    qp->srq_reserved++;
    mrc_rc_grant(&qp->rc->rc, 1);
    vb_process_touch(qp);
    if (--qp->srq_wants > 0) mrc_list_append(&srq->turns, &qp->turn);
  }
}

void vb_srq_want(struct vb_qp *qp, uint32_t n) {
  qp->srq_wants = n;
  mrc_list_append(&qp->srq->turns, &qp->turn);
  serve(qp->srq);
}

static void check_limit(struct vb_srq *srq) {
  if (vb_receives_n(&srq->rq) >= srq->limit) return;
  srq->limit = 0;
  vb_async_raise(srq->srq.context,
                 (struct ibv_async_event){.element.srq = &srq->srq,
                                          .event_type = IBV_EVENT_SRQ_LIMIT_REACHED});
}

struct vb_receive vb_srq_take(struct vb_qp *qp, struct ibv_sge *sges) {
  struct vb_srq *srq = qp->srq;
  srq->reserved--;
  qp->srq_reserved--;
  const struct vb_receive taken = vb_receives_take(&srq->rq, sges);
  check_limit(srq);
  return taken;
}

void vb_srq_leave(struct vb_qp *qp) {
  mrc_node_leave(&qp->turn);
  qp->srq->reserved -= qp->srq_reserved;
  qp->srq_reserved = qp->srq_wants = 0;
  serve(qp->srq);
}

/* ---- The program ---- */

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
  if (!vb_owns(pd->context)) PASS(NULL, ibv_create_srq, "IBVERBS_1.1", pd, attr);
  if (!vb_rc_is_on() || pr_process.forked) {
    PR_SAY_ONCE("a shared receive queue is refused: MRC has none; mrc run --rc emulates them");
    return vb_null(pr_process.forked ? EIO : EOPNOTSUPP);
  }
  const struct ibv_srq_attr *wanted = &attr->attr;
  if (wanted->max_wr < 1 || wanted->max_wr > VB_MAX_SRQ_WR || wanted->max_sge > VB_MAX_SGE)
    return vb_null(EINVAL);
  struct vb_srq *srq = calloc(1, sizeof *srq);
  if (!srq || vb_receives_init(&srq->rq, wanted->max_wr, wanted->max_sge, true) != 0) {
    if (srq) vb_receives_free(&srq->rq);
    free(srq);
    return vb_null(ENOMEM);
  }
  mrc_list_init(&srq->turns);
  srq->srq = (struct ibv_srq){.context = pd->context, .srq_context = attr->srq_context, .pd = pd};
  pthread_mutex_init(&srq->srq.mutex, NULL);
  pthread_cond_init(&srq->srq.cond, NULL);
  pr_lock();
  ((struct vb_pd *)pd)->users++;
  pr_unlock();
  return &srq->srq;
}

EXPORT int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask) {
  if (!vb_owns(srq->context)) PASS(ENOSYS, ibv_modify_srq, "IBVERBS_1.1", srq, attr, mask);
  struct vb_srq *ours = (struct vb_srq *)srq;
  if (mask & ~IBV_SRQ_LIMIT) return mask & IBV_SRQ_MAX_WR ? EOPNOTSUPP : EINVAL;
  if (!(mask & IBV_SRQ_LIMIT)) return 0;
  if (attr->srq_limit > ours->rq.most) return EINVAL;
  pr_lock();
  ours->limit = attr->srq_limit;
  check_limit(ours);
  pr_unlock();
  return 0;
}

EXPORT int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr) {
  if (!vb_owns(srq->context)) PASS(ENOSYS, ibv_query_srq, "IBVERBS_1.1", srq, attr);
  const struct vb_srq *own = (struct vb_srq *)srq;
  pr_lock();
  *attr = (struct ibv_srq_attr){
      .max_wr = own->rq.most, .max_sge = own->rq.max_sge, .srq_limit = own->limit};
  pr_unlock();
  return 0;
}

/* Waits until the program has acknowledged its events. EBUSY: QPs use it. */
EXPORT int ibv_destroy_srq(struct ibv_srq *srq) {
  if (!vb_owns(srq->context)) PASS(ENOSYS, ibv_destroy_srq, "IBVERBS_1.1", srq);
  if (pr_process.forked) return EIO;
  struct vb_srq *ours = (struct vb_srq *)srq;
  pr_lock();
  if (ours->users > 0) {
    pr_unlock();
    return EBUSY;
  }
  vb_async_forget(srq->context, srq);
  ((struct vb_pd *)srq->pd)->users--;
  const uint32_t taken = ours->taken_events;
  pr_unlock();
  pthread_mutex_lock(&srq->mutex);
  while (srq->events_completed != taken)
    pthread_cond_wait(&srq->cond, &srq->mutex);
  pthread_mutex_unlock(&srq->mutex);
  vb_receives_free(&ours->rq);
  free(ours);
  return 0;
}

int vb_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *list, struct ibv_recv_wr **bad) {
  struct vb_srq *ours = (struct vb_srq *)srq;
  if (pr_process.forked) {
    if (bad) *bad = list;
    return EIO;
  }
  pr_lock();
  const int error = vb_receives_post(&ours->rq, list, bad);
  serve(ours);
  if (!mrc_list_is_empty(&vb_objects.touched)) pr_engine_owed();
  pr_unlock();
  return error;
}

/* ==== Completions ==== */

enum { FIRST_HELD = 64 };

static struct vb_cq *send_cq(struct vb_qp *qp) { return vb_cq_of(qp->ibv.qp.send_cq); }
static struct vb_cq *recv_cq(struct vb_qp *qp) { return vb_cq_of(qp->ibv.qp.recv_cq); }

/* ---- Sent ---- */

static struct vb_sent *sent_at(struct vb_qp *qp, uint32_t place) {
  return &qp->sq[place % qp->sq_size];
}

static void push_sent(struct vb_qp *qp, uint32_t place, enum ibv_wc_status status) {
  const struct vb_sent *sent = sent_at(qp, place);
  const struct ibv_wc wc = {.wr_id = sent->wr_id,
                            .status = status,
                            .opcode = sent->opcode,
                            .byte_len = sent->bytes,
                            .qp_num = qp->ibv.qp.qp_num};
  vb_cq_push(send_cq(qp), &wc, qp, place + 1);
}

void vb_complete_fail_engine(struct vb_qp *qp) {
  if (!qp->exists || qp->leaving) return;
  pr_submit(&(struct mrc_command){.op = MRC_COMMAND_QP_MODIFY,
                                  .cookie = PR_COOKIE_CALL,
                                  .qpn = qp->ibv.qp.qp_num,
                                  .value = MRC_QP_ERROR});
}

void vb_complete_next(struct vb_qp *qp) {
  const uint32_t place = qp->sq_ended++;
  struct vb_sent *sent = sent_at(qp, place);
  free(sent->gathered);
  sent->gathered = NULL;
  if (sent->signaled) push_sent(qp, place, IBV_WC_SUCCESS);
}

void vb_complete_done(struct vb_qp *qp) {
  while (qp->sq_ended != qp->sq_sent && sent_at(qp, qp->sq_ended)->done) {
    const struct vb_sent *next = sent_at(qp, qp->sq_ended);
    if (next->refused) {
      vb_complete_fail_engine(qp);
      vb_complete_failed(qp, IBV_WC_LOC_PROT_ERR);
      vb_async_raise_qp(qp, IBV_EVENT_QP_FATAL);
      return;
    }
    vb_complete_next(qp);
  }
}

static void flush(struct vb_qp *qp, struct vb_receive receive) {
  const struct ibv_wc wc = {.wr_id = receive.wr_id,
                            .status = IBV_WC_WR_FLUSH_ERR,
                            .opcode = IBV_WC_RECV,
                            .qp_num = qp->ibv.qp.qp_num};
  vb_cq_push(recv_cq(qp), &wc, NULL, 0);
}

/* Receives of an SRQ stay there, but for one that a message has begun to fill. */
static void flush_receives(struct vb_qp *qp) {
  if (qp->receiving) flush(qp, qp->receive);
  qp->receiving = false;
  while (!qp->srq && vb_receives_n(&qp->rq) > 0)
    flush(qp, vb_receives_take(&qp->rq, NULL));
}

void vb_complete_failed(struct vb_qp *qp, enum ibv_wc_status status) {
  qp->ibv.qp.state = IBV_QPS_ERR;
  if (qp->gone) pr_process.n_timed--;
  const bool first = !qp->failed;
  qp->gone = false;
  qp->failed = true;
  for (; qp->sq_ended != qp->sq_tail; status = IBV_WC_WR_FLUSH_ERR)
    push_sent(qp, qp->sq_ended++, status);
  qp->sq_sent = qp->sq_tail;
  flush_receives(qp);
  if (!qp->srq || !first) return;
  vb_srq_leave(qp);
  vb_async_raise_qp(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
}

void vb_complete_error(uint32_t qpn, uint32_t status) {
  struct vb_qp *qp = vb_process_qp(qpn);
  if (!qp || qp->failed || qp->leaving) return;
  vb_complete_failed(qp, vb_status_of(status));
  vb_async_raise_qp(qp, IBV_EVENT_QP_FATAL);
}

/* ---- Received ---- */

static void push_received(struct vb_qp *qp, struct vb_immediate immediate) {
  const struct ibv_wc wc = {.wr_id = vb_receives_take(&qp->rq, NULL).wr_id,
                            .status = IBV_WC_SUCCESS,
                            .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
                            .byte_len = immediate.bytes,
                            .imm_data = htonl(immediate.imm),
                            .wc_flags = IBV_WC_WITH_IMM,
                            .src_qp = qp->connect.dest_qpn,
                            .qp_num = qp->ibv.qp.qp_num};
  vb_cq_push(recv_cq(qp), &wc, NULL, 0);
  vb_cq_tell(recv_cq(qp)); /* packets of MRC do not say which */
}

static bool make_room(struct vb_qp *qp) {
  if (qp->held_tail - qp->held_head < qp->held_size) return true;
  if (qp->held_size == VB_MAX_HELD_IMMEDIATES) return false;
  const uint32_t size = qp->held_size ? 2 * qp->held_size : FIRST_HELD;
  struct vb_immediate *held = calloc(size, sizeof *held);
  if (!held) return false;
  const uint32_t used = qp->held_tail - qp->held_head;
  for (uint32_t i = 0; i < used; i++)
    held[i] = qp->held[(qp->held_head + i) % qp->held_size];
  free(qp->held);
  qp->held = held;
  qp->held_size = size;
  qp->held_head = 0;
  qp->held_tail = used;
  return true;
}

static void receive(struct vb_qp *qp, const struct mrc_wc *wc) {
  const struct vb_immediate immediate = {.imm = wc->imm, .bytes = wc->bytes};
  if (vb_receives_n(&qp->rq) > 0 && qp->held_head == qp->held_tail) {
    push_received(qp, immediate);
    return;
  }
  if (make_room(qp)) {
    qp->held[qp->held_tail++ % qp->held_size] = immediate;
    return;
  }
  pr_say("QP 0x%06x: %d immediates came without a posted receive: the QP fails", wc->qpn,
         VB_MAX_HELD_IMMEDIATES);
  vb_complete_fail_engine(qp);
  vb_complete_failed(qp, IBV_WC_WR_FLUSH_ERR);
  vb_async_raise_qp(qp, IBV_EVENT_QP_FATAL);
}

void vb_complete_held(struct vb_qp *qp) {
  while (qp->held_head != qp->held_tail && vb_receives_n(&qp->rq) > 0)
    push_received(qp, qp->held[qp->held_head++ % qp->held_size]);
  if (qp->failed) flush_receives(qp);
}

void vb_complete(const struct mrc_wc *wc) {
  struct vb_qp *qp = vb_process_qp(wc->qpn);
  if (!qp || qp->failed || qp->leaving) return;
  if (wc->opcode == MRC_WC_RECV_IMM) {
    receive(qp, wc);
    return;
  }
  if (wc->status != MRC_WC_SUCCESS) {
    vb_complete_failed(qp, vb_status_of(wc->status));
    vb_async_raise_qp(qp, IBV_EVENT_QP_FATAL);
    return;
  }
  if ((uint32_t)wc->wr_id != qp->sq_ended) return; /* of a former life of the QP */
  vb_complete_next(qp);
  vb_complete_done(qp);
}
