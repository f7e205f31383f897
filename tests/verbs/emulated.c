/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated RC, for a program that was started with `mrc run --rc`. Prints each part that passed. */
#include "emulated.h"

#include <arpa/inet.h>
#include <poll.h>

static struct ibv_context *context;
static struct rc_end a, b;

static void start(void) {
  a = make_rc_end(context, NULL);
  b = make_rc_end(context, NULL);
  join_rc(&a, &b, RNR_FOR_EVER);
}

/* The same, and both are connected: an end learns that its peer has ended before that. */
static void start_connected(void) {
  start();
  post_receive(&b, 0, NULL, 0);
  CHECK(post_request(&a, sending(0, NULL, 0)) == 0);
  ends_well(&a, 0, IBV_WC_SEND);
  ends_well(&b, 0, IBV_WC_RECV);
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
  CHECK(post_request(&a, sending(2, from, 3)) == 0);
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
  CHECK(post_request(&a, wr) == 0);
  strcpy((char *)a.memory, "later");
  wr.num_sge = 0;
  wr.imm_data = htonl(5);
  CHECK(post_request(&a, wr) == 0);
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
    CHECK(post_request(&a, write) == 0);
    CHECK(post_request(&a, send) == 0);
    ends_well(&b, round, IBV_WC_RECV);
    CHECK(b.memory[0] == round && b.memory[999] == round && b.memory[5999] == round);
    write.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    write.imm_data = htonl(round);
    CHECK(post_request(&a, write) == 0);
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
    CHECK(post_request(&a, sending(i, &from, 1)) == 0);
  CHECK(post_request(&a, sending(0, &from, 1)) == ENOMEM);
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
  CHECK(post_request(&a, sending(1, &from, 1)) == 0);
  none_within(&a, 1.5);
  post_receive(&b, 2, &to, 1);
  ends_well(&a, 1, IBV_WC_SEND);
  ends_well(&b, 2, IBV_WC_RECV);
  stop();
  a = make_rc_end(context, NULL);
  b = make_rc_end(context, NULL);
  join_rc(&a, &b, 1);
  from = piece(&a, 0, 8);
  CHECK(post_request(&a, sending(1, &from, 1)) == 0);
  CHECK(post_request(&a, sending(2, &from, 1)) == 0);
  ends_with(&a, 1, IBV_WC_RNR_RETRY_EXC_ERR);
  ends_with(&a, 2, IBV_WC_WR_FLUSH_ERR);
  CHECK(a.qp->state == IBV_QPS_ERR);
  stop();
  passed("no receive");
}

static void short_receive(void) {
  start();
  struct ibv_sge from = piece(&a, 0, 100), to = piece(&b, 0, 99);
  post_receive(&b, 1, &to, 1);
  post_receive(&b, 2, &to, 1);
  CHECK(post_request(&a, sending(3, &from, 1)) == 0);
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
  CHECK(post_request(&a, sending(3, &from, 1)) == 0);
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
  CHECK(post_request(&a, reading(1, to, 2, &b, 1)) == 0);
  ends_well(&a, 1, IBV_WC_RDMA_READ);
  CHECK(memcmp(a.memory + 100, b.memory + 1, 3) == 0);
  CHECK(memcmp(a.memory + 200, b.memory + 4, 49990) == 0);
  uint64_t *counter = (uint64_t *)(b.memory + 8), *old = (uint64_t *)a.memory;
  struct ibv_sge back = piece(&a, 0, 8);
  *counter = 40;
  CHECK(post_request(&a, adding(2, &back, &b, 8, 2)) == 0);
  ends_well(&a, 2, IBV_WC_FETCH_ADD);
  CHECK(*counter == 42 && *old == 40);
  struct ibv_send_wr swap = adding(3, &back, &b, 8, 42);
  swap.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  swap.wr.atomic.swap = 7;
  for (uint64_t i = 0; i < 2; i++) {
    CHECK(post_request(&a, swap) == 0);
    ends_well(&a, 3, IBV_WC_COMP_SWAP);
    CHECK(*counter == 7 && *old == (i == 0 ? 42 : 7));
  }
  stop();
  passed("reads and atomics");
}

static void fails_with(struct ibv_send_wr wr, enum ibv_wc_status status) {
  CHECK(post_request(&a, wr) == 0);
  ends_with(&a, wr.wr_id, status);
  stop();
}

static void rights(void) {
  struct ibv_sge to;
  for (int i = 0; i < 6; i++) {
    start();
    to = piece(&a, 0, 8);
    struct ibv_send_wr wr = i % 2 == 0 ? reading(1, &to, 1, &b, 0) : adding(1, &to, &b, 0, 1);
    uint32_t *rkey = i % 2 == 0 ? &wr.wr.rdma.rkey : &wr.wr.atomic.rkey;
    if (i / 2 == 0) *rkey = b.plain->rkey;   /* a region that only WRITEs may enter */
    if (i / 2 == 1) *rkey = b.foreign->rkey; /* of another PD */
    if (i / 2 == 2) {                        /* a QP without the right */
      struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
      CHECK(ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS) == 0);
    }
    fails_with(wr, IBV_WC_REM_ACCESS_ERR);
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
  CHECK(post_request(&a, wr) == EOPNOTSUPP);
  wr = reading(1, &to, 1, &b, 0);
  wr.send_flags |= IBV_SEND_INLINE;
  CHECK(post_request(&a, wr) == EINVAL);
  to.length = 4;
  CHECK(post_request(&a, adding(1, &to, &b, 0, 1)) == EINVAL);
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
  CHECK(post_request(&a, sending(3, &from, 1)) == 0);
  ends_well(&a, 3, IBV_WC_SEND);
  CHECK(poll(&fd, 1, 200) == 0);
  struct ibv_send_wr wr = sending(4, &from, 1);
  wr.send_flags |= IBV_SEND_SOLICITED;
  CHECK(post_request(&a, wr) == 0);
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
    struct ibv_sge from = piece(&a, 0, 8), to = piece(&b, 0, 8);
    post_receive(&b, 1, &to, 1);
    CHECK(post_request(&a, sending(2, &from, 1)) == 0);
    ends_well(&b, 1, IBV_WC_RECV);
    ends_well(&a, 2, IBV_WC_SEND);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
    CHECK(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE) == 0);
    join_rc(&a, &b, RNR_FOR_EVER);
  }
  stop();
  passed("another life");
}

int main(void) {
  context = open_first();
  several_pieces();
  immediates_and_inline();
  order();
  long_messages();
  no_receive();
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
