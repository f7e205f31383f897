/* SPDX-License-Identifier: Apache-2.0 */
#include "core/engine.h"

#include <errno.h>

#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

/* ---- rare cases ---- */

/* Rare cases: numbers that are used again or wrap, full transmits, packets that contradict. */

/* RESET clears the port status that the old peer reported. */
TEST(test_reset__forgets_the_peers_ports) {
  PAIR p = open_pair(.planes = 2);
  int end = mrc_pair_create_qp(p, &(struct mrc_pair_qp_config){.memory_bytes = 64});
  int peer = p->ends[end]->peer;
  struct forge forge = make_forge(p, end);
  set_wire(forge, .opcode = MRC_OP_ENDPOINT_REQUEST, .dest_qpn = MRC_ENDPOINT_QPN,
           .endpoint.port_status_mask = 1);
  CHECK_EQ(send_forge(p, &forge), 0);
  CHECK(inside(p, peer)->planes[1].peer_down);
  mrc_pair_modify(p, peer, MRC_QP_RESET);
  CHECK(!inside(p, peer)->planes[1].peer_down);
  CHECK_EQ(send_forge(p, &forge), MRC_DROP_SOURCE);
}

/* The ACK of a message arrives after 2^23 more PSNs were sent and acknowledged (by SACKs, while the
   ACKs were lost): it must not acknowledge the packets in flight now. */
TEST(test_ack__of_a_message_half_the_psn_space_ago) {
  PAIR p = open_pair();
  int end = open_qp(p, .memory_bytes = 64 * MTU), peer = p->ends[end]->peer;
  struct forge forge = make_forge(p, end);
  lose_kind(p, 0, MRC_OP_ACK, 1000);
  CHECK_EQ(mrc_pair_write(p, peer, MTU), 0);
  run_for(p, 100 * US);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, peer, 8 * MTU), 0);
  run_for(p, 100 * US);
  struct mrc_requester *req = &inside(p, peer)->req;
  CHECK_EQ(mrc_txwin_outstanding(&req->win), 8);
  req->sq[0].first_psn = mrc_psn_sub(req->win.una_psn, (1u << 23) + 5);
  set_wire(forge, .opcode = MRC_OP_ACK, .aeth = {.syndrome = MRC_SYNDROME_ACK, .msn = 1});
  CHECK_EQ(send_forge(p, &forge), 0);
  CHECK_EQ(mrc_pair_info(p, peer).outstanding, 1);
  CHECK_EQ(mrc_txwin_outstanding(&req->win), 8);
  CHECK_EQ(req->peer_next_psn, req->win.una_psn);
}

/* A new QP to a known peer has a base RTT before its first sample. This is not a queue: a
   loss at that time is blamed on the path. */
TEST(test_loss__before_the_first_round_trip_is_no_congestion) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 4 * MS);
  int first = open_qp(p, .memory_bytes = 2000 * MTU);
  WRITE_AND_WAIT(p, first, 2000 * MTU, 200 * MS);
  CHECK(mrc_pair_info(p, first).planes[1].base_rtt_ns > 0);
  int end = open_qp(p, .memory_bytes = 64 * MTU, .spray = 1);
  mrc_pair_silence(p, 2, true);
  CHECK_EQ(mrc_pair_write(p, end, 2 * MTU), 0);
  for (int i = 0; i < 20; i++) {
    run_for(p, 2 * MS);
    CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
  }
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK(counter(p, 0, MRC_COUNTER_LOST_BY_SILENCE) > 0);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_LOST_TO_CONGESTION), 0);
}

/* The peer may report an EV as bad: the EV leaves the rotation, and probes bring it back. */
TEST(test_sack__always_skip_puts_on_probation) {
  PAIR p = open_pair(.paths = 4);
  int end = open_qp(p, .memory_bytes = 64), peer = p->ends[end]->peer;
  struct forge forge = make_forge(p, end);
  run_for(p, MS);
  const uint32_t before = mrc_psn_sub(p->ends[peer]->attr.rts.sq_psn, 1);
  set_wire(forge, .opcode = MRC_OP_SACK, .psn = before,
           .sack = {.cum_psn = before,
                    .m = MRC_M_ALWAYS_SKIP,
                    .ev = (uint32_t)mrc_address_sport(1, 0) << 16 | mrc_address_label(6, 1, 2)});
  CHECK_EQ(send_forge(p, &forge), 0);
  CHECK_EQ(mrc_pair_ev(p, peer, 1, 2).state, MRC_EV_ASSUMED_BAD);
  run_for(p, 100 * MS);
  CHECK_EQ(mrc_pair_ev(p, peer, 1, 2).state, MRC_EV_GOOD);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_EVS_BAD), 1);
}

/* A SACK reports everything that its plane delivered, and of other planes what its bitmap happens
   to show. So it shows only late packets of its own plane as lost. */
TEST(test_sack__tells_of_its_own_plane_only) {
  enum { BEFORE = 20, AFTER = 120 };
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = 200 * MTU, .sq_depth = 200, .spray = 1);
  const int peer = p->ends[end]->peer;
  WRITE_AND_WAIT(p, peer, BEFORE * MTU, 5 * MS);
  struct forge forge = make_forge(p, end);
  for (int plane = 1; plane <= 2; plane++)
    mrc_pair_silence(p, plane, true);
  for (int i = 0; i < AFTER; i++) {
    CHECK_EQ(mrc_pair_write(p, peer, MTU), 0);
    run_for(p, 10 * US);
  }
  struct mrc_qp *qp = inside(p, peer);
  const uint32_t cum_psn = mrc_psn_sub(qp->req.win.una_psn, 1);
  for (int plane = 0; plane < 2; plane++) {
    CHECK_EQ(qp->planes[plane].lost, 0);
    uint32_t newest = AFTER - 10; /* of the plane, as the SACK says */
    while (mrc_txwin_slot(&qp->req.win, mrc_psn_add(cum_psn, newest))->plane != plane)
      newest++;
    set_wire(forge, .opcode = MRC_OP_SACK, .psn = cum_psn,
             .sack = {.cum_psn = cum_psn,
                      .sack_offset = AFTER - 20,
                      .bitmap = 0xFFFF,
                      .ack_psn_offset = (int16_t)newest,
                      .ev = qp->evset.evs[plane].value});
    CHECK_EQ(send_forge(p, &forge), 0);
    run_for(p, 50 * US);
    CHECK(qp->planes[plane].lost > 0);
  }
}

/* A packet without payload that is marked as trimmed still has its ICRC checked. */
TEST(test_receive__checks_control_marked_as_trimmed) {
  PAIR p = open_pair();
  int end = open_qp(p, .memory_bytes = 64);
  struct forge forge = make_forge(p, end);
  set_wire(forge, .opcode = MRC_OP_ACK, .aeth = {.syndrome = MRC_SYNDROME_NAK_REM_OP});
  forge.meta.trimmed = 1;
  uint8_t bytes[MRC_MAX_HEADER] = {0};
  const size_t n = mrc_wire_encode(&forge.wire, bytes);
  CHECK_EQ(mrc_pair_forge(p, 1, bytes, n, &forge.meta), MRC_DROP_ICRC);
  CHECK_EQ(mrc_pair_forge(p, 1, bytes, n + MRC_ICRC_BYTES, &forge.meta), MRC_DROP_ICRC);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).state, MRC_QP_RTS);
}

/* When all planes are suspended, an answer leaves on a suspended plane. */
TEST(test_answer__over_a_suspended_plane_at_last) {
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = 64 * MTU), peer = p->ends[end]->peer;
  mrc_engine_port_blocked(p->hosts[1].engine, 1, true, p->now_ns);
  mrc_qps_find(&p->hosts[1].engine->qps, p->ends[peer]->qpn)->planes[1].suspended = true;
  CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
  run_for(p, MS);
  CHECK_EQ(succeeded(p, end), 1);
}

/* The NACK reports where the payload was trimmed. */
TEST(test_receive__trimmed_where) {
  static const uint8_t reasons[] = {[MRC_TRIMMED] = MRC_NACK_TRIMMED,
                                    [MRC_TRIMMED_LASTHOP] = MRC_NACK_TRIMMED_LASTHOP};
  EACH_OF(uint8_t, trimmed, MRC_TRIMMED, MRC_TRIMMED_LASTHOP + 1) {
    PAIR p = open_pair();
    struct forge forge = make_forge(p, open_qp(p, .memory_bytes = 64));
    forge.meta.trimmed = trimmed;
    CHECK_EQ(send_forge(p, &forge), MRC_DROP_TRIMMED);
    run_for(p, MS);
    CHECK_EQ(counter(p, 1, MRC_COUNTER_TX_NACKS), 1);
    struct mrc_trace_entry entries[64];
    const int n = mrc_engine_trace(p->hosts[1].engine, entries, 64);
    uint64_t reason = 0;
    for (int i = 0; i < n; i++)
      if (entries[i].point == MRC_TRACE_NACK_OUT) reason = entries[i].b;
    CHECK_EQ(reason, reasons[trimmed]);
  }
}

/* Transmits once by hand with all bursts taken; returns how many bursts begin with data. */
static int data_bursts(struct mrc_pair *p, int host) {
  struct mrc_burst bursts[8];
  int data = 0;
  const int n = transmit(p, host, bursts, 8, 1);
  for (int i = 0; i < n; i++)
    data += mrc_opcode_is_data(bursts[i].packets[0].header[0]);
  return data;
}

/* Endpoint requests without end from a peer do not starve the data of QPs. */
TEST(test_endpoint__requests_do_not_starve_data) {
  PAIR p = open_pair();
  int end = open_qp(p, .memory_bytes = 64 * MTU), peer = p->ends[end]->peer;
  struct forge forge = make_forge(p, end);
  set_wire(forge, .opcode = MRC_OP_ENDPOINT_REQUEST, .dest_qpn = MRC_ENDPOINT_QPN,
           .endpoint.op = MRC_ENDPOINT_EV_PROBE);
  run_for(p, MS);
  CHECK_EQ(mrc_pair_write(p, peer, 8 * MTU), 0);
  for (int i = 0; i < MRC_MAX_ANSWERS; i++)
    CHECK_EQ(send_forge(p, &forge), 0);
  CHECK(data_bursts(p, 1) > 0);
  CHECK(mrc_engine_deadline(p->hosts[1].engine) == 0); /* the other answers wait */
}

/* Reliability probes without end from a peer, with long answers, do not starve other QPs. */
TEST(test_probe__requests_do_not_starve_other_qps) {
  PAIR p = open_pair();
  int noisy = open_qp(p, .memory_bytes = 64);
  int quiet = open_qp(p, .memory_bytes = 64 * MTU);
  struct forge forge = make_forge(p, noisy);
  p->ends[quiet]->audit.unwatched = p->ends[p->ends[quiet]->peer]->audit.unwatched = true;
  run_for(p, MS);
  for (uint32_t psn = 1; psn < 1024; psn += 64) { /* each needs its own SACK */
    forge.wire.psn = psn;
    CHECK_EQ(send_forge(p, &forge), 0);
  }
  CHECK_EQ(mrc_pair_write(p, p->ends[quiet]->peer, 8 * MTU), 0);
  set_wire(forge, .opcode = MRC_OP_PROBE);
  int data = 0;
  for (int turn = 0; turn < 8; turn++) {
    for (int i = 0; i < MRC_MAX_TRIGGERS; i++)
      CHECK_EQ(send_forge(p, &forge), 0);
    data += data_bursts(p, 1);
  }
  CHECK(data > 0);
}

static uint64_t bytes_of_next_write(struct mrc_pair *p, int end, int plane) {
  const uint64_t before = mrc_pair_info(p, end).planes[plane - 1].sent_bytes;
  WRITE_AND_WAIT(p, end, 400 * MTU, 100 * MS);
  return mrc_pair_info(p, end).planes[plane - 1].sent_bytes - before;
}

/* The peer or the controller removes planes and returns them: the planes have equal shares from
   then on, and do not catch up. */
TEST(test_planes__return_without_catching_up) {
  PAIR p = open_pair(.planes = 3);
  int end = open_qp(p, .memory_bytes = 2000 * MTU, .plane_shares = MRC_SHARES_EQUAL),
      peer = p->ends[end]->peer;
  struct forge forge = make_forge(p, end);
  set_wire(forge, .opcode = MRC_OP_ENDPOINT_REQUEST, .dest_qpn = MRC_ENDPOINT_QPN,
           .endpoint = {.op = MRC_ENDPOINT_PORT_STATUS, .port_status_mask = 1});
  CHECK_EQ(send_forge(p, &forge), 0);
  CHECK_EQ(bytes_of_next_write(p, peer, 1), 400 * MTU);
  forge.wire.endpoint.port_status_mask = 7;
  CHECK_EQ(send_forge(p, &forge), 0);
  run_for(p, 100 * MS); /* time for probes, if they come first */
  const uint64_t third = bytes_of_next_write(p, peer, 1);
  CHECK(third > 100 * MTU && third < 170 * MTU);
  mrc_pair_deny(p, peer, 2, 0, true);
  CHECK_EQ(bytes_of_next_write(p, peer, 2), 0);
  mrc_pair_deny(p, peer, 2, 0, false);
  const uint64_t again = bytes_of_next_write(p, peer, 2);
  CHECK(again > 100 * MTU && again < 170 * MTU);
}

/* No EV may carry the answer: the engine waits and does not spin. */
TEST(test_sack__without_an_ev_does_not_spin) {
  PAIR p = open_pair();
  int end = open_qp(p, .memory_bytes = 64), peer = p->ends[end]->peer;
  mrc_engine *engine = p->hosts[1].engine;
  struct forge forge = make_forge(p, end);
  mrc_pair_deny(p, peer, 1, 0, true);
  run_for(p, MS);
  CHECK_EQ(send_forge(p, &forge), 0);
  p->now_ns += MS;
  mrc_engine_expire(engine, p->now_ns);
  data_bursts(p, 1);
  CHECK(mrc_engine_deadline(engine) >= p->now_ns + MS);
}

/* A failed send suspends the plane: the data in flight there is due again at once, also when the
   failed burst held no data. */
TEST(test_commit__failed_answer_resends_data_in_flight) {
  PAIR p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 64 * MTU), peer = p->ends[end]->peer;
  struct forge forge = make_forge(p, end);
  run_for(p, MS);
  CHECK_EQ(mrc_pair_write(p, peer, 8 * MTU), 0);
  CHECK(data_bursts(p, 1) > 0);
  forge.wire.ack_req = true;
  CHECK_EQ(send_forge(p, &forge), 0);
  struct mrc_burst bursts[8];
  CHECK_EQ(transmit(p, 1, bursts, 8, -ENETUNREACH), 1);
  CHECK_EQ(bursts[0].port, 1);
  CHECK_EQ(mrc_engine_deadline(p->hosts[1].engine), 0);
  CHECK(data_bursts(p, 1) > 0);
}

/* Originals arrive after a premature local timeout. They give no information about the EVs of the
   retransmissions of the same PSNs. */
TEST(test_loss__originals_do_not_testify_for_retransmissions) {
  PAIR p = open_pair(.paths = 2, .path.delay_ns = MS);
  int end = open_qp(p, .memory_bytes = 300 * MTU, .spray = 1, .retry_linear = 7);
  int peer = p->ends[end]->peer;
  struct forge forge = make_forge(p, end);
  WRITE_AND_WAIT(p, peer, 64 * MTU, 50 * MS);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, peer, 8 * MTU), 0);
  const uint32_t first = inside(p, peer)->req.win.next_psn;
  for (int i = 0; i < 1000 && mrc_pair_info(p, peer).retransmitted_packets < 8; i++)
    run_for(p, 100 * US);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_LOST_BY_ORDER), 0);
  const uint32_t before = mrc_psn_sub(first, 1);
  set_wire(
      forge, .opcode = MRC_OP_SACK, .psn = before,
      .sack = {.cum_psn = before, .sack_offset = 1, .bitmap = 0xFC}); /* two are not yet read */
  CHECK_EQ(send_forge(p, &forge), 0);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_SPURIOUS), 6);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_LOST_BY_ORDER), 0);
  CHECK_EQ(n_events(p, 1, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD), 0);
}

/* Every counter of both ends is just before its wrap: PSN (24 bits), MSN (16 on the wire, 24 in
   the ACK), RQMSN (16), send order, ring indices and serials (32). Losses occur; order is kept. */
TEST(test_numbers__all_wrap) {
  enum { WRS = 100, BYTES = 20 * MTU };
  PAIR p = open_pair(.planes = 2, .paths = 2, .path = {.delay_ns = PATH_DELAY, .loss_ppm = 20000});
  int end = open_qp(p, .memory_bytes = WRS * BYTES, .sq_psn = MRC_PSN_MASK - 500, .timeout = 14,
                    .retry_linear = 7, .retry_exp = 8);
  struct mrc_audit *audit = audit_of(p, end);
  audit->unwatched = audit_of(p, p->ends[end]->peer)->unwatched = true; /* it counts PSNs from 0 */
  audit->n_immediates = UINT16_MAX - 20;
  struct mrc_requester *req = &inside(p, end)->req;
  struct mrc_responder *resp = &inside(p, p->ends[end]->peer)->resp;
  mrc_engine *engine = p->hosts[0].engine;
  req->next_rqmsn = UINT16_MAX - 20;
  resp->next_rqmsn = UINT16_MAX - 20;
  req->acked_msn = resp->done_msn = MRC_PSN_MASK - 20;
  req->sq_head = req->sq_send = req->sq_tail = UINT32_MAX - 20;
  req->win.next_order = UINT16_MAX - 300;
  engine->services.arena.scratch->order.serial = UINT32_MAX - 30;
  req->probe.id = UINT16_MAX;
  engine->services.cq.head = engine->services.cq.tail = UINT32_MAX - 20;
  engine->services.events.head = engine->services.events.tail = UINT32_MAX - 2;
  for (int i = 0; i < WRS; i++)
    CHECK_EQ(i % 2 ? mrc_pair_write(p, end, BYTES) : mrc_pair_write_imm(p, end, BYTES), 0);
  CHECK(mrc_pair_finish(p, 2 * SECOND));
  CHECK_EQ(succeeded(p, end), WRS);
  CHECK(req->win.next_psn < MRC_PSN_MASK / 2);
  CHECK(mrc_pair_info(p, end).retransmitted_packets > 0);
  CHECK_EQ(resp->next_rqmsn - (UINT16_MAX - 20), WRS / 2);
  CHECK_MEM_EQ(audit->target, audit->source, WRS * BYTES);
}

/* ---- packets that arrive together ---- */

/* Packets that arrive together, as the kernel merges those of a burst. */

enum { PACKETS = 6 };

/* The pair is destroyed at the end of the block. */
#define TOGETHER FREED_BY(end_together) struct together
struct together {
  struct mrc_pair *pair;
  int end;
  struct forge forge;
  uint8_t bytes[PACKETS * FORGE_BYTES];
  size_t n;
  size_t packet_bytes;
};

static struct together start(void) {
  struct together t = {.pair = open_pair()};
  t.end = open_qp(t.pair, .memory_bytes = 64);
  t.forge = make_forge(t.pair, t.end);
  t.forge.wire.opcode = MRC_OP_WRITE_ONLY_IMM;
  t.pair->hosts[1].stops_polling = true;
  return t;
}

static void end_together(struct together *t) { mrc_pair_destroy(t->pair); }

/* Adds the forged packet to the message, and makes the next one of it. */
static void add(struct together *t) {
  const size_t n = encode_forge(&t->forge, t->bytes + t->n);
  if (t->n == 0) t->packet_bytes = n;
  t->n += n;
  t->forge.wire.psn++;
  t->forge.wire.rqmsn++;
  t->forge.wire.imm++;
}

static int receive(struct together *t) {
  return mrc_engine_receive(t->pair->hosts[1].engine, t->bytes, t->n, t->packet_bytes,
                            &t->forge.meta, t->pair->now_ns);
}

static int polled(struct together *t, struct mrc_wc *wcs) {
  return mrc_cq_poll(t->pair->hosts[1].engine, wcs, 8);
}

TEST(test_together__each_packet_is_judged_by_itself) {
  TOGETHER t = start();
  struct mrc_wc wcs[8];
  add(&t);
  add(&t);
  t.bytes[t.n - 1] ^= 1; /* of the ICRC */
  t.forge.wire.dest_qpn ^= 1;
  add(&t);
  t.forge.wire.dest_qpn ^= 1;
  t.forge.wire.psn -= 2;
  t.forge.wire.rqmsn -= 2;
  add(&t);
  add(&t);
  CHECK_EQ(receive(&t), MRC_DROP_NONE);
  CHECK_EQ(dropped(t.pair, 1, MRC_DROP_ICRC), 1);
  CHECK_EQ(dropped(t.pair, 1, MRC_DROP_QPN), 1);
  CHECK_EQ(polled(&t, wcs), 3);
  for (uint32_t i = 0; i < 3; i++) {
    CHECK_EQ(wcs[i].wr_id, i);
    CHECK_EQ(wcs[i].bytes, 4);
  }
  CHECK_EQ(counter(t.pair, 1, MRC_COUNTER_RX_PACKETS), 5);
  CHECK_EQ(counter(t.pair, 1, MRC_COUNTER_RX_DATA), 3);
  CHECK_EQ(receive(&t), MRC_DROP_DUPLICATE); /* all of them, and two that are wrong */
  CHECK_EQ(dropped(t.pair, 1, MRC_DROP_DUPLICATE), 3);
  CHECK_EQ(polled(&t, wcs), 0);
}

/* What came before a packet that fails the QP counts. */
TEST(test_together__a_refused_packet_ends_the_qp_in_its_turn) {
  TOGETHER t = start();
  struct mrc_wc wcs[8];
  add(&t);
  add(&t);
  t.forge.wire.rkey++;
  add(&t);
  t.forge.wire.rkey--;
  add(&t);
  CHECK_EQ(receive(&t), MRC_DROP_QP_STATE);
  CHECK_EQ(dropped(t.pair, 1, MRC_DROP_ACCESS), 1);
  CHECK_EQ(polled(&t, wcs), 2);
  CHECK_EQ(mrc_pair_info(t.pair, t.pair->ends[t.end]->peer).state, MRC_QP_ERROR);
}

TEST(test_together__the_last_may_be_shorter) {
  TOGETHER t = start();
  struct mrc_wc wcs[8];
  add(&t);
  t.forge.wire.payload_bytes = t.forge.wire.dma_bytes = 0;
  add(&t);
  CHECK(t.n < 2 * t.packet_bytes);
  CHECK_EQ(receive(&t), MRC_DROP_NONE);
  CHECK_EQ(polled(&t, wcs), 2);
  CHECK_EQ(wcs[1].bytes, 0);
  t.n--;
  CHECK_EQ(receive(&t), MRC_DROP_SHORT); /* the last one is cut */
}
