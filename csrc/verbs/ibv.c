/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libibverbs under their public names: those that our device serves, those that it
   refuses, and those that belong to no device. Objects of other devices are passed on to the
   system's library. */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/process.h"
#include "verbs/objects.h"

/* ---- The system's own libibverbs, for devices that are not ours ---- */

static void *library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A program may have loaded us in place of libibverbs, which is then not in the process. The name
   with its number is that of the system's library: ours has none. */
static void open_library(void) { library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL); }

/* The function of this name and version, or NULL when the system has no libibverbs with it. */
static void *next_function(const char *name, const char *version) {
  pthread_once(&once, open_library);
  return library ? dlvsym(library, name, version) : NULL;
}

/* Returns what the system's library answers, for an object that is not ours; without that library
   `failed`, and errno. */
#define PASS(failed, name, version, ...)                    \
  do {                                                      \
    __typeof__(name) *next = next_function(#name, version); \
    if (next) return next(__VA_ARGS__);                     \
    errno = ENOSYS;                                         \
    return failed;                                          \
  } while (0)

/* The same of a function without a result. */
#define PASS_VOID(name, version, ...)                       \
  do {                                                      \
    __typeof__(name) *next = next_function(#name, version); \
    if (next) next(__VA_ARGS__);                            \
  } while (0)

/* A function that our device refuses, and whose result is 0 or an errno. */
#define REFUSE(name, version, context, parameters, ...)              \
  EXPORT int name parameters {                                       \
    if (!vb_owns(context)) PASS(ENOSYS, name, version, __VA_ARGS__); \
    return EOPNOTSUPP;                                               \
  }

/* The same that makes an object, or fails with -1. */
#define REFUSE_WITH(type, failed, name, version, context, parameters, ...) \
  EXPORT type name parameters {                                            \
    if (!vb_owns(context)) PASS(failed, name, version, __VA_ARGS__);       \
    errno = EOPNOTSUPP;                                                    \
    return failed;                                                         \
  }

/* A function that belongs to no device, or whose objects are never ours. */
#define COMMON(type, failed, name, version, parameters, ...) \
  EXPORT type name parameters { PASS(failed, name, version, __VA_ARGS__); }

/* The same without a result. */
#define DROP(name, version, parameters, ...) \
  EXPORT void name parameters { PASS_VOID(name, version, __VA_ARGS__); }

/* ---- Devices ---- */

/* Before the list that a program gets lies the real one, which the real library frees. */
EXPORT struct ibv_device **ibv_get_device_list(int *num_devices) {
  int n = 0;
  if (num_devices) *num_devices = 0;
  struct ibv_device **(*next)(int *) = next_function("ibv_get_device_list", "IBVERBS_1.1");
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
  return vb_qp_create(pd, attr);
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
  if (error == 0) error = vb_qp_modify(vb_qp_of(qp), attr, mask);
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

EXPORT int ibv_destroy_qp(struct ibv_qp *qp) {
  if (!vb_owns(qp->context)) PASS(ENOSYS, ibv_destroy_qp, "IBVERBS_1.1", qp);
  if (pr_process.forked) return EIO;
  struct vb_qp *ours = vb_qp_of(qp);
  pr_lock();
  vb_qp_leave(ours);
  struct mrc_command settle = {.op =
                                   MRC_COMMAND_COUNTERS}; /* none of them: all before it have run */
  pr_engine_call(&settle); /* from now on the engine reads none of its memory */
  pr_unlock();
  pthread_mutex_lock(&qp->mutex);
  while (qp->events_completed != ours->taken_events)
    pthread_cond_wait(&qp->cond, &qp->mutex);
  pthread_mutex_unlock(&qp->mutex);
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

/* The functions of libibverbs that our device refuses, and those that belong to no device. For
   objects of other devices they are the system library's. */

struct ib_user_path_rec; /* the kernel's */

/* ---- Refused ---- */

REFUSE(ibv_attach_mcast, "IBVERBS_1.1", qp->context,
       (struct ibv_qp * qp, const union ibv_gid *gid, uint16_t lid), qp, gid, lid)
REFUSE(ibv_detach_mcast, "IBVERBS_1.1", qp->context,
       (struct ibv_qp * qp, const union ibv_gid *gid, uint16_t lid), qp, gid, lid)
REFUSE_WITH(struct ibv_ah *, NULL, ibv_create_ah, "IBVERBS_1.1", pd->context,
            (struct ibv_pd * pd, struct ibv_ah_attr *attr), pd, attr)
REFUSE_WITH(struct ibv_ah *, NULL, ibv_create_ah_from_wc, "IBVERBS_1.1", pd->context,
            (struct ibv_pd * pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port), pd, wc, grh,
            port)
REFUSE(ibv_destroy_ah, "IBVERBS_1.1", ah->context, (struct ibv_ah * ah), ah)
REFUSE(ibv_init_ah_from_wc, "IBVERBS_1.1", context,
       (struct ibv_context * context, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh,
        struct ibv_ah_attr *attr),
       context, port, wc, grh, attr)
REFUSE(ibv_resolve_eth_l2_from_gid, "IBVERBS_1.1", context,
       (struct ibv_context * context, struct ibv_ah_attr *attr, uint8_t mac[6], uint16_t *vid),
       context, attr, mac, vid)
REFUSE(ibv_query_ece, "IBVERBS_1.10", qp->context, (struct ibv_qp * qp, struct ibv_ece *ece), qp,
       ece)
REFUSE(ibv_set_ece, "IBVERBS_1.10", qp->context, (struct ibv_qp * qp, struct ibv_ece *ece), qp, ece)
REFUSE_WITH(struct ibv_mr *, NULL, ibv_reg_dmabuf_mr, "IBVERBS_1.12", pd->context,
            (struct ibv_pd * pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access),
            pd, offset, length, iova, fd, access)
REFUSE_WITH(int, IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr, "IBVERBS_1.1", mr->context,
            (struct ibv_mr * mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
             int access),
            mr, flags, pd, addr, length, access)
REFUSE_WITH(struct ibv_pd *, NULL, ibv_import_pd, "IBVERBS_1.10", context,
            (struct ibv_context * context, uint32_t handle), context, handle)
REFUSE_WITH(struct ibv_mr *, NULL, ibv_import_mr, "IBVERBS_1.10", pd->context,
            (struct ibv_pd * pd, uint32_t handle), pd, handle)
REFUSE_WITH(struct ibv_dm *, NULL, ibv_import_dm, "IBVERBS_1.13", context,
            (struct ibv_context * context, uint32_t handle), context, handle)

/* Nothing of ours is imported. */
DROP(ibv_unimport_pd, "IBVERBS_1.10", (struct ibv_pd * pd), pd)
DROP(ibv_unimport_mr, "IBVERBS_1.10", (struct ibv_mr * mr), mr)
DROP(ibv_unimport_dm, "IBVERBS_1.13", (struct ibv_dm * dm), dm)

/* Writes of one QP become visible in any order. */
EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags) {
  if (!vb_owns(qp->context)) PASS(0, ibv_query_qp_data_in_order, "IBVERBS_1.14", qp, op, flags);
  return 0;
}

/* ---- Of no device ---- */

/* Our contexts have an eventfd where others have the kernel's device. */
EXPORT struct ibv_context *ibv_import_device(int fd) {
  struct stat found;
  if (fstat(fd, &found) == 0 && !S_ISCHR(found.st_mode)) {
    errno = EOPNOTSUPP;
    return NULL;
  }
  PASS(NULL, ibv_import_device, "IBVERBS_1.10", fd);
}

COMMON(int, ENOSYS, ibv_fork_init, "IBVERBS_1.1", (void))
COMMON(int, ENOSYS, ibv_dontfork_range, "IBVERBS_1.1", (void *base, size_t size), base, size)
COMMON(int, ENOSYS, ibv_dofork_range, "IBVERBS_1.1", (void *base, size_t size), base, size)
COMMON(enum ibv_fork_status, IBV_FORK_DISABLED, ibv_is_fork_initialized, "IBVERBS_1.13", (void))
COMMON(const char *, NULL, ibv_get_sysfs_path, "IBVERBS_1.0", (void))
COMMON(int, -1, ibv_read_sysfs_file, "IBVERBS_1.0",
       (const char *dir, const char *file, char *buf, size_t size), dir, file, buf, size)
COMMON(const char *, "unknown", ibv_node_type_str, "IBVERBS_1.1", (enum ibv_node_type type), type)
COMMON(const char *, "unknown", ibv_port_state_str, "IBVERBS_1.1", (enum ibv_port_state state),
       state)
COMMON(const char *, "unknown", ibv_event_type_str, "IBVERBS_1.1", (enum ibv_event_type type), type)
COMMON(const char *, "unknown", ibv_wc_status_str, "IBVERBS_1.1", (enum ibv_wc_status status),
       status)
COMMON(int, -1, ibv_rate_to_mult, "IBVERBS_1.0", (enum ibv_rate rate), rate)
COMMON(enum ibv_rate, IBV_RATE_MAX, mult_to_ibv_rate, "IBVERBS_1.0", (int mult), mult)
COMMON(int, -1, ibv_rate_to_mbps, "IBVERBS_1.1", (enum ibv_rate rate), rate)
COMMON(enum ibv_rate, IBV_RATE_MAX, mbps_to_ibv_rate, "IBVERBS_1.1", (int mbps), mbps)

#define COPY(name, version, to, from) DROP(name, version, (to * dst, from * src), dst, src)

COPY(ibv_copy_ah_attr_from_kern, "IBVERBS_1.1", struct ibv_ah_attr, struct ib_uverbs_ah_attr)
COPY(ibv_copy_qp_attr_from_kern, "IBVERBS_1.0", struct ibv_qp_attr, struct ib_uverbs_qp_attr)
COPY(ibv_copy_path_rec_from_kern, "IBVERBS_1.0", struct ibv_sa_path_rec, struct ib_user_path_rec)
COPY(ibv_copy_path_rec_to_kern, "IBVERBS_1.0", struct ib_user_path_rec, struct ibv_sa_path_rec)

/* ---- Private, but used by ibv_devinfo and pyverbs: its version differs by release ---- */

enum { GID_TYPE_SYSFS_ROCE_V2 = 1 };

int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, int *type);

static int query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, int *type,
                          const char *version) {
  if (!vb_owns(context)) PASS(-1, ibv_query_gid_type, version, context, port, index, type);
  *type = GID_TYPE_SYSFS_ROCE_V2;
  return 0;
}

#if __has_attribute(symver)
#define VERSIONED(number) __attribute__((symver("ibv_query_gid_type@IBVERBS_PRIVATE_" #number)))
#define BY_ASSEMBLER(number)
#else /* clang; what the assembler is told would be lost where gcc optimizes when it links */
#define VERSIONED(number)
#define BY_ASSEMBLER(number) \
  __asm__(".symver vb_query_gid_type_" #number ",ibv_query_gid_type@IBVERBS_PRIVATE_" #number);
#endif

#define GID_TYPE(number)                                                           \
  VERSIONED(number)                                                                \
  EXPORT int vb_query_gid_type_##number(struct ibv_context *context, uint8_t port, \
                                        unsigned int index, int *type);            \
  EXPORT int vb_query_gid_type_##number(struct ibv_context *context, uint8_t port, \
                                        unsigned int index, int *type) {           \
    return query_gid_type(context, port, index, type, "IBVERBS_PRIVATE_" #number); \
  }                                                                                \
  BY_ASSEMBLER(number)

GID_TYPE(34)
GID_TYPE(59)
GID_TYPE(65)

/* ---- Newer than the headers of Debian 12 ---- */

/* Functions of libibverbs that rdma-core has since its versions 58 to 65, for any header. Our
   device has the speed of a port and buffers, in ordinary memory; it refuses all others, so objects
   for them are never ours. */

struct ibv_buf;
struct ibv_comp_cntr;
struct ibv_comp_cntr_caps;
struct ibv_comp_cntr_init_attr;
struct ibv_dmah;
struct ibv_dmah_init_attr;
struct ibv_mr_init_attr;
struct ibv_qp_attach_comp_cntr_attr;

enum { SPEED_UNIT = 100000000 }; /* bit/s */

EXPORT int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed) {
  if (!vb_owns(context)) PASS(ENOSYS, ibv_query_port_speed, "IBVERBS_1.16", context, port, speed);
  if (port != 1) return EINVAL;
  *speed = vb_device_bits_per_second() / SPEED_UNIT;
  return 0;
}

REFUSE_WITH(struct ibv_mr *, NULL, ibv_reg_mr_ex, "IBVERBS_1.15", pd->context,
            (struct ibv_pd * pd, struct ibv_mr_init_attr *attr), pd, attr)
REFUSE_WITH(struct ibv_dmah *, NULL, ibv_alloc_dmah, "IBVERBS_1.15", context,
            (struct ibv_context * context, struct ibv_dmah_init_attr *attr), context, attr)
COMMON(int, ENOSYS, ibv_dealloc_dmah, "IBVERBS_1.15", (struct ibv_dmah * handle), handle)
COMMON(int, -1, ibv_dm_export_dmabuf_fd, "IBVERBS_1.16", (struct ibv_dm * dm), dm)

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
    errno = error;
    return NULL;
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
  if (!is_our_buffer(buf) || ours->pd != pd || from > ours->bytes || bytes > ours->bytes - from) {
    errno = EINVAL;
    return NULL;
  }
  return ibv_reg_mr(pd, at, bytes, access);
}

EXPORT int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf) {
  if (!is_our_buffer(buf)) PASS(-1, ibv_export_buf_dmabuf_fd, "IBVERBS_1.18", buf);
  errno = ENODATA;
  return -1;
}

REFUSE(_ibv_query_comp_cntr_caps, "IBVERBS_1.18", context,
       (struct ibv_context * context, struct ibv_comp_cntr_caps *caps, size_t bytes), context, caps,
       bytes)
REFUSE_WITH(struct ibv_comp_cntr *, NULL, ibv_create_comp_cntr, "IBVERBS_1.18", context,
            (struct ibv_context * context, struct ibv_comp_cntr_init_attr *attr), context, attr)
COMMON(int, ENOSYS, ibv_destroy_comp_cntr, "IBVERBS_1.18", (struct ibv_comp_cntr * counter),
       counter)
REFUSE(ibv_qp_attach_comp_cntr, "IBVERBS_1.18", qp->context,
       (struct ibv_qp * qp, struct ibv_comp_cntr *counter,
        struct ibv_qp_attach_comp_cntr_attr *attr),
       qp, counter, attr)

#define COUNTER(name, type)                                                                        \
  COMMON(int, ENOSYS, name, "IBVERBS_1.18", (struct ibv_comp_cntr * counter, type value), counter, \
         value)

COUNTER(ibv_set_comp_cntr, uint64_t)
COUNTER(ibv_set_err_comp_cntr, uint64_t)
COUNTER(ibv_inc_comp_cntr, uint64_t)
COUNTER(ibv_inc_err_comp_cntr, uint64_t)
COUNTER(ibv_read_comp_cntr, uint64_t *)
COUNTER(ibv_read_err_comp_cntr, uint64_t *)
