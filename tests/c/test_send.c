/* SPDX-License-Identifier: Apache-2.0 */
#include "core/engine.h"

#include <errno.h>

#include "core/send.h"
#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

/* ---- writes ---- */

/* Writes over perfect paths: every size, order of completions, bounds of queue and windows, shares.
 */

/* Each size as a write and as a write with immediate, over one path and over many. */
TEST(test_write__every_size) {
  static const uint32_t sizes[] = {
      0, 1, 2, 3, 4, MTU - 1, MTU, MTU + 1, 2 * MTU, 10 * MTU - 1, 64 * MTU + 1, 1u << 20};
  for (int paths = 1; paths <= 4; paths += 3) {
    EACH_ROW(i, sizes) {
      PAIR p = open_pair(.planes = paths, .paths = paths);
      int end = open_qp(p, .memory_bytes = 2 * sizes[i]);
      const uint32_t writes = sizes[i] == 0 ? 1 : 2; /* a write needs bytes */
      if (writes == 2) CHECK_EQ(mrc_pair_write(p, end, sizes[i]), 0);
      WRITE_IMM_AND_WAIT(p, end, sizes[i], 200 * MS);
      CHECK_EQ(succeeded(p, end), writes);
      CHECK_EQ(audit_of(p, end)->n_immediates, 1);
      CHECK_EQ(retransmitted(p, end), 0);
      uint32_t packets = sizes[i] == 0 ? 1 : (sizes[i] + MTU - 1) / MTU;
      CHECK_EQ(audit_of(p, end)->data_packets, writes * packets);
    }
  }
}

TEST(test_write__counts_bytes_on_both_sides) {
  PAIR p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 100000);
  WRITE_AND_WAIT(p, end, 100000, 100 * MS);
  CHECK_EQ(mrc_pair_info(p, end).first_sent_bytes, 100000);
  CHECK_EQ(mrc_pair_info(p, end).acknowledged_bytes, 100000);
  CHECK_EQ(mrc_pair_info(p, end).inflight_bytes, 0);
  CHECK_EQ(mrc_pair_info(p, end).outstanding, 0);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).received_bytes, 100000);
}

TEST(test_write_imm__in_order_over_planes_of_different_delay) {
  PAIR p = open_pair(.planes = 4, .paths = 2);
  for (int plane = 1; plane <= 4; plane++)
    for (int path = 0; path < 2; path++)
      mrc_pair_path(p, 0, 1, plane, path)->config.delay_ns = (uint64_t)plane * 50 * US;
  int end = open_qp(p, .memory_bytes = 200 * 3000, .sq_depth = 256, .max_wimm = 128);
  for (int i = 0; i < 200; i++) {
    uint32_t bytes = (uint32_t)((i + 1) * 37 % 3000);
    CHECK_EQ(i % 3 ? mrc_pair_write_imm(p, end, bytes) : mrc_pair_write(p, end, bytes), 0);
  }
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(audit_of(p, end)->n_immediates, 133); /* the auditor checks their order */
  CHECK_EQ(retransmitted(p, end), 0);
}

/* More immediates than the peer accepts in flight: the requester waits and does not fail. */
TEST(test_write_imm__never_more_in_flight_than_agreed) {
  PAIR p = open_pair(.planes = 2);
  int end = open_qp(p, .max_wimm = 1, .sq_depth = 64);
  for (int i = 0; i < 64; i++)
    CHECK_EQ(mrc_pair_write_imm(p, end, 0), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(succeeded(p, end), 64);
  CHECK_EQ(audit_of(p, end)->n_immediates, 64);
}

TEST(test_post__queue_full_then_free_again) {
  PAIR p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 100 * MTU, .sq_depth = 4);
  for (int round = 0; round < 3; round++) {
    write_many(p, end, MTU, 4);
    CHECK_EQ(mrc_pair_write(p, end, MTU), -ENOBUFS);
    CHECK_EQ(mrc_pair_write_imm(p, end, 0), -ENOBUFS);
    CHECK_EQ(mrc_pair_info(p, end).outstanding, 4);
    CHECK(mrc_pair_finish(p, 10 * MS));
  }
  CHECK_EQ(succeeded(p, end), 12);
}

TEST(test_write__over_ipv4) {
  PAIR p = open_pair(.family = 4, .planes = 2, .paths = 4);
  int end = open_qp(p, .memory_bytes = 1u << 20);
  WRITE_IMM_AND_WAIT(p, end, 1u << 20, 100 * MS);
  for (int plane = 1; plane <= 2; plane++)
    for (int path = 0; path < 4; path++)
      CHECK(mrc_pair_ev(p, end, plane, path).sent_packets > 0);
}

TEST(test_write__without_icrc) {
  PAIR p = open_pair(.planes = 2, .udp_checksum = true);
  int end = open_qp(p, .memory_bytes = 10 * MTU + 1, .integrity = MRC_INTEGRITY_UDP);
  WRITE_AND_WAIT(p, end, 10 * MTU + 1, 10 * MS);
}

/* Equal shares: after each MiB no plane is ahead of another by more than a burst. */
TEST(test_spray__planes_carry_equal_bytes) {
  static const uint32_t sprays[] = {0, 1, 4};
  EACH_OF(size_t, i, 0, 3) {
    PAIR p = open_pair(.planes = 4, .paths = 2);
    int end = open_qp(p, .memory_bytes = 8u << 20, .spray = sprays[i], .mpr = 4096);
    for (int round = 0; round < 8; round++) {
      WRITE_AND_WAIT(p, end, 1u << 20, 200 * MS);
      uint64_t least = UINT64_MAX, most = 0;
      for (int plane = 0; plane < 4; plane++) {
        uint64_t bytes = p->hosts[0].plane_bytes[plane];
        least = bytes < least ? bytes : least;
        most = bytes > most ? bytes : most;
      }
      CHECK(most - least <= 65215);
    }
  }
}

/* spray = 1 is the spraying of the MRC specification: every packet takes another EV. */
TEST(test_spray__one_packet_an_ev) {
  PAIR p = open_pair(.planes = 2, .paths = 4);
  int end = open_qp(p, .memory_bytes = 160 * MTU, .spray = 1);
  WRITE_AND_WAIT(p, end, 160 * MTU, 100 * MS);
  for (int plane = 1; plane <= 2; plane++)
    for (int path = 0; path < 4; path++) {
      struct mrc_ev_info ev = mrc_pair_ev(p, end, plane, path);
      CHECK(ev.sent_packets >= 19 && ev.sent_packets <= 21);
      CHECK_EQ(ev.sent_bytes, ev.sent_packets * MTU);
    }
}

/* ---- unsignaled work requests ---- */

/* Lists of work requests that share one completion. The auditor checks that the completion comes
   after all of them, and that every byte was placed once. */

static const uint32_t sizes[] = {1, MTU, 5 * MTU + 3, 8, 64};
#define N (sizeof sizes / sizeof sizes[0])

TEST(test_list__completes_once_after_its_last) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 64 * MTU);
  lose_data(p, 2, 3);
  CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
  CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
  CHECK_EQ(mrc_pair_info(p, end).outstanding, 2 * N);
  CHECK(mrc_pair_finish(p, 50 * MS));
  CHECK_EQ(succeeded(p, end), 2 * N);
  CHECK_EQ(mrc_pair_info(p, end).outstanding, 0);
}

/* The work request that the responder refuses has no completion of its own. */
TEST(test_list__reports_the_error_of_an_unsignaled_one) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 64 * MTU);
  struct mrc_pair_end *e = p->ends[end];
  CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
  CHECK(mrc_pair_finish(p, 50 * MS));
  e->rkey++;
  e->audit.unwatched = true;
  CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
  CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
  CHECK(mrc_pair_finish(p, 50 * MS));
  CHECK_EQ(e->audit.statuses[MRC_WC_REM_ACCESS_ERR], 1);
  CHECK_EQ(e->audit.statuses[MRC_WC_WR_FLUSH_ERR], 1);
  CHECK_EQ(succeeded(p, end), N);
}

TEST(test_list__is_posted_whole_or_not_at_all) {
  PAIR p = open_pair();
  int end = open_qp(p, .memory_bytes = 64 * MTU, .sq_depth = N);
  struct mrc_pair_end *e = p->ends[end];
  mrc_engine *engine = p->hosts[0].engine;
  const struct mrc_wr good = {.local = (uintptr_t)e->audit.source,
                              .va = (uintptr_t)e->audit.target,
                              .lkey = e->lkey,
                              .rkey = e->rkey,
                              .bytes = 8,
                              .unsignaled = 1};
  struct mrc_wr wrs[N + 1];
  for (size_t i = 0; i <= N; i++)
    wrs[i] = good;
  CHECK_EQ(mrc_qp_post(engine, e->qpn, wrs, N + 1, p->now_ns), -ENOBUFS);
  wrs[1].bytes = 64 * MTU + 1;
  CHECK_EQ(mrc_qp_post(engine, e->qpn, wrs, N, p->now_ns), -EACCES);
  wrs[1] = good;
  wrs[2].unsignaled = 2;
  CHECK_EQ(mrc_qp_post(engine, e->qpn, wrs, N, p->now_ns), -EINVAL);
  CHECK_EQ(mrc_pair_info(p, end).outstanding, 0);
  CHECK_EQ(mrc_mr_deregister(engine, e->lkey), 0); /* none of them holds the memory */
}

/* An unsignaled work request frees its place when it completes, the last one when it is polled. */
TEST(test_list__frees_its_places) {
  PAIR p = open_pair();
  int end = open_qp(p, .memory_bytes = 640 * MTU, .sq_depth = N);
  for (int i = 0; i < 5; i++) {
    CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
    CHECK_EQ(mrc_pair_write_list(p, end, sizes, 1), -ENOBUFS);
    CHECK(mrc_pair_finish(p, 50 * MS));
  }
  CHECK_EQ(succeeded(p, end), 5 * N);
}

/* ---- sends that fail ---- */

/* Sends that fail in the kernel: the error is blamed on a probe, an EV or the plane. */

#define RATE 500000000

static uint8_t ev_state(struct mrc_pair *p, int end, int plane, int path) {
  return mrc_pair_ev(p, end, plane, path).state;
}

/* Host 0 writes 4 MiB over two planes of four paths; some paths have no route. */
static struct mrc_pair *write_without(int *end, int plane, uint32_t paths, int error) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 4, .port_out.rate_bps = RATE);
  *end = open_qp(p, .memory_bytes = 4u << 20);
  for (int path = 0; path < 4; path++)
    if (paths >> path & 1) p->hosts[0].path_errors[plane - 1][path] = error;
  CHECK_EQ(mrc_pair_write(p, *end, 4u << 20), 0);
  run_for(p, 10 * MS);
  return p;
}

/* Under SRv6 each EV has its own route: an EV without a route leaves the rotation; its plane stays.
 */
TEST(test_data__without_a_route_distrusts_its_ev) {
  static const uint32_t rows[] = {1 << 2, 1 << 0 | 1 << 2, 1 << 0 | 1 << 1 | 1 << 3};
  EACH_ROW(row, rows) {
    int end;
    PAIR p = write_without(&end, 1, rows[row], -ENETUNREACH);
    for (int path = 0; path < 4; path++)
      CHECK_EQ(ev_state(p, end, 1, path) == MRC_EV_ASSUMED_BAD, (rows[row] >> path & 1) != 0);
    CHECK_EQ(n_reasons(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD, MRC_REASON_SEND),
             __builtin_popcount(rows[row]));
    CHECK(mrc_pair_finish(p, 200 * MS));
    CHECK_EQ(counter(p, 0, MRC_COUNTER_PLANES_SUSPENDED), 0);
    CHECK_EQ(retransmitted(p, end), 0); /* packets that never left are sent the first time */
    CHECK(p->hosts[0].plane_bytes[0] > 1u << 20);
  }
}

TEST(test_data__an_ev_returns_with_its_route) {
  int end;
  PAIR p = write_without(&end, 1, 1 << 2, -EHOSTUNREACH);
  run_for(p, 300 * MS);
  CHECK_EQ(ev_state(p, end, 1, 2), MRC_EV_ASSUMED_BAD);
  p->hosts[0].path_errors[0][2] = 0;
  run_for(p, 100 * MS);
  CHECK_EQ(ev_state(p, end, 1, 2), MRC_EV_GOOD);
}

/* When no EV of the plane is left to try, the plane is suspended until one has a route again. */
TEST(test_data__without_any_route_suspends_the_plane) {
  int end;
  PAIR p = write_without(&end, 1, 0xf, -ENETUNREACH);
  CHECK_EQ(mrc_pair_info(p, end).planes[0].suspended, 1);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
  CHECK_EQ(n_reasons(p, 0, MRC_EVENT_PLANE, 0, MRC_REASON_SEND), 1);
  CHECK_EQ(p->hosts[0].plane_bytes[0], 0);
  CHECK(mrc_pair_finish(p, 200 * MS));
  CHECK_EQ(retransmitted(p, end), 0);
  for (int path = 0; path < 4; path++)
    p->hosts[0].path_errors[0][path] = 0;
  run_for(p, 300 * MS);
  CHECK_EQ(mrc_pair_info(p, end).planes[0].suspended, 0);
}

/* The interface is down or gone, so every path of the plane fails: the plane is suspended. */
TEST(test_data__of_a_dead_interface_suspends_the_plane) {
  static const int errors[] = {-ENETDOWN, -ENODEV, -ENXIO};
  EACH_ROW(row, errors) {
    int end;
    PAIR p = write_without(&end, 2, 0xf, errors[row]);
    CHECK_EQ(n_reasons(p, 0, MRC_EVENT_PLANE, 0, MRC_REASON_SEND), 1);
    CHECK_EQ(n_reasons(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD, MRC_REASON_SEND), 0);
    CHECK(mrc_pair_finish(p, 200 * MS));
  }
}

/* A single plane has no alternative: the engine does not offer the same burst repeatedly, but waits
   for its timers. */
TEST(test_data__of_the_only_plane_waits_for_the_timers) {
  PAIR p = open_pair(.planes = 1, .paths = 4);
  const int end = open_qp(p, .memory_bytes = 64 * MTU);
  for (int path = 0; path < 4; path++)
    p->hosts[0].path_errors[0][path] = -ENETUNREACH;
  CHECK_EQ(mrc_pair_write(p, end, 64 * MTU), 0);
  run_for(p, 20 * MS);
  CHECK_EQ(p->hosts[0].plane_packets[0], 0);
  CHECK(p->hosts[0].bursts < 200);
  for (int path = 0; path < 4; path++)
    p->hosts[0].path_errors[0][path] = 0;
  CHECK(mrc_pair_finish(p, 500 * MS));
}

/* Acknowledgements that cannot be sent on one path leave on the others. */
TEST(test_answer__without_a_route_distrusts_its_ev) {
  PAIR p = open_pair(.planes = 2, .paths = 4, .port_out.rate_bps = RATE);
  const int end = open_qp(p, .memory_bytes = 4u << 20);
  p->hosts[1].path_errors[0][1] = -ENETUNREACH;
  WRITE_AND_WAIT(p, end, 4u << 20, 200 * MS);
  CHECK_EQ(ev_state(p, p->ends[end]->peer, 1, 1), MRC_EV_ASSUMED_BAD);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_PLANES_SUSPENDED), 0);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 0);
}

/* The interface of the answering host fails: each answer leaves elsewhere, and none is lost. */
TEST(test_answer__of_a_dead_interface_takes_another_plane) {
  static const int errors[] = {-ENETUNREACH, -ENETDOWN};
  EACH_ROW(row, errors) {
    PAIR p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = RATE);
    const int end = open_qp(p, .memory_bytes = 4u << 20);
    p->hosts[1].errors[0] = errors[row];
    WRITE_AND_WAIT(p, end, 4u << 20, 200 * MS);
    CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).planes[0].suspended, 1);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 0);
    CHECK_EQ(retransmitted(p, end), 0);
  }
}

/* The error of a probe becomes the probe's result. It does not affect smaller packets. */
TEST(test_probe__that_cannot_be_sent_blames_nobody) {
  static const int errors[] = {-EMSGSIZE, -ENETUNREACH, -ENETDOWN};
  EACH_ROW(row, errors) {
    PAIR p = open_pair(.planes = 2, .paths = 2);
    const int end = open_qp(p);
    p->hosts[0].errors[0] = p->hosts[0].errors[1] = errors[row];
    for (uint32_t ev = 0; ev < 4; ev++)
      CHECK_EQ(probe_ev(p->hosts[0].engine, p->ends[end]->qpn, ev, 9000, 100 * MS, ev, p->now_ns),
               0);
    mrc_pair_kick(p, 0);
    run_for(p, MS);
    CHECK_EQ(n_events(p, 0, MRC_EVENT_PROBE, MRC_PAIR_ANY), 4);
    for (int i = 0; i < p->hosts[0].n_events; i++)
      CHECK_EQ(p->hosts[0].events[i].result, errors[row]);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_PLANES_SUSPENDED), 0);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_EVS_BAD), 0);
  }
}

/* A QP that only receives measures its return path by probes alone: a plane on which the kernel can
   send no probe carries no answers. */
TEST(test_probe__of_a_reverse_ev_that_cannot_be_sent_fails) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  const int end = open_qp(p);
  struct mrc_qp *qp = mrc_qps_find(&p->hosts[1].engine->qps, p->ends[p->ends[end]->peer]->qpn);
  p->hosts[1].errors[0] = -ENETUNREACH;
  for (int i = 0; i < MRC_REVERSE_FAILURES; i++) {
    const struct mrc_ev_probe probe = {.ev = mrc_evset_any(&qp->evset, 0),
                                       .qp = qp,
                                       .timeout_ns = 10 * MS,
                                       .purpose = MRC_EV_PROBE_REVERSE};
    CHECK(mrc_probes_start(&p->hosts[1].engine->services.probes, &qp->probes, &probe) != NULL);
    mrc_pair_kick(p, 1);
    run_for(p, MS);
  }
  CHECK(!mrc_reverse_works(qp, 0));
  CHECK(mrc_reverse_works(qp, 1));
}

/* Each class has its code point. Switches may mark data and probes, but not answers. */
TEST(test_transmit__code_points_of_the_classes) {
  PAIR p = open_pair(.engine.dscps = {.control = 46, .data = 10, .retransmission = 18});
  const int end = open_qp(p, .memory_bytes = 1u << 20);
  p->tap_room = MRC_PAIR_TAP;
  mrc_pair_lose(
      p, (struct mrc_pair_rule){.opcode = MRC_OP_WRITE_LAST, .plane = MRC_PAIR_ANY, .times = 1});
  WRITE_AND_WAIT(p, end, 1u << 20, SECOND);
  int seen[256] = {0}, again = 0;
  for (int i = 0; i < p->n_tapped; i++) {
    struct mrc_wire wire;
    CHECK_EQ(mrc_wire_decode(p->tap[i]->bytes, p->tap[i]->n, false, &wire), 0);
    const bool data = mrc_opcode_is_data(wire.opcode), rtx = data && wire.rtx;
    const bool asks = wire.opcode == MRC_OP_PROBE || wire.opcode == MRC_OP_ENDPOINT_REQUEST;
    CHECK_EQ(p->tap[i]->tclass, rtx ? 18 << 2 | 2 : data ? 10 << 2 | 2 : 46 << 2 | (asks ? 2 : 0));
    seen[wire.opcode]++;
    again += rtx;
  }
  CHECK(again > 0 && seen[MRC_OP_SACK] > 0 && seen[MRC_OP_ACK] > 0);
  CHECK(seen[MRC_OP_PROBE] + seen[MRC_OP_ENDPOINT_REQUEST] > 0);
}

/* ---- turns of QPs ---- */

/* Which QP has its turn when several QPs have data to send, or wait for room in the CQ. */

/* One QP of host 1 has data for many transmits and was there first; another owes an answer. */
#define TWO_QPS FREED_BY(end_two_qps) const struct two_qps
struct two_qps {
  struct mrc_pair *pair;
  mrc_engine *engine; /* of host 1 */
  int asked;          /* host 0's end of the QP that owes the answer */
};

static void end_two_qps(const struct two_qps *qps) { mrc_pair_destroy(qps->pair); }

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
  struct forge forge = make_forge(qps->pair, qps->asked);
  set_wire(forge, .opcode = MRC_OP_PROBE);
  CHECK_EQ(send_forge(qps->pair, &forge), 0);
}

static void check_answer_leaves_first(const struct two_qps *qps) {
  struct mrc_burst bursts[4];
  CHECK_EQ(transmit(qps->pair, 1, bursts, 4, 1), 4);
  CHECK_EQ(bursts[0].packets[0].header[0], MRC_OP_SACK);
  for (int i = 1; i < 4; i++)
    CHECK(mrc_opcode_is_data(bursts[i].packets[0].header[0]));
}

TEST(test_answers__leave_before_the_data_of_other_qps) {
  TWO_QPS qps = open_two_qps();
  ask(&qps);
  check_answer_leaves_first(&qps);
}

TEST(test_answers__leave_before_data_when_a_port_has_room_again) {
  TWO_QPS qps = open_two_qps();
  struct mrc_burst burst;
  mrc_engine_port_blocked(qps.engine, 1, true, qps.pair->now_ns);
  CHECK_EQ(mrc_engine_transmit(qps.engine, &burst, 1, qps.pair->now_ns), 0);
  ask(&qps);
  CHECK_EQ(mrc_engine_transmit(qps.engine, &burst, 1, qps.pair->now_ns), 0);
  mrc_engine_port_blocked(qps.engine, 1, false, qps.pair->now_ns);
  check_answer_leaves_first(&qps);
}

/* A burst is limited by bytes: a new window of whole packets holds many short ones. */
TEST(test_burst__takes_many_short_packets_from_the_start) {
  PAIR p = open_pair();
  const int end = open_qp(p, .memory_bytes = 64);
  prove_paths(p->hosts[0].engine, p->ends[end]->qpn);
  write_many(p, end, 8, 8);
  struct mrc_burst bursts[4];
  CHECK_EQ(transmit(p, 0, bursts, 4, 1), 1);
  CHECK_EQ(bursts[0].n_packets, 8);
}

/* Answers that no EV can carry now are neither tried repeatedly nor dropped. */
TEST(test_answers__wait_for_a_port) {
  PAIR p = open_pair();
  const int end = open_qp(p, .memory_bytes = 512 * MTU);
  struct forge forge = make_forge(p, end);
  mrc_engine *engine = p->hosts[1].engine;
  struct mrc_burst burst;
  run_for(p, MS);
  mrc_engine_port_blocked(engine, 1, true, p->now_ns);
  set_wire(forge, .opcode = MRC_OP_PROBE);
  CHECK_EQ(send_forge(p, &forge), 0);
  CHECK_EQ(mrc_engine_transmit(engine, &burst, 1, p->now_ns), 0);
  CHECK(mrc_engine_deadline(engine) > p->now_ns);
  mrc_engine_port_blocked(engine, 1, false, p->now_ns);
  CHECK_EQ(transmit(p, 1, &burst, 1, 1), 1);
  CHECK_EQ(burst.packets[0].header[0], MRC_OP_SACK);
}

/* Three QPs of host 1 that have data for many transmits. With `spray` they send packet by packet.
 */
enum { N_SPRAYING = 3 };

#define SPRAYING FREED_BY(end_spraying) const struct spraying
struct spraying {
  struct mrc_pair *pair;
  mrc_engine *engine;
  uint32_t index[N_SPRAYING]; /* engine indices of the QPs */
};

static void end_spraying(const struct spraying *s) { mrc_pair_destroy(s->pair); }

static struct spraying open_spraying(uint32_t spray) {
  struct spraying s = {.pair = open_pair()};
  s.engine = s.pair->hosts[1].engine;
  for (int i = 0; i < N_SPRAYING; i++) {
    const int end = open_qp(s.pair, .from = 1, .to = 0, .spray = spray, .memory_bytes = 512 * MTU);
    const uint32_t qpn = s.pair->ends[end]->qpn;
    prove_paths(s.engine, qpn);
    s.index[i] = mrc_qps_find(&s.engine->qps, qpn)->index;
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
  EACH_OF(int, i, 0, BURSTS) {
    CHECK_EQ(bursts[i].n_packets, 1);
    CHECK_EQ(bursts[i]._qp, s->index[(first + i) % N_SPRAYING]);
    taken[i] = i < n_taken;
  }
  mrc_engine_commit(s->engine, bursts, taken, BURSTS, s->pair->now_ns);
}

TEST(test_turns__of_qps_that_spray_packets_are_a_packet_long) {
  SPRAYING s = open_spraying(1);
  check_turns(&s, 0, 7);
  check_turns(&s, 1, 7);
}

TEST(test_turns__in_vain_are_not_lost) {
  SPRAYING s = open_spraying(1);
  check_turns(&s, 0, 1);
  check_turns(&s, 1, 4);
  check_turns(&s, 2, 0);
  check_turns(&s, 2, 7);
}

/* Without spraying, a turn is four bursts long. */
TEST(test_turns__of_other_qps_are_four_bursts_long) {
  enum { BURSTS = 12 };
  SPRAYING s = open_spraying(0);
  struct mrc_burst bursts[BURSTS];
  CHECK_EQ(transmit(s.pair, 1, bursts, BURSTS, 1), BURSTS);
  EACH_OF(int, i, 0, BURSTS)
    CHECK_EQ(bursts[i]._qp, s.index[i / MRC_QUANTUM_BURSTS]);
}

/* The immediates of two QPs find the CQ full: the QPs take turns for each place that becomes free.
 */
TEST(test_held__qps_take_turns_for_the_cq) {
  enum { EACH = 12, DEPTH = 16 };
  PAIR p = open_pair(.hosts = 3, .engine.cq_depth = DEPTH);
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
}
