/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a datapath. Only its thread uses it, or its caller when it is polled. Other threads
   use only their ends of the rings. */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <sys/epoll.h>

#include "core/turn.h"
#include "io/extension.h"
#include "io/guards.h"
#include "io/pause.h"
#include "io/recorder.h"
#include "io/spsc.h"
#include "io/udp.h"
#include "io/udp_receive.h"
#include "io/wake.h"

/* The source of an epoll event, part of its tag. */
enum mrc_source { MRC_SOURCE_COMMANDS, MRC_SOURCE_RECEIVE, MRC_SOURCE_TRANSMIT, MRC_SOURCE_TIMER };

static inline uint64_t mrc_source_tag(enum mrc_source source, int port, int tx_index) {
  return (uint64_t)source << 32 | (uint64_t)port << 16 | (uint64_t)tx_index;
}

struct mrc_datapath {
  struct mrc_spsc commands; /* consumed by the thread */
  struct mrc_spsc events;   /* produced by the thread */
  mrc_engine *engine;
  struct mrc_turn turn; /* of the engine */
  struct mrc_udp udp;
  struct mrc_guards guards;
  const struct mrc_extension *extension; /* or NULL */
  void *extension_state;
  struct mrc_recorder recorder;
  pthread_t thread;
  int epoll_fd;
  struct mrc_sleeper sleeper;        /* the thread; its eventfd comes with commands */
  struct mrc_bell bell;              /* readable when events wait */
  int timer_fd;                      /* polled: makes epoll_fd readable at the deadline */
  uint64_t armed_ns;                 /* when timer_fd fires; in the past: it has */
  uint64_t now_ns;                   /* when the clock was last read */
  uint64_t spin_ns;                  /* after the last work, poll this long before sleeping */
  struct mrc_udp_delivered received; /* in this turn */
  struct mrc_pause pause;
  uint64_t last_work_ns; /* time of the last input or output */
  bool published;        /* something entered `events` in this turn */
  bool backlog;          /* this turn left received packets in a socket */
  bool more;             /* the last turn stopped at a limit: do not sleep */
  bool stopping;
  bool polled;    /* no thread: the caller runs it */
  bool unguarded; /* no SIGBUS guards */
};

static inline void mrc_datapath_put_event(struct mrc_datapath *datapath,
                                          const struct mrc_event *event) {
  uint32_t pushed = mrc_spsc_push(&datapath->events, event, 1);
  mrc_assert(pushed == 1); /* the caller has checked the room */
  datapath->published = true;
}

/* Adds a descriptor to those that wake the datapath; 0 or -errno. */
static inline int mrc_datapath_watch(const struct mrc_datapath *datapath, int fd, uint32_t events,
                                     uint64_t tag) {
  struct epoll_event event = {.events = events, .data.u64 = tag};
  return epoll_ctl(datapath->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}
