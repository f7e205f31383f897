/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "verbs/attach.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "verbs/process.h"
#include "verbs/qp.h"
#include "verbs/say.h"

#define AGAIN_NS 200000000ull
#define LINGER_NS 500000000ull
#define LINGER_LOOK_NS 1000000l

enum { ANSWER_MS = 8000 };

static void send_attach(bool resumed) {
  struct mrc_agent_attach attach = {.version = MRC_AGENT_VERSION,
                                    .command_bytes = sizeof(struct mrc_command),
                                    .event_bytes = sizeof(struct mrc_event),
                                    .config_bytes = sizeof(struct mrc_ctx_config),
                                    .resumed = resumed,
                                    .n_qps = resumed ? vb_qp_wanted() : 0};
  snprintf(attach.program, sizeof attach.program, "%s", program_invocation_short_name);
  const struct mrc_agent_frame head = {.kind = MRC_AGENT_ATTACH};
  vb_link_send(&vb_process.link, &head, &attach, sizeof attach, NULL, 0, false);
}

static void send_opened(void) {
  const struct mrc_agent_frame head = {.kind = MRC_AGENT_OPENED};
  vb_link_send(&vb_process.link, &head, &vb_process.opened, sizeof vb_process.opened, NULL, 0,
               false);
}

/* Waits for a frame. */
static int receive(struct vb_frame *frame) {
  struct pollfd fd = {.fd = vb_process.link.fd, .events = POLLIN};
  if (poll(&fd, 1, ANSWER_MS) != 1) return -ETIMEDOUT;
  return vb_link_receive(&vb_process.link, frame) == 1 ? 0 : -ECONNRESET;
}

/* Opens the engine, and tells the agent its source ports or why it cannot be opened. */
static int open_engine(const struct mrc_agent_open *open) {
  struct mrc_agent_opened *opened = &vb_process.opened;
  *opened = (struct mrc_agent_opened){0};
  int error = 0;
  vb_process.ctx = mrc_ctx_create(&open->config, &error, opened->cause, sizeof opened->cause);
  opened->error = error;
  if (vb_process.ctx) {
    opened->udp_port = mrc_ctx_udp_port(vb_process.ctx);
    for (int port = 1; port <= MRC_MAX_PORTS; port++)
      for (int i = 0; i < 64; i++)
        opened->sports[port - 1][i] = mrc_ctx_source_port(vb_process.ctx, port, i);
  }
  send_opened();
  return error;
}

static void take_device(const struct mrc_agent_open *open) {
  vb_process.n_gids = (int)(open->n_gids < MRC_AGENT_MAX_GIDS ? open->n_gids : MRC_AGENT_MAX_GIDS);
  memcpy(vb_process.gids, open->gids, sizeof vb_process.gids);
  vb_process.n_ports = (int)(open->n_ports < MRC_MAX_PORTS ? open->n_ports : MRC_MAX_PORTS);
  memcpy(vb_process.ports, open->ports, sizeof vb_process.ports);
  vb_process.n_numbers =
      open->n_numbers < MRC_AGENT_MAX_NUMBERS ? open->n_numbers : MRC_AGENT_MAX_NUMBERS;
  memcpy(vb_process.numbers, open->numbers, vb_process.n_numbers * sizeof(uint32_t));
}

/* The agent asks again if an interface has gone between its look and ours. */
static int open_as_told(void) {
  for (;;) {
    struct vb_frame frame;
    int error = receive(&frame);
    if (error != 0) return error;
    if (frame.head.kind == MRC_AGENT_REFUSED) {
      vb_say("the agent of this host refuses: %.*s", (int)frame.bytes, (const char *)frame.body);
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

int vb_attach(void) {
  if (vb_process.forked) return ENODEV;
  if (vb_process.ctx) return 0;
  int error = vb_link_open(&vb_process.link);
  if (error == -EPERM)
    vb_say("another user has the socket of the agent: it is not trusted");
  else if (error != 0)
    vb_say("no agent runs on this host: start it with mrc agent, or the program with mrc run --");
  if (error == 0) {
    send_attach(false);
    error = open_as_told();
    if (error != 0 && error != -EPERM) vb_say("the agent does not answer: %s", strerror(-error));
    if (error != 0) vb_link_close(&vb_process.link);
  }
  return -error;
}

void vb_attach_again(uint64_t now_ns) {
  if (now_ns - vb_process.attached_ns < AGAIN_NS) return;
  vb_process.attached_ns = now_ns;
  if (vb_link_open(&vb_process.link) != 0) return;
  send_attach(true);
  send_opened();
  vb_process.asked = false;
  vb_qp_tell_all();
}

static void linger(uint32_t left) {
  const uint64_t until_ns = vb_now_ns() + LINGER_NS;
  while (vb_process.n_exist > left && vb_process.link.fd >= 0 && vb_now_ns() < until_ns) {
    vb_unlock();
    nanosleep(&(struct timespec){.tv_nsec = LINGER_LOOK_NS}, NULL);
    vb_lock();
  }
}

static uint32_t staying;

static void count(struct vb_qp *qp) { staying += qp->exists && !qp->leaving; }

void vb_attach_linger(void) {
  staying = 0;
  vb_process_each_qp(count);
  linger(staying);
}

void vb_attach_leave(void) {
  vb_process_each_qp(vb_qp_release);
  linger(0);
}
