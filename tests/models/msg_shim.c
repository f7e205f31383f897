/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between hosts as plain functions, for the model in Python. The writes of each QP are
 * delivered and completed one at a time. cffi reads the text between the two markers.
 */
#include <stdbool.h>
#include <stdint.h>

#include "msg_wire.h"

/* cdef begin */
struct shim_operation {
  uint64_t cookie, address, bytes, tag, ignore;
  uint32_t space;
  int peer; /* a host; RECV: -1 for any */
  bool receives, exact;
  bool reads; /* at `tag` of what the peer shows: bytes that are their number modulo 251 */
};
struct shim_ended {
  uint64_t cookie, bytes, tag;
  int result, peer;
};
struct shim_left {
  uint32_t operations;
  int regions; /* beside the inboxes, the outboxes and what is shown */
  uint64_t heap_bytes;
};
/* Every two hosts are joined. */
void shim_msg_start(int hosts, uint32_t eager_bytes, uint32_t heap_bytes, uint32_t depth);
void shim_msg_stop(void);
int shim_msg_post(int host, const struct shim_operation *operation);
int shim_msg_cancel(int host, uint32_t space, uint64_t cookie);
bool shim_msg_deliver(int from, int to);
bool shim_msg_complete(int from, int to);
void shim_msg_turn(int host);
void shim_msg_run(void);
void shim_msg_refuse(int host, int posts); /* the engine has no room for so many posts */
void shim_msg_fail(int one, int other);
int shim_msg_ended(int host, struct shim_ended *ended, int capacity);
bool shim_msg_is_stalled(int host);
struct shim_left shim_msg_left(int host);
/* cdef end */

enum { SHOWN_KEY = 1 };

static int hosts;
static uint8_t shown[4096];

static struct wire_qp *qp_to(int from, int to) {
  return &wire[from].qps[to < from ? to : to - 1]; /* joined in this order */
}

static int host_of(int at, uint32_t number) {
  for (int to = 0; to < hosts; to++)
    if (to != at && qp_to(at, to)->number == number) return to;
  return -1;
}

static void show(int host, const struct mrc_msg_config *config) {
  for (size_t i = 0; i < sizeof shown; i++)
    shown[i] = (uint8_t)(i % 251);
  wire_start(host, config);
  const uint32_t access = MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_READ;
  const int error = mrc_mr_register((mrc_engine *)&wire[host], (uintptr_t)shown, sizeof shown,
                                    SHOWN_KEY, access, 0);
  mrc_assert(error == 0);
}

void shim_msg_start(int n, uint32_t eager_bytes, uint32_t heap_bytes, uint32_t depth) {
  const struct mrc_msg_config config = {.eager_bytes = eager_bytes, .heap_bytes = heap_bytes};
  const struct mrc_msg_limits limits = {.sq_depth = depth, .max_wimm = depth / 4};
  hosts = n;
  for (int i = 0; i < hosts; i++)
    show(i, &config);
  for (int one = 0; one < hosts; one++)
    for (int other = one + 1; other < hosts; other++) {
      wire_join(one, other, &limits);
      mrc_assert(qp_to(one, other)->peer == qp_to(other, one));
    }
}

void shim_msg_stop(void) {
  for (int i = 0; i < hosts; i++) {
    const int error = mrc_mr_deregister((mrc_engine *)&wire[i], SHOWN_KEY);
    mrc_assert(error == 0);
  }
  wire_stop();
}

int shim_msg_post(int host, const struct shim_operation *operation) {
  struct mrc_msg_post post = {
      .cookie = operation->cookie,
      .address = operation->address,
      .bytes = operation->bytes,
      .tag = operation->tag,
      .ignore = operation->ignore,
      .space = operation->space,
      .peer = operation->peer < 0 ? MRC_MSG_ANY : qp_to(host, operation->peer)->number,
      .kind = operation->receives ? MRC_MSG_RECV : MRC_MSG_SEND,
      .exact = operation->exact};
  if (operation->reads) {
    post.kind = MRC_MSG_READ;
    post.tag = (uintptr_t)shown + operation->tag;
    post.ignore = SHOWN_KEY;
  }
  return mrc_msg_post(wire[host].msg, &post, 1, 1);
}

int shim_msg_cancel(int host, uint32_t space, uint64_t cookie) {
  return mrc_msg_cancel(wire[host].msg, space, cookie);
}

bool shim_msg_deliver(int from, int to) { return wire_deliver(qp_to(from, to)); }

bool shim_msg_complete(int from, int to) { return wire_complete(qp_to(from, to)); }

void shim_msg_turn(int host) { wire_turn(&wire[host]); }

void shim_msg_run(void) { wire_run(); }

void shim_msg_refuse(int host, int posts) { wire[host].refuse = posts; }

void shim_msg_fail(int one, int other) {
  struct wire_qp *qp = qp_to(one, other);
  for (int i = 0; i < 2; i++, qp = qp->peer) {
    if (!qp->failed) wire_fail(qp, MRC_WC_RETRY_EXC_ERR);
    mrc_msg_fail(qp->host->msg, qp->number, -ECONNRESET, 1);
  }
}

int shim_msg_ended(int at, struct shim_ended *ended, int capacity) {
  struct wire_host *host = &wire[at];
  const int n = host->n_done;
  mrc_assert(n <= capacity);
  for (int i = 0; i < n; i++)
    ended[i] = (struct shim_ended){.cookie = host->done[i].cookie,
                                   .bytes = host->done[i].bytes,
                                   .tag = host->done[i].tag,
                                   .result = host->done[i].result,
                                   .peer = host_of(at, host->done[i].peer)};
  host->n_done = 0;
  return n;
}

bool shim_msg_is_stalled(int host) { return !mrc_list_is_empty(&wire[host].msg->stalled); }

struct shim_left shim_msg_left(int at) {
  const struct wire_host *host = &wire[at];
  struct shim_left left = {.operations = host->msg->n_ops,
                           .regions = host->n_mrs - 2 * host->n_qps - 1};
  for (int i = 0; i < host->n_qps; i++)
    left.heap_bytes += host->msg->peers[host->qps[i].number]->heap;
  return left;
}
