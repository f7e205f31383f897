/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/mrc_api.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program/export.h"
#include "verbs/api_context.h"
#include "verbs/device.h"
#include "verbs/ev_cq.h"
#include "verbs/ibv_ops.h"
#include "verbs/process.h"
#include "verbs/qp.h"

enum { MPR_UNIT = 128, MAX_MPR = 32, MAX_WIMM = 1024, MAX_HINTS = 65536 };

struct mrc_api_qp_hint {
  struct mrc_api_qp_hint_attr attr;
  int users; /* QPs */
};

static struct ibv_cq *cq_of(struct mrc_api_cq *cq) { return (struct ibv_cq *)cq; }
static struct ibv_qp *qp_of(struct mrc_api_qp *qp) { return (struct ibv_qp *)qp; }
static struct ibv_comp_channel *channel_of(struct mrc_api_channel *channel) {
  return (struct ibv_comp_channel *)channel;
}

/* ---- Devices and contexts ---- */

EXPORT int mrc_query_device(struct ibv_context *context, struct mrc_api_device_attr *attr,
                            int *supported) {
  if (!context || !attr || !supported) return fail(EINVAL);
  *supported = vb_owns(context);
  *attr = (struct mrc_api_device_attr){0};
  if (*supported)
    *attr = (struct mrc_api_device_attr){
        .protocols = MRC_API_PROTOCOL_1,
        .max_wimm = MAX_WIMM,
        .max_wimm_dest = MAX_WIMM,
        .max_mpr = MAX_MPR,
        .mpr_resolution = 1,
        .max_qp_hint = MAX_HINTS,
        .cap = MRC_API_CAP_DYNAMIC_MPR | MRC_API_CAP_TRIM_NACK | MRC_API_CAP_SERVICE_TIME};
  return 0;
}

EXPORT int mrc_query_device_ex(struct ibv_context *context, struct mrc_api_context *own,
                               struct mrc_api_device_attr *attr, int *supported) {
  (void)own;
  return mrc_query_device(context, attr, supported);
}

static void put(uint32_t *to, uint32_t version) {
  if (to) *to = version;
}

EXPORT void mrc_query_version(uint32_t *current, uint32_t *oldest, uint32_t *vendor,
                              uint32_t *oldest_vendor) {
  put(current, MRC_API_VERSION(1, 0, 1));
  put(oldest, MRC_API_VERSION(1, 0, 0));
  put(vendor, MRC_API_VERSION(1, 0, 0));
  put(oldest_vendor, MRC_API_VERSION(1, 0, 0));
}

EXPORT struct mrc_api_context *mrc_create_context(struct ibv_context *context,
                                                  struct mrc_api_context_attr *attr) {
  if (!context || !vb_owns(context)) {
    errno = context ? EOPNOTSUPP : EINVAL;
    return NULL;
  }
  struct mrc_api_context *own = calloc(1, sizeof *own);
  if (!own) return NULL;
  own->verbs = context;
  own->version = attr ? attr->version : 0;
  return own;
}

EXPORT int mrc_destroy_context(struct mrc_api_context *context) {
  if (!context) return fail(EINVAL);
  free(context);
  return 0;
}

/* ---- Channels and CQs ---- */

EXPORT int mrc_create_comp_channel(struct mrc_api_context *context,
                                   struct mrc_api_channel **channel) {
  if (!context || !channel) return EINVAL;
  *channel = (struct mrc_api_channel *)ibv_create_comp_channel(context->verbs);
  return *channel ? 0 : errno;
}

EXPORT int mrc_get_comp_channel_fd(struct mrc_api_channel *channel, int *fd) {
  if (!channel || !fd) return fail(EINVAL);
  *fd = channel_of(channel)->fd;
  return 0;
}

EXPORT int mrc_destroy_comp_channel(struct mrc_api_channel *channel) {
  return channel ? ibv_destroy_comp_channel(channel_of(channel)) : EINVAL;
}

EXPORT struct mrc_api_cq *mrc_create_cq(struct mrc_api_context *context, int cqe, void *cq_context,
                                        struct mrc_api_channel *channel, int vector) {
  if (!context) {
    errno = EINVAL;
    return NULL;
  }
  return (struct mrc_api_cq *)ibv_create_cq(context->verbs, cqe, cq_context, channel_of(channel),
                                            vector);
}

EXPORT int mrc_poll_cq(struct mrc_api_cq *cq, int n, struct ibv_wc *wcs) {
  if (!cq || n < 0 || !wcs || vb_cq_of(cq_of(cq))->of_evs) return fail(EINVAL);
  return vb_poll_cq(cq_of(cq), n, wcs);
}

EXPORT int mrc_req_notify_cq(struct mrc_api_cq *cq, int solicited_only) {
  return cq ? vb_req_notify_cq(cq_of(cq), solicited_only) : EINVAL;
}

EXPORT int mrc_get_cq_event(struct mrc_api_channel *channel, struct mrc_api_cq **cq,
                            void **cq_context) {
  if (!channel || !cq || !cq_context) return fail(EINVAL);
  return ibv_get_cq_event(channel_of(channel), (struct ibv_cq **)cq, cq_context);
}

EXPORT void mrc_ack_cq_events(struct mrc_api_cq *cq, unsigned int events) {
  if (cq) ibv_ack_cq_events(cq_of(cq), events);
}

EXPORT int mrc_destroy_cq(struct mrc_api_cq *cq) {
  if (!cq) return EINVAL;
  return vb_cq_of(cq_of(cq))->of_evs ? vb_ev_cq_destroy(vb_cq_of(cq_of(cq)))
                                     : ibv_destroy_cq(cq_of(cq));
}

/* ---- Hints ---- */

static void copy_hint(struct mrc_api_qp_hint_attr *to, const struct mrc_api_qp_hint_attr *from,
                      unsigned int mask) {
  if (mask & MRC_API_HINT_QPS_PER_PEER) to->qps_per_peer = from->qps_per_peer;
  if (mask & MRC_API_HINT_SEND_PEERS) to->send_peers = from->send_peers;
  if (mask & MRC_API_HINT_REMOTE_RECV_PEERS) to->remote_recv_peers = from->remote_recv_peers;
  if (mask & MRC_API_HINT_VENDOR) memcpy(to->vendor, from->vendor, sizeof to->vendor);
}

static bool is_hint_mask(unsigned int mask) {
  return (mask & ~(MRC_API_HINT_QPS_PER_PEER | MRC_API_HINT_SEND_PEERS |
                   MRC_API_HINT_REMOTE_RECV_PEERS | MRC_API_HINT_VENDOR)) == 0;
}

EXPORT struct mrc_api_qp_hint *mrc_create_qp_hint(struct mrc_api_context *context,
                                                  struct mrc_api_qp_hint_init *init) {
  if (!context || !init) {
    errno = EINVAL;
    return NULL;
  }
  struct mrc_api_qp_hint *hint = calloc(1, sizeof *hint);
  if (hint) hint->attr = init->attr;
  return hint;
}

EXPORT int mrc_query_qp_hint(struct mrc_api_qp_hint *hint, struct mrc_api_qp_hint_attr *attr,
                             int mask) {
  if (!hint || !attr || !is_hint_mask((unsigned int)mask)) return fail(EINVAL);
  pr_lock();
  copy_hint(attr, &hint->attr, (unsigned int)mask);
  pr_unlock();
  return 0;
}

EXPORT int mrc_modify_qp_hint(struct mrc_api_qp_hint *hint, struct mrc_api_qp_hint_attr *attr,
                              int mask) {
  if (!hint || !attr || !is_hint_mask((unsigned int)mask)) return fail(EINVAL);
  pr_lock();
  copy_hint(&hint->attr, attr, (unsigned int)mask);
  pr_unlock();
  return 0;
}

EXPORT int mrc_destroy_qp_hint(struct mrc_api_qp_hint *hint) {
  if (!hint) return fail(EINVAL);
  pr_lock();
  const bool used = hint->users > 0;
  pr_unlock();
  if (used) return fail(EBUSY);
  free(hint);
  return 0;
}

static void set_hint(struct vb_qp *qp, struct mrc_api_qp_hint *hint) {
  if (qp->api.hint) qp->api.hint->users--;
  if (hint) hint->users++;
  qp->api.hint = hint;
}

/* ---- QPs ---- */

EXPORT struct mrc_api_qp *mrc_create_qp(struct mrc_api_context *context,
                                        struct mrc_api_qp_init *init) {
  const uint64_t served = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  if (!context || !init || !init->pd || !init->send_cq || !init->recv_cq) {
    errno = EINVAL;
    return NULL;
  }
  if (init->send_ops & ~served || init->protocol & ~MRC_API_PROTOCOL_1) {
    errno = EOPNOTSUPP;
    return NULL;
  }
  struct ibv_qp_init_attr attr = {.qp_context = init->qp_context,
                                  .send_cq = cq_of(init->send_cq),
                                  .recv_cq = cq_of(init->recv_cq),
                                  .cap = init->cap,
                                  .qp_type = IBV_QPT_RC,
                                  .sq_sig_all = init->signal_all};
  struct ibv_qp *qp = vb_create_qp(init->pd, &attr);
  if (qp) vb_qp_of(qp)->emulated = false; /* it is MRC's, also with --rc */
  if (qp) init->cap = attr.cap;
  return (struct mrc_api_qp *)qp;
}

/* What the peer's end must know, or the connection: it leaves with the move to RTR. */
enum {
  BEFORE_RTR = MRC_API_QP_MAX_WIMM_DEST | MRC_API_QP_MPR_DEST | MRC_API_QP_EV_PROFILE |
      MRC_API_QP_CC_PROFILE,
  KNOWN = BEFORE_RTR | MRC_API_QP_MAX_WIMM | MRC_API_QP_MPR | MRC_API_QP_TIMEOUT | MRC_API_QP_HINT |
      MRC_API_QP_RETRY | MRC_API_QP_CAP,
  MAX_TIMEOUT = 24,
  MAX_LINEAR = 7,
  MAX_EXPONENTIAL = 25
};

static int check_api(const struct vb_qp *qp, const struct mrc_api_qp_attr *api, unsigned int mask) {
  if (mask & ~((unsigned int)KNOWN | MRC_API_QP_VENDOR)) return EINVAL;
  if (mask == 0) return 0;
  if (!api) return EINVAL;
  if (mask & BEFORE_RTR && qp->wanted) return EINVAL;
  if (mask & MRC_API_QP_MPR && api->mpr > MAX_MPR) return EINVAL;
  if (mask & MRC_API_QP_MPR_DEST && api->mpr_dest > MAX_MPR) return EINVAL;
  if (mask & MRC_API_QP_MAX_WIMM && api->max_wimm > MAX_WIMM) return EINVAL;
  if (mask & MRC_API_QP_MAX_WIMM_DEST && api->max_wimm_dest > MAX_WIMM) return EINVAL;
  if (mask & MRC_API_QP_TIMEOUT && api->timeout > MAX_TIMEOUT) return EINVAL;
  if (mask & MRC_API_QP_RETRY &&
      (api->retry_linear > MAX_LINEAR || api->retry_exponential > MAX_EXPONENTIAL))
    return EINVAL;
  return 0;
}

static void copy_api(struct mrc_api_qp_attr *to, const struct mrc_api_qp_attr *from,
                     unsigned int mask) {
  if (mask & MRC_API_QP_MPR) to->mpr = from->mpr;
  if (mask & MRC_API_QP_MPR_DEST) to->mpr_dest = from->mpr_dest;
  if (mask & MRC_API_QP_MAX_WIMM) to->max_wimm = from->max_wimm;
  if (mask & MRC_API_QP_MAX_WIMM_DEST) to->max_wimm_dest = from->max_wimm_dest;
  if (mask & MRC_API_QP_TIMEOUT) to->timeout = from->timeout;
  if (mask & MRC_API_QP_EV_PROFILE) to->ev_profile = from->ev_profile;
  if (mask & MRC_API_QP_CC_PROFILE) to->cc_profile = from->cc_profile;
  if (mask & MRC_API_QP_RETRY) {
    to->retry_linear = from->retry_linear;
    to->retry_exponential = from->retry_exponential;
  }
  if (mask & MRC_API_QP_CAP) to->cap = from->cap;
  if (mask & MRC_API_QP_VENDOR) memcpy(to->vendor, from->vendor, sizeof to->vendor);
}

/* What the agent gets when the QP moves to RTR. */
static void fill_connect(struct vb_qp *qp) {
  qp->connect.max_wimm = qp->api.max_wimm_dest;
  qp->connect.mpr = (uint32_t)qp->api.mpr_dest * MPR_UNIT;
  qp->connect.ev_profile = qp->api.ev_profile;
  qp->connect.cc_profile = qp->api.cc_profile;
}

EXPORT int mrc_modify_qp(struct mrc_api_qp *qp, struct ibv_qp_attr *attr, int mask,
                         struct mrc_api_qp_attr *api, int api_mask) {
  const int ignored = IBV_QP_PORT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
                      IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
  if (!qp || (mask != 0 && !attr)) return EINVAL;
  if (pr_process.forked) return EIO;
  struct vb_qp *ours = vb_qp_of(qp_of(qp));
  pr_lock();
  int error = check_api(ours, api, (unsigned int)api_mask);
  if (error == 0 && api_mask != 0) {
    copy_api(&ours->api, api, (unsigned int)api_mask);
    ours->api_set |= (unsigned int)api_mask;
    if (api_mask & MRC_API_QP_HINT) set_hint(ours, api->hint);
    fill_connect(ours);
    vb_qp_set_retries(ours);
  }
  if (error == 0 && mask != 0) error = vb_ops_modify_qp(ours, attr, mask & ~ignored);
  pr_unlock();
  return error;
}

EXPORT int mrc_query_qp(struct mrc_api_qp *qp, struct ibv_qp_attr *attr, int mask,
                        struct mrc_api_qp_attr *api, int api_mask, struct mrc_api_qp_init *init) {
  if (!qp || api_mask & ~(KNOWN | (int)MRC_API_QP_VENDOR)) return EINVAL;
  struct ibv_qp_attr own;
  struct ibv_qp_init_attr created;
  const int error = ibv_query_qp(qp_of(qp), attr ? attr : &own, mask, &created);
  if (error != 0) return error;
  pr_lock();
  if (api) {
    *api = (struct mrc_api_qp_attr){0};
    copy_api(api, &vb_qp_of(qp_of(qp))->api, (unsigned int)api_mask);
    if (api_mask & MRC_API_QP_HINT) api->hint = vb_qp_of(qp_of(qp))->api.hint;
  }
  pr_unlock();
  if (init)
    *init = (struct mrc_api_qp_init){.qp_context = created.qp_context,
                                     .send_cq = (struct mrc_api_cq *)created.send_cq,
                                     .recv_cq = (struct mrc_api_cq *)created.recv_cq,
                                     .cap = created.cap,
                                     .signal_all = created.sq_sig_all,
                                     .pd = qp_of(qp)->pd,
                                     .protocol = MRC_API_PROTOCOL_1};
  return 0;
}

EXPORT int mrc_get_qpn(struct mrc_api_qp *qp, uint32_t *qpn) {
  if (!qp || !qpn) return fail(EINVAL);
  *qpn = qp_of(qp)->qp_num;
  return 0;
}

EXPORT int mrc_post_send(struct mrc_api_qp *qp, struct ibv_send_wr *list,
                         struct ibv_send_wr **bad) {
  return qp ? vb_ops_post_send(qp_of(qp), list, bad) : EINVAL;
}

EXPORT int mrc_post_recv(struct mrc_api_qp *qp, struct ibv_recv_wr *list,
                         struct ibv_recv_wr **bad) {
  return qp ? vb_ops_post_recv(qp_of(qp), list, bad) : EINVAL;
}

EXPORT int mrc_destroy_qp(struct mrc_api_qp *qp) {
  if (!qp) return EINVAL;
  struct mrc_api_qp_hint *hint = vb_qp_of(qp_of(qp))->api.hint;
  const int error = ibv_destroy_qp(qp_of(qp));
  pr_lock();
  if (error == 0 && hint) hint->users--;
  pr_unlock();
  return error;
}

/* ---- Asynchronous events ---- */

/* The two structs have the same form: a pointer or a port, then the type. */
EXPORT int mrc_get_async_event(struct mrc_api_context *context, struct mrc_api_async_event *event) {
  if (!context || !event) return fail(EINVAL);
  struct ibv_async_event found;
  const int error = ibv_get_async_event(context->verbs, &found);
  if (error == 0) {
    event->type = found.event_type;
    memcpy(&event->element, &found.element, sizeof event->element);
  }
  return error;
}

EXPORT void mrc_ack_async_event(struct mrc_api_async_event *event) {
  if (!event) return;
  struct ibv_async_event taken = {.event_type = event->type};
  memcpy(&taken.element, &event->element, sizeof event->element);
  ibv_ack_async_event(&taken);
}
