/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "agent/process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/library.h"

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

uint32_t pr_number(void) {
  if (!pr_process.asked && pr_process.n_numbers <= MRC_AGENT_MAX_NUMBERS / 2) {
    pr_process.asked = true;
    pr_tell(MRC_AGENT_NUMBERS, 0, 0, NULL, 0, NULL, 0);
  }
  return pr_process.n_numbers > 0 ? pr_process.numbers[--pr_process.n_numbers] : 0;
}

uint32_t pr_await_number(void) {
  const uint64_t until_ns = pr_now_ns() + NUMBER_NS;
  for (;;) {
    const uint32_t number = pr_number();
    if (number != 0) return number;
    if (!pr_wait(until_ns)) return 0;
  }
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
  const struct mrc_agent_frame head = {.kind = MRC_AGENT_ATTACH};
  pr_link_send(&pr_process.link, &head, &attach, sizeof attach, NULL, 0, false);
}

static void send_opened(void) {
  const struct mrc_agent_frame head = {.kind = MRC_AGENT_OPENED};
  pr_link_send(&pr_process.link, &head, &pr_process.opened, sizeof pr_process.opened, NULL, 0,
               false);
}

/* Waits for a frame. The program's signals wait for the end of a look. */
static int receive(struct pr_frame *frame) {
  struct pollfd fd = {.fd = pr_process.link.fd, .events = POLLIN};
  sigset_t all;
  sigfillset(&all);
  int looks = 0;
  while (ppoll(&fd, 1, &(struct timespec){.tv_nsec = ANSWER_LOOK_NS}, &all) != 1)
    if (++looks == ANSWER_LOOKS) return -ETIMEDOUT;
  return pr_link_receive(&pr_process.link, frame) == 1 ? 0 : -ECONNRESET;
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

/* The agent asks again if an interface has gone between its look and ours. */
static int open_as_told(void) {
  for (;;) {
    struct pr_frame frame;
    int error = receive(&frame);
    if (error != 0) return error;
    if (frame.head.kind == MRC_AGENT_REFUSED) {
      pr_say("the agent of this host refuses: %.*s", (int)frame.bytes, (const char *)frame.body);
      return -EPERM;
    }
    if (frame.head.kind != MRC_AGENT_OPEN || frame.bytes < sizeof(struct mrc_agent_open))
      return -EPROTO;
    static struct mrc_agent_open open; /* under the lock */
    memcpy(&open, frame.body, sizeof open);
    error = open_engine(&open);
    if (error == 0) {
      take_device(&open);
      return 0;
    }
  }
}

int pr_attach(void) {
  if (pr_process.forked) return ENODEV;
  if (pr_process.ctx) return 0;
  int error = pr_link_open(&pr_process.link);
  if (error == -EPERM)
    pr_say("another user has the socket of the agent: it is not trusted");
  else if (error != 0)
    pr_say("no agent runs on this host: start it with mrc agent, or the program with mrc run --");
  if (error == 0) {
    send_attach(false);
    error = open_as_told();
    if (error != 0 && error != -EPERM) pr_say("the agent does not answer: %s", strerror(-error));
    if (error != 0) pr_link_close(&pr_process.link);
  }
  return -error;
}

void pr_attach_again(uint64_t now_ns) {
  if (now_ns - pr_process.attached_ns < AGAIN_NS) return;
  pr_process.attached_ns = now_ns;
  if (pr_link_open(&pr_process.link) != 0) return;
  send_attach(true);
  send_opened();
  pr_process.asked = false;
  pr_owner.tell_all();
}

static void linger(uint32_t left) {
  for (int looks = 0; looks < LINGER_LOOKS; looks++) {
    if (pr_process.n_exist <= left || pr_process.link.fd < 0) return;
    pr_unlock();
    nanosleep(&(struct timespec){.tv_nsec = LINGER_LOOK_NS}, NULL);
    pr_lock();
  }
}

void pr_attach_linger(void) { linger(pr_owner.staying()); }

void pr_attach_leave(void) {
  pr_owner.release_all();
  linger(0);
}
