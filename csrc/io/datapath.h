/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of one engine over UDP sockets: its state, commands and ports. It owns the engine, the
   sockets, both rings and all descriptors. Only its thread uses the state, or its caller when it is
   polled. Other threads use only their ends of the rings. */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <sys/epoll.h>

#include "core/base.h"
#include "core/turn.h"
#include "io/receive.h"
#include "io/sigbus.h"
#include "io/spsc.h"
#include "io/udp.h"

/* ---- The pause ---- */

/* How long the datapath thread pauses between reads of its sockets while bursts arrive, as a NIC
   moderates its interrupts. Without pauses each burst would wake the thread, which costs time on
   the sender's core too. Pure: the caller waits. */

enum {
  MRC_PAUSE_BYTES = 32768, /* received in a turn: more is expected */
  MRC_PAUSE_PACKETS = 192, /* in a turn; with more, a peer's window could run out in a pause */
  MRC_PAUSE_TURNS = 16,    /* with bursts until the pause is full: short messages do not wait */
};

struct mrc_pause {
  uint64_t longest_ns; /* 0: no pauses */
  uint64_t last_ns;    /* the pause before this turn */
  uint32_t turns;      /* recent turns with bursts, at most MRC_PAUSE_TURNS */
};

/* The pause after a turn that received `bytes` in `packets`; 0: none. `more`: a socket may hold
   messages still, which need no wake-up. A pause of n ns has to bring n bytes (8 Gbit/s) beside a
   burst: a peer that sends the next message only after the answer to the last would wait for it. */
static inline uint64_t mrc_pause_after(struct mrc_pause *pause, uint64_t bytes, uint32_t packets,
                                       bool more) {
  const bool bursts = bytes >= MRC_PAUSE_BYTES + pause->last_ns;
  if (packets > MRC_PAUSE_PACKETS)
    pause->turns -= mrc_min_u32(pause->turns, 1);
  else if (bursts)
    pause->turns = mrc_min_u32(pause->turns + 1, MRC_PAUSE_TURNS);
  else if (bytes > 0)
    pause->turns /= 2;
  pause->last_ns =
      bytes >= MRC_PAUSE_BYTES && !more ? pause->longest_ns * pause->turns / MRC_PAUSE_TURNS : 0;
  return pause->last_ns;
}

/* ---- Recordings ---- */

/* Fills in a struct mrc_recording: when the payload of some or all QPs was delivered, and by which
   port. It owns nothing; the memory belongs to the caller that started the recording. */

struct mrc_recorder {
  struct mrc_recording *recording; /* 0: none */
  uint64_t seen_bytes;             /* the engine's counter at the last call */
};

/* -EBUSY, -EINVAL, or -ENOENT when there is no such QP; then nothing is recorded. */
int mrc_recorder_start(struct mrc_recorder *recorder, struct mrc_recording *recording,
                       mrc_engine *engine, int n_ports, uint64_t now_ns);
/* -ENOENT when nothing is recorded. */
int mrc_recorder_stop(struct mrc_recorder *recorder, mrc_engine *engine, uint64_t now_ns);

/* Call it only during a recording: packets of one port were delivered at `now_ns`. */
void mrc_recorder_look(struct mrc_recorder *recorder, const mrc_engine *engine, int port,
                       uint64_t now_ns);

/* ---- The extension ---- */

/* What a product adds to the datapath: operations of its own, over QPs of the same engine. The
   datapath calls it by a table, and is complete without one. */
struct mrc_extension {
  /* NULL without memory */
  void *(*open)(void);
  /* When the datapath runs no longer. */
  void (*close)(void *state);
  /* Whether operations of other threads wait for the datapath. */
  bool (*waits)(const void *state);
  /* When `run` has work without further input; UINT64_MAX: never. */
  uint64_t (*deadline)(const void *state);
  /* Whether QPs of this engine may be its own. */
  bool (*is_used)(const void *state);
  /* Starts the operations that were posted, and does what it is time for. */
  void (*run)(void *state, mrc_engine *engine, uint64_t now_ns);
  /* Takes completions of its QPs out of an array, and returns how many are left. */
  int (*take)(void *state, struct mrc_wc *wcs, int n, uint64_t now_ns);
  /* Gets the events of the engine: a QP of its own may have failed. */
  void (*look)(void *state, const struct mrc_event *events, int n, uint64_t now_ns);
  /* Whether its program has to be woken for what has ended since the last call. */
  bool (*has_published)(void *state);
  /* Runs a command from MRC_COMMAND_MSG_OPEN on; returns its result. */
  int (*command)(void *state, mrc_engine *engine, const struct mrc_command *command,
                 uint64_t now_ns);
};

/* csrc/msg. NULL where it is not linked. */
extern const struct mrc_extension mrc_messages_extension __attribute__((weak));

/* ---- The state ---- */

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

/* ---- Commands and ports ---- */

/* Runs one command of the command ring, and puts its reply into the other, which has room. */
void mrc_datapath_run_command(struct mrc_datapath *datapath, const struct mrc_command *command);
/* Watches the sockets of an open port; 0 or -errno. */
int mrc_datapath_watch_port(const struct mrc_datapath *datapath, int port) MRC_MUST_CHECK;
/* Publishes a warning for each kind of buffer that is smaller than requested, if there is room. */
void mrc_datapath_warn_small_buffers(struct mrc_datapath *datapath, int port);
