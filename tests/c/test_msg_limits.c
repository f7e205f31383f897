/* SPDX-License-Identifier: Apache-2.0 */
/* Messages at their limits: wraps, full heaps, peers that lie, QPs that fail; what both ends of a
   message learn when a limit is met; chains, which stay short whatever the keys of their members.
 */
#include "check.h"
#include "msg/msg.h"
#include "msg_steps.h"

/* ---- long lives ---- */

/* Numbers of frames wrap at 30 bits in an immediate and at 32 bits in a frame, ids at 30 bits. */
TEST(test_numbers__wrap) {
  const uint32_t firsts[] = {0x3FFFFFE0, 0xFFFFFFE0};
  EACH_ROW(row, firsts) {
    start_pair();
    for (int i = 0; i < 2; i++) {
      struct mrc_msg *msg = wire[i].msg;
      struct mrc_msg_peer *peer = msg->peers[0];
      peer->slots.sent = peer->slots.done = peer->slots.credit = firsts[row];
      peer->slots.arrived = peer->slots.freed = peer->slots.told = firsts[row];
      for (uint32_t k = 0; k < msg->config.max_operations; k++)
        msg->ops[k].id |= 0x3FFE0000;
    }
    for (uint64_t i = 0; i < 300; i++) {
      const uint64_t bytes = i % 3 ? i : 1000 + i;
      receive(1, 1000 + i, 5, bytes, i % 2);
      send(0, i, 5, bytes);
      wire_run();
      check_ended(0, i, 0, bytes);
      check_ended(1, 1000 + i, 0, bytes);
    }
    CHECK(wire[0].msg->peers[0]->slots.sent - firsts[row] >= 300);
    check_clean(2);
  }
}

TEST(test_post__that_is_wrong) {
  const struct mrc_msg_post rows[] = {
      {.address = (uintptr_t)source, .bytes = 1, .peer = 7, .kind = MRC_MSG_SEND},
      {.address = (uintptr_t)source, .bytes = 1, .peer = MRC_MSG_ANY, .kind = MRC_MSG_SEND},
      {.address = (uintptr_t)source, .bytes = 1, .kind = MRC_MSG_ATOMIC + 1},
      {.address = (uintptr_t)source, .bytes = 1, .peer = MRC_MSG_ANY, .kind = MRC_MSG_READ},
      {.address = (uintptr_t)source, .bytes = 1, .tag = UINT64_MAX, .kind = MRC_MSG_WRITE},
      {.address = (uintptr_t)source, .bytes = 1, .ignore = 1ull << 32, .kind = MRC_MSG_READ},
      {.address = (uintptr_t)source, .bytes = UINT64_MAX, .kind = MRC_MSG_SEND},
      {.bytes = 1, .kind = MRC_MSG_SEND},
      {.bytes = 1, .kind = MRC_MSG_RECV},
      {.bytes = 8, .tag = 8, .ignore = 1ull << 32, .kind = MRC_MSG_ATOMIC},
      {.bytes = 8, .tag = 8, .peer = MRC_MSG_ANY, .kind = MRC_MSG_ATOMIC},
      {.bytes = 8, .tag = 12, .kind = MRC_MSG_ATOMIC},
      {.bytes = 4, .tag = 2, .kind = MRC_MSG_ATOMIC},
      {.bytes = 2, .tag = 8, .kind = MRC_MSG_ATOMIC},
      {.bytes = 0, .tag = 8, .kind = MRC_MSG_ATOMIC},
      {.bytes = 8, .tag = 8, .data = MRC_MSG_LAST_ATOMIC + 1, .kind = MRC_MSG_ATOMIC},
  };
  start_pair();
  EACH_ROW(i, rows) {
    CHECK_EQ(wire_post(&wire[0], &rows[i]), -EINVAL);
  }
  check_clean(2);
}

/* More operations than the table holds are refused, without harm to the others. */
TEST(test_post__too_many) {
  start(2, &(struct mrc_msg_config){.max_operations = 4});
  wire_join(0, 1, &limits);
  for (uint64_t i = 0; i < 4; i++)
    receive(1, i, i, 8, false);
  const struct mrc_msg_post another = post_of(MRC_MSG_RECV, 4, 4, target, 8);
  CHECK_EQ(wire_post(&wire[1], &another), 0);
  send(0, 9, 2, 8);
  wire_run();
  check_ended(1, 2, 0, 8);
  CHECK_MEM_EQ(target, source, 8);
  CHECK_EQ(wire_post(&wire[1], &another), 1);
  wire_stop();
}

/* The send queue is filled, never beyond; what has no place waits here. */
TEST(test_queue__is_filled_and_no_more) {
  start(2, &(struct mrc_msg_config){.eager_bytes = EAGER});
  const struct mrc_msg_limits few = {.sq_depth = 16, .max_wimm = 40};
  struct wire_qp *qp = wire_join(0, 1, &few);
  for (uint64_t i = 0; i < 6; i++)
    receive(1, 100 + i, i, BIG, true);
  wire_run();
  for (uint64_t i = 0; i < 6; i++)
    send(0, i, i, BIG);
  for (uint64_t i = 6; i < 40; i++)
    send(0, i, i, 10);
  CHECK_EQ(qp->posted - qp->completed, few.sq_depth);
  for (uint64_t i = 6; i < 40; i++)
    receive(1, 100 + i, i, 10, false);
  wire_run();
  for (uint64_t i = 0; i < 40; i++) {
    check_ended(0, i, 0, i < 6 ? BIG : 10);
    check_ended(1, 100 + i, 0, i < 6 ? BIG : 10);
  }
  check_clean(2);
}

/* ---- a full heap ---- */

enum { HEAP = 2 * MRC_MSG_SLOT_BYTES, SMALL = 200 };

static const struct mrc_msg_config little = {.eager_bytes = EAGER, .heap_bytes = HEAP};

/* Host 0 sends messages of tag 1 until the heap of host 1 has no room for another. */
static struct wire_qp *start_full(uint64_t *n) {
  start(2, &little);
  struct wire_qp *qp = wire_join(0, 1, &limits);
  const struct mrc_msg_peer *peer = wire[1].msg->peers[qp->peer->number];
  size_t before = HEAP;
  *n = 0;
  for (uint64_t bytes = SMALL; bytes <= SMALL; bytes -= SMALL) { /* then of 0 bytes */
    for (size_t each = 0; peer->heap + each <= HEAP; ++*n) {
      before = peer->heap;
      send(0, 1000 + *n, 1, bytes);
      wire_run();
      each = peer->heap - before;
    }
  }
  CHECK_EQ(wire[1].msg->counters.stalls, 0);
  return qp;
}

static void take_all(uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    receive(1, 1000 + i, 1, SMALL, false);
    wire_run();
    CHECK(wire_ended(&wire[1], 1000 + i) != NULL);
  }
}

/* The heap can be filled to its last byte, and no further. */
TEST(test_heap__has_room_for_all_its_bytes) {
  enum { N = 128, EACH = sizeof(struct mrc_msg_entry) + MRC_MSG_HEAP_OVERHEAD };
  start(2, &(struct mrc_msg_config){.heap_bytes = N * EACH});
  struct wire_qp *qp = wire_join(0, 1, &limits);
  for (uint64_t i = 0; i <= N; i++) {
    CHECK_EQ(wire[1].msg->counters.stalls, 0);
    send(0, i, 1, 0);
    wire_run();
  }
  CHECK_EQ(wire[1].msg->counters.stalls, 1);
  CHECK_EQ(wire[1].msg->peers[qp->peer->number]->heap, N * EACH);
  for (uint64_t i = 0; i <= N; i++) {
    receive(1, 1000 + i, 1, 0, false);
    check_ended(1, 1000 + i, 0, 0);
  }
  wire_run();
  check_clean(2);
}

/* Frames wait in their slots, then their sends at the sender; nothing is lost or out of order. */
TEST(test_heap__full_stops_the_sender_and_goes_on) {
  uint64_t n, more;
  start_full(&n);
  for (more = 0; more < 200; more++) {
    send(0, 2000 + more, 2, more);
    wire_run();
  }
  const struct mrc_msg_peer *peer = wire[1].msg->peers[0];
  const uint32_t unread = peer->slots.arrived - peer->slots.freed; /* less what was read untold */
  CHECK(unread > MRC_MSG_SLOTS / 2 && unread <= MRC_MSG_SLOTS);
  CHECK(peer->heap <= HEAP);
  CHECK(wire[0].msg->n_ops > 100);
  for (uint64_t i = 0; i < more; i++) { /* these fit in no heap: each is taken from its frame */
    receive(1, 2000 + i, 2, SMALL, false);
    wire_run();
    check_ended(1, 2000 + i, 0, i);
    CHECK_MEM_EQ(target, source, i);
  }
  take_all(n);
  for (uint64_t i = 0; i < more; i++)
    check_ended(0, 2000 + i, 0, i);
  check_clean(2);
}

/* A request that waits in its frame is found by its send. */
TEST(test_heap__full_of_messages_lets_a_send_find_its_request) {
  uint64_t n;
  struct wire_qp *qp = start_full(&n);
  receive(0, 1, 5, BIG, true);
  wire_run();
  CHECK(wire[1].msg->counters.stalls > 0);
  send(1, 2, 5, BIG);
  wire_run();
  check_ended(0, 1, 0, BIG);
  check_ended(1, 2, 0, BIG);
  CHECK_EQ(qp->failed, false);
  take_all(n);
  check_clean(2);
}

/* A host whose frames wait at the other side still learns which of its own were read. */
TEST(test_heap__full_does_not_stop_the_other_direction) {
  uint64_t n;
  start_full(&n);
  send(0, 1, 1, SMALL); /* does not fit */
  for (uint64_t i = 0; i < 5 * MRC_MSG_SLOTS; i++) {
    if (i % 6 == 0 && i < 300) send(0, 3000 + i, 1, SMALL); /* carries a credit */
    receive(0, 2000 + i, 2, SMALL, false);
    send(1, 2000 + i, 2, SMALL);
    wire_run();
    check_ended(1, 2000 + i, 0, SMALL);
    check_ended(0, 2000 + i, 0, SMALL);
  }
  CHECK_EQ(wire[1].msg->counters.violations, 0);
  take_all(n + 1 + 50);
  check_clean(2);
}

/* The data that a receive has asked for overtake their announcement, which waits in its frame. */
TEST(test_heap__full_lets_data_come_before_their_announcement) {
  uint64_t n;
  start_full(&n);
  send(0, 1, 1, SMALL); /* does not fit */
  wire_run();
  receive(1, 2, 5, BIG, true);
  wire_run();
  send(0, 3, 5, BIG);
  wire_run();
  check_ended(0, 3, 0, BIG);
  check_pending(1, 2);
  take_all(n);
  check_ended(1, 2, 0, BIG);
  receive(1, 4, 1, SMALL, false);
  check_ended(1, 4, 0, SMALL);
  check_clean(2);
}

/* ---- a peer that lies ---- */

TEST(test_liar__fails_and_nobody_else) {
  enum { FRAME = (uint32_t)MRC_MSG_IMM_FRAME << 30 };
  static const struct {
    uint32_t imm, bytes;
    uint8_t frame[56];
    bool good;
  } rows[] = {
      {FRAME, 40, {[8] = MRC_MSG_CANCEL}, true},
      {0xC0000000, 0, {0}, false},                             /* an immediate without a meaning */
      {0x00010000, 0, {0}, false},                             /* data that nobody asked for */
      {FRAME + 1, 16, {0}, false},                             /* not the next frame */
      {FRAME, 4, {0}, false},                                  /* too short */
      {FRAME, 8193, {0}, false},                               /* too long */
      {0x80000001, 0, {0}, false},                             /* a credit for frames never sent */
      {FRAME, 31, {[8] = MRC_MSG_EAGER}, false},               /* half a record */
      {FRAME, 32, {[8] = MRC_MSG_EAGER, [24] = 1}, false},     /* longer than its frame */
      {FRAME, 40, {[8] = MRC_MSG_CANCELLED, [32] = 1}, false}, /* an answer without a question */
      {FRAME, 40, {[8] = 0}, false},                           /* no such records */
      {FRAME, 40, {[8] = MRC_MSG_LAST_KIND + 1}, false},
      {FRAME, 40, {[8] = 1, [9] = 1}, false},
      {FRAME, 40, {[8] = MRC_MSG_RTS, [9] = MRC_MSG_RTS}, false},
      {FRAME, 40, {[8] = 0xFF, [9] = 0xFF, [10] = 0xFF, [11] = 0xFF}, false},
  };
  EACH_ROW(i, rows) {
    struct wire_qp *qp = start_alone();
    receive(0, 1, 5, 8, false);
    receive_any(0, 2, 6, 0, 8);
    memcpy(wire[0].msg->peers[qp->number]->inbox, rows[i].frame, sizeof rows[i].frame);
    wire_immediate(qp, rows[i].imm, rows[i].bytes);
    wire_turn(&wire[0]);
    CHECK_EQ(violations(), rows[i].good ? 0 : 1);
    CHECK_EQ(qp->failed, !rows[i].good);
    if (rows[i].good)
      check_pending(0, 1);
    else
      check_ended(0, 1, -EPROTO, 0);
    check_pending(0, 2);
    wire_stop();
  }
}

/* The peer announces more than there is room for, and says that it has written it. */
TEST(test_liar__does_not_get_a_receive_past_its_room) {
  struct wire_qp *qp = start_alone();
  receive(0, 1, 5, 1000, true);
  wire_run();
  const struct mrc_msg_record rts = {
      .kind = MRC_MSG_RTS, .space = SPACE, .tag = 5, .bytes = 1 << 20, .id = 1 << 16};
  say(qp, &rts, 1);
  for (uint32_t i = 0; i < 4; i++)
    if (wire[0].msg->ops[i].state != MRC_MSG_FREE)
      wire_immediate(qp, mrc_imm(MRC_MSG_IMM_DATA, wire[0].msg->ops[i].id), 1000);
  wire_turn(&wire[0]);
  const struct mrc_msg_done *done = wire_ended(&wire[0], 1);
  CHECK(done != NULL && (done->result != 0 || done->bytes <= 1000));
  wire_stop();
}

/* ---- failures ---- */

TEST(test_failure__ends_all_operations_of_the_peer) {
  EACH_OF(int, step, 0, 8) {
    start(3, &(struct mrc_msg_config){.eager_bytes = EAGER});
    struct wire_qp *qp = wire_join(0, 1, &limits);
    struct wire_qp *good = wire_join(2, 1, &limits);
    receive(1, 11, 5, BIG, true);
    wire_run();
    send(0, 1, 5, BIG);
    send(0, 2, 6, BIG);
    send(0, 3, 7, 10);
    receive(0, 4, 8, BIG, true);
    receive(0, 5, 9, 10, false);
    for (int i = 0; i < step; i++) {
      wire_deliver(qp);
      wire_turn(&wire[1]);
      if (i % 2) wire_complete(qp);
      wire_turn(&wire[0]);
    }
    wire_fail(qp, MRC_WC_RETRY_EXC_ERR);
    wire_fail(qp->peer, MRC_WC_RETRY_EXC_ERR);
    wire_run();
    mrc_msg_fail(wire[0].msg, qp->number, -ECONNRESET, 1);
    mrc_msg_fail(wire[1].msg, qp->peer->number, -ECONNRESET, 1);
    wire_run();
    for (uint64_t cookie = 1; cookie <= 5; cookie++)
      CHECK(wire_ended(&wire[0], cookie) != NULL);
    CHECK(wire_ended(&wire[0], 2)->result == -ETIMEDOUT ||
          wire_ended(&wire[0], 2)->result == -ECONNRESET);
    CHECK_EQ(wire[0].msg->n_ops, 0);
    CHECK_EQ(wire[1].msg->n_ops, 0);
    send(0, 6, 1, 1);
    CHECK(wire_ended(&wire[0], 6) != NULL && wire_ended(&wire[0], 6)->result < 0);
    send(2, 7, 1, BIG);
    receive_any(1, 12, 1, 0, BIG);
    wire_run();
    check_ended(2, 7, 0, BIG);
    check_ended(1, 12, 0, BIG);
    CHECK_EQ(good->failed, false);
    mrc_msg_close(wire[0].msg, qp->number);
    CHECK_EQ(wire[0].n_mrs, 0);
    wire_stop();
  }
}

/* The QP is destroyed while its writes are outstanding, so their completions never come. */
TEST(test_close__ends_what_is_outstanding) {
  struct wire_qp *qp = start_pair();
  receive(1, 2, 5, BIG, true);
  wire_run();
  send(0, 1, 5, BIG);
  send(0, 3, 6, BIG);
  check_pending(0, 1);
  CHECK(!mrc_msg_is_idle(wire[0].msg, qp->number));
  wire_fail(qp, MRC_WC_WR_FLUSH_ERR);
  wire[0].wc_head = wire[0].wc_tail;
  mrc_msg_close(wire[0].msg, qp->number);
  CHECK_EQ(wire_ended(&wire[0], 1)->result, -ECONNRESET);
  CHECK_EQ(wire_ended(&wire[0], 3)->result, -ECONNRESET);
  CHECK_EQ(wire[0].n_mrs, 0);
  CHECK_EQ(wire[0].msg->n_ops, 0);
  wire_stop();
}

/* A peer is idle when all that was said to it has arrived, or will never arrive. */
TEST(test_idle__when_all_has_arrived) {
  EACH_OF(int, row, 0, 3) {
    struct wire_qp *qp = start_pair();
    CHECK(mrc_msg_is_idle(wire[0].msg, qp->number));
    wire[0].refuse = row;
    send(0, 1, 5, row == 2 ? BIG : 10);
    CHECK(!mrc_msg_is_idle(wire[0].msg, qp->number));
    for (int i = 0; i < 4; i++)
      wire_run();
    CHECK(mrc_msg_is_idle(wire[0].msg, qp->number));
    send(0, 2, 5, 10);
    CHECK(!mrc_msg_is_idle(wire[0].msg, qp->number));
    mrc_msg_fail(wire[0].msg, qp->number, -ECONNRESET, 1);
    CHECK(mrc_msg_is_idle(wire[0].msg, qp->number));
    wire_stop();
  }
}

/* The engine has no room for a post at this moment, e.g. in its completion queue. */
TEST(test_failure__of_a_post_for_lack_of_room_is_none) {
  EACH_OF(int, refusals, 1, 6) {
    start_pair();
    wire[0].refuse = wire[1].refuse = refusals;
    send(0, 1, 5, BIG);
    send(0, 3, 6, 10);
    receive(1, 2, 5, BIG, true);
    receive(1, 4, 6, 10, true);
    for (int i = 0; i < 10; i++)
      wire_run();
    check_ended(0, 1, 0, BIG);
    check_ended(1, 2, 0, BIG);
    check_ended(1, 4, 0, 10);
    CHECK_MEM_EQ(target + 10, source + 10, BIG - 10);
    check_clean(2);
  }
}

/* ---- a message without a place ---- */

/* -EMSGSIZE tells the length of the message, also where no RTS has told it. */
TEST(test_message__of_another_length_than_exact) {
  const struct {
    uint64_t bytes;
    int receiver, sender;
  } rows[] = {{5, -EMSGSIZE, 0}, {BIG - 1, 0, 0}, {BIG + 1, -EMSGSIZE, -EMSGSIZE}};
  EACH_ROW(i, rows) {
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
      if (rows[i].receiver != 0) CHECK_EQ(target[0], 0);
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
  EACH_OF(uint64_t, bytes, BIG - 1, BIG + 2) {
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
  EACH_OF(int, row, 0, 8) {
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

static uint32_t id_of(uint64_t cookie) {
  for (uint32_t i = 0; i < wire[0].msg->config.max_operations; i++) {
    const struct mrc_msg_op *op = &wire[0].msg->ops[i];
    if (op->state != MRC_MSG_FREE && op->post.cookie == cookie) return op->id;
  }
  return 0;
}

TEST(test_refuse__without_a_length) {
  struct wire_qp *qp = start_alone();
  receive(0, 1, 5, BIG, true);
  say(qp, &(struct mrc_msg_record){.kind = MRC_MSG_REFUSE, .id = id_of(1)}, 1);
  check_ended(0, 1, -EMSGSIZE, 0);
  CHECK_EQ(violations(), 0);
  wire_stop();
}

/* The data have come, so it is too late to refuse. */
TEST(test_refuse__after_the_data) {
  struct wire_qp *qp = start_alone();
  receive(0, 1, 5, BIG, true);
  const uint32_t id = id_of(1);
  wire_immediate(qp, mrc_imm(MRC_MSG_IMM_DATA, id), BIG);
  say(qp, &(struct mrc_msg_record){.kind = MRC_MSG_REFUSE, .id = id, .bytes = BIG + 1}, 1);
  check_ended(0, 1, -EPROTO, 0);
  CHECK_EQ(violations(), 1);
  wire_stop();
}

/* An operation has one CTS, and one RTS: a second one would outlive its CANCEL. */
TEST(test_kept__twice) {
  static const uint8_t kinds[] = {MRC_MSG_CTS, MRC_MSG_RTS};
  EACH_OF(int, i, 0, 4) {
    struct wire_qp *qp = start_alone();
    struct mrc_msg_record record = {.kind = kinds[i & 1], .tag = 5, .bytes = BIG, .id = 0x10001};
    say(qp, &record, 1);
    if (i & 2) record.kind = kinds[~i & 1]; /* the ids of sends and receives are apart */
    record.tag = 6;
    say(qp, &record, 1);
    CHECK_EQ(violations(), i & 2 ? 0 : 1);
    wire_stop();
  }
}

/* ---- chains ---- */

enum { POSTS = 512, LONGEST = 4 };

static int length(const struct mrc_node *chain) {
  int n = 0;
  for (const struct mrc_node *node = chain->next; node != chain; node = node->next)
    n++;
  return n;
}

static int longest(const struct mrc_msg_chains *chains) {
  int most = 0;
  for (uint32_t i = 0; i <= chains->mask; i++) {
    const int n = length(&chains->heads[i]);
    most = n > most ? n : most;
  }
  return most;
}

static void post_in(uint64_t cookie, uint32_t space) {
  const struct mrc_msg_post each = {
      .cookie = cookie, .space = space, .peer = MRC_MSG_ANY, .kind = MRC_MSG_RECV};
  CHECK_EQ(wire_post(&wire[0], &each), 1);
}

/* Receives whose cookies differ in nine bits, or whose spaces do; each is found. */
TEST(test_cookies__have_short_chains) {
  EACH_OF(uint32_t, shift, 0, 57) {
    wire_start(0, &(struct mrc_msg_config){0});
    for (uint64_t i = 0; i < POSTS; i++)
      shift == 56 ? post_in(7, (uint32_t)i) : post_in(i << shift, 3);
    CHECK(longest(&wire[0].msg->by_cookie) <= LONGEST);
    CHECK_EQ(mrc_msg_cancel(wire[0].msg, 4, POSTS), -ENOENT);
    for (uint64_t i = 0; i < POSTS; i++)
      CHECK_EQ(shift == 56 ? mrc_msg_cancel(wire[0].msg, (uint32_t)i, 7)
                           : mrc_msg_cancel(wire[0].msg, 3, i << shift),
               0);
    CHECK_EQ(longest(&wire[0].msg->by_cookie), 0);
    wire_stop();
  }
}

/* Of several operations with the same cookie, the oldest is cancelled. */
TEST(test_cookies__may_be_equal) {
  wire_start(0, &(struct mrc_msg_config){0});
  for (uint32_t i = 0; i < 3; i++)
    wire_post(&wire[0], &(struct mrc_msg_post){
                            .cookie = 9, .tag = i, .peer = MRC_MSG_ANY, .kind = MRC_MSG_RECV});
  for (uint32_t i = 0; i < 3; i++) {
    CHECK_EQ(mrc_msg_cancel(wire[0].msg, 0, 9), 0);
    CHECK_EQ(wire[0].n_done, i + 1);
    CHECK_EQ(wire[0].done[i].tag, i);
  }
  CHECK_EQ(mrc_msg_cancel(wire[0].msg, 0, 9), -ENOENT);
  wire_stop();
}

/* A number that is no power of two is rounded up. */
TEST(test_init__rounds_up) {
  static const uint32_t rows[][2] = {{1, 1}, {2, 2}, {3, 4}, {16, 16}, {17, 32}};
  EACH_ROW(i, rows) {
    struct mrc_msg_chains chains;
    CHECK_EQ(mrc_msg_chains_init(&chains, rows[i][0]), 0);
    CHECK_EQ(chains.mask + 1, rows[i][1]);
    CHECK_EQ(longest(&chains), 0);
    CHECK(mrc_msg_chain(&chains, UINT64_MAX) == &chains.heads[chains.mask]);
    mrc_msg_chains_free(&chains);
  }
}
