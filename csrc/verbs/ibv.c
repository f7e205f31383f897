/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libibverbs that our device refuses or answers by a constant, and those that
   belong to no device. What it serves stands with its objects. For objects of other devices, all of
   them are the system library's. */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "verbs/objects.h"

static void *library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A program may have loaded us in place of libibverbs, which is then not in the process. The name
   with its number is that of the system's library: ours has none. */
static void open_library(void) { library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL); }

void *vb_next_function(const char *name, const char *version) {
  pthread_once(&once, open_library);
  return library ? dlvsym(library, name, version) : NULL;
}

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
   device has only the speed of a port and buffers, so objects for others are never ours. */

struct ibv_comp_cntr;
struct ibv_comp_cntr_caps;
struct ibv_comp_cntr_init_attr;
struct ibv_dmah;
struct ibv_dmah_init_attr;
struct ibv_mr_init_attr;
struct ibv_qp_attach_comp_cntr_attr;

REFUSE_WITH(struct ibv_mr *, NULL, ibv_reg_mr_ex, "IBVERBS_1.15", pd->context,
            (struct ibv_pd * pd, struct ibv_mr_init_attr *attr), pd, attr)
REFUSE_WITH(struct ibv_dmah *, NULL, ibv_alloc_dmah, "IBVERBS_1.15", context,
            (struct ibv_context * context, struct ibv_dmah_init_attr *attr), context, attr)
COMMON(int, ENOSYS, ibv_dealloc_dmah, "IBVERBS_1.15", (struct ibv_dmah * handle), handle)
COMMON(int, -1, ibv_dm_export_dmabuf_fd, "IBVERBS_1.16", (struct ibv_dm * dm), dm)

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
