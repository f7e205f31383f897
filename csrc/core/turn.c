/* SPDX-License-Identifier: Apache-2.0 */
#include "core/turn.h"

#include "core/base.h"
#include "core/services.h"

enum {
  TRANSMITS = 4,           /* rounds of transmit and commit of one turn */
  MAX_DEFER_NS = 10000000, /* longest delay of deadlines during a backlog of input */
  MAX_TURNS = 100000       /* at one instant; an engine always needs fewer */
};

/* Results are published before bursts are sent. A send takes longer than all the rest, and a peer
   may close as soon as it has our answer: by then our caller must have the completions. */
bool mrc_turn_run(struct mrc_turn *turn, bool backlog, uint64_t now_ns) {
  mrc_assert(turn->capacity >= 1 && turn->capacity <= MRC_MAX_BURSTS);
  turn->sent = false;
  const bool deferred = backlog && now_ns - turn->expired_ns < MAX_DEFER_NS;
  if (!deferred && mrc_engine_deadline(turn->engine) <= now_ns) {
    mrc_engine_expire(turn->engine, now_ns);
    turn->expired_ns = now_ns;
  }
  bool more = turn->calls->publish(turn->driver);
  struct mrc_burst bursts[MRC_MAX_BURSTS];
  int taken[MRC_MAX_BURSTS], n = turn->capacity; /* fewer: the rest leaves at its deadline */
  for (int i = 0; i < TRANSMITS && n == turn->capacity; i++) {
    if (i > 0) now_ns = turn->calls->now(turn->driver);
    n = mrc_engine_transmit(turn->engine, bursts, turn->capacity, now_ns);
    if (n == 0) break;
    turn->sent = true;
    const uint32_t blocked = turn->calls->send(turn->driver, bursts, taken, n, now_ns);
    mrc_engine_commit(turn->engine, bursts, taken, n, now_ns);
    MRC_EACH_BIT(plane, blocked)
      mrc_engine_port_blocked(turn->engine, (int)plane + 1, true, now_ns);
  }
  more |= n == turn->capacity;
  more |= turn->calls->publish(turn->driver);
  return more;
}

uint64_t mrc_turn_run_dry(struct mrc_turn *turn, uint64_t now_ns) {
  uint64_t deadline_ns;
  bool more;
  int turns = 0;
  do {
    mrc_assert(turns++ < MAX_TURNS);
    more = mrc_turn_run(turn, false, now_ns);
    deadline_ns = mrc_engine_deadline(turn->engine);
  } while (more || (turn->sent && deadline_ns <= now_ns));
  return deadline_ns;
}
