/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts whose messages (csrc/msg) travel over QPs that do what a test tells them: each write is
 * delivered, and completed, when the test says so. These functions replace the engine's, and assert
 * that its limits are kept: registered memory, work requests and immediates in flight. One program
 * includes this header once.
 */
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "msg/msg.h"
#include "msg/operations.h"

enum {
  WIRE_HOSTS = 3,
  WIRE_QPS = 3,    /* of a host */
  WIRE_MRS = 512,  /* of a host */
  WIRE_WRS = 256,  /* of a QP, a power of two */
  WIRE_WCS = 4096, /* of a host, a power of two */
  WIRE_DONE = 8192 /* ended operations that a test has not read */
};

struct wire_mr {
  uint64_t address, bytes;
  uint32_t key, access; /* access 0: free */
};

struct wire_qp {
  struct wire_host *host;
  struct wire_qp *peer; /* NULL: the test is the peer */
  uint32_t qpn;
  uint32_t number; /* of the peer at this host */
  struct mrc_msg_limits limits;
  bool failed;
  struct mrc_wr wrs[WIRE_WRS];
  uint32_t posted, delivered, completed; /* work requests, free-running */
  uint32_t polled;
  uint32_t imms; /* posted and not completed */
  uint64_t received;
};

struct wire_host {
  struct mrc_msg *msg;
  struct wire_mr mrs[WIRE_MRS];
  int n_mrs;
  int max_mrs;
  struct wire_qp qps[WIRE_QPS];
  int n_qps;
  struct mrc_wc wcs[WIRE_WCS];
  uint32_t wc_head, wc_tail;
  struct mrc_msg_done done[WIRE_DONE];
  int n_done;
  int refuse;   /* posts that the engine refuses for lack of room */
  bool no_copy; /* only frames from here change memory */
};

static struct wire_host wire[WIRE_HOSTS];

/* ---- the engine's functions ---- */

static struct wire_host *wire_of(mrc_engine *engine) { return (struct wire_host *)engine; }

static struct wire_qp *wire_qp_of(struct wire_host *host, uint32_t qpn) {
  for (int i = 0; i < host->n_qps; i++)
    if (host->qps[i].qpn == qpn) return &host->qps[i];
  return NULL;
}

static struct wire_mr *wire_find(struct wire_host *host, uint32_t key) {
  for (int i = 0; i < WIRE_MRS; i++)
    if (host->mrs[i].access != 0 && host->mrs[i].key == key) return &host->mrs[i];
  return NULL;
}

static bool wire_may(struct wire_host *host, uint32_t key, uint64_t address, uint64_t bytes,
                     uint32_t access) {
  const struct wire_mr *mr = wire_find(host, key);
  if (mr == NULL || (mr->access & access) != access) return false;
  return address >= mr->address && bytes <= mr->bytes && address - mr->address <= mr->bytes - bytes;
}

int mrc_mr_register(mrc_engine *engine, uint64_t address, uint64_t bytes, uint32_t key,
                    uint32_t access, uint32_t domain) {
  (void)domain;
  struct wire_host *host = wire_of(engine);
  if (address == 0 || bytes == 0 || address + bytes < address) return -EINVAL;
  if (host->n_mrs == host->max_mrs) return -ENOSPC;
  if (wire_find(host, key) != NULL) return -EEXIST;
  struct wire_mr *mr = host->mrs;
  while (mr->access != 0)
    mr++;
  *mr = (struct wire_mr){.address = address, .bytes = bytes, .key = key, .access = access};
  host->n_mrs++;
  return 0;
}

int mrc_mr_deregister(mrc_engine *engine, uint32_t key) {
  struct wire_host *host = wire_of(engine);
  struct wire_mr *mr = wire_find(host, key);
  if (mr == NULL) return -ENOENT;
  for (int i = 0; i < host->n_qps; i++) {
    const struct wire_qp *qp = &host->qps[i];
    for (uint32_t n = qp->completed; n != qp->posted; n++)
      if (qp->wrs[n % WIRE_WRS].bytes > 0 && qp->wrs[n % WIRE_WRS].lkey == key) return -EBUSY;
  }
  *mr = (struct wire_mr){0};
  host->n_mrs--;
  return 0;
}

bool mrc_qp_may_reach(mrc_engine *engine, uint32_t qpn, uint32_t key, uint64_t address,
                      uint64_t bytes, uint32_t access) {
  (void)qpn;
  return wire_may(wire_of(engine), key, address, bytes, access);
}

int mrc_qp_post(mrc_engine *engine, uint32_t qpn, const struct mrc_wr *wr, uint32_t n,
                uint64_t now_ns) {
  (void)now_ns;
  struct wire_host *host = wire_of(engine);
  struct wire_qp *qp = wire_qp_of(host, qpn);
  mrc_assert(n == 1 && qp != NULL);
  if (qp->failed) return -EPERM;
  if (host->refuse > 0) {
    host->refuse--;
    return -ENOBUFS;
  }
  const bool imm = wr->opcode == MRC_WR_WRITE_IMM;
  mrc_assert(qp->posted - qp->polled < qp->limits.sq_depth);
  mrc_assert(!imm || qp->imms < qp->limits.max_wimm);
  mrc_assert(imm || wr->bytes > 0);
  mrc_assert(wr->bytes == 0 ||
             wire_may(host, wr->lkey, wr->local, wr->bytes, MRC_ACCESS_LOCAL_READ));
  qp->wrs[qp->posted++ % WIRE_WRS] = *wr;
  qp->imms += imm;
  return 0;
}

static void wire_push(struct wire_host *host, struct mrc_wc wc) {
  mrc_assert(host->wc_tail - host->wc_head < WIRE_WCS);
  host->wcs[host->wc_tail++ % WIRE_WCS] = wc;
}

static void wire_end_oldest(struct wire_qp *qp, uint8_t status) {
  const struct mrc_wr *wr = &qp->wrs[qp->completed++ % WIRE_WRS];
  const bool imm = wr->opcode == MRC_WR_WRITE_IMM;
  qp->imms -= imm;
  wire_push(qp->host, (struct mrc_wc){.wr_id = wr->wr_id,
                                      .qpn = qp->qpn,
                                      .bytes = wr->bytes,
                                      .status = status,
                                      .opcode = imm ? MRC_WC_WRITE_IMM : MRC_WC_WRITE});
}

/* The QP ends: the oldest work request with `status`, the others are flushed. */
static void wire_fail(struct wire_qp *qp, uint8_t status) {
  qp->failed = true;
  for (; qp->completed != qp->posted; status = MRC_WC_WR_FLUSH_ERR)
    wire_end_oldest(qp, status);
  qp->delivered = qp->posted;
}

int mrc_qp_modify(mrc_engine *engine, uint32_t qpn, uint32_t state,
                  const struct mrc_qp_rtr_attr *rtr, const struct mrc_qp_rts_attr *rts,
                  uint64_t now_ns) {
  (void)rtr;
  (void)rts;
  (void)now_ns;
  struct wire_qp *qp = wire_qp_of(wire_of(engine), qpn);
  mrc_assert(qp != NULL && state == MRC_QP_ERROR);
  if (!qp->failed) wire_fail(qp, MRC_WC_WR_FLUSH_ERR);
  return 0;
}

/* ---- what the test does ---- */

static void wire_done(void *user, const struct mrc_msg_done *done) {
  struct wire_host *host = user;
  mrc_assert(host->n_done < WIRE_DONE);
  host->done[host->n_done++] = *done;
}

/* `config` without engine, seed and callback. */
static void wire_start(int index, const struct mrc_msg_config *config) {
  struct wire_host *host = &wire[index];
  struct mrc_msg_config own = *config;
  *host = (struct wire_host){.max_mrs = WIRE_MRS};
  own.engine = (mrc_engine *)host;
  own.seed[0] = (uint64_t)index;
  own.done = wire_done;
  own.user = host;
  host->msg = mrc_msg_new(&own);
  mrc_assert(host->msg != NULL);
}

/* A QP of a host, whose peer is the test until it is joined. */
static inline struct wire_qp *wire_open(int index, const struct mrc_msg_limits *limits,
                                        struct mrc_msg_inbox *inbox) {
  struct wire_host *host = &wire[index];
  struct wire_qp *qp = &host->qps[host->n_qps];
  mrc_assert(host->n_qps < WIRE_QPS && limits->sq_depth <= WIRE_WRS);
  *qp = (struct wire_qp){.host = host,
                         .qpn = 0x100u * (uint32_t)(index + 1) + (uint32_t)host->n_qps,
                         .limits = *limits};
  host->n_qps++;
  const int number = mrc_msg_open(host->msg, qp->qpn, limits, inbox);
  mrc_assert(number >= 0);
  qp->number = (uint32_t)number;
  return qp;
}

/* Joins two hosts; returns the QP of the first. */
static inline struct wire_qp *wire_join(int one, int other, const struct mrc_msg_limits *limits) {
  struct mrc_msg_inbox at_one, at_other;
  struct wire_qp *a = wire_open(one, limits, &at_one), *b = wire_open(other, limits, &at_other);
  a->peer = b;
  b->peer = a;
  mrc_assert(mrc_msg_connect(a->host->msg, a->number, &at_other) == 0);
  mrc_assert(mrc_msg_connect(b->host->msg, b->number, &at_one) == 0);
  return a;
}

/* Takes completions, and posts. */
static void wire_turn(struct wire_host *host) {
  while (host->wc_head != host->wc_tail) {
    const struct mrc_wc wc = host->wcs[host->wc_head++ % WIRE_WCS];
    if (wc.opcode != MRC_WC_RECV_IMM) wire_qp_of(host, wc.qpn)->polled++;
    mrc_msg_take(host->msg, &wc, 1);
  }
  mrc_msg_pump(host->msg, 1);
}

/* The peer's immediate arrives. */
static void wire_immediate(struct wire_qp *qp, uint32_t imm, uint32_t bytes) {
  if (qp->failed) return;
  wire_push(qp->host, (struct mrc_wc){.wr_id = qp->received++,
                                      .qpn = qp->qpn,
                                      .imm = imm,
                                      .bytes = bytes,
                                      .opcode = MRC_WC_RECV_IMM});
}

/* Where the peer's next frame goes. */
static inline uint8_t *wire_next_frame(const struct wire_qp *qp) {
  const struct mrc_msg_peer *peer = qp->host->msg->peers[qp->number];
  return peer->inbox + mrc_slots_place(&peer->slots, peer->slots.arrived);
}

/* It has come, with so many bytes. */
static inline void wire_frame(struct wire_qp *qp, uint32_t bytes) {
  const struct mrc_msg_peer *peer = qp->host->msg->peers[qp->number];
  wire_immediate(qp, mrc_imm(MRC_MSG_IMM_FRAME, peer->slots.arrived), bytes);
}

/* The peer's next frame has n records like this one, whose ids, and tags if it has one, rise. */
static inline void wire_records(struct wire_qp *qp, struct mrc_msg_record record, uint32_t n,
                                bool rise) {
  uint8_t *frame = wire_next_frame(qp);
  uint32_t bytes = MRC_MSG_FRAME_HEADER;
  memset(frame, 0, MRC_MSG_FRAME_HEADER);
  for (uint32_t i = 0; i < n; i++, record.id += rise, record.tag += rise)
    bytes += (uint32_t)mrc_msg_encode(&record, frame + bytes);
  wire_frame(qp, bytes);
}

/* The next write arrives. False if there is none, or the peer is gone. */
static bool wire_deliver(struct wire_qp *qp) {
  if (qp->failed || qp->delivered == qp->posted) return false;
  struct wire_qp *peer = qp->peer;
  const struct mrc_wr *wr = &qp->wrs[qp->delivered % WIRE_WRS];
  if (peer != NULL && peer->failed) return false;
  if (peer != NULL && wr->bytes > 0) {
    if (!wire_may(peer->host, wr->rkey, wr->va, wr->bytes, MRC_ACCESS_REMOTE_WRITE)) {
      wire_fail(qp, MRC_WC_REM_ACCESS_ERR);
      return true;
    }
    const bool frame = wr->opcode == MRC_WR_WRITE_IMM && wr->imm >> 30 == MRC_MSG_IMM_FRAME;
    if (frame || !qp->host->no_copy)
      memcpy((void *)(uintptr_t)wr->va, (const void *)(uintptr_t)wr->local, wr->bytes);
  }
  qp->delivered++;
  if (peer != NULL && wr->opcode == MRC_WR_WRITE_IMM) wire_immediate(peer, wr->imm, wr->bytes);
  return true;
}

/* The oldest write is acknowledged. False if none has been delivered. */
static bool wire_complete(struct wire_qp *qp) {
  if (qp->failed || qp->completed == qp->delivered) return false;
  wire_end_oldest(qp, MRC_WC_SUCCESS);
  return true;
}

/* Delivers and completes everything, until nothing changes. */
static inline void wire_run(void) {
  bool changed = true;
  while (changed) {
    changed = false;
    for (int h = 0; h < WIRE_HOSTS; h++) {
      struct wire_host *host = &wire[h];
      if (host->msg == NULL) continue;
      wire_turn(host);
      for (int i = 0; i < host->n_qps; i++) {
        while (wire_deliver(&host->qps[i]))
          changed = true;
        while (wire_complete(&host->qps[i]))
          changed = true;
      }
      changed |= host->wc_head != host->wc_tail;
    }
  }
}

static void wire_stop(void) {
  for (int h = 0; h < WIRE_HOSTS; h++) {
    struct wire_host *host = &wire[h];
    if (host->msg == NULL) continue;
    for (int i = 0; i < host->n_qps; i++)
      if (!host->qps[i].failed) wire_fail(&host->qps[i], MRC_WC_WR_FLUSH_ERR);
    mrc_msg_free(host->msg);
    mrc_assert(host->n_mrs == 0);
    host->msg = NULL;
  }
}

/* ---- operations ---- */

static inline int wire_post(struct wire_host *host, const struct mrc_msg_post *post) {
  const int taken = mrc_msg_post(host->msg, post, 1, 1);
  mrc_msg_pump(host->msg, 1);
  return taken;
}

/* The completion with this cookie; NULL if there is none yet. */
static inline const struct mrc_msg_done *wire_ended(const struct wire_host *host, uint64_t cookie) {
  const struct mrc_msg_done *found = NULL;
  for (int i = 0; i < host->n_done; i++) {
    if (host->done[i].cookie != cookie) continue;
    mrc_assert(found == NULL); /* an operation ends once */
    found = &host->done[i];
  }
  return found;
}
