/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "verbs/objects.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent/process.h"

struct vb_objects vb_objects;

static struct vb_qp **place_of(uint32_t qpn) { return &vb_objects.qps[qpn % VB_QP_PLACES]; }

struct vb_qp *vb_process_qp(uint32_t qpn) {
  struct vb_qp *qp = *place_of(qpn);
  while (qp && qp->ibv.qp.qp_num != qpn)
    qp = qp->next;
  return qp;
}

void vb_process_add_qp(struct vb_qp *qp) {
  struct vb_qp **place = place_of(qp->ibv.qp.qp_num);
  qp->next = *place;
  *place = qp;
  vb_objects.n_qps++;
}

void vb_process_touch(struct vb_qp *qp) {
  if (qp->touched) return;
  qp->touched = true;
  qp->next_touched = vb_objects.touched;
  vb_objects.touched = qp;
}

struct vb_qp *vb_process_touched(void) {
  struct vb_qp *qp = vb_objects.touched;
  if (!qp) return NULL;
  vb_objects.touched = qp->next_touched;
  qp->touched = false;
  return qp;
}

void vb_process_remove_qp(struct vb_qp *qp) {
  struct vb_qp **place = &vb_objects.touched;
  while (*place && *place != qp)
    place = &(*place)->next_touched;
  if (*place) *place = qp->next_touched;
  place = place_of(qp->ibv.qp.qp_num);
  while (*place != qp)
    place = &(*place)->next;
  *place = qp->next;
  vb_objects.n_qps--;
}

void vb_process_each_qp(void (*call)(struct vb_qp *qp)) {
  for (int i = 0; i < VB_QP_PLACES; i++)
    for (struct vb_qp *qp = vb_objects.qps[i]; qp; qp = qp->next)
      call(qp);
}

static struct vb_mr **mr_place_of(uint32_t key) { return &vb_objects.mrs[key % VB_MR_PLACES]; }

bool vb_process_covers(const struct ibv_pd *pd, const struct ibv_sge *sge, int access) {
  const struct vb_mr *mr = *mr_place_of(sge->lkey);
  while (mr && mr->mr.lkey != sge->lkey)
    mr = mr->next;
  if (!mr || mr->mr.pd != pd || (mr->access & access) != access) return false;
  const uint64_t first = (uint64_t)(uintptr_t)mr->mr.addr;
  /* In this order nothing wraps. */
  return sge->addr >= first && sge->length <= mr->mr.length &&
         sge->addr - first <= mr->mr.length - sge->length;
}

bool vb_take_back(int fd) {
  uint64_t taken;
  const struct iovec to = {.iov_base = &taken, .iov_len = sizeof taken};
  return preadv2(fd, &to, 1, -1, RWF_NOWAIT) == sizeof taken;
}

/* Bytes of headers of a packet on a link: SRv6, IPv6, UDP and MRC. */
enum { HEADER_BYTES = 64 + 40 + 8 + 44 };

enum ibv_mtu vb_process_mtu(void) {
  uint32_t least = UINT32_MAX;
  for (int i = 0; i < pr_process.n_ports; i++)
    if (pr_process.ports[i].mtu < least) least = pr_process.ports[i].mtu;
  enum ibv_mtu mtu = IBV_MTU_4096;
  while (mtu > IBV_MTU_256 && (128u << mtu) + HEADER_BYTES > least)
    mtu--;
  return mtu;
}

/* ---- Asynchronous events ---- */

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

static void count_completed(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *events) {
  pthread_mutex_lock(mutex);
  ++*events;
  pthread_cond_signal(cond);
  pthread_mutex_unlock(mutex);
}

void vb_async_acknowledge(const struct ibv_async_event *event) {
  struct ibv_qp *qp = event->element.qp;
  struct ibv_srq *srq = event->element.srq;
  struct ibv_cq *cq = event->element.cq;
  if (is_of_qp(event->event_type))
    count_completed(&qp->mutex, &qp->cond, &qp->events_completed);
  else if (is_of_srq(event->event_type))
    count_completed(&srq->mutex, &srq->cond, &srq->events_completed);
  else
    count_completed(&cq->mutex, &cq->cond, &cq->async_events_completed);
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

/* ---- Memory regions ---- */

static int register_memory(const void *address, size_t bytes, uint32_t access, uint32_t domain,
                           uint32_t *key) {
  const int error = pr_memory_register(address, bytes, access, domain, key);
  return error == -ENOSPC ? ENOMEM : vb_errno_of(error);
}

struct vb_mr *vb_mr_register(struct ibv_pd *pd, void *address, size_t bytes, int access) {
  const int served = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_REMOTE_ATOMIC;
  const bool writes = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  if (access & ~served & ~(int)IBV_ACCESS_OPTIONAL_RANGE) {
    errno = EOPNOTSUPP;
    return NULL;
  }
  const bool wraps = (uintptr_t)address > UINTPTR_MAX - bytes;
  if (bytes == 0 || wraps || (writes && !(access & IBV_ACCESS_LOCAL_WRITE))) {
    errno = EINVAL;
    return NULL;
  }
  if (!pr_memory_is_usable(address, bytes, access & IBV_ACCESS_LOCAL_WRITE)) {
    errno = EFAULT;
    return NULL;
  }
  struct vb_mr *mr = calloc(1, sizeof *mr);
  if (!mr) return NULL;
  uint32_t key;
  const uint32_t remote = access & IBV_ACCESS_REMOTE_WRITE ? MRC_ACCESS_REMOTE_WRITE : 0;
  const int error =
      register_memory(address, bytes, MRC_ACCESS_LOCAL_READ | remote, vb_domain_of(pd), &key);
  if (error != 0) {
    free(mr);
    errno = error;
    return NULL;
  }
  mr->mr = (struct ibv_mr){.context = pd->context,
                           .pd = pd,
                           .addr = address,
                           .length = bytes,
                           .handle = key,
                           .lkey = key,
                           .rkey = key};
  mr->access = access;
  ((struct vb_pd *)pd)->users++;
  struct vb_mr **place = mr_place_of(key);
  mr->next = *place;
  *place = mr;
  return mr;
}

int vb_mr_deregister(struct vb_mr *mr) {
  struct mrc_command command = {.op = MRC_COMMAND_MR_DEREGISTER, .key = mr->mr.lkey};
  const int error = pr_engine_call(&command);
  if (error != 0) return vb_errno_of(error);
  struct vb_mr **place = mr_place_of(mr->mr.lkey);
  while (*place != mr)
    place = &(*place)->next;
  *place = mr->next;
  ((struct vb_pd *)mr->mr.pd)->users--;
  free(mr);
  return 0;
}

/* All memory: what the library sends from comes and goes with work requests. */
int vb_mr_register_own(void) {
  if (vb_objects.own_key != 0) return 0;
  uint32_t key;
  const int error =
      register_memory((const void *)1, UINTPTR_MAX - 1, MRC_ACCESS_LOCAL_READ, 0, &key);
  if (error == 0) vb_objects.own_key = key;
  return error;
}

int vb_mr_add_inbox(void *address, size_t bytes, const struct ibv_pd *pd, uint32_t *key) {
  uint32_t made = 0;
  const int error =
      register_memory(address, bytes, MRC_ACCESS_REMOTE_WRITE, vb_domain_of(pd), &made);
  if (error == 0) *key = made;
  return error;
}

void vb_mr_remove_inbox(uint32_t key) {
  pr_submit(
      &(struct mrc_command){.op = MRC_COMMAND_MR_DEREGISTER, .cookie = PR_COOKIE_CALL, .key = key});
}
