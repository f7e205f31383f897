/* SPDX-License-Identifier: Apache-2.0 */
/* One turn of an engine's driver, after input: deadlines, results, bursts, results. The socket
   driver and the simulators run the same code, so that tests in virtual time use the production
   order. Clock and I/O come from three calls of the driver. */
#pragma once

#include "mrc.h"

/* What a driver does in a turn. `driver` is the field of struct mrc_turn. */
struct mrc_turn_calls {
  /* The time. Read again after each send, since a send takes long. */
  uint64_t (*now)(void *driver);
  /* Takes completions and events from the engine. True if there may be more to take. */
  bool (*publish)(void *driver);
  /* Sends bursts and writes the result of each to `taken`, in the format of mrc_engine_commit.
     Returns the ports whose sockets became full; bit n - 1 for port n. */
  uint32_t (*send)(void *driver, const struct mrc_burst *bursts, int *taken, int n,
                   uint64_t now_ns);
};

struct mrc_turn {
  const struct mrc_turn_calls *calls;
  void *driver;
  mrc_engine *engine;
  uint64_t expired_ns; /* when deadlines were last handled */
  int capacity;        /* bursts of one transmit, 1..MRC_MAX_BURSTS */
  bool sent;           /* the last turn offered bursts to the driver */
};

/* `backlog`: packets wait to be received. They may contain overdue answers, so deadlines are
   delayed, by at most 10 ms. True when work is left that needs no further input. */
bool mrc_turn_run(struct mrc_turn *turn, bool backlog, uint64_t now_ns);
/* For virtual time: runs turns until the engine has nothing to send. Returns its deadline. */
uint64_t mrc_turn_run_dry(struct mrc_turn *turn, uint64_t now_ns);
