/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between hosts whose QPs do what the test tells them. */
#include "check.h"
#include "msg/msg.h"
#include "msg_wire.h"

enum { EAGER = 256, SPACE = 7, BIG = 3 << 20, MOST = 4 << 20 };

static uint8_t source[MOST], target[MOST];
static const struct mrc_msg_limits limits = {.sq_depth = 64, .max_wimm = 16};

static void start(int hosts, const struct mrc_msg_config *config) {
  memset(wire, 0, sizeof wire);
  memset(target, 0, sizeof target);
  for (size_t i = 0; i < sizeof source; i++)
    source[i] = (uint8_t)(i * 31 + i / 256 + 1);
  for (int i = 0; i < hosts; i++)
    wire_start(i, config);
}

/* Two joined hosts. */
static struct wire_qp *start_pair(void) {
  start(2, &(struct mrc_msg_config){.eager_bytes = EAGER});
  return wire_join(0, 1, &limits);
}

static void send(int host, uint64_t cookie, uint64_t tag, uint64_t bytes) {
  const struct mrc_msg_post post = {.cookie = cookie,
                                    .address = (uintptr_t)source,
                                    .bytes = bytes,
                                    .tag = tag,
                                    .space = SPACE,
                                    .kind = MRC_MSG_SEND};
  CHECK_EQ(wire_post(&wire[host], &post), 1);
}

static void receive(int host, uint64_t cookie, uint64_t tag, uint64_t room, bool exact) {
  const struct mrc_msg_post post = {.cookie = cookie,
                                    .address = (uintptr_t)target,
                                    .bytes = room,
                                    .tag = tag,
                                    .space = SPACE,
                                    .kind = MRC_MSG_RECV,
                                    .exact = exact};
  CHECK_EQ(wire_post(&wire[host], &post), 1);
}

static void receive_any(int host, uint64_t cookie, uint64_t tag, uint64_t ignore, uint64_t room) {
  const struct mrc_msg_post post = {.cookie = cookie,
                                    .address = (uintptr_t)target,
                                    .bytes = room,
                                    .tag = tag,
                                    .ignore = ignore,
                                    .space = SPACE,
                                    .peer = MRC_MSG_ANY,
                                    .kind = MRC_MSG_RECV};
  CHECK_EQ(wire_post(&wire[host], &post), 1);
}

static void check_ended(int host, uint64_t cookie, int result, uint64_t bytes) {
  const struct mrc_msg_done *done = wire_ended(&wire[host], cookie);
  CHECK(done != NULL);
  if (done == NULL) return;
  CHECK_EQ(done->result, result);
  CHECK_EQ(done->bytes, bytes);
}

static void check_pending(int host, uint64_t cookie) {
  CHECK(wire_ended(&wire[host], cookie) == NULL);
}

/* Nothing is left behind: no operation, no memory region but the rings, nothing in a heap. */
static void check_clean(int hosts) {
  for (int i = 0; i < hosts; i++) {
    CHECK_EQ(wire[i].msg->n_ops, 0);
    CHECK_EQ(wire[i].n_mrs, 2 * wire[i].n_qps);
    for (int k = 0; k < wire[i].n_qps; k++)
      CHECK_EQ(wire[i].msg->peers[wire[i].qps[k].number]->heap, 0);
  }
  wire_stop();
}

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

static void test_message__arrives(void) {
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

static void test_message__crosses_its_receive(void) {
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
static void test_message__that_is_asked_for_leaves_at_once(void) {
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

static void test_message__that_does_not_fit(void) {
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

/* An exact receive and a sender that disagree about the length. */
static void test_message__of_another_length_than_exact(void) {
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
      CHECK(wire_ended(&wire[1], 2) != NULL);
      CHECK_EQ(wire_ended(&wire[1], 2)->result, rows[i].receiver);
      CHECK_EQ(target[BIG], 0);
      check_clean(2);
    }
  }
}

/* More than 4 GiB: the writes are not copied, but they cover the message, one after the other. */
static void test_message__longer_than_a_write_can_be(void) {
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

static void test_matching__by_space_peer_tag_and_mask(void) {
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
  check_ended(1, 9, -ECANCELED, 1);
  check_clean(2);
}

/* ---- cancelling ---- */

static void test_cancel__of_what_nobody_knows(void) {
  struct wire_qp *qp = start_pair();
  receive(1, 1, 5, BIG, false);
  CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 1), 0);
  check_ended(1, 1, -ECANCELED, BIG);
  CHECK_EQ(mrc_msg_cancel(wire[1].msg, SPACE, 1), -ENOENT);
  const struct mrc_msg_post post = {.cookie = 2,
                                    .address = (uintptr_t)source,
                                    .bytes = BIG,
                                    .tag = 5,
                                    .space = SPACE,
                                    .kind = MRC_MSG_SEND};
  CHECK_EQ(mrc_msg_post(wire[0].msg, &post, 1, 1), 1); /* without pump: its RTS has not left */
  CHECK_EQ(mrc_msg_cancel(wire[0].msg, SPACE, 2), 0);
  check_ended(0, 2, -ECANCELED, BIG);
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

static void test_cancel__at_every_stage(void) {
  for (int row = 0; row < 4 * 12; row++) {
    CHECK_ROW(row);
    check_cancel(row & 1, row & 2, row / 4);
  }
}

/* A receive is cancelled while its CTS and the RTS are on their ways. */
static void test_cancel__crosses_the_message(void) {
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

/* ---- long lives ---- */

/* Numbers of frames wrap at 30 bits in an immediate and at 32 bits in a frame, ids at 30 bits. */
static void test_numbers__wrap(void) {
  const uint32_t firsts[] = {0x3FFFFFE0, 0xFFFFFFE0};
  for (size_t row = 0; row < 2; row++) {
    CHECK_ROW(row);
    start_pair();
    for (int i = 0; i < 2; i++) {
      struct mrc_msg *msg = wire[i].msg;
      struct mrc_msg_peer *peer = msg->peers[0];
      peer->frames_out = peer->frames_done = peer->credit = firsts[row];
      peer->frames_in = peer->frames_read = peer->credit_told = firsts[row];
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
    CHECK(wire[0].msg->peers[0]->frames_out - firsts[row] >= 300);
    check_clean(2);
  }
}

static void test_post__that_is_wrong(void) {
  const struct mrc_msg_post rows[] = {
      {.address = (uintptr_t)source, .bytes = 1, .peer = 7, .kind = MRC_MSG_SEND},
      {.address = (uintptr_t)source, .bytes = 1, .peer = MRC_MSG_ANY, .kind = MRC_MSG_SEND},
      {.address = (uintptr_t)source, .bytes = 1, .kind = MRC_MSG_RECV + 1},
      {.address = (uintptr_t)source, .bytes = UINT64_MAX, .kind = MRC_MSG_SEND},
      {.bytes = 1, .kind = MRC_MSG_SEND},
      {.bytes = 1, .kind = MRC_MSG_RECV},
  };
  start_pair();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(wire_post(&wire[0], &rows[i]), -EINVAL);
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

/* Frames wait in their slots, then their sends at the sender; nothing is lost or out of order. */
static void test_heap__full_stops_the_sender_and_goes_on(void) {
  uint64_t n, more;
  start_full(&n);
  for (more = 0; more < 200; more++) {
    send(0, 2000 + more, 2, more);
    wire_run();
  }
  const struct mrc_msg_peer *peer = wire[1].msg->peers[0];
  const uint32_t unread = peer->frames_in - peer->frames_read; /* less what was read untold */
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
static void test_heap__full_of_messages_lets_a_send_find_its_request(void) {
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
static void test_heap__full_does_not_stop_the_other_direction(void) {
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

/* ---- a peer that lies ---- */

static size_t put(struct wire_qp *qp, size_t at, const struct mrc_msg_record *record) {
  uint8_t *frame = wire[0].msg->peers[qp->number]->inbox;
  return at + mrc_msg_encode(record, frame + at);
}

/* The peer announces more than there is room for, and says that it has written it. */
static void test_liar__does_not_get_a_receive_past_its_room(void) {
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

static void test_failure__ends_all_operations_of_the_peer(void) {
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

/* The engine has no room for a post at this moment, e.g. in its completion queue. */
static void test_failure__of_a_post_for_lack_of_room_is_none(void) {
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

static void test_failure__of_a_registration_ends_the_operation(void) {
  for (int host = 0; host < 2; host++) {
    CHECK_ROW(host);
    start_pair();
    wire[host].max_mrs = wire[host].n_mrs;
    send(0, 1, 5, BIG);
    wire_run();
    receive(1, 2, 5, BIG, true);
    wire_run();
    CHECK(wire_ended(&wire[host], host == 0 ? 1 : 2)->result == -ENOSPC);
    CHECK(wire_ended(&wire[0], 1)->result < 0 && wire_ended(&wire[1], 2)->result < 0);
    check_clean(2);
  }
}

CHECK_MAIN(RUN(test_message__arrives), RUN(test_message__crosses_its_receive),
           RUN(test_message__that_is_asked_for_leaves_at_once),
           RUN(test_message__that_does_not_fit), RUN(test_message__of_another_length_than_exact),
           RUN(test_message__longer_than_a_write_can_be),
           RUN(test_matching__by_space_peer_tag_and_mask), RUN(test_cancel__of_what_nobody_knows),
           RUN(test_cancel__at_every_stage), RUN(test_cancel__crosses_the_message),
           RUN(test_numbers__wrap), RUN(test_post__that_is_wrong),
           RUN(test_heap__full_stops_the_sender_and_goes_on),
           RUN(test_heap__full_of_messages_lets_a_send_find_its_request),
           RUN(test_heap__full_does_not_stop_the_other_direction),
           RUN(test_liar__does_not_get_a_receive_past_its_room),
           RUN(test_failure__ends_all_operations_of_the_peer),
           RUN(test_failure__of_a_post_for_lack_of_room_is_none),
           RUN(test_failure__of_a_registration_ends_the_operation))
