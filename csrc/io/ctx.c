/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public context of mrc.h: one datapath, its turns, its thread and its life. A turn, in the
 * order of its stages:
 *
 *   1. sleep until input, a command or a deadline, at most as long as bursts let the thread pause
 *   2. read the sockets that are ready, and give their packets to the engine (receive.c)
 *   3. publish the extension's completions, before a command ends a peer whose completions wait
 *   4. run commands (datapath.c), then the operations of the extension
 *   5. let the engine send, by bursts (send.c), and publish its completions and events
 *
 * A thread repeats 1 to 5. The caller of a polled context runs 3 to 5, then 1 and 2, and publishes
 * received data before the acknowledgements are sent: a send takes longer than all the rest, and
 * the caller's reply should not wait for it.
 */
#define _GNU_SOURCE 1
#include "io/ctx.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "io/datapath.h"
#include "io/send.h"
#include "io/sigbus.h"

enum {
  READY_AT_ONCE = 64,     /* epoll events of one turn */
  COMMANDS_AT_ONCE = 256, /* commands of one turn */
  PUBLISH_AT_ONCE = 256,  /* events of one round of publishing */
  FAULTS_AT_ONCE = 64,    /* of these, warnings of memory faults */
  PUBLISH_ROUNDS = 4,     /* rounds of publishing of one turn */
  DEFAULT_RING_ENTRIES = 8192,
  MIN_RING_ENTRIES = 2 * MRC_MAX_PORTS, /* the warnings at opening must fit */
  MAX_RING_ENTRIES = 1 << 20,
  DEFAULT_MAX_MRS = 1024,
  /* Packets up to this size are copied side by side before they are sent. The kernel copies one
     piece faster than many short ones, which saves more than our own copy costs. */
  STAGED_PACKET_BYTES = 2048,
  MAX_BURST_BYTES = 65535 - 40 - 8, /* one UDP message less its IPv6 and UDP headers */
};

#define STOP (1ull << 32) /* added to its eventfd; wake-ups cannot add up to it */

/* Reads the clock. Callers that do not need the exact time use datapath->now_ns. */
static uint64_t look_at_clock(void *driver) {
  struct mrc_datapath *datapath = driver;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  datapath->now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  return datapath->now_ns;
}

/* ---- 1 and 2. Input ---- */

static void receive(struct mrc_datapath *datapath, int port) {
  int n = mrc_udp_receive(&datapath->udp, port);
  if (n > 0) {
    const struct mrc_udp_delivered delivered =
        mrc_udp_deliver(&datapath->udp, port, datapath->engine, look_at_clock(datapath));
    datapath->received.bytes += delivered.bytes;
    datapath->received.packets += delivered.packets;
    if (datapath->recorder.recording)
      mrc_recorder_look(&datapath->recorder, datapath->engine, port, datapath->now_ns);
  }
  if (n == MRC_UDP_RECEIVED_AT_ONCE) datapath->backlog = true;
}

static void watch_transmitter(struct mrc_datapath *datapath, int port, int tx_index,
                              uint32_t events) {
  struct epoll_event event = {.events = events,
                              .data.u64 = mrc_source_tag(MRC_SOURCE_TRANSMIT, port, tx_index)};
  int fd = mrc_udp_port(&datapath->udp, port)->transmitters[tx_index].fd;
  int error = epoll_ctl(datapath->epoll_fd, EPOLL_CTL_MOD, fd, &event);
  mrc_assert(error == 0);
}

static void unblock(struct mrc_datapath *datapath, uint32_t ports, uint64_t now_ns) {
  MRC_EACH_BIT(plane, ports)
    mrc_engine_port_blocked(datapath->engine, (int)plane + 1, false, now_ns);
}

static void on_ready(struct mrc_datapath *datapath, const struct epoll_event *event) {
  int port = event->data.u64 >> 16 & 0xffff;
  int tx_index = event->data.u64 & 0xffff;
  uint64_t value = 0;
  switch ((enum mrc_source)(event->data.u64 >> 32)) {
    case MRC_SOURCE_COMMANDS:
      if (read(datapath->sleeper.fd, &value, sizeof value) == sizeof value && value >= STOP)
        datapath->stopping = true;
      break;
    case MRC_SOURCE_RECEIVE:
      if (event->events & EPOLLERR)
        mrc_udp_drain_errors(&datapath->udp, port,
                             mrc_udp_port(&datapath->udp, port)->n_transmitters);
      receive(datapath, port);
      break;
    case MRC_SOURCE_TRANSMIT:
      if (event->events & EPOLLERR) mrc_udp_drain_errors(&datapath->udp, port, tx_index);
      if (!(event->events & EPOLLOUT)) break;
      watch_transmitter(datapath, port, tx_index, 0);
      if (mrc_udp_on_room(&datapath->udp, port, tx_index))
        unblock(datapath, 1u << (port - 1), look_at_clock(datapath));
      break;
    case MRC_SOURCE_TIMER:
      break; /* every turn checks the deadlines */
  }
}

/* When there is work without further input; 0: now. */
static uint64_t deadline_ns_of(const struct mrc_datapath *datapath) {
  if (datapath->more) return 0;
  uint64_t own_ns = mrc_udp_deadline(&datapath->udp);
  if (datapath->extension != NULL)
    own_ns = mrc_min_u64(own_ns, datapath->extension->deadline(datapath->extension_state));
  return mrc_min_u64(mrc_engine_deadline(datapath->engine), own_ns);
}

/* The longest time to sleep; 0 while there is work or the thread spins. */
static uint64_t sleep_ns(struct mrc_datapath *datapath) {
  uint64_t now_ns = look_at_clock(datapath);
  uint64_t deadline_ns = deadline_ns_of(datapath);
  if (deadline_ns <= now_ns) return 0;
  if (now_ns - datapath->last_work_ns < datapath->spin_ns) return 0;
  return deadline_ns == MRC_NEVER ? MRC_NEVER : deadline_ns - now_ns;
}

/* glibc has this function from 2.35. Without it the engine requires only 2.34. */
static int epoll_wait_ns(int epoll_fd, struct epoll_event *ready, int count,
                         const struct timespec *timeout) {
  return (int)syscall(SYS_epoll_pwait2, epoll_fd, ready, count, timeout, NULL, (size_t)0);
}

static int wait_for(int epoll_fd, struct epoll_event *ready, uint64_t ns) {
  if (ns == 0) return epoll_wait(epoll_fd, ready, READY_AT_ONCE, 0); /* cheaper than epoll_pwait2 */
  struct timespec timeout = {.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
  return epoll_wait_ns(epoll_fd, ready, READY_AT_ONCE, ns == MRC_NEVER ? NULL : &timeout);
}

/* While bursts arrive, the thread pauses before it reads its sockets again. A command ends the
   pause. Returns how long the thread may sleep after the pause. */
static uint64_t coalesce(struct mrc_datapath *datapath, uint64_t ns) {
  const struct mrc_udp_delivered received = datapath->received;
  datapath->received = (struct mrc_udp_delivered){0};
  const uint64_t pause_ns =
      mrc_pause_after(&datapath->pause, received.bytes, received.packets, datapath->backlog);
  datapath->backlog = false;
  if (ns == 0 || pause_ns == 0) return ns;
  struct pollfd commands = {.fd = datapath->sleeper.fd, .events = POLLIN};
  struct timespec pause = {.tv_nsec = (long)mrc_min_u64(ns, pause_ns)};
  ppoll(&commands, 1, &pause, NULL);
  return sleep_ns(datapath);
}

static void wait_and_receive(struct mrc_datapath *datapath, uint64_t ns) {
  struct epoll_event ready[READY_AT_ONCE];
  const bool sleeps = ns > 0 && !datapath->polled;
  if (sleeps && !mrc_sleeper_may_sleep(&datapath->sleeper)) ns = 0;
  int n = wait_for(datapath->epoll_fd, ready, coalesce(datapath, ns));
  mrc_assert(n >= 0 || errno == EINTR);
  if (sleeps) mrc_sleeper_woke(&datapath->sleeper);
  for (int i = 0; i < n; i++)
    on_ready(datapath, &ready[i]);
  if (n > 0) datapath->last_work_ns = look_at_clock(datapath);
}

/* ---- 4. Commands ---- */

/* True when commands are left that can run now. A command without room for its answer stays in its
   ring: the next poll makes room and wakes the datapath. */
static bool run_commands(struct mrc_datapath *datapath) {
  const uint32_t used = mrc_spsc_used(&datapath->commands);
  const uint32_t most = mrc_min_u32(used, COMMANDS_AT_ONCE);
  uint32_t n = 0;
  for (; n < most && mrc_spsc_room(&datapath->events) > 0; n++)
    mrc_datapath_run_command(datapath, mrc_spsc_at(&datapath->commands, n));
  if (n > 0) mrc_spsc_drop(&datapath->commands, n);
  if (mrc_spsc_starved(&datapath->commands)) datapath->published = true;
  return used > most && n == most;
}

/* ---- 5. Output ---- */

/* Watches the full sockets of ports. */
static void watch_full(struct mrc_datapath *datapath, uint32_t waiting) {
  for (int port = 1; port <= datapath->udp.n_ports; port++) {
    if (!(waiting & 1u << (port - 1))) continue;
    const struct mrc_udp_port *own = mrc_udp_port(&datapath->udp, port);
    for (int i = 0; i < own->n_transmitters; i++)
      if (own->transmitters[i].full) watch_transmitter(datapath, port, i, EPOLLOUT);
  }
}

static uint32_t send_bursts(void *driver, const struct mrc_burst *bursts, int *taken, int n,
                            uint64_t now_ns) {
  struct mrc_datapath *datapath = driver;
  const uint32_t waiting = mrc_udp_send(&datapath->udp, bursts, n, taken, now_ns);
  datapath->last_work_ns = now_ns;
  if (waiting != 0) watch_full(datapath, waiting);
  return waiting;
}

/* ---- 5. Publishing ---- */

static int publish_faults(struct mrc_datapath *datapath) {
  struct mrc_guards *guards = &datapath->guards;
  if (guards->replaced && !guards->warned && mrc_spsc_room(&datapath->events) > 0) {
    mrc_datapath_put_event(datapath, &(struct mrc_event){.type = MRC_EVENT_WARNING,
                                                         .status = MRC_WARNING_GUARD_REPLACED});
    guards->warned = true;
  }
  uint32_t keys[FAULTS_AT_ONCE];
  uint32_t room = mrc_min_u32(mrc_spsc_room(&datapath->events), FAULTS_AT_ONCE);
  int n = mrc_guards_take_faults(guards, keys, (int)room);
  for (int i = 0; i < n; i++)
    mrc_datapath_put_event(datapath, &(struct mrc_event){.type = MRC_EVENT_WARNING,
                                                         .status = MRC_WARNING_MEMORY_FAULT,
                                                         .cookie = keys[i]});
  datapath->udp.counters[MRC_IO_MEMORY_FAULTS] += (uint64_t)n;
  return n;
}

/* Takes only as much from the engine as the ring has room for; the engine keeps the rest. */
static int publish_some(struct mrc_datapath *datapath) {
  const struct mrc_extension *extension = datapath->extension;
  void *state = datapath->extension_state;
  struct mrc_event events[PUBLISH_AT_ONCE];
  struct mrc_wc wcs[PUBLISH_AT_ONCE];
  int room = (int)mrc_min_u32(mrc_spsc_room(&datapath->events), PUBLISH_AT_ONCE);
  const int polled = mrc_cq_poll(datapath->engine, wcs, room);
  int n = extension == NULL ? polled : extension->take(state, wcs, polled, datapath->now_ns);
  const int taken = polled - n; /* completions of the extension */
  for (int i = 0; i < n; i++)
    events[i] = (struct mrc_event){.type = MRC_EVENT_WC, .qpn = wcs[i].qpn, .wc = wcs[i]};
  const int raised = mrc_engine_events(datapath->engine, events + n, room - n);
  if (extension != NULL) extension->look(state, events + n, raised, datapath->now_ns);
  for (int end = n + raised; n < end; n++)
    events[n].at_ns = datapath->now_ns;
  uint32_t pushed = mrc_spsc_push(&datapath->events, events, (uint32_t)n);
  mrc_assert(pushed == (uint32_t)n);
  datapath->published |= n > 0 || (extension != NULL && extension->has_published(state));
  return n + taken;
}

/* True when there may be more to publish. False without room: the next poll makes room and wakes
   the datapath. */
static bool publish(void *driver) {
  struct mrc_datapath *datapath = driver;
  bool more = true;
  for (int i = 0; more && i < PUBLISH_ROUNDS; i++)
    more = publish_faults(datapath) + publish_some(datapath) > 0;
  if (datapath->published && !datapath->polled) mrc_bell_ring(&datapath->bell);
  datapath->published = false;
  return more;
}

/* ---- 3 to 5. A turn without its input ---- */

static const struct mrc_turn_calls calls = {
    .now = look_at_clock, .publish = publish, .send = send_bursts};

/* Whether operations of the extension wait for this datapath. */
static bool extension_waits(const struct mrc_datapath *datapath) {
  return datapath->extension != NULL && datapath->extension->waits(datapath->extension_state);
}

static void work(struct mrc_datapath *datapath) {
  const struct mrc_extension *extension = datapath->extension;
  uint64_t now_ns = look_at_clock(datapath);
  if (extension != NULL && extension->is_used(datapath->extension_state))
    publish(datapath); /* before a command ends a peer whose completions wait */
  datapath->more = run_commands(datapath);
  if (extension != NULL) extension->run(datapath->extension_state, datapath->engine, now_ns);
  unblock(datapath, mrc_udp_retry(&datapath->udp, now_ns), now_ns);
  datapath->more |= mrc_turn_run(&datapath->turn, datapath->backlog, now_ns);
}

/* ---- The thread ---- */

static void *run(void *argument) {
  struct mrc_datapath *datapath = argument;
  prctl(PR_SET_TIMERSLACK, 1ul); /* deadlines are in microseconds; the default slack is 50 us */
  while (!datapath->stopping) {
    wait_and_receive(datapath, sleep_ns(datapath));
    work(datapath);
  }
  return NULL;
}

static int start_thread(struct mrc_datapath *datapath, struct mrc_cause *cause) {
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP}; /* stay unblocked */
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
    sigdelset(&blocked, faults[i]);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  int error = pthread_create(&datapath->thread, NULL, run, datapath);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error != 0) return mrc_cause_errno(cause, error, "cannot start the datapath thread");
  pthread_setname_np(datapath->thread, "mrc-datapath");
  return 0;
}

/* ---- Opening and closing ---- */

static void close_descriptors(const struct mrc_datapath *datapath) {
  const int fds[] = {datapath->epoll_fd, datapath->sleeper.fd, datapath->bell.fd,
                     datapath->timer_fd};
  for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
    if (fds[i] >= 0) close(fds[i]);
}

static void close_datapath(struct mrc_datapath *datapath) {
  mrc_guards_close(&datapath->guards); /* first: a fault writes to its eventfd */
  close_descriptors(datapath);
  if (datapath->extension != NULL) datapath->extension->close(datapath->extension_state);
  if (datapath->engine) mrc_engine_destroy(datapath->engine);
  mrc_spsc_free(&datapath->commands);
  mrc_spsc_free(&datapath->events);
  mrc_udp_close(&datapath->udp);
}

static int open_rings(struct mrc_datapath *datapath, uint32_t entries, struct mrc_cause *cause) {
  if (entries == 0) entries = DEFAULT_RING_ENTRIES;
  int error = entries < MIN_RING_ENTRIES || entries > MAX_RING_ENTRIES ? -EINVAL : 0;
  if (error == 0) error = mrc_spsc_init(&datapath->commands, entries, sizeof(struct mrc_command));
  if (error == 0) error = mrc_spsc_init(&datapath->events, entries, sizeof(struct mrc_event));
  if (error == -EINVAL)
    return mrc_cause_line(cause, EINVAL,
                          "ring_entries must be a power of two from %d to %d, not %u",
                          MIN_RING_ENTRIES, MAX_RING_ENTRIES, entries);
  return error == 0 ? 0
                    : mrc_cause_errno(cause, -error, "cannot allocate %u ring entries", entries);
}

static int open_engine(struct mrc_datapath *datapath, const struct mrc_ctx_config *config,
                       struct mrc_cause *cause) {
  struct mrc_engine_config engine = config->engine;
  engine.ports = config->n_ports;
  if (engine.staged_packet_bytes == 0) engine.staged_packet_bytes = STAGED_PACKET_BYTES;
  if (engine.max_burst_bytes > MAX_BURST_BYTES)
    return mrc_cause_line(cause, EINVAL, "max_burst_bytes must be at most %d, not %u",
                          MAX_BURST_BYTES, engine.max_burst_bytes);
  if (engine.max_mrs == 0) engine.max_mrs = DEFAULT_MAX_MRS;
  datapath->engine = mrc_engine_create(&engine);
  if (!datapath->engine || mrc_guards_open(&datapath->guards, engine.max_mrs) != 0)
    return mrc_cause_errno(cause, ENOMEM, "cannot allocate the engine");
  datapath->turn = (struct mrc_turn){
      .calls = &calls, .driver = datapath, .engine = datapath->engine, .capacity = MRC_UDP_BURSTS};
  return 0;
}

static int watch_descriptors(struct mrc_datapath *datapath) {
  int error = mrc_datapath_watch(datapath, datapath->sleeper.fd, EPOLLIN,
                                 mrc_source_tag(MRC_SOURCE_COMMANDS, 0, 0));
  if (error == 0) /* edge-triggered: it needs no read */
    error = mrc_datapath_watch(datapath, datapath->timer_fd, EPOLLIN | EPOLLET,
                               mrc_source_tag(MRC_SOURCE_TIMER, 0, 0));
  for (int port = 1; error == 0 && port <= datapath->udp.n_ports; port++)
    if (mrc_udp_port_is_open(mrc_udp_port(&datapath->udp, port)))
      error = mrc_datapath_watch_port(datapath, port);
  return error;
}

static int open_descriptors(struct mrc_datapath *datapath, struct mrc_cause *cause) {
  datapath->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  datapath->sleeper.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  datapath->bell.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  datapath->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (datapath->epoll_fd < 0 || datapath->sleeper.fd < 0 || datapath->bell.fd < 0 ||
      datapath->timer_fd < 0)
    return mrc_cause_errno(cause, errno, "cannot open an eventfd, timerfd or epoll descriptor");
  int error = watch_descriptors(datapath);
  if (error != 0) return mrc_cause_errno(cause, -error, "cannot watch the sockets");
  struct epoll_event ready;
  if (epoll_wait_ns(datapath->epoll_fd, &ready, 1, &(struct timespec){0}) < 0)
    return mrc_cause_errno(cause, errno, "cannot use epoll_pwait2, which requires Linux 5.11");
  return 0;
}

static int open_extension(struct mrc_datapath *datapath, struct mrc_cause *cause) {
  if (&mrc_messages_extension == NULL) return 0;
  datapath->extension_state = mrc_messages_extension.open();
  if (datapath->extension_state == NULL)
    return mrc_cause_errno(cause, ENOMEM, "cannot allocate the state of messages");
  datapath->extension = &mrc_messages_extension;
  return 0;
}

static int open_datapath(struct mrc_datapath *datapath, const struct mrc_ctx_config *config,
                         struct mrc_cause *cause) {
  *datapath =
      (struct mrc_datapath){.epoll_fd = -1, .sleeper.fd = -1, .bell.fd = -1, .timer_fd = -1};
  datapath->polled = config->polled != 0;
  datapath->unguarded = config->unguarded != 0;
  datapath->spin_ns = config->spin_us * 1000ull;
  datapath->pause.longest_ns = datapath->polled ? 0 : config->coalesce_us * 1000ull;
  int error = open_extension(datapath, cause);
  if (error == 0) error = mrc_udp_open(&datapath->udp, config, cause);
  if (error == 0 &&
      (mrc_udp_inbox_open(&datapath->udp) != 0 || mrc_udp_outbox_open(&datapath->udp) != 0))
    error = mrc_cause_errno(cause, ENOMEM, "cannot allocate the messages of the sockets");
  if (error == 0) error = open_rings(datapath, config->ring_entries, cause);
  if (error == 0) error = open_engine(datapath, config, cause);
  if (error == 0) error = open_descriptors(datapath, cause);
  if (error != 0) {
    close_datapath(datapath);
    return error;
  }
  for (int port = 1; port <= datapath->udp.n_ports; port++)
    if (mrc_udp_port_is_open(mrc_udp_port(&datapath->udp, port)))
      mrc_datapath_warn_small_buffers(datapath, port);
  return 0;
}

/* ---- Children of fork ---- */

static uint64_t newest;    /* last number assigned, here or in an ancestor; fork copies it */
static uint64_t *wiped_at; /* number of this process; the kernel sets it to 0 in a child */

uint64_t mrc_lineage_own(void) {
  if (wiped_at == NULL) {
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return 0;
    if (madvise(page, bytes, MADV_WIPEONFORK) != 0) {
      munmap(page, bytes);
      return 0;
    }
    wiped_at = page;
  }
  if (*wiped_at == 0) *wiped_at = ++newest;
  return *wiped_at;
}

bool mrc_lineage_is_own(uint64_t number) { return wiped_at != NULL && *wiped_at == number; }

/* ---- The context ---- */

struct mrc_ctx {
  struct mrc_datapath datapath;
  uint64_t process; /* the one that opened it; see mrc_lineage_own */
};

static bool is_inherited(const mrc_ctx *ctx) { return !mrc_lineage_is_own(ctx->process); }

static mrc_ctx *open_ctx(const struct mrc_ctx_config *config, struct mrc_cause *cause) {
  mrc_ctx *ctx = aligned_alloc(_Alignof(struct mrc_ctx), sizeof *ctx);
  if (!ctx) {
    mrc_cause_errno(cause, ENOMEM, "cannot allocate a context");
    return NULL;
  }
  ctx->process = mrc_lineage_own();
  if (ctx->process == 0)
    mrc_cause_errno(cause, ENOMEM, "cannot allocate the page that detects fork");
  else if (open_datapath(&ctx->datapath, config, cause) == 0) {
    if (ctx->datapath.polled || start_thread(&ctx->datapath, cause) == 0) {
      *cause = (struct mrc_cause){0}; /* a UDP port in use was no failure */
      return ctx;
    }
    close_datapath(&ctx->datapath);
  }
  free(ctx);
  return NULL;
}

mrc_ctx *mrc_ctx_create(const struct mrc_ctx_config *config, int *error, char *message,
                        int message_bytes) {
  struct mrc_cause cause = {0};
  mrc_ctx *ctx = open_ctx(config, &cause);
  mrc_assert((ctx != NULL) == (cause.error == 0));
  *error = cause.error;
  snprintf(message, (size_t)message_bytes, "%s", cause.message);
  return ctx;
}

void mrc_ctx_destroy(mrc_ctx *ctx) {
  if (is_inherited(ctx)) {
    mrc_sigbus_forget();
    close_descriptors(&ctx->datapath);
    mrc_udp_abandon(&ctx->datapath.udp);
    return; /* the parent's thread may have left the memory in any state */
  }
  if (!ctx->datapath.polled) {
    mrc_eventfd_signal(ctx->datapath.sleeper.fd, STOP);
    pthread_join(ctx->datapath.thread, NULL);
  }
  close_datapath(&ctx->datapath);
  free(ctx);
}

uint16_t mrc_ctx_udp_port(const mrc_ctx *ctx) { return ctx->datapath.udp.udp_port; }

uint16_t mrc_ctx_source_port(const mrc_ctx *ctx, int port, int tx_index) {
  const struct mrc_udp *udp = &ctx->datapath.udp;
  if (port < 1 || port > udp->n_ports) return 0;
  const struct mrc_udp_port *own = mrc_udp_port(udp, port);
  if (tx_index < 0 || tx_index >= own->n_transmitters) return 0;
  return own->transmitters[tx_index].sport;
}

int mrc_ctx_fd(const mrc_ctx *ctx) {
  return ctx->datapath.polled ? ctx->datapath.epoll_fd : ctx->datapath.bell.fd;
}

void mrc_ctx_wake(mrc_ctx *ctx) {
  if (!ctx->datapath.polled) mrc_sleeper_wake(&ctx->datapath.sleeper);
}

/* If it takes only some commands, the descriptor becomes readable when there is room again. */
int mrc_ctx_submit(mrc_ctx *ctx, const struct mrc_command *commands, int n) {
  uint32_t taken = 0;
  uint32_t pushed = 1;
  if (is_inherited(ctx)) return -ECHILD;
  while (pushed > 0 && taken < (uint32_t)n) {
    pushed = mrc_spsc_push(&ctx->datapath.commands, commands + taken, (uint32_t)n - taken);
    taken += pushed;
  }
  if (taken > 0) mrc_ctx_wake(ctx);
  return (int)taken;
}

int mrc_ctx_post(mrc_ctx *ctx, uint32_t qpn, const struct mrc_wr *wr, bool idle) {
  struct mrc_datapath *datapath = &ctx->datapath;
  if (is_inherited(ctx)) return -ECHILD;
  mrc_assert(datapath->polled);
  return mrc_qp_post(datapath->engine, qpn, wr, 1,
                     idle ? look_at_clock(datapath) : datapath->now_ns);
}

/* Before events are taken: those published after it make the descriptor readable again. */
static void begin_taking(struct mrc_datapath *datapath) {
  if (!datapath->polled) mrc_bell_silence(&datapath->bell);
}

static void end_taking(mrc_ctx *ctx) {
  struct mrc_datapath *datapath = &ctx->datapath;
  if (mrc_spsc_starved(&datapath->events)) mrc_ctx_wake(ctx);
  if (!datapath->polled && mrc_spsc_used(&datapath->events) > 0) mrc_bell_ring(&datapath->bell);
}

int mrc_ctx_poll(mrc_ctx *ctx, struct mrc_event *events, int n) {
  if (is_inherited(ctx)) return -ECHILD;
  begin_taking(&ctx->datapath);
  const uint32_t taken = mrc_spsc_pop(&ctx->datapath.events, events, (uint32_t)n);
  end_taking(ctx);
  return (int)taken;
}

int mrc_ctx_poll_writes(mrc_ctx *ctx, uint64_t *wr_ids, int n) {
  struct mrc_spsc *ring = &ctx->datapath.events;
  if (is_inherited(ctx)) return -ECHILD;
  begin_taking(&ctx->datapath);
  const uint32_t most = mrc_min_u32((uint32_t)n, mrc_spsc_used(ring));
  uint32_t taken = 0;
  while (taken < most) {
    const struct mrc_event *event = mrc_spsc_at(ring, taken);
    if (event->type != MRC_EVENT_WC || event->wc.status != MRC_WC_SUCCESS) break;
    if (event->wc.opcode == MRC_WC_RECV_IMM) break;
    wr_ids[taken++] = event->wc.wr_id;
  }
  mrc_spsc_drop(ring, taken);
  end_taking(ctx);
  return (int)taken;
}

int mrc_ctx_run(mrc_ctx *ctx, uint64_t timeout_ns) {
  struct mrc_datapath *datapath = &ctx->datapath;
  if (is_inherited(ctx)) return -ECHILD;
  mrc_assert(datapath->polled);
  work(datapath);
  const bool waits = mrc_spsc_used(&datapath->events) == 0 && !extension_waits(datapath);
  wait_and_receive(datapath, waits ? mrc_min_u64(timeout_ns, sleep_ns(datapath)) : 0);
  datapath->more |= publish(datapath);
  return (int)mrc_spsc_used(&datapath->events);
}

bool mrc_ctx_arm(mrc_ctx *ctx) {
  struct mrc_datapath *datapath = &ctx->datapath;
  if (is_inherited(ctx)) return false;
  mrc_assert(datapath->polled);
  if (mrc_spsc_used(&datapath->events) > 0 || mrc_spsc_used(&datapath->commands) > 0) return false;
  if (extension_waits(datapath)) return false;
  uint64_t now_ns = look_at_clock(datapath);
  uint64_t deadline_ns = deadline_ns_of(datapath);
  if (deadline_ns <= now_ns || now_ns - datapath->last_work_ns < datapath->spin_ns) return false;
  /* A timer that fires too early does no harm, and setting it again costs more than a turn. */
  bool armed = datapath->armed_ns > now_ns && datapath->armed_ns <= deadline_ns;
  if (armed || deadline_ns == MRC_NEVER) return true;
  datapath->armed_ns = deadline_ns;
  struct itimerspec timer = {.it_value = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                                          .tv_nsec = (long)(deadline_ns % 1000000000u)}};
  int error = timerfd_settime(datapath->timer_fd, TFD_TIMER_ABSTIME, &timer, NULL);
  mrc_assert(error == 0);
  return true;
}

void *mrc_ctx_extension(mrc_ctx *ctx) {
  return is_inherited(ctx) ? NULL : ctx->datapath.extension_state;
}
