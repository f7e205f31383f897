/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated kernel for csrc/io: its UDP sockets, epoll and timers, in virtual time.
 *
 * One process holds the sockets of all hosts; an interface's name is unique among them. Packets
 * that sockets send wait in order until the test takes them (vk_take); the test's network decides
 * what becomes of them and gives them to the receiving interface (vk_deliver). Nothing here waits,
 * and time passes only when the test says so.
 */
#pragma once

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>

/* cdef begin */
struct vk_packet {
  int fd;             /* the socket that sent it */
  char ifname[16];    /* its interface */
  int family;         /* 4 or 6 */
  uint8_t source[16]; /* IPv4 addresses are mapped, as everywhere in csrc */
  uint8_t target[16];
  uint16_t sport;
  uint16_t dport;
  uint32_t flow_label;
  uint8_t tclass;
  uint32_t bytes; /* of the UDP payload */
  uint8_t *data;
};

/* Forgets all sockets and interfaces, and starts the clock and the random numbers anew. */
void vk_reset(uint64_t now_ns, uint64_t seed);
void vk_set_now(uint64_t now_ns);
/* Adds an interface or changes it; its MTU counts from the IP header on. */
void vk_interface(const char *ifname, int mtu, bool up);
/* Takes the oldest packet that was sent; false: there is none. The data is valid until the next
   call. */
bool vk_take(struct vk_packet *packet);
/* The packet left its interface: its socket has room again. */
void vk_departed(int fd, uint32_t bytes);
/* Gives a packet to the socket that listens on this interface; false: there is none, or its buffer
   is full. */
bool vk_deliver(const char *ifname, const struct vk_packet *packet);
/* An ICMP error for a packet of this socket. */
void vk_report(int fd, int error);
/* Whether an epoll descriptor is readable. */
bool vk_is_ready(int epoll_fd);
/* When a timer of this epoll descriptor fires; UINT64_MAX: never. */
uint64_t vk_deadline(int epoll_fd);
/* This program runs from now on: it owns the descriptors that are opened. */
void vk_run_as(uint32_t owner);
/* A program ended: its descriptors are closed. */
void vk_end(uint32_t owner);
/* How many UDP sockets are open. */
int vk_open_sockets(void);
/* cdef end */

int vk_socket(int domain, int type, int protocol);
int vk_bind(int fd, const struct sockaddr *address, socklen_t length);
int vk_setsockopt(int fd, int level, int name, const void *value, socklen_t length);
int vk_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int vk_getsockname(int fd, struct sockaddr *address, socklen_t *length);
int vk_sendmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags);
int vk_recvmmsg(int fd, struct mmsghdr *messages, unsigned n, int flags, struct timespec *timeout);
ssize_t vk_recvmsg(int fd, struct msghdr *message, int flags);
int vk_close(int fd);
int vk_epoll_create1(int flags);
int vk_epoll_ctl(int epoll_fd, int op, int fd, struct epoll_event *event);
int vk_epoll_wait(int epoll_fd, struct epoll_event *events, int n, int timeout);
int vk_timerfd_create(clockid_t clock, int flags);
int vk_timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old);
int vk_clock_gettime(clockid_t clock, struct timespec *now);
ssize_t vk_getrandom(void *bytes, size_t n, unsigned flags);
unsigned vk_if_nametoindex(const char *ifname);
long vk_syscall(long number, ...);
