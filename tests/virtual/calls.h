/* SPDX-License-Identifier: Apache-2.0 */
/* Included before every file of csrc/io in the module mrc._virtual: the driver's system calls go to
   the simulated kernel of kernel.c. The system's own headers come first, so that their declarations
   keep their names. */
#pragma once

#define _GNU_SOURCE 1
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "virtual/kernel.h"

#define socket vk_socket
#define bind vk_bind
#define setsockopt vk_setsockopt
#define getsockopt vk_getsockopt
#define getsockname vk_getsockname
#define sendmmsg vk_sendmmsg
#define recvmmsg vk_recvmmsg
#define recvmsg vk_recvmsg
#define close vk_close
#define epoll_create1 vk_epoll_create1
#define epoll_ctl vk_epoll_ctl
#define epoll_wait vk_epoll_wait
#define timerfd_create vk_timerfd_create
#define timerfd_settime vk_timerfd_settime
#define clock_gettime vk_clock_gettime
#define getrandom vk_getrandom
#define if_nametoindex vk_if_nametoindex
#define syscall vk_syscall
