/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of SACKs, packet by packet. */
#include "core/engine.h"
#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

static const uint8_t four[4] = {0};

/* The next SACK that host 1 sends; it may have to send EV probes first. */
static struct mrc_wire next_sack(struct mrc_pair *p) {
  struct mrc_engine *engine = p->hosts[1].engine;
  struct mrc_burst burst;
  struct mrc_wire wire = {0};
  while (wire.opcode != MRC_OP_SACK && mrc_engine_transmit(engine, &burst, 1, p->now_ns) == 1) {
    const struct mrc_packet *packet = &burst.packets[0];
    CHECK_EQ(mrc_wire_decode(packet->header, packet->header_bytes, true, &wire), 0);
    mrc_engine_commit(engine, &burst, &(int){1}, 1, p->now_ns);
  }
  CHECK_EQ(wire.opcode, MRC_OP_SACK);
  return wire;
}

/* The SACK of a marked packet reports the mark. The next SACK, sent without a new packet, repeats
   the newest packet but not its mark, or the EV would skip another turn. */
TEST(test_sack__a_mark_is_told_once) {
  struct mrc_pair *p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64, .dynamic_mpr = 1);
  const uint32_t qpn = p->ends[p->ends[end]->peer]->qpn;
  run_for(p, MS);
  struct forge forge = make_forge(p, end, four);
  forge.meta.ecn = 3;
  CHECK_EQ(send_forge(p, &forge), 0);
  const struct mrc_wire first = next_sack(p);
  CHECK_EQ(first.sack.m, MRC_M_SKIP_ONCE);
  CHECK_EQ(mrc_qp_set_mpr(p->hosts[1].engine, qpn, 128, p->now_ns), 0);
  const struct mrc_wire second = next_sack(p);
  CHECK_EQ(second.sack.mpr, 1);
  CHECK_EQ(second.sack.ev, first.sack.ev);
  CHECK_EQ(second.sack.cum_psn, first.sack.cum_psn);
  CHECK_EQ(second.sack.m, MRC_M_NONE);
  mrc_pair_destroy(p);
}

/* A SACK carries its send time only if the peer requests it, else the count of packets out of
 * order. */
TEST(test_sack__its_send_time_on_request) {
  for (uint32_t asked = 0; asked <= 1; asked++) {
    CHECK_ROW(asked);
    struct mrc_pair *p = open_pair();
    const int end = open_qp(p, .memory_bytes = 64, .sack_times = asked);
    run_for(p, MS);
    struct forge forge = make_forge(p, end, four);
    forge.wire.psn = mrc_psn_add(forge.wire.psn, 3);
    CHECK_EQ(send_forge(p, &forge), 0);
    p->now_ns += 100 * MS;
    mrc_engine_expire(p->hosts[1].engine, p->now_ns);
    const struct mrc_sack sack = next_sack(p).sack;
    CHECK_EQ(sack.cc_type, asked ? MRC_CC_TYPE_TIMES : MRC_CC_TYPE_NSCC);
    CHECK_EQ(sack.sent_timestamp, asked ? mrc_timestamp(p->now_ns) : 0);
    CHECK_EQ(sack.ooo_count, asked ? 0 : 4);
    mrc_pair_destroy(p);
  }
}

/* Two hosts write to each other at 500 Mbit/s: SACKs wait behind data, as the requester finds out.
 */
TEST(test_sack__its_wait_is_known) {
  for (uint32_t asked = 0; asked <= 1; asked++) {
    CHECK_ROW(asked);
    struct mrc_pair *p = open_pair(.port_out.rate_bps = 500000000);
    const int end = open_qp(p, .memory_bytes = 4u << 20, .mpr = 1024, .sack_times = asked);
    const uint32_t sizes[] = {MTU, 2u << 20}; /* the first write finds the empty way back */
    for (int i = 0; i < 2; i++) {
      CHECK_EQ(mrc_pair_write(p, end, sizes[i]), 0);
      CHECK_EQ(mrc_pair_write(p, p->ends[end]->peer, sizes[i]), 0);
      CHECK(mrc_pair_finish(p, SECOND));
    }
    const struct mrc_pair_end *e = p->ends[end];
    const struct mrc_qp *qp = mrc_engine_qp(p->hosts[e->host].engine, e->qpn);
    const uint64_t wait_ns = qp->planes[0].cc.delay.reverse_ns;
    CHECK(asked ? wait_ns > MS && wait_ns < 40 * MS : wait_ns == 0);
    mrc_pair_destroy(p);
  }
}

/* While many QPs receive, the SACK of each may wait longer; QPs that are gone do not count. */
TEST(test_sack__waits_longer_while_many_qps_receive) {
  enum { QPS = 6 };
  struct mrc_pair *p = open_pair();
  struct mrc_services *services = &p->hosts[1].engine->services;
  int ends[QPS];
  for (int i = 0; i < QPS; i++)
    ends[i] = open_qp(p, .memory_bytes = 64);
  run_for(p, MS);
  for (int i = 0; i < QPS; i++) {
    CHECK_ROW(i);
    struct forge forge = make_forge(p, ends[i], four);
    CHECK_EQ(send_forge(p, &forge), 0);
    const uint64_t delays = mrc_min_u64(mrc_max_u64((uint64_t)i, 1), 4);
    CHECK_EQ(inside(p, p->ends[ends[i]]->peer)->resp.sack_deadline_ns,
             p->now_ns + delays * MRC_NOISE_NS);
  }
  CHECK_EQ(services->ready.n_reporting, QPS);
  const struct mrc_pair_end *gone = p->ends[p->ends[ends[0]]->peer];
  CHECK_EQ(mrc_qp_destroy(p->hosts[1].engine, gone->qpn), 0);
  CHECK_EQ(services->ready.n_reporting, QPS - 1);
  mrc_qp_fail(services, inside(p, p->ends[ends[1]]->peer), MRC_WC_WR_FLUSH_ERR,
              MRC_WC_WR_FLUSH_ERR);
  CHECK_EQ(services->ready.n_reporting, QPS - 2);
  run_for(p, 10 * MS);
  CHECK_EQ(services->ready.n_reporting, 0);
  CHECK_EQ(mrc_services_crowd(services), 1);
  mrc_pair_destroy(p);
}

/* Two packets of one port, only one of them marked, need a SACK each: both leave in one burst. */
TEST(test_sack__of_one_port_in_one_burst) {
  struct mrc_pair *p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64);
  run_for(p, MS);
  struct forge forge = make_forge(p, end, four);
  CHECK_EQ(send_forge(p, &forge), 0);
  forge.wire.psn = 1;
  forge.meta.ecn = 3;
  CHECK_EQ(send_forge(p, &forge), 0);
  p->now_ns += 10 * MS;
  struct mrc_engine *engine = p->hosts[1].engine;
  mrc_engine_expire(engine, p->now_ns);
  struct mrc_burst burst;
  CHECK_EQ(mrc_engine_transmit(engine, &burst, 1, p->now_ns), 1);
  int n_sacks = 0;
  for (int i = 0; i < burst.n_packets; i++) /* an EV probe may travel with them */
    n_sacks += burst.packets[i].header[0] == MRC_OP_SACK;
  CHECK_EQ(n_sacks, 2);
  mrc_engine_commit(engine, &burst, &(int){1}, 1, p->now_ns);
  mrc_pair_destroy(p);
}

/* After an overflow of this host's socket, SACKs penalize the peer's window for a round trip. */
TEST(test_sack__penalty_after_an_overflow) {
  static const struct {
    bool overflowed;
    uint64_t later_ns;
    uint8_t penalty;
  } rows[] = {{false, 0, 0}, {true, 0, 64}, {true, MRC_NOISE_NS, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct mrc_pair *p = open_pair();
    const int end = open_qp(p, .memory_bytes = 64);
    run_for(p, MS);
    struct forge forge = make_forge(p, end, four);
    forge.meta.overflowed = rows[i].overflowed;
    forge.meta.ecn = 3; /* its SACK is due at once */
    CHECK_EQ(send_forge(p, &forge), 0);
    p->now_ns += rows[i].later_ns;
    CHECK_EQ(next_sack(p).sack.rcv_cwnd_pen, rows[i].penalty);
    mrc_pair_destroy(p);
  }
}

/* How many bytes make a SACK due at once, without a request. */
TEST(test_sack__threshold_of_the_reading) {
  static const struct {
    uint32_t readings, packets;
  } rows[] = {{MRC_READING_G2_B, 4}, {MRC_READING_G2_A, 16}, {0, 256}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct mrc_pair *p = open_pair(.engine.readings = rows[i].readings);
    const int end = open_qp(p, .memory_bytes = 64, .mpr = 1024);
    run_for(p, MS);
    struct mrc_engine *engine = p->hosts[1].engine;
    const uint32_t threshold_bytes = engine->services.config.sack_threshold_bytes;
    const struct mrc_qp *qp = mrc_engine_qp(engine, p->ends[p->ends[end]->peer]->qpn);
    for (uint32_t sent = 0; sent < rows[i].packets; sent++) { /* each counts as 1 KiB */
      CHECK_EQ(mrc_responder_due_port(&qp->resp, threshold_bytes), 0);
      struct forge forge = make_forge(p, end, four);
      forge.wire.psn = mrc_psn_add(forge.wire.psn, sent);
      CHECK_EQ(send_forge(p, &forge), 0);
    }
    CHECK(mrc_responder_due_port(&qp->resp, threshold_bytes) != 0);
    mrc_pair_destroy(p);
  }
}
