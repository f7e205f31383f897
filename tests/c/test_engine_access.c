/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and who may touch it: rights and bounds at both ends, forged and garbled packets. */
#include "core/engine.h"

#include <errno.h>
#include <stdlib.h>

#include "forge.h"
#include "scenario.h"
#include "sim/connect.h"

/* A write of 8 bytes that is wrong in one way at the peer. */
static void test_remote__refuses_what_the_rkey_does_not_open(void) {
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
    e->audit.unwatched = true; /* it goes where no message of ours lies */
    CHECK_EQ(mrc_qp_post(p->hosts[0].engine, e->qpn, &wr, p->now_ns), 0);
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

/* The requester learns of the refusal although the first NAKs are lost. */
static void test_remote__refusal_survives_loss(void) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 64, .retry_linear = 7, .retry_exp = 4);
  lose_kind(p, 1, MRC_OP_ACK, 3);
  p->ends[end]->rkey++;
  CHECK_EQ(mrc_pair_write(p, end, 64), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(audit_of(p, end)->statuses[MRC_WC_REM_ACCESS_ERR], 1);
  mrc_pair_destroy(p);
}

/* What the peer itself had in flight is flushed: it did nothing that was refused. */
static void test_remote__the_responders_own_writes_are_flushed(void) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 500 * US);
  int end = open_qp(p, .memory_bytes = 1u << 20, .timeout = 14);
  int peer = p->ends[end]->peer;
  CHECK_EQ(mrc_pair_write(p, peer, 1u << 20), 0);
  CHECK_EQ(mrc_pair_write(p, peer, 0), 0);
  p->ends[end]->rkey++;
  CHECK_EQ(mrc_pair_write(p, end, 64), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(audit_of(p, end)->statuses[MRC_WC_REM_ACCESS_ERR], 1);
  CHECK_EQ(audit_of(p, peer)->statuses[MRC_WC_WR_FLUSH_ERR], 2);
  mrc_pair_destroy(p);
}

/* Only the QP that asked dies of it. */
static void test_remote__other_qps_live_on(void) {
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

static void test_post__refuses_local_memory(void) {
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
    CHECK_EQ(mrc_qp_post(p->hosts[0].engine, e->qpn, &rows[i].wr, p->now_ns), rows[i].error);
  }
  CHECK_EQ(mrc_qp_post(p->hosts[0].engine, e->qpn + 1, &rows[0].wr, p->now_ns), -ENOENT);
  CHECK_EQ(mrc_pair_info(p, end).outstanding, 0);
  mrc_pair_destroy(p);
}

static void test_mr__deregister_waits_for_its_readers(void) {
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

/* The target's owner takes it away in mid-transfer: not a byte arrives afterwards. */
static void test_mr__deregister_under_remote_writes(void) {
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

/* ---- packets that nobody of ours sent ---- */

static const uint8_t forged[4] = {0x11, 0x22, 0x33, 0x44};

static void test_receive__drops_the_stranger(void) {
  struct mrc_pair *p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 64);
  struct forge forge = make_forge(p, end, forged);
  forge.wire.dest_qpn ^= 1;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_QPN);
  forge = make_forge(p, end, forged);
  mrc_address_make(forge.meta.src, 6, 2, 1, 0); /* another host, with the right QPN and rkey */
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
  forge = make_forge(p, end, forged);
  forge.wire.psn = 0x800;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_PSN_WINDOW);
  forge.wire.psn = MRC_PSN_MASK; /* just behind the window */
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_DUPLICATE);
  run_for(p, 5 * MS);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
  mrc_pair_destroy(p);
}

/* The QP takes data in RTR and RTS only. */
static void test_receive__drops_in_the_wrong_state(void) {
  struct mrc_pair *p = open_pair();
  int end = mrc_pair_create_qp(p, &(struct mrc_pair_qp_config){.memory_bytes = 64});
  struct forge forge = make_forge(p, end, forged);
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_QP_STATE);
  CHECK_EQ(audit_of(p, end)->target[0], MRC_AUDIT_FILL);
  mrc_pair_modify(p, p->ends[end]->peer, MRC_QP_RTR);
  CHECK_EQ(send_forge(p, &forge), 0);
  CHECK_MEM_EQ(audit_of(p, end)->target, forged, 4);
  mrc_pair_destroy(p);
}

/* Answers to what was never asked: of unsent PSNs, of unknown probes, with absurd offsets. */
static void test_receive__drops_false_answers(void) {
  struct mrc_pair *p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 10 * MTU);
  int peer = p->ends[end]->peer;
  CHECK_EQ(mrc_pair_write(p, peer, 4 * MTU), 0); /* host 1 sends PSNs from rq_psn on */
  CHECK(mrc_pair_finish(p, 10 * MS));
  uint32_t next = mrc_psn_add(p->ends[peer]->attr.sq_psn, 4);
  struct forge forge = make_forge(p, end, forged);
  forge.wire = (struct mrc_wire){.opcode = MRC_OP_SACK, .dest_qpn = forge.wire.dest_qpn};
  forge.wire.psn = forge.wire.sack.cum_psn = next;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_ACK_UNSENT);
  forge.wire.psn = forge.wire.sack.cum_psn = mrc_psn_sub(next, 1);
  forge.wire.sack.sack_offset = 1;
  forge.wire.sack.bitmap = 1ull << 5;
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_ACK_UNSENT);
  forge.wire.sack.bitmap = 0;
  forge.wire.sack.pr = true; /* no probe is out */
  forge.wire.sack.ack_psn_offset = 77;
  send_forge(p, &forge);
  forge.wire = (struct mrc_wire){.opcode = MRC_OP_ENDPOINT_RESPONSE,
                                 .dest_qpn = MRC_ENDPOINT_QPN,
                                 .psn = 5,
                                 .endpoint.op = MRC_ENDPOINT_EV_PROBE};
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_UNKNOWN_ID);
  CHECK_EQ(mrc_pair_write(p, peer, MTU), 0);
  CHECK(mrc_pair_finish(p, 10 * MS));
  CHECK_EQ(succeeded(p, peer), 2);
  CHECK_EQ(retransmitted(p, peer), 0);
  mrc_pair_destroy(p);
}

/* More immediates than agreed, from a peer that does not keep to it. */
static void test_receive__too_many_immediates(void) {
  struct mrc_pair *p = open_pair();
  int end = open_qp(p, .memory_bytes = 64, .max_wimm = 4);
  struct forge forge = make_forge(p, end, forged);
  forge.wire.opcode = MRC_OP_WRITE_ONLY_IMM;
  for (uint32_t i = 0; i < 5; i++) {
    forge.wire.psn = i + 1; /* PSN 0 never comes, so none can be delivered */
    forge.wire.rqmsn = (uint16_t)i;
    forge.wire.msn = (uint16_t)(i + 1);
    CHECK_EQ(send_forge(p, &forge), i < 4 ? 0 : MRC_DROP_WIMM_LIMIT);
  }
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_ERROR);
  mrc_pair_destroy(p);
}

/* Random bytes, and good packets with random bytes in them: dropped, nothing else. */
static void test_receive__survives_garbage(void) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 1u << 18, .timeout = 14);
  struct mrc_prng prng = {.state = 5};
  struct forge forge = make_forge(p, end, forged);
  CHECK_EQ(mrc_pair_write_imm(p, end, 1u << 18), 0);
  for (int i = 0; i < 5000; i++) {
    uint8_t bytes[80];
    size_t n = mrc_prng_below(&prng, sizeof bytes + 1);
    for (size_t k = 0; k < n; k++)
      bytes[k] = (uint8_t)mrc_prng_next(&prng);
    CHECK(mrc_pair_forge(p, 1, bytes, n, &forge.meta) > 0);
    if (i % 100 == 0) mrc_pair_step(p, p->now_ns + 10 * US);
  }
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(succeeded(p, end), 1);
  mrc_pair_destroy(p);
}

CHECK_MAIN(RUN(test_remote__refuses_what_the_rkey_does_not_open),
           RUN(test_remote__refusal_survives_loss),
           RUN(test_remote__the_responders_own_writes_are_flushed),
           RUN(test_remote__other_qps_live_on), RUN(test_post__refuses_local_memory),
           RUN(test_mr__deregister_waits_for_its_readers),
           RUN(test_mr__deregister_under_remote_writes), RUN(test_receive__drops_the_stranger),
           RUN(test_receive__drops_in_the_wrong_state), RUN(test_receive__drops_false_answers),
           RUN(test_receive__too_many_immediates), RUN(test_receive__survives_garbage))
