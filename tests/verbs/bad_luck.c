/* SPDX-License-Identifier: Apache-2.0 */
/* What a verbs program meets when it, or its peer, does something wrong. Prints each part that
   passed. */
#include "pair.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static struct ibv_context *context;

static void full_queues(void) {
  struct end a, b;
  struct place to = make_pair(context, &a, &b, 64);
  write_text(&a, &to, "connected");
  for (int i = 0; i < PAIR_DEPTH; i++)
    CHECK(post(&a, &to, (uint64_t)i, a.mr->lkey, to.rkey, "full") == 0);
  CHECK(post(&a, &to, 99, a.mr->lkey, to.rkey, "full") == ENOMEM);
  for (int i = 0; i < PAIR_DEPTH; i++)
    CHECK(poll_one(a.cq).wr_id == (uint64_t)i);
  write_text(&a, &to, "again");
  passed("full send queue");
  for (int i = 0; i < PAIR_DEPTH; i++)
    CHECK(receive_into(a.qp, 1) == 0);
  CHECK(receive_into(a.qp, 1) == ENOMEM);
  passed("full receive queue");
}

static void full_cq(void) {
  struct end a, b;
  struct place to = make_pair(context, &a, &b, 4);
  for (int i = 0; i < PAIR_DEPTH; i++)
    CHECK(post(&a, &to, (uint64_t)i, a.mr->lkey, to.rkey, "x") == 0);
  struct ibv_async_event event;
  CHECK(ibv_get_async_event(context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == a.cq);
  ibv_ack_async_event(&event);
  passed("full completion queue");
}

/* Waits for the event of this QP; its peer may have one too. */
static void take_fatal(const struct end *end) {
  struct ibv_async_event event;
  do {
    CHECK(ibv_get_async_event(context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_QP_FATAL);
    ibv_ack_async_event(&event);
  } while (event.element.qp != end->qp);
}

static void wrong_keys(void) {
  struct end a, b;
  struct place to = make_pair(context, &a, &b, 64);
  CHECK(post(&a, &to, 1, ~a.mr->lkey, to.rkey, "x") == 0);
  CHECK(poll_one(a.cq).status == IBV_WC_LOC_PROT_ERR);
  take_fatal(&a);
  errno = 0;
  CHECK(!ibv_reg_mr(a.pd, (void *)16, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
  passed("memory of nobody");
  to = make_pair(context, &a, &b, 64);
  write_text(&a, &to, "registered");
  CHECK(ibv_dereg_mr(b.mr) == 0);
  CHECK(post(&a, &to, 2, a.mr->lkey, to.rkey, "x") == 0);
  CHECK(poll_one(a.cq).status == IBV_WC_REM_ACCESS_ERR);
  take_fatal(&a);
  CHECK(strcmp((char *)b.memory, "registered") == 0);
  passed("deregistered memory");
}

/* Of rdma-core 64, so newer than the headers of Debian 12. */
struct ibv_buf;
void *ibv_alloc_buf(struct ibv_pd *, size_t, struct ibv_buf **);
void ibv_free_buf(struct ibv_buf *);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *, struct ibv_buf *, void *, size_t, int);
int ibv_export_buf_dmabuf_fd(struct ibv_buf *);

/* Memory of a buffer is registered whole and in part, and nothing beside it. */
static void buffers(void) {
  struct ibv_pd *pd = ibv_alloc_pd(context), *foreign = ibv_alloc_pd(context);
  struct ibv_buf *buf;
  uint8_t *memory = ibv_alloc_buf(pd, 8192, &buf);
  CHECK(memory && (uintptr_t)memory % 4096 == 0);
  memset(memory, 'm', 8192);
  const struct {
    struct ibv_pd *pd;
    uint8_t *at;
    size_t bytes;
    bool fits;
  } cases[] = {
      {pd, memory, 8192, true},   {pd, memory + 8000, 192, true}, {pd, memory + 8000, 193, false},
      {pd, memory - 1, 1, false}, {pd, memory, SIZE_MAX, false},  {foreign, memory, 8192, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    errno = 0;
    struct ibv_mr *mr = ibv_reg_buf_mr(cases[i].pd, buf, cases[i].at, cases[i].bytes, 0);
    CHECK(cases[i].fits ? mr && mr->addr == cases[i].at && ibv_dereg_mr(mr) == 0
                        : !mr && errno == EINVAL);
  }
  CHECK(ibv_export_buf_dmabuf_fd(buf) == -1 && errno == ENODATA);
  ibv_free_buf(buf);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* they would end the program */
  CHECK(!ibv_alloc_buf(pd, SIZE_MAX / 2, &buf) && errno == ENOMEM);
#endif
  CHECK(ibv_dealloc_pd(pd) == 0 && ibv_dealloc_pd(foreign) == 0);
  passed("buffers");
}

/* Keys of another protection domain than the QP's are of no use to it. */
static void wrong_domain(void) {
  struct end a, b;
  struct place to;
  struct ibv_pd *pd = ibv_alloc_pd(context);
  uint8_t other[64] = "unchanged";
  struct ibv_mr *mr =
      ibv_reg_mr(pd, other, sizeof other, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(pd && mr);
  for (int n = 1; n <= 2; n++) { /* pieces of memory */
    to = make_pair(context, &a, &b, 64);
    write_text(&a, &to, "same domain");
    struct ibv_sge sges[] = {
        {.addr = (uintptr_t)other, .length = 1, .lkey = mr->lkey},
        {.addr = (uintptr_t)a.memory, .length = 1, .lkey = a.mr->lkey},
    };
    CHECK(post_wr(a.qp, writing(sges, n, &to)) == 0);
    CHECK(poll_one(a.cq).status == IBV_WC_LOC_PROT_ERR);
    take_fatal(&a);
  }
  to = make_pair(context, &a, &b, 64);
  write_text(&a, &to, "same domain");
  to.va = (uintptr_t)other;
  CHECK(post(&a, &to, 1, a.mr->lkey, mr->rkey, "x") == 0);
  CHECK(poll_one(a.cq).status == IBV_WC_REM_ACCESS_ERR);
  take_fatal(&a);
  CHECK(strcmp((char *)other, "unchanged") == 0);
  passed("another domain");
}

static void in_child(void) {
  struct end a, b;
  struct place to = make_pair(context, &a, &b, 64);
  write_text(&a, &to, "parent");
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(a.cq, 1, &wc) == -1);
    CHECK(post(&a, &to, 1, a.mr->lkey, to.rkey, "child") == EIO);
    CHECK(!ibv_create_qp(a.pd, &(struct ibv_qp_init_attr){0}));
    int n = 7; /* many programs look at this alone */
    CHECK(!ibv_get_device_list(&n) && n == 0);
    exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  write_text(&a, &to, "still the parent");
  passed("child");
}

static volatile sig_atomic_t interrupted;

static void interrupt(int number) {
  (void)number;
  interrupted++;
}

/* As a profiler does. */
static timer_t interrupt_each(long ns) {
  struct sigaction action = {.sa_handler = interrupt};
  sigaction(SIGALRM, &action, NULL);
  const struct timespec often = {.tv_nsec = ns};
  timer_t timer;
  struct sigevent told = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
  CHECK(timer_create(CLOCK_MONOTONIC, &told, &timer) == 0);
  timer_settime(timer, 0, &(struct itimerspec){.it_interval = often, .it_value = often}, NULL);
  return timer;
}

static void with_signals(void) {
  struct end a, b;
  struct place to = make_pair(context, &a, &b, 64);
  interrupted = 0;
  timer_t timer = interrupt_each(200000);
  while (interrupted < 100)
    write_text(&a, &to, "between signals");
  timer_delete(timer);
  passed("signals");
}

/* The peer, which has forked before it opens its device. */
static _Noreturn void be_peer(int other) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  context = open_first();
  struct end end = make_end(context, 64);
  const struct place ours = place_of(&end), theirs = swap_places(other, &ours);
  join(&end, &theirs);
  for (;;)
    pause();
}

static void kill_peer(int other, pid_t peer) {
  struct end end = make_end(context, 64);
  const struct place ours = place_of(&end), theirs = swap_places(other, &ours);
  join_with(&end, &theirs, PATIENT);
  write_text(&end, &theirs, "alive");
  kill(peer, SIGKILL);
  waitpid(peer, NULL, 0);
  CHECK(post(&end, &theirs, 1, end.mr->lkey, theirs.rkey, "dead") == 0);
  CHECK(post(&end, &theirs, 2, end.mr->lkey, theirs.rkey, "dead") == 0);
  CHECK(poll_one(end.cq).status == IBV_WC_RETRY_EXC_ERR);
  CHECK(poll_one(end.cq).status == IBV_WC_WR_FLUSH_ERR);
  take_fatal(&end);
  passed("peer killed");
}

int main(void) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const pid_t peer = fork();
  CHECK(peer >= 0);
  if (peer == 0) be_peer(ends[1]);
  timer_t timer = interrupt_each(50000);
  context = open_first();
  timer_delete(timer);
  passed("signals while it attaches");
  full_queues();
  full_cq();
  wrong_keys();
  wrong_domain();
  buffers();
  in_child();
  with_signals();
  kill_peer(ends[0], peer);
  passed("leave"); /* without clean-up */
  return 0;
}
