/* SPDX-License-Identifier: Apache-2.0 */
/* ATOMICs: changes of numbers in memory of a peer, and peers that lie about them. */
#include "check.h"
#include "msg/msg.h"
#include "msg_steps.h"

enum { KEY = 77, SHOWN = MRC_ACCESS_REMOTE_READ | MRC_ACCESS_REMOTE_WRITE };

static uint64_t numbers[3]; /* the middle one is changed */

static void show(uint32_t access) {
  CHECK_EQ(
      mrc_mr_register((mrc_engine *)&wire[1], (uintptr_t)numbers, sizeof numbers, KEY, access, 0),
      0);
}

static void hide(void) { CHECK_EQ(mrc_mr_deregister((mrc_engine *)&wire[1], KEY), 0); }

static void change(uint64_t cookie, uint32_t how, uint64_t bytes, uint64_t operand,
                   uint64_t expected) {
  const struct mrc_msg_post post = {.cookie = cookie,
                                    .address = operand,
                                    .bytes = bytes,
                                    .tag = (uintptr_t)&numbers[1],
                                    .ignore = KEY,
                                    .space = SPACE,
                                    .kind = MRC_MSG_ATOMIC,
                                    .data = how,
                                    .least = expected};
  CHECK_EQ(wire_post(&wire[0], &post), 1);
}

static void check_before(uint64_t cookie, uint64_t before) {
  const struct mrc_msg_done *done = wire_ended(&wire[0], cookie);
  CHECK(done != NULL);
  if (done == NULL) return;
  CHECK_EQ(done->kind, MRC_MSG_ATOMIC);
  CHECK_EQ(done->result, 0);
  CHECK_EQ(done->tag, before);
}

TEST(test_atomic__of_each_kind) {
  const uint64_t all = UINT64_MAX;
  const struct {
    uint32_t how;
    uint64_t bytes, number, operand, expected, before, after;
  } rows[] = {
      {MRC_MSG_ADD, 8, 5, 7, 0, 5, 12},
      {MRC_MSG_ADD, 8, 5, all, 0, 5, 4},
      {MRC_MSG_ADD, 4, 0x500000005, 7, 0, 5, 0x50000000C},
      {MRC_MSG_ADD, 4, 0x5FFFFFFFF, 1, 0, UINT32_MAX, 0x500000000},
      {MRC_MSG_AND, 8, 12, 10, 0, 12, 8},
      {MRC_MSG_AND, 4, all, 0, 0, UINT32_MAX, all << 32},
      {MRC_MSG_OR, 8, 12, 10, 0, 12, 14},
      {MRC_MSG_OR, 4, 0, all, 0, 0, UINT32_MAX},
      {MRC_MSG_XOR, 8, 12, 10, 0, 12, 6},
      {MRC_MSG_XOR, 4, all, all, 0, UINT32_MAX, all << 32},
      {MRC_MSG_SWAP, 8, 1ull << 60, 1ull << 61, 0, 1ull << 60, 1ull << 61},
      {MRC_MSG_SWAP, 4, all, 3, 0, UINT32_MAX, (all << 32) + 3},
      {MRC_MSG_COMPARE_SWAP, 8, 1ull << 60, 9, 1ull << 60, 1ull << 60, 9},
      {MRC_MSG_COMPARE_SWAP, 8, 1ull << 60, 9, 8, 1ull << 60, 1ull << 60},
      {MRC_MSG_COMPARE_SWAP, 4, all, 9, all, UINT32_MAX, (all << 32) + 9},
      {MRC_MSG_COMPARE_SWAP, 4, all, 9, 8, UINT32_MAX, all},
      {MRC_MSG_LOGICAL_AND, 8, 12, 3, 0, 12, 1},
      {MRC_MSG_LOGICAL_AND, 4, all << 32, 3, 0, 0, all << 32},
      {MRC_MSG_LOGICAL_OR, 8, 0, 3, 0, 0, 1},
      {MRC_MSG_LOGICAL_OR, 8, 0, 0, 0, 0, 0},
      {MRC_MSG_LOGICAL_XOR, 8, 12, 3, 0, 12, 0},
      {MRC_MSG_LOGICAL_XOR, 4, all, 0, 0, UINT32_MAX, (all << 32) + 1},
      {MRC_MSG_MIN, 8, 5, all, 0, 5, 5},
      {MRC_MSG_MIN, 4, all, 3, 0, UINT32_MAX, (all << 32) + 3},
      {MRC_MSG_MAX, 8, 5, all, 0, 5, all},
      {MRC_MSG_MAX, 4, 5, 4, 0, 5, 5},
      {MRC_MSG_SIGNED_MIN, 8, 5, all, 0, 5, all},
      {MRC_MSG_SIGNED_MIN, 4, 5, UINT32_MAX, 0, 5, UINT32_MAX},
      {MRC_MSG_SIGNED_MAX, 8, 5, all, 0, 5, 5},
      {MRC_MSG_SIGNED_MAX, 4, UINT32_MAX, 5, 0, UINT32_MAX, 5},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    start_pair();
    show(SHOWN);
    numbers[0] = numbers[2] = 0x55;
    numbers[1] = rows[i].number;
    change(1, rows[i].how, rows[i].bytes, rows[i].operand, rows[i].expected);
    check_pending(0, 1);
    wire_run();
    check_before(1, rows[i].before);
    CHECK_EQ(numbers[1], rows[i].after);
    CHECK(numbers[0] == 0x55 && numbers[2] == 0x55);
    hide();
    check_clean(2);
  }
}

/* An ATOMIC is refused, and the peer goes on. */
TEST(test_atomic__of_memory_that_is_not_shown) {
  const struct {
    uint32_t key, access;
    int result;
  } rows[] = {{KEY, SHOWN, 0},
              {KEY + 1, SHOWN, -EACCES},
              {KEY, MRC_ACCESS_REMOTE_WRITE, -EACCES},
              {KEY, MRC_ACCESS_REMOTE_READ | MRC_ACCESS_LOCAL_READ, -EACCES}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    start_pair();
    CHECK_EQ(mrc_mr_register((mrc_engine *)&wire[1], (uintptr_t)numbers, sizeof numbers,
                             rows[i].key, rows[i].access, 0),
             0);
    numbers[1] = 5;
    change(1, MRC_MSG_ADD, 8, 7, 0);
    wire_run();
    check_ended(0, 1, rows[i].result, rows[i].result == 0 ? 8 : 0);
    CHECK_EQ(numbers[1], rows[i].result == 0 ? 12 : 5);
    receive(1, 3, 5, 10, false);
    send(0, 2, 5, 10);
    wire_run();
    check_ended(1, 3, 0, 10);
    CHECK_EQ(mrc_mr_deregister((mrc_engine *)&wire[1], rows[i].key), 0);
    check_clean(2);
  }
}

/* As many as there are operations, each once, in their order. */
TEST(test_atomic__thousands_at_a_time) {
  enum { N = 5000 };
  start_pair();
  show(SHOWN);
  numbers[1] = 0;
  for (uint64_t i = 0; i < N; i++)
    change(i, MRC_MSG_ADD, 8, 1, 0);
  wire_run();
  for (uint64_t i = 0; i < N; i++)
    check_before(i, i);
  CHECK_EQ(numbers[1], N);
  hide();
  check_clean(2);
}

TEST(test_atomic__ends_with_its_peer) {
  start_pair();
  show(SHOWN);
  numbers[1] = 5;
  change(1, MRC_MSG_ADD, 8, 7, 0);
  CHECK_EQ(mrc_msg_cancel(wire[0].msg, SPACE, 1), 0); /* it goes on: the peer may know of it */
  check_pending(0, 1);
  mrc_msg_fail(wire[0].msg, 0, -ECONNRESET, 0);
  check_ended(0, 1, -ECONNRESET, 0);
  CHECK_EQ(numbers[1], 5);
  hide();
  wire_stop();
}

/* ---- a peer that lies ---- */

TEST(test_liar__changes_what_is_no_number) {
  const struct {
    uint32_t how, bytes;
    uint64_t skew;
    int violations;
  } rows[] = {{MRC_MSG_ADD, 8, 0, 0},
              {MRC_MSG_ADD, 4, 4, 0},
              {MRC_MSG_ADD, 8, 4, 1},
              {MRC_MSG_ADD, 4, 2, 1},
              {MRC_MSG_ADD, 0, 0, 1},
              {MRC_MSG_ADD, 16, 0, 1},
              {MRC_MSG_ADD, 0xFFFFFF, 0, 1},
              {MRC_MSG_LAST_ATOMIC + 1, 8, 0, 1},
              {0xFF, 8, 0, 1}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct wire_qp *qp = start_alone();
    numbers[0] = numbers[1] = numbers[2] = 5;
    const struct mrc_msg_record record = {.kind = MRC_MSG_CHANGE,
                                          .tag = (uintptr_t)numbers + rows[i].skew,
                                          .id = 1 << 16,
                                          .other = KEY,
                                          .address = 1,
                                          .rkey = rows[i].how | rows[i].bytes << 8};
    say(qp, &record, 1);
    CHECK_EQ(mrc_msg_counters(wire[0].msg)->violations, rows[i].violations);
    CHECK(numbers[0] == 5 && numbers[1] == 5 && numbers[2] == 5);
    wire_stop();
  }
}

TEST(test_liar__answers_no_atomic) {
  for (uint8_t kind = MRC_MSG_UNREADABLE; kind <= MRC_MSG_CHANGED; kind++) {
    if (kind == MRC_MSG_CHANGE) continue;
    CHECK_ROW(kind);
    struct wire_qp *qp = start_alone();
    change(1, MRC_MSG_ADD, 8, 7, 0);
    const uint32_t other = wire[0].msg->ops[0].id + 1;
    const struct mrc_msg_record record = {.kind = kind, .bytes = 5, .id = other};
    say(qp, &record, 1);
    CHECK_EQ(mrc_msg_counters(wire[0].msg)->violations, 1);
    check_ended(0, 1, -EPROTO, 0);
    wire_stop();
  }
}
