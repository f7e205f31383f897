/* SPDX-License-Identifier: Apache-2.0 */
/* One turn of an engine's driver, after input: what is due, results, bursts, results. Sockets and
   simulators run the same one, so that tests in virtual time run the order that ships. It owns
   neither clock nor I/O: three calls of the driver provide them. */
#ifndef MRC_CORE_TURN_H
#define MRC_CORE_TURN_H

#include "../mrc.h"

/* What a driver does in a turn. `driver` is that of struct mrc_turn. */
struct mrc_turn_calls {
  /* The time. Read again after each send, since a send takes long. */
  uint64_t (*now)(void *driver);
  /* Takes completions and events from the engine. True when it left some that it can take next. */
  bool (*publish)(void *driver);
  /* Sends bursts and writes their fate as mrc_engine_commit takes it. Returns the ports that this
     has blocked, bit n - 1 for port n. */
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

/* `backlog`: packets wait to be received. They may answer what is overdue, so deadlines wait too,
   but not for ever. True when work is left that needs no further input. */
bool mrc_turn_run(struct mrc_turn *turn, bool backlog, uint64_t now_ns);
/* Where no time passes: turns until the engine has nothing to send. Returns its deadline. */
uint64_t mrc_turn_run_dry(struct mrc_turn *turn, uint64_t now_ns);

#endif
