/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads on one object, and many objects. Prints each part that passed. */
#include "pair.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
  THREADS = 2,
  WRITES = 2000, /* of each thread */
  SLEEPS = 300,
  PAIRS = 128,
  REGIONS = 3000,
  ROUNDS = 400
};

static struct ibv_context *context;
static struct end a, b;
static struct place to;

static void end_pair(void) {
  destroy_end(&a);
  destroy_end(&b);
}

static void start(pthread_t *thread, void *(*run)(void *), uintptr_t number) {
  CHECK(pthread_create(thread, NULL, run, (void *)number) == 0);
}

/* ---- Two threads post on one QP, two others poll one CQ ---- */

static atomic_int polled, received;
static atomic_uchar seen[THREADS][WRITES];

/* Each write puts its number into a place of its own of the peer's memory. */
static void *write_numbers(void *number) {
  const uint64_t thread = (uintptr_t)number;
  for (uint64_t i = 0; i < WRITES; i++) {
    const uint64_t at = thread * WRITES + i;
    struct ibv_sge sge = {.addr = (uintptr_t)&at, .length = sizeof at};
    struct ibv_send_wr wr = writing(&sge, 1, &to);
    wr.wr_id = at;
    wr.send_flags |= IBV_SEND_INLINE;
    wr.wr.rdma.remote_addr += at * sizeof at;
    int error;
    while ((error = post_wr(a.qp, wr)) == ENOMEM)
      sched_yield();
    CHECK(error == 0);
  }
  return NULL;
}

static void *poll_numbers(void *unused) {
  struct ibv_wc wcs[3];
  while (atomic_load(&polled) < THREADS * WRITES) {
    const int n = ibv_poll_cq(a.cq, 3, wcs);
    CHECK(n >= 0);
    for (int i = 0; i < n; i++) {
      CHECK(wcs[i].status == IBV_WC_SUCCESS && wcs[i].wr_id < THREADS * WRITES);
      CHECK(atomic_fetch_add(&seen[wcs[i].wr_id / WRITES][wcs[i].wr_id % WRITES], 1) == 0);
    }
    atomic_fetch_add(&polled, n);
  }
  return unused;
}

static void share_a_qp(void) {
  pthread_t threads[2 * THREADS];
  to = make_pair(context, &a, &b, 64);
  CHECK(THREADS * WRITES * sizeof(uint64_t) <= PAIR_BYTES);
  for (uintptr_t i = 0; i < THREADS; i++) {
    start(&threads[i], write_numbers, i);
    start(&threads[THREADS + i], poll_numbers, 0);
  }
  for (int i = 0; i < 2 * THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  for (uint64_t at = 0; at < THREADS * WRITES; at++)
    CHECK(((uint64_t *)(void *)b.memory)[at] == at);
  end_pair();
  passed("one QP, one CQ");
}

/* ---- A thread that sleeps on a channel misses nothing ---- */

static struct ibv_comp_channel *channel;

static void *count_immediates(void *qp) {
  struct ibv_wc wc;
  while (atomic_load(&received) < SLEEPS) {
    struct ibv_cq *cq;
    void *cq_context;
    CHECK(ibv_get_cq_event(channel, &cq, &cq_context) == 0 && cq == b.cq);
    ibv_ack_cq_events(cq, 1);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 1) {
      CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.status == IBV_WC_SUCCESS);
      CHECK(ntohl(wc.imm_data) == (uint32_t)atomic_fetch_add(&received, 1));
      CHECK(receive_into(qp, 0) == 0);
    }
    CHECK(n == 0);
  }
  return NULL;
}

static void sleep_and_wake(void) {
  pthread_t thread;
  channel = ibv_create_comp_channel(context);
  a = make_end(context, 64);
  b = make_told(context, 64, channel);
  CHECK(channel && ibv_req_notify_cq(b.cq, 0) == 0);
  to = place_of(&b);
  join_both(&a, &b);
  for (int i = 0; i < PAIR_DEPTH; i++)
    CHECK(receive_into(b.qp, 0) == 0);
  start(&thread, count_immediates, (uintptr_t)b.qp);
  for (uint32_t i = 0; i < SLEEPS; i++) {
    struct ibv_send_wr wr = writing(NULL, 0, &to);
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.imm_data = htonl(i);
    CHECK(post_wr(a.qp, wr) == 0);
    CHECK(poll_one(a.cq).status == IBV_WC_SUCCESS);
    if (i % 3 == 0) /* until the other thread sleeps */
      while (atomic_load(&received) <= (int)i)
        sched_yield();
  }
  CHECK(pthread_join(thread, NULL) == 0);
  end_pair();
  CHECK(ibv_destroy_comp_channel(channel) == 0);
  passed("events");
}

/* ---- CQs of a channel are destroyed while a thread waits for their events ---- */

static void *take_events(void *unused) {
  for (;;) {
    struct ibv_cq *cq;
    void *cq_context;
    CHECK(ibv_get_cq_event(channel, &cq, &cq_context) == 0);
    ibv_ack_cq_events(cq, 1);
    if (cq_context) return unused; /* the last one */
  }
}

/* A CQ that has an event at once. */
static struct ibv_cq *told_cq(struct ibv_pd *pd, void *cq_context, bool destroy) {
  struct ibv_cq *cq = ibv_create_cq(context, 1, cq_context, channel, 0);
  struct ibv_qp_init_attr init = {
      .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_recv_wr = 1}};
  CHECK(cq && ibv_req_notify_cq(cq, 0) == 0);
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  CHECK(qp && modify(qp, IBV_QPS_INIT, TO_INIT) == 0);
  CHECK(receive_into(qp, 0) == 0 && modify(qp, IBV_QPS_ERR, 0) == 0);
  CHECK(ibv_destroy_qp(qp) == 0);
  if (destroy) CHECK(ibv_destroy_cq(cq) == 0);
  return destroy ? NULL : cq;
}

static void destroy_cqs(void) {
  pthread_t thread;
  struct ibv_pd *pd = ibv_alloc_pd(context);
  channel = ibv_create_comp_channel(context);
  CHECK(pd && channel);
  start(&thread, take_events, 0);
  for (int i = 0; i < ROUNDS; i++)
    told_cq(pd, NULL, true);
  struct ibv_cq *last = told_cq(pd, &channel, false);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(!poll(&(struct pollfd){.fd = channel->fd, .events = POLLIN}, 1, 0));
  CHECK(ibv_destroy_cq(last) == 0 && ibv_destroy_comp_channel(channel) == 0);
  CHECK(ibv_dealloc_pd(pd) == 0);
  passed("destroyed CQs");
}

/* ---- Many ---- */

static void many_qps(void) {
  static struct end ends[2 * PAIRS];
  static struct place places[2 * PAIRS];
  for (int i = 0; i < 2 * PAIRS; i++) {
    ends[i] = make_end(context, 16);
    places[i] = place_of(&ends[i]);
  }
  for (int i = 0; i < 2 * PAIRS; i++)
    join(&ends[i], &places[i ^ 1]);
  for (int i = 0; i < 2 * PAIRS; i++)
    CHECK(post(&ends[i], &places[i ^ 1], (uint64_t)i, ends[i].mr->lkey, places[i ^ 1].rkey,
               "hello") == 0);
  for (int i = 0; i < 2 * PAIRS; i++) {
    const struct ibv_wc wc = poll_one(ends[i].cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i);
  }
  for (int i = 0; i < 2 * PAIRS; i++)
    CHECK(ibv_destroy_qp(ends[i].qp) == 0 && ibv_destroy_cq(ends[i].cq) == 0);
  passed("256 QPs");
}

/* As many regions as a program likes: each opens its own bytes only. */
static void many_regions(void) {
  static struct ibv_mr *mrs[REGIONS];
  to = make_pair(context, &a, &b, 16);
  uint8_t *memory = calloc(REGIONS, 8);
  CHECK(memory);
  for (int i = 0; i < REGIONS; i++) {
    mrs[i] = ibv_reg_mr(b.pd, memory + 8 * i, 8, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(mrs[i]);
  }
  for (int i = 0; i < REGIONS; i += 7) {
    to.va = (uintptr_t)(memory + 8 * i);
    to.rkey = mrs[i]->rkey;
    write_text(&a, &to, "region");
    CHECK(strcmp((char *)memory + 8 * i, "region") == 0);
  }
  to.va++; /* the text's last byte is another region's */
  CHECK(post(&a, &to, 1, a.mr->lkey, to.rkey, "regions") == 0);
  CHECK(poll_one(a.cq).status == IBV_WC_REM_ACCESS_ERR);
  for (int i = 0; i < REGIONS; i++)
    CHECK(ibv_dereg_mr(mrs[i]) == 0);
  passed("regions");
}

int main(void) {
  alarm(90);
  context = open_first();
  share_a_qp();
  sleep_and_wake();
  destroy_cqs();
  many_qps();
  many_regions();
  return 0;
}
