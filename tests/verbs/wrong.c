/* SPDX-License-Identifier: Apache-2.0 */
/* What the device refuses. Prints each part that passed.

     wrong                   wrong arguments to verbs and to MRC's C interface, and wrong order
     wrong strict [unknown]  what NICs demand of a program, and what they tell it: with `mrc run`,
                             and with `--rc`; or peers that do not exist */
#include "pair.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "verbs/mrc_api.h"

/* ======== Wrong arguments and order ======== */

enum { PROFILE = 71, EVENTS = 3 };

#define IS_ERROR(call, number) CHECK((call) == (number))
#define FAILS(call, number) CHECK(((errno = 0), (call) == -1) && errno == (number))
#define NONE(call, number) CHECK(((errno = 0), !(call)) && errno == (number))

static struct ibv_context *verbs;
static struct mrc_api_context *context;

static bool is_readable(int fd) {
  return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1;
}

static void missing_arguments(void) {
  union {
    struct mrc_api_device_attr device;
    struct mrc_api_ctl_device_attr ctl_device;
    struct mrc_api_qp_hint_attr hint;
    struct mrc_api_port_attr port;
    struct mrc_api_format_attr format;
    struct mrc_api_evs_attr evs;
    struct mrc_api_cc_attr cc;
    struct ibv_wc wc;
  } any = {0};
  int number = 0;
  uint32_t qpn;
  struct mrc_api_channel *channel;
  FAILS(mrc_query_device(verbs, NULL, &number), EINVAL);
  FAILS(mrc_query_device_ex(NULL, NULL, &any.device, &number), EINVAL);
  mrc_query_version(NULL, NULL, NULL, NULL);
  NONE(mrc_create_context(NULL, NULL), EINVAL);
  FAILS(mrc_destroy_context(NULL), EINVAL);
  IS_ERROR(mrc_create_comp_channel(NULL, &channel), EINVAL);
  IS_ERROR(mrc_create_comp_channel(context, NULL), EINVAL);
  FAILS(mrc_get_comp_channel_fd(NULL, &number), EINVAL);
  IS_ERROR(mrc_destroy_comp_channel(NULL), EINVAL);
  NONE(mrc_create_cq(NULL, 1, NULL, NULL, 0), EINVAL);
  NONE(mrc_create_cq(context, -1, NULL, NULL, 0), EINVAL);
  NONE(mrc_create_cq(context, 1 << 30, NULL, NULL, 0), EINVAL);
  NONE(mrc_create_cq(context, 1, NULL, NULL, 7), EINVAL);
  FAILS(mrc_poll_cq(NULL, 1, &any.wc), EINVAL);
  IS_ERROR(mrc_req_notify_cq(NULL, 0), EINVAL);
  FAILS(mrc_get_cq_event(NULL, NULL, NULL), EINVAL);
  mrc_ack_cq_events(NULL, 1);
  IS_ERROR(mrc_destroy_cq(NULL), EINVAL);
  NONE(mrc_create_qp_hint(context, NULL), EINVAL);
  FAILS(mrc_query_qp_hint(NULL, &any.hint, 1), EINVAL);
  FAILS(mrc_modify_qp_hint(NULL, &any.hint, 1), EINVAL);
  FAILS(mrc_destroy_qp_hint(NULL), EINVAL);
  NONE(mrc_create_qp(context, NULL), EINVAL);
  IS_ERROR(mrc_modify_qp(NULL, NULL, 0, NULL, 0), EINVAL);
  IS_ERROR(mrc_query_qp(NULL, NULL, 0, NULL, 0, NULL), EINVAL);
  FAILS(mrc_get_qpn(NULL, &qpn), EINVAL);
  IS_ERROR(mrc_post_send(NULL, NULL, NULL), EINVAL);
  IS_ERROR(mrc_post_recv(NULL, NULL, NULL), EINVAL);
  IS_ERROR(mrc_destroy_qp(NULL), EINVAL);
  FAILS(mrc_get_async_event(NULL, NULL), EINVAL);
  mrc_ack_async_event(NULL);
  FAILS(mrc_ctl_query_device(NULL, &any.ctl_device), EINVAL);
  FAILS(mrc_ctl_query_device_ex(verbs, NULL, NULL, &number), EINVAL);
  mrc_ctl_query_version(NULL, NULL, NULL, NULL);
  FAILS(mrc_ctl_query_port(context, 1, NULL, 1), EINVAL);
  FAILS(mrc_ctl_query_port(context, 1, &any.port, 2), EINVAL);
  FAILS(mrc_ctl_modify_port(NULL, 1, &any.port, 1), EINVAL);
  FAILS(mrc_ctl_modify_ev_fmt_profile(context, 1, NULL, 0), EINVAL);
  FAILS(mrc_ctl_query_ev_fmt_profile(NULL, 1, &any.format, 0), EINVAL);
  FAILS(mrc_ctl_modify_ev_profile(context, 1, NULL, 0), EINVAL);
  FAILS(mrc_ctl_query_ev_profile(NULL, 1, &any.evs, 0), EINVAL);
  FAILS(mrc_ctl_modify_cc_profile(NULL, 1, &any.cc, 0), EINVAL);
  FAILS(mrc_ctl_modify_cc_profile(context, 1, &any.cc, MRC_API_CC_CONFIG), EINVAL);
  FAILS(mrc_ctl_query_cc_profile(context, 1, NULL, 0), EINVAL);
  NONE(mrc_ctl_create_ev_event_cq(NULL, 1, NULL, NULL, 0), EINVAL);
  NONE(mrc_ctl_create_ev_event_cq(context, 0, NULL, NULL, 0), EINVAL);
  IS_ERROR(mrc_ctl_poll_ev_event(NULL, 1, NULL), -EINVAL);
  FAILS(mrc_ctl_ep_batch_send_wait(context, 0, MRC_API_PROBE, NULL, 1, 1, NULL, NULL), EINVAL);
  passed("missing arguments");
}

/* Counts that no program can mean, in both directions. */
static void strange_counts(void) {
  struct mrc_api_ev_entry entries[1];
  struct mrc_api_ev_field fields[1] = {{.bits = 8, .mask = 0}};
  struct mrc_api_format_field bits[1];
  struct mrc_api_evs_attr evs = {.state = MRC_API_OFFLINE,
                                 .mode = MRC_API_EVS_GENERATED,
                                 .fields_op = {.fields = fields, .n_fields = 1}};
  CHECK(mrc_ctl_modify_ev_profile(
            context, PROFILE, &evs,
            MRC_API_PROFILE_STATE | MRC_API_EVS_MODE | MRC_API_EVS_FIELDS_OP) == 0);
  evs.op.entries = entries;
  for (int n = -1; n < 0 && n > -1000; n *= 8) {
    evs.op = (__typeof__(evs.op)){.op = MRC_API_EVS_QUERY, .entries = entries, .n_entries = n};
    FAILS(mrc_ctl_query_ev_profile(context, PROFILE, &evs, MRC_API_EVS_OP), EINVAL);
    evs.fields_op =
        (__typeof__(evs.fields_op)){.op = MRC_API_FIELDS_QUERY, .fields = fields, .n_fields = n};
    FAILS(mrc_ctl_query_ev_profile(context, PROFILE, &evs, MRC_API_EVS_FIELDS_OP), EINVAL);
    evs.op.op = MRC_API_EVS_REPLACE;
    FAILS(mrc_ctl_modify_ev_profile(context, PROFILE, &evs, MRC_API_EVS_OP), EINVAL);
    struct mrc_api_format_attr format = {.op = {.fields = bits, .n_fields = n}};
    FAILS(mrc_ctl_modify_ev_fmt_profile(context, PROFILE, &format, MRC_API_FORMAT_OP), EINVAL);
  }
  struct mrc_api_request request = {0};
  struct mrc_api_answer answer;
  int n = 0;
  FAILS(mrc_ctl_ep_batch_send_wait(context, 0, MRC_API_PROBE, &request, 1 << 20, 1, &answer, &n),
        EINVAL);
  FAILS(mrc_ctl_ep_batch_send_wait(context, 0, MRC_API_PROBE, &request, 1, 0, &answer, &n), EINVAL);
  evs.state = MRC_API_INIT;
  CHECK(mrc_ctl_modify_ev_profile(context, PROFILE, &evs, MRC_API_PROFILE_STATE) == 0);
  struct ibv_pd *pd = ibv_alloc_pd(verbs);
  uint8_t memory[64];
  NONE(ibv_reg_mr(pd, memory, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE), EINVAL);
  NONE(ibv_reg_mr(pd, memory, SIZE_MAX / 2, IBV_ACCESS_LOCAL_WRITE), EFAULT);
  NONE(ibv_reg_mr(pd, memory, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
  NONE(ibv_reg_mr(pd, memory, 8, IBV_ACCESS_REMOTE_WRITE), EINVAL);
  NONE(ibv_reg_mr(pd, memory, 8, IBV_ACCESS_MW_BIND), EOPNOTSUPP);
  NONE(ibv_reg_mr_iova2(pd, memory, 8, 0, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
  CHECK(ibv_dealloc_pd(pd) == 0);
  passed("strange counts");
}

/* Connects an end with a new one. */
static struct end join_with_new(struct end *end) {
  struct end other = make_end(verbs, 64);
  join_both(end, &other);
  return other;
}

static void wrong_order(void) {
  struct end end = make_end(verbs, 4);
  struct ibv_sge sges[PAIR_SGES + 1] = {0};
  const struct ibv_send_wr write = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = sges, .num_sge = 1};
  struct ibv_send_wr wr = write;
  IS_ERROR(post_wr(end.qp, wr), EINVAL); /* in RESET */
  IS_ERROR(receive_into(end.qp, 0), EINVAL);
  IS_ERROR(modify(end.qp, IBV_QPS_RTR, 0), EINVAL);
  IS_ERROR(modify(end.qp, IBV_QPS_RTS, 0), EINVAL);
  IS_ERROR(modify(end.qp, IBV_QPS_INIT, IBV_QP_CAP), EINVAL);
  IS_ERROR(modify(end.qp, (enum ibv_qp_state)99, 0), EINVAL);
  CHECK(modify(end.qp, IBV_QPS_INIT, TO_INIT) == 0);
  IS_ERROR(modify(end.qp, IBV_QPS_RTR, TO_RTR), EINVAL); /* without a GID */
  IS_ERROR(post_wr(end.qp, wr), EINVAL);
  const struct place here = place_of(&end);
  struct ibv_qp_attr self = attr_of(&here);
  IS_ERROR(ibv_modify_qp(end.qp, &self, TO_RTR), EOPNOTSUPP);
  CHECK(modify(end.qp, IBV_QPS_RESET, 0) == 0);
  const struct end other = join_with_new(&end);
  IS_ERROR(modify(end.qp, IBV_QPS_SQD, 0), EINVAL);
  IS_ERROR(modify(end.qp, IBV_QPS_INIT, 0), EINVAL);
  for (int n = -1; n <= PAIR_SGES + 1; n += PAIR_SGES + 2) {
    wr.num_sge = n;
    IS_ERROR(post_wr(end.qp, wr), EINVAL);
  }
  wr = write;
  wr.send_flags = IBV_SEND_INLINE;
  sges[0] = (struct ibv_sge){.addr = 1, .length = UINT32_MAX};
  IS_ERROR(post_wr(end.qp, wr), EINVAL);
  /* What is in use is kept. */
  IS_ERROR(ibv_destroy_cq(end.cq), EBUSY);
  IS_ERROR(ibv_dealloc_pd(end.pd), EBUSY);
  CHECK(ibv_destroy_qp(end.qp) == 0 && ibv_destroy_cq(end.cq) == 0);
  IS_ERROR(ibv_dealloc_pd(end.pd), EBUSY); /* its memory */
  CHECK(ibv_dereg_mr(end.mr) == 0 && ibv_dealloc_pd(end.pd) == 0);
  free(end.memory);
  destroy_end(&other);
  passed("wrong order");
}

/* Each with a line that says why, once. */
static void refused_kinds(void) {
  static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
                                               IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV};
  struct end end = make_end(verbs, 64);
  const struct end other = join_with_new(&end);
  for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
    const struct ibv_send_wr wr = {.opcode = opcodes[i], .send_flags = IBV_SEND_SIGNALED};
    IS_ERROR(post_wr(end.qp, wr), EOPNOTSUPP);
  }
  struct ibv_qp_init_attr init = {.send_cq = end.cq, .recv_cq = end.cq};
  for (init.qp_type = IBV_QPT_UC; init.qp_type <= IBV_QPT_UD; init.qp_type++)
    NONE(ibv_create_qp(end.pd, &init), EOPNOTSUPP);
  struct ibv_qp_init_attr_ex ex = {
      .send_cq = end.cq,
      .recv_cq = end.cq,
      .qp_type = IBV_QPT_RC,
      .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
      .pd = end.pd,
      .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND};
  for (int i = 0; i < 2; i++)
    NONE(ibv_create_qp_ex(verbs, &ex), EOPNOTSUPP);
  NONE(ibv_create_srq(end.pd, &(struct ibv_srq_init_attr){.attr = {.max_wr = 1}}), EOPNOTSUPP);
  NONE(ibv_create_ah(end.pd, &(struct ibv_ah_attr){.port_num = 1}), EOPNOTSUPP);
  NONE(ibv_alloc_mw(end.pd, IBV_MW_TYPE_1), EOPNOTSUPP);
  destroy_end(&end);
  destroy_end(&other);
  passed("refused kinds");
}

/* A QP without room for inline data takes inline work requests without bytes. */
static void nothing_inline(void) {
  struct ibv_pd *pd = ibv_alloc_pd(verbs);
  struct ibv_cq *cq = ibv_create_cq(verbs, 4, NULL, NULL, 0);
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
  init.cap.max_send_wr = 2;
  init.cap.max_send_sge = 1;
  struct end end = {.pd = pd, .cq = cq, .qp = ibv_create_qp(pd, &init)};
  struct ibv_mr nothing = {0};
  CHECK(end.qp);
  end.mr = &nothing;
  const struct end other = join_with_new(&end);
  struct ibv_sge sge = {0};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
                           .sg_list = &sge,
                           .num_sge = 1};
  for (int i = 0; i < 2; i++)
    CHECK(post_wr(end.qp, wr) == 0);
  sge.length = 1;
  CHECK(modify(end.qp, IBV_QPS_ERR, 0) == 0);
  CHECK(poll_one(cq).status == IBV_WC_WR_FLUSH_ERR && poll_one(cq).qp_num == end.qp->qp_num);
  IS_ERROR(post_wr(end.qp, wr), EINVAL);
  CHECK(ibv_destroy_qp(end.qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
  destroy_end(&other);
  passed("nothing inline");
}

/* A CQ of EV events is none for work requests, and the other way round. */
static void wrong_cqs(void) {
  struct mrc_api_cq *cq = mrc_create_cq(context, 4, NULL, NULL, 0);
  struct mrc_api_cq *events = mrc_ctl_create_ev_event_cq(context, 4, NULL, NULL, 0);
  struct ibv_pd *pd = ibv_alloc_pd(verbs);
  struct mrc_api_ev_event event;
  struct ibv_wc wc;
  CHECK(cq && events && pd);
  IS_ERROR(mrc_ctl_poll_ev_event(cq, 1, &event), -EINVAL);
  FAILS(mrc_poll_cq(events, 1, &wc), EINVAL);
  struct mrc_api_qp_init init = {.send_cq = cq, .recv_cq = events, .pd = pd};
  NONE(mrc_create_qp(context, &init), EINVAL);
  init = (struct mrc_api_qp_init){.send_cq = events, .recv_cq = cq, .pd = pd};
  NONE(mrc_create_qp(context, &init), EINVAL);
  CHECK(mrc_destroy_cq(events) == 0 && mrc_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
  passed("wrong CQs");
}

/* Events of objects that are destroyed are not told any more. */
static void forgotten_events(void) {
  struct ibv_comp_channel *channel = ibv_create_comp_channel(verbs);
  struct ibv_async_event event;
  struct end end = make_end(verbs, 1);
  CHECK(modify(end.qp, IBV_QPS_INIT, TO_INIT) == 0);
  CHECK(receive_into(end.qp, 0) == 0 && receive_into(end.qp, 0) == 0);
  CHECK(modify(end.qp, IBV_QPS_ERR, 0) == 0); /* two completions in a CQ of one */
  CHECK(is_readable(verbs->async_fd));
  CHECK(ibv_destroy_qp(end.qp) == 0 && ibv_destroy_cq(end.cq) == 0);
  CHECK(!is_readable(verbs->async_fd));
  CHECK(fcntl(verbs->async_fd, F_SETFL, O_NONBLOCK) == 0);
  FAILS(ibv_get_async_event(verbs, &event), EAGAIN);
  CHECK(fcntl(verbs->async_fd, F_SETFL, 0) == 0);
  struct ibv_cq *cq = ibv_create_cq(verbs, 1, NULL, channel, 0);
  CHECK(channel && cq && ibv_req_notify_cq(cq, 0) == 0);
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
  init.cap.max_recv_wr = 1;
  struct ibv_qp *qp = ibv_create_qp(end.pd, &init);
  CHECK(qp && modify(qp, IBV_QPS_INIT, TO_INIT) == 0);
  CHECK(receive_into(qp, 0) == 0 && modify(qp, IBV_QPS_ERR, 0) == 0);
  CHECK(is_readable(channel->fd));
  CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
  CHECK(!is_readable(channel->fd));
  CHECK(ibv_destroy_comp_channel(channel) == 0);
  CHECK(ibv_dereg_mr(end.mr) == 0 && ibv_dealloc_pd(end.pd) == 0);
  free(end.memory);
  passed("forgotten events");
}

/* As for QPs: a CQ is kept until its events are acknowledged. */
static void *acknowledge(void *event) {
  ibv_ack_async_event(event);
  return NULL;
}

static void acknowledged_events(void) {
  struct ibv_async_event event;
  struct end end = make_end(verbs, 1);
  CHECK(modify(end.qp, IBV_QPS_INIT, TO_INIT) == 0);
  CHECK(receive_into(end.qp, 0) == 0 && receive_into(end.qp, 0) == 0);
  CHECK(modify(end.qp, IBV_QPS_ERR, 0) == 0);
  CHECK(ibv_get_async_event(verbs, &event) == 0 && event.event_type == IBV_EVENT_CQ_ERR);
  CHECK(event.element.cq == end.cq && ibv_destroy_qp(end.qp) == 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, acknowledge, &event) == 0);
  CHECK(ibv_destroy_cq(end.cq) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(ibv_dereg_mr(end.mr) == 0 && ibv_dealloc_pd(end.pd) == 0);
  free(end.memory);
  passed("acknowledged events");
}

/* Nobody is told what happens to the QPs of a context that is closed. */
static void closed_device(void) {
  struct ibv_context *other = open_first();
  struct end a = make_end(other, 64), b = make_end(verbs, 64);
  const struct place at_a = place_of(&a), at_b = place_of(&b);
  join_both(&a, &b);
  write_text(&a, &at_b, "connected");
  CHECK(ibv_close_device(other) == 0);
  CHECK(post(&b, &at_a, 1, b.mr->lkey, ~at_a.rkey, "x") == 0);
  CHECK(poll_one(b.cq).status == IBV_WC_REM_ACCESS_ERR);
  struct ibv_async_event event;
  CHECK(ibv_get_async_event(verbs, &event) == 0 && event.element.qp == b.qp);
  ibv_ack_async_event(&event);
  passed("closed device");
}

static int run_wrong(void) {
  verbs = open_first();
  context = mrc_create_context(verbs, NULL);
  CHECK(context);
  missing_arguments();
  strange_counts();
  wrong_order();
  refused_kinds();
  nothing_inline();
  wrong_cqs();
  forgotten_events();
  acknowledged_events();
  closed_device();
  CHECK(mrc_destroy_context(context) == 0 && ibv_close_device(verbs) == 0);
  return 0;
}

/* ======== As strict as a NIC ======== */

enum { PAGES = 4, UNKNOWN_QPN = 0xfffff0 };

static const int to_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

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
  struct end a = make_end(verbs, 16), b = make_end(verbs, 16);
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
  destroy_end(&a);
  destroy_end(&b);
  passed("masks");
}

/* Also of a QP to a number that none can have: the others of the program go on. */
static void values(void) {
  struct end a = make_end(verbs, 16), b = make_end(verbs, 16);
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
  destroy_end(&a);
  destroy_end(&b);
  passed("values");
}

/* As many QPs as the device says. */
static void fill_device(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
  struct ibv_device_attr attr;
  CHECK(ibv_query_device(verbs, &attr) == 0 && attr.max_qp > 0);
  struct ibv_qp **qps = calloc((size_t)attr.max_qp, sizeof(struct ibv_qp *));
  for (int i = 0; i < attr.max_qp; i++)
    CHECK((qps[i] = ibv_create_qp(pd, init)));
  NONE(ibv_create_qp(pd, init), ENOMEM);
  for (int i = 0; i < attr.max_qp; i++)
    CHECK(ibv_destroy_qp(qps[i]) == 0);
  free(qps);
}

static void capacities(void) {
  struct ibv_pd *pd = ibv_alloc_pd(verbs);
  struct ibv_cq *cq = ibv_create_cq(verbs, 4, NULL, NULL, 0);
  const struct ibv_qp_cap asked = {.max_send_wr = 2};
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC}, found;
  struct ibv_qp_init_attr_ex more = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd};
  struct ibv_qp_attr attr;
  more.comp_mask = IBV_QP_INIT_ATTR_PD;
  init.cap = more.cap = asked;
  struct ibv_qp *one = ibv_create_qp(pd, &init), *other = ibv_create_qp_ex(verbs, &more);
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
  struct ibv_pd *pd = ibv_alloc_pd(verbs);
  uint8_t *begin = map(bytes, PROT_READ | PROT_WRITE), *last = begin + bytes - page;
  begin[page - 1] = last[0] = 7;
  accepted(pd, begin, bytes, to_rights);
  CHECK(mprotect(last, page, PROT_READ) == 0);
  NONE(ibv_reg_mr(pd, begin, bytes, IBV_ACCESS_LOCAL_WRITE), EFAULT);
  NONE(ibv_reg_mr(pd, last, page, to_rights), EFAULT);
  NONE(ibv_reg_mr(pd, last - 1, 2, to_rights), EFAULT);
  accepted(pd, begin, bytes, 0);
  accepted(pd, begin, bytes, IBV_ACCESS_REMOTE_READ);
  accepted(pd, begin, bytes - page, to_rights);
  CHECK(munmap(begin + page, page) == 0);
  NONE(ibv_reg_mr(pd, begin, bytes, 0), EFAULT); /* a gap */
  accepted(pd, begin + 1, page - 1, to_rights);
  CHECK(begin[page - 1] == 7 && last[0] == 7); /* nothing was changed */
  CHECK(munmap(begin, bytes) == 0 && ibv_dealloc_pd(pd) == 0);
  passed("memory");
}

/* ---- Events ---- */

static void solicited(void) {
  struct ibv_comp_channel *channel = ibv_create_comp_channel(verbs);
  CHECK(channel);
  struct end a = make_end(verbs, 16), b = make_told(verbs, 4, channel);
  struct ibv_cq *told;
  const struct place to = place_of(&b);
  join_both(&a, &b);
  CHECK(receive_into(b.qp, 3) == 0 && ibv_req_notify_cq(b.cq, 1) == 0);
  struct ibv_send_wr wr = writing(NULL, 0, &to);
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.send_flags |= IBV_SEND_SOLICITED;
  CHECK(post_wr(a.qp, wr) == 0);
  void *cq_context;
  CHECK(ibv_get_cq_event(channel, &told, &cq_context) == 0 && told == b.cq);
  ibv_ack_cq_events(told, 1);
  CHECK(poll_one(told).wr_id == 3 && poll_one(a.cq).status == IBV_WC_SUCCESS);
  destroy_end(&a);
  destroy_end(&b);
  CHECK(ibv_destroy_comp_channel(channel) == 0);
  passed("solicited");
}

/* ---- Peers ---- */

/* A QP that has failed before it was connected is open to nobody. */
static void failed_early(void) {
  struct end a = make_end(verbs, 16), b = make_end(verbs, 16);
  const struct place at_a = place_of(&a), at_b = place_of(&b);
  join(&a, &at_b);
  CHECK(modify(a.qp, IBV_QPS_ERR, 0) == 0);
  join(&b, &at_a);
  CHECK(post(&b, &at_a, 7, b.mr->lkey, at_a.rkey, "nobody") == 0);
  CHECK(poll_one(b.cq).status == IBV_WC_RETRY_EXC_ERR);
  CHECK(a.memory[0] == 0);
  destroy_end(&a);
  destroy_end(&b);
  passed("failed early");
}

/* No program of this host has the number: the agent knows that, whichever end would dial. */
static void unknown_peers(void) {
  const uint32_t numbers[] = {3, UNKNOWN_QPN};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    struct end end = make_end(verbs, 16);
    struct place to = place_of(&end);
    to.qpn = numbers[i];
    struct ibv_qp_attr attr = attr_of(&to);
    attr.qp_state = IBV_QPS_INIT;
    CHECK(ibv_modify_qp(end.qp, &attr, TO_INIT) == 0);
    CHECK(receive_into(end.qp, 3) == 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(end.qp, &attr, TO_RTR) == 0);
    CHECK(poll_one(end.cq).status == IBV_WC_WR_FLUSH_ERR && end.qp->state == IBV_QPS_ERR);
    destroy_end(&end);
  }
  passed("unknown peers");
}

static int run_strict(int argc, char **argv) {
  verbs = open_first();
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
  CHECK(ibv_close_device(verbs) == 0);
  return 0;
}

int main(int argc, char **argv) { return argc > 1 ? run_strict(argc - 1, argv + 1) : run_wrong(); }
