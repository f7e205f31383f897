/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/complete.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>

#include "program/say.h"
#include "verbs/async.h"
#include "verbs/cq.h"
#include "verbs/process.h"
#include "verbs/receives.h"
#include "verbs/srq.h"
#include "verbs/status.h"

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

void vb_complete_refused(uint32_t qpn, uint32_t place, int error) {
  struct vb_qp *qp = vb_process_qp(qpn);
  if (!qp || qp->failed || qp->leaving) return;
  if (error == -EPERM) return; /* the QP is in ERROR: its event follows */
  struct vb_sent *sent = sent_at(qp, place);
  sent->done = sent->refused = true;
  vb_complete_done(qp);
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
  vb_cq_solicit(recv_cq(qp)); /* packets of MRC do not say which */
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
