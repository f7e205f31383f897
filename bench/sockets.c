/* SPDX-License-Identifier: Apache-2.0 */
/* A library to preload into programs that know only TCP. Their sockets use cubic, Linux's default,
   whatever the default of this machine is. Where $BENCH_MPTCP is set, they become MPTCP sockets,
   with subflows between all announced addresses. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_FDS = 1024 };

static struct in6_addr asked[MAX_FDS]; /* the address that the program has bound a socket to */

int socket(int domain, int type, int protocol) {
  const int kind = type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK);
  const bool tcp = kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
  const bool ours = tcp && (domain == AF_INET || domain == AF_INET6);
  if (ours && getenv("BENCH_MPTCP")) protocol = IPPROTO_MPTCP;
  const int fd = (int)syscall(SYS_socket, domain, type, protocol);
  if (fd >= 0 && fd < MAX_FDS) asked[fd] = in6addr_any;
  if (fd >= 0 && ours && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0) abort();
  return fd;
}

static bool is_mptcp(int fd) {
  int protocol = 0;
  socklen_t length = sizeof protocol;
  return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 &&
         protocol == IPPROTO_MPTCP;
}

/* A subflow to another address of this host needs a listener there: listen on all addresses. */
int bind(int fd, const struct sockaddr *address, socklen_t length) {
  if (address->sa_family != AF_INET6 || length < sizeof(struct sockaddr_in6) || fd >= MAX_FDS ||
      !is_mptcp(fd))
    return (int)syscall(SYS_bind, fd, address, length);
  struct sockaddr_in6 any = *(const struct sockaddr_in6 *)address;
  asked[fd] = any.sin6_addr;
  any.sin6_addr = in6addr_any;
  return (int)syscall(SYS_bind, fd, &any, sizeof any);
}

/* Gloo reads its address here and sends it to its peers. */
int getsockname(int fd, struct sockaddr *address, socklen_t *length) {
  const int result = (int)syscall(SYS_getsockname, fd, address, length);
  struct sockaddr_in6 *found = (struct sockaddr_in6 *)address;
  if (result == 0 && address->sa_family == AF_INET6 && fd < MAX_FDS &&
      IN6_IS_ADDR_UNSPECIFIED(&found->sin6_addr))
    found->sin6_addr = asked[fd];
  return result;
}

/* Gloo sets SO_REUSEADDR on sockets that it has accepted. TCP allows it there, without effect;
   MPTCP refuses it, which would end the program. */
int setsockopt(int fd, int level, int name, const void *value, socklen_t length) {
  const int result = (int)syscall(SYS_setsockopt, fd, level, name, value, length);
  const bool useless = level == SOL_SOCKET && name == SO_REUSEADDR && errno == EINVAL;
  return result < 0 && useless ? 0 : result;
}
