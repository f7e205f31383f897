/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/srq.h"

#include <errno.h>
#include <stdlib.h>

#include "verbs/async.h"
#include "verbs/process.h"
#include "verbs/receives.h"

/* ---- The QPs that want receives ---- */

static void append(struct vb_srq *srq, struct vb_qp *qp) {
  qp->waits = true;
  qp->next_waiting = NULL;
  if (srq->waiting)
    srq->waiting_last->next_waiting = qp;
  else
    srq->waiting = qp;
  srq->waiting_last = qp;
}

static struct vb_qp *take_first(struct vb_srq *srq) {
  struct vb_qp *first = srq->waiting;
  srq->waiting = first->next_waiting;
  first->waits = false;
  return first;
}

/* Grants what is free, to the QPs in turn. */
static void serve(struct vb_srq *srq) {
  while (srq->waiting && srq->reserved < vb_receives_n(&srq->rq)) {
    struct vb_qp *qp = take_first(srq);
    srq->reserved++;
    qp->srq_reserved++;
    mrc_rc_grant(&qp->rc->rc, 1);
    vb_process_touch(qp);
    if (--qp->srq_wants > 0) append(srq, qp);
  }
}

void vb_srq_want(struct vb_qp *qp, uint32_t n) {
  qp->srq_wants = n;
  if (!qp->waits) append(qp->srq, qp);
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

static void stop_waiting(struct vb_qp *qp) {
  struct vb_srq *srq = qp->srq;
  if (!qp->waits) return;
  struct vb_qp *first = srq->waiting;
  srq->waiting = NULL;
  while (first) { /* all but this one, in their order */
    struct vb_qp *next = first->next_waiting;
    if (first != qp) append(srq, first);
    first = next;
  }
  qp->waits = false;
}

void vb_srq_leave(struct vb_qp *qp) {
  stop_waiting(qp);
  qp->srq->reserved -= qp->srq_reserved;
  qp->srq_reserved = qp->srq_wants = 0;
  serve(qp->srq);
}

/* ---- The program ---- */

struct vb_srq *vb_srq_create(struct ibv_pd *pd, const struct ibv_srq_init_attr *attr) {
  const struct ibv_srq_attr *wanted = &attr->attr;
  if (wanted->max_wr < 1 || wanted->max_wr > VB_MAX_SRQ_WR || wanted->max_sge > VB_MAX_SGE) {
    errno = EINVAL;
    return NULL;
  }
  struct vb_srq *srq = calloc(1, sizeof *srq);
  if (!srq || vb_receives_init(&srq->rq, wanted->max_wr, wanted->max_sge, true) != 0) {
    if (srq) vb_receives_free(&srq->rq);
    free(srq);
    errno = ENOMEM;
    return NULL;
  }
  srq->srq = (struct ibv_srq){.context = pd->context, .srq_context = attr->srq_context, .pd = pd};
  pthread_mutex_init(&srq->srq.mutex, NULL);
  pthread_cond_init(&srq->srq.cond, NULL);
  ((struct vb_pd *)pd)->users++;
  return srq;
}

int vb_srq_destroy(struct vb_srq *srq) {
  pr_lock();
  if (srq->users > 0) {
    pr_unlock();
    return EBUSY;
  }
  vb_async_forget(srq->srq.context, srq);
  ((struct vb_pd *)srq->srq.pd)->users--;
  const uint32_t taken = srq->taken_events;
  pr_unlock();
  pthread_mutex_lock(&srq->srq.mutex);
  while (srq->srq.events_completed != taken)
    pthread_cond_wait(&srq->srq.cond, &srq->srq.mutex);
  pthread_mutex_unlock(&srq->srq.mutex);
  vb_receives_free(&srq->rq);
  free(srq);
  return 0;
}

int vb_srq_modify(struct vb_srq *srq, const struct ibv_srq_attr *attr, int mask) {
  if (mask & ~IBV_SRQ_LIMIT) return mask & IBV_SRQ_MAX_WR ? EOPNOTSUPP : EINVAL;
  if (!(mask & IBV_SRQ_LIMIT)) return 0;
  if (attr->srq_limit > srq->rq.most) return EINVAL;
  srq->limit = attr->srq_limit;
  check_limit(srq);
  return 0;
}

int vb_srq_post(struct vb_srq *srq, struct ibv_recv_wr *list, struct ibv_recv_wr **bad) {
  const int error = vb_receives_post(&srq->rq, list, bad);
  serve(srq);
  return error;
}
