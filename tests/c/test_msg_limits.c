/* SPDX-License-Identifier: Apache-2.0 */
/* Messages at their limits: wraps, full heaps, peers that lie, QPs that fail. */
#include "check.h"
#include "msg/msg.h"
#include "msg_steps.h"

/* ---- long lives ---- */

/* Numbers of frames wrap at 30 bits in an immediate and at 32 bits in a frame, ids at 30 bits. */
TEST(test_numbers__wrap) {
  const uint32_t firsts[] = {0x3FFFFFE0, 0xFFFFFFE0};
  for (size_t row = 0; row < 2; row++) {
    CHECK_ROW(row);
    start_pair();
    for (int i = 0; i < 2; i++) {
      struct mrc_msg *msg = wire[i].msg;
      struct mrc_msg_peer *peer = msg->peers[0];
      peer->slots.sent = peer->frames_done = peer->slots.credit = firsts[row];
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
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(wire_post(&wire[0], &rows[i]), -EINVAL);
  }
  check_clean(2);
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

TEST(test_liar__with_records_of_no_kind_fails) {
  const struct {
    uint32_t kind;
    bool good;
  } rows[] = {{MRC_MSG_CANCEL, true},         {0, false},
              {MRC_MSG_LAST_KIND + 1, false}, {0x101, false},
              {257 * MRC_MSG_RTS, false},     {UINT32_MAX, false}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    start(1, &(struct mrc_msg_config){.eager_bytes = EAGER});
    struct mrc_msg_inbox inbox;
    struct wire_qp *qp = wire_open(0, &limits, &inbox);
    uint8_t *frame = wire[0].msg->peers[qp->number]->inbox;
    receive_any(0, 1, 0, ~0ull, 10);
    memcpy(frame + MRC_MSG_FRAME_HEADER, &rows[i].kind, sizeof rows[i].kind);
    wire_immediate(qp, mrc_msg_imm(MRC_MSG_IMM_FRAME, 0), MRC_MSG_FRAME_HEADER + 32);
    wire_turn(&wire[0]);
    CHECK_EQ(mrc_msg_counters(wire[0].msg)->violations, rows[i].good ? 0 : 1);
    check_pending(0, 1);
    wire_stop();
  }
}

static size_t put(struct wire_qp *qp, size_t at, const struct mrc_msg_record *record) {
  uint8_t *frame = wire[0].msg->peers[qp->number]->inbox;
  return at + mrc_msg_encode(record, frame + at);
}

/* The peer announces more than there is room for, and says that it has written it. */
TEST(test_liar__does_not_get_a_receive_past_its_room) {
  start(1, &(struct mrc_msg_config){.eager_bytes = EAGER});
  struct mrc_msg_inbox inbox;
  struct wire_qp *qp = wire_open(0, &limits, &inbox);
  CHECK_EQ(mrc_msg_connect(wire[0].msg, qp->number, &inbox), 0);
  receive(0, 1, 5, 1000, true);
  wire_run();
  const struct mrc_msg_record rts = {
      .kind = MRC_MSG_RTS, .space = SPACE, .tag = 5, .bytes = 1 << 20, .id = 1 << 16};
  memset(wire[0].msg->peers[0]->inbox, 0, MRC_MSG_FRAME_HEADER);
  wire_immediate(qp, mrc_msg_imm(MRC_MSG_IMM_FRAME, 0),
                 (uint32_t)put(qp, MRC_MSG_FRAME_HEADER, &rts));
  wire_turn(&wire[0]);
  for (uint32_t i = 0; i < 4; i++)
    if (wire[0].msg->ops[i].state != MRC_MSG_FREE)
      wire_immediate(qp, mrc_msg_imm(MRC_MSG_IMM_DATA, wire[0].msg->ops[i].id), 1000);
  wire_turn(&wire[0]);
  const struct mrc_msg_done *done = wire_ended(&wire[0], 1);
  CHECK(done != NULL && (done->result != 0 || done->bytes <= 1000));
  wire_stop();
}

/* ---- failures ---- */

TEST(test_failure__ends_all_operations_of_the_peer) {
  for (int step = 0; step < 8; step++) {
    CHECK_ROW(step);
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
  for (int row = 0; row < 3; row++) {
    CHECK_ROW(row);
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
  for (int refusals = 1; refusals < 6; refusals++) {
    CHECK_ROW(refusals);
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
