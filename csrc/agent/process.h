/* SPDX-License-Identifier: Apache-2.0 */
/* What all objects of a process share: one engine, one lock, one connection to the agent. Who runs
   the engine: the threads of the program while they poll, else the helper thread. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/link.h"

enum { PR_MAX_NUMBERS = 4 * MRC_AGENT_MAX_NUMBERS };

struct pr_command;

struct pr_process {
  pthread_mutex_t lock;   /* guards all below, all objects and all calls of the engine */
  pthread_cond_t changed; /* numbers; of the owner too */
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
/* A QPN of the agent's block; 0: none is left. Asks for another block in time, and `waits` for it,
   which the helper must not: 0 if none came. */
uint32_t pr_number(bool waits);

/* Under the lock. Waits until the agent has ended all QPs but those that the program keeps, for
   half a second at most, so that the last acknowledgements reach their peers. */
void pr_attach_linger(uint32_t kept);

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

/* ---- The library, which owns the QPs ---- */

/* What the library provides. These functions report to it what happens to its QPs. All are called
   under the lock. */
struct pr_owner {
  /* ---- The agent ---- */

  /* QPs that have a connection, or wait for one. */
  uint32_t (*to_resume)(void);
  /* Sends a CONNECT for each of them, then what else the next agent must know. */
  void (*tell_all)(void);
  /* Gives all QPs back: the process ends. */
  void (*release_all)(void);
  void (*ready)(const struct mrc_agent_ready *ready, const uint8_t *resume, uint32_t resume_bytes);
  void (*failed)(uint32_t qpn, const char *reason);
  void (*gone)(uint32_t qpn, const char *reason); /* "": the peer has named none */
  /* Ends the QPs whose peers have gone a while ago. Or NULL. */
  void (*end_gone)(uint64_t now_ns);
  void (*ports_changed)(bool any_up);                       /* or NULL */
  void (*ev_event)(const struct mrc_agent_ev_event *event); /* or NULL */
  /* Another endpoint asks for a QP: the answer is an ADMIT. Or NULL. */
  void (*peer_request)(const struct mrc_agent_qp_request *request, uint64_t cookie);
  void (*admitted)(uint32_t qpn, uint32_t dest_qpn); /* or NULL */
  /* An ANSWER has come; none comes any more. Or NULL. */
  void (*answer)(const struct pr_frame *frame);
  void (*agent_gone)(void);

  /* ---- The engine ---- */

  void (*turned)(void); /* after a turn; or NULL */

  /* Whether peers may write memory of the program, which may wait for the bytes and not poll. */
  bool (*watches)(void);

  /* The agent has created or destroyed a QP. */
  void (*exists)(uint32_t qpn, bool exists);
  /* The protection domain of a QP; or NULL: all have the same. */
  uint32_t (*domain)(uint32_t qpn);
  void (*qp_error)(uint32_t qpn, uint32_t status); /* enum mrc_wc_status */
  void (*completed)(const struct mrc_wc *wc);      /* or NULL */
};

/* Each library defines its own. */
extern const struct pr_owner pr_owner;

/* ---- The engine ---- */

/* Under the lock. Attaches to the agent and starts the helper, unless that was done; a positive
   errno. The process leaves the agent when it ends. */
int pr_enter(void);

/* Under the lock. One turn of the engine: sends, receives, and hands out its events. */
void pr_engine_turn(void);
/* Under the lock. A thread of the program polls: the helper then leaves it the engine. `turns`: it
   has no completion without a turn. */
void pr_engine_poll(bool turns);
/* Under the lock. After a post; `idle`: the QP had nothing outstanding. */
void pr_engine_posted(bool idle);
/* Under the lock. There is work for the engine, or for the owner's `turned`, which may wait for the
   next turn. */
void pr_engine_owed(void);
/* Under the lock. Runs a command and returns its result. */
int pr_engine_call(struct mrc_command *command);
/* Under the lock. The calling thread will sleep: the helper runs the engine from now on. */
void pr_engine_leave(void);

/* ---- Memory regions that the program registers, under random keys. Under the lock ---- */

enum pr_memory {
  PR_MEMORY_OWN,    /* of the library */
  PR_MEMORY_READ,   /* of the program, which can read it */
  PR_MEMORY_WRITTEN /* and write it */
};

/* `access` is a set of enum mrc_access, `domain` that of its QPs or 0. Sets `key`, never to 0. 0;
   -EFAULT: the program has no such memory; -EAGAIN: no random numbers; or an error of
   mrc_mr_register. */
int pr_memory_register(const void *address, size_t bytes, enum pr_memory memory, uint32_t access,
                       uint32_t domain, uint32_t *key);
