/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes that use all data functions of MRC's C interface, over loopback. Prints the name of
   each part as it passes; the first check that fails ends it with its line. */
#include "pair.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/wait.h>

#include "verbs/mrc_api.h"

enum { BYTES = 1 << 20, DEPTH = 64, GID_INDEX = 3, IMMEDIATE = 0x12345678, REPLY = 0x87654321 };

static int other; /* socket to the other end */
static struct ibv_context *verbs;
static struct mrc_api_context *context;
static struct mrc_api_channel *channel;
static struct mrc_api_cq *sends, *receives;
static struct mrc_api_qp *qp;
static struct mrc_api_qp_hint *hint;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *memory;
static struct place ours, theirs;

static void meet(void) { swap_places(other, &ours); }

static uint8_t pattern(uint32_t at) { return (uint8_t)(at * 2654435761u >> 13); }

static void open_device(void) {
  int supported = 0;
  verbs = open_first();
  CHECK(strcmp(ibv_get_device_name(verbs->device), "mrc0") == 0);
  struct mrc_api_device_attr attr;
  CHECK(mrc_query_device(verbs, &attr, &supported) == 0 && supported);
  CHECK(attr.protocols == 1 && attr.max_wimm == 1024 && attr.max_mpr == 32);
  CHECK(mrc_query_device(NULL, &attr, &supported) == -1 && errno == EINVAL);
  uint32_t current, oldest, vendor, oldest_vendor;
  mrc_query_version(&current, &oldest, &vendor, &oldest_vendor);
  CHECK(current == MRC_API_VERSION(1, 0, 1) && oldest <= current);
  context = mrc_create_context(verbs, &(struct mrc_api_context_attr){.version = 1});
  CHECK(context);
  CHECK(mrc_query_device_ex(verbs, context, &attr, &supported) == 0 && supported);
  pd = ibv_alloc_pd(verbs);
  memory = calloc(1, BYTES);
  CHECK(pd && memory);
  mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(mr);
}

static void use_hints(void) {
  struct mrc_api_qp_hint_init init = {.attr = {.qps_per_peer = 3, .send_peers = 5}};
  struct mrc_api_qp_hint_attr attr = {0};
  hint = mrc_create_qp_hint(context, &init);
  CHECK(hint);
  CHECK(mrc_query_qp_hint(hint, &attr, MRC_API_HINT_QPS_PER_PEER) == 0);
  CHECK(attr.qps_per_peer == 3 && attr.send_peers == 0);
  attr.send_peers = 7;
  CHECK(mrc_modify_qp_hint(hint, &attr, MRC_API_HINT_SEND_PEERS) == 0);
  CHECK(mrc_query_qp_hint(hint, &attr, 7) == 0 && attr.send_peers == 7);
  CHECK(mrc_query_qp_hint(hint, &attr, 64) == -1 && errno == EINVAL);
}

static void create_qp(void) {
  int fd = -1;
  CHECK(mrc_create_comp_channel(context, &channel) == 0);
  CHECK(mrc_get_comp_channel_fd(channel, &fd) == 0 && fd >= 0);
  sends = mrc_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
  receives = mrc_create_cq(context, 2 * DEPTH, &receives, channel, 0);
  CHECK(sends && receives);
  CHECK(!mrc_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
  struct mrc_api_qp_init init = {.send_cq = sends,
                                 .recv_cq = receives,
                                 .cap = {.max_send_wr = DEPTH,
                                         .max_recv_wr = DEPTH,
                                         .max_send_sge = 1,
                                         .max_recv_sge = 1,
                                         .max_inline_data = 32},
                                 .pd = pd};
  qp = mrc_create_qp(context, &init);
  CHECK(qp);
  CHECK(mrc_get_qpn(qp, &ours.qpn) == 0 && ours.qpn > 0 && ours.qpn < 1 << 24);
  ours.rkey = mr->rkey;
  ours.va = (uintptr_t)memory;
  CHECK(ibv_query_gid(verbs, 1, GID_INDEX, &ours.gid) == 0);
  theirs = swap_places(other, &ours);
}

static void connect_qp(void) {
  struct ibv_qp_attr init = {
      .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  struct mrc_api_qp_attr api = {.hint = hint, .max_wimm_dest = 32, .mpr_dest = 8};
  const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  const int dest = MRC_API_QP_HINT | MRC_API_QP_MAX_WIMM_DEST | MRC_API_QP_MPR_DEST;
  CHECK(mrc_modify_qp(qp, &init, mask, &api, 1 << 20) == EINVAL);
  CHECK(mrc_modify_qp(qp, &init, mask, &api, dest) == 0);
  CHECK(mrc_destroy_qp_hint(hint) == -1 && errno == EBUSY);
  struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
                            .path_mtu = IBV_MTU_4096,
                            .dest_qp_num = theirs.qpn,
                            .rq_psn = 17,
                            .ah_attr = {.is_global = 1, .port_num = 1}};
  rtr.ah_attr.grh.dgid = theirs.gid;
  rtr.ah_attr.grh.sgid_index = GID_INDEX;
  const int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  CHECK(mrc_modify_qp(qp, &rtr, to_rtr, NULL, 0) == 0);
  /* Values outside of verbs' ranges, as published programs pass them. */
  struct ibv_qp_attr rts = {
      .qp_state = IBV_QPS_RTS, .sq_psn = 17, .retry_cnt = 14, .rnr_retry = 14, .timeout = 7};
  const int to_rts =
      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT;
  CHECK(mrc_modify_qp(qp, &rts, to_rts, NULL, 0) == 0);
  struct ibv_qp_attr attr;
  struct mrc_api_qp_init created;
  CHECK(mrc_query_qp(qp, &attr, IBV_QP_STATE, &api, dest, &created) == 0);
  CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == theirs.qpn && attr.sq_psn == 17);
  CHECK(api.hint == hint && api.max_wimm_dest == 32 && api.mpr_dest == 8);
  CHECK(created.pd == pd && created.send_cq == sends && created.cap.max_send_wr == DEPTH);
}

static struct ibv_wc poll_api(struct mrc_api_cq *cq) {
  struct ibv_wc wc;
  int n;
  while ((n = mrc_poll_cq(cq, 1, &wc)) == 0)
    ;
  CHECK(n == 1);
  return wc;
}

/* Fills all of the peer's memory by lists of WRITEs of many sizes, one of 8 signaled. */
static void write_all(void) {
  for (uint32_t i = 0; i < BYTES; i++)
    memory[i] = pattern(i);
  uint32_t at = 0, n = 0, signaled = 0;
  while (at < BYTES) {
    struct ibv_sge sges[8];
    struct ibv_send_wr wrs[8] = {0}, *bad;
    int last = 0;
    for (int i = 0; i < 8 && at < BYTES; i++, n++) {
      uint32_t bytes = 1 + (n * 7919u) % 20000u;
      if (bytes > BYTES - at) bytes = BYTES - at;
      sges[i] = (struct ibv_sge){.addr = ours.va + at, .length = bytes, .lkey = mr->lkey};
      wrs[i] = writing(&sges[i], 1, &theirs);
      wrs[i].wr_id = n;
      wrs[i].send_flags = 0;
      wrs[i].wr.rdma.remote_addr += at;
      if (i > 0) wrs[i - 1].next = &wrs[i];
      at += bytes;
      last = i;
    }
    wrs[last].send_flags = IBV_SEND_SIGNALED;
    CHECK(mrc_post_send(qp, wrs, &bad) == 0);
    signaled++;
    const struct ibv_wc wc = poll_api(sends);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == n - 1 && wc.opcode == IBV_WC_RDMA_WRITE);
  }
  CHECK(signaled > 8);
}

static void send_immediate(uint32_t immediate, const void *data, uint32_t bytes) {
  struct ibv_sge sge = {.addr = (uintptr_t)data, .length = bytes};
  struct ibv_send_wr *bad, wr = writing(&sge, 1, &theirs);
  wr.wr_id = immediate;
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.send_flags |= IBV_SEND_INLINE;
  wr.imm_data = htonl(immediate);
  CHECK(mrc_post_send(qp, &wr, &bad) == 0);
  const struct ibv_wc wc = poll_api(sends);
  CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == immediate);
}

static void post_receive(uint64_t id) {
  struct ibv_recv_wr *bad, wr = {.wr_id = id};
  CHECK(mrc_post_recv(qp, &wr, &bad) == 0);
}

static void take_immediate(uint32_t immediate, uint32_t bytes) {
  const struct ibv_wc wc = poll_api(receives);
  CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(ntohl(wc.imm_data) == immediate && wc.byte_len == bytes && wc.wc_flags & IBV_WC_WITH_IMM);
  CHECK(wc.qp_num == ours.qpn);
}

/* The server sleeps on the channel until the immediate comes. */
static void sleep_until_told(void) {
  struct mrc_api_cq *told;
  void *cq_context;
  int fd;
  CHECK(mrc_req_notify_cq(receives, 0) == 0);
  meet();
  mrc_get_comp_channel_fd(channel, &fd);
  CHECK(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1) == 1);
  CHECK(mrc_get_cq_event(channel, &told, &cq_context) == 0);
  CHECK(told == receives && cq_context == &receives);
  mrc_ack_cq_events(told, 1);
}

static void serve(void) {
  post_receive(1);
  sleep_until_told();
  take_immediate(IMMEDIATE, 4);
  for (uint32_t i = 4; i < BYTES; i++)
    CHECK(memory[i] == pattern(i));
  CHECK(memcmp(memory, "done", 4) == 0);
  puts("content");
  send_immediate(REPLY, "", 0);
}

static void ask(void) {
  meet();
  write_all();
  send_immediate(IMMEDIATE, "done", 4);
  post_receive(2);
  take_immediate(REPLY, 0);
  puts("immediates");
}

/* A write with a key of nobody: an error completion, the rest flushed, an event. */
static void break_qp(void) {
  struct ibv_sge sge = {.addr = ours.va, .length = 8, .lkey = mr->lkey};
  struct ibv_send_wr *bad, wr = writing(&sge, 1, &theirs);
  wr.wr_id = 99;
  wr.wr.rdma.rkey = ~theirs.rkey;
  CHECK(mrc_post_send(qp, &wr, &bad) == 0);
  struct ibv_wc wc = poll_api(sends);
  CHECK(wc.wr_id == 99 && wc.status == IBV_WC_REM_ACCESS_ERR);
  struct mrc_api_async_event event;
  CHECK(mrc_get_async_event(context, &event) == 0);
  CHECK(event.type == IBV_EVENT_QP_FATAL && event.element.qp == qp);
  mrc_ack_async_event(&event);
  wr.wr_id = 100;
  CHECK(mrc_post_send(qp, &wr, &bad) == 0);
  wc = poll_api(sends);
  CHECK(wc.wr_id == 100 && wc.status == IBV_WC_WR_FLUSH_ERR);
  puts("errors");
}

static void clean_up(void) {
  CHECK(mrc_destroy_cq(sends) == EBUSY);
  CHECK(mrc_destroy_qp(qp) == 0);
  CHECK(mrc_destroy_qp_hint(hint) == 0);
  CHECK(mrc_destroy_cq(sends) == 0 && mrc_destroy_cq(receives) == 0);
  CHECK(mrc_destroy_comp_channel(channel) == 0);
  CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
  CHECK(mrc_destroy_context(context) == 0);
  CHECK(ibv_close_device(verbs) == 0);
}

int main(void) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  other = ends[child ? 0 : 1];
  close(ends[child ? 1 : 0]);
  open_device();
  use_hints();
  create_qp();
  connect_qp();
  if (child)
    ask();
  else
    serve();
  meet();
  if (child) break_qp();
  meet();
  clean_up();
  if (!child) return 0;
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  puts("done");
  return 0;
}
