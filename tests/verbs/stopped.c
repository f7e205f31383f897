/* SPDX-License-Identifier: Apache-2.0 */
/* How long QPs try to reach a peer that is stopped: its agent lives, but nothing is acknowledged.
 *
 *   stopped short   as MRC's C interface says it: 16.8 ms, twice
 *   stopped long    one QP as verbs do it by default, one that asks for more than mrc's 9 s
 *   stopped quiet   with `mrc run --rc`: nothing is on its way, but a SEND waits for a receive
 */
#include "pair.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "verbs/mrc_api.h"

enum { QPS = 2, STOPPED_SECONDS = 12, LEAST_SECONDS = 8 };

static struct end ends[QPS];
static struct place theirs[QPS];

/* Of the second QP: 4.3 s, 4 times. */
static struct ibv_qp_attr tries[QPS] = {{.rnr_retry = 7},
                                        {.timeout = 20, .retry_cnt = 3, .rnr_retry = 7}};

/* Both processes: QPs of the same numbers are connected. */
static void connect_all(int other) {
  struct ibv_context *context = open_first();
  for (int i = 0; i < QPS; i++) {
    ends[i] = make_end(context, 64);
    const struct place ours = place_of(&ends[i]);
    CHECK(write(other, &ours, sizeof ours) == sizeof ours);
    CHECK(recv(other, &theirs[i], sizeof theirs[i], MSG_WAITALL) == sizeof theirs[i]);
    join_with(&ends[i], &theirs[i], tries[i]);
  }
}

static _Noreturn void be_peer(int other) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  connect_all(other);
  for (;;)
    pause();
}

static void set_short(struct end *end) {
  struct mrc_api_qp *qp = (struct mrc_api_qp *)end->qp;
  struct mrc_api_qp_attr api = {.timeout = 14, .retry_linear = 8};
  const int mask = MRC_API_QP_TIMEOUT | MRC_API_QP_RETRY;
  CHECK(mrc_modify_qp(qp, NULL, 0, &api, mask) == EINVAL);
  api.retry_linear = 1;
  CHECK(mrc_modify_qp(qp, NULL, 0, &api, mask) == 0);
}

static void stop(pid_t peer) {
  int status;
  CHECK(kill(peer, SIGSTOP) == 0);
  CHECK(waitpid(peer, &status, WUNTRACED) == peer && WIFSTOPPED(status));
}

static double post_all(int n) {
  for (int i = 0; i < n; i++)
    CHECK(post(&ends[i], &theirs[i], 1, ends[i].mr->lkey, theirs[i].rkey, "x") == 0);
  return seconds();
}

static void wait_short(pid_t peer) {
  set_short(&ends[0]);
  stop(peer);
  post_all(1);
  CHECK(poll_one(ends[0].cq).status == IBV_WC_RETRY_EXC_ERR);
  puts("short");
}

static void wait_long(pid_t peer) {
  struct ibv_wc wc;
  stop(peer);
  const double began = post_all(QPS);
  CHECK(poll_one(ends[0].cq).status == IBV_WC_RETRY_EXC_ERR);
  CHECK(seconds() - began > LEAST_SECONDS);
  while (seconds() - began < STOPPED_SECONDS)
    CHECK(ibv_poll_cq(ends[1].cq, 1, &wc) == 0);
  kill(peer, SIGCONT);
  CHECK(poll_one(ends[1].cq).status == IBV_WC_SUCCESS);
  puts("long");
}

static void wait_quiet(pid_t peer) {
  const struct timespec acknowledged = {.tv_nsec = 200000000};
  struct ibv_sge sge = {.addr = (uintptr_t)ends[0].memory, .length = 8, .lkey = ends[0].mr->lkey};
  struct ibv_send_wr *bad,
      wr = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1};
  set_short(&ends[0]);
  CHECK(ibv_post_send(ends[0].qp, &wr, &bad) == 0);
  nanosleep(&acknowledged, NULL);
  stop(peer);
  CHECK(poll_one(ends[0].cq).status == IBV_WC_RETRY_EXC_ERR);
  puts("quiet");
}

int main(int argc, char **argv) {
  int pair[2];
  CHECK(argc == 2 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  if (strcmp(argv[1], "long") != 0) tries[0] = PATIENT;
  const pid_t peer = fork();
  CHECK(peer >= 0);
  if (peer == 0) be_peer(pair[1]);
  connect_all(pair[0]);
  for (int i = 0; i < QPS; i++)
    write_text(&ends[i], &theirs[i], "alive");
  if (strcmp(argv[1], "long") == 0)
    wait_long(peer);
  else if (strcmp(argv[1], "quiet") == 0)
    wait_quiet(peer);
  else
    wait_short(peer);
  kill(peer, SIGKILL);
  CHECK(waitpid(peer, NULL, 0) == peer);
  return 0;
}
