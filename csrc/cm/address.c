/* SPDX-License-Identifier: Apache-2.0 */
#include "cm/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

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
