/* SPDX-License-Identifier: Apache-2.0 */
/* What NICs demand of a program, and what they tell it. Runs with `mrc run` and with `--rc`. Prints
   each part that passed. */
#include "pair.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <sys/mman.h>

#define REFUSED(call, number) CHECK(((errno = 0), !(call)) && errno == (number))

enum { PAGES = 4, UNKNOWN_QPN = 0xfffff0 };

static struct ibv_context *context;
static const int to_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

static void destroy(struct end *end) {
  CHECK(ibv_destroy_qp(end->qp) == 0 && ibv_destroy_cq(end->cq) == 0);
  CHECK(ibv_dereg_mr(end->mr) == 0 && ibv_dealloc_pd(end->pd) == 0);
  free(end->memory);
}

static void fail(struct end *end) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE) == 0);
}

/* ---- Attributes ---- */

/* Refuses the change without each of its attributes, and with one more; then makes it. */
static void change(struct end *end, struct ibv_qp_attr attr, int mask, int more) {
  const enum ibv_qp_state before = end->qp->state;
  for (int bit = 1; bit <= mask; bit <<= 1)
    if (mask & bit & ~IBV_QP_STATE) CHECK(ibv_modify_qp(end->qp, &attr, mask & ~bit) == EINVAL);
  CHECK(ibv_modify_qp(end->qp, &attr, mask | more) == EINVAL && end->qp->state == before);
  CHECK(ibv_modify_qp(end->qp, &attr, mask) == 0 && end->qp->state == attr.qp_state);
}

static void masks(void) {
  struct end a = make_end(context, 16), b = make_end(context, 16);
  const struct place at_a = place_of(&a), at_b = place_of(&b);
  struct ibv_qp_attr attr = attr_of(&at_b);
  attr.qp_state = IBV_QPS_INIT;
  change(&a, attr, TO_INIT, IBV_QP_QKEY);
  CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == 0); /* INIT again */
  attr.qp_state = IBV_QPS_RTR;
  change(&a, attr, TO_RTR, IBV_QP_PORT);
  CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_ACCESS_FLAGS) == EINVAL); /* not in RTR */
  attr.qp_state = IBV_QPS_RTS;
  change(&a, attr, TO_RTS, IBV_QP_DEST_QPN);
  CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_TIMEOUT) == EINVAL);
  CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_ACCESS_FLAGS) == 0);
  join(&b, &at_a);
  write_text(&a, &at_b, "connected");
  attr.qp_state = IBV_QPS_ERR;
  CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EINVAL);
  CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
  destroy(&a);
  destroy(&b);
  passed("masks");
}

/* Also of a QP to a number that none can have: the others of the program go on. */
static void values(void) {
  struct end a = make_end(context, 16), b = make_end(context, 16);
  struct place to = place_of(&b);
  struct ibv_qp_attr right = attr_of(&to), attr = right;
  right.qp_state = attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 2;
  CHECK(ibv_modify_qp(a.qp, &attr, TO_INIT) == EINVAL);
  attr = right;
  attr.pkey_index = 1;
  CHECK(ibv_modify_qp(a.qp, &attr, TO_INIT) == EINVAL);
  CHECK(ibv_modify_qp(a.qp, &right, TO_INIT) == 0);
  right.qp_state = IBV_QPS_RTR;
  const uint32_t numbers[] = {0, 2, 1 << 24, UINT32_MAX};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    attr = right;
    attr.dest_qp_num = numbers[i];
    CHECK(ibv_modify_qp(a.qp, &attr, TO_RTR) == EINVAL);
  }
  for (int mtu = 0; mtu <= IBV_MTU_4096 + 1; mtu += IBV_MTU_4096 + 1) {
    attr = right;
    attr.path_mtu = (enum ibv_mtu)mtu;
    CHECK(ibv_modify_qp(a.qp, &attr, TO_RTR) == EINVAL);
  }
  attr = right;
  attr.ah_attr.grh.dgid = (union ibv_gid){0};
  CHECK(ibv_modify_qp(a.qp, &attr, TO_RTR) == EINVAL);
  attr.qp_state = IBV_QPS_RESET;
  CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
  join_both(&a, &b);
  write_text(&a, &to, "connected");
  destroy(&a);
  destroy(&b);
  passed("values");
}

/* As many QPs as the device says. */
static void fill_device(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
  struct ibv_device_attr attr;
  CHECK(ibv_query_device(context, &attr) == 0 && attr.max_qp > 0);
  struct ibv_qp **qps = calloc((size_t)attr.max_qp, sizeof(struct ibv_qp *));
  for (int i = 0; i < attr.max_qp; i++)
    CHECK((qps[i] = ibv_create_qp(pd, init)));
  REFUSED(ibv_create_qp(pd, init), ENOMEM);
  for (int i = 0; i < attr.max_qp; i++)
    CHECK(ibv_destroy_qp(qps[i]) == 0);
  free(qps);
}

static void capacities(void) {
  struct ibv_pd *pd = ibv_alloc_pd(context);
  struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
  const struct ibv_qp_cap asked = {.max_send_wr = 2};
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC}, found;
  struct ibv_qp_init_attr_ex more = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd};
  struct ibv_qp_attr attr;
  more.comp_mask = IBV_QP_INIT_ATTR_PD;
  init.cap = more.cap = asked;
  struct ibv_qp *one = ibv_create_qp(pd, &init), *other = ibv_create_qp_ex(context, &more);
  CHECK(one && other && ibv_query_qp(one, &attr, IBV_QP_CAP, &found) == 0);
  CHECK(attr.cap.max_send_sge == 1 && memcmp(&attr.cap, &found.cap, sizeof attr.cap) == 0);
  CHECK(memcmp(&init.cap, &attr.cap, sizeof attr.cap) == 0);
  CHECK(memcmp(&more.cap, &attr.cap, sizeof attr.cap) == 0);
  CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(other) == 0);
  fill_device(pd, &init);
  CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
  passed("capacities");
}

/* ---- Memory ---- */

static void *map(size_t bytes, int protection) {
  void *made = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(made != MAP_FAILED);
  return made;
}

static void accepted(struct ibv_pd *pd, void *memory, size_t bytes, int access) {
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, bytes, access);
  CHECK(mr && ibv_dereg_mr(mr) == 0);
}

static void memory(void) {
  const size_t page = (size_t)getpagesize(), bytes = PAGES * page;
  struct ibv_pd *pd = ibv_alloc_pd(context);
  uint8_t *begin = map(bytes, PROT_READ | PROT_WRITE), *last = begin + bytes - page;
  begin[page - 1] = last[0] = 7;
  accepted(pd, begin, bytes, to_rights);
  CHECK(mprotect(last, page, PROT_READ) == 0);
  REFUSED(ibv_reg_mr(pd, begin, bytes, IBV_ACCESS_LOCAL_WRITE), EFAULT);
  REFUSED(ibv_reg_mr(pd, last, page, to_rights), EFAULT);
  REFUSED(ibv_reg_mr(pd, last - 1, 2, to_rights), EFAULT);
  accepted(pd, begin, bytes, 0);
  accepted(pd, begin, bytes, IBV_ACCESS_REMOTE_READ);
  accepted(pd, begin, bytes - page, to_rights);
  CHECK(munmap(begin + page, page) == 0);
  REFUSED(ibv_reg_mr(pd, begin, bytes, 0), EFAULT); /* a gap */
  accepted(pd, begin + 1, page - 1, to_rights);
  CHECK(begin[page - 1] == 7 && last[0] == 7); /* nothing was changed */
  CHECK(munmap(begin, bytes) == 0 && ibv_dealloc_pd(pd) == 0);
  passed("memory");
}

/* ---- Events ---- */

static void solicited(void) {
  struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
  struct end a = make_end(context, 16), b = make_end(context, 16);
  struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0), *told;
  CHECK(channel && cq && ibv_destroy_qp(b.qp) == 0);
  struct ibv_qp_init_attr init = {.send_cq = b.cq,
                                  .recv_cq = cq,
                                  .qp_type = IBV_QPT_RC,
                                  .cap = {.max_send_wr = 1, .max_recv_wr = 1}};
  b.qp = ibv_create_qp(b.pd, &init);
  struct ibv_recv_wr *bad_receive, receive = {.wr_id = 3};
  const struct place to = place_of(&b);
  join_both(&a, &b);
  CHECK(ibv_post_recv(b.qp, &receive, &bad_receive) == 0 && ibv_req_notify_cq(cq, 1) == 0);
  struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                 .send_flags = IBV_SEND_SOLICITED | IBV_SEND_SIGNALED,
                                 .wr.rdma = {.remote_addr = to.va, .rkey = to.rkey}};
  CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
  void *cq_context;
  CHECK(ibv_get_cq_event(channel, &told, &cq_context) == 0 && told == cq);
  ibv_ack_cq_events(cq, 1);
  CHECK(poll_one(cq).wr_id == 3 && poll_one(a.cq).status == IBV_WC_SUCCESS);
  destroy(&a);
  destroy(&b);
  CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
  passed("solicited");
}

/* ---- Peers ---- */

/* A QP that has failed before it was connected is open to nobody. */
static void failed_early(void) {
  struct end a = make_end(context, 16), b = make_end(context, 16);
  const struct place at_a = place_of(&a), at_b = place_of(&b);
  join(&a, &at_b);
  fail(&a);
  join(&b, &at_a);
  CHECK(post(&b, &at_a, 7, b.mr->lkey, at_a.rkey, "nobody") == 0);
  CHECK(poll_one(b.cq).status == IBV_WC_RETRY_EXC_ERR);
  CHECK(a.memory[0] == 0);
  destroy(&a);
  destroy(&b);
  passed("failed early");
}

/* No program of this host has the number: the agent knows that, whichever end would dial. */
static void unknown_peers(void) {
  const uint32_t numbers[] = {3, UNKNOWN_QPN};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    struct end end = make_end(context, 16);
    struct place to = place_of(&end);
    to.qpn = numbers[i];
    struct ibv_qp_attr attr = attr_of(&to);
    struct ibv_recv_wr *bad, receive = {.wr_id = 3};
    attr.qp_state = IBV_QPS_INIT;
    CHECK(ibv_modify_qp(end.qp, &attr, TO_INIT) == 0);
    CHECK(ibv_post_recv(end.qp, &receive, &bad) == 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(end.qp, &attr, TO_RTR) == 0);
    CHECK(poll_one(end.cq).status == IBV_WC_WR_FLUSH_ERR && end.qp->state == IBV_QPS_ERR);
    destroy(&end);
  }
  passed("unknown peers");
}

int main(int argc, char **argv) {
  context = open_first();
  if (argc > 1 && strcmp(argv[1], "unknown") == 0) {
    unknown_peers();
    return 0;
  }
  masks();
  values();
  capacities();
  memory();
  solicited();
  failed_early();
  CHECK(ibv_close_device(context) == 0);
  return 0;
}
