/* SPDX-License-Identifier: Apache-2.0 */
/* Shared receive queues and many QPs with emulated RC, for a program that was started with
   `mrc run --rc`. Prints each part that passed. */
#include "emulated.h"

#include <sys/resource.h>

enum { PAIRS = 2, MANY = 128, KIB_OF_PAIR = 400 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_srq *srq;
static struct rc_end clients[PAIRS], servers[PAIRS];

static void start(void) {
  pd = ibv_alloc_pd(context);
  struct ibv_srq_init_attr attr = {.attr = {.max_wr = 2 * PAIR_DEPTH, .max_sge = 2}};
  srq = ibv_create_srq(pd, &attr);
  CHECK(pd && srq);
  for (int i = 0; i < PAIRS; i++) {
    clients[i] = make_rc_end(context, NULL);
    servers[i] = make_rc_end(context, srq);
    join_rc(&clients[i], &servers[i], RNR_FOR_EVER);
  }
}

static void stop(void) {
  for (int i = 0; i < PAIRS; i++) {
    destroy_end(&clients[i]);
    destroy_end(&servers[i]);
  }
  CHECK(ibv_destroy_srq(srq) == 0 && ibv_dealloc_pd(pd) == 0);
}

static void send_from(int i, uint64_t id) {
  struct ibv_sge from = piece(&clients[i], 0, 100);
  clients[i].memory[0] = (uint8_t)id;
  CHECK(post_request(&clients[i], sending(id, &from, 1)) == 0);
}

/* Regions belong to a PD: the server's is common to all. */
static void post_shared(uint64_t id) {
  struct ibv_sge to[] = {piece(&servers[0], 1000 * (uint32_t)id, 1),
                         piece(&servers[0], 1000 * (uint32_t)id + 1, 99)};
  post_receive(&servers[0], id, to, 2);
}

static void one_takes_all(void) {
  start();
  for (uint64_t id = 1; id <= PAIR_DEPTH; id++)
    post_shared(id);
  for (uint64_t id = 1; id <= PAIR_DEPTH; id++)
    send_from(0, id);
  for (uint64_t id = 1; id <= PAIR_DEPTH; id++) {
    ends_well(&servers[0], id, IBV_WC_RECV);
    ends_well(&clients[0], id, IBV_WC_SEND);
  }
  send_from(1, 1);
  none_within(&clients[1], 0.1);
  post_shared(3);
  CHECK(ends_well(&servers[1], 3, IBV_WC_RECV).byte_len == 100);
  ends_well(&clients[1], 1, IBV_WC_SEND);
  stop();
  passed("one takes all");
}

static void turns(void) {
  start();
  for (uint64_t id = 1; id <= 3; id++)
    for (int i = 0; i < PAIRS; i++)
      send_from(i, id);
  none_within(&servers[0], 0.1);
  for (uint64_t id = 1; id <= 6; id++)
    post_shared(id);
  for (int i = 0; i < PAIRS; i++)
    for (uint64_t id = 1; id <= 3; id++) {
      CHECK(poll_one(servers[i].cq).status == IBV_WC_SUCCESS);
      ends_well(&clients[i], id, IBV_WC_SEND);
    }
  stop();
  passed("turns");
}

static void limit(void) {
  start();
  struct ibv_srq_attr attr = {.srq_limit = 3};
  struct ibv_async_event event;
  for (uint64_t id = 1; id <= 4; id++)
    post_shared(id);
  CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
  CHECK(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 3 && attr.max_wr == 2 * PAIR_DEPTH);
  for (uint64_t id = 1; id <= 2; id++) {
    send_from(0, id);
    ends_well(&servers[0], id, IBV_WC_RECV);
    ends_well(&clients[0], id, IBV_WC_SEND);
  }
  CHECK(ibv_get_async_event(context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
  ibv_ack_async_event(&event);
  CHECK(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 0);
  CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EOPNOTSUPP);
  CHECK(ibv_destroy_srq(srq) == EBUSY);
  stop();
  passed("limit");
}

/* A QP that fails gives back what it has reserved. */
static void failed_end(void) {
  start();
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  post_shared(1);
  send_from(0, 1);
  ends_well(&servers[0], 1, IBV_WC_RECV); /* so the QPs are connected */
  ends_well(&clients[0], 1, IBV_WC_SEND);
  send_from(0, 1);
  none_within(&servers[0], 0.1);
  struct ibv_async_event event;
  CHECK(ibv_modify_qp(servers[0].qp, &attr, IBV_QP_STATE) == 0);
  CHECK(ibv_get_async_event(context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == servers[0].qp);
  ibv_ack_async_event(&event);
  post_shared(1);
  send_from(1, 2);
  ends_well(&servers[1], 1, IBV_WC_RECV);
  struct ibv_recv_wr *bad, wr = {.wr_id = 1};
  CHECK(ibv_post_recv(servers[1].qp, &wr, &bad) == EINVAL);
  stop();
  passed("failed end");
}

static long most_kib(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return used.ru_maxrss;
}

static void many(void) {
  static struct rc_end ends[2 * MANY];
  const long before = most_kib();
  for (int i = 0; i < 2 * MANY; i++)
    ends[i] = make_rc_end(context, NULL);
  for (int i = 0; i < 2 * MANY; i += 2)
    join_rc(&ends[i], &ends[i + 1], RNR_FOR_EVER);
  for (int i = 0; i < 2 * MANY; i += 2) {
    struct ibv_sge from = piece(&ends[i], 0, 8), to = piece(&ends[i + 1], 0, 8);
    post_receive(&ends[i + 1], 1, &to, 1);
    CHECK(post_request(&ends[i], sending(2, &from, 1)) == 0);
  }
  for (int i = 0; i < 2 * MANY; i += 2) {
    ends_well(&ends[i + 1], 1, IBV_WC_RECV);
    ends_well(&ends[i], 2, IBV_WC_SEND);
  }
  const long kib = (most_kib() - before) / MANY;
  if (kib >= KIB_OF_PAIR) fprintf(stderr, "%ld KiB for a pair\n", kib);
  CHECK(kib < KIB_OF_PAIR);
  for (int i = 0; i < 2 * MANY; i++)
    destroy_end(&ends[i]);
  passed("many");
}

int main(void) {
  context = open_first();
  one_takes_all();
  turns();
  limit();
  failed_end();
  many();
  CHECK(ibv_close_device(context) == 0);
  return 0;
}
