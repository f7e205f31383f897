/* SPDX-License-Identifier: Apache-2.0 */
#include "cm/cm.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Addresses of sockets ---- */

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

/* Bytes of an address; 0: neither IPv4 nor IPv6. */
static socklen_t address_bytes(const struct sockaddr *address) {
  if (!address) return 0;
  if (address->sa_family == AF_INET) return sizeof(struct sockaddr_in);
  return address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : 0;
}

/* Both families have the port at the same place. */
static uint16_t address_port(const struct sockaddr *address) {
  return address_bytes(address) ? ntohs(((const struct sockaddr_in *)address)->sin_port) : 0;
}

static void address_set_port(struct sockaddr *address, uint16_t port) {
  ((struct sockaddr_in *)address)->sin_port = htons(port);
}

static const struct in_addr *v4(const struct sockaddr *address) {
  return &((const struct sockaddr_in *)address)->sin_addr;
}

static const struct in6_addr *v6(const struct sockaddr *address) {
  return &((const struct sockaddr_in6 *)address)->sin6_addr;
}

static bool address_is_any(const struct sockaddr *address) {
  return address->sa_family == AF_INET ? v4(address)->s_addr == htonl(INADDR_ANY)
                                       : IN6_IS_ADDR_UNSPECIFIED(v6(address));
}

/* Its GID; all zero for any address. */
static void address_gid(const struct sockaddr *address, uint8_t gid[16]) {
  memset(gid, 0, 16);
  if (address_is_any(address)) return;
  if (address->sa_family == AF_INET6) {
    memcpy(gid, v6(address), 16);
    return;
  }
  memcpy(gid, mapped, sizeof mapped);
  memcpy(gid + sizeof mapped, v4(address), 4);
}

void cm_address_of_gid(const uint8_t gid[16], uint16_t port, struct sockaddr_storage *address) {
  *address = (struct sockaddr_storage){0};
  if (memcmp(gid, mapped, sizeof mapped) == 0) {
    struct sockaddr_in *made = (struct sockaddr_in *)address;
    made->sin_family = AF_INET;
    memcpy(&made->sin_addr, gid + sizeof mapped, 4);
  } else {
    struct sockaddr_in6 *made = (struct sockaddr_in6 *)address;
    made->sin6_family = AF_INET6;
    memcpy(&made->sin6_addr, gid, 16);
  }
  address_set_port((struct sockaddr *)address, port);
}

/* Ports of UDP do not matter here: no packet is sent. */
static int udp_socket(const struct sockaddr *address, struct sockaddr_storage *copy) {
  *copy = (struct sockaddr_storage){0};
  memcpy(copy, address, address_bytes(address));
  return socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

/* The address of this host from which the kernel reaches another; a positive errno. */
static int address_source(const struct sockaddr *to, struct sockaddr_storage *from) {
  struct sockaddr_storage there;
  const int fd = udp_socket(to, &there);
  if (fd < 0) return errno;
  socklen_t bytes = sizeof *from;
  address_set_port((struct sockaddr *)&there, 9); /* any but 0 */
  int error = connect(fd, (struct sockaddr *)&there, address_bytes(to)) == 0 ? 0 : errno;
  *from = (struct sockaddr_storage){0};
  if (error == 0 && getsockname(fd, (struct sockaddr *)from, &bytes) != 0) error = errno;
  close(fd);
  address_set_port((struct sockaddr *)from, 0);
  return error;
}

/* Whether this host has the address; a positive errno. */
static int address_check_own(const struct sockaddr *address) {
  struct sockaddr_storage here;
  const int fd = udp_socket(address, &here);
  if (fd < 0) return errno;
  address_set_port((struct sockaddr *)&here, 0);
  const int error = bind(fd, (struct sockaddr *)&here, address_bytes(address)) == 0 ? 0 : errno;
  close(fd);
  return error;
}

/* Names and addresses, and the functions that are refused. */

EXPORT const char *rdma_event_str(enum rdma_cm_event_type event) {
  static const char *const names[] = {
      "RDMA_CM_EVENT_ADDR_RESOLVED",   "RDMA_CM_EVENT_ADDR_ERROR",
      "RDMA_CM_EVENT_ROUTE_RESOLVED",  "RDMA_CM_EVENT_ROUTE_ERROR",
      "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
      "RDMA_CM_EVENT_CONNECT_ERROR",   "RDMA_CM_EVENT_UNREACHABLE",
      "RDMA_CM_EVENT_REJECTED",        "RDMA_CM_EVENT_ESTABLISHED",
      "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
      "RDMA_CM_EVENT_MULTICAST_JOIN",  "RDMA_CM_EVENT_MULTICAST_ERROR",
      "RDMA_CM_EVENT_ADDR_CHANGE",     "RDMA_CM_EVENT_TIMEWAIT_EXIT"};
  const size_t number = event;
  return number < sizeof names / sizeof names[0] ? names[number] : "UNKNOWN EVENT";
}

EXPORT __be16 rdma_get_src_port(struct rdma_cm_id *id) {
  return htobe16(address_port(&id->route.addr.src_addr));
}

EXPORT __be16 rdma_get_dst_port(struct rdma_cm_id *id) {
  return htobe16(address_port(&id->route.addr.dst_addr));
}

/* ---- rdma_getaddrinfo ---- */

static struct sockaddr *copied(const struct sockaddr *address, socklen_t bytes) {
  struct sockaddr *made = malloc(bytes);
  if (made) memcpy(made, address, bytes);
  return made;
}

/* False: no memory. */
static bool fill(struct rdma_addrinfo *made, const struct addrinfo *found,
                 const struct rdma_addrinfo *hints) {
  made->ai_family = found->ai_family;
  if (made->ai_flags & RAI_PASSIVE) {
    made->ai_src_addr = copied(found->ai_addr, found->ai_addrlen);
    made->ai_src_len = found->ai_addrlen;
    return made->ai_src_addr;
  }
  made->ai_dst_addr = copied(found->ai_addr, found->ai_addrlen);
  made->ai_dst_len = found->ai_addrlen;
  if (hints && hints->ai_src_len > 0) {
    made->ai_src_addr = copied(hints->ai_src_addr, hints->ai_src_len);
    made->ai_src_len = hints->ai_src_len;
    if (!made->ai_src_addr) return false;
  }
  return made->ai_dst_addr;
}

EXPORT int rdma_getaddrinfo(const char *node, const char *service,
                            const struct rdma_addrinfo *hints, struct rdma_addrinfo **info) {
  struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
  struct addrinfo *found = NULL;
  if (!node && !service && !hints) return cm_result(EINVAL);
  const int flags = hints ? hints->ai_flags : 0;
  if (flags & RAI_FAMILY) wanted.ai_family = hints->ai_family;
  if (flags & RAI_PASSIVE) wanted.ai_flags |= AI_PASSIVE;
  if (flags & RAI_NUMERICHOST) wanted.ai_flags |= AI_NUMERICHOST;
  const int error = getaddrinfo(node, node || service ? service : "0", &wanted, &found);
  if (error != 0) return error;
  struct rdma_addrinfo *made = calloc(1, sizeof *made);
  if (made) {
    made->ai_flags = flags;
    made->ai_qp_type = hints && hints->ai_qp_type ? hints->ai_qp_type : IBV_QPT_RC;
    made->ai_port_space = hints && hints->ai_port_space ? hints->ai_port_space : RDMA_PS_TCP;
  }
  const bool filled = made && fill(made, found, hints);
  freeaddrinfo(found);
  if (filled) {
    *info = made;
    return 0;
  }
  rdma_freeaddrinfo(made);
  return cm_result(ENOMEM);
}

EXPORT void rdma_freeaddrinfo(struct rdma_addrinfo *info) {
  while (info) {
    struct rdma_addrinfo *next = info->ai_next;
    free(info->ai_src_addr);
    free(info->ai_dst_addr);
    free(info->ai_connect);
    free(info);
    info = next;
  }
}

/* ---- Refused ---- */

static int refuse_multicast(void) {
  PR_SAY_ONCE("multicast of rdma_cm is refused: MRC has none");
  return cm_result(EOPNOTSUPP);
}

EXPORT int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *address, void *context) {
  (void)id, (void)address, (void)context;
  return refuse_multicast();
}

EXPORT int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr,
                                  void *context) {
  (void)id, (void)attr, (void)context;
  return refuse_multicast();
}

EXPORT int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *address) {
  (void)id, (void)address;
  return refuse_multicast();
}

/* Options of vendors: there are none. */
EXPORT int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece) {
  (void)id;
  return cm_result(ece && ece->vendor_id == 0 ? 0 : EOPNOTSUPP);
}

EXPORT int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece) {
  (void)id;
  if (!ece) return cm_result(EINVAL);
  *ece = (struct ibv_ece){0};
  return 0;
}

/* Ids: made, bound, moved to other channels, destroyed. */

enum { HIGHEST_ACK_TIMEOUT = 31 };

/* ---- Made and destroyed ---- */

EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                          enum rdma_port_space ps) {
  if (ps != RDMA_PS_TCP) {
    PR_SAY_ONCE("rdma_cm serves RDMA_PS_TCP only, no port space 0x%x: MRC has no datagrams", ps);
    return cm_result(EOPNOTSUPP);
  }
  const int error = cm_device_open();
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
  struct mrc_agent_cm message = {.id = id->number, .option = id->reuse};
  if (address) {
    address_gid(address, message.own.gid);
    message.own.port = address_port(address);
  }
  uint8_t gid[16];
  memcpy(gid, message.own.gid, sizeof gid);
  const int error = cm_session_call(MRC_AGENT_CM_BIND, &message);
  if (error != 0) return error;
  cm_lock();
  id->state = CM_BOUND;
  memcpy(id->own.gid, gid, sizeof gid);
  id->own.port = message.own.port;
  cm_unlock();
  return 0;
}

static void set_source(struct cm_id *id, const struct sockaddr *address) {
  struct sockaddr_storage *own = &id->id.route.addr.src_storage;
  *own = (struct sockaddr_storage){0};
  memcpy(own, address, address_bytes(address));
  address_set_port((struct sockaddr *)own, id->own.port);
}

EXPORT int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address) {
  struct cm_id *own = cm_id_of(id);
  if (address_bytes(address) == 0) return cm_result(EAFNOSUPPORT);
  if (own->state != CM_IDLE) return cm_result(EINVAL);
  const bool any = address_is_any(address);
  int error = any ? 0 : address_check_own(address);
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
  const struct sockaddr *address = (struct sockaddr *)to;
  const uint16_t port = address_port(address);
  const bool loopback = address->sa_family == AF_INET
                            ? ntohl(v4(address)->s_addr) >> 24 == IN_LOOPBACKNET
                            : IN6_IS_ADDR_LOOPBACK(v6(address));
  if (!loopback && !address_is_any(address)) return 0;
  const int error = cm_device_gid(id, gid);
  if (error == 0) cm_address_of_gid(gid, port, to);
  return error;
}

/* Where the id is, and where its peer. */
static int find_route(struct cm_id *id, const struct sockaddr *from, const struct sockaddr *to) {
  struct rdma_addr *address = &id->id.route.addr;
  struct sockaddr_storage source;
  address->dst_storage = (struct sockaddr_storage){0};
  memcpy(&address->dst_storage, to, address_bytes(to));
  int error = cm_device_take(id, to->sa_family);
  if (error == 0) error = replace_loopback(id, &address->dst_storage);
  if (error == 0) error = address_source(&address->dst_addr, &source);
  if (error == 0) error = cm_device_gid(id, address->addr.ibaddr.sgid.raw);
  if (error != 0) return error;
  set_source(id, from && !address_is_any(from) ? from : (struct sockaddr *)&source);
  address_gid(&address->dst_addr, address->addr.ibaddr.dgid.raw);
  return 0;
}

EXPORT int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to,
                             int timeout_ms) {
  (void)timeout_ms; /* no peer is asked */
  struct cm_id *own = cm_id_of(id);
  if (address_bytes(to) == 0) return cm_result(EAFNOSUPPORT);
  if (from && address_bytes(from) == 0) return cm_result(EAFNOSUPPORT);
  if (own->state > CM_BOUND) return cm_result(EINVAL);
  int error = from && !address_is_any(from) ? address_check_own(from) : 0;
  if (error == 0 && own->state == CM_IDLE) error = take_port(own, from);
  if (error == 0) error = find_route(own, from, to);
  if (error == 0 && !cm_channel_raise(own, RDMA_CM_EVENT_ADDR_RESOLVED, 0)) error = ENOMEM;
  return error == 0 ? cm_events_await(own) : cm_result(error);
}

EXPORT int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms) {
  (void)timeout_ms;
  struct cm_id *own = cm_id_of(id);
  struct ibv_port_attr port;
  if (!id->verbs || address_bytes(&id->route.addr.dst_addr) == 0) return cm_result(EINVAL);
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
  struct mrc_agent_cm message = {.id = own->number, .option = backlog > 0 ? (uint32_t)backlog : 0};
  if (error == 0) error = cm_session_call(MRC_AGENT_CM_LISTEN, &message);
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

/* Connections of ids: asked for, accepted, rejected, ended. */

/* What RoCE carries of a program's private data. */
enum { REQUEST_BYTES = 56, ACCEPT_BYTES = 196, REJECT_BYTES = 148, RETRIES = 7 };

static int copy_private(struct mrc_agent_cm *message, const void *data, uint8_t bytes,
                        uint8_t most) {
  if (bytes > most || (bytes > 0 && !data)) return EINVAL;
  message->private_bytes = bytes;
  if (bytes > 0) memcpy(message->private_data, data, bytes);
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

static void copy_params(struct mrc_agent_cm *message, const struct cm_id *id,
                        const struct rdma_conn_param *param) {
  const struct rdma_cm_id *own = &id->id;
  message->responder_resources = id->responder_resources;
  message->initiator_depth = id->initiator_depth;
  message->retry_count = id->retry_count;
  message->rnr_retry_count = param ? param->rnr_retry_count : RETRIES;
  message->flow_control = param ? param->flow_control : 1;
  message->srq = own->qp ? own->qp->srq != NULL : param && param->srq;
  message->own.qpn = own->qp ? own->qp->qp_num : param ? param->qp_num : 0;
}

/* ---- The side that connects ---- */

static int fill_request(struct cm_id *id, const struct rdma_conn_param *param,
                        struct mrc_agent_cm *message) {
  const struct sockaddr *to = &id->id.route.addr.dst_addr;
  const uint8_t all = RDMA_MAX_RESP_RES;
  int error = set_resources(id, param ? param->responder_resources : all,
                            param ? param->initiator_depth : all);
  if (error == 0) error = cm_device_gid(id, message->own.gid);
  if (error != 0) return error;
  id->retry_count = param ? param->retry_count : RETRIES;
  message->own.port = id->own.port;
  address_gid(to, message->peer.gid);
  message->peer.port = address_port(to);
  copy_params(message, id, param);
  if (param && param->private_data_len > 0)
    return copy_private(message, param->private_data, param->private_data_len, REQUEST_BYTES);
  return copy_private(message, id->connect_data, id->connect_bytes, REQUEST_BYTES);
}

EXPORT int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param) {
  struct cm_id *own = cm_id_of(id);
  struct mrc_agent_cm message = {.id = own->number};
  if (own->state != CM_BOUND || !own->resolved) return cm_result(EINVAL);
  int error = fill_request(own, param, &message);
  if (error != 0) return cm_result(error);
  cm_set_state(own, CM_CONNECTING);
  memcpy(own->own.gid, message.own.gid, sizeof message.own.gid);
  own->own.qpn = message.own.qpn;
  error = cm_session_call(MRC_AGENT_CM_CONNECT, &message);
  if (error != 0) {
    cm_set_state(own, CM_BOUND);
    return cm_result(error);
  }
  return cm_events_await(own);
}

/* A program has connected the QP itself, which the id does not know. */
EXPORT int rdma_establish(struct rdma_cm_id *id) {
  struct cm_id *own = cm_id_of(id);
  struct mrc_agent_cm message = {.id = own->number};
  if (id->qp) return cm_result(EINVAL);
  const int error = cm_session_call(MRC_AGENT_CM_ESTABLISH, &message);
  if (error == 0) cm_set_state(own, CM_CONNECTED);
  return cm_result(error);
}

/* ---- The side that listens ---- */

EXPORT int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param) {
  struct cm_id *own = cm_id_of(id);
  struct mrc_agent_cm message = {.id = own->number};
  if (own->state != CM_CONNECTING) return cm_result(EINVAL);
  int error = 0;
  if (param) error = set_resources(own, param->responder_resources, param->initiator_depth);
  if (error == 0 && param)
    error = copy_private(&message, param->private_data, param->private_data_len, ACCEPT_BYTES);
  if (error == 0) error = cm_qp_connect(own);
  if (error != 0) return cm_result(error);
  copy_params(&message, own, param);
  own->own.qpn = message.own.qpn;
  error = cm_session_call(MRC_AGENT_CM_ACCEPT, &message);
  if (error != 0) {
    cm_qp_fail(own);
    return cm_result(error);
  }
  return cm_events_await(own);
}

static int reject(struct cm_id *id, int32_t reason, const void *data, uint8_t bytes) {
  struct mrc_agent_cm message = {.id = id->number, .status = reason};
  int error = copy_private(&message, data, bytes, REJECT_BYTES);
  if (error == 0) error = cm_session_call(MRC_AGENT_CM_REJECT, &message);
  if (error == 0) cm_set_state(id, CM_ENDED);
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
  struct mrc_agent_cm message = {.id = own->number};
  cm_qp_fail(own);
  const int error = cm_session_call(MRC_AGENT_CM_DISCONNECT, &message);
  return error == 0 ? cm_events_await(own) : cm_result(error);
}

/* The agents know without this when a QP is connected. */
EXPORT int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event) {
  (void)id;
  return cm_result(event == IBV_EVENT_COMM_EST ? 0 : EINVAL);
}

/* Endpoints: an id, its QP and its connection in few calls, which wait. */

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
  struct ibv_qp_init_attr attr = own->attr;
  if (own->has_attr && rdma_create_qp(event->id, listen->pd, &attr) != 0) {
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
