/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/async.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "verbs/process.h"

/* A program may close a context that has objects: they stay, but nobody asks for their events. */
static bool is_open(const struct vb_context *context) {
  const struct vb_context *each = vb_objects.contexts;
  while (each && each != context)
    each = each->next;
  return each != NULL;
}

void vb_async_raise(struct ibv_context *context, struct ibv_async_event event) {
  struct vb_context *own = vb_context_of(context);
  if (!is_open(own)) return;
  struct vb_async *async = malloc(sizeof *async);
  if (!async) return;
  *async = (struct vb_async){.event = event};
  if (own->last)
    own->last->next = async;
  else
    own->first = async;
  own->last = async;
  eventfd_write(context->async_fd, 1);
}

void vb_async_raise_qp(struct vb_qp *qp, enum ibv_event_type type) {
  vb_async_raise(qp->ibv.qp.context,
                 (struct ibv_async_event){.element.qp = &qp->ibv.qp, .event_type = type});
}

void vb_async_raise_all(enum ibv_event_type type, int port) {
  for (struct vb_context *each = vb_objects.contexts; each; each = each->next)
    vb_async_raise(&each->verbs.context,
                   (struct ibv_async_event){.element.port_num = port, .event_type = type});
}

static bool is_of_qp(enum ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return true;
    default:
      return false;
  }
}

static bool is_of_srq(enum ibv_event_type type) {
  return type == IBV_EVENT_SRQ_LIMIT_REACHED || type == IBV_EVENT_SRQ_ERR;
}

int vb_async_take(struct ibv_context *context, struct ibv_async_event *event) {
  struct vb_context *own = vb_context_of(context);
  for (;;) {
    uint64_t taken;
    if (read(context->async_fd, &taken, sizeof taken) < 0) return -1;
    pr_lock();
    struct vb_async *first = NULL;
    if (own->void_reads > 0) {
      own->void_reads--;
    } else {
      first = own->first;
      own->first = first->next;
      if (!own->first) own->last = NULL;
      *event = first->event;
      if (is_of_qp(event->event_type)) vb_qp_of(event->element.qp)->taken_events++;
      if (is_of_srq(event->event_type)) ((struct vb_srq *)event->element.srq)->taken_events++;
      if (event->event_type == IBV_EVENT_CQ_ERR) vb_cq_of(event->element.cq)->taken_async++;
    }
    pr_unlock();
    free(first);
    if (first) return 0;
  }
}

bool vb_async_is_ours(const struct ibv_async_event *event) {
  const struct ibv_context *context = NULL; /* nobody waits for the others */
  if (is_of_qp(event->event_type)) context = event->element.qp->context;
  if (is_of_srq(event->event_type)) context = event->element.srq->context;
  if (event->event_type == IBV_EVENT_CQ_ERR) context = event->element.cq->context;
  return context && context->device == vb_objects.device;
}

void vb_async_acknowledge(const struct ibv_async_event *event) {
  if (is_of_qp(event->event_type)) {
    struct ibv_qp *qp = event->element.qp;
    pthread_mutex_lock(&qp->mutex);
    qp->events_completed++;
    pthread_cond_signal(&qp->cond);
    pthread_mutex_unlock(&qp->mutex);
  } else if (is_of_srq(event->event_type)) {
    struct ibv_srq *srq = event->element.srq;
    pthread_mutex_lock(&srq->mutex);
    srq->events_completed++;
    pthread_cond_signal(&srq->cond);
    pthread_mutex_unlock(&srq->mutex);
  } else {
    struct ibv_cq *cq = event->element.cq;
    pthread_mutex_lock(&cq->mutex);
    cq->async_events_completed++;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
  }
}

void vb_async_forget(struct ibv_context *context, const void *element) {
  struct vb_context *own = vb_context_of(context);
  if (!is_open(own)) return;
  struct vb_async **place = &own->first;
  own->last = NULL;
  while (*place) {
    struct vb_async *each = *place;
    const enum ibv_event_type type = each->event.event_type;
    const bool of_object = is_of_qp(type) || is_of_srq(type) || type == IBV_EVENT_CQ_ERR;
    if (of_object && (const void *)each->event.element.qp == element) {
      *place = each->next;
      free(each);
      if (!vb_take_back(context->async_fd)) own->void_reads++;
      continue;
    }
    own->last = each;
    place = &each->next;
  }
}
