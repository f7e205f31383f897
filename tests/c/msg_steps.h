/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives of two or three hosts on msg_wire.h, in one source and one target memory. */
#pragma once

#include "check.h"
#include "msg/msg.h"
#include "msg_wire.h"

enum { EAGER = 256, SPACE = 7, BIG = 3 << 20, MOST = 4 << 20 };

static uint8_t source[MOST], target[MOST];
static const struct mrc_msg_limits limits = {.sq_depth = 64, .max_wimm = 16};

static inline void start(int hosts, const struct mrc_msg_config *config) {
  memset(wire, 0, sizeof wire);
  memset(target, 0, sizeof target);
  for (size_t i = sizeof source; source[0] == 0 && i-- > 0;) /* only once */
    source[i] = (uint8_t)(i * 31 + i / 256 + 1);
  for (int i = 0; i < hosts; i++)
    wire_start(i, config);
}

/* Two joined hosts. */
static inline struct wire_qp *start_pair(void) {
  start(2, &(struct mrc_msg_config){.eager_bytes = EAGER});
  return wire_join(0, 1, &limits);
}

/* A host whose peer is the test. */
static inline struct wire_qp *start_alone(void) {
  struct mrc_msg_inbox inbox;
  start(1, &(struct mrc_msg_config){.eager_bytes = EAGER});
  struct wire_qp *qp = wire_open(0, &limits, &inbox);
  CHECK_EQ(mrc_msg_connect(wire[0].msg, qp->number, &inbox), 0);
  return qp;
}

/* The peer's next frame has `n` records like this one. */
static inline void say(struct wire_qp *qp, const struct mrc_msg_record *record, int n) {
  wire_records(qp, *record, (uint32_t)n, false);
  wire_turn(&wire[0]);
}

/* An operation in SPACE. */
static inline struct mrc_msg_post post_of(int kind, uint64_t cookie, uint64_t tag,
                                          const void *memory, uint64_t bytes) {
  return (struct mrc_msg_post){.kind = (uint8_t)kind,
                               .cookie = cookie,
                               .tag = tag,
                               .address = (uintptr_t)memory,
                               .bytes = bytes,
                               .space = SPACE};
}

static inline void post(int host, struct mrc_msg_post each) {
  CHECK_EQ(wire_post(&wire[host], &each), 1);
}

static inline void send(int host, uint64_t cookie, uint64_t tag, uint64_t bytes) {
  post(host, post_of(MRC_MSG_SEND, cookie, tag, source, bytes));
}

static inline void receive(int host, uint64_t cookie, uint64_t tag, uint64_t room, bool exact) {
  struct mrc_msg_post each = post_of(MRC_MSG_RECV, cookie, tag, target, room);
  each.exact = exact;
  post(host, each);
}

static inline void receive_any(int host, uint64_t cookie, uint64_t tag, uint64_t ignore,
                               uint64_t room) {
  struct mrc_msg_post each = post_of(MRC_MSG_RECV, cookie, tag, target, room);
  each.ignore = ignore;
  each.peer = MRC_MSG_ANY;
  post(host, each);
}

static inline void check_ended(int host, uint64_t cookie, int result, uint64_t bytes) {
  const struct mrc_msg_done *done = wire_ended(&wire[host], cookie);
  CHECK(done != NULL);
  if (done == NULL) return;
  CHECK_EQ(done->result, result);
  CHECK_EQ(done->bytes, bytes);
}

static inline void check_pending(int host, uint64_t cookie) {
  CHECK(wire_ended(&wire[host], cookie) == NULL);
}

static inline uint64_t violations(void) { return wire[0].msg->counters.violations; }

/* Nothing is left behind: no operation, no memory region but the rings, nothing in a heap. */
static inline void check_clean(int hosts) {
  for (int i = 0; i < hosts; i++) {
    CHECK_EQ(wire[i].msg->n_ops, 0);
    CHECK_EQ(wire[i].n_mrs, 2 * wire[i].n_qps);
    for (int k = 0; k < wire[i].n_qps; k++)
      CHECK_EQ(wire[i].msg->peers[wire[i].qps[k].number]->heap, 0);
  }
  wire_stop();
}
