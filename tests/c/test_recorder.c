/* SPDX-License-Identifier: Apache-2.0 */
#include "io/datapath.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "fake_engine.h"
#include "io/ctx.h"

/* ---- the recorder ---- */

/* Bins of delivered payload, and the longest time without any (csrc/io/datapath.c), at times that
   the test gives; the engine is the fake one. */

enum { PORTS = 2, BINS = 4, START_NS = 5000, WIDTH_NS = 100, PACKET = 1000 };

static const uint32_t qpns[] = {77, 78};

/* One recording and the recorder that fills it. */
struct book {
  struct mrc_recorder recorder;
  struct mrc_recording recording;
  mrc_engine *engine;
  uint64_t bytes[BINS * PORTS];
};

static struct book *open_book(void) {
  static struct book book;
  book = (struct book){.engine = mrc_engine_create(&(struct mrc_engine_config){.ports = 1})};
  book.recording = (struct mrc_recording){.qpns = qpns,
                                          .n_qps = 2,
                                          .bytes = book.bytes,
                                          .n_ports = PORTS,
                                          .n_bins = BINS,
                                          .width_ns = WIDTH_NS};
  return &book;
}

static int start(struct book *book) {
  return mrc_recorder_start(&book->recorder, &book->recording, book->engine, PORTS, START_NS);
}

/* Delivers packets on a port at a time after the start. */
static void deliver(struct book *book, int packets, int port, uint64_t after_ns) {
  fake.n_received += packets;
  mrc_recorder_look(&book->recorder, book->engine, port, START_NS + after_ns);
}

TEST(test_look__fills_bins_by_time_and_port) {
  struct book *book = open_book();
  fake.n_received = 5; /* arrived before the start */
  CHECK_EQ(start(book), 0);
  CHECK_EQ(fake.recorded, 3);
  deliver(book, 1, 1, 0);
  deliver(book, 2, 2, 99);
  deliver(book, 3, 1, 100);
  deliver(book, 4, 1, 199);
  deliver(book, 0, 2, 250);
  deliver(book, 5, 2, 399);
  static const uint64_t expected[BINS * PORTS] = {1, 2, 7, 0, 0, 0, 0, 5};
  for (int i = 0; i < BINS * PORTS; i++) {
    CHECK_ROW(i);
    CHECK_EQ(book->bytes[i], expected[i] * PACKET);
  }
  CHECK_EQ(mrc_recorder_stop(&book->recorder, book->engine, START_NS + 450), 0);
  CHECK_EQ(book->recording.start_ns, START_NS);
  CHECK_EQ(book->recording.end_ns, START_NS + 450);
  CHECK_EQ(book->recording.width_ns, WIDTH_NS);
  CHECK(!fake.recorded);
}

TEST(test_look__of_all_qps_without_a_list) {
  struct book *book = open_book();
  book->recording.n_qps = 0;
  fake.n_received = 5; /* arrived before the start */
  CHECK_EQ(start(book), 0);
  CHECK(!fake.recorded);
  deliver(book, 2, 2, 99);
  CHECK_EQ(book->bytes[1], 2 * PACKET);
  CHECK_EQ(mrc_recorder_stop(&book->recorder, book->engine, START_NS + 450), 0);
}

TEST(test_look__widens_bins_rather_than_needing_more) {
  struct book *book = open_book();
  CHECK_EQ(start(book), 0);
  for (int i = 0; i < BINS; i++)
    deliver(book, i + 1, 1, (uint64_t)i * WIDTH_NS);
  deliver(book, 7, 2, 1700); /* requires three foldings */
  CHECK_EQ(book->recording.width_ns, 8 * WIDTH_NS);
  static const uint64_t expected[BINS * PORTS] = {10, 0, 0, 0, 0, 7, 0, 0};
  for (int i = 0; i < BINS * PORTS; i++) {
    CHECK_ROW(i);
    CHECK_EQ(book->bytes[i], expected[i] * PACKET);
  }
}

TEST(test_look__finds_the_longest_gap_between_deliveries) {
  struct book *book = open_book();
  CHECK_EQ(start(book), 0);
  CHECK_EQ(book->recording.first_ns, 0);
  deliver(book, 1, 1, 90); /* not a gap: no earlier delivery */
  CHECK_EQ(book->recording.longest_gap_ns, 0);
  deliver(book, 1, 2, 110);
  deliver(book, 0, 1, 130); /* no payload ends no gap */
  deliver(book, 1, 1, 147);
  deliver(book, 1, 2, 167);
  deliver(book, 1, 2, 204); /* equal to the longest: the first one counts */
  CHECK_EQ(book->recording.first_ns, START_NS + 90);
  CHECK_EQ(book->recording.last_ns, START_NS + 204);
  CHECK_EQ(book->recording.longest_gap_ns, 37);
  CHECK_EQ(book->recording.longest_gap_at_ns, START_NS + 110);
}

TEST(test_start__refuses_what_it_cannot_fill) {
  static const uint32_t unknown[] = {77, 79};
  struct book *book = open_book();
  struct mrc_recording wrong[] = {book->recording, book->recording, book->recording,
                                  book->recording, book->recording};
  wrong[0].n_ports = PORTS + 1;
  wrong[1].width_ns = 0;
  wrong[2].n_bins = 0;
  wrong[3].n_bins = 3;
  wrong[4].qpns = unknown;
  for (int i = 0; i < 5; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_recorder_start(&book->recorder, &wrong[i], book->engine, PORTS, START_NS),
             i < 4 ? -EINVAL : -ENOENT);
    CHECK(!fake.recorded);
    CHECK_EQ(mrc_recorder_stop(&book->recorder, book->engine, START_NS), -ENOENT);
  }
  CHECK_EQ(start(book), 0);
  CHECK_EQ(start(book), -EBUSY);
}

/* ---- forks ---- */

/* Contexts and fork: a child's calls on an inherited context do not affect the parent's context.
   The engine is the fake one. */

static mrc_ctx *create(bool polled) {
  struct mrc_ctx_config config = {.n_ports = 1, .polled = polled};
  config.rcvbuf_bytes = config.sndbuf_bytes = 100000;
  config.ports[0] = (struct mrc_port_config){.family = 6, .tx_sockets = 2, .address = {[15] = 1}};
  int error = -1;
  char message[128] = "";
  mrc_ctx *ctx = mrc_ctx_create(&config, &error, message, sizeof message);
  CHECK_EQ(error, 0);
  return ctx;
}

static bool waits_readable(const mrc_ctx *ctx, int ms) {
  struct pollfd ready = {.fd = mrc_ctx_fd(ctx), .events = POLLIN};
  return poll(&ready, 1, ms) == 1;
}

/* Runs a function in a child, which then exits without exit handlers. */
static void in_child(void (*run)(mrc_ctx *), mrc_ctx *ctx) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    run(ctx);
    fflush(NULL);
    _exit(atomic_load(&check_failures) != 0);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

static const struct mrc_command query = {
    .op = MRC_COMMAND_QP_SET_EV_STATE, .qpn = 77, .key = MRC_EV_DENIED, .cookie = 5};

static void check_answers(mrc_ctx *ctx) {
  struct mrc_event event = {0};
  CHECK(waits_readable(ctx, PATIENCE_MS));
  CHECK_EQ(mrc_ctx_poll(ctx, &event, 1), 1);
  CHECK_EQ(event.cookie, 5);
}

static void destroy(mrc_ctx *ctx) { mrc_ctx_destroy(ctx); }

TEST(test_destroy__in_a_child_leaves_the_parents_thread) {
  mrc_ctx *ctx = create(false);
  if (!ctx) return;
  in_child(destroy, ctx);
  CHECK_EQ(mrc_ctx_submit(ctx, &query, 1), 1);
  check_answers(ctx);
  mrc_ctx_destroy(ctx);
}

static void call_everything(mrc_ctx *ctx) {
  struct mrc_event event;
  CHECK_EQ(mrc_ctx_submit(ctx, &query, 1), -ECHILD);
  CHECK_EQ(mrc_ctx_poll(ctx, &event, 1), -ECHILD);
  CHECK_EQ(mrc_ctx_run(ctx, 0), -ECHILD);
  CHECK(!mrc_ctx_arm(ctx));
}

/* The child must take neither the parent's event nor its wake-up signal. */
TEST(test_calls__in_a_child_fail_and_take_nothing) {
  mrc_ctx *ctx = create(false);
  if (!ctx) return;
  CHECK_EQ(mrc_ctx_submit(ctx, &query, 1), 1);
  CHECK(waits_readable(ctx, PATIENCE_MS));
  in_child(call_everything, ctx);
  check_answers(ctx);
  mrc_ctx_destroy(ctx);
}

TEST(test_calls__of_a_polled_context) {
  mrc_ctx *ctx = create(true);
  if (!ctx) return;
  CHECK_EQ(mrc_ctx_submit(ctx, &query, 1), 1);
  in_child(call_everything, ctx);
  in_child(destroy, ctx);
  CHECK_EQ(mrc_ctx_run(ctx, 0), 1);
  mrc_ctx_destroy(ctx);
}

static void own_another(mrc_ctx *ctx) {
  const uint64_t own = mrc_lineage_own();
  CHECK(own != 0 && mrc_lineage_is_own(own));
  CHECK_EQ(mrc_lineage_own(), own);
  call_everything(ctx);
}

/* A child that opens its own context still does not own its parent's. */
TEST(test_own__differs_from_the_parents) {
  mrc_ctx *ctx = create(false);
  if (!ctx) return;
  in_child(own_another, ctx);
  CHECK(mrc_lineage_is_own(mrc_lineage_own()));
  mrc_ctx_destroy(ctx);
}
