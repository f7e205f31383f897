/* SPDX-License-Identifier: Apache-2.0 */
/* Messages step by step: every length, matching, and cancels at every stage. */
#include "check.h"
#include "msg/msg.h"
#include "msg_steps.h"

/* ---- one message ---- */

static const struct {
  uint64_t bytes, room;
  bool exact, receive_first;
} singles[] = {
    {0, 0, false, true},
    {0, 0, false, false},
    {0, 100, false, true},
    {1, 1, false, true},
    {7, 100, false, false},
    {EAGER, EAGER, true, true},
    {EAGER, EAGER, true, false},
    {EAGER + 1, EAGER + 1, true, true},
    {EAGER + 1, BIG, false, true},
    {EAGER + 1, BIG, false, false},
    {BIG + 1, BIG + 1, true, true},
    {BIG + 1, BIG + 1, true, false},
    {BIG + 1, MOST, false, true},
};

TEST(test_message__arrives) {
  for (size_t i = 0; i < sizeof singles / sizeof singles[0]; i++) {
    CHECK_ROW(i);
    start_pair();
    if (singles[i].receive_first) receive(1, 2, 5, singles[i].room, singles[i].exact);
    if (singles[i].receive_first) wire_run();
    send(0, 1, 5, singles[i].bytes);
    wire_run();
    if (!singles[i].receive_first) receive(1, 2, 5, singles[i].room, singles[i].exact);
    wire_run();
    check_ended(0, 1, 0, singles[i].bytes);
    check_ended(1, 2, 0, singles[i].bytes);
    CHECK_MEM_EQ(target, source, singles[i].bytes);
    CHECK_EQ(target[singles[i].bytes], 0);
    check_clean(2);
  }
}

TEST(test_message__crosses_its_receive) {
  for (int i = 0; i < 2; i++) {
    CHECK_ROW(i);
    start_pair();
    receive(1, 2, 5, BIG, i);
    send(0, 1, 5, BIG);
    wire_run();
    check_ended(0, 1, 0, BIG);
    check_ended(1, 2, 0, BIG);
    CHECK_MEM_EQ(target, source, BIG);
    check_clean(2);
  }
}

/* An exact receive that was posted first costs no round trip: the write leaves with the RTS. */
TEST(test_message__that_is_asked_for_leaves_at_once) {
  struct wire_qp *qp = start_pair();
  receive(1, 2, 5, EAGER + 1, true);
  wire_run();
  const uint32_t before = qp->posted;
  send(0, 1, 5, EAGER + 1);
  CHECK_EQ(qp->posted - before, 2);
  wire_run();
  check_ended(1, 2, 0, EAGER + 1);
  check_clean(2);
}

TEST(test_message__that_does_not_fit) {
  const struct {
    uint64_t bytes, room;
    int sender;
  } rows[] = {{2, 1, 0}, {1, 0, 0}, {BIG, BIG - 1, -EMSGSIZE}, {BIG, 0, -EMSGSIZE}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (int first = 0; first < 2; first++) {
      CHECK_ROW(2 * i + (size_t)first);
      start_pair();
      if (first) receive(1, 2, 5, rows[i].room, false);
      send(0, 1, 5, rows[i].bytes);
      wire_run();
      if (!first) receive(1, 2, 5, rows[i].room, false);
      wire_run();
      check_ended(0, 1, rows[i].sender, rows[i].bytes);
      check_ended(1, 2, -EMSGSIZE, rows[i].bytes);
      CHECK_EQ(target[0], 0);
      check_clean(2);
    }
  }
}

/* More than 4 GiB: the writes are not copied, but they cover the message, one after the other. */
TEST(test_message__longer_than_a_write_can_be) {
  const uint64_t bytes = (4ull << 30) + 5;
  struct wire_qp *qp = start_pair();
  wire[0].no_copy = true;
  receive(1, 2, 5, bytes, true);
  wire_run();
  const uint32_t before = qp->posted;
  send(0, 1, 5, bytes);
  uint64_t next = (uintptr_t)source;
  uint32_t seen = before, immediates = 0;
  while (wire_ended(&wire[0], 1) == NULL) {
    for (; seen != qp->posted; seen++) {
      const struct mrc_wr *wr = &qp->wrs[seen % WIRE_WRS];
      if (wr->opcode == MRC_WR_WRITE_IMM && wr->imm >> 30 != MRC_MSG_IMM_DATA) continue;
      CHECK_EQ(wr->local, next);
      CHECK_EQ(wr->va - (uintptr_t)target, wr->local - (uintptr_t)source);
      next += wr->bytes;
      immediates += wr->opcode == MRC_WR_WRITE_IMM;
    }
    const bool moved = wire_deliver(qp) || wire_complete(qp);
    CHECK(moved);
    if (!moved) break;
    wire_turn(&wire[1]);
    wire_turn(&wire[0]);
  }
  CHECK_EQ(next - (uintptr_t)source, bytes);
  CHECK_EQ(immediates, 1);
  wire_run();
  check_ended(1, 2, 0, bytes);
  check_clean(2);
}

/* ---- matching ---- */

TEST(test_matching__by_space_peer_tag_and_mask) {
  start_pair();
  receive_any(1, 1, 0x10, 0x0F, 10);
  receive(1, 2, 0x15, 10, false);
  send(0, 3, 0x25, 1);
  send(0, 4, 0x15, 2);
  send(0, 5, 0x15, 3);
  wire_run();
  check_ended(1, 1, 0, 2);
  check_ended(1, 2, 0, 3);
  receive_any(1, 6, 0, ~0ull, 10);
  wire_run();
  check_ended(1, 6, 0, 1);
  const struct mrc_msg_post other = {.cookie = 9,
                                     .address = (uintptr_t)target,
                                     .bytes = 1,
                                     .space = SPACE + 1,
                                     .kind = MRC_MSG_RECV};
  CHECK_EQ(wire_post(&wire[1], &other), 1);
  send(0, 7, 0, 1);
  wire_run();
  check_pending(1, 9);
  receive(1, 8, 0, 1, false);
  CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE + 1, 9), 0);
  wire_run();
  check_ended(1, 8, 0, 1);
  check_ended(1, 9, -ECANCELED, 0);
  check_clean(2);
}

/* Tables of few chains, so that most chains hold several tags: each message still finds its
   receive, whichever of them waits, in either order. */
TEST(test_matching__in_chains_of_several_tags) {
  enum { N = 12 };
  for (int row = 0; row < 8; row++) {
    const bool receives_first = row & 1, reverse = row >> 1 & 1, exact = row >> 2;
    const uint64_t bytes = exact ? EAGER + 1 : 1;
    CHECK_ROW((size_t)row);
    start(2, &(struct mrc_msg_config){
                 .eager_bytes = EAGER, .max_operations = N, .heap_bytes = 2 * MRC_MSG_SLOT_BYTES});
    wire_join(0, 1, &limits);
    for (uint64_t i = 0; i < N; i++)
      receives_first ? receive(1, i, i, bytes, exact) : send(0, i, i, bytes);
    wire_run();
    for (uint64_t i = 0; i < N; i++) {
      const uint64_t tag = reverse ? N - 1 - i : i;
      receives_first ? send(0, tag, tag, bytes) : receive(1, tag, tag, bytes, exact);
      wire_run();
      const struct mrc_msg_done *done = wire_ended(&wire[1], tag);
      CHECK(done != NULL && done->result == 0 && done->tag == tag && done->bytes == bytes);
      CHECK(wire_ended(&wire[0], tag) != NULL);
      CHECK_EQ(wire[1].n_done, (int)i + 1);
    }
    check_clean(2);
  }
}

/* An exact receive asks for its message only if no older receive without a CTS could take it. */
TEST(test_exact__behind_another_of_its_tag) {
  enum { LONG = EAGER + 1 };
  start_pair();
  receive(1, 1, 5, LONG, true);
  receive(1, 2, 5, LONG, true);
  CHECK_EQ(wire[1].n_mrs, 2 + 2);
  receive(1, 3, 5, LONG, false);
  receive(1, 4, 5, LONG, true);
  receive(1, 5, 6, LONG, true);
  CHECK_EQ(wire[1].n_mrs, 2 + 3);
  for (uint64_t i = 1; i <= 4; i++)
    send(0, i, 5, LONG);
  wire_run();
  send(0, 5, 6, LONG);
  wire_run();
  for (int i = 0; i < 5; i++) {
    CHECK_EQ(wire[1].done[i].cookie, i + 1);
    CHECK_EQ(wire[1].done[i].result, 0);
  }
  check_clean(2);
}

/* ---- cancelling ---- */

TEST(test_cancel__of_what_nobody_knows) {
  struct wire_qp *qp = start_pair();
  receive(1, 1, 5, BIG, false);
  CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 1), 0);
  check_ended(1, 1, -ECANCELED, 0);
  CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 1), -ENOENT);
  const struct mrc_msg_post post = {.cookie = 2,
                                    .address = (uintptr_t)source,
                                    .bytes = BIG,
                                    .tag = 5,
                                    .space = SPACE,
                                    .kind = MRC_MSG_SEND};
  CHECK_EQ(mrc_msg_post(wire[0].msg, &post, 1, 1), 1); /* without pump: its RTS has not left */
  CHECK_EQ(mrc_msg_cancel(wire[0].msg, SPACE, 2), 0);
  check_ended(0, 2, -ECANCELED, 0);
  mrc_msg_pump(wire[0].msg, 1);
  CHECK_EQ(qp->posted, 0);
  check_clean(2);
}

/* `steps`: deliveries in each direction before the cancel. Either both ends succeed, or the one
   that cancelled ends so, and the other one waits for its next partner. */
static void check_cancel(bool sender, bool exact, int steps) {
  struct wire_qp *qp = start_pair();
  if (exact) receive(1, 2, 5, BIG, true);
  if (exact) wire_run();
  send(0, 1, 5, BIG);
  for (int i = 0; i < steps; i++) {
    if (!exact && i == 1) receive(1, 2, 5, BIG, false);
    wire_deliver(qp);
    wire_turn(&wire[1]);
    wire_deliver(qp->peer);
    wire_turn(&wire[0]);
  }
  const int known = mrc_msg_cancel(wire[sender ? 0 : 1].msg, SPACE, sender ? 1 : 2);
  wire_run();
  const struct mrc_msg_done *sent = wire_ended(&wire[0], 1), *received = wire_ended(&wire[1], 2);
  const struct mrc_msg_done *own = sender ? sent : received;
  if (known == 0) CHECK(own != NULL);
  const bool cancelled = own != NULL && own->result == -ECANCELED;
  if (cancelled && sender && (exact || steps > 1)) { /* a receive is left */
    CHECK(received == NULL);
    send(0, 3, 5, BIG);
  } else if (cancelled && !sender) {
    CHECK(sent == NULL);
    CHECK_EQ(target[0], 0);
    receive(1, 3, 5, BIG, exact);
  } else if (!cancelled && !exact && steps <= 1) {
    receive(1, 3, 5, BIG, false);
  }
  wire_run();
  CHECK(wire[0].msg->n_ops == 0 && wire[1].msg->n_ops == 0);
  check_clean(2);
}

TEST(test_cancel__at_every_stage) {
  for (int row = 0; row < 4 * 12; row++) {
    CHECK_ROW(row);
    check_cancel(row & 1, row & 2, row / 4);
  }
}

/* A receive is cancelled while its CTS and the RTS are on their ways. */
TEST(test_cancel__crosses_the_message) {
  struct wire_qp *qp = start_pair();
  receive(1, 2, 5, BIG, true);
  send(0, 1, 5, BIG);
  CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 2), 0);
  mrc_msg_pump(wire[1].msg, 1);
  receive(1, 3, 5, BIG, true);
  CHECK(wire_deliver(qp));
  wire_run();
  check_ended(0, 1, 0, BIG);
  check_ended(1, 2, 0, BIG); /* too late */
  check_pending(1, 3);
  send(0, 4, 5, BIG);
  wire_run();
  check_ended(1, 3, 0, BIG);
  check_clean(2);
}
