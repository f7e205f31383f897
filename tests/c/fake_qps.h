/* SPDX-License-Identifier: Apache-2.0 */
/* Two engines of which messages need little: QPs that write in order and at once, or later, and
   memory regions that are checked. In place of csrc/core. */
#pragma once

#include <errno.h>
#include <string.h>

#include "check.h"
#include "msg/msg.h"

enum { FAKE_REGIONS = 512, FAKE_QUEUE = 64, FAKE_DONE = 4096 };

struct fake_region {
  uint64_t address, bytes;
  uint32_t key, access;
};

/* One side: an engine with one QP to the other side. */
struct fake_side {
  struct fake_side *other;
  struct mrc_msg *msg;
  uint32_t qpn;
  uint32_t n_regions, most_regions;
  struct fake_region regions[FAKE_REGIONS];
  struct mrc_wr queue[FAKE_QUEUE]; /* posted and not carried out */
  uint32_t n_queued;
  bool failed;
  struct mrc_msg_done done[FAKE_DONE];
  uint32_t n_done;
};

static const struct fake_region *fake_find(const struct fake_side *side, uint32_t key,
                                           uint64_t address, uint64_t bytes, uint32_t access) {
  for (uint32_t i = 0; i < side->n_regions; i++) {
    const struct fake_region *each = &side->regions[i];
    if (each->key == key && (each->access & access) && address >= each->address &&
        address + bytes <= each->address + each->bytes)
      return each;
  }
  return NULL;
}

int mrc_mr_register(mrc_engine *engine, uint64_t address, uint64_t bytes, uint32_t key,
                    uint32_t access, uint32_t domain) {
  (void)domain;
  struct fake_side *side = (struct fake_side *)engine;
  if (side->n_regions == side->most_regions) return -ENOSPC;
  side->regions[side->n_regions++] =
      (struct fake_region){.address = address, .bytes = bytes, .key = key, .access = access};
  return 0;
}

int mrc_mr_deregister(mrc_engine *engine, uint32_t key) {
  struct fake_side *side = (struct fake_side *)engine;
  for (uint32_t i = 0; i < side->n_regions; i++) {
    if (side->regions[i].key != key) continue;
    for (uint32_t k = 0; k < side->n_queued; k++)
      if (side->queue[k].bytes > 0 && side->queue[k].lkey == key) return -EBUSY;
    side->regions[i] = side->regions[--side->n_regions];
    return 0;
  }
  return -ENOENT;
}

bool mrc_qp_may_reach(mrc_engine *engine, uint32_t qpn, uint32_t key, uint64_t address,
                      uint64_t bytes, uint32_t access) {
  (void)engine, (void)qpn, (void)key, (void)address, (void)bytes, (void)access;
  return false;
}

int mrc_qp_post(mrc_engine *engine, uint32_t qpn, const struct mrc_wr *wrs, uint32_t n,
                uint64_t now_ns) {
  struct fake_side *side = (struct fake_side *)engine;
  (void)now_ns;
  CHECK_EQ(qpn, side->qpn);
  CHECK_EQ(n, 1);
  if (side->failed) return -EPERM;
  if (side->n_queued == FAKE_QUEUE) return -ENOBUFS;
  if (wrs->bytes > 0)
    CHECK(fake_find(side, wrs->lkey, wrs->local, wrs->bytes, MRC_ACCESS_LOCAL_READ) != NULL);
  side->queue[side->n_queued++] = *wrs;
  return 0;
}

int mrc_qp_modify(mrc_engine *engine, uint32_t qpn, uint32_t state,
                  const struct mrc_qp_rtr_attr *rtr, const struct mrc_qp_rts_attr *rts,
                  uint64_t now_ns) {
  struct fake_side *side = (struct fake_side *)engine;
  (void)rtr;
  (void)rts;
  (void)now_ns;
  CHECK_EQ(qpn, side->qpn);
  CHECK_EQ(state, MRC_QP_ERROR);
  side->failed = true;
  return 0;
}

static void fake_complete(struct fake_side *side, const struct mrc_wr *wr, uint8_t status) {
  const struct mrc_wc wc = {.wr_id = wr->wr_id,
                            .qpn = side->qpn,
                            .status = status,
                            .opcode = wr->opcode == MRC_WR_WRITE ? MRC_WC_WRITE : MRC_WC_WRITE_IMM};
  mrc_msg_take(side->msg, &wc, 0);
}

static void fake_imm(struct fake_side *side, uint32_t imm, uint32_t bytes) {
  const struct mrc_wc wc = {
      .qpn = side->qpn, .imm = imm, .bytes = bytes, .opcode = MRC_WC_RECV_IMM};
  mrc_msg_take(side->msg, &wc, 0);
}

/* Carries out the oldest write of a side, or flushes it. False: there is none. */
static bool fake_step(struct fake_side *side) {
  if (side->n_queued == 0) return false;
  const struct mrc_wr wr = side->queue[0];
  memmove(side->queue, side->queue + 1, --side->n_queued * sizeof wr);
  uint8_t status = MRC_WC_SUCCESS;
  if (side->failed || side->other->failed) {
    status = side->failed ? MRC_WC_WR_FLUSH_ERR : MRC_WC_RETRY_EXC_ERR;
  } else if (wr.bytes > 0) {
    const bool allowed =
        fake_find(side->other, wr.rkey, wr.va, wr.bytes, MRC_ACCESS_REMOTE_WRITE) != NULL;
    status = allowed ? MRC_WC_SUCCESS : MRC_WC_REM_ACCESS_ERR;
    if (allowed) memcpy((void *)(uintptr_t)wr.va, (const void *)(uintptr_t)wr.local, wr.bytes);
  }
  if (status == MRC_WC_SUCCESS && wr.opcode == MRC_WR_WRITE_IMM)
    fake_imm(side->other, wr.imm, wr.bytes);
  fake_complete(side, &wr, status);
  return true;
}

/* Pumps and carries out everything. */
static void fake_run(struct fake_side sides[2]) {
  bool more = true;
  while (more) {
    more = false;
    for (int i = 0; i < 2; i++)
      mrc_msg_pump(sides[i].msg, 0);
    for (int i = 0; i < 2; i++)
      while (fake_step(&sides[i]))
        more = true;
  }
}

static void fake_on_done(void *user, const struct mrc_msg_done *done) {
  struct fake_side *side = user;
  mrc_assert(side->n_done < FAKE_DONE);
  side->done[side->n_done++] = *done;
}

/* Both sides, each the peer 0 of the other. The sizes of `config` count. */
static void fake_open(struct fake_side sides[2], const struct mrc_msg_config *config) {
  memset(sides, 0, 2 * sizeof *sides);
  struct mrc_msg_inbox inboxes[2];
  for (uint32_t i = 0; i < 2; i++) {
    struct mrc_msg_config each = *config;
    sides[i].other = &sides[1 - i];
    sides[i].qpn = 10 + i;
    sides[i].most_regions = FAKE_REGIONS;
    each.engine = (mrc_engine *)&sides[i];
    each.done = fake_on_done;
    each.user = &sides[i];
    each.seed[0] = i + 1;
    sides[i].msg = mrc_msg_new(&each);
    CHECK(sides[i].msg != NULL);
    const struct mrc_msg_limits limits = {.sq_depth = FAKE_QUEUE, .max_wimm = 32};
    CHECK_EQ(mrc_msg_open(sides[i].msg, sides[i].qpn, &limits, &inboxes[i]), 0);
  }
  for (int i = 0; i < 2; i++)
    CHECK_EQ(mrc_msg_connect(sides[i].msg, 0, &inboxes[1 - i]), 0);
}

static void fake_close(struct fake_side sides[2]) {
  for (int i = 0; i < 2; i++) {
    sides[i].n_queued = 0; /* the QPs are destroyed */
    mrc_msg_free(sides[i].msg);
    CHECK_EQ(sides[i].n_regions, 0);
  }
}
