/* SPDX-License-Identifier: Apache-2.0 */
/* Epoll, timers and clocks of the simulated kernel. */
#define _GNU_SOURCE 1
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base.h"
#include "virtual/kernel_state.h"

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
