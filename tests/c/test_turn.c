/* SPDX-License-Identifier: Apache-2.0 */
/* The order and the end of a driver's turn (csrc/core/turn.c); the engine is the fake one. */
#include "core/turn.h"

#include "check.h"
#include "fake_engine.h"

enum { CAPACITY = 4, FULL_ROUNDS = 4, NOW_NS = 1000, SEND_NS = 10, DEFER_NS = 10000000 };

/* A driver that logs the calls of its turn: p for publish, s for send. */
struct log {
  struct mrc_turn turn;
  char calls[MAX_LOG];
  int n_calls;
  uint64_t now_ns;
  uint64_t sent_ns; /* time argument of the last send */
  uint32_t blocks;  /* ports that each send blocks */
  bool unpublished; /* publish never finishes */
};

static void note(struct log *log, char call) {
  if (log->n_calls < MAX_LOG - 1) log->calls[log->n_calls++] = call;
}

static uint64_t now(void *driver) { return ((struct log *)driver)->now_ns; }

static bool publish(void *driver) {
  struct log *log = driver;
  struct mrc_wc wc;
  struct mrc_event event;
  note(log, 'p');
  while (mrc_cq_poll(log->turn.engine, &wc, 1) > 0) {
  }
  while (mrc_engine_events(log->turn.engine, &event, 1) > 0) {
  }
  return log->unpublished;
}

static uint32_t send_bursts(void *driver, const struct mrc_burst *bursts, int *taken, int n,
                            uint64_t now_ns) {
  (void)bursts;
  struct log *log = driver;
  note(log, 's');
  for (int i = 0; i < n; i++)
    taken[i] = 1;
  CHECK_EQ(fake.n_blocks, 0); /* blocked ports are reported after the commit */
  log->sent_ns = now_ns;
  log->now_ns += SEND_NS;
  return log->blocks;
}

static const struct mrc_turn_calls calls = {.now = now, .publish = publish, .send = send_bursts};

static struct log *start(int bursts) {
  static struct log log;
  log = (struct log){.now_ns = NOW_NS};
  log.turn = (struct mrc_turn){.calls = &calls,
                               .driver = &log,
                               .engine = mrc_engine_create(&(struct mrc_engine_config){.ports = 1}),
                               .capacity = CAPACITY};
  const struct mrc_wr wr = {.wr_id = (uint64_t)bursts};
  CHECK_EQ(mrc_qp_post(log.turn.engine, BURST_QPN, &wr, 1, NOW_NS), 0);
  return &log;
}

TEST(test_run__publishes_before_and_after_it_sends) {
  struct log *log = start(1);
  CHECK_EQ(mrc_qp_post(log->turn.engine, 1, &(struct mrc_wr){0}, 1, NOW_NS), 0);
  CHECK(!mrc_turn_run(&log->turn, false, NOW_NS));
  CHECK_STR_EQ(log->calls, "psp");
  CHECK(!fake.sent_before_told);
  CHECK_EQ(fake.n_fates, 1);
}

TEST(test_run__sends_until_dry_but_some_rounds_at_most) {
  static const struct {
    int bursts;
    const char *calls;
    bool more;
  } rows[] = {{0, "pp", false},
              {CAPACITY - 1, "psp", false},
              {CAPACITY, "psp", false},
              {CAPACITY + 1, "pssp", false},
              {CAPACITY * FULL_ROUNDS - 1, "pssssp", false},
              {CAPACITY * FULL_ROUNDS, "pssssp", true}};
  EACH_ROW(i, rows) {
    struct log *log = start(rows[i].bursts);
    CHECK_EQ(mrc_turn_run(&log->turn, false, NOW_NS), rows[i].more);
    CHECK_STR_EQ(log->calls, rows[i].calls);
    CHECK_EQ(fake.n_fates, rows[i].bursts);
  }
}

TEST(test_run__reads_the_time_again_after_a_send) {
  struct log *log = start(2 * CAPACITY);
  mrc_turn_run(&log->turn, false, NOW_NS);
  CHECK_EQ(log->sent_ns, NOW_NS + SEND_NS);
}

TEST(test_run__goes_on_when_publish_left_something) {
  struct log *log = start(0);
  log->unpublished = true;
  CHECK(mrc_turn_run(&log->turn, false, NOW_NS));
}

TEST(test_run__tells_the_engine_of_blocked_ports_after_the_commit) {
  struct log *log = start(2 * CAPACITY);
  log->blocks = 1;
  mrc_turn_run(&log->turn, false, NOW_NS);
  CHECK_STR_EQ(log->calls, "psp"); /* the port has no more room */
  CHECK_EQ(fake.n_fates, CAPACITY);
  CHECK_EQ(fake.n_blocks, 1);
  CHECK_EQ(fake.blocks[0], 1);
}

/* A backlog of input defers deadlines, for a limited time after the last one was handled. */
TEST(test_run__defers_deadlines_while_input_waits) {
  struct log *log = start(0);
  static const struct {
    uint64_t after_ns;
    bool backlog;
    bool expires;
  } rows[] = {{DEFER_NS + 5, false, true},     {DEFER_NS + 6, true, false},
              {2 * DEFER_NS + 4, true, false}, {2 * DEFER_NS + 5, true, true},
              {2 * DEFER_NS + 6, true, false}, {2 * DEFER_NS + 6, false, true}};
  EACH_ROW(i, rows) {
    fake.deadline_ns = NOW_NS;
    mrc_turn_run(&log->turn, rows[i].backlog, NOW_NS + rows[i].after_ns);
    CHECK_EQ(fake.deadline_ns == MRC_NEVER, rows[i].expires);
  }
}

TEST(test_run_dry__ends_when_nothing_is_left_to_send) {
  struct log *log = start(CAPACITY * FULL_ROUNDS + 1);
  fake.deadline_ns = NOW_NS + 1;
  CHECK_EQ(mrc_turn_run_dry(&log->turn, NOW_NS), NOW_NS + 1);
  CHECK_STR_EQ(log->calls, "pssssppsp");
  CHECK_EQ(fake.n_fates, CAPACITY * FULL_ROUNDS + 1);
}
