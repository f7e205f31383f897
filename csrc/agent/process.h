/* SPDX-License-Identifier: Apache-2.0 */
/* What all objects of a process share: one engine, one lock, one connection to the agent. How it
   attaches to the agent of its host, and leaves it. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/link.h"

enum { PR_MAX_NUMBERS = 4 * MRC_AGENT_MAX_NUMBERS };

struct pr_command;
struct pr_request;

struct pr_process {
  pthread_mutex_t lock;   /* guards all below, all objects and all calls of the engine */
  pthread_cond_t changed; /* numbers, answers */
  mrc_ctx *ctx;           /* NULL: not attached yet */
  struct pr_link link;
  struct mrc_agent_opened opened; /* for the next agent */
  uint8_t gids[MRC_AGENT_MAX_GIDS][16];
  int n_gids;
  struct mrc_agent_port ports[MRC_MAX_PORTS];
  int n_ports;

  uint32_t n_exist; /* QPs in the engine, also those whose handles are destroyed */
  uint32_t n_timed; /* QPs that the owner ends at some time, unless something happens before */
  uint32_t numbers[PR_MAX_NUMBERS];
  uint32_t n_numbers;
  bool asked; /* for numbers */

  struct pr_command *commands; /* of the agent, until their replies */
  uint64_t next_cookie;
  uint64_t call; /* cookie of the call that runs; 0: its reply has come */
  int call_result;
  struct pr_request *requests; /* of the program, until their answers */

  _Atomic uint64_t polled_ns; /* when the program last ran the engine; 0: it waits, and the helper
                                 does. The helper reads it without the lock */
  int wake_fd;                /* of the helper */
  pthread_t helper;
  bool stopping;
  uint64_t attached_ns; /* of the last attempt to find another agent */
  bool forked;          /* in a child: nothing works */
};

extern struct pr_process pr_process;

static inline void pr_lock(void) { pthread_mutex_lock(&pr_process.lock); }
static inline bool pr_try_lock(void) { return pthread_mutex_trylock(&pr_process.lock) == 0; }
static inline void pr_unlock(void) { pthread_mutex_unlock(&pr_process.lock); }

/* CLOCK_MONOTONIC */
uint64_t pr_now_ns(void);

/* Under the lock, which others get meanwhile: returns when something has `changed`, or at this
   time. False: it is that time. */
bool pr_wait(uint64_t until_ns);

/* Cookies of the library's own commands; the agent's have these bits 0. */
#define PR_COOKIE_CALL (3ull << 62)
#define PR_COOKIE_OWN (2ull << 62) /* set in them */

/* Queues a command for the engine; makes room by running it. */
void pr_submit(const struct mrc_command *command);
/* Sends the agent a frame whose body has two parts. */
void pr_tell(uint32_t kind, int32_t value, uint64_t cookie, const void *body, size_t bytes,
             const void *more, size_t more_bytes);
/* A QPN of the agent's block; 0: none is left. Asks for another block in time. */
uint32_t pr_number(void);
/* The same, but waits for the agent; 0: no number came in time. Not for the helper. */
uint32_t pr_await_number(void);

/* ---- Attaching to the agent of the host, and leaving it ---- */

/* Under the lock. Opens the engine as the agent says, if it is not open yet; a positive errno,
   after a line for the user. */
int pr_attach(void);
/* Under the lock. Looks for another agent, if it is time, and gives it the process's QPs. */
void pr_attach_again(uint64_t now_ns);
/* Under the lock. Waits until the agent has ended the QPs that the program has destroyed, for half
   a second at most, so that the last acknowledgements reach their peers. */
void pr_attach_linger(void);
/* Under the lock. The same at the end of the process, for all its QPs. */
void pr_attach_leave(void);
/* For how long this process has run without a stop: SIGSTOP, or no core. During a stop packets wait
   in its sockets, so the time proves nothing about a peer. */

#define PR_STOP_NS 100000000ull /* between two looks */

struct pr_runs {
  uint64_t looked_ns, since_ns; /* of the last look; when the last stop has ended */
};

/* A look. Returns since when the process runs. */
static inline uint64_t pr_runs_since(struct pr_runs *runs, uint64_t now_ns) {
  if (now_ns - runs->looked_ns > PR_STOP_NS) runs->since_ns = now_ns;
  runs->looked_ns = now_ns;
  return runs->since_ns;
}
