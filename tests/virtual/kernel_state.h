/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the simulated kernel, which kernel.c and kernel_wait.c share. */
#pragma once

#include <errno.h>

#include "virtual/kernel.h"

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

/* The descriptor, if it is open and of this kind. */
struct vk_descriptor *vk_find(int fd, enum vk_kind kind);
int vk_open_descriptor(enum vk_kind kind);
uint64_t vk_now(void);
uint64_t vk_draw(void);

static inline int vk_fail(int error) {
  errno = error;
  return -1;
}

static inline struct timespec vk_timespec(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                           .tv_nsec = (long)(ns % 1000000000u)};
}
