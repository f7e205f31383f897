/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of 64 steps while N operations wait, for test_msg_cost.py.

     msg_cost cancels N       the program cancels receives that match nothing
     msg_cost CANCEL N        a peer sends CANCELs of receives that it does not have, N CTSs wait
     msg_cost WITHDRAW N      the same for sends, N RTSs wait
     msg_cost receives N      the program posts receives from one peer, N RTSs of another wait
     msg_cost RTS N           a peer sends RTSs, N receives from another wait
     msg_cost match-messages N, match-receives N, match-CTSs N, match-sends N
                              messages arrive for the newest of N receives with different tags;
                              receives are posted for the newest of N messages; CTSs arrive for the
                              newest of N sends; sends are posted for the newest of N CTSs
     msg_cost exact N         the program posts exact receives, N others of the same peer wait

   To count only the steps with callgrind, use --toggle-collect=measured. */
#include "msg/msg.h"

#include "msg_wire.h"

enum {
  STEPS = 64,
  PER_FRAME = 160,
  FIRST_ID = 1 << 16,
  SPACE = 7,
  LONG = 1 << 20,
  HEAP_BYTES = 4 << 20
};

static uint8_t memory[2 * LONG];

/* The next frame of the peer: n records of one kind, with ids from `first`, which are their tags
   too. */
static void forge(struct wire_qp *qp, uint8_t kind, uint32_t first, uint32_t n) {
  const struct mrc_msg_record record = {.kind = kind,
                                        .space = SPACE,
                                        .tag = first,
                                        .bytes = kind == MRC_MSG_EAGER ? 0 : LONG,
                                        .id = first};
  wire_records(qp, record, n, true);
}

static void forge_many(struct wire_qp *qp, uint8_t kind, uint32_t n) {
  for (uint32_t i = 0; i < n; i += PER_FRAME) {
    forge(qp, kind, FIRST_ID + i, n - i < PER_FRAME ? n - i : PER_FRAME);
    wire_turn(&wire[0]);
  }
}

static void post(uint64_t cookie, uint32_t peer, uint64_t tag, enum mrc_msg_kind kind,
                 uint64_t bytes) {
  const struct mrc_msg_post post = {.cookie = cookie,
                                    .address = (uintptr_t)memory,
                                    .bytes = bytes,
                                    .tag = tag,
                                    .space = SPACE,
                                    .peer = peer,
                                    .kind = (uint8_t)kind,
                                    .exact = bytes > 0};
  mrc_assert(wire_post(&wire[0], &post) == 1);
}

static void receive_many(uint32_t n) {
  for (uint64_t i = 0; i < n; i++)
    post(i, 0, FIRST_ID + i, MRC_MSG_RECV, 0);
}

/* Prepares, and returns whether the steps are what a peer has sent. */
static bool prepare(const char *what, struct wire_qp *qps, uint32_t n) {
  const uint32_t newest = FIRST_ID + n - STEPS;
  if (strcmp(what, "CANCEL") == 0) {
    forge_many(&qps[1], MRC_MSG_CTS, n);
    forge(&qps[1], MRC_MSG_CANCEL, FIRST_ID + n, STEPS);
  } else if (strcmp(what, "WITHDRAW") == 0) {
    forge_many(&qps[1], MRC_MSG_RTS, n);
    forge(&qps[1], MRC_MSG_WITHDRAW, FIRST_ID + n, STEPS);
  } else if (strcmp(what, "RTS") == 0) {
    receive_many(n);
    forge(&qps[1], MRC_MSG_RTS, FIRST_ID, STEPS);
  } else if (strcmp(what, "match-messages") == 0) {
    receive_many(n);
    forge(&qps[0], MRC_MSG_EAGER, newest, STEPS);
  } else if (strcmp(what, "match-CTSs") == 0) {
    for (uint32_t i = 0; i < n; i++)
      post(i, 0, FIRST_ID + i, MRC_MSG_SEND, 2 * LONG);
    forge(&qps[0], MRC_MSG_CTS, newest, STEPS);
  } else {
    if (strcmp(what, "receives") == 0 || strcmp(what, "match-receives") == 0)
      forge_many(&qps[0], MRC_MSG_RTS, n);
    else if (strcmp(what, "match-sends") == 0)
      forge_many(&qps[0], MRC_MSG_CTS, n);
    else
      receive_many(n);
    return false;
  }
  return true;
}

static void step(const char *what, uint32_t n, uint32_t i) {
  const uint32_t newest = FIRST_ID + n - 1 - i;
  if (strcmp(what, "receives") == 0)
    post(n + i, 1, newest, MRC_MSG_RECV, 0);
  else if (strcmp(what, "match-receives") == 0)
    post(n + i, 0, newest, MRC_MSG_RECV, 0);
  else if (strcmp(what, "match-sends") == 0)
    post(n + i, 0, newest, MRC_MSG_SEND, 2 * LONG);
  else if (strcmp(what, "exact") == 0)
    post(n + i, 0, FIRST_ID + n + i, MRC_MSG_RECV, LONG);
  else
    mrc_assert(mrc_msg_cancel(wire[0].msg, SPACE, n - 1 - i) == 0);
}

__attribute__((noinline)) static void measured(const char *what, bool by_peer, uint32_t n) {
  if (by_peer) wire_turn(&wire[0]);
  for (uint32_t i = 0; !by_peer && i < STEPS; i++)
    step(what, n, i);
}

int main(int argc, char **argv) {
  mrc_assert(argc == 3);
  const uint32_t n = (uint32_t)atoi(argv[2]);
  const struct mrc_msg_limits limits = {.sq_depth = 64, .max_wimm = 16};
  struct mrc_msg_inbox inbox;
  wire_start(0, &(struct mrc_msg_config){.heap_bytes = HEAP_BYTES});
  for (int i = 0; i < 2; i++)
    wire_open(0, &limits, &inbox);
  const bool by_peer = prepare(argv[1], wire[0].qps, n);
  const int ended = wire[0].n_done;
  measured(argv[1], by_peer, n);
  if (strncmp(argv[1], "match", 5) == 0) mrc_assert(wire[0].n_done == ended + STEPS);
  mrc_assert(wire[0].msg->counters.violations == 0);
  wire_stop();
  return 0;
}
