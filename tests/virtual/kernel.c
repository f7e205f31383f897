/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "virtual/kernel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base.h"

#ifndef IPV6_FLOWINFO
#define IPV6_FLOWINFO 11
#endif

enum {
  VK_FIRST_FD = 1 << 20, /* beyond all real descriptors */
  VK_MAX_FDS = 4096,
  VK_MAX_WATCHED = 256,
};

#define VK_REAL_TIME_NS 1700000000000000000u /* CLOCK_REALTIME at time 0 */

enum vk_kind { VK_UDP, VK_EPOLL, VK_TIMER };

struct vk_datagram {
  struct vk_datagram *next;
  struct vk_packet packet;
  uint64_t arrived_ns;
  uint8_t bytes[];
};

struct vk_queue {
  struct vk_datagram *first;
  struct vk_datagram *last;
};

struct vk_watch {
  int fd;
  uint32_t events;
  epoll_data_t data;
};

struct vk_descriptor {
  enum vk_kind kind;
  uint32_t owner; /* the program that opened it */
  /* UDP */
  char ifname[IFNAMSIZ];
  int family;
  uint8_t address[16];
  bool any;
  uint16_t port;
  struct vk_queue received;
  uint32_t received_bytes;
  uint32_t overflow;
  uint32_t room[2];   /* of SO_RCVBUF and SO_SNDBUF */
  uint32_t under_way; /* bytes sent that have not left the interface */
  int error;          /* pending, of ICMP */
  int reports;        /* in the error queue */
  bool filtered;      /* takes no packets */
  /* EPOLL */
  struct vk_watch watched[VK_MAX_WATCHED];
  int n_watched;
  /* TIMER */
  uint64_t deadline_ns;
  bool seen; /* its edge */
};

static inline int vk_fail(int error) {
  errno = error;
  return -1;
}

static inline struct timespec vk_timespec(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                           .tv_nsec = (long)(ns % 1000000000u)};
}

enum {
  MAX_INTERFACES = 256,
  FIRST_SOURCE_PORT = 32768,
  UDP_V4_BYTES = 28,
  UDP_V6_BYTES = 48,
};

struct interface {
  char name[IFNAMSIZ];
  int mtu;
  bool up;
};

static struct vk_descriptor *descriptors[VK_MAX_FDS];
static struct interface interfaces[MAX_INTERFACES];
static int n_interfaces;
static struct vk_queue sent;
static struct vk_datagram *taken;
static uint64_t now;
static uint64_t random_state;
static uint16_t next_port;
static uint32_t running;

static uint64_t vk_now(void) { return now; }

static uint64_t vk_draw(void) { /* splitmix64 */
  uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static bool is_virtual(int fd) { return fd >= VK_FIRST_FD && fd < VK_FIRST_FD + VK_MAX_FDS; }

/* The descriptor, if it is open and of this kind. */
static struct vk_descriptor *vk_find(int fd, enum vk_kind kind) {
  struct vk_descriptor *found = is_virtual(fd) ? descriptors[fd - VK_FIRST_FD] : NULL;
  return found && found->kind == kind ? found : NULL;
}

static int vk_open_descriptor(enum vk_kind kind) {
  for (int i = 0; i < VK_MAX_FDS; i++) {
    if (descriptors[i]) continue;
    descriptors[i] = calloc(1, sizeof *descriptors[i]);
    mrc_assert(descriptors[i] != NULL);
    descriptors[i]->kind = kind;
    descriptors[i]->owner = running;
    descriptors[i]->deadline_ns = UINT64_MAX;
    return VK_FIRST_FD + i;
  }
  return vk_fail(EMFILE);
}

static struct interface *find_interface(const char *name) {
  for (int i = 0; i < n_interfaces; i++)
    if (strncmp(interfaces[i].name, name, IFNAMSIZ) == 0) return &interfaces[i];
  return NULL;
}

static void put(struct vk_queue *queue, struct vk_datagram *datagram) {
  datagram->next = NULL;
  if (queue->last)
    queue->last->next = datagram;
  else
    queue->first = datagram;
  queue->last = datagram;
}

static struct vk_datagram *pop(struct vk_queue *queue) {
  struct vk_datagram *first = queue->first;
  if (!first) return NULL;
  queue->first = first->next;
  if (!queue->first) queue->last = NULL;
  return first;
}

static void drop_all(struct vk_queue *queue) {
  for (struct vk_datagram *each = pop(queue); each; each = pop(queue))
    free(each);
}

static void end(int index) {
  struct vk_descriptor *own = descriptors[index];
  drop_all(&own->received);
  descriptors[index] = NULL;
  free(own);
}

/* ---- For the test ---- */

void vk_reset(uint64_t now_ns, uint64_t seed) {
  for (int i = 0; i < VK_MAX_FDS; i++)
    if (descriptors[i]) end(i);
  drop_all(&sent);
  n_interfaces = 0;
  now = now_ns;
  random_state = seed;
  next_port = FIRST_SOURCE_PORT;
}

void vk_set_now(uint64_t now_ns) {
  mrc_assert(now_ns >= now);
  now = now_ns;
}

void vk_interface(const char *ifname, int mtu, bool up) {
  struct interface *found = find_interface(ifname);
  if (!found) {
    mrc_assert(n_interfaces < MAX_INTERFACES);
    found = &interfaces[n_interfaces++];
    *found = (struct interface){0};
    strncpy(found->name, ifname, IFNAMSIZ - 1);
  }
  found->mtu = mtu;
  found->up = up;
}

bool vk_take(struct vk_packet *packet) {
  free(taken);
  taken = pop(&sent);
  if (!taken) return false;
  *packet = taken->packet;
  packet->data = taken->bytes;
  return true;
}

void vk_departed(int fd, uint32_t bytes) {
  struct vk_descriptor *own = vk_find(fd, VK_UDP);
  if (own) own->under_way -= mrc_min_u32(own->under_way, bytes);
}

static bool listens(const struct vk_descriptor *own, const char *ifname,
                    const struct vk_packet *packet) {
  return own && own->kind == VK_UDP && !own->filtered && own->port == packet->dport &&
         own->family == packet->family && strncmp(own->ifname, ifname, IFNAMSIZ) == 0 &&
         (own->any || memcmp(own->address, packet->target, 16) == 0);
}

bool vk_deliver(const char *ifname, const struct vk_packet *packet) {
  for (int i = 0; i < VK_MAX_FDS; i++) {
    struct vk_descriptor *own = descriptors[i];
    if (!listens(own, ifname, packet)) continue;
    if (own->received_bytes + packet->bytes > own->room[0]) {
      own->overflow++;
      return false;
    }
    struct vk_datagram *datagram = malloc(sizeof *datagram + packet->bytes);
    mrc_assert(datagram != NULL);
    datagram->packet = *packet;
    datagram->arrived_ns = now;
    memcpy(datagram->bytes, packet->data, packet->bytes);
    own->received_bytes += packet->bytes;
    put(&own->received, datagram);
    return true;
  }
  return false;
}

void vk_report(int fd, int error) {
  struct vk_descriptor *own = vk_find(fd, VK_UDP);
  if (!own) return;
  own->error = error;
  own->reports++;
}

void vk_run_as(uint32_t owner) { running = owner; }

void vk_end(uint32_t owner) {
  for (int i = 0; i < VK_MAX_FDS; i++)
    if (descriptors[i] && descriptors[i]->owner == owner) end(i);
}

int vk_open_sockets(void) {
  int n = 0;
  for (int i = 0; i < VK_MAX_FDS; i++)
    n += vk_find(VK_FIRST_FD + i, VK_UDP) != NULL;
  return n;
}

/* ---- Sockets ---- */

int vk_socket(int domain, int type, int protocol) {
  (void)type;
  mrc_assert(protocol == IPPROTO_UDP);
  const int fd = vk_open_descriptor(VK_UDP);
  if (fd >= 0) vk_find(fd, VK_UDP)->family = domain == AF_INET ? 4 : 6;
  return fd;
}

static void read_address(const struct sockaddr *from, uint8_t address[16], uint16_t *port,
                         uint32_t *flow_label) {
  if (from->sa_family == AF_INET) {
    const struct sockaddr_in *v4 = (const void *)from;
    memset(address, 0, 10);
    memset(address + 10, 0xff, 2);
    memcpy(address + 12, &v4->sin_addr, 4);
    *port = ntohs(v4->sin_port);
    *flow_label = 0;
  } else {
    const struct sockaddr_in6 *v6 = (const void *)from;
    memcpy(address, &v6->sin6_addr, 16);
    *port = ntohs(v6->sin6_port);
    *flow_label = ntohl(v6->sin6_flowinfo) & 0xfffff;
  }
}

static bool is_taken(const struct vk_descriptor *own, uint16_t port) {
  for (int i = 0; i < VK_MAX_FDS; i++) {
    const struct vk_descriptor *other = descriptors[i];
    if (!other || other == own || other->kind != VK_UDP || other->port != port) continue;
    if (other->family != own->family || strncmp(other->ifname, own->ifname, IFNAMSIZ) != 0)
      continue;
    if (other->any || own->any || memcmp(other->address, own->address, 16) == 0) return true;
  }
  return false;
}

int vk_bind(int fd, const struct sockaddr *address, socklen_t length) {
  (void)length;
  struct vk_descriptor *own = vk_find(fd, VK_UDP);
  static const uint8_t nothing[16];
  uint32_t flow_label;
  uint16_t port;
  read_address(address, own->address, &port, &flow_label);
  own->any =
      memcmp(own->address + (own->family == 4 ? 12 : 0), nothing, own->family == 4 ? 4 : 16) == 0;
  if (port == 0) {
    do
      port = next_port++;
    while (port < FIRST_SOURCE_PORT || is_taken(own, port));
  } else if (is_taken(own, port)) {
    return vk_fail(EADDRINUSE);
  }
  own->port = port;
  return 0;
}

int vk_getsockname(int fd, struct sockaddr *address, socklen_t *length) {
  const struct vk_descriptor *own = vk_find(fd, VK_UDP);
  if (own->family == 4) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(own->port)};
    memcpy(&v4.sin_addr, own->address + 12, 4);
    memcpy(address, &v4, sizeof v4);
    *length = sizeof v4;
  } else {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(own->port)};
    memcpy(&v6.sin6_addr, own->address, 16);
    memcpy(address, &v6, sizeof v6);
    *length = sizeof v6;
  }
  return 0;
}

int vk_setsockopt(int fd, int level, int name, const void *value, socklen_t length) {
  struct vk_descriptor *own = vk_find(fd, VK_UDP);
  if (level != SOL_SOCKET) return 0;
  int number = 0;
  if (length >= sizeof number) memcpy(&number, value, sizeof number);
  switch (name) {
    case SO_BINDTODEVICE: {
      char ifname[IFNAMSIZ] = "";
      memcpy(ifname, value, mrc_min_u32(length, IFNAMSIZ - 1));
      if (!find_interface(ifname)) return vk_fail(ENODEV);
      memcpy(own->ifname, ifname, IFNAMSIZ);
      return 0;
    }
    case SO_RCVBUFFORCE:
    case SO_SNDBUFFORCE:
      return vk_fail(EPERM);
    case SO_RCVBUF:
    case SO_SNDBUF:
      own->room[name == SO_SNDBUF] = (uint32_t)number;
      return 0;
    case SO_ATTACH_FILTER:
      own->filtered = true;
      return 0;
    default:
      return 0;
  }
}

int vk_getsockopt(int fd, int level, int name, void *value, socklen_t *length) {
  struct vk_descriptor *own = vk_find(fd, VK_UDP);
  mrc_assert(level == SOL_SOCKET && *length == sizeof(int));
  int number = 0;
  if (name == SO_ERROR) {
    number = own->error;
    own->error = 0;
  } else {
    number = 2 * (int)own->room[name == SO_SNDBUF];
  }
  memcpy(value, &number, sizeof number);
  return 0;
}

/* ---- Sending ---- */

static size_t bytes_of(const struct msghdr *message) {
  size_t bytes = 0;
  for (size_t i = 0; i < message->msg_iovlen; i++)
    bytes += message->msg_iov[i].iov_len;
  return bytes;
}

static void copy_out(const struct msghdr *message, uint8_t *to) {
  for (size_t i = 0; i < message->msg_iovlen; i++) {
    memcpy(to, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
    to += message->msg_iov[i].iov_len;
  }
}

static void read_controls(struct msghdr *message, uint8_t *tclass, uint32_t *segment_bytes) {
  for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each)) {
    if (each->cmsg_level == IPPROTO_UDP && each->cmsg_type == UDP_SEGMENT) {
      uint16_t value;
      memcpy(&value, CMSG_DATA(each), sizeof value);
      *segment_bytes = value;
    } else {
      int value;
      memcpy(&value, CMSG_DATA(each), sizeof value);
      *tclass = (uint8_t)value;
    }
  }
}

/* Sends one message; 0 or an errno. */
static int send_message(int fd, struct vk_descriptor *own, struct msghdr *message) {
  const struct interface *interface = find_interface(own->ifname);
  struct vk_packet packet = {.fd = fd, .family = own->family, .sport = own->port};
  memcpy(packet.ifname, own->ifname, IFNAMSIZ);
  memcpy(packet.source, own->address, 16);
  read_address(message->msg_name, packet.target, &packet.dport, &packet.flow_label);
  const uint32_t bytes = (uint32_t)bytes_of(message);
  uint32_t segment_bytes = bytes;
  read_controls(message, &packet.tclass, &segment_bytes);
  const uint32_t headers = own->family == 4 ? UDP_V4_BYTES : UDP_V6_BYTES;
  if (own->error != 0) {
    const int error = own->error;
    own->error = 0;
    return error;
  }
  if (!interface || !interface->up) return ENETUNREACH;
  if (headers + mrc_min_u32(segment_bytes, bytes) > (uint32_t)interface->mtu) return EMSGSIZE;
  if (own->under_way + bytes > own->room[1]) return EAGAIN;
  uint8_t *whole = malloc(bytes + 1);
  mrc_assert(whole != NULL);
  copy_out(message, whole);
  for (uint32_t at = 0; at == 0 || at < bytes; at += segment_bytes) {
    packet.bytes = mrc_min_u32(segment_bytes, bytes - at);
    struct vk_datagram *datagram = malloc(sizeof *datagram + packet.bytes);
    mrc_assert(datagram != NULL);
    datagram->packet = packet;
    memcpy(datagram->bytes, whole + at, packet.bytes);
    put(&sent, datagram);
    if (segment_bytes == 0) break;
  }
  free(whole);
  own->under_way += bytes;
  return 0;
}

int vk_sendmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags) {
  (void)flags;
  struct vk_descriptor *own = vk_find(fd, VK_UDP);
  if (!own) return vk_fail(EBADF);
  unsigned done = 0;
  int error = 0;
  while (done < n && (error = send_message(fd, own, &messages[done].msg_hdr)) == 0)
    done++;
  return done > 0 ? (int)done : vk_fail(error);
}

/* ---- Receiving ---- */

static size_t put_control(struct msghdr *message, size_t used, int level, int type,
                          const void *value, size_t bytes) {
  struct cmsghdr *header = (struct cmsghdr *)((uint8_t *)message->msg_control + used);
  mrc_assert(used + CMSG_SPACE(bytes) <= message->msg_controllen);
  header->cmsg_level = level;
  header->cmsg_type = type;
  header->cmsg_len = CMSG_LEN(bytes);
  memcpy(CMSG_DATA(header), value, bytes);
  return used + CMSG_SPACE(bytes);
}

static void put_controls(struct msghdr *message, const struct vk_descriptor *own,
                         const struct vk_datagram *datagram) {
  const struct vk_packet *packet = &datagram->packet;
  const struct timespec arrived = vk_timespec(VK_REAL_TIME_NS + datagram->arrived_ns);
  size_t used = 0;
  if (own->family == 4) {
    struct in_pktinfo info = {0};
    memcpy(&info.ipi_addr, packet->target + 12, 4);
    used = put_control(message, used, IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
    used = put_control(message, used, IPPROTO_IP, IP_TOS, &packet->tclass, 1);
  } else {
    struct in6_pktinfo info = {0};
    memcpy(&info.ipi6_addr, packet->target, 16);
    const int tclass = packet->tclass;
    const uint32_t flow = htonl(packet->flow_label);
    used = put_control(message, used, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
    used = put_control(message, used, IPPROTO_IPV6, IPV6_TCLASS, &tclass, sizeof tclass);
    used = put_control(message, used, IPPROTO_IPV6, IPV6_FLOWINFO, &flow, sizeof flow);
  }
  used = put_control(message, used, SOL_SOCKET, SO_RXQ_OVFL, &own->overflow, sizeof own->overflow);
  used = put_control(message, used, SOL_SOCKET, SO_TIMESTAMPNS, &arrived, sizeof arrived);
  message->msg_controllen = used;
}

static void put_source(struct msghdr *message, const struct vk_packet *packet) {
  if (packet->family == 4) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(packet->sport)};
    memcpy(&v4.sin_addr, packet->source + 12, 4);
    memcpy(message->msg_name, &v4, sizeof v4);
    message->msg_namelen = sizeof v4;
  } else {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(packet->sport)};
    memcpy(&v6.sin6_addr, packet->source, 16);
    memcpy(message->msg_name, &v6, sizeof v6);
    message->msg_namelen = sizeof v6;
  }
}

int vk_recvmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags, struct timespec *timeout) {
  (void)flags, (void)timeout;
  struct vk_descriptor *own = vk_find(fd, VK_UDP);
  if (!own) return vk_fail(EBADF);
  unsigned done = 0;
  for (; done < n; done++) {
    struct vk_datagram *datagram = pop(&own->received);
    if (!datagram) break;
    struct msghdr *message = &messages[done].msg_hdr;
    own->received_bytes -= datagram->packet.bytes;
    mrc_assert(datagram->packet.bytes <= message->msg_iov[0].iov_len);
    memcpy(message->msg_iov[0].iov_base, datagram->bytes, datagram->packet.bytes);
    messages[done].msg_len = datagram->packet.bytes;
    put_source(message, &datagram->packet);
    put_controls(message, own, datagram);
    free(datagram);
  }
  return done > 0 ? (int)done : vk_fail(EAGAIN);
}

/* Only the error queue is read this way. */
ssize_t vk_recvmsg(int fd, struct msghdr *message, int flags) {
  struct vk_descriptor *own = vk_find(fd, VK_UDP);
  mrc_assert(flags & MSG_ERRQUEUE);
  if (!own || own->reports == 0) return vk_fail(EAGAIN);
  own->reports--;
  message->msg_controllen = 0;
  return 0;
}

int vk_close(int fd) {
  if (!is_virtual(fd)) return close(fd);
  if (descriptors[fd - VK_FIRST_FD]) end(fd - VK_FIRST_FD); /* vk_end may have closed it */
  return 0;
}

unsigned vk_if_nametoindex(const char *ifname) {
  const struct interface *found = find_interface(ifname);
  return found ? (unsigned)(found - interfaces) + 1 : 0;
}

/* ---- Epoll, timers and clocks ---- */

int vk_epoll_create1(int flags) {
  (void)flags;
  return vk_open_descriptor(VK_EPOLL);
}

int vk_timerfd_create(clockid_t clock, int flags) {
  (void)clock, (void)flags;
  return vk_open_descriptor(VK_TIMER);
}

int vk_timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old) {
  (void)old;
  mrc_assert(flags == TFD_TIMER_ABSTIME);
  struct vk_descriptor *own = vk_find(fd, VK_TIMER);
  own->deadline_ns =
      (uint64_t)value->it_value.tv_sec * 1000000000u + (uint64_t)value->it_value.tv_nsec;
  own->seen = false;
  return 0;
}

int vk_epoll_ctl(int epoll_fd, int op, int fd, struct epoll_event *event) {
  struct vk_descriptor *own = vk_find(epoll_fd, VK_EPOLL);
  int at = 0;
  while (at < own->n_watched && own->watched[at].fd != fd)
    at++;
  if (op == EPOLL_CTL_ADD) {
    if (own->n_watched == VK_MAX_WATCHED) return vk_fail(ENOSPC);
    own->watched[own->n_watched++] = (struct vk_watch){fd, event->events, event->data};
    return 0;
  }
  if (at == own->n_watched) return vk_fail(ENOENT);
  if (op == EPOLL_CTL_MOD)
    own->watched[at] = (struct vk_watch){fd, event->events, event->data};
  else
    own->watched[at] = own->watched[--own->n_watched];
  return 0;
}

static uint32_t ready_events(const struct vk_watch *watch) {
  struct vk_descriptor *udp = vk_find(watch->fd, VK_UDP);
  if (udp) {
    uint32_t ready = udp->received.first ? EPOLLIN : 0;
    if (udp->under_way <= udp->room[1] / 2) ready |= EPOLLOUT;
    return (ready & watch->events) | (udp->reports > 0 || udp->error != 0 ? EPOLLERR : 0);
  }
  struct vk_descriptor *timer = vk_find(watch->fd, VK_TIMER);
  if (!timer || timer->seen || timer->deadline_ns > vk_now()) return 0;
  return EPOLLIN;
}

bool vk_is_ready(int epoll_fd) {
  const struct vk_descriptor *own = vk_find(epoll_fd, VK_EPOLL);
  for (int i = 0; own && i < own->n_watched; i++)
    if (ready_events(&own->watched[i]) != 0) return true;
  return false;
}

uint64_t vk_deadline(int epoll_fd) {
  const struct vk_descriptor *own = vk_find(epoll_fd, VK_EPOLL);
  uint64_t deadline_ns = UINT64_MAX;
  for (int i = 0; own && i < own->n_watched; i++) {
    const struct vk_descriptor *timer = vk_find(own->watched[i].fd, VK_TIMER);
    if (timer && !timer->seen && timer->deadline_ns < deadline_ns) deadline_ns = timer->deadline_ns;
  }
  return deadline_ns;
}

int vk_epoll_wait(int epoll_fd, struct epoll_event *events, int n, int timeout) {
  (void)timeout;
  struct vk_descriptor *own = vk_find(epoll_fd, VK_EPOLL);
  int found = 0;
  for (int i = 0; own && i < own->n_watched && found < n; i++) {
    const uint32_t ready = ready_events(&own->watched[i]);
    if (ready == 0) continue;
    struct vk_descriptor *timer = vk_find(own->watched[i].fd, VK_TIMER);
    if (timer) timer->seen = true; /* edge-triggered */
    events[found++] = (struct epoll_event){.events = ready, .data = own->watched[i].data};
  }
  return found;
}

/* ---- The rest ---- */

int vk_clock_gettime(clockid_t clock, struct timespec *time) {
  *time = vk_timespec(clock == CLOCK_REALTIME ? VK_REAL_TIME_NS + vk_now() : vk_now());
  return 0;
}

ssize_t vk_getrandom(void *bytes, size_t n, unsigned flags) {
  (void)flags;
  for (size_t i = 0; i < n; i++)
    ((uint8_t *)bytes)[i] = (uint8_t)vk_draw();
  return (ssize_t)n;
}

/* Of the calls that csrc/io makes by number, the simulated kernel has epoll_pwait2. */
long vk_syscall(long number, ...) {
  va_list rest;
  long a[6];
  va_start(rest, number);
  if (number == SYS_epoll_pwait2) {
    const int fd = va_arg(rest, int);
    struct epoll_event *events = va_arg(rest, struct epoll_event *);
    const int n = va_arg(rest, int);
    va_end(rest);
    return vk_epoll_wait(fd, events, n, 0);
  }
  for (int i = 0; i < 6; i++)
    a[i] = va_arg(rest, long);
  va_end(rest);
  return syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
