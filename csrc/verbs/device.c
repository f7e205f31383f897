/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "verbs/objects.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MAX_MRS = 16384, MAX_HANDLES = 65536, LINK_DISABLED = 3, LINK_UP = 5, COMP_VECTORS = 1 };

/* Libraries of other devices look at what lies behind a struct ibv_device: there are zeros. */
static struct {
  struct ibv_device device;
  uint8_t zeros[4096];
} own = {.device = {.node_type = IBV_NODE_CA,
                    .transport_type = IBV_TRANSPORT_IB,
                    .name = "mrc0",
                    .dev_name = "mrc0",
                    .dev_path = "/sys/class/infiniband_verbs/mrc0",
                    .ibdev_path = "/sys/class/infiniband/mrc0"}};

struct ibv_device *const vb_own_device = &own.device;

/* Before the list that a program gets lies the real one, which the real library frees. */
EXPORT struct ibv_device **ibv_get_device_list(int *num_devices) {
  int n = 0;
  if (num_devices) *num_devices = 0;
  struct ibv_device **(*next)(int *) = vb_next_function("ibv_get_device_list", "IBVERBS_1.1");
  struct ibv_device **real = next ? next(&n) : NULL;
  if (!real) n = 0;
  struct ibv_device *device = NULL;
  if (!pr_process.forked && (pr_process.ctx || pr_link_is_there())) device = vb_own_device;
  if (!device && !real) {
    pr_say(pr_process.forked
               ? "a child of fork cannot use its parent's device: fork before it is opened"
               : "no agent runs on this host: start it with mrc agent, or the program"
                 " with mrc run --");
    return vb_null(ENOSYS);
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

EXPORT int ibv_get_device_index(struct ibv_device *device) {
  if (device != vb_own_device) PASS(-1, ibv_get_device_index, "IBVERBS_1.9", device);
  return -1; /* the kernel does not know it */
}

/* ---- Queries ---- */

/* Programs ask before they open the device, so it is not the agent's: the name of the host, hashed
   (FNV-1a), with the bit of numbers that nobody has assigned. */
EXPORT __be64 ibv_get_device_guid(struct ibv_device *device) {
  if (device != vb_own_device) PASS(0, ibv_get_device_guid, "IBVERBS_1.1", device);
  char name[256] = "";
  uint64_t hash = 0xcbf29ce484222325;
  gethostname(name, sizeof name - 1);
  for (const char *each = name; *each; each++)
    hash = (hash ^ (uint8_t)*each) * 0x100000001b3;
  return htobe64(hash | 2ull << 56);
}

EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
  if (!vb_owns(context)) PASS(ENOSYS, ibv_query_device, "IBVERBS_1.1", context, attr);
  *attr = (struct ibv_device_attr){.vendor_id = 0x024d52, /* of nobody: locally administered */
                                   .vendor_part_id = 1,
                                   .hw_ver = 1,
                                   .node_guid = ibv_get_device_guid(vb_own_device),
                                   .sys_image_guid = ibv_get_device_guid(vb_own_device),
                                   .max_mr_size = UINT64_MAX,
                                   .page_size_cap = 0xfffff000,
                                   .max_qp = VB_MAX_QPS,
                                   .max_qp_wr = VB_MAX_SEND_WR,
                                   .max_sge = VB_MAX_SGE,
                                   .max_cq = MAX_HANDLES,
                                   .max_cqe = VB_MAX_CQE,
                                   .max_mr = MAX_MRS,
                                   .max_pd = MAX_HANDLES,
                                   .max_pkeys = 1,
                                   .phys_port_cnt = 1};
  if (vb_rc_is_on()) {
    attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = MRC_RC_ANSWERS;
    attr->max_res_rd_atom = MRC_RC_ANSWERS * VB_MAX_QPS;
    attr->max_sge_rd = VB_MAX_SGE;
    attr->atomic_cap = IBV_ATOMIC_HCA;
    attr->max_srq = MAX_HANDLES;
    attr->max_srq_wr = VB_MAX_SRQ_WR;
    attr->max_srq_sge = VB_MAX_SGE;
  }
  strcpy(attr->fw_ver, "1.0.1");
  return 0;
}

static int query_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                    struct ibv_device_attr_ex *attr, size_t bytes) {
  if (input && input->comp_mask) return EINVAL;
  struct ibv_device_attr_ex found = {.phys_port_cnt_ex = 1};
  ibv_query_device(context, &found.orig_attr);
  memset(attr, 0, bytes);
  memcpy(attr, &found, bytes < sizeof found ? bytes : sizeof found);
  return 0;
}

/* Rates as verbs names them: lanes and the rate of each. The smallest that is enough. */
static void set_rate(struct ibv_port_attr *attr, uint64_t bits_per_second) {
  static const struct {
    uint64_t gigabits;
    uint8_t width; /* 1: one lane, 2: four */
    uint8_t speed;
  } rates[] = {{10, 2, 1},   {25, 1, 32},  {40, 2, 4},   {56, 2, 16},
               {100, 2, 32}, {200, 2, 64}, {400, 2, 128}};
  const size_t n = sizeof rates / sizeof rates[0];
  size_t i = 0;
  while (i < n - 1 && rates[i].gigabits * 1000000000u < bits_per_second)
    i++;
  attr->active_width = rates[i].width;
  attr->active_speed = rates[i].speed;
}

/* Of all ports that are up. With the lock. */
static uint64_t rate_of_ports(void) {
  uint64_t bits_per_second = 0;
  for (int i = 0; i < pr_process.n_ports; i++) {
    const struct mrc_agent_port *each = &pr_process.ports[i];
    if (each->up && !each->loopback) bits_per_second += each->bits_per_second;
  }
  return bits_per_second;
}

enum { SPEED_UNIT = 100000000 }; /* bit/s */

EXPORT int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed) {
  if (!vb_owns(context)) PASS(ENOSYS, ibv_query_port_speed, "IBVERBS_1.16", context, port, speed);
  if (port != 1) return EINVAL;
  pr_lock();
  *speed = rate_of_ports() / SPEED_UNIT;
  pr_unlock();
  return 0;
}

/* Port 1 is the device; ports 2 and on are none of verbs' business. */
static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
                      size_t bytes) {
  (void)context;
  if (port != 1) return EINVAL;
  struct ibv_port_attr found = {.state = IBV_PORT_DOWN,
                                .max_mtu = IBV_MTU_4096,
                                .max_msg_sz = UINT32_MAX,
                                .pkey_tbl_len = 1,
                                .max_vl_num = 1,
                                .phys_state = LINK_DISABLED,
                                .link_layer = IBV_LINK_LAYER_ETHERNET};
  pr_lock();
  for (int i = 0; i < pr_process.n_ports; i++)
    if (pr_process.ports[i].up) found.state = IBV_PORT_ACTIVE;
  if (found.state == IBV_PORT_ACTIVE) found.phys_state = LINK_UP;
  set_rate(&found, rate_of_ports());
  found.active_mtu = vb_process_mtu();
  found.gid_tbl_len = pr_process.n_gids;
  pr_unlock();
  memset(attr, 0, bytes);
  memcpy(attr, &found, bytes < sizeof found ? bytes : sizeof found);
  return 0;
}

#undef ibv_query_port
EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port,
                          struct _compat_ibv_port_attr *attr) {
  if (!vb_owns(context)) PASS(ENOSYS, ibv_query_port, "IBVERBS_1.1", context, port, attr);
  /* Old programs have a struct without the last two fields. */
  return query_port(context, port, (struct ibv_port_attr *)attr,
                    offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* Any index answers: programs have their habits, such as 3 for RoCE v2. */
EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  if (!vb_owns(context)) PASS(-1, ibv_query_gid, "IBVERBS_1.1", context, port, index, gid);
  if (port != 1 || index < 0) return vb_fail(EINVAL);
  pr_lock();
  memcpy(gid->raw, pr_process.gids[index < pr_process.n_gids ? index : 0], sizeof gid->raw);
  pr_unlock();
  return 0;
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
  if (port != 1 || index != 0) return vb_fail(EINVAL);
  *pkey = 0xffff;
  return 0;
}

EXPORT int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey) {
  if (!vb_owns(context)) PASS(-1, ibv_get_pkey_index, "IBVERBS_1.5", context, port, pkey);
  return port == 1 && pkey == 0xffff ? 0 : -1;
}

/* ---- Contexts ---- */

static struct vb_context *create_context(void) {
  struct vb_context *context = calloc(1, sizeof *context);
  if (!context) return NULL;
  mrc_list_init(&context->asyncs);
  struct verbs_context *verbs = &context->verbs;
  verbs->sz = sizeof *verbs;
  verbs->query_port = query_port;
  verbs->query_device_ex = query_ex;
  verbs->create_cq_ex = vb_cq_create_ex;
  verbs->create_qp_ex = vb_qp_create_ex;
  verbs->context = (struct ibv_context){.device = vb_own_device,
                                        .ops = {.poll_cq = vb_cq_poll,
                                                .req_notify_cq = vb_cq_req_notify,
                                                .post_send = vb_post_send,
                                                .post_recv = vb_post_recv,
                                                .post_srq_recv = vb_post_srq_recv},
                                        .async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC),
                                        .num_comp_vectors = COMP_VECTORS,
                                        .abi_compat = __VERBS_ABI_IS_EXTENDED};
  verbs->context.cmd_fd = verbs->context.async_fd; /* programs may duplicate it */
  pthread_mutex_init(&verbs->context.mutex, NULL);
  if (verbs->context.async_fd >= 0) return context;
  free(context);
  return NULL;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device) {
  if (device != vb_own_device) PASS(NULL, ibv_open_device, "IBVERBS_1.1", device);
  pr_lock();
  const int error = pr_enter();
  struct vb_context *context = error == 0 ? create_context() : NULL;
  if (context) {
    context->next = vb_objects.contexts;
    vb_objects.contexts = context;
  }
  pr_unlock();
  if (error != 0) errno = error;
  return context ? &context->verbs.context : NULL;
}

EXPORT int ibv_close_device(struct ibv_context *context) {
  if (!vb_owns(context)) PASS(ENOSYS, ibv_close_device, "IBVERBS_1.1", context);
  struct vb_context *ours = vb_context_of(context);
  pr_lock();
  struct vb_context **place = &vb_objects.contexts;
  while (*place != ours)
    place = &(*place)->next;
  *place = ours->next;
  uint32_t kept = 0; /* QPs that the program keeps */
  VB_EACH_QP(qp)
    kept += qp->exists && !qp->leaving;
  if (!vb_objects.contexts) pr_attach_linger(kept);
  while (!mrc_list_is_empty(&ours->asyncs)) {
    struct mrc_node *node = ours->asyncs.next;
    mrc_node_leave(node);
    free(MRC_NODE_OWNER(node, struct vb_async, node));
  }
  pr_unlock();
  close(context->async_fd);
  free(ours);
  return 0;
}

/* ---- What csrc/agent needs of this library ---- */

#define LOOK_NS 10000000ull

static void release_all(void) {
  VB_EACH_QP(qp)
    vb_qp_release(qp);
}

static void ports_changed(bool any_up) {
  vb_async_raise_all(any_up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, 1);
}

static uint32_t domain(uint32_t qpn) {
  const struct vb_qp *qp = vb_process_qp(qpn);
  return qp ? vb_domain_of(qp->ibv.qp.pd) : 0;
}

static void completed(const struct mrc_wc *wc) {
  struct vb_qp *qp = vb_process_qp(wc->qpn);
  if (qp && qp->rc && !qp->leaving)
    vb_rc_complete(qp, wc);
  else
    vb_complete(wc);
}

static bool watches(void) { return true; }

/* The helper calls it often while a program polls. */
static void end_timed(uint64_t now_ns) {
  static uint64_t last_ns;
  if (now_ns - last_ns < LOOK_NS) return;
  last_ns = now_ns;
  vb_qp_end_gone(now_ns);
  vb_rc_tick(now_ns);
}

const char *const pr_name = "libmrc";

const struct pr_owner pr_owner = {
    .to_resume = vb_qp_to_resume,
    .tell_all = vb_qp_tell_all,
    .release_all = release_all,
    .ready = vb_qp_ready,
    .failed = vb_qp_failed,
    .gone = vb_qp_gone,
    .end_gone = end_timed,
    .ports_changed = ports_changed,
    .ev_event = vb_ev_cq_push,
    .answer = vb_api_answer,
    .agent_gone = vb_api_agent_gone,
    .exists = vb_qp_exists,
    .domain = domain,
    .qp_error = vb_complete_error,
    .completed = completed,
    .turned = vb_rc_turned,
    .watches = watches,
};
