/* SPDX-License-Identifier: Apache-2.0 */
/* Messages step by step: every length, matching, cancels at every stage, PEEKs, receives that take
   several messages. */
#include "check.h"
#include "msg/msg.h"
#include "msg_steps.h"

/* ---- one message ---- */

/* Lengths on both sides of every limit. The receive comes first, crosses the message, or comes
   last; its room is just enough, exact, or more. */
TEST(test_message__of_every_length_and_order) {
  static const uint64_t lengths[] = {0,         1,    7,    8,       EAGER - 1,     EAGER,
                                     EAGER + 1, 4096, 4097, 1 << 20, (1 << 20) + 1, BIG - 3,
                                     BIG + 1};
  EACH_ROW(i, lengths) {
    for (int how = 0; how < 9; how++) {
      CHECK_ROW(i * 10 + (size_t)how);
      const uint64_t bytes = lengths[i], room = how % 3 == 2 ? MOST : bytes;
      const bool exact = how % 3 == 1;
      start_pair();
      if (how / 3 == 0) receive(1, 2, 5, room, exact);
      if (how / 3 == 0) wire_run();
      send(0, 1, 5, bytes);
      if (how / 3 == 1) wire_run();
      if (how / 3 != 0) receive(1, 2, 5, room, exact);
      wire_run();
      check_ended(0, 1, 0, bytes);
      check_ended(1, 2, 0, bytes);
      CHECK_MEM_EQ(target, source, bytes);
      CHECK_EQ(target[bytes], 0);
      check_clean(2);
    }
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
  EACH_ROW(i, rows) {
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
  CHECK_EQ(wire_ended(&wire[1], 1)->tag, 0x15);
  CHECK_EQ(wire_ended(&wire[1], 1)->peer, 0);
  check_ended(1, 2, 0, 3);
  receive_any(1, 6, 0, ~0ull, 10);
  wire_run();
  check_ended(1, 6, 0, 1);
  struct mrc_msg_post other = post_of(MRC_MSG_RECV, 9, 0, target, 1);
  other.space++;
  post(1, other);
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
  const struct mrc_msg_post post = post_of(MRC_MSG_SEND, 2, 5, source, BIG);
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
  const bool is_left = exact || steps > 1; /* a receive, or the message */
  if (cancelled) CHECK_EQ(target[0], 0);
  if (cancelled && sender && is_left) {
    CHECK(received == NULL);
    send(0, 3, 5, BIG);
  } else if (cancelled && !sender) {
    CHECK(sent == NULL);
    receive(1, 3, 5, BIG, exact);
  } else if (!cancelled && !exact && steps <= 1) {
    receive(1, 3, 5, BIG, false);
  }
  wire_run();
  CHECK(wire[0].msg->n_ops == 0 && wire[1].msg->n_ops == 0);
  if (!(cancelled && sender) || is_left) CHECK_MEM_EQ(target, source, BIG);
  check_clean(2);
}

TEST(test_cancel__at_every_stage) {
  EACH_OF(int, row, 0, 4 * 12) {
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

/* ---- looking for a message ---- */

static void peek(uint64_t cookie, bool claim) {
  struct mrc_msg_post each = post_of(MRC_MSG_PEEK, cookie, 3, NULL, 0);
  each.peer = MRC_MSG_ANY;
  each.claim = claim;
  post(1, each);
}

/* The i-th operation of host 1 that has ended; `bytes` of a message. */
static void check_done(int i, uint64_t cookie, int result, uint64_t bytes) {
  const struct mrc_msg_done *done = &wire[1].done[i];
  CHECK(wire[1].n_done > i && done->cookie == cookie);
  CHECK_EQ(done->result, result);
  if (result == 0) CHECK_EQ(done->bytes, bytes);
}

/* A PEEK leaves the message; one that claims keeps it for the receive that names it. */
TEST(test_peek__and_claim) {
  static const uint64_t lengths[] = {8, 100000};
  EACH_ROW(i, lengths) {
    const uint64_t n = lengths[i];
    struct mrc_msg_post send = post_of(MRC_MSG_SEND, 1, 3, source, n);
    struct mrc_msg_post claim = post_of(MRC_MSG_RECV, 13, 11, target + n, n);
    send.data = 0xfedcba98;
    claim.peer = MRC_MSG_ANY;
    claim.claim = 1;
    start(2, &(struct mrc_msg_config){0});
    wire_join(0, 1, &limits);
    peek(10, false);
    check_done(0, 10, -ENOMSG, 0);
    post(0, send);
    wire_run();
    peek(10, false);
    check_done(1, 10, 0, n);
    CHECK_EQ(wire[1].done[1].data, 0xfedcba98);
    peek(11, true);
    check_done(2, 11, 0, n);
    receive(1, 12, 3, n, false); /* takes the next message */
    peek(11, true);
    check_done(3, 11, -ENOMSG, 0);
    post(1, claim);
    wire_run();
    check_done(4, 13, 0, n);
    CHECK_EQ(wire[1].done[4].tag, 3);
    CHECK_EQ(wire[1].done[4].data, 0xfedcba98);
    CHECK_MEM_EQ(target + n, source, n);
    CHECK_EQ(target[0], 0);
    post(1, claim);
    check_done(5, 13, -ENOMSG, 0);
    post(0, send);
    wire_run();
    check_done(6, 12, 0, n);
    CHECK_MEM_EQ(target, source, n);
    check_clean(2);
  }
}

/* ---- a receive that takes several messages ---- */

enum { LONG = 100000, ROOM = 200000 };

static void several(uint64_t cookie, uint64_t at, uint64_t bytes, uint32_t peer) {
  struct mrc_msg_post each = post_of(MRC_MSG_RECV, cookie, 3, target + at, bytes);
  each.peer = peer;
  each.least = 6000;
  post(1, each);
}

static void check_part(int i, uint64_t cookie, int result, const void *at, bool goes_on) {
  check_done(i, cookie, result, wire[1].done[i].bytes);
  if (at != NULL) CHECK_EQ(wire[1].done[i].address, (uintptr_t)at);
  CHECK_EQ(wire[1].done[i].goes_on, goes_on);
}

/* Messages take parts of the oldest receive, until too little is left of it. */
TEST(test_several__oldest_first) {
  static const struct {
    uint64_t bytes, at;
  } rows[] = {{100, 0}, {9000, 104}, {0, 9104}, {5000, 9112}, {300, 20000}, {LONG, 20304}};
  enum { N = sizeof rows / sizeof rows[0] };
  EACH_OF(int, how, 0, 4) {
    start(2, &(struct mrc_msg_config){0});
    wire_join(0, 1, &limits);
    const uint32_t peer = how & 1 ? MRC_MSG_ANY : 0;
    for (int turn = 0; turn < 2; turn++) {
      if (turn == how / 2) {
        several(1, 0, 20000, peer);
        several(2, 20000, 300000, peer);
      } else {
        for (uint64_t i = 0; i < N; i++)
          send(0, i, 3, rows[i].bytes);
      }
      wire_run();
    }
    CHECK_EQ(wire[1].n_done, N);
    int of_first = 0;
    for (int i = 0; i < N; i++) {
      const struct mrc_msg_done *done = &wire[1].done[i];
      const bool first = done->cookie == 1;
      size_t row = 0; /* short messages overtake long ones */
      while (row < N && done->address != (uintptr_t)(target + rows[row].at))
        row++;
      CHECK(row < N && done->bytes == rows[row].bytes && first == (row < 4));
      CHECK_MEM_EQ(target + rows[row].at, source, rows[row].bytes);
      of_first += first;
      CHECK_EQ(done->goes_on, !first || of_first < 4);
    }
    CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 1), -ENOENT);
    CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 2), 0);
    check_part(N, 2, -ECANCELED, NULL, false);
    wire_run();
    check_clean(2);
  }
}

/* A receive of several with a long message on its way. */
static struct wire_qp *start_several(uint32_t peer, uint32_t most) {
  start(2, &(struct mrc_msg_config){.max_operations = most});
  struct wire_qp *qp = wire_join(0, 1, &limits);
  several(1, 0, ROOM, peer);
  send(0, 7, 3, LONG);
  CHECK(wire_deliver(qp) && wire_complete(qp)); /* the RTS */
  wire_turn(&wire[1]);
  CHECK_EQ(wire[1].n_done, 0);
  return qp;
}

/* The memory belongs to the receive until the last message has come or failed. */
TEST(test_several__ends_with_its_last_message) {
  start_several(MRC_MSG_ANY, 0);
  CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 1), 0);
  check_part(0, 1, -ECANCELED, NULL, true);
  wire_run();
  check_part(1, 1, 0, target, false);
  check_clean(2);

  for (int any = 0; any < 2; any++) { /* a receive from any peer goes on after its error */
    start_several(any ? MRC_MSG_ANY : 0, 0);
    mrc_msg_fail(wire[1].msg, 0, -ETIMEDOUT, 0);
    check_part(0, 1, -ETIMEDOUT, NULL, true);
    if (!any) check_part(1, 1, -ETIMEDOUT, NULL, false);
    CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 1), any ? 0 : -ENOENT);
    if (any) check_part(1, 1, -ECANCELED, NULL, false);
    CHECK_EQ(wire[1].n_done, 2);
    wire_stop();
  }

  struct wire_qp *qp = start_several(0, 2); /* no operation is left for another part */
  send(0, 8, 3, 8);
  while (wire[1].n_done == 0 && wire_deliver(qp))
    wire_turn(&wire[1]);
  check_part(0, 1, 0, target + LONG, true);
  wire_run();
  check_part(1, 1, 0, target, false);
  several(2, 0, ROOM, 0);
  several(3, 0, ROOM, 0);
  wire_stop();
}

/* Eager messages of a peer that has failed are taken; then the receive ends. */
TEST(test_several__of_a_failed_peer) {
  start(2, &(struct mrc_msg_config){0});
  wire_join(0, 1, &limits);
  for (uint64_t i = 0; i < 2; i++)
    send(0, i, 3, 80);
  wire_run();
  mrc_msg_fail(wire[1].msg, 0, -ETIMEDOUT, 0);
  several(1, 0, 20000, 0);
  check_part(0, 1, 0, target, true);
  check_part(1, 1, 0, target + 80, true);
  check_part(2, 1, -ETIMEDOUT, NULL, false);
  wire_stop();
}
