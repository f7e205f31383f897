/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/cq.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "verbs/async.h"
#include "verbs/process.h"

struct vb_completion {
  struct ibv_wc wc;
  struct vb_qp *qp;
  uint32_t place;
};

int vb_cq_init(struct vb_cq *cq, struct ibv_context *context, int cqe, void *cq_context,
               struct ibv_comp_channel *channel) {
  if (cqe < 1 || cqe > VB_MAX_CQE) {
    errno = EINVAL;
    return -1;
  }
  cq->size = mrc_ceil_pow2((uint32_t)cqe);
  cq->ring = calloc(cq->size, sizeof *cq->ring);
  if (!cq->ring) return -1;
  cq->ibv.cq = (struct ibv_cq){
      .context = context, .channel = channel, .cq_context = cq_context, .cqe = (int)cq->size};
  pthread_mutex_init(&cq->ibv.cq.mutex, NULL);
  pthread_cond_init(&cq->ibv.cq.cond, NULL);
  pr_lock();
  if (channel) channel->refcnt++;
  pr_unlock();
  return 0;
}

struct vb_cq *vb_cq_create(struct ibv_context *context, int cqe, void *cq_context,
                           struct ibv_comp_channel *channel) {
  struct vb_cq *cq = calloc(1, sizeof *cq);
  if (!cq || vb_cq_init(cq, context, cqe, cq_context, channel) == 0) return cq;
  free(cq);
  return NULL;
}

static void leave_channel(struct vb_cq *cq) {
  struct vb_channel *channel = (struct vb_channel *)cq->ibv.cq.channel;
  if (!channel) return;
  channel->channel.refcnt--;
  if (!cq->told) return;
  struct vb_cq *before = NULL;
  for (struct vb_cq *each = channel->first; each != cq; each = each->next_told)
    before = each;
  if (before)
    before->next_told = cq->next_told;
  else
    channel->first = cq->next_told;
  if (channel->last == cq) channel->last = before;
  for (; cq->events > 0; cq->events--)
    if (!vb_take_back(channel->channel.fd)) channel->void_reads++;
}

int vb_cq_destroy(struct vb_cq *cq) {
  pr_lock();
  if (cq->users > 0) {
    pr_unlock();
    return EBUSY;
  }
  leave_channel(cq);
  vb_async_forget(cq->ibv.cq.context, cq);
  const uint32_t taken = cq->taken_events, taken_async = cq->taken_async;
  pr_unlock();
  pthread_mutex_lock(&cq->ibv.cq.mutex);
  while (cq->ibv.cq.comp_events_completed != taken ||
         cq->ibv.cq.async_events_completed != taken_async)
    pthread_cond_wait(&cq->ibv.cq.cond, &cq->ibv.cq.mutex);
  pthread_mutex_unlock(&cq->ibv.cq.mutex);
  free(cq->ring);
  free(cq);
  return 0;
}

int vb_cq_resize(struct vb_cq *cq, int cqe) {
  const uint32_t used = cq->tail - cq->head;
  if (cqe < 1 || cqe > VB_MAX_CQE || (uint32_t)cqe < used) return EINVAL;
  const uint32_t size = mrc_ceil_pow2((uint32_t)cqe);
  struct vb_completion *ring = calloc(size, sizeof *ring);
  if (!ring) return ENOMEM;
  for (uint32_t i = 0; i < used; i++)
    ring[i] = cq->ring[(cq->head + i) % cq->size];
  free(cq->ring);
  cq->ring = ring;
  cq->size = size;
  cq->head = 0;
  cq->tail = used;
  cq->ibv.cq.cqe = (int)size;
  return 0;
}

/* Puts the CQ into its channel's queue: one event for each time that it was armed. */
void vb_cq_tell(struct vb_cq *cq) {
  if (cq->armed == VB_NOT_ARMED) return;
  struct vb_channel *channel = (struct vb_channel *)cq->ibv.cq.channel;
  cq->armed = VB_NOT_ARMED;
  if (!channel) return;
  cq->events++;
  if (!cq->told) {
    cq->told = true;
    cq->next_told = NULL;
    if (channel->last)
      channel->last->next_told = cq;
    else
      channel->first = cq;
    channel->last = cq;
  }
  eventfd_write(channel->channel.fd, 1);
}

void vb_cq_push(struct vb_cq *cq, const struct ibv_wc *wc, struct vb_qp *qp, uint32_t place) {
  if (cq->tail - cq->head == cq->size) {
    if (!cq->overflow)
      vb_async_raise(cq->ibv.cq.context, (struct ibv_async_event){.element.cq = &cq->ibv.cq,
                                                                  .event_type = IBV_EVENT_CQ_ERR});
    cq->overflow = true;
    return;
  }
  cq->ring[cq->tail++ % cq->size] = (struct vb_completion){.wc = *wc, .qp = qp, .place = place};
  if (cq->armed == VB_ARMED || wc->status != IBV_WC_SUCCESS) vb_cq_tell(cq);
}

void vb_cq_solicit(struct vb_cq *cq) { vb_cq_tell(cq); }

int vb_cq_take(struct vb_cq *cq, int n, struct ibv_wc *wcs) {
  int taken = 0;
  for (; taken < n && cq->head != cq->tail; taken++) {
    const struct vb_completion *next = &cq->ring[cq->head++ % cq->size];
    wcs[taken] = next->wc;
    if (next->qp) next->qp->sq_head = next->place;
  }
  return taken == 0 && cq->overflow ? -1 : taken;
}

void vb_cq_forget_qp(struct vb_cq *cq, const struct vb_qp *qp) {
  for (uint32_t i = cq->head; i != cq->tail; i++)
    if (cq->ring[i % cq->size].qp == qp) cq->ring[i % cq->size].qp = NULL;
}

/* Armed for all completions, it stays so. */
void vb_cq_arm(struct vb_cq *cq, bool solicited_only) {
  if (cq->armed != VB_ARMED) cq->armed = solicited_only ? VB_ARMED_SOLICITED : VB_ARMED;
}

struct vb_channel *vb_channel_create(struct ibv_context *context) {
  struct vb_channel *channel = calloc(1, sizeof *channel);
  if (!channel) return NULL;
  channel->channel.context = context;
  channel->channel.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (channel->channel.fd < 0) {
    free(channel);
    return NULL;
  }
  return channel;
}

int vb_channel_destroy(struct vb_channel *channel) {
  pr_lock();
  const bool used = channel->channel.refcnt > 0;
  pr_unlock();
  if (used) return EBUSY;
  close(channel->channel.fd);
  free(channel);
  return 0;
}

int vb_channel_take(struct vb_channel *channel, struct ibv_cq **cq, void **cq_context) {
  for (;;) {
    uint64_t taken;
    if (read(channel->channel.fd, &taken, sizeof taken) < 0) return -1;
    pr_lock();
    struct vb_cq *first = channel->first;
    if (channel->void_reads > 0) {
      channel->void_reads--;
      pr_unlock();
      continue;
    }
    first->taken_events++;
    if (--first->events == 0) {
      first->told = false;
      channel->first = first->next_told;
      if (!channel->first) channel->last = NULL;
    }
    *cq = &first->ibv.cq;
    *cq_context = first->ibv.cq.cq_context;
    pr_unlock();
    return 0;
  }
}

void vb_cq_acknowledge(struct ibv_cq *cq, unsigned int events) {
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += events;
  pthread_cond_signal(&cq->cond);
  pthread_mutex_unlock(&cq->mutex);
}
