/* SPDX-License-Identifier: Apache-2.0 */
/* WRITEs whose bytes come from several pieces of memory. Prints each part that passed. */
#include "pair.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

/* A multiple of every kernel's pages. */
enum { PAGE = 65536, PIECES = 5, LARGE = 1 << 20, ROUNDS = 4 * PAIR_DEPTH };

static struct ibv_context *context;
static struct end a, b;
static struct place to;

/* Pieces of a's memory, not in order and one of them empty: together "gathered". */
static void cut(struct ibv_sge *sges, uint32_t lkey) {
  const char *const parts[PIECES] = {"ga", "t", "", "here", "d"};
  for (int i = 0; i < PIECES; i++) {
    uint8_t *at = a.memory + 1000 * (PIECES - i);
    strcpy((char *)at, parts[i]);
    sges[i] =
        (struct ibv_sge){.addr = (uintptr_t)at, .length = (uint32_t)strlen(parts[i]), .lkey = lkey};
  }
}

static void ends_with(enum ibv_wc_status status, const char *text) {
  const struct ibv_wc wc = poll_one(a.cq);
  CHECK(wc.status == status);
  CHECK(strcmp((char *)b.memory, text) == 0);
  memset(b.memory, 0, PAIR_BYTES);
}

static void before_it_is_connected(void) {
  struct ibv_sge sges[PIECES];
  a = make_end(context, 64);
  b = make_end(context, 64);
  const struct place from = place_of(&a);
  to = place_of(&b);
  join(&a, &to);
  cut(sges, a.mr->lkey);
  CHECK(post_wr(a.qp, writing(sges, PIECES, &to)) == 0);
  join(&b, &from);
  ends_with(IBV_WC_SUCCESS, "gathered");
  passed("before it is connected");
}

static void with_immediate(void) {
  struct ibv_sge sges[PIECES];
  cut(sges, a.mr->lkey);
  struct ibv_send_wr wr = writing(sges, PIECES, &to);
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.imm_data = htonl(77);
  CHECK(receive_into(b.qp, 6) == 0);
  CHECK(post_wr(a.qp, wr) == 0);
  const struct ibv_wc wc = poll_one(b.cq);
  CHECK(wc.status == IBV_WC_SUCCESS && ntohl(wc.imm_data) == 77 && wc.byte_len == 8);
  ends_with(IBV_WC_SUCCESS, "gathered");
  passed("with an immediate");
}

static void inlined(void) {
  struct ibv_sge sges[PIECES];
  cut(sges, 0);
  struct ibv_send_wr wr = writing(sges, PIECES, &to);
  wr.send_flags |= IBV_SEND_INLINE;
  CHECK(post_wr(a.qp, wr) == 0);
  memset(a.memory, 'x', PAIR_BYTES); /* the library has copied it */
  ends_with(IBV_WC_SUCCESS, "gathered");
  sges[2].length = PAIR_INLINE;
  CHECK(post_wr(a.qp, wr) == EINVAL);
  passed("inline");
}

/* Headers of Debian 12 do not have them, but a program that was built elsewhere calls them. */
static void new_functions(void) {
  int (*speed)(struct ibv_context *, uint32_t, uint64_t *) =
      dlsym(RTLD_DEFAULT, "ibv_query_port_speed");
  struct ibv_mr *(*reg)(struct ibv_pd *, void *) = dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
  uint64_t units = UINT64_MAX;
  CHECK(speed && speed(context, 1, &units) == 0 && units < UINT32_MAX);
  CHECK(speed(context, 2, &units) == EINVAL);
  CHECK(reg && reg(a.pd, NULL) == NULL && errno == EOPNOTSUPP);
  passed("new functions");
}

static void limits(void) {
  struct ibv_sge sges[PAIR_SGES + 1];
  for (int i = 0; i <= PAIR_SGES; i++) {
    a.memory[i] = (uint8_t)('a' + i);
    sges[i] = (struct ibv_sge){.addr = (uintptr_t)a.memory + i, .length = 1, .lkey = a.mr->lkey};
  }
  struct ibv_device_attr attr;
  CHECK(ibv_query_device(context, &attr) == 0 && attr.max_sge == PAIR_SGES);
  CHECK(post_wr(a.qp, writing(sges, PAIR_SGES, &to)) == 0);
  ends_with(IBV_WC_SUCCESS, "abcdefghijklmnop");
  CHECK(post_wr(a.qp, writing(sges, PAIR_SGES + 1, &to)) == EINVAL);
  passed("limits");
}

/* Unsignaled but for the last of each queue: the copies are freed all the same. */
static void frees_its_copies(void) {
  uint8_t *large = malloc(LARGE), *target = malloc(LARGE);
  CHECK(large && target);
  memset(large, 3, LARGE);
  struct ibv_mr *from = ibv_reg_mr(a.pd, large, LARGE, 0);
  struct ibv_mr *there =
      ibv_reg_mr(b.pd, target, LARGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(from && there);
  struct ibv_sge sges[] = {
      {.addr = (uintptr_t)large, .length = LARGE / 2, .lkey = from->lkey},
      {.addr = (uintptr_t)large, .length = LARGE / 2, .lkey = from->lkey},
  };
  const struct mallinfo2 before = mallinfo2();
  for (int i = 1; i <= ROUNDS; i++) {
    struct ibv_send_wr wr = writing(sges, 2, &to);
    wr.send_flags = i % PAIR_DEPTH == 0 ? IBV_SEND_SIGNALED : 0;
    wr.wr.rdma.remote_addr = (uintptr_t)target;
    wr.wr.rdma.rkey = there->rkey;
    CHECK(post_wr(a.qp, wr) == 0);
    if (wr.send_flags != 0) CHECK(poll_one(a.cq).status == IBV_WC_SUCCESS);
  }
  const struct mallinfo2 after = mallinfo2();
  CHECK(after.uordblks + after.hblkhd < before.uordblks + before.hblkhd + LARGE);
  for (int i = 0; i < LARGE; i++)
    CHECK(target[i] == 3);
  CHECK(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(there) == 0);
  passed("frees its copies");
}

/* ---- A copy that takes long ---- */

static uint8_t *slow; /* three pages, of which the second one cannot be read yet */
static struct ibv_mr *slow_mr;
static int reached[2], allowed[2]; /* pipes */

static void on_fault(int number) {
  char byte = (char)number;
  CHECK(write(reached[1], &byte, 1) == 1 && read(allowed[0], &byte, 1) == 1);
  CHECK(mprotect(slow + PAGE, PAGE, PROT_READ) == 0);
}

static void *post_slow(void *unused) {
  struct ibv_sge sges[] = {
      {.addr = (uintptr_t)slow, .length = 2 * PAGE, .lkey = slow_mr->lkey},
      {.addr = (uintptr_t)slow + 2 * PAGE, .length = 4, .lkey = slow_mr->lkey},
  };
  CHECK(post_wr(a.qp, writing(sges, 2, &to)) == 0);
  return unused;
}

/* While a thread copies, other QPs go on. */
static void delays_nobody(void) {
  slow = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(slow != MAP_FAILED && pipe(reached) == 0 && pipe(allowed) == 0);
  memcpy(slow, "slow", 4);
  memcpy(slow + 2 * PAGE, "end", 4);
  CHECK(mprotect(slow + PAGE, PAGE, PROT_NONE) == 0);
  slow_mr = ibv_reg_mr(a.pd, slow, 3 * PAGE, 0);
  struct end c, d;
  const struct place at_d = make_pair(context, &c, &d, 64);
  struct sigaction before, action = {.sa_handler = on_fault};
  CHECK(slow_mr && sigaction(SIGSEGV, &action, &before) == 0);
  pthread_t thread;
  char byte;
  CHECK(pthread_create(&thread, NULL, post_slow, NULL) == 0 && read(reached[0], &byte, 1) == 1);
  write_text(&c, &at_d, "not delayed");
  CHECK(strcmp((char *)d.memory, "not delayed") == 0);
  CHECK(write(allowed[1], &byte, 1) == 1 && pthread_join(thread, NULL) == 0);
  CHECK(sigaction(SIGSEGV, &before, NULL) == 0);
  const struct ibv_wc wc = poll_one(a.cq);
  CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 2 * PAGE + 4);
  CHECK(strcmp((char *)b.memory, "slow") == 0 && strcmp((char *)b.memory + 2 * PAGE, "end") == 0);
  memset(b.memory, 0, PAIR_BYTES);
  passed("delays nobody");
}

static void extended(void) {
  struct ibv_qp_init_attr_ex init = {
      .send_cq = a.cq,
      .recv_cq = a.cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = PAIR_DEPTH, .max_recv_wr = 1, .max_send_sge = PIECES},
      .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
      .pd = a.pd,
      .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
  CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
  a.qp = ibv_create_qp_ex(context, &init);
  init.pd = b.pd;
  init.send_cq = init.recv_cq = b.cq;
  b.qp = ibv_create_qp_ex(context, &init);
  CHECK(a.qp && b.qp);
  to = place_of(&b);
  join_both(&a, &b);
  struct ibv_sge sges[PIECES + 1];
  cut(sges, a.mr->lkey);
  struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
  for (int i = 0; i < 2; i++) { /* a list of two */
    if (i == 0) ibv_wr_start(qp);
    qp->wr_flags = i == 1 ? IBV_SEND_SIGNALED : 0;
    ibv_wr_rdma_write(qp, to.rkey, to.va + 8u * (1u - (unsigned)i));
    ibv_wr_set_sge_list(qp, PIECES, sges);
  }
  CHECK(ibv_wr_complete(qp) == 0);
  ends_with(IBV_WC_SUCCESS, "gatheredgathered");
  sges[PIECES] = sges[0];
  ibv_wr_start(qp);
  ibv_wr_rdma_write(qp, to.rkey, to.va);
  ibv_wr_set_sge_list(qp, PIECES + 1, sges);
  CHECK(ibv_wr_complete(qp) == EINVAL);
  passed("extended");
}

/* One piece is not registered, or ends behind its MR: the requests before it succeed. */
static void of_nobody(struct ibv_sge wrong) {
  struct ibv_sge sges[PIECES];
  to = make_pair(context, &a, &b, 64);
  cut(sges, a.mr->lkey);
  CHECK(post_wr(a.qp, writing(sges, PIECES, &to)) == 0);
  if (wrong.lkey == 0) wrong.lkey = a.mr->lkey;
  if (wrong.addr == 0) wrong.addr = (uintptr_t)a.memory + PAIR_BYTES - 1;
  sges[PIECES - 1] = wrong;
  CHECK(post_wr(a.qp, writing(sges, PIECES, &to)) == 0);
  ends_with(IBV_WC_SUCCESS, "gathered");
  ends_with(IBV_WC_LOC_PROT_ERR, "");
  CHECK(post_wr(a.qp, writing(sges, PIECES, &to)) == 0);
  ends_with(IBV_WC_WR_FLUSH_ERR, "");
}

int main(void) {
  context = open_first();
  before_it_is_connected();
  with_immediate();
  inlined();
  limits();
  new_functions();
  frees_its_copies();
  delays_nobody();
  extended();
  of_nobody((struct ibv_sge){.addr = (uintptr_t)&context, .length = 1, .lkey = ~0u});
  of_nobody((struct ibv_sge){.length = 2});
  passed("memory of nobody");
  return 0;
}
