/* SPDX-License-Identifier: Apache-2.0 */
/* Which QP has its turn when several QPs have data to send, or wait for room in the CQ. */
#include "core/engine.h"
#include "core/send.h"
#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

static const uint8_t four[4] = {1, 2, 3, 4};

/* One QP of host 1 has data for many transmits and was there first; another owes an answer. */
struct two_qps {
  struct mrc_pair *pair;
  mrc_engine *engine; /* of host 1 */
  int asked;          /* host 0's end of the QP that owes the answer */
};

static struct two_qps open_two_qps(void) {
  struct mrc_pair *p = open_pair();
  const int busy = open_qp(p, .from = 1, .to = 0, .memory_bytes = 256 * MTU);
  const int asked = open_qp(p, .memory_bytes = 64);
  prove_paths(p->hosts[1].engine, p->ends[busy]->qpn);
  p->ends[busy]->audit.unwatched = p->ends[p->ends[busy]->peer]->audit.unwatched = true;
  run_for(p, MS);
  CHECK_EQ(mrc_pair_write(p, busy, 256 * MTU), 0);
  return (struct two_qps){p, p->hosts[1].engine, asked};
}

static void ask(const struct two_qps *qps) {
  struct forge forge = make_forge(qps->pair, qps->asked, four);
  forge.wire = (struct mrc_wire){.opcode = MRC_OP_PROBE, .dest_qpn = forge.wire.dest_qpn};
  CHECK_EQ(send_forge(qps->pair, &forge), 0);
}

static void check_answer_leaves_first(const struct two_qps *qps) {
  static const int all_taken[4] = {1, 1, 1, 1};
  struct mrc_burst bursts[4];
  CHECK_EQ(mrc_engine_transmit(qps->engine, bursts, 4, qps->pair->now_ns), 4);
  CHECK_EQ(bursts[0].packets[0].header[0], MRC_OP_SACK);
  for (int i = 1; i < 4; i++)
    CHECK(mrc_opcode_is_data(bursts[i].packets[0].header[0]));
  mrc_engine_commit(qps->engine, bursts, all_taken, 4, qps->pair->now_ns);
}

TEST(test_answers__leave_before_the_data_of_other_qps) {
  const struct two_qps qps = open_two_qps();
  ask(&qps);
  check_answer_leaves_first(&qps);
  mrc_pair_destroy(qps.pair);
}

TEST(test_answers__leave_before_data_when_a_port_has_room_again) {
  const struct two_qps qps = open_two_qps();
  struct mrc_burst burst;
  mrc_engine_port_blocked(qps.engine, 1, true, qps.pair->now_ns);
  CHECK_EQ(mrc_engine_transmit(qps.engine, &burst, 1, qps.pair->now_ns), 0);
  ask(&qps);
  CHECK_EQ(mrc_engine_transmit(qps.engine, &burst, 1, qps.pair->now_ns), 0);
  mrc_engine_port_blocked(qps.engine, 1, false, qps.pair->now_ns);
  check_answer_leaves_first(&qps);
  mrc_pair_destroy(qps.pair);
}

/* A burst is limited by bytes: a new window of whole packets holds many short ones. */
TEST(test_burst__takes_many_short_packets_from_the_start) {
  struct mrc_pair *p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64);
  mrc_engine *engine = p->hosts[p->ends[end]->host].engine;
  prove_paths(engine, p->ends[end]->qpn);
  for (int i = 0; i < 8; i++)
    CHECK_EQ(mrc_pair_write(p, end, 8), 0);
  static const int all_taken[4] = {1, 1, 1, 1};
  struct mrc_burst bursts[4];
  const int n = mrc_engine_transmit(engine, bursts, 4, p->now_ns);
  CHECK_EQ(n, 1);
  CHECK_EQ(bursts[0].n_packets, 8);
  mrc_engine_commit(engine, bursts, all_taken, n, p->now_ns);
  mrc_pair_destroy(p);
}

/* Answers that no EV can carry now are neither tried repeatedly nor dropped. */
TEST(test_answers__wait_for_a_port) {
  struct mrc_pair *p = open_pair();
  const int end = open_qp(p, .memory_bytes = 512 * MTU);
  struct forge forge = make_forge(p, end, four);
  mrc_engine *engine = p->hosts[1].engine;
  struct mrc_burst burst;
  static const int taken = 1;
  run_for(p, MS);
  mrc_engine_port_blocked(engine, 1, true, p->now_ns);
  forge.wire = (struct mrc_wire){.opcode = MRC_OP_PROBE, .dest_qpn = forge.wire.dest_qpn};
  CHECK_EQ(send_forge(p, &forge), 0);
  CHECK_EQ(mrc_engine_transmit(engine, &burst, 1, p->now_ns), 0);
  CHECK(mrc_engine_deadline(engine) > p->now_ns);
  mrc_engine_port_blocked(engine, 1, false, p->now_ns);
  CHECK_EQ(mrc_engine_transmit(engine, &burst, 1, p->now_ns), 1);
  CHECK_EQ(burst.packets[0].header[0], MRC_OP_SACK);
  mrc_engine_commit(engine, &burst, &taken, 1, p->now_ns);
  mrc_pair_destroy(p);
}

/* Three QPs of host 1 that have data for many transmits. With `spray` they send packet by packet.
 */
enum { SPRAYING = 3 };

struct spraying {
  struct mrc_pair *pair;
  mrc_engine *engine;
  uint32_t index[SPRAYING]; /* engine indices of the QPs */
};

static struct spraying open_spraying(uint32_t spray) {
  struct spraying s = {.pair = open_pair()};
  s.engine = s.pair->hosts[1].engine;
  for (int i = 0; i < SPRAYING; i++) {
    const int end = open_qp(s.pair, .from = 1, .to = 0, .spray = spray, .memory_bytes = 512 * MTU);
    const uint32_t qpn = s.pair->ends[end]->qpn;
    prove_paths(s.engine, qpn);
    s.index[i] = mrc_engine_qp(s.engine, qpn)->index;
    s.pair->ends[end]->audit.unwatched = true;
    CHECK_EQ(mrc_pair_write(s.pair, end, 512 * MTU), 0);
  }
  return s;
}

/* Checks that the bursts come in turn from QP `first` on; the first n_taken are taken. */
static void check_turns(const struct spraying *s, int first, int n_taken) {
  enum { BURSTS = 7 };
  struct mrc_burst bursts[BURSTS];
  int taken[BURSTS];
  CHECK_EQ(mrc_engine_transmit(s->engine, bursts, BURSTS, s->pair->now_ns), BURSTS);
  for (int i = 0; i < BURSTS; i++) {
    CHECK_ROW((size_t)i);
    CHECK_EQ(bursts[i].n_packets, 1);
    CHECK_EQ(bursts[i]._qp, s->index[(first + i) % SPRAYING]);
    taken[i] = i < n_taken;
  }
  mrc_engine_commit(s->engine, bursts, taken, BURSTS, s->pair->now_ns);
}

TEST(test_turns__of_qps_that_spray_packets_are_a_packet_long) {
  const struct spraying s = open_spraying(1);
  check_turns(&s, 0, 7);
  check_turns(&s, 1, 7);
  mrc_pair_destroy(s.pair);
}

TEST(test_turns__in_vain_are_not_lost) {
  const struct spraying s = open_spraying(1);
  check_turns(&s, 0, 1);
  check_turns(&s, 1, 4);
  check_turns(&s, 2, 0);
  check_turns(&s, 2, 7);
  mrc_pair_destroy(s.pair);
}

/* Without spraying, a turn is four bursts long. */
TEST(test_turns__of_other_qps_are_four_bursts_long) {
  enum { BURSTS = 12 };
  const struct spraying s = open_spraying(0);
  struct mrc_burst bursts[BURSTS];
  int taken[BURSTS];
  CHECK_EQ(mrc_engine_transmit(s.engine, bursts, BURSTS, s.pair->now_ns), BURSTS);
  for (int i = 0; i < BURSTS; i++) {
    CHECK_ROW((size_t)i);
    CHECK_EQ(bursts[i]._qp, s.index[i / MRC_QUANTUM_BURSTS]);
    taken[i] = 1;
  }
  mrc_engine_commit(s.engine, bursts, taken, BURSTS, s.pair->now_ns);
  mrc_pair_destroy(s.pair);
}

/* The immediates of two QPs find the CQ full: the QPs take turns for each place that becomes free.
 */
TEST(test_held__qps_take_turns_for_the_cq) {
  enum { EACH = 12, DEPTH = 16 };
  struct mrc_pair *p = open_pair(.hosts = 3, .engine.cq_depth = DEPTH);
  const int ends[2] = {open_qp(p, .memory_bytes = EACH * 4),
                       open_qp(p, .from = 2, .to = 1, .memory_bytes = EACH * 4)};
  p->hosts[1].stops_polling = true;
  for (int i = 0; i < 2; i++)
    p->ends[ends[i]]->audit.unwatched = p->ends[p->ends[ends[i]]->peer]->audit.unwatched = true;
  for (int k = 0; k < 2 * EACH; k++) {
    CHECK_EQ(mrc_pair_write_imm(p, ends[k % 2], 4), 0);
    run_for(p, MS);
  }
  CHECK_EQ(counter(p, 1, MRC_COUNTER_WIMM_HELD), 2);
  uint32_t last_qpn = 0;
  int n = 0;
  for (struct mrc_wc wc; mrc_cq_poll(p->hosts[1].engine, &wc, 1) == 1; n++) {
    if (n > DEPTH) CHECK(wc.qpn != last_qpn);
    last_qpn = wc.qpn;
  }
  CHECK_EQ(n, 2 * EACH);
  mrc_pair_destroy(p);
}
