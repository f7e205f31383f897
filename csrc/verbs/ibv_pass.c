/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libibverbs that our device refuses, and those that belong to no device. For
   objects of other devices they are the system library's. */
#include <errno.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "program/export.h"
#include "program/say.h"
#include "verbs/device.h"
#include "verbs/pass.h"

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
