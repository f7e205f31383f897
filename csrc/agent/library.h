/* SPDX-License-Identifier: Apache-2.0 */
/* The library that contains this folder: its lines for users, its exported names, what it provides.
   It owns the QPs. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "agent/protocol.h"

/* What the library provides. These functions report to it what happens to its QPs. All are called
   under the lock. */
struct pr_owner {
  const char *name; /* of the library, for lines on stderr */

  /* ---- The agent ---- */

  /* QPs that have a connection, or wait for one; and those that the program keeps. */
  uint32_t (*to_resume)(void);
  uint32_t (*staying)(void);
  /* Sends a CONNECT for each of the former, then what else the next agent must know. */
  void (*tell_all)(void);
  /* Gives all QPs back: the process ends. */
  void (*release_all)(void);
  void (*ready)(const struct mrc_agent_ready *ready, const uint8_t *resume, uint32_t resume_bytes);
  void (*failed)(uint32_t qpn, const char *reason);
  void (*gone)(uint32_t qpn, const char *reason); /* "": the peer has named none */
  /* Ends the QPs whose peers have gone a while ago. */
  void (*end_gone)(uint64_t now_ns);
  void (*ports_changed)(bool any_up);                       /* or NULL */
  void (*ev_event)(const struct mrc_agent_ev_event *event); /* or NULL */
  /* Another endpoint asks for a QP: the answer is an ADMIT. Or NULL. */
  void (*peer_request)(const struct mrc_agent_qp_request *request, uint64_t cookie);
  void (*admitted)(uint32_t qpn, uint32_t dest_qpn); /* or NULL */

  /* ---- The engine ---- */

  void (*turned)(void); /* after a turn; or NULL */

  /* Whether peers may write memory of the program, which may wait for the bytes and not poll. */
  bool (*watches)(void);

  /* The agent has created or destroyed a QP. */
  void (*exists)(uint32_t qpn, bool exists);
  /* The protection domain of a QP. */
  uint32_t (*domain)(uint32_t qpn);
  void (*qp_error)(uint32_t qpn, uint32_t status); /* enum mrc_wc_status */
  void (*completed)(const struct mrc_wc *wc);
};

/* Each library defines its own. */
extern const struct pr_owner pr_owner;

/* A function that programs call; libmrc.map gives it its version. */
#define EXPORT __attribute__((visibility("default")))

/* Prints the name of the library and a line for the user of a program on stderr, where a process
   prints at most a few. MRC_QUIET=1 silences them. */
void pr_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same, once in a process: programs may try again. */
#define PR_SAY_ONCE(...)                                       \
  do {                                                         \
    static atomic_flag said = ATOMIC_FLAG_INIT;                \
    if (!atomic_flag_test_and_set(&said)) pr_say(__VA_ARGS__); \
  } while (0)
