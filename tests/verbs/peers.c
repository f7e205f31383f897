/* SPDX-License-Identifier: Apache-2.0 */
/* Programs whose peers or agents stop, end or change.

     peers survivor         writes from one QP to another of this process while the agent is killed,
   and connects two more with the next agent peers stopped HOW      how long QPs try to reach a peer
   that is stopped: its agent lives, but nothing is acknowledged. HOW: `short`, as MRC's C interface
   says it, 16.8 ms, twice; `long`, one QP as verbs do it by default, one that asks for more than
   mrc's 9 s; `quiet`, with `mrc run --rc`: nothing is on its way, but a SEND waits for a receive
     peers watcher use      sets up profile 7 and connects a QP that uses it; until stdin ends
     peers watcher look N   for each line of stdin: waits for so many events of EVs, then prints
   those in a CQ with N places: profile, port, first bytes, state and drops peers opened opens
   RDMA's library at run time by its name; prints the device, and the file of its functions */
#include "pair.h"

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "verbs/mrc_api.h"

/* ======== The agent ends ======== */

static struct ibv_context *context;

/* Whether an agent listens: a second process would find its device. */
static bool has_agent(void) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execl("/proc/self/exe", "peers", "survivor", "look", NULL);
    _exit(2);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int run_survivor(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "look") == 0) {
    setenv("MRC_QUIET", "1", 1);
    return ibv_get_device_list(NULL) == NULL;
  }
  struct end a, b, c, d;
  context = open_first();
  const struct place to = make_pair(context, &a, &b, 64), from = place_of(&a);
  write_text(&a, &to, "before");
  write_text(&b, &from, "before"); /* both ends are connected */
  passed("connected");
  while (has_agent())
    write_text(&a, &to, "meanwhile");
  write_text(&a, &to, "without");
  CHECK(strcmp((char *)b.memory, "without") == 0);
  passed("no agent");
  const struct place there = make_pair(context, &c, &d, 64); /* waits for the next agent */
  CHECK(post(&c, &there, 8, c.mr->lkey, there.rkey, "after") == 0);
  const struct ibv_wc wc = poll_one(c.cq);
  CHECK(wc.status == IBV_WC_SUCCESS && strcmp((char *)d.memory, "after") == 0);
  write_text(&a, &to, "still");
  puts("connected again");
  return 0;
}

/* ======== The peer stops ======== */

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
    theirs[i] = swap_places(other, &ours);
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
  const struct ibv_send_wr wr = {
      .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1};
  set_short(&ends[0]);
  CHECK(post_wr(ends[0].qp, wr) == 0);
  nanosleep(&acknowledged, NULL);
  stop(peer);
  CHECK(poll_one(ends[0].cq).status == IBV_WC_RETRY_EXC_ERR);
  puts("quiet");
}

static int run_stopped(int argc, char **argv) {
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

/* ======== Events of EVs ======== */

enum { PROFILE = 7, MOST = 64 };

static void set_up(struct mrc_api_context *context) {
  struct mrc_api_evs_attr attr = {.state = MRC_API_OFFLINE,
                                  .mode = MRC_API_EVS_AUTO,
                                  .events = MRC_API_EV_DENIED | MRC_API_EV_GOOD};
  CHECK(mrc_ctl_modify_ev_profile(context, PROFILE, &attr,
                                  MRC_API_PROFILE_STATE | MRC_API_EVS_MODE | MRC_API_EVS_EVENTS) ==
        0);
  attr.state = MRC_API_ONLINE;
  CHECK(mrc_ctl_modify_ev_profile(context, PROFILE, &attr, MRC_API_PROFILE_STATE) == 0);
}

static void use(struct ibv_context *verbs, struct mrc_api_context *context) {
  set_up(context);
  struct end a = make_end(verbs, 64), b = make_end(verbs, 64);
  struct mrc_api_qp_attr api = {.ev_profile = PROFILE};
  CHECK(mrc_modify_qp((struct mrc_api_qp *)a.qp, NULL, 0, &api, MRC_API_QP_EV_PROFILE) == 0);
  const struct place to = place_of(&b);
  join_both(&a, &b);
  write_text(&a, &to, "connected");
  printf("%u\n", a.qp->qp_num);
  fflush(stdout);
  while (getchar() != EOF)
    ;
}

struct watched {
  struct mrc_api_channel *channel;
  struct mrc_api_cq *cq;
};

static struct watched watch(struct mrc_api_context *context, int room) {
  struct watched made;
  CHECK(mrc_create_comp_channel(context, &made.channel) == 0);
  made.cq = mrc_ctl_create_ev_event_cq(context, room, NULL, made.channel, 0);
  CHECK(made.cq && mrc_req_notify_cq(made.cq, 0) == 0);
  return made;
}

/* Sleeps on the channel until `n` events have come and are taken. */
static void take(const struct watched *from, int n) {
  struct mrc_api_ev_event events[MOST];
  while (n > 0) {
    const int taken = mrc_ctl_poll_ev_event(from->cq, n < MOST ? n : MOST, events);
    CHECK(taken >= 0);
    n -= taken;
    if (taken > 0) continue;
    struct mrc_api_cq *told;
    void *cq_context;
    int fd;
    CHECK(mrc_get_comp_channel_fd(from->channel, &fd) == 0);
    CHECK(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE_SECONDS * 1000) == 1);
    CHECK(mrc_get_cq_event(from->channel, &told, &cq_context) == 0 && told == from->cq);
    mrc_ack_cq_events(told, 1);
    CHECK(mrc_req_notify_cq(from->cq, 0) == 0);
  }
}

static void show(const struct watched *from) {
  struct mrc_api_ev_event events[MOST];
  const int n = mrc_ctl_poll_ev_event(from->cq, MOST, events);
  CHECK(n >= 0);
  for (int i = 0; i < n; i++)
    printf("%lu %d %02x%02x %u %u\n", (unsigned long)events[i].profile, events[i].ev.port,
           events[i].ev.value[0], events[i].ev.value[1], events[i].state, events[i].dropped);
  passed("");
}

static void look(struct mrc_api_context *context, int room) {
  int n;
  const struct watched all = watch(context, MOST), few = watch(context, room);
  passed("watches");
  while (scanf("%d", &n) == 1) {
    take(&all, n); /* the other CQ has had them at the same time */
    show(&few);
  }
}

static int run_watcher(int argc, char **argv) {
  struct ibv_context *verbs = open_first();
  struct mrc_api_context *context = mrc_create_context(verbs, NULL);
  CHECK(context && argc > 1);
  if (strcmp(argv[1], "use") == 0)
    use(verbs, context);
  else
    look(context, atoi(argv[2]));
  return 0;
}

/* ======== The library is one ======== */

static int run_opened(void) {
  void *library = dlopen("libibverbs.so", RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  struct ibv_device **(*list)(int *) = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
  const char *(*name)(struct ibv_device *) = dlvsym(library, "ibv_get_device_name", "IBVERBS_1.1");
  void *newest = dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8");
  if (!list || !name || !newest) return fprintf(stderr, "no function of this version\n"), 1;
  int n = 0;
  struct ibv_device **devices = list(&n);
  if (!devices || n < 1) return fprintf(stderr, "no device\n"), 1;
  Dl_info found;
  if (!dladdr(newest, &found) || newest != dlsym(RTLD_DEFAULT, "ibv_reg_mr_iova2")) return 1;
  printf("%s\n%s\n", name(devices[n - 1]), found.dli_fname);
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc > 1);
  const char *name = argv[1];
  if (strcmp(name, "survivor") == 0) return run_survivor(argc - 1, argv + 1);
  if (strcmp(name, "stopped") == 0) return run_stopped(argc - 1, argv + 1);
  if (strcmp(name, "watcher") == 0) return run_watcher(argc - 1, argv + 1);
  return run_opened();
}
