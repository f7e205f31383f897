/* SPDX-License-Identifier: Apache-2.0 */
/* Ids: made, bound, moved to other channels, destroyed. */
#include <stdlib.h>
#include <string.h>

#include "cm/address.h"
#include "cm/channel.h"
#include "cm/device.h"
#include "cm/events.h"
#include "cm/process.h"
#include "cm/session.h"
#include "program/export.h"
#include "program/say.h"

enum { HIGHEST_ACK_TIMEOUT = 31 };

/* ---- Made and destroyed ---- */

static int check_port_space(enum rdma_port_space ps) {
  if (ps == RDMA_PS_TCP) return 0;
  PR_SAY_ONCE("rdma_cm serves RDMA_PS_TCP only, no port space 0x%x: MRC has no datagrams", ps);
  return EOPNOTSUPP;
}

EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                          enum rdma_port_space ps) {
  int error = check_port_space(ps);
  if (error == 0) error = cm_device_open();
  if (error != 0) return cm_result(error);
  struct cm_channel *own = channel ? NULL : cm_channel_create();
  struct cm_id *made = channel || own ? cm_session_new_id() : NULL;
  if (!made) {
    if (own) cm_channel_destroy(own);
    return cm_result(ENOMEM);
  }
  made->sync = own;
  made->id.channel = own ? &own->channel : channel;
  made->id.context = context;
  made->id.ps = ps;
  made->id.qp_type = IBV_QPT_RC;
  *id = &made->id;
  return 0;
}

EXPORT int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel) {
  struct cm_id *own = cm_id_of(id);
  struct rdma_event_channel *former = id->channel;
  const bool was_sync = own->sync;
  if (!channel) return was_sync ? cm_result(EINVAL) : cm_result(cm_events_own_channel(own));
  if (id->event) rdma_ack_cm_event(id->event);
  id->event = NULL;
  cm_lock();
  cm_channel_move(own, (struct cm_channel *)channel);
  own->sync = false;
  while (own->acknowledged != own->taken)
    pthread_cond_wait(&cm_process.changed, &cm_process.lock);
  cm_unlock();
  if (was_sync) rdma_destroy_event_channel(former);
  return 0;
}

/* ---- Addresses ---- */

/* Gives the id a port, or any free one; NULL: at all addresses. A positive errno. */
static int take_port(struct cm_id *id, const struct sockaddr *address) {
  struct mrc_agent_cm said = {.id = id->number, .option = id->reuse};
  if (address) {
    cm_address_gid(address, said.own.gid);
    said.own.port = cm_address_port(address);
  }
  uint8_t gid[16];
  memcpy(gid, said.own.gid, sizeof gid);
  const int error = cm_session_call(MRC_AGENT_CM_BIND, &said);
  if (error != 0) return error;
  cm_lock();
  id->state = CM_BOUND;
  memcpy(id->own.gid, gid, sizeof gid);
  id->own.port = said.own.port;
  cm_unlock();
  return 0;
}

static void set_source(struct cm_id *id, const struct sockaddr *address) {
  struct sockaddr_storage *own = &id->id.route.addr.src_storage;
  *own = (struct sockaddr_storage){0};
  memcpy(own, address, cm_address_bytes(address));
  cm_address_set_port((struct sockaddr *)own, id->own.port);
}

EXPORT int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address) {
  struct cm_id *own = cm_id_of(id);
  if (cm_address_bytes(address) == 0) return cm_result(EAFNOSUPPORT);
  if (own->state != CM_IDLE) return cm_result(EINVAL);
  const bool any = cm_address_is_any(address);
  int error = any ? 0 : cm_address_check_own(address);
  if (error == 0) error = take_port(own, address);
  if (error != 0) return cm_result(error);
  set_source(own, address);
  if (any) return 0; /* of all devices, so of none */
  error = cm_device_take(own, address->sa_family);
  if (error == 0) error = cm_device_gid(own, id->route.addr.addr.ibaddr.sgid.raw);
  return cm_result(error);
}

/* A device without loopback reaches its own host by its own address. */
static int replace_loopback(struct cm_id *id, struct sockaddr_storage *to) {
  uint8_t gid[16];
  const uint16_t port = cm_address_port((struct sockaddr *)to);
  const bool any = cm_address_is_any((struct sockaddr *)to);
  if (!any && !cm_address_is_loopback((struct sockaddr *)to)) return 0;
  const int error = cm_device_gid(id, gid);
  if (error == 0) cm_address_of_gid(gid, port, to);
  return error;
}

/* Where the id is, and where its peer. */
static int find_route(struct cm_id *id, const struct sockaddr *from, const struct sockaddr *to) {
  struct rdma_addr *address = &id->id.route.addr;
  struct sockaddr_storage source;
  address->dst_storage = (struct sockaddr_storage){0};
  memcpy(&address->dst_storage, to, cm_address_bytes(to));
  int error = cm_device_take(id, to->sa_family);
  if (error == 0) error = replace_loopback(id, &address->dst_storage);
  if (error == 0) error = cm_address_source(&address->dst_addr, &source);
  if (error == 0) error = cm_device_gid(id, address->addr.ibaddr.sgid.raw);
  if (error != 0) return error;
  set_source(id, from && !cm_address_is_any(from) ? from : (struct sockaddr *)&source);
  cm_address_gid(&address->dst_addr, address->addr.ibaddr.dgid.raw);
  return 0;
}

EXPORT int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to,
                             int timeout_ms) {
  (void)timeout_ms; /* no peer is asked */
  struct cm_id *own = cm_id_of(id);
  if (cm_address_bytes(to) == 0) return cm_result(EAFNOSUPPORT);
  if (from && cm_address_bytes(from) == 0) return cm_result(EAFNOSUPPORT);
  if (own->state > CM_BOUND) return cm_result(EINVAL);
  int error = from && !cm_address_is_any(from) ? cm_address_check_own(from) : 0;
  if (error == 0 && own->state == CM_IDLE) error = take_port(own, from);
  if (error == 0) error = find_route(own, from, to);
  if (error == 0 && !cm_channel_raise(own, RDMA_CM_EVENT_ADDR_RESOLVED, 0)) error = ENOMEM;
  return error == 0 ? cm_events_await(own) : cm_result(error);
}

EXPORT int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms) {
  (void)timeout_ms;
  struct cm_id *own = cm_id_of(id);
  struct ibv_port_attr port;
  if (!id->verbs || cm_address_bytes(&id->route.addr.dst_addr) == 0) return cm_result(EINVAL);
  const int error = ibv_query_port(id->verbs, id->port_num, &port);
  if (error != 0) return cm_result(error);
  own->path = (struct ibv_sa_path_rec){.sgid = id->route.addr.addr.ibaddr.sgid,
                                       .dgid = id->route.addr.addr.ibaddr.dgid,
                                       .pkey = htobe16(0xffff),
                                       .hop_limit = 64,
                                       .reversible = 1,
                                       .numb_path = 1,
                                       .mtu = (uint8_t)port.active_mtu};
  id->route.path_rec = &own->path;
  id->route.num_paths = 1;
  own->resolved = true;
  if (!cm_channel_raise(own, RDMA_CM_EVENT_ROUTE_RESOLVED, 0)) return cm_result(ENOMEM);
  return cm_events_await(own);
}

/* ---- Listening ---- */

EXPORT int rdma_listen(struct rdma_cm_id *id, int backlog) {
  struct cm_id *own = cm_id_of(id);
  int error = own->state == CM_IDLE ? take_port(own, NULL) : 0;
  struct mrc_agent_cm said = {.id = own->number, .option = backlog > 0 ? (uint32_t)backlog : 0};
  if (error == 0) error = cm_session_call(MRC_AGENT_CM_LISTEN, &said);
  if (error != 0) return cm_result(error);
  cm_lock();
  own->state = CM_LISTENING;
  own->backlog = backlog;
  cm_unlock();
  return 0;
}

/* ---- Options ---- */

static int set_id_option(struct cm_id *id, int name, const void *value, size_t bytes) {
  switch (name) {
    case RDMA_OPTION_ID_TOS: /* the agent's configuration sets it for all packets of a host */
      return bytes == sizeof(uint8_t) ? 0 : EINVAL;
    case RDMA_OPTION_ID_AFONLY:
      return bytes == sizeof(int) ? 0 : EINVAL;
    case RDMA_OPTION_ID_REUSEADDR:
      if (bytes != sizeof(int) || id->state != CM_IDLE) return EINVAL;
      id->reuse = *(const int *)value != 0;
      return 0;
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      if (bytes != sizeof(uint8_t) || *(const uint8_t *)value > HIGHEST_ACK_TIMEOUT) return EINVAL;
      id->ack_timeout = *(const uint8_t *)value;
      return 0;
    default:
      return ENOSYS;
  }
}

EXPORT int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t bytes) {
  return cm_result(level == RDMA_OPTION_ID ? set_id_option(cm_id_of(id), name, value, bytes)
                                           : ENOSYS);
}
