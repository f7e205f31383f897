/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated RC, for a program that was started with `mrc run --rc`. Prints each part that passed.

     emulated            messages, receives, READs and ATOMICs, events
     emulated shared     shared receive queues, and many QPs
     emulated victim     waits for a peer that breaks the protocol; says how its QP ends */
#include "pair.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ======== Two ends with all rights ======== */

enum {
  RNR_FOR_EVER = 7,
  ALL_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
      IBV_ACCESS_REMOTE_ATOMIC
};

static struct ibv_context *context;
static struct ibv_comp_channel *rc_channel; /* of the CQs of ends made from now on */

static struct end make_rc_end(struct ibv_srq *srq) {
  struct end end = {.access = ALL_RIGHTS};
  make_with(&end, context, ibv_create_cq(context, 4 * PAIR_DEPTH, NULL, rc_channel, 0), srq,
            PAIR_SGES);
  return end;
}

static void move(struct end *end, struct place to, uint8_t rnr_retry) {
  join_with(end, &to, (struct ibv_qp_attr){.rnr_retry = rnr_retry, .max_rd_atomic = 4});
}

static void join_rc(struct end *one, struct end *other, uint8_t rnr_retry) {
  move(one, place_of(other), rnr_retry);
  move(other, place_of(one), rnr_retry);
}

/* ---- Work requests ---- */

static struct ibv_sge piece(const struct end *end, uint32_t at, uint32_t bytes) {
  return (struct ibv_sge){
      .addr = (uintptr_t)end->memory + at, .length = bytes, .lkey = end->mr->lkey};
}

static void post_receive(struct end *end, uint64_t id, struct ibv_sge *sges, int n) {
  struct ibv_recv_wr *bad, wr = {.wr_id = id, .sg_list = sges, .num_sge = n};
  CHECK((end->qp->srq ? ibv_post_srq_recv(end->qp->srq, &wr, &bad)
                      : ibv_post_recv(end->qp, &wr, &bad)) == 0);
}

static struct ibv_send_wr sending(uint64_t id, struct ibv_sge *sges, int n) {
  return (struct ibv_send_wr){.wr_id = id,
                              .opcode = IBV_WR_SEND,
                              .send_flags = IBV_SEND_SIGNALED,
                              .sg_list = sges,
                              .num_sge = n};
}

static struct ibv_send_wr reading(uint64_t id, struct ibv_sge *sges, int n, const struct end *from,
                                  uint32_t at) {
  struct ibv_send_wr wr = sending(id, sges, n);
  wr.opcode = IBV_WR_RDMA_READ;
  wr.wr.rdma.remote_addr = (uintptr_t)from->memory + at;
  wr.wr.rdma.rkey = from->mr->rkey;
  return wr;
}

static struct ibv_send_wr adding(uint64_t id, struct ibv_sge *back, const struct end *to,
                                 uint32_t at, uint64_t value) {
  struct ibv_send_wr wr = sending(id, back, 1);
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.wr.atomic.remote_addr = (uintptr_t)to->memory + at;
  wr.wr.atomic.rkey = to->mr->rkey;
  wr.wr.atomic.compare_add = value;
  return wr;
}

/* ---- Completions ---- */

static struct ibv_wc ends_with(struct end *end, uint64_t id, enum ibv_wc_status status) {
  const struct ibv_wc wc = poll_one(end->cq);
  if (wc.status != status || wc.wr_id != id)
    fprintf(stderr, "%llu: %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
  CHECK(wc.status == status && wc.wr_id == id && wc.qp_num == end->qp->qp_num);
  return wc;
}

static struct ibv_wc ends_well(struct end *end, uint64_t id, enum ibv_wc_opcode opcode) {
  const struct ibv_wc wc = ends_with(end, id, IBV_WC_SUCCESS);
  CHECK(wc.opcode == opcode);
  return wc;
}

/* A message of 8 bytes. */
static void arrives(struct end *from, struct end *to) {
  struct ibv_sge sent = piece(from, 0, 8), into = piece(to, 0, 8);
  post_receive(to, 1, &into, 1);
  CHECK(post_wr(from->qp, sending(2, &sent, 1)) == 0);
  ends_well(to, 1, IBV_WC_RECV);
  ends_well(from, 2, IBV_WC_SEND);
}

static void none_within(struct end *end, double time) {
  struct ibv_wc wc;
  for (const double until = seconds() + time; seconds() < until;)
    CHECK(ibv_poll_cq(end->cq, 1, &wc) == 0);
}

static void until_failed(struct end *end) {
  struct ibv_wc wc;
  for (const double until = seconds() + PATIENCE_SECONDS; end->qp->state != IBV_QPS_ERR;) {
    ibv_poll_cq(end->cq, 1, &wc);
    CHECK(seconds() < until);
  }
}

/* ======== Parts ======== */

static struct end a, b;

static void start(void) {
  a = make_rc_end(NULL);
  b = make_rc_end(NULL);
  join_rc(&a, &b, RNR_FOR_EVER);
}

/* The same, and both are connected: an end learns that its peer has ended before that. */
static void start_connected(void) {
  start();
  arrives(&a, &b);
}

static void stop(void) {
  destroy_end(&a);
  destroy_end(&b);
}

/* ---- Messages ---- */

static void several_pieces(void) {
  start();
  for (uint32_t i = 0; i < 100; i++)
    a.memory[i] = (uint8_t)i;
  struct ibv_sge from[] = {piece(&a, 0, 10), piece(&a, 10, 0), piece(&a, 10, 50)};
  struct ibv_sge to[] = {piece(&b, 1000, 5), piece(&b, 2000, 20), piece(&b, 3000, 100)};
  post_receive(&b, 1, to, 3);
  CHECK(post_wr(a.qp, sending(2, from, 3)) == 0);
  ends_well(&a, 2, IBV_WC_SEND);
  const struct ibv_wc wc = ends_well(&b, 1, IBV_WC_RECV);
  CHECK(wc.byte_len == 60 && wc.wc_flags == 0 && wc.src_qp == a.qp->qp_num);
  for (uint32_t i = 0; i < 60; i++)
    CHECK(b.memory[i < 5 ? 1000 + i : i < 25 ? 2000 + i - 5 : 3000 + i - 25] == i);
  stop();
  passed("several pieces");
}

static void immediates_and_inline(void) {
  start();
  struct ibv_sge from = piece(&a, 0, 20), to = piece(&b, 0, 20);
  strcpy((char *)a.memory, "inline");
  post_receive(&b, 1, &to, 1);
  post_receive(&b, 2, NULL, 0);
  struct ibv_send_wr wr = sending(3, &from, 1);
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.imm_data = htonl(0xC0000001);
  wr.send_flags |= IBV_SEND_INLINE;
  CHECK(post_wr(a.qp, wr) == 0);
  strcpy((char *)a.memory, "later");
  wr.num_sge = 0;
  wr.imm_data = htonl(5);
  CHECK(post_wr(a.qp, wr) == 0);
  struct ibv_wc wc = ends_well(&b, 1, IBV_WC_RECV);
  CHECK(wc.wc_flags == IBV_WC_WITH_IMM && ntohl(wc.imm_data) == 0xC0000001 && wc.byte_len == 20);
  CHECK(strcmp((char *)b.memory, "inline") == 0);
  wc = ends_well(&b, 2, IBV_WC_RECV);
  CHECK(ntohl(wc.imm_data) == 5 && wc.byte_len == 0);
  stop();
  passed("immediates and inline");
}

static void order(void) {
  start();
  struct ibv_sge from = piece(&a, 0, 1000), to = piece(&b, 5000, 1000);
  struct ibv_send_wr write = sending(1, &from, 1), send = sending(2, &from, 1);
  write.opcode = IBV_WR_RDMA_WRITE;
  write.wr.rdma.remote_addr = (uintptr_t)b.memory;
  write.wr.rdma.rkey = b.mr->rkey;
  write.send_flags = 0;
  for (uint8_t round = 1; round <= 4; round++) {
    memset(a.memory, round, 1000);
    post_receive(&b, round, &to, 1);
    post_receive(&b, 10 + round, NULL, 0);
    write.opcode = IBV_WR_RDMA_WRITE;
    CHECK(post_wr(a.qp, write) == 0);
    CHECK(post_wr(a.qp, send) == 0);
    ends_well(&b, round, IBV_WC_RECV);
    CHECK(b.memory[0] == round && b.memory[999] == round && b.memory[5999] == round);
    write.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    write.imm_data = htonl(round);
    CHECK(post_wr(a.qp, write) == 0);
    const struct ibv_wc wc = ends_well(&b, 10 + round, IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK(ntohl(wc.imm_data) == round && wc.byte_len == 1000);
    ends_well(&a, 2, IBV_WC_SEND); /* nothing of the WRITEs, which ask for no completion */
  }
  stop();
  passed("order");
}

static void long_messages(void) {
  start();
  struct ibv_sge from = piece(&a, 0, PAIR_BYTES), to = piece(&b, 0, PAIR_BYTES);
  for (uint32_t i = 0; i < PAIR_BYTES; i++)
    a.memory[i] = (uint8_t)(i * 7 + (i >> 8));
  for (uint64_t i = 0; i < PAIR_DEPTH; i++)
    post_receive(&b, i, &to, 1);
  for (uint64_t i = 0; i < PAIR_DEPTH; i++)
    CHECK(post_wr(a.qp, sending(i, &from, 1)) == 0);
  CHECK(post_wr(a.qp, sending(0, &from, 1)) == ENOMEM);
  for (uint64_t i = 0; i < PAIR_DEPTH; i++) {
    CHECK(ends_well(&b, i, IBV_WC_RECV).byte_len == PAIR_BYTES);
    ends_well(&a, i, IBV_WC_SEND);
  }
  CHECK(memcmp(a.memory, b.memory, PAIR_BYTES) == 0);
  stop();
  passed("long messages");
}

/* ---- Receives ---- */

static void no_receive(void) {
  start();
  struct ibv_sge from = piece(&a, 0, 8), to = piece(&b, 0, 8);
  CHECK(post_wr(a.qp, sending(1, &from, 1)) == 0);
  none_within(&a, 1.5);
  post_receive(&b, 2, &to, 1);
  ends_well(&a, 1, IBV_WC_SEND);
  ends_well(&b, 2, IBV_WC_RECV);
  stop();
  a = make_rc_end(NULL);
  b = make_rc_end(NULL);
  join_rc(&a, &b, 1);
  from = piece(&a, 0, 8);
  CHECK(post_wr(a.qp, sending(1, &from, 1)) == 0);
  CHECK(post_wr(a.qp, sending(2, &from, 1)) == 0);
  ends_with(&a, 1, IBV_WC_RNR_RETRY_EXC_ERR);
  ends_with(&a, 2, IBV_WC_WR_FLUSH_ERR);
  CHECK(a.qp->state == IBV_QPS_ERR);
  stop();
  passed("no receive");
}

/* The second in which it must come is one of a process that runs. */
static void late_receive(void) {
  const struct timespec while_stopped = {.tv_sec = 1, .tv_nsec = 200000000};
  const struct timespec look = {.tv_nsec = 20000000};
  a = make_rc_end(NULL);
  b = make_rc_end(NULL);
  join_rc(&a, &b, 1);
  arrives(&a, &b);
  struct ibv_sge from = piece(&a, 0, 8), to = piece(&b, 0, 8);
  CHECK(post_wr(a.qp, sending(1, &from, 1)) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) { /* the parent may not have stopped yet */
      nanosleep(&while_stopped, NULL);
      kill(getppid(), SIGCONT);
    }
  }
  raise(SIGSTOP);
  kill(child, SIGKILL);
  nanosleep(&look, NULL); /* the helper looks first */
  post_receive(&b, 2, &to, 1);
  ends_well(&a, 1, IBV_WC_SEND);
  ends_well(&b, 2, IBV_WC_RECV);
  CHECK(waitpid(child, NULL, 0) == child);
  stop();
  passed("late receive");
}

static void short_receive(void) {
  start();
  struct ibv_sge from = piece(&a, 0, 100), to = piece(&b, 0, 99);
  post_receive(&b, 1, &to, 1);
  post_receive(&b, 2, &to, 1);
  CHECK(post_wr(a.qp, sending(3, &from, 1)) == 0);
  ends_with(&b, 1, IBV_WC_LOC_LEN_ERR);
  ends_with(&b, 2, IBV_WC_WR_FLUSH_ERR);
  until_failed(&a);
  stop();
  passed("short receive");
}

static void receive_without_memory(void) {
  start();
  struct ibv_sge from = piece(&a, 0, 100), to = piece(&b, 0, 100);
  to.lkey ^= 1;
  post_receive(&b, 1, &to, 1);
  CHECK(post_wr(a.qp, sending(3, &from, 1)) == 0);
  ends_with(&b, 1, IBV_WC_LOC_PROT_ERR);
  until_failed(&a);
  CHECK(b.memory[0] == 0);
  stop();
  passed("receive without memory");
}

/* ---- READs and ATOMICs ---- */

static void reads_and_atomics(void) {
  start();
  struct ibv_sge to[] = {piece(&a, 100, 3), piece(&a, 200, 50000)};
  for (uint32_t i = 0; i < 50000; i++)
    b.memory[i] = (uint8_t)(i * 3 + (i >> 8));
  CHECK(post_wr(a.qp, reading(1, to, 2, &b, 1)) == 0);
  ends_well(&a, 1, IBV_WC_RDMA_READ);
  CHECK(memcmp(a.memory + 100, b.memory + 1, 3) == 0);
  CHECK(memcmp(a.memory + 200, b.memory + 4, 49990) == 0);
  uint64_t *counter = (uint64_t *)(b.memory + 8), *old = (uint64_t *)a.memory;
  struct ibv_sge back = piece(&a, 0, 8);
  *counter = 40;
  CHECK(post_wr(a.qp, adding(2, &back, &b, 8, 2)) == 0);
  ends_well(&a, 2, IBV_WC_FETCH_ADD);
  CHECK(*counter == 42 && *old == 40);
  struct ibv_send_wr swap = adding(3, &back, &b, 8, 42);
  swap.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  swap.wr.atomic.swap = 7;
  for (uint64_t i = 0; i < 2; i++) {
    CHECK(post_wr(a.qp, swap) == 0);
    ends_well(&a, 3, IBV_WC_COMP_SWAP);
    CHECK(*counter == 7 && *old == (i == 0 ? 42 : 7));
  }
  stop();
  passed("reads and atomics");
}

static void fails_with(struct ibv_send_wr wr, enum ibv_wc_status status) {
  CHECK(post_wr(a.qp, wr) == 0);
  ends_with(&a, wr.wr_id, status);
  stop();
}

static void rights(void) {
  struct ibv_sge to;
  for (int i = 0; i < 6; i++) {
    start();
    struct ibv_pd *other = ibv_alloc_pd(context);
    struct ibv_mr *mr =
        ibv_reg_mr(i / 2 == 0 ? b.pd : other, b.memory, PAIR_BYTES,
                   i / 2 == 0 ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : ALL_RIGHTS);
    CHECK(other && mr);
    to = piece(&a, 0, 8);
    struct ibv_send_wr wr = i % 2 == 0 ? reading(1, &to, 1, &b, 0) : adding(1, &to, &b, 0, 1);
    uint32_t *rkey = i % 2 == 0 ? &wr.wr.rdma.rkey : &wr.wr.atomic.rkey;
    if (i / 2 < 2) *rkey = mr->rkey; /* that only WRITEs may enter; of another PD */
    if (i / 2 == 2) {                /* a QP without the right */
      struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
      CHECK(ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS) == 0);
    }
    CHECK(post_wr(a.qp, wr) == 0);
    ends_with(&a, 1, IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(other) == 0);
    stop();
  }
  start();
  to = piece(&a, 0, 9);
  fails_with(reading(1, &to, 1, &b, PAIR_BYTES - 8), IBV_WC_REM_ACCESS_ERR);
  start();
  to = piece(&a, 0, 8);
  fails_with(adding(1, &to, &b, 4, 1), IBV_WC_REM_INV_REQ_ERR);
  start_connected();
  to = piece(&a, 0, 8);
  to.lkey ^= 1;
  fails_with(reading(1, &to, 1, &b, 0), IBV_WC_LOC_PROT_ERR);
  start_connected();
  to = piece(&a, 0, 8);
  post_receive(&b, 2, NULL, 0);
  to.lkey ^= 1;
  fails_with(sending(1, &to, 1), IBV_WC_LOC_PROT_ERR);
  passed("rights");
}

static void refused(void) {
  start_connected();
  struct ibv_sge to = piece(&a, 0, 8);
  struct ibv_send_wr wr = sending(1, &to, 1);
  wr.opcode = IBV_WR_SEND_WITH_INV;
  CHECK(post_wr(a.qp, wr) == EOPNOTSUPP);
  wr = reading(1, &to, 1, &b, 0);
  wr.send_flags |= IBV_SEND_INLINE;
  CHECK(post_wr(a.qp, wr) == EINVAL);
  to.length = 4;
  CHECK(post_wr(a.qp, adding(1, &to, &b, 0, 1)) == EINVAL);
  stop();
  passed("refused");
}

/* ---- Events, lives ---- */

static void solicited_events(void) {
  struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
  CHECK(channel);
  rc_channel = channel;
  start();
  rc_channel = NULL;
  struct ibv_sge from = piece(&a, 0, 8), to = piece(&b, 0, 8);
  struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
  struct ibv_cq *cq;
  void *user;
  CHECK(ibv_req_notify_cq(b.cq, 1) == 0);
  post_receive(&b, 1, &to, 1);
  post_receive(&b, 2, &to, 1);
  CHECK(post_wr(a.qp, sending(3, &from, 1)) == 0);
  ends_well(&a, 3, IBV_WC_SEND);
  CHECK(poll(&fd, 1, 200) == 0);
  struct ibv_send_wr wr = sending(4, &from, 1);
  wr.send_flags |= IBV_SEND_SOLICITED;
  CHECK(post_wr(a.qp, wr) == 0);
  CHECK(poll(&fd, 1, PATIENCE_SECONDS * 1000) == 1 && ibv_get_cq_event(channel, &cq, &user) == 0 &&
        cq == b.cq);
  ibv_ack_cq_events(cq, 1);
  ends_well(&b, 1, IBV_WC_RECV);
  ends_well(&b, 2, IBV_WC_RECV);
  stop();
  CHECK(ibv_destroy_comp_channel(channel) == 0);
  passed("solicited events");
}

static void another_life(void) {
  start();
  for (int life = 0; life < 3; life++) {
    arrives(&a, &b);
    CHECK(modify(a.qp, IBV_QPS_RESET, 0) == 0 && modify(b.qp, IBV_QPS_RESET, 0) == 0);
    join_rc(&a, &b, RNR_FOR_EVER);
  }
  stop();
  passed("another life");
}

static int run_parts(void) {
  context = open_first();
  several_pieces();
  immediates_and_inline();
  order();
  long_messages();
  no_receive();
  late_receive();
  short_receive();
  receive_without_memory();
  reads_and_atomics();
  rights();
  refused();
  solicited_events();
  another_life();
  CHECK(ibv_close_device(context) == 0);
  return 0;
}

/* ======== Shared receive queues ======== */

enum { PAIRS = 2, MANY = 128, KIB_OF_PAIR = 400 };

static struct ibv_pd *pd;
static struct ibv_srq *srq;
static struct end clients[PAIRS], servers[PAIRS];

static void start_shared(void) {
  pd = ibv_alloc_pd(context);
  struct ibv_srq_init_attr attr = {.attr = {.max_wr = 2 * PAIR_DEPTH, .max_sge = 2}};
  srq = ibv_create_srq(pd, &attr);
  CHECK(pd && srq);
  for (int i = 0; i < PAIRS; i++) {
    clients[i] = make_rc_end(NULL);
    servers[i] = make_rc_end(srq);
    join_rc(&clients[i], &servers[i], RNR_FOR_EVER);
  }
}

static void stop_shared(void) {
  for (int i = 0; i < PAIRS; i++) {
    destroy_end(&clients[i]);
    destroy_end(&servers[i]);
  }
  CHECK(ibv_destroy_srq(srq) == 0 && ibv_dealloc_pd(pd) == 0);
}

static void send_from(int i, uint64_t id) {
  struct ibv_sge from = piece(&clients[i], 0, 100);
  clients[i].memory[0] = (uint8_t)id;
  CHECK(post_wr(clients[i].qp, sending(id, &from, 1)) == 0);
}

/* Regions belong to a PD: the server's is common to all. */
static void post_shared(uint64_t id) {
  struct ibv_sge to[] = {piece(&servers[0], 1000 * (uint32_t)id, 1),
                         piece(&servers[0], 1000 * (uint32_t)id + 1, 99)};
  post_receive(&servers[0], id, to, 2);
}

static void one_takes_all(void) {
  start_shared();
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
  stop_shared();
  passed("one takes all");
}

static void turns(void) {
  start_shared();
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
  stop_shared();
  passed("turns");
}

static void limit(void) {
  start_shared();
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
  stop_shared();
  passed("limit");
}

/* A QP that fails gives back what it has reserved. */
static void failed_end(void) {
  start_shared();
  post_shared(1);
  send_from(0, 1);
  ends_well(&servers[0], 1, IBV_WC_RECV); /* so the QPs are connected */
  ends_well(&clients[0], 1, IBV_WC_SEND);
  send_from(0, 1);
  none_within(&servers[0], 0.1);
  struct ibv_async_event event;
  CHECK(modify(servers[0].qp, IBV_QPS_ERR, 0) == 0);
  CHECK(ibv_get_async_event(context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == servers[0].qp);
  ibv_ack_async_event(&event);
  post_shared(1);
  send_from(1, 2);
  ends_well(&servers[1], 1, IBV_WC_RECV);
  CHECK(receive_into(servers[1].qp, 1) == EINVAL);
  stop_shared();
  passed("failed end");
}

static long most_kib(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return used.ru_maxrss;
}

static void many(void) {
  static struct end ends[2 * MANY];
  const long before = most_kib();
  for (int i = 0; i < 2 * MANY; i++)
    ends[i] = make_rc_end(NULL);
  for (int i = 0; i < 2 * MANY; i += 2)
    join_rc(&ends[i], &ends[i + 1], RNR_FOR_EVER);
  for (int i = 0; i < 2 * MANY; i += 2) {
    struct ibv_sge from = piece(&ends[i], 0, 8), to = piece(&ends[i + 1], 0, 8);
    post_receive(&ends[i + 1], 1, &to, 1);
    CHECK(post_wr(ends[i].qp, sending(2, &from, 1)) == 0);
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

static int run_shared(void) {
  context = open_first();
  one_takes_all();
  turns();
  limit();
  failed_end();
  many();
  CHECK(ibv_close_device(context) == 0);
  return 0;
}

/* ======== A victim ======== */

/* Beside it, two other ends go on. */

enum { PEER = 3 /* the least QPN: that peer dials */ };

static int run_victim(void) {
  context = open_first();
  struct end victim = make_rc_end(NULL), a = make_rc_end(NULL), b = make_rc_end(NULL);
  struct ibv_sge to = piece(&victim, 0, 100);
  struct ibv_async_event event;
  memset(victim.memory, 1, PAIR_BYTES);
  struct place peer = place_of(&victim);
  peer.qpn = PEER;
  move(&victim, peer, RNR_FOR_EVER);
  post_receive(&victim, 1, &to, 1);
  printf("%u\n", victim.qp->qp_num);
  fflush(stdout);
  until_failed(&victim);
  CHECK(ibv_get_async_event(context, &event) == 0 && event.element.qp == victim.qp);
  ibv_ack_async_event(&event);
  for (uint32_t i = 0; i < PAIR_BYTES; i++)
    CHECK(victim.memory[i] == 1);
  join_rc(&a, &b, RNR_FOR_EVER);
  arrives(&a, &b);
  destroy_end(&victim);
  passed("failed");
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "shared") == 0) return run_shared();
  if (argc > 1 && strcmp(argv[1], "victim") == 0) return run_victim();
  return run_parts();
}
