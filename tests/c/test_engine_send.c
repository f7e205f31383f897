/* SPDX-License-Identifier: Apache-2.0 */
/* Sends that fail in the kernel: the error is blamed on a probe, an EV or the plane. */
#include <errno.h>
#include <stdlib.h>

#include "core/engine.h"
#include "core/reverse.h"
#include "pair/connect.h"
#include "scenario.h"

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
  for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
    CHECK_ROW(row);
    int end;
    struct mrc_pair *p = write_without(&end, 1, rows[row], -ENETUNREACH);
    for (int path = 0; path < 4; path++)
      CHECK_EQ(ev_state(p, end, 1, path) == MRC_EV_ASSUMED_BAD, (rows[row] >> path & 1) != 0);
    CHECK_EQ(n_reasons(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD, MRC_REASON_SEND),
             __builtin_popcount(rows[row]));
    CHECK(mrc_pair_finish(p, 200 * MS));
    CHECK_EQ(counter(p, 0, MRC_COUNTER_PLANES_SUSPENDED), 0);
    CHECK_EQ(retransmitted(p, end), 0); /* packets that never left are sent the first time */
    CHECK(p->hosts[0].plane_bytes[0] > 1u << 20);
    mrc_pair_destroy(p);
  }
}

TEST(test_data__an_ev_returns_with_its_route) {
  int end;
  struct mrc_pair *p = write_without(&end, 1, 1 << 2, -EHOSTUNREACH);
  run_for(p, 300 * MS);
  CHECK_EQ(ev_state(p, end, 1, 2), MRC_EV_ASSUMED_BAD);
  p->hosts[0].path_errors[0][2] = 0;
  run_for(p, 100 * MS);
  CHECK_EQ(ev_state(p, end, 1, 2), MRC_EV_GOOD);
  mrc_pair_destroy(p);
}

/* When no EV of the plane is left to try, the plane is suspended. */
TEST(test_data__without_any_route_suspends_the_plane) {
  int end;
  struct mrc_pair *p = write_without(&end, 1, 0xf, -ENETUNREACH);
  CHECK_EQ(mrc_pair_info(p, end).planes[0].suspended, 1);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
  CHECK_EQ(n_reasons(p, 0, MRC_EVENT_PLANE, 0, MRC_REASON_SEND), 1);
  CHECK_EQ(p->hosts[0].plane_bytes[0], 0);
  CHECK(mrc_pair_finish(p, 200 * MS));
  CHECK_EQ(retransmitted(p, end), 0);
  mrc_pair_destroy(p);
}

/* The interface is down or gone, so every path of the plane fails: the plane is suspended. */
TEST(test_data__of_a_dead_interface_suspends_the_plane) {
  static const int errors[] = {-ENETDOWN, -ENODEV, -ENXIO};
  for (size_t row = 0; row < sizeof errors / sizeof errors[0]; row++) {
    CHECK_ROW(row);
    int end;
    struct mrc_pair *p = write_without(&end, 2, 0xf, errors[row]);
    CHECK_EQ(n_reasons(p, 0, MRC_EVENT_PLANE, 0, MRC_REASON_SEND), 1);
    CHECK_EQ(n_reasons(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD, MRC_REASON_SEND), 0);
    CHECK(mrc_pair_finish(p, 200 * MS));
    mrc_pair_destroy(p);
  }
}

/* A single plane has no alternative: the engine does not offer the same burst repeatedly, but waits
   for its timers. */
TEST(test_data__of_the_only_plane_waits_for_the_timers) {
  struct mrc_pair *p = open_pair(.planes = 1, .paths = 4);
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
  mrc_pair_destroy(p);
}

/* Acknowledgements that cannot be sent on one path leave on the others. */
TEST(test_answer__without_a_route_distrusts_its_ev) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 4, .port_out.rate_bps = RATE);
  const int end = open_qp(p, .memory_bytes = 4u << 20);
  p->hosts[1].path_errors[0][1] = -ENETUNREACH;
  CHECK_EQ(mrc_pair_write(p, end, 4u << 20), 0);
  CHECK(mrc_pair_finish(p, 200 * MS));
  CHECK_EQ(ev_state(p, p->ends[end]->peer, 1, 1), MRC_EV_ASSUMED_BAD);
  CHECK_EQ(counter(p, 1, MRC_COUNTER_PLANES_SUSPENDED), 0);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 0);
  mrc_pair_destroy(p);
}

/* The interface of the answering host fails: each answer leaves elsewhere, and none is lost. */
TEST(test_answer__of_a_dead_interface_takes_another_plane) {
  static const int errors[] = {-ENETUNREACH, -ENETDOWN};
  for (size_t row = 0; row < sizeof errors / sizeof errors[0]; row++) {
    CHECK_ROW(row);
    struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = RATE);
    const int end = open_qp(p, .memory_bytes = 4u << 20);
    p->hosts[1].errors[0] = errors[row];
    CHECK_EQ(mrc_pair_write(p, end, 4u << 20), 0);
    CHECK(mrc_pair_finish(p, 200 * MS));
    CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).planes[0].suspended, 1);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 0);
    CHECK_EQ(retransmitted(p, end), 0);
    mrc_pair_destroy(p);
  }
}

/* The error of a probe becomes the probe's result. It does not affect smaller packets. */
TEST(test_probe__that_cannot_be_sent_blames_nobody) {
  static const int errors[] = {-EMSGSIZE, -ENETUNREACH, -ENETDOWN};
  for (size_t row = 0; row < sizeof errors / sizeof errors[0]; row++) {
    CHECK_ROW(row);
    struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
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
    mrc_pair_destroy(p);
  }
}

/* A QP that only receives measures its return path by probes alone: a plane on which the kernel can
   send no probe carries no answers. */
TEST(test_probe__of_a_reverse_ev_that_cannot_be_sent_fails) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  const int end = open_qp(p);
  struct mrc_qp *qp = mrc_engine_qp(p->hosts[1].engine, p->ends[p->ends[end]->peer]->qpn);
  p->hosts[1].errors[0] = -ENETUNREACH;
  for (int i = 0; i < MRC_REVERSE_FAILURES; i++) {
    CHECK(mrc_reverse_probe(&p->hosts[1].engine->services, qp, mrc_evset_any(&qp->evset, 0),
                            10 * MS));
    mrc_pair_kick(p, 1);
    run_for(p, MS);
  }
  CHECK(!mrc_reverse_works(qp, 0));
  CHECK(mrc_reverse_works(qp, 1));
  mrc_pair_destroy(p);
}

/* Each class has its code point. Switches may mark data and probes, but not answers. */
TEST(test_transmit__code_points_of_the_classes) {
  static struct mrc_datagram *tap[4096];
  struct mrc_pair *p = open_pair(.engine.dscps = {.control = 46, .data = 10, .retransmission = 18});
  const int end = open_qp(p, .memory_bytes = 1u << 20);
  p->tap = tap;
  p->tap_room = 4096;
  mrc_pair_lose(
      p, (struct mrc_pair_rule){.opcode = MRC_OP_WRITE_LAST, .plane = MRC_PAIR_ANY, .times = 1});
  CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
  CHECK(mrc_pair_finish(p, SECOND));
  int seen[256] = {0}, again = 0;
  for (int i = 0; i < p->n_tapped; i++) {
    struct mrc_wire wire;
    CHECK_EQ(mrc_wire_decode(tap[i]->bytes, tap[i]->n, false, &wire), 0);
    const bool data = mrc_opcode_is_data(wire.opcode), rtx = data && wire.rtx;
    const bool asks = wire.opcode == MRC_OP_PROBE || wire.opcode == MRC_OP_ENDPOINT_REQUEST;
    CHECK_EQ(tap[i]->tclass, rtx ? 18 << 2 | 2 : data ? 10 << 2 | 2 : 46 << 2 | (asks ? 2 : 0));
    seen[wire.opcode]++;
    again += rtx;
    free(tap[i]);
  }
  CHECK(again > 0 && seen[MRC_OP_SACK] > 0 && seen[MRC_OP_ACK] > 0);
  CHECK(seen[MRC_OP_PROBE] + seen[MRC_OP_ENDPOINT_REQUEST] > 0);
  mrc_pair_destroy(p);
}
