/* SPDX-License-Identifier: Apache-2.0 */
/* For the programs beside this file: two connected QPs over verbs. */
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

static inline void passed(const char *what) {
  puts(what);
  fflush(stdout);
}

enum { PAIR_BYTES = 1 << 18, PAIR_DEPTH = 16, PAIR_SGES = 16, PAIR_INLINE = 64 };

struct end {
  struct ibv_pd *pd;
  struct ibv_mr *mr;
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  uint8_t *memory;
  int access; /* to the memory and, by emulated RC, through the QP */
};

/* How an end is reached. */
struct place {
  uint32_t qpn, rkey;
  uint64_t va;
  union ibv_gid gid;
};

static inline struct ibv_context *open_first(void) {
  int n = 0;
  struct ibv_device **list = ibv_get_device_list(&n);
  CHECK(list && n >= 1);
  struct ibv_context *context = ibv_open_device(list[n - 1]);
  CHECK(context);
  ibv_free_device_list(list);
  return context;
}

static inline void make_with(struct end *end, struct ibv_context *context, struct ibv_cq *cq,
                             struct ibv_srq *srq, uint32_t recv_sges) {
  end->pd = srq ? srq->pd : ibv_alloc_pd(context);
  end->memory = calloc(1, PAIR_BYTES);
  CHECK(end->pd && end->memory);
  end->mr = ibv_reg_mr(end->pd, end->memory, PAIR_BYTES, end->access);
  end->cq = cq;
  CHECK(end->mr && cq);
  struct ibv_qp_init_attr init = {.send_cq = cq,
                                  .recv_cq = cq,
                                  .srq = srq,
                                  .qp_type = IBV_QPT_RC,
                                  .cap = {.max_send_wr = PAIR_DEPTH,
                                          .max_recv_wr = PAIR_DEPTH,
                                          .max_send_sge = PAIR_SGES,
                                          .max_recv_sge = recv_sges,
                                          .max_inline_data = PAIR_INLINE}};
  end->qp = ibv_create_qp(end->pd, &init);
  CHECK(end->qp);
}

/* Its CQ tells the channel, if there is one. */
static inline struct end make_told(struct ibv_context *context, int cqe,
                                   struct ibv_comp_channel *channel) {
  struct end end = {.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
  make_with(&end, context, ibv_create_cq(context, cqe, NULL, channel, 0), NULL, 1);
  return end;
}

static inline struct end make_end(struct ibv_context *context, int cqe) {
  return make_told(context, cqe, NULL);
}

static inline struct place place_of(const struct end *end) {
  struct place place = {
      .qpn = end->qp->qp_num, .rkey = end->mr->rkey, .va = (uintptr_t)end->memory};
  CHECK(ibv_query_gid(end->qp->context, 1, 0, &place.gid) == 0);
  return place;
}

/* The attributes that each change of state requires. */
enum {
  TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
  TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
  TO_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
      IBV_QP_MAX_QP_RD_ATOMIC
};

static inline struct ibv_qp_attr attr_of(const struct place *to) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                             .port_num = 1,
                             .path_mtu = IBV_MTU_4096,
                             .dest_qp_num = to->qpn,
                             .ah_attr = {.is_global = 1, .port_num = 1}};
  attr.ah_attr.grh.dgid = to->gid;
  return attr;
}

/* `tries`: timeout, retries and READs at a time. */
static inline void join_with(struct end *end, const struct place *to, struct ibv_qp_attr tries) {
  struct ibv_qp_attr attr = attr_of(to);
  attr.qp_state = IBV_QPS_INIT;
  attr.qp_access_flags = (unsigned)end->access;
  attr.max_dest_rd_atomic = tries.max_rd_atomic;
  CHECK(ibv_modify_qp(end->qp, &attr, TO_INIT) == 0);
  attr.qp_state = IBV_QPS_RTR;
  CHECK(ibv_modify_qp(end->qp, &attr, TO_RTR) == 0);
  tries.qp_state = IBV_QPS_RTS;
  CHECK(ibv_modify_qp(end->qp, &tries, TO_RTS) == 0);
}

static inline void join(struct end *end, const struct place *to) {
  join_with(end, to, (struct ibv_qp_attr){0});
}

static inline void join_both(struct end *a, struct end *b) {
  const struct place at_a = place_of(a), at_b = place_of(b);
  join(a, &at_b);
  join(b, &at_a);
}

/* Two connected ends; returns how `b` is reached. `cqe`: of the CQ of `a`. */
static inline struct place make_pair(struct ibv_context *context, struct end *a, struct end *b,
                                     int cqe) {
  *a = make_end(context, cqe);
  *b = make_end(context, 64);
  join_both(a, b);
  return place_of(b);
}

static inline void destroy_end(const struct end *end) {
  const bool own_pd = end->qp->srq == NULL;
  CHECK(ibv_destroy_qp(end->qp) == 0 && ibv_destroy_cq(end->cq) == 0);
  CHECK(ibv_dereg_mr(end->mr) == 0 && (!own_pd || ibv_dealloc_pd(end->pd) == 0));
  free(end->memory);
}

/* With the process at the other end of a socket. */
static inline struct place swap_places(int other, const struct place *ours) {
  struct place theirs;
  CHECK(write(other, ours, sizeof *ours) == sizeof *ours);
  CHECK(recv(other, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs);
  return theirs;
}

static inline int post_wr(struct ibv_qp *qp, struct ibv_send_wr wr) {
  struct ibv_send_wr *bad = NULL;
  const int error = ibv_post_send(qp, &wr, &bad);
  CHECK(error == 0 || bad == &wr);
  return error;
}

static inline int receive_into(struct ibv_qp *qp, uint64_t id) {
  struct ibv_recv_wr *bad = NULL, wr = {.wr_id = id};
  const int error = ibv_post_recv(qp, &wr, &bad);
  CHECK(error == 0 || bad == &wr);
  return error;
}

static inline struct ibv_send_wr writing(struct ibv_sge *sges, int n, const struct place *to) {
  return (struct ibv_send_wr){.wr_id = 5,
                              .opcode = IBV_WR_RDMA_WRITE,
                              .send_flags = IBV_SEND_SIGNALED,
                              .sg_list = sges,
                              .num_sge = n,
                              .wr.rdma = {.remote_addr = to->va, .rkey = to->rkey}};
}

static inline int modify(struct ibv_qp *qp, enum ibv_qp_state state, int mask) {
  struct ibv_qp_attr attr = {
      .qp_state = state, .port_num = 1, .path_mtu = IBV_MTU_4096, .dest_qp_num = 5};
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

static inline int post(struct end *end, const struct place *to, uint64_t id, uint32_t lkey,
                       uint32_t rkey, const char *text) {
  strcpy((char *)end->memory, text);
  struct ibv_sge sge = {
      .addr = (uintptr_t)end->memory, .length = (uint32_t)strlen(text) + 1, .lkey = lkey};
  struct ibv_send_wr wr = writing(&sge, 1, to);
  wr.wr_id = id;
  wr.wr.rdma.rkey = rkey;
  return post_wr(end->qp, wr);
}

static inline double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

enum { PATIENCE_SECONDS = 200 }; /* only a hang exceeds it */

/* A QP that tries for 550 s: if it ends before, it has learned that its peer is gone. */
static const struct ibv_qp_attr PATIENT = {.timeout = 24, .retry_cnt = 7, .rnr_retry = 7};

/* Polls until a completion comes. */
static inline struct ibv_wc poll_one(struct ibv_cq *cq) {
  const double until = seconds() + PATIENCE_SECONDS;
  struct ibv_wc wc;
  int n;
  while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
    CHECK(seconds() < until);
  CHECK(n == 1);
  return wc;
}

static inline void write_text(struct end *end, const struct place *to, const char *text) {
  CHECK(post(end, to, 7, end->mr->lkey, to->rkey, text) == 0);
  const struct ibv_wc wc = poll_one(end->cq);
  CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7);
}
