/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scripts over engines in virtual time (tests/pair/pair.h). A scenario opens a pair, connects a QP,
 * names its faults, writes, and checks the outcome; the auditor checks the rest at every step
 * (csrc/virtual/audit.h).
 *
 *   PAIR p = open_pair(.planes = 2);
 *   int end = open_qp(p, .memory_bytes = 4 * MTU);
 *   lose_data(p, 1, 1);
 *   CHECK_EQ(mrc_pair_write(p, end, 4 * MTU), 0);
 *   CHECK(mrc_pair_finish(p, 10 * MS));
 *   CHECK_EQ(retransmitted(p, end), 1);
 */
#pragma once

#include <errno.h>

#include "check.h"
#include "core/base.h"
#include "core/calls.h"
#include "core/engine.h"
#include "pair/connect.h"

#define US 1000ull
#define MS 1000000ull
#define SECOND 1000000000ull
#define MTU 1024u
#define PATH_DELAY (10 * US) /* of every path, unless the scenario says otherwise */

/* A pair that is destroyed at the end of its block; that checks all memory a last time. */
#define PAIR FREED_BY(destroy_pair) struct mrc_pair *
__attribute__((unused)) static void destroy_pair(struct mrc_pair **pair) {
  mrc_pair_destroy(*pair);
}

/* An engine without hosts, destroyed at the end of its block. */
#define ENGINE FREED_BY(destroy_engine) mrc_engine *
__attribute__((unused)) static void destroy_engine(mrc_engine **engine) {
  mrc_engine_destroy(*engine);
}

/* A field that a scenario names overrides the default here. */
#pragma GCC diagnostic ignored "-Woverride-init"
#define open_pair(...) \
  mrc_pair_create(&(struct mrc_pair_config){.seed = 1, .path.delay_ns = PATH_DELAY, __VA_ARGS__})
#define open_qp(pair, ...)                \
  mrc_pair_connect(                       \
      pair, &(struct mrc_pair_qp_config){ \
                .path_mtu = MTU, .timeout = 14, .retry_linear = 3, .retry_exp = 4, __VA_ARGS__})

/* The QP of this end inside its engine. */
__attribute__((unused)) static struct mrc_qp *inside(const struct mrc_pair *pair, int end) {
  const struct mrc_pair_end *e = pair->ends[end];
  return mrc_qps_find(&pair->hosts[e->host].engine->qps, e->qpn);
}

/* Between equal shares, the lower plane comes first. */
__attribute__((unused)) static void start_at_plane_1(const struct mrc_pair *pair, int end) {
  struct mrc_qp *qp = inside(pair, end);
  MRC_EACH_BIT(plane, qp->evset.plane_mask)
    qp->planes[plane].share_bytes = 0;
}

/* Four planes of 500 Mbit/s, with a round trip of 0.4 ms. */
__attribute__((unused)) static struct mrc_pair *open_four_planes(void) {
  return open_pair(.planes = 4, .paths = 2, .path.delay_ns = 200 * US,
                   .port_out.rate_bps = 500000000, .port_out.queue_bytes = 4000000,
                   .driver.wake_ns = 20 * US);
}

/* Marks all paths of the QP as if they had answered the connect probes, so that the QP sends its
   whole window at once. */
__attribute__((unused)) static void prove_paths(struct mrc_engine *engine, uint32_t qpn) {
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, qpn);
  for (uint16_t ev = 0; ev < qp->evset.n; ev++)
    mrc_evset_prove(&qp->evset, ev);
}

/* Loses the first transmission of data PSNs [first, first + n) of a QP that starts at PSN 0. */
__attribute__((unused)) static void lose_data(struct mrc_pair *pair, uint32_t first, uint32_t n) {
  mrc_pair_lose(pair, (struct mrc_pair_rule){
                          .host = 0, .plane = MRC_PAIR_ANY, .psn = first, .n_psns = n, .times = n});
}

/* Loses the next packets of one kind that a host sends. */
__attribute__((unused)) static void lose_kind(struct mrc_pair *pair, int host, uint32_t opcode,
                                              uint32_t times) {
  mrc_pair_lose(pair, (struct mrc_pair_rule){
                          .host = host, .plane = MRC_PAIR_ANY, .opcode = opcode, .times = times});
}

/* Writes the next bytes of an end, and waits until all that was posted is done. */
#define WRITE_AND_WAIT(pair, end, bytes, budget_ns) \
  do {                                              \
    CHECK_EQ(mrc_pair_write(pair, end, bytes), 0);  \
    CHECK(mrc_pair_finish(pair, budget_ns));        \
  } while (0)
#define WRITE_IMM_AND_WAIT(pair, end, bytes, budget_ns) \
  do {                                                  \
    CHECK_EQ(mrc_pair_write_imm(pair, end, bytes), 0);  \
    CHECK(mrc_pair_finish(pair, budget_ns));            \
  } while (0)

__attribute__((unused)) static void write_many(struct mrc_pair *pair, int end, uint32_t bytes,
                                               int n) {
  for (int i = 0; i < n; i++)
    CHECK_EQ(mrc_pair_write(pair, end, bytes), 0);
}

/* The controller of host 0 marks an EV as bad. */
__attribute__((unused)) static void distrust(struct mrc_pair *pair, int end, uint32_t ev) {
  CHECK_EQ(mrc_qp_set_ev_state(pair->hosts[0].engine, pair->ends[end]->qpn, ev, MRC_EV_ASSUMED_BAD,
                               pair->now_ns),
           0);
}

__attribute__((unused)) static struct mrc_audit *audit_of(struct mrc_pair *pair, int end) {
  return &pair->ends[end]->audit;
}

__attribute__((unused)) static uint64_t retransmitted(struct mrc_pair *pair, int end) {
  return audit_of(pair, end)->retransmitted;
}

__attribute__((unused)) static uint64_t succeeded(struct mrc_pair *pair, int end) {
  return audit_of(pair, end)->statuses[MRC_WC_SUCCESS];
}

__attribute__((unused)) static void run_for(struct mrc_pair *pair, uint64_t ns) {
  mrc_pair_run(pair, pair->now_ns + ns);
}

__attribute__((unused)) static uint64_t counter(const struct mrc_pair *pair, int host,
                                                enum mrc_counter index) {
  uint64_t values[MRC_COUNTERS];
  CHECK_EQ(mrc_engine_counters(pair->hosts[host].engine, values, MRC_COUNTERS), MRC_COUNTERS);
  return values[index];
}

__attribute__((unused)) static uint64_t dropped(const struct mrc_pair *pair, int host,
                                                enum mrc_drop reason) {
  uint64_t values[MRC_DROP_COUNT];
  CHECK_EQ(mrc_engine_drops(pair->hosts[host].engine, values, MRC_DROP_COUNT), MRC_DROP_COUNT);
  return values[reason];
}

/* Transmits once without the host's driver: all bursts get this fate, and none leaves. They stay
   readable; returns their number. */
__attribute__((unused)) static int transmit(const struct mrc_pair *pair, int host,
                                            struct mrc_burst *bursts, int capacity, int fate) {
  int taken[MRC_MAX_BURSTS];
  mrc_engine *engine = pair->hosts[host].engine;
  const int n = mrc_engine_transmit(engine, bursts, capacity, pair->now_ns);
  for (int i = 0; i < n; i++)
    taken[i] = fate;
  if (n > 0) mrc_engine_commit(engine, bursts, taken, n, pair->now_ns);
  return n;
}

/* Starts a batch of one EV probe: 0, or an error; -EAGAIN when there is no room. */
__attribute__((unused)) static int probe_ev(mrc_engine *engine, uint32_t qpn, uint32_t ev,
                                            uint32_t bytes, uint64_t timeout_ns, uint64_t cookie,
                                            uint64_t now_ns) {
  const struct mrc_probe_attr probe = {
      .cookie = cookie, .timeout_ns = timeout_ns, .qpn = qpn, .ev_index = ev, .bytes = bytes};
  const int taken = mrc_engine_probe_evs(engine, &probe, 1, now_ns);
  return taken < 0 ? taken : taken == 1 ? 0 : -EAGAIN;
}

/* The number of events of a type at a host; status MRC_PAIR_ANY matches every status. */
__attribute__((unused)) static int n_events(const struct mrc_pair *pair, int host, int type,
                                            uint32_t status) {
  int n = 0;
  for (int i = 0; i < pair->hosts[host].n_events; i++) {
    const struct mrc_event *event = &pair->hosts[host].events[i];
    n += event->type == type && (status == MRC_PAIR_ANY || event->status == status);
  }
  return n;
}

/* The number of events of a type and status at a host with this reason. */
__attribute__((unused)) static int n_reasons(const struct mrc_pair *pair, int host, int type,
                                             uint32_t status, enum mrc_event_reason reason) {
  int n = 0;
  for (int i = 0; i < pair->hosts[host].n_events; i++) {
    const struct mrc_event *event = &pair->hosts[host].events[i];
    n += event->type == type && event->status == status && event->reason == reason;
  }
  return n;
}
