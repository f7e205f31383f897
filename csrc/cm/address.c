/* SPDX-License-Identifier: Apache-2.0 */
#include "cm/cm.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/link.h"

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

socklen_t cm_address_bytes(const struct sockaddr *address) {
  if (!address) return 0;
  if (address->sa_family == AF_INET) return sizeof(struct sockaddr_in);
  return address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : 0;
}

/* Both families have the port at the same place. */
uint16_t cm_address_port(const struct sockaddr *address) {
  return cm_address_bytes(address) ? ntohs(((const struct sockaddr_in *)address)->sin_port) : 0;
}

void cm_address_set_port(struct sockaddr *address, uint16_t port) {
  ((struct sockaddr_in *)address)->sin_port = htons(port);
}

static const struct in_addr *v4(const struct sockaddr *address) {
  return &((const struct sockaddr_in *)address)->sin_addr;
}

static const struct in6_addr *v6(const struct sockaddr *address) {
  return &((const struct sockaddr_in6 *)address)->sin6_addr;
}

bool cm_address_is_any(const struct sockaddr *address) {
  return address->sa_family == AF_INET ? v4(address)->s_addr == htonl(INADDR_ANY)
                                       : IN6_IS_ADDR_UNSPECIFIED(v6(address));
}

bool cm_address_is_loopback(const struct sockaddr *address) {
  return address->sa_family == AF_INET ? ntohl(v4(address)->s_addr) >> 24 == IN_LOOPBACKNET
                                       : IN6_IS_ADDR_LOOPBACK(v6(address));
}

void cm_address_gid(const struct sockaddr *address, uint8_t gid[16]) {
  memset(gid, 0, 16);
  if (cm_address_is_any(address)) return;
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
  cm_address_set_port((struct sockaddr *)address, port);
}

/* Ports of UDP do not matter here: no packet is sent. */
static int udp_socket(const struct sockaddr *address, struct sockaddr_storage *copy) {
  *copy = (struct sockaddr_storage){0};
  memcpy(copy, address, cm_address_bytes(address));
  return socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

int cm_address_source(const struct sockaddr *to, struct sockaddr_storage *from) {
  struct sockaddr_storage there;
  const int fd = udp_socket(to, &there);
  if (fd < 0) return errno;
  socklen_t bytes = sizeof *from;
  cm_address_set_port((struct sockaddr *)&there, 9); /* any but 0 */
  int error = connect(fd, (struct sockaddr *)&there, cm_address_bytes(to)) == 0 ? 0 : errno;
  *from = (struct sockaddr_storage){0};
  if (error == 0 && getsockname(fd, (struct sockaddr *)from, &bytes) != 0) error = errno;
  close(fd);
  cm_address_set_port((struct sockaddr *)from, 0);
  return error;
}

int cm_address_check_own(const struct sockaddr *address) {
  struct sockaddr_storage here;
  const int fd = udp_socket(address, &here);
  if (fd < 0) return errno;
  cm_address_set_port((struct sockaddr *)&here, 0);
  const int error = bind(fd, (struct sockaddr *)&here, cm_address_bytes(address)) == 0 ? 0 : errno;
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
