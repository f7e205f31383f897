/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "program/drive.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "program/attach.h"
#include "program/owner.h"
#include "program/process.h"
#include "program/steer.h"

enum { EVENTS_AT_ONCE = 64, LOCK_TRIES = 10 };

/* A program that has polled within this time does so again. On a busy machine it may lose its core
   for some time between two polls. */
#define POLLER_NS 500000ull
/* The same, of a program that may wait for bytes in its memory between two polls. */
#define WATCHER_NS 20000ull
/* Pauses of the helper between its looks at a program that polls on. Each pause is twice the one
   before, so the helper is late by no more than the program has polled. */
#define FIRST_LOOK_NS 20000ull
#define LONGEST_LOOK_NS 2560000ull
#define LOCKED_LOOK_NS 10000000ull /* between attempts of the helper to take the lock */
#define TEND_NS 200000ull          /* between looks of a program that polls */
#define SLICE_NS 100000ull
#define GONE_LOOK_NS 50000000ull
#define AGENT_LOOK_NS 200000000ull /* between attempts to find the next agent */

/* ---- Turns ---- */

static void hand_out(const struct mrc_event *event) {
  if (event->type == MRC_EVENT_WC) {
    pr_owner.completed(&event->wc);
    return;
  }
  if (event->type == MRC_EVENT_REPLY && event->cookie & PR_COOKIE_OWN) {
    if (event->cookie != pr_process.call) return;
    pr_process.call = 0;
    pr_process.call_result = event->result;
    return;
  }
  pr_steer_event(event);
}

void pr_drive_turn(void) {
  if (pr_process.forked) return; /* the sockets are the parent's */
  struct mrc_event events[EVENTS_AT_ONCE];
  int n = mrc_ctx_run(pr_process.ctx, 0) > 0 ? EVENTS_AT_ONCE : 0;
  while (n == EVENTS_AT_ONCE) {
    n = mrc_ctx_poll(pr_process.ctx, events, EVENTS_AT_ONCE);
    for (int i = 0; i < n; i++)
      hand_out(&events[i]);
  }
  if (pr_owner.turned) pr_owner.turned();
}

static uint64_t tended_ns; /* when the agent's frames were last read */

static void take_frames(void) {
  struct pr_frame frame;
  int found;
  while ((found = pr_link_receive(&pr_process.link, &frame)) == 1) {
    if (pr_steer_frame(&frame) == 0) continue;
    found = -EPROTO;
    break;
  }
  if (found < 0) {
    pr_link_close(&pr_process.link);
    pr_steer_forget();
  }
}

static void tend(uint64_t now_ns) {
  tended_ns = now_ns;
  pr_link_flush(&pr_process.link);
  take_frames();
}

static bool asleep; /* the helper, until packets, deadlines or a wake */

/* After the program has run the engine or given it work: the helper's sleep must end in time. */
static void keep_armed(void) {
  if (asleep && !mrc_ctx_arm(pr_process.ctx)) pr_drive_wake();
}

/* Also reads the agent's frames: on the same core, a program that polls all the time may keep the
   lock from the helper. */
void pr_drive_polled(void) {
  const uint64_t now_ns = pr_now_ns();
  pr_polled_set(&pr_process.polled, now_ns);
  if (now_ns - tended_ns > TEND_NS && pr_process.link.fd >= 0) tend(now_ns);
}

void pr_drive_poll(void) {
  if (pr_process.forked) return; /* so are its timers, and its helper */
  pr_drive_turn();
  pr_drive_polled();
  keep_armed();
}

void pr_drive_posted(bool idle) {
  if (idle) pr_drive_turn(); /* the first one goes at once */
  keep_armed();
}

void pr_drive_owed(void) {
  if (asleep) pr_drive_wake();
}

int pr_drive_call(struct mrc_command *command) {
  if (pr_process.forked) return -EIO;
  command->cookie = pr_process.call = PR_COOKIE_CALL | pr_process.next_cookie++;
  pr_submit(command);
  while (pr_process.call != 0)
    pr_drive_turn();
  return pr_process.call_result;
}

void pr_drive_settle(void) {
  struct mrc_command command = {.op = MRC_COMMAND_COUNTERS}; /* none of them */
  pr_drive_call(&command);
}

/* ---- The helper ---- */

void pr_drive_wake(void) { eventfd_write(pr_process.wake_fd, 1); }

void pr_drive_leave(void) {
  pr_polled_set(&pr_process.polled, 0);
  pr_drive_wake();
}

/* What wakes the helper: a wake, frames of the agent, the engine. */
enum { WAKE, LINK, ENGINE, FDS };

static void set_fds(struct pollfd fds[FDS]) {
  const short link = POLLIN | (pr_link_waits(&pr_process.link) ? POLLOUT : 0);
  fds[WAKE] = (struct pollfd){.fd = pr_process.wake_fd, .events = POLLIN};
  fds[LINK] = (struct pollfd){.fd = pr_process.link.fd, .events = link};
  fds[ENGINE] = (struct pollfd){.fd = mrc_ctx_fd(pr_process.ctx), .events = POLLIN};
}

static int sleep_on(struct pollfd *fds, int n, uint64_t ns) {
  const struct timespec timeout = {.tv_sec = (time_t)(ns / 1000000000u),
                                   .tv_nsec = (long)(ns % 1000000000u)};
  return ppoll(fds, (nfds_t)n, ns == UINT64_MAX ? NULL : &timeout, NULL);
}

static void silence(const struct pollfd *fds) {
  eventfd_t woken;
  if (fds[WAKE].revents) eventfd_read(pr_process.wake_fd, &woken);
}

/* Sleeps until there is work for the helper, also of the engine. */
static void rest(uint64_t ns) {
  struct pollfd fds[FDS];
  set_fds(fds);
  asleep = true;
  pr_unlock();
  sleep_on(fds, FDS, ns);
  pr_lock();
  asleep = false;
  silence(fds);
}

static uint64_t look_ns = FIRST_LOOK_NS; /* the next pause beside a program that polls */

/* How long ago the program has polled. */
static uint64_t age_of_poll_ns(void) {
  const uint64_t polled_ns = pr_polled_ns(&pr_process.polled); /* first: it may poll meanwhile */
  return pr_now_ns() - polled_ns;
}

/* How long after a poll the program is left the engine. */
static uint64_t patience_ns(void) { return pr_owner.watches() ? WATCHER_NS : POLLER_NS; }

/* The pause before the next look at a program that is left the engine for `left_ns` more. */
static uint64_t next_look_ns(uint64_t left_ns) {
  const uint64_t found = look_ns;
  if (look_ns < LONGEST_LOOK_NS) look_ns *= 2;
  return found > left_ns ? found : left_ns;
}

/* Sleeps as long as the program polls. It takes no lock for its looks: the program has it nearly
   always, and would have to wake the helper once more. So it also waits for the lock only after
   some attempts: whoever waits for it is woken at each unlock, and is mostly too late. */
static void stand_by(uint64_t left_ns) {
  struct pollfd fds[FDS];
  set_fds(fds);
  uint64_t until_ns = pr_now_ns() + LOCKED_LOOK_NS;
  uint64_t age_ns = age_of_poll_ns();
  pr_unlock();
  int found = 0;
  bool locked = false;
  for (int tries = 0; tries < LOCK_TRIES && !locked && found == 0 && age_ns < left_ns;) {
    found = sleep_on(fds, ENGINE, next_look_ns(left_ns - age_ns));
    age_ns = age_of_poll_ns();
    if (pr_now_ns() < until_ns) continue;
    locked = pr_try_lock();
    until_ns += LOCKED_LOOK_NS;
    tries++;
  }
  if (!locked) pr_lock();
  silence(fds);
}

static uint64_t pause_ns(void) {
  if (pr_process.link.fd < 0) return AGENT_LOOK_NS;
  return pr_process.n_timed > 0 ? GONE_LOOK_NS : UINT64_MAX;
}

static void help(void) {
  const uint64_t now_ns = pr_now_ns();
  const uint64_t left_ns = patience_ns();
  if (pr_process.link.fd >= 0)
    tend(now_ns);
  else
    pr_attach_again(now_ns);
  pr_owner.end_gone(now_ns);
  if (age_of_poll_ns() < left_ns) {
    stand_by(left_ns);
    return;
  }
  look_ns = FIRST_LOOK_NS;
  pr_drive_turn();
  if (mrc_ctx_arm(pr_process.ctx)) rest(pause_ns());
}

/* A program that spins on its memory must not keep the helper from the core: with a short slice of
   its own it runs at once when a packet comes (Linux 6.12; others ignore it). */
static void set_short_slice(void) {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
  } attr = {.size = 48, .policy = SCHED_OTHER, .runtime_ns = SLICE_NS};
  syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void *run(void *argument) {
  (void)argument;
  prctl(PR_SET_TIMERSLACK, 1ul);
  set_short_slice();
  pr_lock();
  while (!pr_process.stopping) {
    help();
    pr_unlock(); /* threads of the program may wait for it */
    pr_lock();
  }
  pr_unlock();
  return NULL;
}

int pr_drive_start(void) {
  sigset_t all;
  sigset_t before;
  pr_process.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (pr_process.wake_fd < 0) return errno;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&pr_process.helper, NULL, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) pthread_setname_np(pr_process.helper, pr_owner.name);
  return error;
}
