/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver of one engine over UDP sockets: it receives, transmits, runs commands and publishes
 * what came of them, in a thread of its own or in its caller's. It owns the engine, the sockets,
 * both rings and all descriptors. What the thread uses nobody else touches while it runs, but for
 * the other ends of the rings.
 */
#ifndef MRC_IO_DATAPATH_H
#define MRC_IO_DATAPATH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/turn.h"
#include "io/cause.h"
#include "io/guards.h"
#include "io/pause.h"
#include "io/recorder.h"
#include "io/spsc.h"
#include "io/udp.h"
#include "mrc.h"

/* What an epoll event stands for: its tag. */
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
  struct mrc_recorder recorder;
  pthread_t thread;
  int epoll_fd;
  int command_fd;    /* eventfd: wakes the thread */
  int event_fd;      /* eventfd: readable when events wait */
  int timer_fd;      /* polled: makes epoll_fd readable at the deadline */
  uint64_t armed_ns; /* when timer_fd fires; in the past: it has */
  uint32_t blocked;  /* ports that the engine was told not to use, bit n - 1 for port n */
  uint64_t now_ns;   /* when the clock was last read */
  uint64_t spin_ns;  /* poll so long without sleeping after the last input */
  struct mrc_udp_delivered received; /* in this turn */
  struct mrc_pause pause;
  uint64_t last_work_ns; /* time of the last input or output */
  bool published;        /* something entered `events` in this turn */
  bool backlog;          /* this turn left received packets in a socket */
  bool more;             /* the last turn ended at a bound: do not sleep */
  bool stopping;
  bool polled; /* no thread: the caller runs it */
};

/* Opens everything; the thread does not run yet. On failure nothing stays open. */
int mrc_datapath_open(struct mrc_datapath *datapath, const struct mrc_ctx_config *config,
                      struct mrc_cause *cause) MRC_MUST_CHECK;
int mrc_datapath_start(struct mrc_datapath *datapath, struct mrc_cause *cause) MRC_MUST_CHECK;
/* Ends the thread and waits for that. Another thread. */
void mrc_datapath_stop(struct mrc_datapath *datapath);
/* Instead of the thread: mrc_ctx_run and mrc_ctx_arm. */
int mrc_datapath_run(struct mrc_datapath *datapath, uint64_t timeout_ns);
bool mrc_datapath_arm(struct mrc_datapath *datapath);
void mrc_datapath_close(struct mrc_datapath *datapath);
/* In a child of fork: gives back the descriptors, which the parent goes on using, and the guards.
   Nothing else is touched: there is no thread, and it may have been in the middle of anything. */
void mrc_datapath_abandon(struct mrc_datapath *datapath);

/* Makes a sleeping thread look at its rings. Another thread. Nothing to do when polled. */
void mrc_datapath_wake(struct mrc_datapath *datapath);

#endif
