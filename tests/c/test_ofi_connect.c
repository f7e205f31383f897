/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoint of libmrc-fi and those that ask it for QPs. csrc/agent and the engine are stand-ins
   here, which count. */
#include <errno.h>
#include <string.h>

#include "agent/process.h"
#include "check.h"
#include "ofi/ofi.h"

static uint32_t numbers; /* handed out */
static uint32_t opened;  /* peers in csrc/msg */
static uint32_t connects;
static uint32_t keeps; /* the number of the endpoint for the next agent */
static int32_t answer; /* to the last request */
static bool no_numbers;

/* ---- Stand-ins ---- */

struct pr_process pr_process = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                .changed = PTHREAD_COND_INITIALIZER};

void pr_submit(const struct mrc_command *command) { (void)command; }

void pr_tell(uint32_t kind, int32_t value, uint64_t cookie, const void *body, size_t bytes,
             const void *more, size_t more_bytes) {
  (void)cookie, (void)body, (void)bytes, (void)more, (void)more_bytes;
  if (kind == MRC_AGENT_ADMIT) answer = value;
  connects += kind == MRC_AGENT_CONNECT;
  keeps += kind == MRC_AGENT_KEEP;
}

uint32_t pr_number(bool waits) {
  (void)waits;
  return no_numbers ? 0 : 0x1000 + numbers++;
}

int pr_engine_call(struct mrc_command *command) {
  if (command->op == MRC_COMMAND_MSG_CLOSE) return (int)--opened;
  return opened == 256 ? -ENOSPC : (int)opened++;
}

void pr_engine_turn(void) {}
void pr_engine_poll(bool turns) { (void)turns; }
void pr_engine_leave(void) {}
bool of_mr_is_written(void) { return false; }
void pr_engine_posted(bool idle) { (void)idle; }
void pr_engine_owed(void) {}
void pr_attach_linger(uint32_t kept) { (void)kept; }
void pr_say(const char *format, ...) { (void)format; }
uint64_t pr_now_ns(void) { return 0; }
bool pr_wait(uint64_t until_ns) { return (void)until_ns, false; }
int mrc_ctx_msg_post(mrc_ctx *ctx, const struct mrc_msg_post *posts, int n) {
  return (void)ctx, (void)posts, (void)n, 0;
}
int mrc_ctx_msg_poll(mrc_ctx *ctx, struct mrc_msg_done *done, int n) {
  return (void)ctx, (void)done, (void)n, 0;
}
int mrc_ctx_msg_space(mrc_ctx *ctx, uint32_t space, mrc_msg_sink *sink, void *user) {
  return (void)ctx, (void)space, (void)sink, (void)user, 0;
}
int mrc_ctx_msg_close_space(mrc_ctx *ctx, uint32_t space) { return (void)ctx, (void)space, 0; }
int mrc_ctx_msg_cancel(mrc_ctx *ctx, uint32_t space, uint64_t cookie) {
  return (void)ctx, (void)space, (void)cookie, 0;
}

/* ---- Tests ---- */

static uint32_t known; /* entries of the table at the beginning of a test */

static uint32_t entries(void) {
  uint32_t n = 0;
  while (of_peer_at(n))
    n++;
  return n;
}

static void begin(void) {
  known = entries();
  connects = 0;
  CHECK_EQ(of_connect_open(), 0);
}

/* A request of another endpoint each time. */
static struct mrc_agent_qp_request fresh_request(void) {
  static uint32_t who = 2;
  who++;
  return (struct mrc_agent_qp_request){
      .to = *of_connect_point(), .from = {.gid = {0xfd}, .number = who}, .qpn = who};
}

static int32_t asked(const struct mrc_agent_qp_request *request) {
  pr_owner.peer_request(request, 1);
  return answer;
}

static int used_fresh(void) {
  const struct mrc_agent_qp_request request = fresh_request();
  return of_connect_use(of_peer_of(&request.from));
}

TEST(test_use__no_room) {
  begin();
  for (int i = 0; i < 255; i++)
    CHECK_EQ(used_fresh(), 0);
  const uint32_t before = numbers;
  CHECK_EQ(of_connect_use(of_peer_of(of_connect_point())), -ENOSPC); /* itself: two QPs */
  CHECK_EQ(used_fresh(), 0);
  CHECK_EQ(used_fresh(), -ENOSPC);
  CHECK_EQ(numbers, before + 1);
  of_connect_close();
  CHECK_EQ(opened, 0);
}

/* The agent waits for as many CONNECTs as it was told. */
TEST(test_tell_all__without_failed_peers) {
  begin();
  const struct mrc_agent_qp_request a = fresh_request(), b = fresh_request();
  const int32_t qpn = asked(&a);
  CHECK(asked(&b) > 0);
  CHECK_EQ(pr_owner.to_resume(), 2);
  pr_owner.failed((uint32_t)qpn, "why not");
  CHECK_EQ(pr_owner.to_resume(), 1);
  connects = keeps = 0;
  pr_owner.tell_all();
  CHECK_EQ(connects, 1);
  CHECK_EQ(keeps, 1);
  of_connect_close();
}

TEST(test_gone__with_the_reason) {
  begin();
  const struct mrc_agent_qp_request request = fresh_request();
  const int32_t qpn = asked(&request);
  pr_owner.gone((uint32_t)qpn, "its QP failed");
  const struct of_peer *peer = of_peer_find(&request.from);
  CHECK_EQ(peer->error, -ECONNRESET);
  CHECK(strstr(peer->cause, " ended the connection: its QP failed"));
  of_connect_close();
}

/* A program may end its endpoint and open another one, as fabtests' rdm_multi_client does. */
TEST(test_use__by_the_next_endpoint_of_a_peer_that_had_failed) {
  begin();
  const struct mrc_agent_qp_request request = fresh_request();
  struct of_peer *peer = of_peer_of(&request.from);
  CHECK_EQ(of_connect_use(peer), 0);
  pr_owner.gone(peer->qps[0].qpn, "");
  CHECK_EQ(of_connect_use(peer), -ECONNRESET);
  of_connect_close();
  CHECK_EQ(of_connect_open(), 0);
  CHECK_EQ(of_connect_use(peer), 0);
  CHECK(peer->qps[0].qpn != 0);
  of_connect_close();
}

TEST(test_peer_request__a_peer_gets_one_qp) {
  begin();
  const struct mrc_agent_qp_request request = fresh_request();
  const int32_t qpn = asked(&request);
  CHECK(qpn > 0);
  CHECK_EQ(asked(&request), qpn);
  CHECK_EQ(connects, 1);
  CHECK_EQ(entries() - known, 1);
  of_connect_close();
}

TEST(test_peer_request__refusals_leave_nothing) {
  begin();
  struct mrc_agent_qp_request wrong[3] = {fresh_request(), fresh_request(), fresh_request()};
  wrong[0].to.token[15] ^= 1;
  wrong[1].to.number++;
  wrong[2].from = *of_connect_point();
  const uint32_t before = numbers;
  for (int i = 0; i < 3; i++) {
    CHECK_ROW(i);
    CHECK_EQ(asked(&wrong[i]), -ENOENT);
  }
  CHECK_EQ(numbers, before);
  CHECK_ROW(-1);
  no_numbers = true;
  const struct mrc_agent_qp_request early = fresh_request();
  CHECK_EQ(asked(&early), 0);
  no_numbers = false;
  CHECK_EQ(entries() - known, 0);
  of_connect_close();
}

/* One that knows the token asks under ever new addresses. */
TEST(test_peer_request__the_table_is_full) {
  begin();
  struct mrc_agent_qp_request request;
  for (int i = 0; i < 256; i++) {
    request = fresh_request();
    CHECK(asked(&request) > 0);
  }
  const uint32_t before = numbers;
  for (int i = 0; i < 1000; i++) {
    const struct mrc_agent_qp_request more = fresh_request();
    CHECK_EQ(asked(&more), -ENOSPC);
  }
  CHECK_EQ(entries() - known, 256);
  CHECK_EQ(numbers, before);
  CHECK(asked(&request) > 0); /* it has its QP */
  of_connect_close();
}
