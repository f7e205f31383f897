/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and fork: a child's calls on an inherited context do not affect the parent's context.
   The engine is the fake one. */
#include "io/ctx.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "fake_engine.h"

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
