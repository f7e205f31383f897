/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of 64 steps while N operations wait, for test_msg_cost.py.

     msg_cost cancels N       the program cancels receives that match nothing
     msg_cost CANCEL N        a peer sends CANCELs of receives that it does not have, N CTSs wait
     msg_cost WITHDRAW N      the same for sends, N RTSs wait
     msg_cost receives N      the program posts receives from one peer, N RTSs of another wait
     msg_cost RTS N           a peer sends RTSs, N receives from another wait

   To count only the steps with callgrind, use --toggle-collect=measured. */
#include "msg/msg.h"

#include "msg_wire.h"

enum { STEPS = 64, PER_FRAME = 128, FIRST_ID = 1 << 16, SPACE = 7 };

/* The next frame of the peer: n records of one kind, with ids from `first`. */
static void forge(struct wire_qp *qp, uint8_t kind, uint32_t first, uint32_t n) {
  const struct mrc_msg_peer *peer = wire[0].msg->peers[qp->number];
  uint8_t *frame = peer->inbox + peer->frames_in % MRC_MSG_SLOTS * MRC_MSG_SLOT_BYTES;
  uint32_t bytes = MRC_MSG_FRAME_HEADER;
  memset(frame, 0, MRC_MSG_FRAME_HEADER);
  for (uint32_t i = 0; i < n; i++) {
    const struct mrc_msg_record record = {.kind = kind, .bytes = 1 << 20, .id = first + i};
    bytes += (uint32_t)mrc_msg_encode(&record, frame + bytes);
  }
  wire_immediate(qp, mrc_msg_imm(MRC_MSG_IMM_FRAME, peer->frames_in), bytes);
}

static void forge_many(struct wire_qp *qp, uint8_t kind, uint32_t n) {
  for (uint32_t i = 0; i < n; i += PER_FRAME) {
    forge(qp, kind, FIRST_ID + i, n - i < PER_FRAME ? n - i : PER_FRAME);
    wire_turn(&wire[0]);
  }
}

static void receive(uint64_t cookie, uint32_t peer) {
  const struct mrc_msg_post post = {
      .cookie = cookie, .tag = cookie, .space = SPACE, .peer = peer, .kind = MRC_MSG_RECV};
  mrc_assert(wire_post(&wire[0], &post) == 1);
}

static void receive_many(uint32_t n) {
  for (uint64_t i = 0; i < n; i++)
    receive(i, 0);
}

/* Prepares, and returns whether the steps are what peer 1 has sent. */
static bool prepare(const char *what, struct wire_qp *qps, uint32_t n) {
  if (strcmp(what, "CANCEL") == 0) {
    forge_many(&qps[1], MRC_MSG_CTS, n);
    forge(&qps[1], MRC_MSG_CANCEL, FIRST_ID + n, STEPS);
  } else if (strcmp(what, "WITHDRAW") == 0) {
    forge_many(&qps[1], MRC_MSG_RTS, n);
    forge(&qps[1], MRC_MSG_WITHDRAW, FIRST_ID + n, STEPS);
  } else if (strcmp(what, "RTS") == 0) {
    receive_many(n);
    forge(&qps[1], MRC_MSG_RTS, FIRST_ID, STEPS);
  } else if (strcmp(what, "receives") == 0) {
    forge_many(&qps[0], MRC_MSG_RTS, n);
    return false;
  } else {
    receive_many(n);
    return false;
  }
  return true;
}

__attribute__((noinline)) static void measured(const char *what, bool by_peer, uint64_t n) {
  if (by_peer) wire_turn(&wire[0]);
  for (uint64_t i = 0; !by_peer && i < STEPS; i++) {
    if (strcmp(what, "receives") == 0)
      receive(n + i, 1);
    else
      mrc_assert(mrc_msg_cancel(wire[0].msg, SPACE, n - 1 - i) == 0);
  }
}

int main(int argc, char **argv) {
  mrc_assert(argc == 3);
  const uint32_t n = (uint32_t)atoi(argv[2]);
  const struct mrc_msg_limits limits = {.sq_depth = 64, .max_wimm = 16};
  struct mrc_msg_inbox inbox;
  wire_start(0, &(struct mrc_msg_config){0});
  for (int i = 0; i < 2; i++)
    wire_open(0, &limits, &inbox);
  const bool by_peer = prepare(argv[1], wire[0].qps, n);
  measured(argv[1], by_peer, n);
  mrc_assert(mrc_msg_counters(wire[0].msg)->violations == 0);
  wire_stop();
  return 0;
}
