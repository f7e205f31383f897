/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of ids: asked for, accepted, rejected, ended. */
#include <string.h>

#include "cm/address.h"
#include "cm/device.h"
#include "cm/events.h"
#include "cm/process.h"
#include "cm/qp.h"
#include "cm/session.h"
#include "program/export.h"

/* What RoCE carries of a program's private data. */
enum { REQUEST_BYTES = 56, ACCEPT_BYTES = 196, REJECT_BYTES = 148, RETRIES = 7 };

static int copy_private(struct mrc_agent_cm *said, const void *data, uint8_t bytes, uint8_t most) {
  if (bytes > most || (bytes > 0 && !data)) return EINVAL;
  said->private_bytes = bytes;
  if (bytes > 0) memcpy(said->private_data, data, bytes);
  return 0;
}

/* How many READs and ATOMICs the QP answers, and may send; 0xff: as many as there can be. */
static int set_resources(struct cm_id *id, uint8_t responder, uint8_t initiator) {
  const uint8_t most = cm_process.most_resources;
  if (responder != RDMA_MAX_RESP_RES && responder > most) return EINVAL;
  if (initiator != RDMA_MAX_INIT_DEPTH && initiator > most) return EINVAL;
  id->responder_resources = responder < most ? responder : most;
  id->initiator_depth = initiator < most ? initiator : most;
  return 0;
}

static void copy_params(struct mrc_agent_cm *said, const struct cm_id *id,
                        const struct rdma_conn_param *param) {
  const struct rdma_cm_id *own = &id->id;
  said->responder_resources = id->responder_resources;
  said->initiator_depth = id->initiator_depth;
  said->retry_count = id->retry_count;
  said->rnr_retry_count = param ? param->rnr_retry_count : RETRIES;
  said->flow_control = param ? param->flow_control : 1;
  said->srq = own->qp ? own->qp->srq != NULL : param && param->srq;
  said->own.qpn = own->qp ? own->qp->qp_num : param ? param->qp_num : 0;
}

static void set_state(struct cm_id *id, enum cm_state state) {
  cm_lock();
  id->state = state;
  cm_unlock();
}

/* ---- The side that connects ---- */

static int fill_request(struct cm_id *id, const struct rdma_conn_param *param,
                        struct mrc_agent_cm *said) {
  const struct sockaddr *to = &id->id.route.addr.dst_addr;
  const uint8_t all = RDMA_MAX_RESP_RES;
  int error = set_resources(id, param ? param->responder_resources : all,
                            param ? param->initiator_depth : all);
  if (error == 0) error = cm_device_gid(id, said->own.gid);
  if (error != 0) return error;
  id->retry_count = param ? param->retry_count : RETRIES;
  said->own.port = id->own.port;
  cm_address_gid(to, said->peer.gid);
  said->peer.port = cm_address_port(to);
  copy_params(said, id, param);
  if (param && param->private_data_len > 0)
    return copy_private(said, param->private_data, param->private_data_len, REQUEST_BYTES);
  return copy_private(said, id->connect_data, id->connect_bytes, REQUEST_BYTES);
}

EXPORT int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param) {
  struct cm_id *own = cm_id_of(id);
  struct mrc_agent_cm said = {.id = own->number};
  if (own->state != CM_BOUND || !own->resolved) return cm_result(EINVAL);
  int error = fill_request(own, param, &said);
  if (error != 0) return cm_result(error);
  set_state(own, CM_CONNECTING);
  memcpy(own->own.gid, said.own.gid, sizeof said.own.gid);
  own->own.qpn = said.own.qpn;
  error = cm_session_call(MRC_AGENT_CM_CONNECT, &said);
  if (error != 0) {
    set_state(own, CM_BOUND);
    return cm_result(error);
  }
  return cm_events_await(own);
}

/* A program has connected the QP itself, which the id does not know. */
EXPORT int rdma_establish(struct rdma_cm_id *id) {
  struct cm_id *own = cm_id_of(id);
  struct mrc_agent_cm said = {.id = own->number};
  if (id->qp) return cm_result(EINVAL);
  const int error = cm_session_call(MRC_AGENT_CM_ESTABLISH, &said);
  if (error == 0) set_state(own, CM_CONNECTED);
  return cm_result(error);
}

/* ---- The side that listens ---- */

EXPORT int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param) {
  struct cm_id *own = cm_id_of(id);
  struct mrc_agent_cm said = {.id = own->number};
  if (own->state != CM_CONNECTING) return cm_result(EINVAL);
  int error = 0;
  if (param) error = set_resources(own, param->responder_resources, param->initiator_depth);
  if (error == 0 && param)
    error = copy_private(&said, param->private_data, param->private_data_len, ACCEPT_BYTES);
  if (error == 0) error = cm_qp_connect(own);
  if (error != 0) return cm_result(error);
  copy_params(&said, own, param);
  own->own.qpn = said.own.qpn;
  error = cm_session_call(MRC_AGENT_CM_ACCEPT, &said);
  if (error != 0) {
    cm_qp_fail(own);
    return cm_result(error);
  }
  return cm_events_await(own);
}

static int reject(struct cm_id *id, int32_t reason, const void *data, uint8_t bytes) {
  struct mrc_agent_cm said = {.id = id->number, .status = reason};
  int error = copy_private(&said, data, bytes, REJECT_BYTES);
  if (error == 0) error = cm_session_call(MRC_AGENT_CM_REJECT, &said);
  if (error == 0) set_state(id, CM_ENDED);
  return cm_result(error);
}

/* Reasons of the InfiniBand specification: consumer; vendor option not supported. */
EXPORT int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t bytes) {
  return reject(cm_id_of(id), 28, data, bytes);
}

EXPORT int rdma_reject_ece(struct rdma_cm_id *id, const void *data, uint8_t bytes) {
  return reject(cm_id_of(id), 35, data, bytes);
}

/* ---- Both ---- */

EXPORT int rdma_disconnect(struct rdma_cm_id *id) {
  struct cm_id *own = cm_id_of(id);
  struct mrc_agent_cm said = {.id = own->number};
  cm_qp_fail(own);
  const int error = cm_session_call(MRC_AGENT_CM_DISCONNECT, &said);
  return error == 0 ? cm_events_await(own) : cm_result(error);
}

/* The agents know without this when a QP is connected. */
EXPORT int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event) {
  (void)id;
  return cm_result(event == IBV_EVENT_COMM_EST ? 0 : EINVAL);
}
