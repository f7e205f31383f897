/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of 64 cancels while N operations wait, for test_msg_cost.py.

     msg_cost receives N      the program cancels receives that match nothing
     msg_cost CANCEL N        a peer sends CANCELs of receives that it does not have, N CTSs wait
     msg_cost WITHDRAW N      the same for sends, N RTSs wait

   To count only the cancels with callgrind, use --toggle-collect=measured. */
#include "msg/msg.h"

#include "msg_wire.h"

enum { CANCELS = 64, PER_FRAME = 128, FIRST_ID = 1 << 16, SPACE = 7 };

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

__attribute__((noinline)) static void measured(struct wire_qp *qp, uint64_t n) {
  if (qp != NULL)
    wire_turn(&wire[0]);
  else
    for (uint64_t i = 0; i < CANCELS; i++)
      mrc_assert(mrc_msg_cancel(wire[0].msg, SPACE, n - 1 - i) == 0);
}

static struct wire_qp *start_peer(uint32_t n, uint8_t kept, uint8_t cancel) {
  const struct mrc_msg_limits limits = {.sq_depth = 64, .max_wimm = 16};
  struct mrc_msg_inbox inbox;
  struct wire_qp *qp = wire_open(0, &limits, &inbox);
  for (uint32_t i = 0; i < n; i += PER_FRAME) {
    forge(qp, kept, FIRST_ID + i, n - i < PER_FRAME ? n - i : PER_FRAME);
    wire_turn(&wire[0]);
  }
  forge(qp, cancel, FIRST_ID + n, CANCELS);
  return qp;
}

static void receive(uint64_t cookie) {
  const struct mrc_msg_post post = {
      .cookie = cookie, .tag = cookie, .space = SPACE, .peer = MRC_MSG_ANY, .kind = MRC_MSG_RECV};
  mrc_assert(wire_post(&wire[0], &post) == 1);
}

int main(int argc, char **argv) {
  mrc_assert(argc == 3);
  const uint32_t n = (uint32_t)atoi(argv[2]);
  struct wire_qp *qp = NULL;
  wire_start(0, &(struct mrc_msg_config){0});
  if (strcmp(argv[1], "CANCEL") == 0)
    qp = start_peer(n, MRC_MSG_CTS, MRC_MSG_CANCEL);
  else if (strcmp(argv[1], "WITHDRAW") == 0)
    qp = start_peer(n, MRC_MSG_RTS, MRC_MSG_WITHDRAW);
  else
    for (uint64_t i = 0; i < n; i++)
      receive(i);
  measured(qp, n);
  mrc_assert(mrc_msg_counters(wire[0].msg)->violations == 0);
  wire_stop();
  return 0;
}
