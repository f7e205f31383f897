/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libibverbs that our device serves, under their public names. Objects of other
   devices are passed on to the system's library. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#include "program/drive.h"
#include "program/export.h"
#include "program/say.h"
#include "verbs/async.h"
#include "verbs/cq.h"
#include "verbs/device.h"
#include "verbs/ibv_ops.h"
#include "verbs/mr.h"
#include "verbs/pass.h"
#include "verbs/process.h"
#include "verbs/qp.h"
#include "verbs/rc.h"
#include "verbs/srq.h"

/* ---- Devices ---- */

/* Before the list that a program gets lies the real one, which the real library frees. */
EXPORT struct ibv_device **ibv_get_device_list(int *num_devices) {
  int n = 0;
  if (num_devices) *num_devices = 0;
  struct ibv_device **(*next)(int *) = vb_next("ibv_get_device_list", "IBVERBS_1.1");
  struct ibv_device **real = next ? next(&n) : NULL;
  if (!real) n = 0;
  struct ibv_device *device = vb_device();
  if (!device && !real) {
    pr_say(pr_process.forked
               ? "a child of fork cannot use its parent's device: fork before it is opened"
               : "no agent runs on this host: start it with mrc agent, or the program"
                 " with mrc run --");
    errno = ENOSYS;
    return NULL;
  }
  struct ibv_device **list = calloc((size_t)n + 3, sizeof *list);
  if (!list) return NULL;
  list[0] = (struct ibv_device *)real;
  if (n > 0) memcpy(list + 1, real, (size_t)n * sizeof *list);
  if (device) list[1 + n++] = device;
  if (num_devices) *num_devices = n;
  return list + 1;
}

EXPORT void ibv_free_device_list(struct ibv_device **list) {
  struct ibv_device **real = (struct ibv_device **)list[-1];
  if (real) PASS_VOID(ibv_free_device_list, "IBVERBS_1.1", real);
  free(list - 1);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

EXPORT __be64 ibv_get_device_guid(struct ibv_device *device) {
  if (!vb_is_ours(device)) PASS(0, ibv_get_device_guid, "IBVERBS_1.1", device);
  return vb_device_guid();
}

EXPORT int ibv_get_device_index(struct ibv_device *device) {
  if (!vb_is_ours(device)) PASS(-1, ibv_get_device_index, "IBVERBS_1.9", device);
  return -1; /* the kernel does not know it */
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device) {
  if (!vb_is_ours(device)) PASS(NULL, ibv_open_device, "IBVERBS_1.1", device);
  return vb_device_open();
}

EXPORT int ibv_close_device(struct ibv_context *context) {
  if (!vb_owns(context)) PASS(ENOSYS, ibv_close_device, "IBVERBS_1.1", context);
  return vb_device_close(context);
}

EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
  if (!vb_owns(context)) PASS(ENOSYS, ibv_query_device, "IBVERBS_1.1", context, attr);
  return vb_device_query(context, attr);
}

#undef ibv_query_port
EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port,
                          struct _compat_ibv_port_attr *attr) {
  if (!vb_owns(context)) PASS(ENOSYS, ibv_query_port, "IBVERBS_1.1", context, port, attr);
  /* Old programs have a struct without the last two fields. */
  return vb_device_query_port(context, port, (struct ibv_port_attr *)attr,
                              offsetof(struct ibv_port_attr, port_cap_flags2));
}

EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  if (!vb_owns(context)) PASS(-1, ibv_query_gid, "IBVERBS_1.1", context, port, index, gid);
  const int error = vb_device_query_gid(context, port, index, gid);
  if (error != 0) errno = error;
  return error == 0 ? 0 : -1;
}

static void fill_entry(struct ibv_gid_entry *entry, uint32_t index) {
  *entry =
      (struct ibv_gid_entry){.gid_index = index, .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V2};
  memcpy(entry->gid.raw, pr_process.gids[index], sizeof entry->gid.raw);
}

EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                             struct ibv_gid_entry *entry, uint32_t flags, size_t bytes) {
  if (!vb_owns(context))
    PASS(ENOSYS, _ibv_query_gid_ex, "IBVERBS_1.11", context, port, index, entry, flags, bytes);
  if (flags != 0 || bytes < sizeof *entry) return EOPNOTSUPP;
  if (index >= (uint32_t)pr_process.n_gids) return ENODATA;
  if (port != 1) return EINVAL;
  fill_entry(entry, index);
  return 0;
}

EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                                    size_t max, uint32_t flags, size_t bytes) {
  if (!vb_owns(context))
    PASS(-ENOSYS, _ibv_query_gid_table, "IBVERBS_1.11", context, entries, max, flags, bytes);
  if (flags != 0 || bytes < sizeof *entries) return -EOPNOTSUPP;
  if (max < (size_t)pr_process.n_gids) return -EINVAL;
  size_t n = 0;
  for (; n < max && n < (size_t)pr_process.n_gids; n++)
    fill_entry(&entries[n], (uint32_t)n);
  return (ssize_t)n;
}

EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey) {
  if (!vb_owns(context)) PASS(-1, ibv_query_pkey, "IBVERBS_1.1", context, port, index, pkey);
  if (port != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *pkey = 0xffff;
  return 0;
}

EXPORT int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey) {
  if (!vb_owns(context)) PASS(-1, ibv_get_pkey_index, "IBVERBS_1.5", context, port, pkey);
  return port == 1 && pkey == 0xffff ? 0 : -1;
}

/* ---- Memory ---- */

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

static struct ibv_mr *register_memory(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                      unsigned int access) {
  if (pr_process.forked || iova != (uint64_t)(uintptr_t)addr) {
    errno = pr_process.forked ? EIO : EOPNOTSUPP;
    return NULL;
  }
  pr_lock();
  struct vb_mr *mr = vb_mr_register(pd, addr, length, (int)access);
  pr_unlock();
  return mr ? &mr->mr : NULL;
}

#undef ibv_reg_mr
EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
  if (!vb_owns(pd->context)) PASS(NULL, ibv_reg_mr, "IBVERBS_1.1", pd, addr, length, access);
  return register_memory(pd, addr, length, (uint64_t)(uintptr_t)addr, (unsigned int)access);
}

#undef ibv_reg_mr_iova
EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                      int access) {
  if (!vb_owns(pd->context))
    PASS(NULL, ibv_reg_mr_iova, "IBVERBS_1.7", pd, addr, length, iova, access);
  return register_memory(pd, addr, length, iova, (unsigned int)access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                       unsigned int access) {
  if (!vb_owns(pd->context))
    PASS(NULL, ibv_reg_mr_iova2, "IBVERBS_1.8", pd, addr, length, iova, access);
  return register_memory(pd, addr, length, iova, access);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr) {
  if (!vb_owns(mr->context)) PASS(ENOSYS, ibv_dereg_mr, "IBVERBS_1.1", mr);
  if (pr_process.forked) return EIO;
  pr_lock();
  const int error = vb_mr_deregister((struct vb_mr *)mr);
  pr_unlock();
  return error;
}

/* ---- Completions ---- */

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
  if (!vb_owns(context)) PASS(NULL, ibv_create_comp_channel, "IBVERBS_1.0", context);
  struct vb_channel *channel = vb_channel_create(context);
  return channel ? &channel->channel : NULL;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
  if (!vb_owns(channel->context)) PASS(ENOSYS, ibv_destroy_comp_channel, "IBVERBS_1.0", channel);
  return vb_channel_destroy((struct vb_channel *)channel);
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                    struct ibv_comp_channel *channel, int vector) {
  if (!vb_owns(context))
    PASS(NULL, ibv_create_cq, "IBVERBS_1.1", context, cqe, cq_context, channel, vector);
  if (vector < 0 || vector >= context->num_comp_vectors) {
    errno = EINVAL;
    return NULL;
  }
  struct vb_cq *cq = vb_cq_create(context, cqe, cq_context, channel);
  return cq ? &cq->ibv.cq : NULL;
}

EXPORT int ibv_resize_cq(struct ibv_cq *cq, int cqe) {
  if (!vb_owns(cq->context)) PASS(ENOSYS, ibv_resize_cq, "IBVERBS_1.1", cq, cqe);
  pr_lock();
  const int error = vb_cq_resize(vb_cq_of(cq), cqe);
  pr_unlock();
  return error;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *cq) {
  if (!vb_owns(cq->context)) PASS(ENOSYS, ibv_destroy_cq, "IBVERBS_1.1", cq);
  return vb_cq_destroy(vb_cq_of(cq));
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
                            void **cq_context) {
  if (!vb_owns(channel->context))
    PASS(-1, ibv_get_cq_event, "IBVERBS_1.1", channel, cq, cq_context);
  return vb_channel_take((struct vb_channel *)channel, cq, cq_context);
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n) {
  if (vb_owns(cq->context))
    vb_cq_acknowledge(cq, n);
  else
    PASS_VOID(ibv_ack_cq_events, "IBVERBS_1.1", cq, n);
}

/* ---- QPs ---- */

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  if (!vb_owns(pd->context)) PASS(NULL, ibv_create_qp, "IBVERBS_1.1", pd, attr);
  return vb_create_qp(pd, attr);
}

EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) {
  if (!vb_owns(qp->context)) PASS(NULL, ibv_qp_to_qp_ex, "IBVERBS_1.6", qp);
  return vb_qp_of(qp)->list ? &vb_qp_of(qp)->ibv.ex : NULL;
}

EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
  if (!vb_owns(qp->context)) PASS(ENOSYS, ibv_modify_qp, "IBVERBS_1.1", qp, attr, mask);
  if (pr_process.forked) return EIO;
  pr_lock();
  int error = vb_qp_check(vb_qp_of(qp), attr, mask);
  if (error == 0) error = vb_ops_modify_qp(vb_qp_of(qp), attr, mask);
  pr_unlock();
  return error;
}

EXPORT int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                        struct ibv_qp_init_attr *init) {
  if (!vb_owns(qp->context)) PASS(ENOSYS, ibv_query_qp, "IBVERBS_1.1", qp, attr, mask, init);
  pr_lock();
  vb_qp_query(vb_qp_of(qp), attr, init);
  pr_unlock();
  return 0;
}

static void wait_for_events(struct vb_qp *qp) {
  struct ibv_qp *own = &qp->ibv.qp;
  pthread_mutex_lock(&own->mutex);
  while (own->events_completed != qp->taken_events)
    pthread_cond_wait(&own->cond, &own->mutex);
  pthread_mutex_unlock(&own->mutex);
}

EXPORT int ibv_destroy_qp(struct ibv_qp *qp) {
  if (!vb_owns(qp->context)) PASS(ENOSYS, ibv_destroy_qp, "IBVERBS_1.1", qp);
  if (pr_process.forked) return EIO;
  struct vb_qp *ours = vb_qp_of(qp);
  pr_lock();
  vb_qp_leave(ours);
  pr_drive_settle(); /* from now on the engine reads none of its memory */
  pr_unlock();
  wait_for_events(ours);
  vb_qp_free(ours);
  return 0;
}

/* ---- Shared receive queues ---- */

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
  if (!vb_owns(pd->context)) PASS(NULL, ibv_create_srq, "IBVERBS_1.1", pd, attr);
  if (!vb_rc_is_on() || pr_process.forked) {
    PR_SAY_ONCE("a shared receive queue is refused: MRC has none; mrc run --rc emulates them");
    errno = pr_process.forked ? EIO : EOPNOTSUPP;
    return NULL;
  }
  pr_lock();
  struct vb_srq *srq = vb_srq_create(pd, attr);
  pr_unlock();
  return srq ? &srq->srq : NULL;
}

EXPORT int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask) {
  if (!vb_owns(srq->context)) PASS(ENOSYS, ibv_modify_srq, "IBVERBS_1.1", srq, attr, mask);
  pr_lock();
  const int error = vb_srq_modify((struct vb_srq *)srq, attr, mask);
  pr_unlock();
  return error;
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

EXPORT int ibv_destroy_srq(struct ibv_srq *srq) {
  if (!vb_owns(srq->context)) PASS(ENOSYS, ibv_destroy_srq, "IBVERBS_1.1", srq);
  return pr_process.forked ? EIO : vb_srq_destroy((struct vb_srq *)srq);
}

/* ---- Asynchronous events ---- */

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  if (!vb_owns(context)) PASS(-1, ibv_get_async_event, "IBVERBS_1.1", context, event);
  return vb_async_take(context, event);
}

/* The event does not say of which device it is: ours are of objects that we know. */
EXPORT void ibv_ack_async_event(struct ibv_async_event *event) {
  pr_lock();
  const bool ours = vb_async_is_ours(event);
  pr_unlock();
  if (ours)
    vb_async_acknowledge(event);
  else
    PASS_VOID(ibv_ack_async_event, "IBVERBS_1.1", event);
}
