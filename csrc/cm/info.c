/* SPDX-License-Identifier: Apache-2.0 */
/* Names and addresses, and the functions that are refused. */
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include "cm/address.h"
#include "cm/process.h"
#include "program/export.h"
#include "program/say.h"

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
  return htobe16(cm_address_port(&id->route.addr.src_addr));
}

EXPORT __be16 rdma_get_dst_port(struct rdma_cm_id *id) {
  return htobe16(cm_address_port(&id->route.addr.dst_addr));
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
