/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints: an id, its QP and its connection in few calls, which wait. */
#include <stdlib.h>
#include <string.h>

#include "cm/process.h"
#include "program/export.h"

enum { RESOLVE_MS = 2000 };

static int make_passive(struct cm_id *id, struct rdma_addrinfo *info, struct ibv_pd *pd,
                        const struct ibv_qp_init_attr *attr) {
  if (rdma_bind_addr(&id->id, info->ai_src_addr) != 0) return -1;
  if (!attr) return 0;
  id->has_attr = true;
  id->attr = *attr;
  id->attr.qp_type = info->ai_qp_type;
  if (pd) id->id.pd = pd;
  return 0;
}

static int make_active(struct cm_id *id, struct rdma_addrinfo *info, struct ibv_pd *pd,
                       struct ibv_qp_init_attr *attr) {
  if (rdma_resolve_addr(&id->id, info->ai_src_addr, info->ai_dst_addr, RESOLVE_MS) != 0) return -1;
  if (rdma_resolve_route(&id->id, RESOLVE_MS) != 0) return -1;
  if (attr) {
    attr->qp_type = info->ai_qp_type;
    if (rdma_create_qp(&id->id, pd, attr) != 0) return -1;
  }
  if (info->ai_connect_len > sizeof id->connect_data) return cm_result(EINVAL);
  id->connect_bytes = (uint8_t)info->ai_connect_len;
  if (info->ai_connect_len > 0) memcpy(id->connect_data, info->ai_connect, info->ai_connect_len);
  return 0;
}

EXPORT int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *info, struct ibv_pd *pd,
                          struct ibv_qp_init_attr *attr) {
  struct rdma_cm_id *made;
  if (info->ai_qp_type != IBV_QPT_RC) return cm_result(EOPNOTSUPP);
  if (rdma_create_id(NULL, &made, NULL, info->ai_port_space) != 0) return -1;
  const int result = info->ai_flags & RAI_PASSIVE ? make_passive(cm_id_of(made), info, pd, attr)
                                                  : make_active(cm_id_of(made), info, pd, attr);
  if (result == 0) {
    *id = made;
    return 0;
  }
  const int error = errno;
  rdma_destroy_ep(made);
  return cm_result(error);
}

EXPORT void rdma_destroy_ep(struct rdma_cm_id *id) {
  if (id->qp) rdma_destroy_qp(id);
  if (id->srq) rdma_destroy_srq(id);
  rdma_destroy_id(id);
}

/* With what rdma_create_ep was told for the ids of peers. */
static int create_qp(struct cm_id *listener, struct rdma_cm_id *id) {
  struct ibv_qp_init_attr attr = listener->attr;
  return listener->has_attr ? rdma_create_qp(id, listener->id.pd, &attr) : 0;
}

EXPORT int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id) {
  struct cm_id *own = cm_id_of(listen);
  struct rdma_cm_event *event;
  if (!own->sync) return cm_result(EINVAL);
  if (listen->event) rdma_ack_cm_event(listen->event);
  listen->event = NULL;
  if (rdma_get_cm_event(listen->channel, &event) != 0) return -1;
  int error = event->status < 0 ? -event->status : event->status;
  if (error == 0 && event->event != RDMA_CM_EVENT_CONNECT_REQUEST) error = EINVAL;
  if (error != 0) {
    listen->event = event;
    return cm_result(error);
  }
  if (create_qp(own, event->id) != 0) {
    error = errno;
    struct rdma_cm_id *child = event->id;
    rdma_ack_cm_event(event);
    rdma_destroy_id(child);
    return cm_result(error);
  }
  *id = event->id;
  (*id)->event = event;
  return 0;
}
