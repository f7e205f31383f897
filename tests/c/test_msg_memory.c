/* SPDX-License-Identifier: Apache-2.0 */
/* WRITEs, READs and ATOMICs of a peer's memory, sends that end at the peer, and peers that are
   silent. */
#include "check.h"
#include "msg/msg.h"
#include "msg_steps.h"

enum { KEY = 77, SHOWN = MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_READ };

/* Reads or writes memory of host 1, or changes a number there. */
static struct mrc_msg_post far_of(int kind, uint64_t cookie, const void *far, const void *memory,
                                  uint64_t bytes) {
  struct mrc_msg_post each = post_of(kind, cookie, (uintptr_t)far, memory, bytes);
  each.ignore = KEY;
  return each;
}

static void access_memory(int kind, uint64_t cookie, uint64_t at, uint64_t bytes) {
  const uint8_t *far = kind == MRC_MSG_READ ? source : target;
  const uint8_t *here = kind == MRC_MSG_READ ? target : source;
  post(0, far_of(kind, cookie, far + at, here + at, bytes));
}

static void show(const uint8_t *memory, uint64_t bytes, uint32_t access) {
  CHECK_EQ(mrc_mr_register((mrc_engine *)&wire[1], (uintptr_t)memory, bytes, KEY, access, 0), 0);
}

static void hide(void) { CHECK_EQ(mrc_mr_deregister((mrc_engine *)&wire[1], KEY), 0); }

TEST(test_memory__of_every_size) {
  const uint64_t rows[] = {0, 1, 4096, 1 << 20, (1 << 20) + 1, BIG};
  for (int kind = MRC_MSG_WRITE; kind <= MRC_MSG_READ; kind++)
    EACH_ROW(i, rows) {
      start_pair();
      if (kind == MRC_MSG_READ)
        show(source, MOST, SHOWN);
      else
        show(target, MOST, MRC_ACCESS_REMOTE_WRITE);
      access_memory(kind, 1, 8, rows[i]);
      check_pending(0, 2);
      wire_run();
      check_ended(0, 1, 0, rows[i]);
      CHECK_MEM_EQ(target + 8, source + 8, rows[i]);
      CHECK_EQ(target[8 + rows[i]], 0);
      hide();
      check_clean(2);
    }
}

/* The region ends between two chunks of the answer. */
TEST(test_read__of_memory_that_goes) {
  enum { LONG = MRC_MSG_CHUNKS_AT_ONCE + 4 };
  static uint8_t from[LONG << 20], to[LONG << 20];
  start_pair();
  struct wire_qp *far = wire[0].qps[0].peer;
  show(from, sizeof from, SHOWN);
  post(0, far_of(MRC_MSG_READ, 1, from, to, sizeof to));
  CHECK(wire_deliver(&wire[0].qps[0]));
  wire_turn(&wire[1]);
  CHECK_EQ(far->posted, MRC_MSG_CHUNKS_AT_ONCE);
  CHECK_EQ(mrc_mr_deregister((mrc_engine *)&wire[1], KEY), -EBUSY);
  wire_find(&wire[1], KEY)->access = MRC_ACCESS_LOCAL_READ; /* as the engine does */
  wire_run();
  check_ended(0, 1, -EACCES, 0);
  hide();
  check_clean(2);
}

/* The peer never has more READs to answer than it has places. */
TEST(test_read__hundreds_at_a_time) {
  enum { N = 3 * MRC_MSG_READS + 1 };
  start_pair();
  show(source, MOST, SHOWN);
  for (uint64_t i = 0; i < N; i++)
    access_memory(MRC_MSG_READ, i, 100 * i, 100);
  CHECK_EQ(wire[0].msg->peers[0]->reads, MRC_MSG_READS);
  wire_run();
  for (uint64_t i = 0; i < N; i++)
    check_ended(0, i, 0, 100);
  CHECK_MEM_EQ(target, source, 100 * N);
  hide();
  check_clean(2);
}

/* READs need no credit: they go on while the peer's frames wait for room. */
TEST(test_read__while_all_else_waits) {
  start(2, &(struct mrc_msg_config){.eager_bytes = EAGER, .heap_bytes = 2 * MRC_MSG_SLOT_BYTES});
  wire_join(0, 1, &limits);
  show(source, MOST, SHOWN);
  for (uint64_t i = 0; i < 2000; i++) /* host 1 fills the heap, the slots and the queue of host 0 */
    send(1, i, 0, EAGER);
  access_memory(MRC_MSG_READ, 1, 0, BIG);
  wire_run();
  check_ended(0, 1, 0, BIG);
  CHECK(wire[0].msg->counters.stalls > 0);
  hide();
  wire_stop();
}

TEST(test_memory__of_a_peer_that_fails) {
  for (int kind = MRC_MSG_WRITE; kind <= MRC_MSG_READ; kind++)
    EACH_OF(int, steps, 0, 4) {
      struct wire_qp *qp = start_pair();
      for (uint64_t i = 0; i < 100; i++)
        access_memory(kind, i, 0, BIG);
      for (int i = 0; i < steps; i++)
        wire_deliver(qp);
      wire_turn(&wire[1]);
      wire_fail(qp, MRC_WC_RETRY_EXC_ERR);
      mrc_msg_fail_qp(wire[0].msg, qp->qpn, -ETIMEDOUT, 1);
      wire_turn(&wire[0]);
      for (uint64_t i = 0; i < 100; i++)
        check_ended(0, i, -ETIMEDOUT, 0);
      access_memory(kind, 1000, 0, 1);
      check_ended(0, 1000, -ETIMEDOUT, 0);
      wire_stop();
    }
}

/* ---- ATOMICs ---- */

enum { BOTH = MRC_ACCESS_REMOTE_READ | MRC_ACCESS_REMOTE_WRITE };

static uint64_t numbers[3]; /* the middle one is changed */

static void show_numbers(void) { show((const uint8_t *)numbers, sizeof numbers, BOTH); }

static void change(uint64_t cookie, uint32_t how, uint64_t bytes, uint64_t operand,
                   uint64_t expected) {
  struct mrc_msg_post each = far_of(MRC_MSG_ATOMIC, cookie, &numbers[1], NULL, bytes);
  each.address = operand;
  each.data = how;
  each.least = expected;
  post(0, each);
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
  EACH_ROW(i, rows) {
    start_pair();
    show_numbers();
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

/* A READ or ATOMIC is refused, and the peer goes on. */
TEST(test_memory__that_is_not_shown) {
  const struct {
    uint8_t kind;
    uint32_t key, access;
    uint64_t at, bytes;
    int result;
  } rows[] = {
      {MRC_MSG_READ, KEY, SHOWN, 0, 100, 0},
      {MRC_MSG_READ, KEY + 1, SHOWN, 0, 100, -EACCES},
      {MRC_MSG_READ, KEY, MRC_ACCESS_REMOTE_READ, 0, 100, -EACCES},
      {MRC_MSG_READ, KEY, MRC_ACCESS_LOCAL_READ, 0, 100, -EACCES},
      {MRC_MSG_READ, KEY, MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE, 0, 100, -EACCES},
      {MRC_MSG_READ, KEY, SHOWN, 1, 100, -EACCES},
      {MRC_MSG_READ, KEY, SHOWN, 0, 101, -EACCES},
      {MRC_MSG_READ, KEY, SHOWN, 100, 1, -EACCES},
      {MRC_MSG_ATOMIC, KEY, BOTH, 0, 8, 0},
      {MRC_MSG_ATOMIC, KEY + 1, BOTH, 0, 8, -EACCES},
      {MRC_MSG_ATOMIC, KEY, MRC_ACCESS_REMOTE_WRITE, 0, 8, -EACCES},
      {MRC_MSG_ATOMIC, KEY, SHOWN, 0, 8, -EACCES},
  };
  EACH_ROW(i, rows) {
    const bool reads = rows[i].kind == MRC_MSG_READ, good = rows[i].result == 0;
    const uintptr_t memory = reads ? (uintptr_t)source : (uintptr_t)numbers;
    start_pair();
    CHECK_EQ(mrc_mr_register((mrc_engine *)&wire[1], memory, reads ? 100 : sizeof numbers,
                             rows[i].key, rows[i].access, 0),
             0);
    numbers[1] = 5;
    if (reads)
      access_memory(MRC_MSG_READ, 1, rows[i].at, rows[i].bytes);
    else
      change(1, MRC_MSG_ADD, rows[i].bytes, 7, 0);
    wire_run();
    check_ended(0, 1, rows[i].result, good ? rows[i].bytes : 0);
    CHECK_EQ(target[0], reads && good ? source[0] : 0);
    CHECK_EQ(numbers[1], !reads && good ? 12 : 5);
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
  show_numbers();
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
  show_numbers();
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

TEST(test_liar__fetches_more_than_its_share) {
  for (int more = 0; more < 2; more++) {
    struct wire_qp *qp = start_alone();
    const struct mrc_msg_record fetch = {
        .kind = MRC_MSG_FETCH, .bytes = 0, .id = 1 << 16, .address = 1, .rkey = 1};
    say(qp, &fetch, MRC_MSG_FETCHES + more);
    CHECK_EQ(violations(), more);
    wire_stop();
  }
}

/* Memory that nobody shows, again and again: an answer each, and nothing else. */
TEST(test_liar__fetches_what_it_may_not) {
  struct wire_qp *qp = start_alone();
  const struct mrc_msg_record fetch = {.kind = MRC_MSG_FETCH,
                                       .tag = (uintptr_t)source,
                                       .bytes = 100,
                                       .id = 1 << 16,
                                       .other = KEY,
                                       .address = (uintptr_t)target,
                                       .rkey = 1};
  for (int i = 0; i < 10; i++) {
    say(qp, &fetch, MRC_MSG_READS);
    while (wire_deliver(qp) || wire_complete(qp))
      wire_turn(&wire[0]);
  }
  CHECK_EQ(violations(), 0);
  CHECK_EQ(target[0], 0);
  for (uint32_t i = 0; i < qp->posted && i < WIRE_WRS; i++)
    CHECK(qp->wrs[i].imm >> 30 != MRC_MSG_IMM_DATA);
  wire_stop();
}

TEST(test_liar__answers_what_was_not_asked) {
  EACH_OF(int, row, 0, 4) {
    struct wire_qp *qp = start_alone();
    const bool full = row >= 2; /* the FETCH waits for a credit, so no peer can know of it */
    for (uint64_t i = 0; full && i < 4000; i++)
      send(0, 100 + i, 5, EAGER);
    access_memory(MRC_MSG_READ, 1, 0, 100);
    uint32_t id = 1 << 16;
    for (uint32_t i = 0; full && i < wire[0].msg->config.max_operations; i++)
      if (wire[0].msg->ops[i].state == MRC_MSG_READING) id = wire[0].msg->ops[i].id;
    if (!full) id += 5;
    const struct mrc_msg_record unreadable = {.kind = MRC_MSG_UNREADABLE, .id = id};
    if (row % 2)
      wire_immediate(qp, mrc_imm(MRC_MSG_IMM_DATA, id), 100);
    else
      say(qp, &unreadable, 1);
    wire_turn(&wire[0]);
    CHECK_EQ(violations(), 1);
    check_ended(0, 1, -EPROTO, 0);
    wire_stop();
  }
}

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
  EACH_ROW(i, rows) {
    struct wire_qp *qp = start_alone();
    numbers[0] = numbers[1] = numbers[2] = 5;
    const struct mrc_msg_record record = {.kind = MRC_MSG_CHANGE,
                                          .tag = (uintptr_t)numbers + rows[i].skew,
                                          .id = 1 << 16,
                                          .other = KEY,
                                          .address = 1,
                                          .rkey = rows[i].how | rows[i].bytes << 8};
    say(qp, &record, 1);
    CHECK_EQ(violations(), rows[i].violations);
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
    CHECK_EQ(violations(), 1);
    check_ended(0, 1, -EPROTO, 0);
    wire_stop();
  }
}

/* ---- sends that end at the peer ---- */

TEST(test_delivered__ends_with_the_acknowledgement) {
  EACH_OF(int, fails, 0, 2) {
    struct wire_qp *qp = start_pair();
    struct mrc_msg_post each = post_of(MRC_MSG_SEND, 0, 0, source, EAGER);
    each.delivered = true;
    for (; each.cookie < 200; each.cookie++) /* several frames */
      post(0, each);
    while (wire_deliver(qp))
      continue;
    check_pending(0, 0);
    CHECK(wire_complete(qp));
    wire_turn(&wire[0]);
    check_ended(0, 0, 0, EAGER);
    check_pending(0, 199);
    if (fails) wire_fail(qp, MRC_WC_RETRY_EXC_ERR);
    wire_run();
    check_ended(0, 199, fails ? -ETIMEDOUT : 0, fails ? 0 : EAGER);
    wire_stop();
  }
}

/* ---- silence ---- */

#define SILENCE_NS MRC_MSG_SILENCE_NS

static void expire(uint64_t now_ns, uint32_t credits) {
  mrc_msg_expire(wire[0].msg, now_ns);
  CHECK_EQ(wire[0].msg->counters.credits_sent, credits);
}

TEST(test_silence__is_broken) {
  struct wire_qp *qp = start_pair();
  expire(5, 0);
  CHECK_EQ(mrc_msg_deadline(wire[0].msg), 5 + SILENCE_NS);
  expire(4 + SILENCE_NS, 0);
  expire(5 + SILENCE_NS, 1);
  expire(5 + 2 * SILENCE_NS, 1); /* in flight: the QP watches it */
  wire_run();
  CHECK_EQ(qp->completed, 1);
  mrc_msg_expire(wire[0].msg, 5 + 4 * SILENCE_NS);
  CHECK_EQ(wire[0].msg->counters.credits_sent, 2);
  wire_fail(qp, MRC_WC_RETRY_EXC_ERR);
  receive(0, 1, 5, 10, false);
  wire_turn(&wire[0]);
  check_ended(0, 1, -ETIMEDOUT, 0);
  expire(5 + 8 * SILENCE_NS, 2);
  CHECK_EQ(mrc_msg_deadline(wire[0].msg), UINT64_MAX);
  wire_stop();
}
