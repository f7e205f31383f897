/* SPDX-License-Identifier: Apache-2.0 */
#include "core/engine.h"

#include <errno.h>
#include <stdlib.h>

#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

/* ---- access ---- */

/* Access to memory: rights and bounds at both ends. */

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
  EACH_ROW(i, rows) {
    PAIR p = open_pair(.planes = 2, .paths = 2);
    int end = open_qp(p, .memory_bytes = BYTES);
    struct mrc_pair_end *e = p->ends[end];
    uint32_t rkey = rows[i].wrong_key ? e->rkey + 1 : e->rkey;
    if (rows[i].local_key) rkey = p->ends[e->peer]->lkey;
    struct mrc_wr wr = {.local = (uintptr_t)e->audit.source,
                        .va = (uintptr_t)e->audit.target + (uint64_t)rows[i].offset,
                        .lkey = e->lkey,
                        .rkey = rkey,
                        .bytes = rows[i].bytes};
    mrc_audit_posted(&e->audit, &wr);
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
  }
}

/* Memory of another domain than the QP's is closed to it, at both ends. */
TEST(test_domains__separate) {
  enum { OWN = 4, OTHER = 5, OWN_KEY = 7, OTHER_KEY = 8 };
  const uint32_t access = MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE;
  PAIR p = open_pair(.planes = 2, .paths = 2);
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
  WRITE_AND_WAIT(p, end, MTU, 20 * MS);
  CHECK_EQ(succeeded(p, end), 1);
  e->rkey = OTHER_KEY;
  WRITE_AND_WAIT(p, end, MTU, 20 * MS);
  CHECK_EQ(e->audit.statuses[MRC_WC_REM_ACCESS_ERR], 1);
}

/* The requester receives the refusal although the first NAKs are lost. */
TEST(test_remote__refusal_survives_loss) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 64, .retry_linear = 7, .retry_exp = 4);
  lose_kind(p, 1, MRC_OP_ACK, 3);
  p->ends[end]->rkey++;
  WRITE_AND_WAIT(p, end, 64, 100 * MS);
  CHECK_EQ(audit_of(p, end)->statuses[MRC_WC_REM_ACCESS_ERR], 1);
}

/* The responder flushes its own writes in flight, although none of them was refused. */
TEST(test_remote__the_responders_own_writes_are_flushed) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 500 * US);
  int end = open_qp(p, .memory_bytes = 1u << 20, .timeout = 14);
  int peer = p->ends[end]->peer;
  CHECK_EQ(mrc_pair_write(p, peer, 1u << 20), 0);
  CHECK_EQ(mrc_pair_write_imm(p, peer, 0), 0);
  p->ends[end]->rkey++;
  WRITE_AND_WAIT(p, end, 64, 100 * MS);
  CHECK_EQ(audit_of(p, end)->statuses[MRC_WC_REM_ACCESS_ERR], 1);
  CHECK_EQ(audit_of(p, peer)->statuses[MRC_WC_WR_FLUSH_ERR], 2);
}

TEST(test_post__refuses_local_memory) {
  PAIR p = open_pair();
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
  EACH_ROW(i, rows)
    CHECK_EQ(mrc_qp_post(p->hosts[0].engine, e->qpn, &rows[i].wr, 1, p->now_ns), rows[i].error);
  CHECK_EQ(mrc_qp_post(p->hosts[0].engine, e->qpn + 1, &rows[0].wr, 1, p->now_ns), -ENOENT);
  CHECK_EQ(mrc_pair_info(p, end).outstanding, 0);
}

TEST(test_mr__deregister_waits_for_its_readers) {
  PAIR p = open_pair();
  int end = open_qp(p, .memory_bytes = 100 * MTU);
  mrc_engine *engine = p->hosts[0].engine;
  CHECK_EQ(mrc_pair_write(p, end, 100 * MTU), 0);
  CHECK_EQ(mrc_mr_deregister(engine, p->ends[end]->lkey), -EBUSY);
  CHECK(mrc_pair_finish(p, 50 * MS));
  CHECK_EQ(mrc_mr_deregister(engine, p->ends[end]->lkey), 0);
  CHECK_EQ(mrc_mr_deregister(engine, p->ends[end]->lkey), -ENOENT);
}

/* The owner deregisters the target during a transfer: no byte arrives afterwards. */
TEST(test_mr__deregister_under_remote_writes) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = 100000000);
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
}

/* ---- refusals ---- */

/* A peer refuses packets for lack of resources: the requester retries a limited number of times. */

enum { RETRIES = 7 }; /* 3 + 4, as in scenario.h */

/* Host 1 writes and receives only forged packets. Returns host 0's end. */
static int open_silent(struct mrc_pair *p, uint8_t retry_exp) {
  const int end = open_qp(p, .memory_bytes = 64 * MTU, .retry_exp = retry_exp);
  WRITE_AND_WAIT(p, end, MTU, 10 * MS);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, p->ends[end]->peer, 2 * MTU), 0);
  run_for(p, 10 * US);
  return end;
}

/* Refuses the n-th packet of host 1 that is in flight, and lets host 1 retransmit it. */
static void refuse(struct mrc_pair *p, int end, uint32_t n, uint8_t reason) {
  const struct mrc_qp *qp = inside(p, p->ends[end]->peer);
  const uint32_t psn = mrc_psn_add(qp->req.win.una_psn, n);
  const struct mrc_txslot *slot = mrc_txwin_slot(&qp->req.win, psn);
  CHECK_EQ(slot->state, MRC_TX_INFLIGHT);
  struct forge forge = make_forge(p, end);
  set_wire(
      forge, .opcode = MRC_OP_NACK, .dest_qpn = qp->qpn, .psn = psn,
      .nack = {
          .reason = reason, .ev = qp->evset.evs[slot->ev].value, .nack_psn = psn, .cc_type = 2});
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_NONE);
  run_for(p, 10 * US);
}

TEST(test_refusal__counts_as_a_retry) {
  static const uint8_t reasons[] = {MRC_NACK_NO_BITMAP, MRC_NACK_NO_PKT_BUFFER,
                                    MRC_NACK_NO_RESOURCE, MRC_NACK_PSN_OOR_WINDOW};
  EACH_OF(size_t, row, 0, sizeof reasons) {
    PAIR p = open_pair(.paths = 4);
    const int end = open_silent(p, RETRIES - 3), peer = p->ends[end]->peer;
    for (int i = 0; i < RETRIES; i++)
      refuse(p, end, 0, reasons[row]);
    CHECK_EQ(mrc_pair_info(p, peer).state, MRC_QP_RTS);
    CHECK_EQ(mrc_pair_info(p, peer).timeouts, RETRIES);
    refuse(p, end, 0, reasons[row]);
    CHECK_EQ(mrc_pair_info(p, peer).state, MRC_QP_ERROR);
    CHECK_EQ(mrc_pair_info(p, peer).status, MRC_WC_RETRY_EXC_ERR);
  }
}

/* Refusals of a whole window count as one retry. */
TEST(test_refusal__of_several_packets_counts_once) {
  PAIR p = open_pair(.paths = 4);
  const int end = open_silent(p, RETRIES - 3), peer = p->ends[end]->peer;
  for (int i = 0; i < RETRIES; i++) {
    refuse(p, end, 1, MRC_NACK_NO_RESOURCE);
    refuse(p, end, 0, MRC_NACK_NO_RESOURCE);
  }
  CHECK_EQ(mrc_pair_info(p, peer).timeouts, RETRIES);
  CHECK_EQ(mrc_pair_info(p, peer).state, MRC_QP_RTS);
}

/* One counter counts expiries of the local timeout and refusals together. */
TEST(test_refusal__shares_the_counter_with_timeouts) {
  PAIR p = open_pair(.paths = 4);
  const int end = open_silent(p, RETRIES - 3), peer = p->ends[end]->peer;
  for (int i = 0; i < RETRIES; i++)
    refuse(p, end, 0, MRC_NACK_NO_RESOURCE);
  run_for(p, 3 * SECOND); /* the next expiry, after a doubled interval, exceeds the limit */
  CHECK_EQ(mrc_pair_info(p, peer).status, MRC_WC_RETRY_EXC_ERR);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TIMEOUTS), 1);
}

TEST(test_refusal__progress_starts_anew) {
  PAIR p = open_pair(.paths = 4);
  const int end = open_silent(p, RETRIES - 3), peer = p->ends[end]->peer;
  for (int i = 0; i < RETRIES; i++)
    refuse(p, end, 0, MRC_NACK_NO_RESOURCE);
  mrc_pair_silence(p, 1, false);
  CHECK(mrc_pair_finish(p, 3 * SECOND));
  CHECK_EQ(mrc_pair_info(p, peer).timeouts, 0);
  CHECK(!inside(p, peer)->req.refused);
  CHECK_EQ(succeeded(p, peer), 1);
}

/* Trims are congestion, not refusals; and the number of retries may be unlimited. */
TEST(test_refusal__what_does_not_count) {
  static const struct {
    uint8_t reason, retry_exp;
  } rows[] = {{MRC_NACK_TRIMMED, 4}, {MRC_NACK_TRIMMED_LASTHOP, 4}, {MRC_NACK_NO_RESOURCE, 25}};
  EACH_ROW(row, rows) {
    PAIR p = open_pair(.paths = 4);
    const int end = open_silent(p, rows[row].retry_exp);
    for (int i = 0; i < 30; i++)
      refuse(p, end, 0, rows[row].reason);
    CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
  }
}

/* After a trim inside the fabric the EV skips turns; after a trim at the last hop no EV does. */
TEST(test_trim__at_the_last_hop_blames_no_path) {
  static const uint8_t reasons[] = {MRC_NACK_TRIMMED, MRC_NACK_TRIMMED_LASTHOP};
  EACH_OF(int, row, 0, 2) {
    PAIR p = open_pair(.paths = 4);
    const int end = open_silent(p, 4);
    refuse(p, end, 0, reasons[row]);
    static struct mrc_trace_entry entries[4096];
    const int n = mrc_engine_trace(p->hosts[1].engine, entries, 4096);
    int skips = 0;
    for (int i = 0; i < n; i++)
      skips += entries[i].point == MRC_TRACE_EV_STATE && entries[i].b == MRC_EV_SKIP;
    CHECK_EQ(skips, reasons[row] == MRC_NACK_TRIMMED);
    CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).retransmitted_packets, 1);
  }
}

/* ---- NACKs ---- */

/* NACKs that the kernel refuses at first, and an unlimited stream of NACKs. */

enum { CAPACITY = 16, NACKS = 3 };

/* The kernel refuses the NACKs of trims at first: the engine offers all again, unchanged. */
TEST(test_nack__refused_is_given_again) {
  PAIR p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64 * MTU);
  struct forge forge = make_forge(p, end);
  forge.meta.trimmed = MRC_TRIMMED;
  for (uint32_t i = 0; i < NACKS; i++) {
    forge.wire.psn = i + 1;
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_TRIMMED);
  }
  struct mrc_burst bursts[CAPACITY];
  uint8_t headers[NACKS][MRC_MAX_HEADER];
  CHECK_EQ(transmit(p, 1, bursts, CAPACITY, 0), 1);
  CHECK_EQ(bursts[0].n_packets, NACKS);
  for (int i = 0; i < NACKS; i++) {
    CHECK_EQ(bursts[0].packets[i].header[0], MRC_OP_NACK);
    memcpy(headers[i], bursts[0].packets[i].header, bursts[0].packets[i].header_bytes);
  }
  CHECK_EQ(transmit(p, 1, bursts, CAPACITY, 1), 1);
  CHECK_EQ(bursts[0].n_packets, NACKS);
  for (int i = 0; i < NACKS; i++)
    CHECK_MEM_EQ(bursts[0].packets[i].header, headers[i], bursts[0].packets[i].header_bytes);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_NACKS), NACKS);
  CHECK_EQ(transmit(p, 1, bursts, CAPACITY, 1), 0);
}

/* Every packet of a peer needs a NACK, and none can leave: the engine drops the NACKs beyond its
   queue. */
TEST(test_nack__no_more_than_fit) {
  PAIR p = open_pair();
  const int end = open_qp(p, .memory_bytes = 256 * MTU);
  struct forge forge = make_forge(p, end);
  forge.meta.trimmed = MRC_TRIMMED;
  for (uint32_t i = 0; i < 2 * MRC_MAX_NACKS; i++) {
    forge.wire.psn = i + 1;
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_TRIMMED);
  }
  CHECK_EQ(mrc_qps_find(&p->hosts[1].engine->qps, p->ends[p->ends[end]->peer]->qpn)->resp.n_nacks,
           MRC_MAX_NACKS);
  struct mrc_burst bursts[CAPACITY];
  while (transmit(p, 1, bursts, CAPACITY, 1) > 0)
    CHECK_EQ(bursts[0].packets[0].header[0], MRC_OP_NACK);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_NACKS), MRC_MAX_NACKS);
}

/* ---- SACKs ---- */

/* The contents of SACKs, packet by packet. */

/* The next SACK that host 1 sends; it may have to send EV probes first. */
static struct mrc_wire next_sack(struct mrc_pair *p) {
  struct mrc_burst burst;
  struct mrc_wire wire = {0};
  while (wire.opcode != MRC_OP_SACK && transmit(p, 1, &burst, 1, 1) == 1) {
    const struct mrc_packet *packet = &burst.packets[0];
    CHECK_EQ(mrc_wire_decode(packet->header, packet->header_bytes, true, &wire), 0);
  }
  CHECK_EQ(wire.opcode, MRC_OP_SACK);
  return wire;
}

/* The SACK of a marked packet reports the mark. The next SACK, sent without a new packet, repeats
   the newest packet but not its mark, or the EV would skip another turn. */
TEST(test_sack__a_mark_is_told_once) {
  PAIR p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64, .dynamic_mpr = 1);
  const uint32_t qpn = p->ends[p->ends[end]->peer]->qpn;
  run_for(p, MS);
  struct forge forge = make_forge(p, end);
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
}

/* A SACK carries its send time only if the peer requests it, else the count of packets out of
 * order. */
TEST(test_sack__its_send_time_on_request) {
  EACH_OF(uint32_t, asked, 0, 2) {
    PAIR p = open_pair();
    const int end = open_qp(p, .memory_bytes = 64, .sack_times = asked);
    run_for(p, MS);
    struct forge forge = make_forge(p, end);
    forge.wire.psn = mrc_psn_add(forge.wire.psn, 3);
    CHECK_EQ(send_forge(p, &forge), 0);
    p->now_ns += 100 * MS;
    mrc_engine_expire(p->hosts[1].engine, p->now_ns);
    const struct mrc_sack sack = next_sack(p).sack;
    CHECK_EQ(sack.cc_type, asked ? MRC_CC_TYPE_TIMES : MRC_CC_TYPE_NSCC);
    CHECK_EQ(sack.sent_timestamp, asked ? mrc_timestamp(p->now_ns) : 0);
    CHECK_EQ(sack.ooo_count, asked ? 0 : 4);
  }
}

/* Two hosts write to each other at 500 Mbit/s: SACKs wait behind data, as the requester finds out.
 */
TEST(test_sack__its_wait_is_known) {
  EACH_OF(uint32_t, asked, 0, 2) {
    PAIR p = open_pair(.port_out.rate_bps = 500000000);
    const int end = open_qp(p, .memory_bytes = 4u << 20, .mpr = 1024, .sack_times = asked);
    const uint32_t sizes[] = {MTU, 2u << 20}; /* the first write finds the empty way back */
    for (int i = 0; i < 2; i++) {
      CHECK_EQ(mrc_pair_write(p, end, sizes[i]), 0);
      WRITE_AND_WAIT(p, p->ends[end]->peer, sizes[i], SECOND);
    }
    const struct mrc_pair_end *e = p->ends[end];
    const struct mrc_qp *qp = mrc_qps_find(&p->hosts[e->host].engine->qps, e->qpn);
    const uint64_t wait_ns = qp->planes[0].cc.delay.reverse_ns;
    CHECK(asked ? wait_ns > MS && wait_ns < 40 * MS : wait_ns == 0);
  }
}

/* While many QPs receive, the SACK of each may wait longer; QPs that are gone do not count. */
TEST(test_sack__waits_longer_while_many_qps_receive) {
  enum { QPS = 6 };
  PAIR p = open_pair();
  struct mrc_services *services = &p->hosts[1].engine->services;
  int ends[QPS];
  for (int i = 0; i < QPS; i++)
    ends[i] = open_qp(p, .memory_bytes = 64);
  run_for(p, MS);
  EACH_OF(int, i, 0, QPS) {
    struct forge forge = make_forge(p, ends[i]);
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
}

/* Two packets of one port, only one of them marked, need a SACK each: both leave in one burst. */
TEST(test_sack__of_one_port_in_one_burst) {
  PAIR p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64);
  run_for(p, MS);
  struct forge forge = make_forge(p, end);
  CHECK_EQ(send_forge(p, &forge), 0);
  forge.wire.psn = 1;
  forge.meta.ecn = 3;
  CHECK_EQ(send_forge(p, &forge), 0);
  p->now_ns += 10 * MS;
  mrc_engine_expire(p->hosts[1].engine, p->now_ns);
  struct mrc_burst burst;
  CHECK_EQ(transmit(p, 1, &burst, 1, 1), 1);
  int n_sacks = 0;
  for (int i = 0; i < burst.n_packets; i++) /* an EV probe may travel with them */
    n_sacks += burst.packets[i].header[0] == MRC_OP_SACK;
  CHECK_EQ(n_sacks, 2);
}

/* After an overflow of this host's socket, SACKs penalize the peer's window for a round trip. */
TEST(test_sack__penalty_after_an_overflow) {
  static const struct {
    bool overflowed;
    uint64_t later_ns;
    uint8_t penalty;
  } rows[] = {{false, 0, 0}, {true, 0, 64}, {true, MRC_NOISE_NS, 0}};
  EACH_ROW(i, rows) {
    PAIR p = open_pair();
    const int end = open_qp(p, .memory_bytes = 64);
    run_for(p, MS);
    struct forge forge = make_forge(p, end);
    forge.meta.overflowed = rows[i].overflowed;
    forge.meta.ecn = 3; /* its SACK is due at once */
    CHECK_EQ(send_forge(p, &forge), 0);
    p->now_ns += rows[i].later_ns;
    CHECK_EQ(next_sack(p).sack.rcv_cwnd_pen, rows[i].penalty);
  }
}

/* How many bytes make a SACK due at once, without a request. */
TEST(test_sack__threshold_of_the_reading) {
  static const struct {
    uint32_t readings, packets;
  } rows[] = {{MRC_READING_G2_B, 4}, {MRC_READING_G2_A, 16}, {0, 256}};
  EACH_ROW(i, rows) {
    PAIR p = open_pair(.engine.readings = rows[i].readings);
    const int end = open_qp(p, .memory_bytes = 64, .mpr = 1024);
    run_for(p, MS);
    struct mrc_engine *engine = p->hosts[1].engine;
    const uint32_t threshold_bytes = engine->services.config.sack_threshold_bytes;
    const struct mrc_qp *qp = mrc_qps_find(&engine->qps, p->ends[p->ends[end]->peer]->qpn);
    for (uint32_t sent = 0; sent < rows[i].packets; sent++) { /* each counts as 1 KiB */
      CHECK(qp->resp.unsacked_bytes < threshold_bytes && !qp->resp.triggers[0].now);
      struct forge forge = make_forge(p, end);
      forge.wire.psn = mrc_psn_add(forge.wire.psn, sent);
      CHECK_EQ(send_forge(p, &forge), 0);
    }
    CHECK(qp->resp.unsacked_bytes >= threshold_bytes && qp->resp.n_triggers > 0);
  }
}

/* ---- the window of PSNs ---- */

/* The window of PSNs: a requester may use less than the peer grants, and under dynamic MPR the
   responder narrows and widens what it grants. */

static int set_mpr(struct mrc_pair *p, int end, uint32_t mpr) {
  const struct mrc_pair_end *e = p->ends[end];
  const int error = mrc_qp_set_mpr(p->hosts[e->host].engine, e->qpn, mpr, p->now_ns);
  mrc_pair_kick(p, e->host);
  return error;
}

static uint32_t ahead(const struct mrc_pair *p, int end) {
  const struct mrc_requester *req = &inside(p, end)->req;
  return mrc_psn_sub(req->win.next_psn, req->peer_next_psn);
}

/* The largest lead of an end's PSN over its peer's, in a period. */
static uint32_t most_ahead(struct mrc_pair *p, int end, uint64_t ns) {
  uint32_t most = 0;
  for (const uint64_t end_ns = p->now_ns + ns; p->now_ns < end_ns;) {
    run_for(p, 20 * US);
    most = mrc_max_u32(most, ahead(p, end));
  }
  return most;
}

/* A path of 4 ms at 500 Mbit/s: more than 400 packets of 1 KiB are in flight. */
static struct mrc_pair *open_long(void) {
  return open_pair(.planes = 2, .paths = 2, .path.delay_ns = 2 * MS,
                   .port_out.rate_bps = 500000000);
}

static int open_busy(struct mrc_pair *p, uint32_t dynamic_mpr) {
  const int end = open_qp(p, .memory_bytes = 32u << 20, .mpr = 1024, .cc = MRC_CC_NULL,
                          .dynamic_mpr = dynamic_mpr);
  write_many(p, end, 1u << 20, 32);
  return end;
}

/* The peer grants 4096 PSNs; this end uses only 256 and holds memory for 256. */
TEST(test_rts__takes_less_than_the_peer_grants) {
  PAIR p = open_long();
  const struct mrc_pair_qp_config config = {.memory_bytes = 8u << 20,
                                            .path_mtu = MTU,
                                            .mpr = 4096,
                                            .timeout = 14,
                                            .retry_linear = 3,
                                            .retry_exp = 4,
                                            .cc = MRC_CC_NULL};
  const int end = mrc_pair_create_qp(p, &config), peer = p->ends[end]->peer;
  p->ends[end]->attr.rts.peer_mpr = 256;
  for (int i = 0; i < 2; i++)
    mrc_pair_modify(p, i == 0 ? end : peer, MRC_QP_RTR);
  for (int i = 0; i < 2; i++)
    mrc_pair_modify(p, i == 0 ? end : peer, MRC_QP_RTS);
  CHECK_EQ(inside(p, end)->req.win.mask, 255);
  CHECK_EQ(inside(p, peer)->req.win.mask, 4095);
  CHECK_EQ(mrc_pair_info(p, end).peer_mpr, 256);
  write_many(p, end, 1u << 20, 8);
  CHECK_EQ(most_ahead(p, end, 20 * MS), 256);
  CHECK(mrc_pair_finish(p, 2 * SECOND));
  CHECK_EQ(succeeded(p, end), 8);
}

TEST(test_mpr__narrower_and_wider) {
  PAIR p = open_long();
  const int end = open_busy(p, 1), peer = p->ends[end]->peer;
  CHECK_EQ(most_ahead(p, end, 30 * MS), 1024);
  CHECK_EQ(set_mpr(p, peer, 256), 0);
  run_for(p, 50 * MS); /* the packets in flight drain */
  CHECK_EQ(mrc_pair_info(p, end).peer_mpr, 256);
  CHECK_EQ(most_ahead(p, end, 20 * MS), 256);
  CHECK_EQ(set_mpr(p, peer, 640), 0);
  run_for(p, 20 * MS);
  CHECK_EQ(most_ahead(p, end, 20 * MS), 640);
  CHECK(mrc_pair_finish(p, 2 * SECOND));
  CHECK_EQ(succeeded(p, end), 32);
}

/* The window narrows under full load: no sent packet is refused or retransmitted. */
TEST(test_mpr__a_narrower_window_revokes_nothing) {
  PAIR p = open_long();
  const int end = open_busy(p, 1), peer = p->ends[end]->peer;
  run_for(p, 30 * MS);
  CHECK_EQ(ahead(p, end), 1024);
  CHECK_EQ(set_mpr(p, peer, 128), 0);
  CHECK(mrc_pair_finish(p, 4 * SECOND));
  CHECK_EQ(succeeded(p, end), 32);
  CHECK_EQ(retransmitted(p, end), 0);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_NACKS), 0);
  CHECK_EQ(p->hosts[1].drops[MRC_DROP_PSN_WINDOW], 0);
}

/* Every SACK carries the grant, so a lost SACK does no harm. */
TEST(test_mpr__survives_lost_sacks) {
  PAIR p = open_long();
  const int end = open_busy(p, 1), peer = p->ends[end]->peer;
  run_for(p, 30 * MS);
  lose_kind(p, 1, MRC_OP_SACK, 20);
  CHECK_EQ(set_mpr(p, peer, 256), 0);
  run_for(p, 100 * MS);
  CHECK_EQ(mrc_pair_info(p, end).peer_mpr, 256);
  CHECK(mrc_pair_finish(p, 4 * SECOND));
}

/* The effect of a SACK with this field on the agreed window of 1024. */
TEST(test_mpr__what_a_sack_may_say) {
  static const struct {
    uint32_t dynamic_mpr;
    uint8_t mpr;
    uint32_t granted;
  } rows[] = {
      {1, 2, 256},
      {1, 0, 1024},   /* no grant */
      {1, 255, 1024}, /* never more than agreed */
      {0, 2, 1024},   /* not agreed */
  };
  EACH_ROW(i, rows) {
    PAIR p = open_pair();
    const int end = open_qp(p, .memory_bytes = 2 * MTU, .dynamic_mpr = rows[i].dynamic_mpr);
    const int peer = p->ends[end]->peer;
    WRITE_AND_WAIT(p, peer, MTU, 10 * MS);
    const uint32_t cum_psn = mrc_psn_sub(inside(p, peer)->req.win.next_psn, 1);
    struct forge forge = make_forge(p, end);
    set_wire(forge, .opcode = MRC_OP_SACK, .psn = cum_psn,
             .sack = {.cum_psn = cum_psn, .mpr = rows[i].mpr});
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_NONE);
    CHECK_EQ(mrc_pair_info(p, peer).peer_mpr, rows[i].granted);
    if (rows[i].granted != 1024) { /* an older SACK has no effect */
      forge.wire.psn = forge.wire.sack.cum_psn = mrc_psn_sub(cum_psn, 1);
      forge.wire.sack.mpr = 8;
      send_forge(p, &forge);
      CHECK_EQ(mrc_pair_info(p, peer).peer_mpr, rows[i].granted);
    }
  }
}

TEST(test_set_mpr__refuses) {
  PAIR p = open_pair();
  const int fixed = open_qp(p, .mpr = 512), end = open_qp(p, .mpr = 512, .dynamic_mpr = 1);
  CHECK_EQ(set_mpr(p, fixed, 128), -EINVAL);
  CHECK_EQ(set_mpr(p, end, 128), 0);
  CHECK_EQ(set_mpr(p, end, 512), 0);
  CHECK_EQ(set_mpr(p, end, 0), -EINVAL);
  CHECK_EQ(set_mpr(p, end, 192), -EINVAL);
  CHECK_EQ(set_mpr(p, end, 640), -EINVAL);
  CHECK_EQ(mrc_qp_set_mpr(p->hosts[0].engine, 1, 128, p->now_ns), -ENOENT);
  mrc_pair_modify(p, end, MRC_QP_ERROR);
  CHECK_EQ(set_mpr(p, end, 128), -EINVAL);
}
