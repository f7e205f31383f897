/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "agent/process.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "msg/types.h"

#define NUMBER_NS 10000000000ull /* for the agent to grant numbers */

struct pr_process pr_process = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                .changed = PTHREAD_COND_INITIALIZER,
                                .link.fd = -1,
                                .wake_fd = -1,
                                .next_cookie = 1};

uint64_t pr_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* By a clock that nobody sets. */
bool pr_wait(uint64_t until_ns) {
  const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                 .tv_nsec = (long)(until_ns % 1000000000u)};
  return pthread_cond_clockwait(&pr_process.changed, &pr_process.lock, CLOCK_MONOTONIC, &until) ==
         0;
}

void pr_submit(const struct mrc_command *command) {
  /* A turn takes commands from the ring as long as its replies have room: they are few. */
  while (mrc_ctx_submit(pr_process.ctx, command, 1) == 0)
    mrc_ctx_run(pr_process.ctx, 0);
}

void pr_tell(uint32_t kind, int32_t value, uint64_t cookie, const void *body, size_t bytes,
             const void *more, size_t more_bytes) {
  const struct mrc_agent_frame head = {.kind = kind, .value = value, .cookie = cookie};
  pr_link_send(&pr_process.link, &head, body, bytes, more, more_bytes, false);
}

uint32_t pr_number(bool waits) {
  const uint64_t until_ns = pr_now_ns() + NUMBER_NS;
  do {
    if (!pr_process.asked && pr_process.n_numbers <= MRC_AGENT_MAX_NUMBERS / 2) {
      pr_process.asked = true;
      pr_tell(MRC_AGENT_NUMBERS, 0, 0, NULL, 0, NULL, 0);
    }
    if (pr_process.n_numbers > 0) return pr_process.numbers[--pr_process.n_numbers];
  } while (waits && pr_wait(until_ns));
  return 0;
}

/* ---- Attaching ---- */

#define AGAIN_NS 200000000ull
#define LINGER_LOOK_NS 1000000l
#define ANSWER_LOOK_NS 100000000l

/* Looks, not times: while the machine stands still, nothing is late. */
enum { ANSWER_LOOKS = 80, LINGER_LOOKS = 500 };

static void send_attach(bool resumed) {
  struct mrc_agent_attach attach = {.version = MRC_AGENT_VERSION,
                                    .command_bytes = sizeof(struct mrc_command),
                                    .event_bytes = sizeof(struct mrc_event),
                                    .config_bytes = sizeof(struct mrc_ctx_config),
                                    .resumed = resumed,
                                    .n_qps = resumed ? pr_owner.to_resume() : 0};
  snprintf(attach.program, sizeof attach.program, "%s", program_invocation_short_name);
  pr_tell(MRC_AGENT_ATTACH, 0, 0, &attach, sizeof attach, NULL, 0);
}

static void send_opened(void) {
  pr_tell(MRC_AGENT_OPENED, 0, 0, &pr_process.opened, sizeof pr_process.opened, NULL, 0);
}

/* Opens the engine, and tells the agent its source ports or why it cannot be opened. */
static int open_engine(const struct mrc_agent_open *open) {
  struct mrc_agent_opened *opened = &pr_process.opened;
  *opened = (struct mrc_agent_opened){0};
  int error = 0;
  pr_process.ctx = mrc_ctx_create(&open->config, &error, opened->cause, sizeof opened->cause);
  opened->error = error;
  if (pr_process.ctx) {
    opened->udp_port = mrc_ctx_udp_port(pr_process.ctx);
    for (int port = 1; port <= MRC_MAX_PORTS; port++)
      for (int i = 0; i < 64; i++)
        opened->sports[port - 1][i] = mrc_ctx_source_port(pr_process.ctx, port, i);
  }
  send_opened();
  return error;
}

static void take_device(const struct mrc_agent_open *open) {
  pr_process.n_gids = (int)(open->n_gids < MRC_AGENT_MAX_GIDS ? open->n_gids : MRC_AGENT_MAX_GIDS);
  memcpy(pr_process.gids, open->gids, sizeof pr_process.gids);
  pr_process.n_ports = (int)(open->n_ports < MRC_MAX_PORTS ? open->n_ports : MRC_MAX_PORTS);
  memcpy(pr_process.ports, open->ports, sizeof pr_process.ports);
  pr_process.n_numbers =
      open->n_numbers < MRC_AGENT_MAX_NUMBERS ? open->n_numbers : MRC_AGENT_MAX_NUMBERS;
  memcpy(pr_process.numbers, open->numbers, pr_process.n_numbers * sizeof(uint32_t));
}

static int take_frame(const struct pr_frame *frame);

/* A frame until the engine is open, or one that came with that. The agent asks again if an
   interface has gone between its look and ours. */
static int take_opening(const struct pr_frame *frame) {
  if (pr_process.ctx) return take_frame(frame);
  if (frame->head.kind == MRC_AGENT_REFUSED) {
    pr_say("the agent of this host refuses: %.*s", (int)frame->bytes, (const char *)frame->body);
    return -EPERM;
  }
  if (frame->head.kind != MRC_AGENT_OPEN || frame->bytes < sizeof(struct mrc_agent_open))
    return -EPROTO;
  static struct mrc_agent_open open; /* under the lock */
  memcpy(&open, frame->body, sizeof open);
  if (open_engine(&open) == 0) take_device(&open);
  return 0;
}

/* The program's signals wait for the end of a look. */
static int await_opening(void) {
  struct pollfd fd = {.fd = pr_process.link.fd, .events = POLLIN};
  sigset_t all;
  sigfillset(&all);
  for (int looks = 0; looks < ANSWER_LOOKS && !pr_process.ctx;) {
    const bool came = ppoll(&fd, 1, &(struct timespec){.tv_nsec = ANSWER_LOOK_NS}, &all) == 1;
    const int error = came ? pr_link_take(&pr_process.link, take_opening) : 0;
    /* An agent that goes behind OPEN is found again by the helper, as one that goes later. */
    if (error != 0) return pr_process.ctx ? 0 : error;
    looks = came ? 0 : looks + 1;
  }
  return pr_process.ctx ? 0 : -ETIMEDOUT;
}

/* Opens the engine as the agent says, if it is not open yet; a positive errno, after a line for the
   user. */
static int attach(void) {
  if (pr_process.forked) return ENODEV;
  if (pr_process.ctx) return 0;
  int error = pr_link_open(&pr_process.link);
  if (error == -EPERM)
    pr_say("another user has the socket of the agent: it is not trusted");
  else if (error != 0)
    pr_say("no agent runs on this host: start it with mrc agent, or the program with mrc run --");
  if (error == 0) {
    send_attach(false);
    error = await_opening();
    if (error != 0 && error != -EPERM) pr_say("the agent does not answer: %s", strerror(-error));
    if (error != 0) pr_link_close(&pr_process.link);
  }
  return -error;
}

/* Looks for another agent, if it is time, and gives it the process's QPs. */
static void attach_again(uint64_t now_ns) {
  if (now_ns - pr_process.attached_ns < AGAIN_NS) return;
  pr_process.attached_ns = now_ns;
  if (pr_link_open(&pr_process.link) != 0) return;
  send_attach(true);
  send_opened();
  pr_process.asked = false;
  pr_owner.tell_all();
}

void pr_attach_linger(uint32_t kept) {
  for (int looks = 0; looks < LINGER_LOOKS; looks++) {
    if (pr_process.n_exist <= kept || pr_process.link.fd < 0) return;
    pr_unlock();
    nanosleep(&(struct timespec){.tv_nsec = LINGER_LOOK_NS}, NULL);
    pr_lock();
  }
}

/* ---- Commands of the agent ---- */

struct pr_command {
  struct pr_command *next;
  uint64_t cookie;
  uint32_t op;
  bool unheard; /* its agent has gone */
  size_t bytes;
  _Alignas(16) uint8_t memory[];
};

/* The memory behind the pointer of a command; -1: the agent may not give it. */
static ptrdiff_t memory_of(const struct mrc_command *command) {
  const size_t n = command->value;
  switch ((enum mrc_command_op)command->op) {
    case MRC_COMMAND_QP_CREATE:
      return sizeof(struct mrc_qp_create_attr);
    case MRC_COMMAND_QP_MODIFY:
      if (command->value == MRC_QP_RTR) return sizeof(struct mrc_qp_rtr_attr);
      return command->value == MRC_QP_RTS ? sizeof(struct mrc_qp_rts_attr) : 0;
    case MRC_COMMAND_QP_SET_EVS:
      return (ptrdiff_t)(n * sizeof(struct mrc_ev_attr));
    case MRC_COMMAND_QP_SET_PEER:
      return (ptrdiff_t)(n * sizeof(struct mrc_peer_source));
    case MRC_COMMAND_QP_SET_SEAL:
      return sizeof(struct mrc_seal_attr);
    case MRC_COMMAND_QP_QUERY:
      return sizeof(struct mrc_qp_info);
    case MRC_COMMAND_QP_QUERY_EVS:
      return (ptrdiff_t)(n * sizeof(struct mrc_ev_info));
    case MRC_COMMAND_COUNTERS:
    case MRC_COMMAND_DROPS:
      return (ptrdiff_t)(n * sizeof(uint64_t));
    case MRC_COMMAND_TRACE:
      return (ptrdiff_t)(n * sizeof(struct mrc_trace_entry));
    case MRC_COMMAND_PORT_OPEN:
      return sizeof(struct mrc_port_opening);
    case MRC_COMMAND_MSG_CONNECT:
      return sizeof(struct mrc_msg_inbox);
    case MRC_COMMAND_QP_DESTROY:
    case MRC_COMMAND_QP_PROBE_EV:
    case MRC_COMMAND_QP_SET_EV_STATE:
    case MRC_COMMAND_QP_SET_MPR:
    case MRC_COMMAND_QP_SET_WEIGHT:
    case MRC_COMMAND_QP_SET_YIELDING:
    case MRC_COMMAND_PORT_UP:
    case MRC_COMMAND_PORT_CLOSE:
    case MRC_COMMAND_MSG_IDLE:
    case MRC_COMMAND_MSG_FAIL:
    case MRC_COMMAND_MSG_CLOSE:
      return 0;
    default:
      return -1;
  }
}

static int take_command(const struct pr_frame *frame) {
  struct mrc_command command;
  if (frame->bytes < sizeof command) return -EPROTO;
  memcpy(&command, frame->body, sizeof command);
  const size_t bytes = frame->bytes - sizeof command;
  const ptrdiff_t expected = memory_of(&command);
  if (expected < 0 || (size_t)expected != bytes || command.cookie & PR_COOKIE_OWN) return -EPROTO;
  struct pr_command *kept = malloc(sizeof *kept + bytes);
  if (!kept) return -ENOMEM;
  *kept = (struct pr_command){
      .next = pr_process.commands, .cookie = command.cookie, .op = command.op, .bytes = bytes};
  memcpy(kept->memory, frame->body + sizeof command, bytes);
  if (command.op == MRC_COMMAND_QP_SET_SEAL) explicit_bzero(frame->body, frame->bytes);
  pr_process.commands = kept;
  command.pointer = bytes > 0 ? kept->memory : NULL;
  if (command.op == MRC_COMMAND_QP_CREATE && pr_owner.domain) { /* the agent does not know PDs */
    struct mrc_qp_create_attr *attr = command.pointer;
    attr->domain = pr_owner.domain(attr->qpn);
  }
  pr_submit(&command);
  return 0;
}

static void send_event(const struct mrc_event *event, const void *memory, size_t bytes,
                       bool may_lose) {
  const struct mrc_agent_frame head = {.kind = MRC_AGENT_EVENT};
  pr_link_send(&pr_process.link, &head, event, sizeof *event, memory, bytes, may_lose);
}

static void on_reply(const struct mrc_event *event) {
  struct pr_command **place = &pr_process.commands;
  while (*place && (*place)->cookie != event->cookie)
    place = &(*place)->next;
  struct pr_command *kept = *place;
  if (!kept) return;
  *place = kept->next;
  const uint32_t op = kept->op;
  if (event->result >= 0) {
    if (op == MRC_COMMAND_QP_CREATE) pr_owner.exists(event->qpn, true);
    if (op == MRC_COMMAND_QP_DESTROY) pr_owner.exists(event->qpn, false);
  }
  /* The engine has filled the memory, which the agent gets. */
  const bool filled = op == MRC_COMMAND_QP_QUERY || op == MRC_COMMAND_QP_QUERY_EVS ||
                      op == MRC_COMMAND_COUNTERS || op == MRC_COMMAND_DROPS ||
                      op == MRC_COMMAND_TRACE || op == MRC_COMMAND_PORT_OPEN;
  if (!kept->unheard) send_event(event, kept->memory, filled ? kept->bytes : 0, false);
  if (op == MRC_COMMAND_QP_SET_SEAL) explicit_bzero(kept->memory, kept->bytes);
  free(kept);
}

/* An event of the engine: a reply to a command of the agent, or a change of state. */
static void tell_agent(const struct mrc_event *event) {
  if (event->type == MRC_EVENT_REPLY) {
    on_reply(event);
    return;
  }
  if (pr_process.link.lost > 0 && pr_process.link.n_waiting == 0) {
    const struct mrc_event lost = {.type = MRC_EVENT_LOST, .cookie = pr_process.link.lost};
    pr_process.link.lost = 0;
    send_event(&lost, NULL, 0, false);
  }
  const bool may_lose = event->type != MRC_EVENT_QP_ERROR && event->type != MRC_EVENT_PROBE;
  send_event(event, NULL, 0, may_lose);
  /* The agent hears it first: the program may end because of it. */
  if (event->type == MRC_EVENT_QP_ERROR) pr_owner.qp_error(event->qpn, event->status);
}

/* ---- Frames of the agent ---- */

static int take_numbers(const struct pr_frame *frame) {
  const size_t n = frame->bytes / sizeof(uint32_t);
  if (pr_process.n_numbers + n > PR_MAX_NUMBERS) return -EPROTO;
  memcpy(pr_process.numbers + pr_process.n_numbers, frame->body, n * sizeof(uint32_t));
  pr_process.n_numbers += (uint32_t)n;
  pr_process.asked = false;
  pthread_cond_broadcast(&pr_process.changed);
  return 0;
}

static int take_ready(const struct pr_frame *frame) {
  struct mrc_agent_ready ready;
  if (frame->bytes < sizeof ready) return -EPROTO;
  memcpy(&ready, frame->body, sizeof ready);
  pr_owner.ready(&ready, frame->body + sizeof ready, (uint32_t)(frame->bytes - sizeof ready));
  return 0;
}

/* A frame about a QP with a line of text. */
static void take_reason(const struct pr_frame *frame, void (*take)(uint32_t, const char *)) {
  char reason[MRC_AGENT_TEXT];
  snprintf(reason, sizeof reason, "%.*s", (int)frame->bytes, (const char *)frame->body);
  take((uint32_t)frame->head.value, reason);
}

static bool any_up(void) {
  for (int i = 0; i < pr_process.n_ports; i++)
    if (pr_process.ports[i].up) return true;
  return false;
}

static int take_ports(const struct pr_frame *frame) {
  const size_t n = frame->bytes / sizeof(struct mrc_agent_port);
  if (n > MRC_MAX_PORTS) return -EPROTO;
  const bool was_up = any_up();
  memcpy(pr_process.ports, frame->body, n * sizeof(struct mrc_agent_port));
  pr_process.n_ports = (int)n;
  if (any_up() != was_up && pr_owner.ports_changed) pr_owner.ports_changed(!was_up);
  return 0;
}

static int take_ev_event(const struct pr_frame *frame) {
  struct mrc_agent_ev_event event;
  if (frame->bytes < sizeof event) return -EPROTO;
  memcpy(&event, frame->body, sizeof event);
  if (pr_owner.ev_event) pr_owner.ev_event(&event);
  return 0;
}

static int take_peer_request(const struct pr_frame *frame) {
  struct mrc_agent_qp_request request;
  if (frame->bytes < sizeof request) return -EPROTO;
  memcpy(&request, frame->body, sizeof request);
  if (pr_owner.peer_request)
    pr_owner.peer_request(&request, frame->head.cookie);
  else
    pr_tell(MRC_AGENT_ADMIT, -ENOENT, frame->head.cookie, NULL, 0, NULL, 0);
  return 0;
}

static int take_admitted(const struct pr_frame *frame) {
  uint32_t qpn;
  if (frame->bytes < sizeof qpn || !pr_owner.admitted) return -EPROTO;
  memcpy(&qpn, frame->body, sizeof qpn);
  pr_owner.admitted((uint32_t)frame->head.value, qpn);
  return 0;
}

/* A frame of the agent. An error: the agent is to be left. */
static int take_frame(const struct pr_frame *frame) {
  switch ((enum mrc_agent_kind)frame->head.kind) {
    case MRC_AGENT_COMMAND:
      return take_command(frame);
    case MRC_AGENT_GRANTED:
      return take_numbers(frame);
    case MRC_AGENT_READY:
      return take_ready(frame);
    case MRC_AGENT_FAILED:
      take_reason(frame, pr_owner.failed);
      return 0;
    case MRC_AGENT_GONE:
      take_reason(frame, pr_owner.gone);
      return 0;
    case MRC_AGENT_PORTS:
      return take_ports(frame);
    case MRC_AGENT_ANSWER:
      if (pr_owner.answer) pr_owner.answer(frame);
      return 0;
    case MRC_AGENT_EV_EVENT:
      return take_ev_event(frame);
    case MRC_AGENT_PEER_REQUEST:
      return take_peer_request(frame);
    case MRC_AGENT_ADMITTED:
      return take_admitted(frame);
    case MRC_AGENT_REFUSED: /* the next agent, which then closes the connection */
      PR_SAY_ONCE("the agent of this host refuses: %.*s", (int)frame->bytes,
                  (const char *)frame->body);
      return -EPROTO;
    default:
      return -EPROTO;
  }
}

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
    if (pr_owner.completed) pr_owner.completed(&event->wc);
    return;
  }
  if (event->type == MRC_EVENT_REPLY && event->cookie & PR_COOKIE_OWN) {
    if (event->cookie != pr_process.call) return;
    pr_process.call = 0;
    pr_process.call_result = event->result;
    return;
  }
  tell_agent(event);
}

void pr_engine_turn(void) {
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

static void tend(uint64_t now_ns) {
  tended_ns = now_ns;
  if (pr_link_take(&pr_process.link, take_frame) == 0) return;
  /* The agent has gone. Its commands that run end unheard. */
  for (struct pr_command *each = pr_process.commands; each; each = each->next)
    each->unheard = true;
  if (pr_owner.agent_gone) pr_owner.agent_gone();
}

static bool asleep; /* the helper, until packets, deadlines or a wake */

static void wake_helper(void) { eventfd_write(pr_process.wake_fd, 1); }

/* After the program has run the engine or given it work: the helper's sleep must end in time. */
static void keep_armed(void) {
  if (asleep && !mrc_ctx_arm(pr_process.ctx)) wake_helper();
}

static void set_polled(uint64_t ns) {
  atomic_store_explicit(&pr_process.polled_ns, ns, memory_order_relaxed);
}

/* Also reads the agent's frames: on the same core, a program that polls all the time may keep the
   lock from the helper. */
void pr_engine_poll(bool turns) {
  if (turns && pr_process.forked) return; /* the timers are the parent's, and so is the helper */
  if (turns) pr_engine_turn();
  const uint64_t now_ns = pr_now_ns();
  set_polled(now_ns);
  if (now_ns - tended_ns > TEND_NS && pr_process.link.fd >= 0) tend(now_ns);
  if (turns) keep_armed();
}

void pr_engine_posted(bool idle) {
  if (idle) pr_engine_turn(); /* the first one goes at once */
  keep_armed();
}

void pr_engine_owed(void) {
  if (asleep) wake_helper();
}

int pr_engine_call(struct mrc_command *command) {
  if (pr_process.forked) return -EIO;
  command->cookie = pr_process.call = PR_COOKIE_CALL | pr_process.next_cookie++;
  pr_submit(command);
  while (pr_process.call != 0)
    pr_engine_turn();
  return pr_process.call_result;
}

/* ---- The helper ---- */

void pr_engine_leave(void) {
  set_polled(0);
  wake_helper();
}

/* What wakes the helper: a wake, frames of the agent, the engine. */
enum { WAKE, LINK, ENGINE, FDS };

static void set_fds(struct pollfd fds[FDS]) {
  const short link = POLLIN | (pr_process.link.n_waiting > 0 ? POLLOUT : 0);
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
  const uint64_t polled_ns = atomic_load_explicit(&pr_process.polled_ns, memory_order_relaxed);
  return pr_now_ns() - polled_ns; /* read before: it may poll meanwhile */
}

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
    locked = pthread_mutex_trylock(&pr_process.lock) == 0;
    until_ns += LOCKED_LOOK_NS;
    tries++;
  }
  if (!locked) pr_lock();
  silence(fds);
}

static void help(void) {
  const uint64_t now_ns = pr_now_ns();
  /* how long after a poll the program is left the engine */
  const uint64_t left_ns = pr_owner.watches() ? WATCHER_NS : POLLER_NS;
  if (pr_process.link.fd >= 0)
    tend(now_ns);
  else
    attach_again(now_ns);
  if (pr_owner.end_gone) pr_owner.end_gone(now_ns);
  if (age_of_poll_ns() < left_ns) {
    stand_by(left_ns);
    return;
  }
  look_ns = FIRST_LOOK_NS;
  pr_engine_turn();
  if (!mrc_ctx_arm(pr_process.ctx)) return;
  if (pr_process.link.fd < 0)
    rest(AGENT_LOOK_NS);
  else
    rest(pr_process.n_timed > 0 ? GONE_LOOK_NS : UINT64_MAX);
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

static int start_helper(void) {
  sigset_t all;
  sigset_t before;
  pr_process.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (pr_process.wake_fd < 0) return errno;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&pr_process.helper, NULL, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) pthread_setname_np(pr_process.helper, pr_name);
  return error;
}

/* ---- The first and the last thing that a process does ---- */

static void in_child(void) {
  pr_process.forked = true;
  pthread_mutex_init(&pr_process.lock, NULL);
  if (pr_process.link.fd >= 0) close(pr_process.link.fd);
  pr_process.link.fd = -1;
}

int pr_enter(void) {
  int error = attach();
  if (error != 0 || pr_process.wake_fd >= 0) return error;
  error = start_helper();
  if (error == 0) pthread_atfork(NULL, NULL, in_child);
  return error;
}

__attribute__((destructor)) static void leave(void) {
  if (pr_process.forked || pthread_mutex_trylock(&pr_process.lock) != 0) return;
  if (pr_process.ctx) {
    pr_owner.release_all();
    pr_attach_linger(0);
  }
  pr_unlock();
}

/* ---- Memory regions ---- */

enum {
  KEY_TRIES = 8,
  /* On Arm the kernel ignores the upper byte of an address: the end of a longer region would seem
     readable. */
  ADDRESS_BITS = 55,
  POPULATE_WRITE = 23 /* MADV_POPULATE_WRITE, which glibc 2.34 does not name */
};

static bool is_readable(const uint8_t *address) {
  uint8_t byte;
  const struct iovec to = {.iov_base = &byte, .iov_len = 1};
  const struct iovec from = {.iov_base = (void *)(uintptr_t)address, .iov_len = 1};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 || errno == EPERM || errno == ENOSYS;
}

/* How far an address is behind the begin of its page. */
static size_t offset_of(const void *address) {
  return (uintptr_t)address % (uintptr_t)sysconf(_SC_PAGESIZE);
}

/* Makes its page as a write would, and changes nothing: another thread may write there. */
static bool make_page(const void *address) {
  return madvise((void *)((uintptr_t)address - offset_of(address)), 1, POPULATE_WRITE) == 0;
}

static bool is_writable(const uint8_t *address) {
  static uint8_t own;
  return make_page(address) || !make_page(&own); /* a kernel before 5.14 does not tell */
}

/* No page lies there: the call does nothing but to look for gaps. */
static bool has_gap(const uint8_t *address, size_t bytes) {
  const size_t before = offset_of(address);
  return msync((void *)((uintptr_t)address - before), bytes + before, MS_ASYNC) != 0 &&
         errno == ENOMEM;
}

/* Whether this process has the memory and can read it, and write it if it is `written`. It cannot
   read memory of a GPU, for example. Permissions are those of the first and the last page. */
static bool is_usable(const void *address, size_t bytes, bool written) {
  const uint8_t *first = address;
  const uint8_t *last = first + bytes - 1;
  if (bytes >> ADDRESS_BITS != 0 || !is_readable(first) || !is_readable(last)) return false;
  if (has_gap(first, bytes)) return false;
  return !written || (is_writable(first) && is_writable(last));
}

int pr_memory_register(const void *address, size_t bytes, enum pr_memory memory, uint32_t access,
                       uint32_t domain, uint32_t *key) {
  if (memory != PR_MEMORY_OWN && !is_usable(address, bytes, memory == PR_MEMORY_WRITTEN))
    return -EFAULT;
  for (int i = 0; i < KEY_TRIES; i++) {
    do {
      if (getrandom(key, sizeof *key, 0) != sizeof *key) return -EAGAIN;
    } while (*key == 0);
    struct mrc_command command = {.op = MRC_COMMAND_MR_REGISTER,
                                  .address = (uint64_t)(uintptr_t)address,
                                  .bytes = bytes,
                                  .value = domain,
                                  .key = *key,
                                  .access = access};
    const int error = pr_engine_call(&command);
    if (error != -EEXIST) return error;
  }
  return -EAGAIN;
}
