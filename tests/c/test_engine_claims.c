/* SPDX-License-Identifier: Apache-2.0 */
/* A third host claims the source address of a peer: answers to the peer's requests still go to the
   peer. */
#include <errno.h>

#include "core/crc.h"
#include "core/engine.h"
#include "pair/address.h"
#include "pair/connect.h"
#include "scenario.h"

enum { CLAIM_QPN = 0x777 };

/* Opens a QP at host 1 whose sources are host 2's address and host 0's. The claimant is host 2, or
   host 0 with another set of interfaces. */
static int claim(struct mrc_pair *p, uint32_t qpn, int host, uint16_t udp_port) {
  mrc_engine *engine = p->hosts[1].engine;
  const struct mrc_qp_attr attr = {.create = {.qpn = qpn, .sq_depth = 1, .mpr = 128, .max_wimm = 1},
                                   .rtr = {.dest_qpn = 3}};
  struct mrc_ev_attr ev = {
      .ev = (uint32_t)mrc_address_sport(1, 0) << 16 | mrc_address_label(6, 1, 0),
      .dport = udp_port,
      .port = 1,
      .family = 6};
  struct mrc_peer_source sources[2] = {{.sport = mrc_address_sport(1, 0)},
                                       {.sport = mrc_address_sport(1, 0)}};
  mrc_address_make(ev.src, 6, 1, 1, 0);
  mrc_address_make(ev.dst, 6, host, 1, 0);
  mrc_address_make(sources[0].address, 6, 0, 1, 0);
  mrc_address_make(sources[1].address, 6, 2, 1, 0);
  CHECK_EQ(mrc_qp_create(engine, &attr.create), 0);
  CHECK_EQ(mrc_qp_modify(engine, qpn, MRC_QP_INIT, NULL, NULL, p->now_ns), 0);
  CHECK_EQ(mrc_qp_set_evs(engine, qpn, &ev, 1), 0);
  const int error = mrc_qp_set_peer(engine, qpn, sources, 2);
  if (error == 0) CHECK_EQ(mrc_qp_modify(engine, qpn, MRC_QP_RTR, &attr.rtr, NULL, p->now_ns), 0);
  return error;
}

/* The result of a probe from host 0 to host 1. */
static int probe_result(struct mrc_pair *p, int end) {
  const int before = p->hosts[0].n_events;
  CHECK_EQ(probe_ev(p->hosts[0].engine, p->ends[end]->qpn, 0, 0, 5 * MS, 0, p->now_ns), 0);
  mrc_pair_kick(p, 0);
  run_for(p, 10 * MS);
  for (int i = before; i < p->hosts[0].n_events; i++)
    if (p->hosts[0].events[i].type == MRC_EVENT_PROBE) return p->hosts[0].events[i].result;
  return -ENOENT;
}

/* Host 0 has answered probes, so a claim of its source from another UDP port is refused. A claim
   from the same port is accepted (it may be host 0 with another set of interfaces), but the answers
   still go to host 0. */
TEST(test_claim__of_what_is_proved) {
  for (int same = 0; same < 2; same++) {
    CHECK_ROW(same);
    struct mrc_pair *p = open_pair(.hosts = 3);
    const int end = open_qp(p, .probe = true);
    CHECK_EQ(claim(p, CLAIM_QPN, 2, mrc_address_udp_port(same ? 0 : 2)), same ? 0 : -EADDRINUSE);
    for (int i = 0; i < 4; i++)
      CHECK_EQ(probe_result(p, end), 0);
    CHECK_EQ(mrc_qp_destroy(p->hosts[1].engine, CLAIM_QPN), 0);
    mrc_pair_destroy(p);
  }
}

/* No source is proved yet: the answer goes to the address that sent the request. */
TEST(test_claim__of_what_is_not_proved) {
  for (int first = 0; first < 2; first++) {
    CHECK_ROW(first);
    struct mrc_pair *p = open_pair(.hosts = 3);
    if (first) CHECK_EQ(claim(p, CLAIM_QPN, 2, mrc_address_udp_port(2)), 0);
    const int end = open_qp(p);
    if (!first) CHECK_EQ(claim(p, CLAIM_QPN, 2, mrc_address_udp_port(2)), 0);
    for (int i = 0; i < 4; i++)
      CHECK_EQ(probe_result(p, end), 0);
    mrc_pair_destroy(p);
  }
}

/* An EV probe from host 0's source arrives at host 1. Returns the UDP port of the answer. */
static uint16_t answered_port(struct mrc_pair *p) {
  mrc_engine *engine = p->hosts[1].engine;
  const struct mrc_wire wire = {.opcode = MRC_OP_ENDPOINT_REQUEST,
                                .dest_qpn = MRC_ENDPOINT_QPN,
                                .endpoint = {.op = MRC_ENDPOINT_EV_PROBE}};
  struct mrc_meta meta = {.sport = mrc_address_sport(1, 0), .family = 6, .port = 1};
  mrc_address_make(meta.src, 6, 0, 1, 0);
  mrc_address_make(meta.dst, 6, 1, 1, 0);
  const struct mrc_icrc_flow flow = {
      .src = meta.src, .dst = meta.dst, .sport = meta.sport, .family = 6};
  uint8_t bytes[MRC_MAX_HEADER + MRC_ICRC_BYTES];
  const size_t n = mrc_wire_encode(&wire, bytes);
  mrc_icrc_store(mrc_icrc_packet(mrc_icrc_begin(&flow, n + MRC_ICRC_BYTES), bytes, n), bytes + n);
  CHECK_EQ(
      mrc_engine_receive(engine, bytes, n + MRC_ICRC_BYTES, n + MRC_ICRC_BYTES, &meta, p->now_ns),
      0);
  struct mrc_burst burst = {0};
  const int taken = 1;
  CHECK_EQ(mrc_engine_transmit(engine, &burst, 1, p->now_ns), 1);
  mrc_engine_commit(engine, &burst, &taken, 1, p->now_ns);
  return burst.dport;
}

/* No source is proved. Among the claims whose answers go to the requesting host, the newest gets
   the answer: the host may have come back with another set of interfaces. */
TEST(test_claim__of_the_newest_counts) {
  struct mrc_pair *p = open_pair(.hosts = 3);
  CHECK_EQ(claim(p, CLAIM_QPN, 0, 5001), 0);
  CHECK_EQ(claim(p, CLAIM_QPN + 1, 0, 5002), 0);
  CHECK_EQ(claim(p, CLAIM_QPN + 2, 2, 5003), 0); /* answers for it go to host 2 */
  CHECK_EQ(answered_port(p), 5002);
  mrc_pair_destroy(p);
}

/* The engine checks a limited number of claims for one request, so that peers cannot make a request
   expensive. With more claims than that, the newest claim gets the answer. */
TEST(test_claim__only_so_many_are_looked_at) {
  for (uint32_t strangers = 3; strangers <= 5; strangers++) {
    CHECK_ROW(strangers);
    struct mrc_pair *p = open_pair(.hosts = 3);
    CHECK_EQ(claim(p, CLAIM_QPN, 0, 5000), 0);
    for (uint32_t i = 1; i <= strangers; i++)
      CHECK_EQ(claim(p, CLAIM_QPN + i, 2, (uint16_t)(5000 + i)), 0);
    CHECK_EQ(answered_port(p), strangers < 4 ? 5000 : 5000 + strangers);
    mrc_pair_destroy(p);
  }
}
