/* SPDX-License-Identifier: Apache-2.0 */
/* Access to memory: rights and bounds at both ends. */
#include "core/engine.h"

#include <errno.h>
#include <stdlib.h>

#include "pair/connect.h"
#include "scenario.h"

/* A write of 8 bytes that is wrong in one way for the responder. */
TEST(test_remote__refuses_what_the_rkey_does_not_open) {
  enum { BYTES = 4096 };
  static const struct {
    int64_t offset; /* of the target from the start of the MR */
    uint32_t bytes;
    bool wrong_key, local_key;
  } rows[] = {
      {.offset = 0, .bytes = 8, .wrong_key = true},
      {.offset = 0, .bytes = 8, .local_key = true}, /* a key without REMOTE_WRITE */
      {.offset = -1, .bytes = 8},
      {.offset = BYTES - 7, .bytes = 8},
      {.offset = BYTES, .bytes = 1},
      {.offset = BYTES - MTU, .bytes = 2 * MTU}, /* the second packet is outside */
      {.offset = -0x7FFFFFFF, .bytes = 8},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
    int end = open_qp(p, .memory_bytes = BYTES);
    struct mrc_pair_end *e = p->ends[end];
    uint32_t rkey = rows[i].wrong_key ? e->rkey + 1 : e->rkey;
    if (rows[i].local_key) rkey = p->ends[e->peer]->lkey;
    struct mrc_wr wr = {.local = (uintptr_t)e->audit.source,
                        .va = (uintptr_t)e->audit.target + (uint64_t)rows[i].offset,
                        .lkey = e->lkey,
                        .rkey = rkey,
                        .bytes = rows[i].bytes};
    mrc_audit_posted(&e->audit, rows[i].bytes, false, 0);
    e->audit.unwatched = true; /* the write targets no message of the auditor */
    CHECK_EQ(mrc_qp_post(p->hosts[0].engine, e->qpn, &wr, 1, p->now_ns), 0);
    mrc_pair_kick(p, 0);
    CHECK(mrc_pair_finish(p, 20 * MS));
    CHECK_EQ(e->audit.statuses[MRC_WC_REM_ACCESS_ERR], 1);
    CHECK_EQ(mrc_pair_info(p, end).state, MRC_QP_ERROR);
    CHECK_EQ(mrc_pair_info(p, end).status, MRC_WC_REM_ACCESS_ERR);
    CHECK_EQ(mrc_pair_info(p, e->peer).state, MRC_QP_ERROR);
    CHECK_EQ(n_events(p, 0, MRC_EVENT_QP_ERROR, MRC_PAIR_ANY), 1);
    CHECK_EQ(n_events(p, 1, MRC_EVENT_QP_ERROR, MRC_PAIR_ANY), 1);
    CHECK_EQ(mrc_pair_write(p, end, 8), -EPERM);
    mrc_pair_destroy(p); /* looks at the guards */
  }
}

/* Memory of another domain than the QP's is closed to it, at both ends. */
TEST(test_domains__separate) {
  enum { OWN = 4, OTHER = 5, OWN_KEY = 7, OTHER_KEY = 8 };
  const uint32_t access = MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE;
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 2 * MTU, .domain = OWN);
  struct mrc_pair_end *e = p->ends[end];
  const uint64_t addresses[] = {(uintptr_t)e->audit.source, (uintptr_t)e->audit.target};
  for (int host = 0; host < 2; host++) {
    mrc_engine *engine = p->hosts[host].engine;
    CHECK_EQ(mrc_mr_register(engine, addresses[host], 2 * MTU, OWN_KEY, access, OWN), 0);
    CHECK_EQ(mrc_mr_register(engine, addresses[host], 2 * MTU, OTHER_KEY, access, OTHER), 0);
  }
  e->lkey = OTHER_KEY;
  e->rkey = OWN_KEY;
  CHECK_EQ(mrc_pair_write(p, end, MTU), -EACCES);
  e->lkey = OWN_KEY;
  CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
  CHECK(mrc_pair_finish(p, 20 * MS));
  CHECK_EQ(succeeded(p, end), 1);
  e->rkey = OTHER_KEY;
  CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
  CHECK(mrc_pair_finish(p, 20 * MS));
  CHECK_EQ(e->audit.statuses[MRC_WC_REM_ACCESS_ERR], 1);
  mrc_pair_destroy(p);
}

/* The requester receives the refusal although the first NAKs are lost. */
TEST(test_remote__refusal_survives_loss) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 64, .retry_linear = 7, .retry_exp = 4);
  lose_kind(p, 1, MRC_OP_ACK, 3);
  p->ends[end]->rkey++;
  CHECK_EQ(mrc_pair_write(p, end, 64), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(audit_of(p, end)->statuses[MRC_WC_REM_ACCESS_ERR], 1);
  mrc_pair_destroy(p);
}

/* The responder flushes its own writes in flight, although none of them was refused. */
TEST(test_remote__the_responders_own_writes_are_flushed) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 500 * US);
  int end = open_qp(p, .memory_bytes = 1u << 20, .timeout = 14);
  int peer = p->ends[end]->peer;
  CHECK_EQ(mrc_pair_write(p, peer, 1u << 20), 0);
  CHECK_EQ(mrc_pair_write_imm(p, peer, 0), 0);
  p->ends[end]->rkey++;
  CHECK_EQ(mrc_pair_write(p, end, 64), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(audit_of(p, end)->statuses[MRC_WC_REM_ACCESS_ERR], 1);
  CHECK_EQ(audit_of(p, peer)->statuses[MRC_WC_WR_FLUSH_ERR], 2);
  mrc_pair_destroy(p);
}

/* Only the QP with the refused write fails. */
TEST(test_remote__other_qps_live_on) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  int bad = open_qp(p, .memory_bytes = 64);
  int good = open_qp(p, .memory_bytes = 1u << 18);
  p->ends[bad]->rkey++;
  CHECK_EQ(mrc_pair_write(p, bad, 64), 0);
  CHECK_EQ(mrc_pair_write_imm(p, good, 1u << 18), 0);
  CHECK(mrc_pair_finish(p, 50 * MS));
  CHECK_EQ(succeeded(p, good), 1);
  CHECK_EQ(succeeded(p, bad), 0);
  mrc_pair_destroy(p);
}

TEST(test_post__refuses_local_memory) {
  struct mrc_pair *p = open_pair();
  int end = open_qp(p, .memory_bytes = 100);
  struct mrc_pair_end *e = p->ends[end];
  const uint64_t source = (uintptr_t)e->audit.source;
  const struct {
    struct mrc_wr wr;
    int error;
  } rows[] = {
      {{.local = source, .bytes = 101, .lkey = e->lkey}, -EACCES},
      {{.local = source - 1, .bytes = 1, .lkey = e->lkey}, -EACCES},
      {{.local = source + 100, .bytes = 1, .lkey = e->lkey}, -EACCES},
      {{.local = source, .bytes = 1, .lkey = e->lkey + 1}, -EACCES},
      {{.local = source, .bytes = 1, .lkey = e->lkey, .opcode = 2}, -EINVAL},
      {{.local = source, .bytes = 2, .lkey = e->lkey, .va = UINT64_MAX}, -EINVAL}, /* wraps */
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_qp_post(p->hosts[0].engine, e->qpn, &rows[i].wr, 1, p->now_ns), rows[i].error);
  }
  CHECK_EQ(mrc_qp_post(p->hosts[0].engine, e->qpn + 1, &rows[0].wr, 1, p->now_ns), -ENOENT);
  CHECK_EQ(mrc_pair_info(p, end).outstanding, 0);
  mrc_pair_destroy(p);
}

TEST(test_mr__deregister_waits_for_its_readers) {
  struct mrc_pair *p = open_pair();
  int end = open_qp(p, .memory_bytes = 100 * MTU);
  mrc_engine *engine = p->hosts[0].engine;
  CHECK_EQ(mrc_pair_write(p, end, 100 * MTU), 0);
  CHECK_EQ(mrc_mr_deregister(engine, p->ends[end]->lkey), -EBUSY);
  CHECK(mrc_pair_finish(p, 50 * MS));
  CHECK_EQ(mrc_mr_deregister(engine, p->ends[end]->lkey), 0);
  CHECK_EQ(mrc_mr_deregister(engine, p->ends[end]->lkey), -ENOENT);
  mrc_pair_destroy(p);
}

/* The owner deregisters the target during a transfer: no byte arrives afterwards. */
TEST(test_mr__deregister_under_remote_writes) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = 100000000);
  int end = open_qp(p, .memory_bytes = 1u << 20, .timeout = 14);
  struct mrc_audit *audit = audit_of(p, end);
  CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
  run_for(p, 10 * MS);
  CHECK_EQ(mrc_mr_deregister(p->hosts[1].engine, p->ends[end]->rkey), 0);
  uint8_t *copy = malloc(1u << 20);
  memcpy(copy, audit->target, 1u << 20);
  CHECK(mrc_pair_finish(p, 200 * MS));
  CHECK_EQ(audit->statuses[MRC_WC_REM_ACCESS_ERR], 1);
  CHECK_MEM_EQ(audit->target, copy, 1u << 20);
  free(copy);
  mrc_pair_destroy(p);
}
