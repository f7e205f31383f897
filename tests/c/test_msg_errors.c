/* SPDX-License-Identifier: Apache-2.0 */
/* What both ends of a message learn when a limit is met: the error, and the bytes. */
#include "check.h"
#include "msg/msg.h"
#include "msg_steps.h"

/* ---- a message without a place ---- */

/* -EMSGSIZE tells the length of the message, also where no RTS has told it. */
TEST(test_message__of_another_length_than_exact) {
  const struct {
    uint64_t bytes;
    int receiver, sender;
  } rows[] = {{5, -EMSGSIZE, 0}, {BIG - 1, 0, 0}, {BIG + 1, -EMSGSIZE, -EMSGSIZE}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (int asked = 0; asked < 2; asked++) {
      CHECK_ROW(2 * i + (size_t)asked);
      start_pair();
      receive(1, 2, 5, BIG, true);
      if (asked) wire_run();
      send(0, 1, 5, rows[i].bytes);
      wire_run();
      check_ended(0, 1, rows[i].sender, rows[i].bytes);
      check_ended(1, 2, rows[i].receiver, rows[i].bytes);
      CHECK_EQ(target[BIG], 0);
      check_clean(2);
    }
  }
}

/* The peer refuses the CTS while the receive is being cancelled: the message was matched. */
TEST(test_message__refused_while_its_receive_is_cancelled) {
  struct wire_qp *qp = start_pair();
  receive(1, 2, 5, BIG, true);
  CHECK(wire_deliver(qp->peer));
  send(0, 1, 5, BIG + 1);
  wire_turn(&wire[0]);
  check_ended(0, 1, -EMSGSIZE, BIG + 1);
  CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 2), 0);
  wire_run();
  check_ended(1, 2, -EMSGSIZE, BIG + 1);
  check_clean(2);
}

/* A short message came for an exact receive of a long one. Before the CANCEL arrives, the next
   message takes the CTS, or refuses it: the receive tells of the first. */
TEST(test_message__after_one_of_another_length) {
  for (uint64_t bytes = BIG - 1; bytes <= BIG + 1; bytes++) {
    CHECK_ROW(bytes);
    struct wire_qp *qp = start_pair();
    receive(1, 2, 5, BIG, true);
    CHECK(wire_deliver(qp->peer));
    wire_turn(&wire[0]);
    send(0, 1, 5, 10);
    CHECK(wire_deliver(qp));
    wire_turn(&wire[1]);
    check_pending(1, 2);
    send(0, 3, 5, bytes);
    wire_run();
    check_ended(0, 1, 0, 10);
    check_ended(0, 3, bytes <= BIG ? 0 : -EMSGSIZE, bytes);
    check_ended(1, 2, -EMSGSIZE, 10);
    check_clean(2);
  }
}

/* No memory region is left at one end, for now: both ends learn that, and not that the message is
   too long. */
TEST(test_region__none_is_left) {
  for (int row = 0; row < 8; row++) {
    CHECK_ROW(row);
    const int host = row & 1;
    const bool exact = row & 2, receive_first = row & 4;
    start_pair();
    wire[host].max_mrs = wire[host].n_mrs;
    if (receive_first) receive(1, 2, 5, BIG, exact);
    if (receive_first) wire_run();
    send(0, 1, 5, BIG);
    wire_run();
    if (!receive_first) receive(1, 2, 5, BIG, exact);
    wire_run();
    check_ended(0, 1, -ENOSPC, 0);
    check_ended(1, 2, -ENOSPC, 0);
    wire[host].max_mrs = WIRE_MRS;
    send(0, 3, 5, BIG);
    receive(1, 4, 5, BIG, exact);
    wire_run();
    check_ended(0, 3, 0, BIG);
    check_ended(1, 4, 0, BIG);
    check_clean(2);
  }
}

/* ---- an operation that ends without a message ---- */

TEST(test_bytes__none_without_a_message) {
  struct wire_qp *qp = start_pair();
  receive(1, 1, 5, BIG, false);
  receive(1, 2, 6, BIG, true);
  receive(1, 3, 7, BIG, true);
  send(0, 4, 8, BIG);
  wire_run();
  CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 1), 0);
  CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 2), 0);
  wire_run();
  wire_fail(qp, MRC_WC_RETRY_EXC_ERR);
  wire_fail(qp->peer, MRC_WC_RETRY_EXC_ERR);
  mrc_msg_fail(wire[0].msg, qp->number, -ETIMEDOUT, 1);
  mrc_msg_fail(wire[1].msg, qp->peer->number, -ETIMEDOUT, 1);
  check_ended(1, 1, -ECANCELED, 0);
  check_ended(1, 2, -ECANCELED, 0);
  check_ended(1, 3, -ETIMEDOUT, 0);
  check_ended(0, 4, -ETIMEDOUT, 0);
  check_clean(2);
}

/* ---- a peer without a place ---- */

static int open_another(struct mrc_msg_inbox *inbox) {
  return mrc_msg_open(wire[0].msg, 0x999, &limits, inbox);
}

TEST(test_open__tables_that_are_full) {
  struct mrc_msg_inbox inbox;
  start(1, &(struct mrc_msg_config){.max_peers = 2});
  for (int room = 0; room < 2; room++) { /* it takes two */
    wire[0].max_mrs = room;
    CHECK_EQ(open_another(&inbox), -ENOSPC);
    CHECK_EQ(wire[0].n_mrs, 0);
  }
  wire[0].max_mrs = WIRE_MRS;
  wire_open(0, &limits, &inbox);
  wire_open(0, &limits, &inbox);
  CHECK_EQ(open_another(&inbox), -ENOSPC);
  mrc_msg_close(wire[0].msg, 0);
  CHECK_EQ(wire_open(0, &limits, &inbox)->number, 0);
  wire_stop();
}

/* A peer has at most one answer to come for each of its operations, and all have a place here. */
TEST(test_new__no_more_operations_than_answers) {
  struct mrc_msg_config config = {
      .engine = (mrc_engine *)&wire[0], .done = wire_done, .max_operations = 1 << 14};
  struct mrc_msg *msg = mrc_msg_new(&config);
  CHECK(msg != NULL);
  mrc_msg_free(msg);
  config.max_operations++;
  CHECK(mrc_msg_new(&config) == NULL);
}

/* ---- a peer of its own making ---- */

static struct wire_qp *start_forger(void) {
  struct mrc_msg_inbox inbox;
  start(1, &(struct mrc_msg_config){.eager_bytes = EAGER});
  struct wire_qp *qp = wire_open(0, &limits, &inbox);
  CHECK_EQ(mrc_msg_connect(wire[0].msg, qp->number, &inbox), 0);
  return qp;
}

/* The next frame of the peer, with one record. */
static void forge(struct wire_qp *qp, const struct mrc_msg_record *record) {
  const struct mrc_msg_peer *peer = wire[0].msg->peers[qp->number];
  uint8_t *frame = peer->inbox + peer->slots.arrived % MRC_MSG_SLOTS * MRC_MSG_SLOT_BYTES;
  memset(frame, 0, MRC_MSG_FRAME_HEADER);
  const size_t n = MRC_MSG_FRAME_HEADER + mrc_msg_encode(record, frame + MRC_MSG_FRAME_HEADER);
  wire_immediate(qp, mrc_msg_imm(MRC_MSG_IMM_FRAME, peer->slots.arrived), (uint32_t)n);
  wire_turn(&wire[0]);
}

static uint32_t id_of(uint64_t cookie) {
  for (uint32_t i = 0; i < wire[0].msg->config.max_operations; i++) {
    const struct mrc_msg_op *op = &wire[0].msg->ops[i];
    if (op->state != MRC_MSG_FREE && op->post.cookie == cookie) return op->id;
  }
  return 0;
}

/* Version 0.2 refuses without the length of the message. */
TEST(test_refuse__without_a_length) {
  struct wire_qp *qp = start_forger();
  receive(0, 1, 5, BIG, true);
  forge(qp, &(struct mrc_msg_record){.kind = MRC_MSG_REFUSE, .id = id_of(1)});
  check_ended(0, 1, -EMSGSIZE, 0);
  CHECK_EQ(mrc_msg_counters(wire[0].msg)->violations, 0);
  wire_stop();
}

/* The data have come, so it is too late to refuse. */
TEST(test_refuse__after_the_data) {
  struct wire_qp *qp = start_forger();
  receive(0, 1, 5, BIG, true);
  const uint32_t id = id_of(1);
  wire_immediate(qp, mrc_msg_imm(MRC_MSG_IMM_DATA, id), BIG);
  forge(qp, &(struct mrc_msg_record){.kind = MRC_MSG_REFUSE, .id = id, .bytes = BIG + 1});
  check_ended(0, 1, -EPROTO, 0);
  CHECK_EQ(mrc_msg_counters(wire[0].msg)->violations, 1);
  wire_stop();
}

/* An operation has one CTS, and one RTS: a second one would outlive its CANCEL. */
TEST(test_kept__twice) {
  static const uint8_t kinds[] = {MRC_MSG_CTS, MRC_MSG_RTS};
  for (int i = 0; i < 4; i++) {
    CHECK_ROW(i);
    struct wire_qp *qp = start_forger();
    struct mrc_msg_record record = {.kind = kinds[i & 1], .tag = 5, .bytes = BIG, .id = 0x10001};
    forge(qp, &record);
    if (i & 2) record.kind = kinds[~i & 1]; /* the ids of sends and receives are apart */
    record.tag = 6;
    forge(qp, &record);
    CHECK_EQ(mrc_msg_counters(wire[0].msg)->violations, i & 2 ? 0 : 1);
    wire_stop();
  }
}
