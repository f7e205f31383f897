/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/objects.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct vb_completion {
  struct ibv_wc wc;
  struct vb_qp *qp;
  uint32_t place;
};

int vb_cq_init(struct vb_cq *cq, struct ibv_context *context, int cqe, void *cq_context,
               struct ibv_comp_channel *channel) {
  if (cqe < 1 || cqe > VB_MAX_CQE) return vb_fail(EINVAL);
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

/* `cqe` places; NULL and errno. */
static struct vb_cq *create(struct ibv_context *context, int cqe, void *cq_context,
                            struct ibv_comp_channel *channel) {
  struct vb_cq *cq = calloc(1, sizeof *cq);
  if (!cq || vb_cq_init(cq, context, cqe, cq_context, channel) == 0) return cq;
  free(cq);
  return NULL;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                    struct ibv_comp_channel *channel, int vector) {
  if (!vb_owns(context))
    PASS(NULL, ibv_create_cq, "IBVERBS_1.1", context, cqe, cq_context, channel, vector);
  if (vector < 0 || vector >= context->num_comp_vectors) return vb_null(EINVAL);
  struct vb_cq *cq = create(context, cqe, cq_context, channel);
  return cq ? &cq->ibv.cq : NULL;
}

static void leave_channel(struct vb_cq *cq) {
  struct vb_channel *channel = (struct vb_channel *)cq->ibv.cq.channel;
  if (!channel) return;
  channel->channel.refcnt--;
  mrc_node_leave(&cq->told);
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

EXPORT int ibv_destroy_cq(struct ibv_cq *cq) {
  if (!vb_owns(cq->context)) PASS(ENOSYS, ibv_destroy_cq, "IBVERBS_1.1", cq);
  return vb_cq_destroy(vb_cq_of(cq));
}

/* EINVAL: fewer than it holds. */
static int resize(struct vb_cq *cq, int cqe) {
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

EXPORT int ibv_resize_cq(struct ibv_cq *cq, int cqe) {
  if (!vb_owns(cq->context)) PASS(ENOSYS, ibv_resize_cq, "IBVERBS_1.1", cq, cqe);
  pr_lock();
  const int error = resize(vb_cq_of(cq), cqe);
  pr_unlock();
  return error;
}

/* Puts the CQ into its channel's queue: one event for each time that it was armed. */
void vb_cq_tell(struct vb_cq *cq) {
  if (cq->armed == VB_NOT_ARMED) return;
  struct vb_channel *channel = (struct vb_channel *)cq->ibv.cq.channel;
  cq->armed = VB_NOT_ARMED;
  if (!channel) return;
  cq->events++;
  mrc_list_append(&channel->told, &cq->told);
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

/* Up to `n` completions, the oldest first. -1: completions were lost. */
static int take(struct vb_cq *cq, int n, struct ibv_wc *wcs) {
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

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
  if (!vb_owns(context)) PASS(NULL, ibv_create_comp_channel, "IBVERBS_1.0", context);
  struct vb_channel *channel = calloc(1, sizeof *channel);
  if (!channel) return NULL;
  mrc_list_init(&channel->told);
  channel->channel.context = context;
  channel->channel.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (channel->channel.fd < 0) {
    free(channel);
    return NULL;
  }
  return &channel->channel;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
  if (!vb_owns(channel->context)) PASS(ENOSYS, ibv_destroy_comp_channel, "IBVERBS_1.0", channel);
  pr_lock();
  const bool used = channel->refcnt > 0;
  pr_unlock();
  if (used) return EBUSY;
  close(channel->fd);
  free(channel);
  return 0;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
                            void **cq_context) {
  if (!vb_owns(channel->context))
    PASS(-1, ibv_get_cq_event, "IBVERBS_1.1", channel, cq, cq_context);
  struct vb_channel *ours = (struct vb_channel *)channel;
  for (;;) {
    uint64_t taken;
    if (read(channel->fd, &taken, sizeof taken) < 0) return -1;
    pr_lock();
    if (ours->void_reads > 0) {
      ours->void_reads--;
      pr_unlock();
      continue;
    }
    mrc_assert(!mrc_list_is_empty(&ours->told));
    struct vb_cq *first = MRC_NODE_OWNER(ours->told.next, struct vb_cq, told);
    first->taken_events++;
    if (--first->events == 0) mrc_node_leave(&first->told);
    *cq = &first->ibv.cq;
    *cq_context = first->ibv.cq.cq_context;
    pr_unlock();
    return 0;
  }
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n) {
  if (!vb_owns(cq->context)) {
    PASS_VOID(ibv_ack_cq_events, "IBVERBS_1.1", cq, n);
    return;
  }
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += n;
  pthread_cond_signal(&cq->cond);
  pthread_mutex_unlock(&cq->mutex);
}

/* ---- The table of a context ---- */

int vb_cq_poll(struct ibv_cq *cq, int n, struct ibv_wc *wcs) {
  struct vb_cq *ours = vb_cq_of(cq);
  if (pr_process.forked) return -1;
  pr_lock();
  int taken = take(ours, n, wcs);
  if (taken == 0) {
    pr_engine_poll(true);
    taken = take(ours, n, wcs);
  } else {
    pr_engine_poll(false);
  }
  pr_unlock();
  return taken;
}

int vb_cq_req_notify(struct ibv_cq *cq, int solicited_only) {
  struct vb_cq *ours = vb_cq_of(cq);
  if (pr_process.forked) return EIO;
  pr_lock();
  if (ours->armed != VB_ARMED) /* armed for all completions, it stays so */
    ours->armed = solicited_only ? VB_ARMED_SOLICITED : VB_ARMED;
  pr_engine_leave(); /* the program will sleep */
  pr_unlock();
  return 0;
}

/* ---- Extended CQs: the completion that start_poll and next_poll have taken ---- */

static struct vb_cq *of_ex(struct ibv_cq_ex *cq) { return (struct vb_cq *)cq; }

static int take_next(struct ibv_cq_ex *cq) {
  struct vb_cq *ours = of_ex(cq);
  const int taken = vb_cq_poll(&ours->ibv.cq, 1, &ours->current);
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

struct ibv_cq_ex *vb_cq_create_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr) {
  const uint64_t served = IBV_WC_STANDARD_FLAGS;
  const bool flags_set = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS;
  const uint32_t known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  if (attr->comp_mask & ~(uint32_t)IBV_CQ_INIT_ATTR_MASK_FLAGS || attr->wc_flags & ~served ||
      (flags_set && attr->flags & ~known))
    return vb_null(EOPNOTSUPP);
  if (attr->comp_vector >= (uint32_t)context->num_comp_vectors || attr->cqe > VB_MAX_CQE)
    return vb_null(EINVAL);
  struct vb_cq *cq = create(context, (int)attr->cqe, attr->cq_context, attr->channel);
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
