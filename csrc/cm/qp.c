/* SPDX-License-Identifier: Apache-2.0 */
#include "cm/cm.h"

#include <stdlib.h>
#include <string.h>

/* ---- The device mrc0 ---- */

#define DEVICE "mrc0"

enum { PORT = 1 };

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static int open_verbs(void) {
  int n = 0;
  struct ibv_device **devices = ibv_get_device_list(&n);
  if (!devices) return ENODEV;
  for (int i = 0; i < n && !cm_process.verbs; i++)
    if (strcmp(ibv_get_device_name(devices[i]), DEVICE) == 0)
      cm_process.verbs = ibv_open_device(devices[i]);
  ibv_free_device_list(devices);
  if (!cm_process.verbs) return ENODEV;
  struct ibv_device_attr attr = {0};
  if (ibv_query_device(cm_process.verbs, &attr) == 0)
    cm_process.most_resources = (uint8_t)attr.max_qp_rd_atom;
  cm_process.pd = ibv_alloc_pd(cm_process.verbs);
  if (cm_process.pd) return 0;
  ibv_close_device(cm_process.verbs);
  cm_process.verbs = NULL;
  return ENOMEM;
}

int cm_device_open(void) {
  pthread_mutex_lock(&opening);
  int error = cm_process.verbs ? 0 : open_verbs();
  pthread_mutex_unlock(&opening);
  if (error == 0) error = cm_session_start();
  if (error != 0) PR_SAY_ONCE("rdma_cm has no device: %s", strerror(error));
  return error;
}

int cm_device_take(struct cm_id *id, int family) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}; /* an IPv4 address follows */
  struct ibv_port_attr port;
  union ibv_gid gid;
  if (ibv_query_port(cm_process.verbs, PORT, &port) != 0 || port.gid_tbl_len == 0) return ENODEV;
  id->gid_index = 0;
  for (int i = 0; i < port.gid_tbl_len; i++)
    if (ibv_query_gid(cm_process.verbs, PORT, i, &gid) == 0 &&
        (memcmp(gid.raw, mapped, sizeof mapped) == 0) == (family == AF_INET))
      id->gid_index = (uint8_t)i;
  id->id.verbs = cm_process.verbs;
  id->id.port_num = PORT;
  if (!id->id.pd) id->id.pd = cm_process.pd;
  return 0;
}

int cm_device_gid(const struct cm_id *id, uint8_t gid[16]) {
  union ibv_gid found;
  if (ibv_query_gid(cm_process.verbs, PORT, id->gid_index, &found) != 0) return ENODEV;
  memcpy(gid, found.raw, sizeof found.raw);
  return 0;
}

EXPORT struct ibv_context **rdma_get_devices(int *n) {
  if (n) *n = 0;
  const int error = cm_device_open();
  struct ibv_context **list = error == 0 ? calloc(2, sizeof *list) : NULL;
  if (!list) {
    errno = error ? error : ENOMEM;
    return NULL;
  }
  list[0] = cm_process.verbs;
  if (n) *n = 1;
  return list;
}

EXPORT void rdma_free_devices(struct ibv_context **list) { free(list); }

/* Of a QP that programs leave to rdma_cm: 4.096 us << 16 is 268 ms. */
enum { TIMEOUT = 16 };

/* ---- States ---- */

static void fill_init(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask) {
  *mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  attr->port_num = id->id.port_num;
  attr->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (id->responder_resources > 0)
    attr->qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
}

static int fill_rtr(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask) {
  struct ibv_port_attr port;
  if (id->peer.qpn == 0) return EINVAL;
  const int error = ibv_query_port(id->id.verbs, id->id.port_num, &port);
  if (error != 0) return error;
  *mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  attr->path_mtu = port.active_mtu;
  attr->dest_qp_num = id->peer.qpn;
  attr->max_dest_rd_atomic = id->responder_resources;
  attr->ah_attr = (struct ibv_ah_attr){.is_global = 1,
                                       .port_num = id->id.port_num,
                                       .grh = {.sgid_index = id->gid_index, .hop_limit = 64}};
  memcpy(attr->ah_attr.grh.dgid.raw, id->peer.gid, sizeof id->peer.gid);
  return 0;
}

static void fill_rts(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask) {
  *mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
          IBV_QP_MAX_QP_RD_ATOMIC;
  attr->timeout = id->ack_timeout ? id->ack_timeout : TIMEOUT;
  attr->retry_cnt = id->retry_count;
  attr->rnr_retry = id->rnr_retry_count;
  attr->max_rd_atomic = id->initiator_depth;
}

static int fill(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask) {
  const enum ibv_qp_state state = attr->qp_state;
  *attr = (struct ibv_qp_attr){.qp_state = state};
  if (state == IBV_QPS_INIT)
    fill_init(id, attr, mask);
  else if (state == IBV_QPS_RTR)
    return fill_rtr(id, attr, mask);
  else if (state == IBV_QPS_RTS)
    fill_rts(id, attr, mask);
  else
    return EINVAL;
  return 0;
}

EXPORT int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask) {
  return cm_result(id->verbs ? fill(cm_id_of(id), attr, mask) : EINVAL);
}

int cm_qp_connect(struct cm_id *id) {
  static const enum ibv_qp_state states[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
  int error = 0;
  for (int i = 0; id->id.qp && error == 0 && i < 3; i++) {
    struct ibv_qp_attr attr = {.qp_state = states[i]};
    int mask = 0;
    error = fill(id, &attr, &mask);
    if (error == 0) error = ibv_modify_qp(id->id.qp, &attr, mask);
  }
  return error;
}

void cm_qp_fail(struct cm_id *id) {
  if (!id->id.qp) return;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  ibv_modify_qp(id->id.qp, &attr, IBV_QP_STATE);
}

/* ---- QPs and their CQs ---- */

static void destroy_cqs(struct rdma_cm_id *id) {
  if (id->qp_type == IBV_QPT_XRC_RECV) return;
  if (id->recv_cq) ibv_destroy_cq(id->recv_cq);
  if (id->recv_cq_channel) ibv_destroy_comp_channel(id->recv_cq_channel);
  if (id->send_cq) ibv_destroy_cq(id->send_cq);
  if (id->send_cq_channel) ibv_destroy_comp_channel(id->send_cq_channel);
  id->recv_cq = id->send_cq = NULL;
  id->recv_cq_channel = id->send_cq_channel = NULL;
}

/* A CQ with a channel: rdma_get_send_comp waits there. A positive errno. */
static int create_cq(struct rdma_cm_id *id, uint32_t n, struct ibv_comp_channel **channel,
                     struct ibv_cq **cq) {
  *channel = ibv_create_comp_channel(id->verbs);
  if (!*channel) return errno;
  *cq = ibv_create_cq(id->verbs, n ? (int)n : 1, id, *channel, 0);
  return *cq ? 0 : errno;
}

static int create_cqs(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr) {
  int error = 0;
  if (!attr->recv_cq && !id->recv_cq)
    error = create_cq(id, attr->cap.max_recv_wr, &id->recv_cq_channel, &id->recv_cq);
  if (error == 0 && !attr->send_cq && !id->send_cq)
    error = create_cq(id, attr->cap.max_send_wr, &id->send_cq_channel, &id->send_cq);
  if (!attr->recv_cq) attr->recv_cq = id->recv_cq;
  if (!attr->send_cq) attr->send_cq = id->send_cq;
  return error;
}

static int create_in_init(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr) {
  struct ibv_qp *qp = ibv_create_qp_ex(id->verbs, attr);
  if (!qp) return errno;
  struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT};
  int mask = 0;
  fill_init(cm_id_of(id), &init, &mask);
  const int error = ibv_modify_qp(qp, &init, mask);
  if (error != 0) {
    ibv_destroy_qp(qp);
    return error;
  }
  id->qp = qp;
  id->pd = qp->pd;
  return 0;
}

EXPORT int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr) {
  if (id->qp || !id->verbs) return cm_result(EINVAL);
  if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd) attr->pd = id->pd;
  attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
  if (attr->pd->context != id->verbs) return cm_result(EINVAL);
  if (id->srq && !attr->srq) attr->srq = id->srq;
  int error = create_cqs(id, attr);
  if (error == 0) error = create_in_init(id, attr);
  if (error != 0) destroy_cqs(id);
  return cm_result(error);
}

/* `attr` begins as the extended one does, which has a PD besides. */
EXPORT int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  struct ibv_qp_init_attr_ex extended = {.pd = pd ? pd : id->pd};
  memcpy(&extended, attr, sizeof *attr);
  extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  const int result = rdma_create_qp_ex(id, &extended);
  memcpy(attr, &extended, sizeof *attr);
  return result;
}

EXPORT void rdma_destroy_qp(struct rdma_cm_id *id) {
  ibv_destroy_qp(id->qp);
  id->qp = NULL;
  destroy_cqs(id);
}

/* ---- Shared receive queues ---- */

EXPORT int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd,
                           struct ibv_srq_init_attr *attr) {
  if (id->srq || !id->verbs) return cm_result(EINVAL);
  if (!pd) pd = id->pd;
  if (pd->context != id->verbs) return cm_result(EINVAL);
  struct ibv_srq *srq = ibv_create_srq(pd, attr);
  if (!srq) return -1;
  id->srq = srq;
  id->pd = pd;
  return 0;
}

EXPORT int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr) {
  const bool basic =
      !(attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) || attr->srq_type == IBV_SRQT_BASIC;
  if (!basic) return cm_result(EOPNOTSUPP);
  struct ibv_srq_init_attr plain = {.srq_context = attr->srq_context, .attr = attr->attr};
  struct ibv_pd *pd = attr->comp_mask & IBV_SRQ_INIT_ATTR_PD ? attr->pd : NULL;
  const int result = rdma_create_srq(id, pd, &plain);
  attr->attr = plain.attr;
  return result;
}

EXPORT void rdma_destroy_srq(struct rdma_cm_id *id) {
  ibv_destroy_srq(id->srq);
  id->srq = NULL;
}
