/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "verbs/objects.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

struct vb_objects vb_objects = {.touched = {&vb_objects.touched, &vb_objects.touched}};

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

void vb_process_remove_qp(struct vb_qp *qp) {
  struct vb_qp **place = place_of(qp->ibv.qp.qp_num);
  mrc_node_leave(&qp->touched);
  while (*place != qp)
    place = &(*place)->next;
  *place = qp->next;
  vb_objects.n_qps--;
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
  mrc_list_append(&own->asyncs, &async->node);
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

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  if (!vb_owns(context)) PASS(-1, ibv_get_async_event, "IBVERBS_1.1", context, event);
  struct vb_context *own = vb_context_of(context);
  for (;;) {
    uint64_t taken;
    if (read(context->async_fd, &taken, sizeof taken) < 0) return -1;
    pr_lock();
    struct vb_async *first = NULL;
    if (own->void_reads > 0) {
      own->void_reads--;
    } else {
      mrc_assert(!mrc_list_is_empty(&own->asyncs));
      first = MRC_NODE_OWNER(own->asyncs.next, struct vb_async, node);
      mrc_node_leave(&first->node);
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

/* The event does not say of which device it is: ours are of objects that we know, which exist until
   all their events are acknowledged. */
static bool is_ours(const struct ibv_async_event *event) {
  const struct ibv_context *context = NULL; /* nobody waits for the others */
  if (is_of_qp(event->event_type)) context = event->element.qp->context;
  if (is_of_srq(event->event_type)) context = event->element.srq->context;
  if (event->event_type == IBV_EVENT_CQ_ERR) context = event->element.cq->context;
  return context && vb_owns(context);
}

static void count_completed(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *events) {
  pthread_mutex_lock(mutex);
  ++*events;
  pthread_cond_signal(cond);
  pthread_mutex_unlock(mutex);
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event) {
  if (!is_ours(event)) {
    PASS_VOID(ibv_ack_async_event, "IBVERBS_1.1", event);
    return;
  }
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
  struct mrc_node *next;
  for (struct mrc_node *node = own->asyncs.next; node != &own->asyncs; node = next) {
    struct vb_async *each = MRC_NODE_OWNER(node, struct vb_async, node);
    const enum ibv_event_type type = each->event.event_type;
    const bool of_object = is_of_qp(type) || is_of_srq(type) || type == IBV_EVENT_CQ_ERR;
    next = node->next;
    if (!of_object || (const void *)each->event.element.qp != element) continue;
    mrc_node_leave(node);
    free(each);
    if (!vb_take_back(context->async_fd)) own->void_reads++;
  }
}

/* ---- Protection domains and memory regions ---- */

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  if (!vb_owns(context)) PASS(NULL, ibv_alloc_pd, "IBVERBS_1.1", context);
  struct vb_pd *pd = calloc(1, sizeof *pd);
  if (!pd) return NULL;
  pd->pd.context = context;
  pr_lock();
  pd->number = ++vb_objects.n_pds;
  pr_unlock();
  return &pd->pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd) {
  if (!vb_owns(pd->context)) PASS(ENOSYS, ibv_dealloc_pd, "IBVERBS_1.1", pd);
  pr_lock();
  const bool used = ((struct vb_pd *)pd)->users > 0;
  pr_unlock();
  if (used) return EBUSY;
  free(pd);
  return 0;
}

static int register_memory(const void *address, size_t bytes, enum pr_memory memory,
                           uint32_t access, uint32_t domain, uint32_t *key) {
  const int error = pr_memory_register(address, bytes, memory, access, domain, key);
  return error == -ENOSPC ? ENOMEM : -error;
}

/* NULL and errno: EFAULT if the process has no such memory, or may not write it as `access` says;
   EOPNOTSUPP for access that is not served. */
static struct vb_mr *register_mr(struct ibv_pd *pd, void *address, size_t bytes, int access) {
  const int served = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_REMOTE_ATOMIC;
  const bool writes = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  if (access & ~served & ~(int)IBV_ACCESS_OPTIONAL_RANGE) return vb_null(EOPNOTSUPP);
  const bool wraps = (uintptr_t)address > UINTPTR_MAX - bytes;
  if (bytes == 0 || wraps || (writes && !(access & IBV_ACCESS_LOCAL_WRITE))) return vb_null(EINVAL);
  struct vb_mr *mr = calloc(1, sizeof *mr);
  if (!mr) return NULL;
  uint32_t key;
  const uint32_t remote = access & IBV_ACCESS_REMOTE_WRITE ? MRC_ACCESS_REMOTE_WRITE : 0;
  const int error = register_memory(
      address, bytes, access & IBV_ACCESS_LOCAL_WRITE ? PR_MEMORY_WRITTEN : PR_MEMORY_READ,
      MRC_ACCESS_LOCAL_READ | remote, vb_domain_of(pd), &key);
  if (error != 0) {
    free(mr);
    return vb_null(error);
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

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                             unsigned int access) {
  if (pr_process.forked || iova != (uint64_t)(uintptr_t)addr)
    return vb_null(pr_process.forked ? EIO : EOPNOTSUPP);
  pr_lock();
  struct vb_mr *mr = register_mr(pd, addr, length, (int)access);
  pr_unlock();
  return mr ? &mr->mr : NULL;
}

#undef ibv_reg_mr
EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
  if (!vb_owns(pd->context)) PASS(NULL, ibv_reg_mr, "IBVERBS_1.1", pd, addr, length, access);
  return reg_mr(pd, addr, length, (uint64_t)(uintptr_t)addr, (unsigned int)access);
}

#undef ibv_reg_mr_iova
EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                      int access) {
  if (!vb_owns(pd->context))
    PASS(NULL, ibv_reg_mr_iova, "IBVERBS_1.7", pd, addr, length, iova, access);
  return reg_mr(pd, addr, length, iova, (unsigned int)access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                       unsigned int access) {
  if (!vb_owns(pd->context))
    PASS(NULL, ibv_reg_mr_iova2, "IBVERBS_1.8", pd, addr, length, iova, access);
  return reg_mr(pd, addr, length, iova, access);
}

/* EBUSY while work requests use it. */
static int deregister_mr(struct vb_mr *mr) {
  struct mrc_command command = {.op = MRC_COMMAND_MR_DEREGISTER, .key = mr->mr.lkey};
  const int error = pr_engine_call(&command);
  if (error != 0) return -error;
  struct vb_mr **place = mr_place_of(mr->mr.lkey);
  while (*place != mr)
    place = &(*place)->next;
  *place = mr->next;
  ((struct vb_pd *)mr->mr.pd)->users--;
  free(mr);
  return 0;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr) {
  if (!vb_owns(mr->context)) PASS(ENOSYS, ibv_dereg_mr, "IBVERBS_1.1", mr);
  if (pr_process.forked) return EIO;
  pr_lock();
  const int error = deregister_mr((struct vb_mr *)mr);
  pr_unlock();
  return error;
}

/* All memory: what the library sends from comes and goes with work requests. */
int vb_mr_register_own(void) {
  if (vb_objects.own_key != 0) return 0;
  uint32_t key;
  const int error = register_memory((const void *)1, UINTPTR_MAX - 1, PR_MEMORY_OWN,
                                    MRC_ACCESS_LOCAL_READ, 0, &key);
  if (error == 0) vb_objects.own_key = key;
  return error;
}

int vb_mr_add_inbox(void *address, size_t bytes, const struct ibv_pd *pd, uint32_t *key) {
  uint32_t made = 0;
  const int error = register_memory(address, bytes, PR_MEMORY_OWN, MRC_ACCESS_REMOTE_WRITE,
                                    vb_domain_of(pd), &made);
  if (error == 0) *key = made;
  return error;
}

void vb_mr_remove_inbox(uint32_t key) {
  pr_submit(
      &(struct mrc_command){.op = MRC_COMMAND_MR_DEREGISTER, .cookie = PR_COOKIE_CALL, .key = key});
}

/* ---- Buffers of rdma-core 64, in ordinary memory ---- */

struct ibv_buf; /* not in all headers */

/* A buffer of ours. The first word of one of the system's library is the address of its memory. */
struct vb_buf {
  const void *ours; /* own_buffers */
  struct ibv_pd *pd;
  uint8_t *memory;
  size_t bytes;
};

static const char own_buffers;

static bool is_our_buffer(const void *buf) {
  return ((const struct vb_buf *)buf)->ours == &own_buffers;
}

EXPORT void *ibv_alloc_buf(struct ibv_pd *pd, size_t bytes, struct ibv_buf **buf) {
  if (!vb_owns(pd->context)) PASS(NULL, ibv_alloc_buf, "IBVERBS_1.17", pd, bytes, buf);
  struct vb_buf *made = malloc(sizeof *made);
  void *memory = NULL;
  const int error = made ? posix_memalign(&memory, (size_t)sysconf(_SC_PAGESIZE), bytes) : ENOMEM;
  if (error != 0) {
    free(made);
    return vb_null(error);
  }
  *made = (struct vb_buf){&own_buffers, pd, memory, bytes};
  *buf = (struct ibv_buf *)made;
  return memory;
}

EXPORT void ibv_free_buf(struct ibv_buf *buf) {
  if (!is_our_buffer(buf)) {
    PASS_VOID(ibv_free_buf, "IBVERBS_1.17", buf);
    return;
  }
  free(((struct vb_buf *)buf)->memory);
  free(buf);
}

EXPORT struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *at, size_t bytes,
                                     int access) {
  if (!vb_owns(pd->context)) PASS(NULL, ibv_reg_buf_mr, "IBVERBS_1.17", pd, buf, at, bytes, access);
  const struct vb_buf *ours = (const struct vb_buf *)buf;
  const size_t from = (uintptr_t)at - (uintptr_t)ours->memory;
  if (!is_our_buffer(buf) || ours->pd != pd || from > ours->bytes || bytes > ours->bytes - from)
    return vb_null(EINVAL);
  return ibv_reg_mr(pd, at, bytes, access);
}

EXPORT int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf) {
  if (!is_our_buffer(buf)) PASS(-1, ibv_export_buf_dmabuf_fd, "IBVERBS_1.18", buf);
  return vb_fail(ENODATA);
}
