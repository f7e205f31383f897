/* SPDX-License-Identifier: Apache-2.0 */
#include "core/engine.h"

#include <errno.h>

#include "core/calls.h"
#include "core/crc.h"
#include "pair/connect.h"
#include "scenario.h"

/* ---- states ---- */

/* The life of engines and QPs: refusals of each call, legal moves, destruction during a transfer,
   an unpolled CQ. */

static const struct mrc_qp_attr good_attr = {
    .create = {.qpn = 0x100, .sq_depth = 16, .mpr = 128, .max_wimm = 4},
    .rtr = {.dest_qpn = 0x200},
    .rts = {.path_mtu = 1024,
            .peer_mpr = 128,
            .peer_max_wimm = 4,
            .timeout = 14,
            .retry_linear = 7,
            .retry_exp = 8}};
static const struct mrc_ev_attr good_ev = {
    .ev = 1u << 16 | 1, .dport = 4791, .port = 1, .family = 6};
static const struct mrc_peer_source good_source = {.address = {0xFD}, .sport = 1};

static void set_paths(mrc_engine *engine, uint32_t qpn) {
  CHECK_EQ(mrc_qp_set_evs(engine, qpn, &good_ev, 1), 0);
  CHECK_EQ(mrc_qp_set_peer(engine, qpn, &good_source, 1), 0);
}

/* Adds a QP, and moves it to `state`. */
static void add_qp(mrc_engine *engine, const struct mrc_qp_attr *attr, uint32_t state) {
  const uint32_t qpn = attr->create.qpn;
  CHECK_EQ(mrc_qp_create(engine, &attr->create), 0);
  if (state == MRC_QP_RESET) return;
  CHECK_EQ(mrc_qp_modify(engine, qpn, MRC_QP_INIT, NULL, NULL, 1), 0);
  set_paths(engine, qpn);
  const uint32_t last = state == MRC_QP_ERROR ? MRC_QP_RTR : state;
  for (uint32_t next = MRC_QP_RTR; next <= last; next++)
    CHECK_EQ(mrc_qp_modify(engine, qpn, next, &attr->rtr, &attr->rts, 1), 0);
  if (state == MRC_QP_ERROR)
    CHECK_EQ(mrc_qp_modify(engine, qpn, state, &attr->rtr, &attr->rts, 1), 0);
}

/* An engine with one QP in `state`. */
static mrc_engine *engine_in(uint32_t state) {
  mrc_engine *engine = mrc_engine_create(&(struct mrc_engine_config){.max_qps = 4});
  add_qp(engine, &good_attr, state);
  return engine;
}

TEST(test_engine_create__refuses) {
  static const struct mrc_engine_config rows[] = {{.ports = 33},
                                                  {.trace_entries = 1000},
                                                  {.trace_entries = 1u << 25},
                                                  {.cq_depth = (1u << 24) + 1},
                                                  {.max_qps = (1u << 20) + 1},
                                                  {.max_mrs = (1u << 20) + 1},
                                                  {.noise_ns = 999},
                                                  {.noise_ns = 1000000001}};
  EACH_ROW(i, rows)
    CHECK(mrc_engine_create(&rows[i]) == NULL);
  ENGINE engine = mrc_engine_create(&(struct mrc_engine_config){.ports = 32});
  CHECK(engine != NULL);
  CHECK_EQ(mrc_engine_deadline(engine), UINT64_MAX);
  mrc_engine_destroy(NULL);
}

TEST(test_qp_create__refuses) {
  static const struct {
    uint32_t qpn, sq_depth, mpr, max_wimm;
    int error;
  } rows[] = {
      {0, 16, 128, 4, -EINVAL}, {2, 16, 128, 4, -EINVAL},         {0x1000000, 16, 128, 4, -EINVAL},
      {3, 0, 128, 4, -EINVAL},  {3, 65537, 128, 4, -EINVAL},      {3, 16, 0, 4, -EINVAL},
      {3, 16, 127, 4, -EINVAL}, {3, 16, 192, 4, -EINVAL},         {3, 16, 4224, 4, -EINVAL},
      {3, 16, 128, 0, -EINVAL}, {3, 16, 128, 1025, -EINVAL},      {3, 1, 128, 1, 0},
      {3, 16, 128, 4, -EEXIST}, {0xFFFFFF, 65536, 4096, 1024, 0}, {5, 16, 128, 4, -ENOSPC},
  };
  ENGINE engine = mrc_engine_create(&(struct mrc_engine_config){.max_qps = 2});
  EACH_ROW(i, rows) {
    const struct mrc_qp_create_attr attr = {.qpn = rows[i].qpn,
                                            .sq_depth = rows[i].sq_depth,
                                            .mpr = rows[i].mpr,
                                            .max_wimm = rows[i].max_wimm};
    const int error = mrc_qp_create(engine, &attr);
    /* When the engine is full and the QPN exists, both errors are right. */
    CHECK(error == rows[i].error || (rows[i].error == -EEXIST && error == -ENOSPC));
  }
}

/* Row: from; column: to. Any other move is refused and changes nothing. */
TEST(test_qp_modify__legal_moves) {
  static const bool legal[5][5] = {
      /* to        RESET  INIT   RTR    RTS    ERROR */
      /* RESET */ {false, true, false, false, true},
      /* INIT  */ {true, false, true, false, true},
      /* RTR   */ {false, false, false, true, true},
      /* RTS   */ {false, false, false, false, true},
      /* ERROR */ {false, false, false, false, false},
  };
  for (uint32_t from = 0; from < 5; from++) {
    for (uint32_t to = 0; to < 5; to++) {
      CHECK_ROW(from * 10 + to);
      ENGINE engine = engine_in(from);
      CHECK_EQ(mrc_qp_modify(engine, good_attr.create.qpn, to, &good_attr.rtr, &good_attr.rts, 2),
               legal[from][to] ? 0 : -EINVAL);
      struct mrc_qp_info info;
      CHECK_EQ(mrc_qp_query(engine, good_attr.create.qpn, &info), 0);
      CHECK_EQ(info.state, legal[from][to] ? to : from);
    }
  }
}

TEST(test_qp_modify__refuses_attributes) {
  static const struct {
    uint32_t to;
    size_t offset; /* of a 32-bit attribute of this move; with `byte`, of an 8-bit one */
    uint32_t value;
    bool byte;
  } rows[] = {
      {MRC_QP_RTR, offsetof(struct mrc_qp_rtr_attr, dest_qpn), 2, false},
      {MRC_QP_RTR, offsetof(struct mrc_qp_rtr_attr, dest_qpn), 0x1000000, false},
      {MRC_QP_RTR, offsetof(struct mrc_qp_rtr_attr, rq_psn), 0x1000000, false},
      {MRC_QP_RTR, offsetof(struct mrc_qp_rtr_attr, integrity), 2, false},
      {MRC_QP_RTR, offsetof(struct mrc_qp_rtr_attr, dynamic_mpr), 2, false},
      {MRC_QP_RTR, offsetof(struct mrc_qp_rtr_attr, sack_times), 2, false},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, sq_psn), 0x1000000, false},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, path_mtu), 252, false},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, path_mtu), 1022, false},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, path_mtu), 16388, false},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, peer_mpr), 64, false},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, peer_mpr), 4224, false},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, peer_max_wimm), 0, false},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, timeout), 0, true},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, timeout), 25, true},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, retry_linear), 8, true},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, retry_exp), 26, true},
      {MRC_QP_RTS, offsetof(struct mrc_qp_rts_attr, cc), 3, true},
  };
  EACH_ROW(i, rows) {
    ENGINE engine = engine_in(rows[i].to - 1);
    struct mrc_qp_attr attr = good_attr;
    uint8_t *moved = rows[i].to == MRC_QP_RTR ? (uint8_t *)&attr.rtr : (uint8_t *)&attr.rts;
    memcpy(moved + rows[i].offset, &rows[i].value, rows[i].byte ? 1 : 4);
    CHECK_EQ(mrc_qp_modify(engine, attr.create.qpn, rows[i].to, &attr.rtr, &attr.rts, 2), -EINVAL);
    CHECK_EQ(mrc_qp_modify(engine, attr.create.qpn, rows[i].to, NULL, NULL, 2), -EINVAL);
    CHECK_EQ(mrc_qp_modify(engine, attr.create.qpn, rows[i].to, &good_attr.rtr, &good_attr.rts, 2),
             0); /* no effect of the refusal */
  }
}

/* In RTR and RTS they add: EVs that are new, and sources, also known ones. */
TEST(test_set_evs_and_peer__in_which_states) {
  EACH_OF(uint32_t, state, MRC_QP_RESET, MRC_QP_ERROR + 1) {
    ENGINE engine = engine_in(state);
    const int expected = state == MRC_QP_INIT ? 0 : -EINVAL;
    CHECK_EQ(mrc_qp_set_evs(engine, good_attr.create.qpn, &good_ev, 1), expected);
    CHECK_EQ(mrc_qp_set_evs(engine, 0x999, &good_ev, 1), -ENOENT);
    CHECK_EQ(mrc_qp_set_peer(engine, 0x999, &good_source, 1), -ENOENT);
    if (state != MRC_QP_INIT)
      CHECK_EQ(mrc_qp_set_peer(engine, good_attr.create.qpn, &good_source, 1),
               state == MRC_QP_RTR || state == MRC_QP_RTS ? 0 : -EINVAL);
    CHECK_EQ(mrc_qp_set_peer(engine, good_attr.create.qpn, &good_source, 0), -EINVAL);
    CHECK_EQ(mrc_qp_set_peer(engine, good_attr.create.qpn, &good_source, MRC_MAX_PEER_SOURCES + 1),
             -EINVAL);
  }
}

/* RTR requires the paths and the peer. */
TEST(test_qp_modify__rtr_needs_paths_and_peer) {
  ENGINE engine = mrc_engine_create(&(struct mrc_engine_config){.max_qps = 1});
  CHECK_EQ(mrc_qp_create(engine, &good_attr.create), 0);
  CHECK_EQ(mrc_qp_modify(engine, good_attr.create.qpn, MRC_QP_INIT, NULL, NULL, 1), 0);
  CHECK_EQ(mrc_qp_modify(engine, good_attr.create.qpn, MRC_QP_RTR, &good_attr.rtr, NULL, 1),
           -EINVAL);
  CHECK_EQ(mrc_qp_set_evs(engine, good_attr.create.qpn, &good_ev, 1), 0);
  CHECK_EQ(mrc_qp_modify(engine, good_attr.create.qpn, MRC_QP_RTR, &good_attr.rtr, NULL, 1),
           -EINVAL);
  CHECK_EQ(mrc_qp_set_peer(engine, good_attr.create.qpn, &good_source, 1), 0);
  CHECK_EQ(mrc_qp_modify(engine, good_attr.create.qpn, MRC_QP_RTR, &good_attr.rtr, NULL, 1), 0);
}

TEST(test_post__in_rts_only) {
  const struct mrc_wr wr = {.wr_id = 1, .opcode = MRC_WR_WRITE_IMM};
  EACH_OF(uint32_t, state, MRC_QP_RESET, MRC_QP_ERROR + 1) {
    ENGINE engine = engine_in(state);
    CHECK_EQ(mrc_qp_post(engine, good_attr.create.qpn, &wr, 1, 2),
             state == MRC_QP_RTS ? 0 : -EPERM);
  }
}

/* A peer refuses a WRITE without bytes and without an immediate, so a post refuses it too. */
TEST(test_post__not_of_nothing) {
  ENGINE engine = engine_in(MRC_QP_RTS);
  const struct mrc_wr write = {.opcode = MRC_WR_WRITE}, write_imm = {.opcode = MRC_WR_WRITE_IMM};
  CHECK_EQ(mrc_qp_post(engine, good_attr.create.qpn, &write, 1, 2), -EINVAL);
  CHECK_EQ(mrc_qp_post(engine, good_attr.create.qpn, &write_imm, 1, 2), 0);
}

TEST(test_calls__of_an_unknown_qp) {
  ENGINE engine = engine_in(MRC_QP_RTS);
  struct mrc_qp_info info;
  CHECK_EQ(mrc_qp_modify(engine, 0x999, MRC_QP_ERROR, NULL, NULL, 1), -ENOENT);
  CHECK_EQ(mrc_qp_query(engine, 0x999, &info), -ENOENT);
  CHECK_EQ(mrc_qp_destroy(engine, 0x999), -ENOENT);
  CHECK_EQ(mrc_qp_destroy(engine, good_attr.create.qpn), 0);
  CHECK_EQ(mrc_qp_destroy(engine, good_attr.create.qpn), -ENOENT);
  CHECK_EQ(mrc_qp_create(engine, &good_attr.create), 0); /* the number is free again */
}

/* Posts one more than the send queue holds. */
static void post_too_many(mrc_engine *engine) {
  const struct mrc_wr empty = {.wr_id = 1, .opcode = MRC_WR_WRITE_IMM};
  for (uint32_t i = 0; i <= 16; i++)
    CHECK_EQ(mrc_qp_post(engine, good_attr.create.qpn, &empty, 1, 2), i < 16 ? 0 : -ENOBUFS);
}

/* A QP dies with unpolled completions, and a new QP takes its number. The old completions must not
   count for the new QP: its send queue would seem emptier than it is and overrun its ring. */
TEST(test_qpn__reused_before_the_old_completions_are_polled) {
  ENGINE engine = engine_in(MRC_QP_RTS);
  struct mrc_wc wcs[32];
  post_too_many(engine);
  CHECK_EQ(mrc_qp_destroy(engine, good_attr.create.qpn), 0);
  add_qp(engine, &good_attr, MRC_QP_RTS);
  post_too_many(engine);
  CHECK_EQ(mrc_cq_poll(engine, wcs, 32), 16);
  CHECK_EQ(wcs[15].status, MRC_WC_WR_FLUSH_ERR);
  CHECK_EQ(wcs[15].reserved, 0);
  const struct mrc_wr empty = {.opcode = MRC_WR_WRITE_IMM};
  CHECK_EQ(mrc_qp_post(engine, good_attr.create.qpn, &empty, 1, 2), -ENOBUFS);
}

/* RESET restores the state after create: EVs and peer are cleared and can be set again. */
TEST(test_reset__forgets_paths_and_peer) {
  ENGINE engine = engine_in(MRC_QP_INIT);
  const uint32_t qpn = good_attr.create.qpn;
  CHECK_EQ(mrc_qp_modify(engine, qpn, MRC_QP_RESET, NULL, NULL, 1), 0);
  CHECK_EQ(mrc_qp_modify(engine, qpn, MRC_QP_INIT, NULL, NULL, 1), 0);
  CHECK_EQ(mrc_qp_modify(engine, qpn, MRC_QP_RTR, &good_attr.rtr, NULL, 1), -EINVAL);
  set_paths(engine, qpn);
  CHECK_EQ(mrc_qp_modify(engine, qpn, MRC_QP_RTR, &good_attr.rtr, NULL, 1), 0);
}

/* The bursts requested hold more packets than the arena: the rest is due at once. */
TEST(test_transmit__goes_on_after_a_full_arena) {
  enum { PACKETS = 4096, BYTES = PACKETS * 256 };
  static uint8_t memory[BYTES];
  static struct mrc_burst bursts[MRC_MAX_BURSTS];
  static const int all_taken[MRC_MAX_BURSTS] = {[0 ... MRC_MAX_BURSTS - 1] = 1};
  struct mrc_qp_attr attr = good_attr;
  attr.create.mpr = attr.rts.peer_mpr = PACKETS;
  attr.rts.path_mtu = 256;
  attr.rts.cc = MRC_CC_NULL;
  ENGINE engine = mrc_engine_create(&(struct mrc_engine_config){.max_qps = 2});
  add_qp(engine, &attr, MRC_QP_RTS);
  prove_paths(engine, attr.create.qpn);
  const struct mrc_wr wr = {.local = (uintptr_t)memory, .va = 4096, .lkey = 7, .bytes = BYTES};
  CHECK_EQ(mrc_mr_register(engine, wr.local, BYTES, wr.lkey, MRC_ACCESS_LOCAL_READ, 0), 0);
  CHECK_EQ(mrc_qp_post(engine, attr.create.qpn, &wr, 1, 2), 0);
  int packets = 0;
  for (int n; (n = mrc_engine_transmit(engine, bursts, MRC_MAX_BURSTS, 2)) > 0;) {
    for (int i = 0; i < n; i++)
      packets += bursts[i].n_packets;
    mrc_engine_commit(engine, bursts, all_taken, n, 2);
    CHECK_EQ(mrc_engine_deadline(engine) == 0, packets < PACKETS);
  }
  CHECK_EQ(packets, PACKETS);
}

/* A commanded probe is due at once, and the engine's deadline shows it. */
TEST(test_probe_ev__is_due_at_once) {
  ENGINE engine = engine_in(MRC_QP_RTS);
  struct mrc_burst bursts[8];
  CHECK_EQ(mrc_engine_transmit(engine, bursts, 8, 2), 0);
  CHECK(mrc_engine_deadline(engine) > 2);
  CHECK_EQ(probe_ev(engine, good_attr.create.qpn, 0, 0, MS, 1, 2), 0);
  CHECK_EQ(mrc_engine_deadline(engine), 0);
}

/* ERROR by command flushes the posted work requests in order and raises an event. */
TEST(test_qp_modify__error_flushes) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 100 * MTU);
  write_many(p, end, 10 * MTU, 10);
  mrc_pair_modify(p, end, MRC_QP_ERROR);
  CHECK(mrc_pair_finish(p, MS));
  CHECK_EQ(audit_of(p, end)->statuses[MRC_WC_WR_FLUSH_ERR], 10);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_QP_ERROR, MRC_WC_WR_FLUSH_ERR), 1);
  CHECK_EQ(mrc_mr_deregister(p->hosts[0].engine, p->ends[end]->lkey), 0); /* no longer in use */
}

/* The requester's QP is destroyed during a transfer: its writes are flushed, packets that still
   arrive are dropped, and the peer, which only received, is not affected. */
TEST(test_qp_destroy__of_the_requester_in_mid_transfer) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 200 * US);
  int end = open_qp(p, .memory_bytes = 1u << 20);
  int other = open_qp(p, .memory_bytes = 1u << 18);
  CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
  CHECK_EQ(mrc_pair_write_imm(p, other, 1u << 18), 0);
  run_for(p, 300 * US); /* packets are in flight in both directions */
  mrc_pair_destroy_qp(p, end);
  CHECK(mrc_pair_finish(p, 50 * MS));
  CHECK_EQ(audit_of(p, end)->statuses[MRC_WC_WR_FLUSH_ERR], 1);
  CHECK(p->hosts[0].drops[MRC_DROP_QPN] > 0); /* SACKs for the destroyed QP */
  CHECK_EQ(succeeded(p, other), 1);
  CHECK_EQ(mrc_mr_deregister(p->hosts[0].engine, p->ends[end]->lkey), 0);
}

/* The responder's QP is destroyed: no more bytes are placed; the requester's retries run out. */
TEST(test_qp_destroy__of_the_responder_in_mid_transfer) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 200 * US);
  int end = open_qp(p, .memory_bytes = 1u << 20, .timeout = 10, .retry_linear = 2, .retry_exp = 2);
  CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
  run_for(p, 300 * US);
  mrc_pair_destroy_qp(p, p->ends[end]->peer);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(audit_of(p, end)->statuses[MRC_WC_RETRY_EXC_ERR], 1);
  CHECK(p->hosts[1].drops[MRC_DROP_QPN] > 0);
}

/* A QP is destroyed with EV probes outstanding: their answers are dropped, and a new QP can probe
   at once. */
TEST(test_qp_destroy__with_probes_out) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p);
  mrc_engine *engine = p->hosts[0].engine;
  for (uint32_t i = 0; i < 100; i++)
    CHECK_EQ(probe_ev(engine, p->ends[end]->qpn, i % 4, 0, MS, i, p->now_ns), 0);
  run_for(p, PATH_DELAY / 2);
  for (uint32_t i = 0; i < 100; i++) /* these are not even sent */
    CHECK_EQ(probe_ev(engine, p->ends[end]->qpn, i % 4, 0, MS, i, p->now_ns), 0);
  mrc_pair_destroy_qp(p, end);
  int next = open_qp(p);
  CHECK_EQ(probe_ev(engine, p->ends[next]->qpn, 0, 0, MS, 7777, p->now_ns), 0);
  mrc_pair_kick(p, 0);
  run_for(p, 5 * MS);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PROBE, MRC_PAIR_ANY), 1);
}

/* The responder's CQ is small and polled late: immediates wait, nothing is lost, no queue grows. */
TEST(test_cq__immediates_wait_for_room) {
  PAIR p = open_pair(.planes = 2, .engine.cq_depth = 8);
  int end = open_qp(p, .sq_depth = 4, .max_wimm = 32);
  p->hosts[1].stops_polling = true;
  for (int round = 0; round < 4; round++) {
    for (int i = 0; i < 4 && mrc_pair_write_imm(p, end, 0) == 0; i++) {
    }
    run_for(p, 5 * MS);
  }
  CHECK(counter(p, 1, MRC_COUNTER_WIMM_HELD) > 0);
  uint64_t sent = audit_of(p, end)->n_wrs;
  CHECK_EQ(sent, 12); /* eight delivered, the rest held */
  CHECK_EQ(succeeded(p, end), 8);
  p->hosts[1].stops_polling = false;
  mrc_pair_kick(p, 1);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(succeeded(p, end), sent);
  CHECK_EQ(audit_of(p, end)->n_immediates, sent);
}

/* The requester's CQ is not polled: posts are refused when the CQ could not hold their completions,
   with a quarter reserved for immediates. */
TEST(test_cq__posts_are_bounded_by_it) {
  PAIR p = open_pair(.planes = 2, .engine.cq_depth = 8);
  int end = open_qp(p, .sq_depth = 128);
  p->hosts[0].stops_polling = true;
  int posted = 0;
  while (posted < 100 && mrc_pair_write_imm(p, end, 0) == 0)
    posted++;
  CHECK_EQ(posted, 6);
  CHECK_EQ(mrc_pair_write_imm(p, end, 0), -ENOBUFS);
  run_for(p, 5 * MS);
  CHECK_EQ(mrc_pair_write_imm(p, end, 0), -ENOBUFS); /* completed, not polled */
  p->hosts[0].stops_polling = false;
  mrc_pair_kick(p, 0);
  CHECK(mrc_pair_finish(p, 5 * MS));
  WRITE_IMM_AND_WAIT(p, end, 0, 5 * MS);
}

/* Two ends that fill small CQs with posts and send immediates to each other (sweep, seed 233). */
TEST(test_cq__full_of_posts_at_both_ends) {
  PAIR p = open_pair(.planes = 2, .engine.cq_depth = 16);
  int end = open_qp(p, .sq_depth = 64), peer = p->ends[end]->peer;
  int posted = 0;
  while (mrc_pair_write_imm(p, end, 0) == 0 && mrc_pair_write_imm(p, peer, 0) == 0)
    posted += 2;
  CHECK_EQ(posted, 24);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(succeeded(p, end) + succeeded(p, peer), 24);
}

/* ---- queries ---- */

/* Queries of an engine (csrc/core/calls.c): names, trace ring, and events that the application does
 * not take. */

TEST(test_names__end_with_the_lists) {
  CHECK_STR_EQ(mrc_drop_name(0), "NONE");
  CHECK_STR_EQ(mrc_drop_name(MRC_DROP_SHORT), "SHORT");
  CHECK_STR_EQ(mrc_drop_name(MRC_DROP_COUNT - 1), "PORT_STATUS");
  CHECK(mrc_drop_name(MRC_DROP_COUNT) == NULL);
  CHECK(mrc_drop_name(-1) == NULL);
  CHECK_STR_EQ(mrc_trace_name(0), "DROP");
  CHECK(mrc_trace_name(MRC_TRACE_POINTS) == NULL);
  CHECK(mrc_trace_name(-1) == NULL);
}

TEST(test_counters__fill_what_there_is_room_for) {
  ENGINE engine = mrc_engine_create(&(struct mrc_engine_config){.max_qps = 1});
  uint64_t values[2] = {7, 7};
  CHECK_EQ(mrc_engine_receive(engine, (uint8_t[1]){0}, 0, 0, &(struct mrc_meta){.port = 1}, 1),
           MRC_DROP_SHORT);
  CHECK_EQ(mrc_engine_counters(engine, values, 1), MRC_COUNTERS);
  CHECK_EQ(values[0], 1);
  CHECK_EQ(values[1], 7);
  CHECK_EQ(mrc_engine_drops(engine, values, 2), MRC_DROP_COUNT);
  CHECK_EQ(values[MRC_DROP_SHORT], 1);
}

/* The ring keeps the newest entries and returns them oldest first. */
TEST(test_trace__keeps_the_newest) {
  PAIR p = open_pair(.engine.trace_entries = 16);
  int end = open_qp(p, .memory_bytes = 100 * MTU, .spray = 1);
  WRITE_AND_WAIT(p, end, 100 * MTU, 10 * MS);
  struct mrc_trace_entry entries[32];
  CHECK_EQ(mrc_engine_trace(p->hosts[0].engine, entries, 32), 16);
  for (int i = 1; i < 16; i++)
    CHECK(entries[i].now_ns >= entries[i - 1].now_ns);
  CHECK_EQ(entries[15].point, MRC_TRACE_COMPLETE);
  struct mrc_trace_entry newest;
  CHECK_EQ(mrc_engine_trace(p->hosts[0].engine, &newest, 1), 1);
  CHECK_MEM_EQ(&newest, &entries[15], sizeof newest);
  CHECK_EQ(mrc_engine_trace(p->hosts[0].engine, NULL, 0), 0);
  CHECK_EQ(mrc_engine_trace(p->hosts[0].engine, NULL, -1), 0);
}

/* A QP that was just created has no paths and no peer. */
TEST(test_query__of_a_new_qp) {
  ENGINE engine = mrc_engine_create(&(struct mrc_engine_config){.max_qps = 1, .ports = 2});
  const struct mrc_qp_create_attr attr = {.qpn = 7, .sq_depth = 1, .mpr = 128, .max_wimm = 1};
  struct mrc_qp_info info;
  CHECK_EQ(mrc_qp_create(engine, &attr), 0);
  CHECK_EQ(mrc_qp_query(engine, 7, &info), 0);
  CHECK_EQ(info.qpn, 7);
  CHECK_EQ(info.state, MRC_QP_RESET);
  CHECK_EQ(info.rtt_ns, -1);
  CHECK_EQ(info.planes[1].share_percent, 100);
  CHECK_EQ(info.planes[1].slow, 0);
}

/* What keeps a QP from sending more: nothing to send, full windows, or a full socket. */
TEST(test_query__what_holds_a_qp) {
  static const struct {
    uint64_t rate_bps;
    uint32_t mpr, cc, held_by;
    int writes;
    bool blocked;
  } rows[] = {
      {.rate_bps = 100000000, .mpr = 1024, .held_by = MRC_HELD_BY_PROGRAM},
      {.rate_bps = 10000000, .mpr = 2048, .writes = 8, .held_by = MRC_HELD_BY_NETWORK},
      {.rate_bps = 10000000,
       .mpr = 128,
       .writes = 8,
       .cc = MRC_CC_NULL,
       .held_by = MRC_HELD_BY_PEER},
      {.rate_bps = 10000000,
       .mpr = 2048,
       .writes = 8,
       .cc = MRC_CC_NULL,
       .blocked = true,
       .held_by = MRC_HELD_BY_SOCKET},
  };
  EACH_ROW(i, rows) {
    PAIR p = open_pair(.planes = 2, .port_out.rate_bps = rows[i].rate_bps,
                       .port_out.queue_bytes = 4000000, .driver.wake_ns = 20 * US);
    const int end =
        open_qp(p, .memory_bytes = 8u << 20, .mpr = rows[i].mpr, .sq_depth = 16, .cc = rows[i].cc);
    if (rows[i].blocked)
      EACH_OF(int, port, 1, 3) {
        mrc_engine_port_blocked(p->hosts[0].engine, port, true, p->now_ns);
        p->hosts[0].blocked |= 1u << (port - 1);
      }
    write_many(p, end, 1 << 20, rows[i].writes);
    run_for(p, 100 * MS);
    CHECK_EQ(mrc_pair_info(p, end).held_by, rows[i].held_by);
  }
}

/* The counters of a plane count each byte that arrived on it once. */
TEST(test_planes__count_what_they_bring) {
  PAIR p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 100 * MTU);
  lose_data(p, 1, 1);
  WRITE_AND_WAIT(p, end, 100 * MTU, 10 * MS);
  const struct mrc_qp_info writer = mrc_pair_info(p, end);
  const struct mrc_qp_info reader = mrc_pair_info(p, p->ends[end]->peer);
  uint64_t packets = 0, bytes = 0;
  for (int i = 0; i < 2; i++) {
    CHECK_EQ(writer.planes[i].received_packets, 0);
    CHECK(reader.planes[i].received_bytes >= 20 * MTU);
    CHECK_EQ(reader.planes[i].received_bytes, MTU * reader.planes[i].received_packets);
    packets += reader.planes[i].received_packets;
    bytes += reader.planes[i].received_bytes;
  }
  CHECK_EQ(packets, 100);
  CHECK_EQ(bytes, reader.received_bytes);
}

/* EV events that are not taken are dropped and counted; an event reports the number, and the QP's
   end is still reported. */
TEST(test_events__overflow_keeps_room_for_what_matters) {
  PAIR p = open_pair(.planes = 1, .paths = 2);
  int end = open_qp(p);
  mrc_engine *engine = p->hosts[0].engine;
  const uint32_t qpn = p->ends[end]->qpn;
  for (int i = 0; i < MRC_EVENT_RING; i++)
    CHECK_EQ(mrc_qp_set_ev_state(engine, qpn, 0, i % 2 ? MRC_EV_GOOD : MRC_EV_DENIED, p->now_ns),
             0);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_EVENTS_DROPPED), MRC_EVENT_RING / 2);
  mrc_pair_modify(p, end, MRC_QP_ERROR);
  struct mrc_event event;
  for (int i = 0; i < MRC_EVENT_RING / 2; i++) {
    CHECK_EQ(mrc_engine_events(engine, &event, 1), 1);
    CHECK_EQ(event.type, MRC_EVENT_EV_STATE);
    CHECK_EQ(event.reason, MRC_REASON_CONTROLLER);
  }
  CHECK_EQ(mrc_engine_events(engine, &event, 1), 1);
  CHECK_EQ(event.type, MRC_EVENT_LOST);
  CHECK_EQ(event.cookie, MRC_EVENT_RING / 2);
  CHECK_EQ(mrc_engine_events(engine, &event, 1), 1);
  CHECK_EQ(event.type, MRC_EVENT_QP_ERROR);
  CHECK_EQ(mrc_engine_events(engine, &event, 1), 0);
}

/* The number of lost events is reported after all earlier events, even if no event follows. */
TEST(test_events__what_was_lost_is_told_last) {
  PAIR p = open_pair(.planes = 1, .paths = 2);
  int end = open_qp(p);
  mrc_engine *engine = p->hosts[0].engine;
  for (int i = 0; i < MRC_EVENT_RING / 2 + 3; i++)
    CHECK_EQ(mrc_qp_set_ev_state(engine, p->ends[end]->qpn, 0, i % 2 ? MRC_EV_GOOD : MRC_EV_DENIED,
                                 p->now_ns),
             0);
  struct mrc_event events[64];
  for (int i = 0; i < MRC_EVENT_RING / 2 / 64; i++)
    CHECK_EQ(mrc_engine_events(engine, events, 64), 64);
  CHECK_EQ(mrc_engine_events(engine, events, 64), 1);
  CHECK_EQ(events[0].type, MRC_EVENT_LOST);
  CHECK_EQ(events[0].cookie, 3);
  CHECK_EQ(mrc_engine_events(engine, events, 64), 0);
}

/* ---- the trace ---- */

/* The trace ring of a transfer (csrc/core/trace.def): each point with its two values. */

enum { ENTRIES = 4096 };

/* The whole trace of a host. */
struct traced {
  struct mrc_trace_entry entries[ENTRIES];
  int n;
};

static struct traced traced_by(const struct mrc_pair *p, int host) {
  struct traced traced;
  traced.n = mrc_engine_trace(p->hosts[host].engine, traced.entries, ENTRIES);
  CHECK(traced.n > 0 && traced.n < ENTRIES);
  return traced;
}

/* The first entry of a point; all zeros, and a failure, when there is none. */
static struct mrc_trace_entry first(const struct traced *traced, enum mrc_trace_point point) {
  for (int i = 0; i < traced->n; i++)
    if (traced->entries[i].point == point) return traced->entries[i];
  CHECK_FAIL("no %s", mrc_trace_name((int)point));
  return (struct mrc_trace_entry){0};
}

static bool has(const struct traced *traced, enum mrc_trace_point point, uint64_t a, uint64_t b) {
  for (int i = 0; i < traced->n; i++)
    if (traced->entries[i].point == point && traced->entries[i].a == a && traced->entries[i].b == b)
      return true;
  return false;
}

static int count(const struct traced *traced, enum mrc_trace_point point) {
  int n = 0;
  for (int i = 0; i < traced->n; i++)
    n += traced->entries[i].point == point;
  return n;
}

/* Each packet that one host traces when it leaves is traced by the other when it arrives. */
static void check_pairs(const struct traced *from, enum mrc_trace_point out,
                        const struct traced *to, enum mrc_trace_point in) {
  CHECK(count(from, out) > 0);
  CHECK_EQ(count(to, in), count(from, out));
  for (int i = 0; i < from->n; i++)
    if (from->entries[i].point == out) CHECK(has(to, in, from->entries[i].a, from->entries[i].b));
}

static struct mrc_pair *open_traced(void) {
  return open_pair(.planes = 2, .paths = 2, .engine.trace_entries = ENTRIES);
}

/* One packet of a message with an immediate is lost; its EV comes back after probes. */
TEST(test_trace__of_a_loss) {
  PAIR p = open_traced();
  const int end = open_qp(p, .memory_bytes = 100 * MTU, .spray = 1);
  lose_data(p, 17, 1);
  WRITE_IMM_AND_WAIT(p, end, 100 * MTU, 5 * MS);
  run_for(p, 50 * MS);
  const struct traced writer = traced_by(p, 0), reader = traced_by(p, 1);
  const uint64_t ev = first(&writer, MRC_TRACE_EV_STATE).a;
  CHECK_EQ(count(&writer, MRC_TRACE_SEND), 100);
  for (uint64_t psn = 0; psn < 100; psn++)
    CHECK(has(&reader, MRC_TRACE_PLACE, psn, MTU));
  CHECK(has(&writer, MRC_TRACE_SEND, 17, ev));
  CHECK(has(&writer, MRC_TRACE_LOST, 17, MRC_COUNTER_LOST_BY_ORDER));
  CHECK_EQ(count(&writer, MRC_TRACE_RESEND), 1);
  CHECK_EQ(first(&writer, MRC_TRACE_RESEND).a, 17);
  CHECK(has(&writer, MRC_TRACE_EV_STATE, ev, MRC_EV_ASSUMED_BAD));
  CHECK(has(&writer, MRC_TRACE_EV_STATE, ev, MRC_EV_GOOD));
  CHECK_EQ(first(&writer, MRC_TRACE_EV_PROBE_OUT).b, ev);
  CHECK(has(&writer, MRC_TRACE_EV_PROBE_IN, first(&writer, MRC_TRACE_EV_PROBE_OUT).a,
            2 * PATH_DELAY));
  CHECK_EQ(first(&reader, MRC_TRACE_IMMEDIATE).b, 100 * MTU);
  CHECK_EQ(first(&writer, MRC_TRACE_COMPLETE).b, MRC_WC_SUCCESS);
  CHECK(has(&writer, MRC_TRACE_QP_STATE, MRC_QP_RTR, MRC_QP_RTS));
  check_pairs(&reader, MRC_TRACE_SACK_OUT, &writer, MRC_TRACE_SACK_IN);
  check_pairs(&reader, MRC_TRACE_ACK_OUT, &writer, MRC_TRACE_ACK_IN);
}

/* One port goes down and the other plane falls silent: a reliability probe requests the state of
   the last packets, the local timeout expires, and both planes come back. */
TEST(test_trace__of_silence) {
  PAIR p = open_traced();
  const int end = open_qp(p, .memory_bytes = 300 * MTU, .timeout = 12);
  WRITE_AND_WAIT(p, end, 100 * MTU, 5 * MS);
  mrc_pair_port_up(p, 0, 2, false);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, end, 10 * MTU), 0);
  run_for(p, 6 * MS);
  mrc_pair_silence(p, 1, false);
  mrc_pair_port_up(p, 0, 2, true);
  CHECK(mrc_pair_finish(p, 20 * MS));
  run_for(p, 50 * MS);
  const struct traced writer = traced_by(p, 0), reader = traced_by(p, 1);
  CHECK(has(&writer, MRC_TRACE_TIMEOUT, 1, 1024 << 12));
  CHECK_EQ(first(&writer, MRC_TRACE_PROBE_OUT).b, 0);
  CHECK(has(&writer, MRC_TRACE_LOST, 100, MRC_COUNTER_LOST_BY_TIMEOUT));
  CHECK(has(&writer, MRC_TRACE_PLANE_SUSPEND, 2, 0));
  CHECK(has(&writer, MRC_TRACE_PLANE_RESUME, 2, 0));
  const struct mrc_trace_entry in = first(&writer, MRC_TRACE_PROBE_IN);
  CHECK(has(&writer, MRC_TRACE_PROBE_OUT, in.a, 0));
  CHECK_EQ(in.b, 2 * PATH_DELAY);
  const struct mrc_trace_entry status = first(&reader, MRC_TRACE_PORT_STATUS_IN);
  CHECK_EQ(status.b, 3);
  CHECK(has(&writer, MRC_TRACE_PORT_STATUS_OUT, status.a, 3));
  CHECK(has(&writer, MRC_TRACE_PORT_STATUS_TOLD, status.a, 3));
}
