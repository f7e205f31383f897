/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of libibverbs that rdma-core has since its versions 58 to 65, for any header. Our
   device refuses all but one, so objects for them are never ours. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>

#include "verbs/device.h"
#include "verbs/pass.h"

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

REFUSE_WITH(void *, NULL, ibv_alloc_buf, "IBVERBS_1.17", pd->context,
            (struct ibv_pd * pd, size_t bytes, struct ibv_buf **buf), pd, bytes, buf)
DROP(ibv_free_buf, "IBVERBS_1.17", (struct ibv_buf * buf), buf)
REFUSE_WITH(struct ibv_mr *, NULL, ibv_reg_buf_mr, "IBVERBS_1.17", pd->context,
            (struct ibv_pd * pd, struct ibv_buf *buf, void *at, size_t bytes, int access), pd, buf,
            at, bytes, access)
COMMON(int, -1, ibv_export_buf_dmabuf_fd, "IBVERBS_1.18", (struct ibv_buf * buf), buf)

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
