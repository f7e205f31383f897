/* SPDX-License-Identifier: Apache-2.0 */
/* EV probes on command, the proof of the path MTU, probation, and the controller's settings. */
#include "core/engine.h"

#include <errno.h>

#include "pair/connect.h"
#include "scenario.h"

/* Two ends in RTR: they may probe but not send. */
static int open_rtr(struct mrc_pair *p) {
  int end = mrc_pair_create_qp(p, &(struct mrc_pair_qp_config){.memory_bytes = 1u << 20});
  mrc_pair_modify(p, end, MRC_QP_RTR);
  mrc_pair_modify(p, p->ends[end]->peer, MRC_QP_RTR);
  return end;
}

static int probe(struct mrc_pair *p, int end, uint32_t ev, uint32_t bytes, uint64_t cookie) {
  int error = probe_ev(p->hosts[p->ends[end]->host].engine, p->ends[end]->qpn, ev, bytes, 5 * MS,
                       cookie, p->now_ns);
  mrc_pair_kick(p, p->ends[end]->host);
  return error;
}

/* The PROBE event with this cookie; `type` is not PROBE when there was none, or more than one. */
static struct mrc_event find_probe(const struct mrc_pair *p, int host, uint64_t cookie) {
  struct mrc_event found = {.type = MRC_EVENT_REPLY};
  int n = 0;
  for (int i = 0; i < p->hosts[host].n_events; i++) {
    const struct mrc_event *event = &p->hosts[host].events[i];
    if (event->type != MRC_EVENT_PROBE || event->cookie != cookie) continue;
    found = *event;
    n++;
  }
  CHECK_EQ(n, 1);
  return found;
}

/* Two of four paths are dead in both directions, and both ends probe all of them, as at connect.
   Then each knows a path for its answers: no answer is lost on a dead one. */
TEST(test_probe__answers_take_paths_that_answered) {
  PAIR p = open_pair(.planes = 1, .paths = 4);
  const int ends[2] = {open_rtr(p), p->ends[0]->peer};
  for (int path = 2; path < 4; path++)
    for (int host = 0; host < 2; host++)
      mrc_pair_path(p, host, 1 - host, 1, path)->config.silent = true;
  for (uint32_t i = 0; i < 8; i++)
    for (int side = 0; side < 2; side++)
      CHECK_EQ(probe(p, ends[side], i % 4, 0, i), 0);
  run_for(p, 10 * MS);
  for (uint32_t i = 100; i < 120; i++)
    for (int side = 0; side < 2; side++)
      CHECK_EQ(probe(p, ends[side], i % 2, 0, i), 0);
  run_for(p, 10 * MS);
  for (uint32_t i = 100; i < 120; i++)
    for (int host = 0; host < 2; host++)
      CHECK_EQ(find_probe(p, host, i).result, 0);
}

/* The proof of the path MTU: a full packet passes; a packet one byte longer is lost silently. */
TEST(test_probe__proves_the_path_mtu) {
  enum { UDP_BYTES = 1500 - 48 };
  PAIR p = open_pair(.planes = 2, .paths = 1, .path.mtu_bytes = 1500);
  int end = open_rtr(p);
  CHECK_EQ(probe(p, end, 0, UDP_BYTES, 1), 0);
  CHECK_EQ(probe(p, end, 0, UDP_BYTES + 4, 2), 0);
  CHECK_EQ(probe(p, end, 1, 8888, 3), 0);
  CHECK_EQ(probe(p, end, 1, 1, 4), 0); /* smaller than its headers: sent without padding */
  run_for(p, 10 * MS);
  CHECK_EQ(find_probe(p, 0, 1).result, 0);
  CHECK_EQ(find_probe(p, 0, 2).result, -ETIMEDOUT);
  CHECK_EQ(find_probe(p, 0, 3).result, -ETIMEDOUT);
  CHECK_EQ(find_probe(p, 0, 4).result, 0);
}

/* What else is refused: test_batch__is_refused_as_a_whole. */
TEST(test_probe__needs_a_peer) {
  PAIR p = open_pair(.planes = 2, .paths = 1);
  int end = mrc_pair_create_qp(p, &(struct mrc_pair_qp_config){.memory_bytes = 0});
  CHECK_EQ(probe(p, end, 0, 0, 1), -EINVAL); /* no peer in INIT */
  mrc_pair_modify(p, end, MRC_QP_RTR);
  CHECK_EQ(probe(p, end, 0, 0, 1), 0);
  run_for(p, 10 * MS); /* the peer's engine answers in any state of its QP */
  CHECK_EQ(find_probe(p, 0, 1).result, 0);
}

/* The kernel refuses every second burst, answers included: a refused burst keeps its place. */
TEST(test_probe__answers_are_refused_at_first) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .driver.refuse_one_in = 2);
  int end = open_rtr(p);
  for (uint64_t i = 0; i < 40; i++)
    CHECK_EQ(probe(p, end, (uint32_t)i % 4, 0, i), 0);
  run_for(p, 10 * MS);
  CHECK(p->hosts[1].refused > 0);
  for (uint64_t i = 0; i < 40; i++)
    CHECK_EQ(find_probe(p, 0, i).result, 0);
}

/* The socket of the answering host is full for a while: the answers wait, and no thread spins. */
TEST(test_probe__answers_wait_for_a_blocked_port) {
  PAIR p = open_pair(.planes = 1, .paths = 1);
  int end = open_rtr(p);
  mrc_engine *peer = p->hosts[1].engine;
  mrc_engine_port_blocked(peer, 1, true, p->now_ns);
  p->hosts[1].blocked = 1;
  CHECK_EQ(probe(p, end, 0, 0, 1), 0);
  run_for(p, MS);
  CHECK(mrc_engine_deadline(peer) > p->now_ns);
  mrc_engine_port_blocked(peer, 1, false, p->now_ns);
  p->hosts[1].blocked = 0;
  CHECK_EQ(mrc_engine_deadline(peer), 0);
  mrc_pair_kick(p, 1);
  run_for(p, MS);
  CHECK_EQ(find_probe(p, 0, 1).result, 0);
}

/* When a port goes down, its probes end before their timeout. */
TEST(test_probe__on_a_port_that_is_down) {
  PAIR p = open_pair(.planes = 2);
  int end = open_rtr(p);
  mrc_pair_port_up(p, 0, 1, false);
  CHECK_EQ(probe(p, end, 0, 0, 7), 0);
  run_for(p, 10 * MS);
  CHECK(find_probe(p, 0, 7).result < 0);
}

/* When the active EVs are at the floor, a loss brings another EV back; events report both. */
TEST(test_set_ev_state__at_the_floor_tells_of_both) {
  PAIR p = open_pair(.planes = 1, .paths = 2);
  const int end = open_qp(p);
  for (uint32_t ev = 0; ev < 2; ev++)
    distrust(p, end, ev);
  struct mrc_event events[4];
  CHECK_EQ(mrc_engine_events(p->hosts[0].engine, events, 4), 3);
  for (uint32_t i = 0; i < 2; i++) {
    CHECK_EQ(events[i].ev_index, i);
    CHECK_EQ(events[i].status, MRC_EV_ASSUMED_BAD);
    CHECK_EQ(events[i].reason, MRC_REASON_CONTROLLER);
  }
  CHECK_EQ(events[2].ev_index, 0);
  CHECK_EQ(events[2].status, MRC_EV_GOOD);
  CHECK_EQ(events[2].reason, MRC_REASON_FLOOR);
}

/* A path whose MTU shrank answers small probes, but does not return before it carries a full
   packet. Only the last probe before a return is full, so few of them take the link from data. */
TEST(test_probation__of_a_path_whose_mtu_shrank) {
  PAIR p = open_pair(.planes = 2, .paths = 4);
  int end = open_qp(p, .memory_bytes = 4u << 20, .timeout = 14);
  struct mrc_link *path = mrc_pair_path(p, 0, 1, 2, 1);
  path->config.mtu_bytes = 300;
  WRITE_AND_WAIT(p, end, 1u << 20, 200 * MS);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 1).state, MRC_EV_ASSUMED_BAD);
  const uint64_t lost_data = path->lost;
  run_for(p, SECOND);
  const struct mrc_ev_info ev = mrc_pair_ev(p, end, 2, 1);
  CHECK_EQ(ev.state, MRC_EV_ASSUMED_BAD);
  CHECK(ev.sent_probes >= 15 && ev.sent_probes <= 100);
  CHECK_EQ(path->lost - lost_data, (ev.sent_probes + 1) / 2);
  path->config.mtu_bytes = 0;
  run_for(p, 200 * MS);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 1).state, MRC_EV_GOOD);
}

/* A dead EV stays out of the rotation, is probed, and comes back only after it heals. */
TEST(test_probation__of_a_dead_path) {
  PAIR p = open_pair(.planes = 2, .paths = 4);
  int end = open_qp(p, .memory_bytes = 4u << 20, .timeout = 14);
  mrc_pair_path(p, 0, 1, 2, 1)->config.silent = true;
  WRITE_AND_WAIT(p, end, 1u << 20, 200 * MS);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 1).state, MRC_EV_ASSUMED_BAD);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PLANE, MRC_PAIR_ANY), 0); /* the other paths go on */
  CHECK(retransmitted(p, end) <= 128);
  run_for(p, SECOND);
  struct mrc_ev_info ev = mrc_pair_ev(p, end, 2, 1);
  CHECK_EQ(ev.state, MRC_EV_ASSUMED_BAD);
  CHECK(ev.sent_probes >= 5 && ev.sent_probes <= 100); /* 2 ms apart at first, then up to 64 */
  mrc_pair_path(p, 0, 1, 2, 1)->config.silent = false;
  run_for(p, 200 * MS);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 1).state, MRC_EV_GOOD);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_EVS_TRUSTED), 1);
  uint64_t before = mrc_pair_ev(p, end, 2, 1).sent_packets;
  WRITE_AND_WAIT(p, end, 1u << 20, 200 * MS);
  CHECK(mrc_pair_ev(p, end, 2, 1).sent_packets > before);
}

/* A path loses every tenth packet permanently. Each relapse keeps it away longer, so its cost
   falls. */
TEST(test_probation__of_a_flapping_path) {
  PAIR p = open_pair(.planes = 2, .paths = 4);
  mrc_pair_path(p, 0, 1, 1, 0)->config.lose_n = 1;
  mrc_pair_path(p, 0, 1, 1, 0)->config.lose_of = 10;
  int end = open_qp(p, .memory_bytes = 60u << 20, .timeout = 14);
  uint64_t lost[2] = {0};
  for (int half = 0; half < 2; half++) {
    for (int i = 0; i < 30; i++) {
      WRITE_AND_WAIT(p, end, 1u << 20, SECOND);
      run_for(p, 20 * MS);
    }
    lost[half] = mrc_pair_ev(p, end, 1, 0).lost_packets;
  }
  CHECK(lost[0] > 0);
  CHECK(lost[1] - lost[0] <= lost[0] / 2 + 1);
}

/* Paths that are dead when the first data leaves and were not probed: each loses only the one burst
   of its trial, although the window is worth many turns of every EV. */
TEST(test_trial__a_dead_path_loses_one_burst) {
  static const struct {
    int plane, path;
  } dead[] = {{1, 0}, {1, 5}, {2, 7}, {4, 3}};
  const int n_dead = sizeof dead / sizeof dead[0];
  PAIR p = open_pair(.planes = 4, .paths = 8);
  int end = open_qp(p, .memory_bytes = 8u << 20, .spray = 1);
  for (int i = 0; i < n_dead; i++)
    mrc_pair_path(p, 0, 1, dead[i].plane, dead[i].path)->config.silent = true;
  write_many(p, end, 1u << 20, 8);
  CHECK(mrc_pair_finish(p, 5 * MS));
  EACH_OF(int, i, 0, n_dead) {
    const struct mrc_ev_info ev = mrc_pair_ev(p, end, dead[i].plane, dead[i].path);
    CHECK_EQ(ev.lost_packets, 1);
    CHECK_EQ(ev.sent_packets, 1);
    CHECK_EQ(ev.state, MRC_EV_ASSUMED_BAD);
  }
  CHECK_EQ(retransmitted(p, end), n_dead);
  CHECK_EQ(mrc_pair_info(p, end).spurious_packets, 0);
}

/* Probes answered while connecting prove the paths: the whole first window leaves at once. Without
   them the QP sends one burst a path first. */
TEST(test_trial__probed_paths_have_none) {
  enum { PATHS = 2, PLANES = 2 };
  EACH_OF(int, probed, 0, 2) {
    PAIR p = open_pair(.planes = PLANES, .paths = PATHS);
    struct mrc_pair_qp_config config = {.memory_bytes = 1u << 20, .spray = 1};
    int end = mrc_pair_create_qp(p, &config);
    int ends[] = {end, p->ends[end]->peer};
    for (int i = 0; i < 2; i++)
      mrc_pair_modify(p, ends[i], MRC_QP_RTR);
    for (uint32_t ev = 0; probed && ev < PLANES * PATHS; ev++)
      CHECK_EQ(probe(p, end, ev, 0, ev), 0);
    run_for(p, 10 * MS);
    for (int i = 0; i < 2; i++)
      mrc_pair_modify(p, ends[i], MRC_QP_RTS);
    CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
    run_for(p, PATH_DELAY); /* too short for an answer */
    if (probed)
      CHECK(mrc_pair_info(p, end).sent_packets >= 4 * PLANES * PATHS);
    else
      CHECK_EQ(mrc_pair_info(p, end).sent_packets, PLANES * PATHS);
    CHECK(mrc_pair_finish(p, 100 * MS));
  }
}

/* The auditor asserts that no packet leaves on a DENIED EV. In this test the EV must stop sending
   and then come back. */
TEST(test_deny__an_ev_in_mid_transfer) {
  PAIR p = open_pair(.planes = 2, .paths = 3, .port_out.rate_bps = 500000000);
  int end = open_qp(p, .memory_bytes = 8u << 20, .timeout = 14);
  write_many(p, end, 1u << 20, 8);
  run_for(p, 10 * MS);
  mrc_pair_deny(p, end, 1, 1, true);
  CHECK_EQ(mrc_pair_ev(p, end, 1, 1).state, MRC_EV_DENIED);
  uint64_t before = mrc_pair_ev(p, end, 1, 1).sent_packets;
  run_for(p, 20 * MS);
  CHECK_EQ(mrc_pair_ev(p, end, 1, 1).sent_packets, before);
  mrc_pair_deny(p, end, 1, 1, false);
  CHECK(mrc_pair_finish(p, 300 * MS));
  CHECK(mrc_pair_ev(p, end, 1, 1).sent_packets > before);
  CHECK_EQ(retransmitted(p, end), 0);
}

TEST(test_set_ev_state__refuses) {
  PAIR p = open_pair();
  int end = open_qp(p);
  mrc_engine *engine = p->hosts[0].engine;
  uint32_t qpn = p->ends[end]->qpn;
  CHECK_EQ(mrc_qp_set_ev_state(engine, qpn + 1, 0, MRC_EV_DENIED, p->now_ns), -ENOENT);
  CHECK_EQ(mrc_qp_set_ev_state(engine, qpn, 1, MRC_EV_DENIED, p->now_ns), -EINVAL);
  CHECK_EQ(mrc_qp_set_ev_state(engine, qpn, 0, MRC_EV_SKIP, p->now_ns), -EINVAL);
  CHECK_EQ(mrc_qp_set_ev_state(engine, qpn, 0, 17, p->now_ns), -EINVAL);
  CHECK_EQ(mrc_qp_set_ev_state(engine, qpn, 0, MRC_EV_GOOD, p->now_ns), 0);
}

TEST(test_query_evs__counts_and_fills) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p);
  struct mrc_ev_info infos[4];
  memset(infos, 0xAB, sizeof infos);
  mrc_engine *engine = p->hosts[0].engine;
  CHECK_EQ(mrc_qp_query_evs(engine, p->ends[end]->qpn, infos, 2), 4);
  CHECK_EQ(infos[0].plane, 1);
  CHECK_EQ(infos[1].state, MRC_EV_GOOD);
  CHECK_EQ(infos[1].rtt_ns, -1);
  CHECK_EQ(infos[2].plane, 0xAB); /* beyond the capacity */
  CHECK_EQ(mrc_qp_query_evs(engine, p->ends[end]->qpn, NULL, 0), 4);
  CHECK_EQ(mrc_qp_query_evs(engine, p->ends[end]->qpn + 1, infos, 2), -ENOENT);
}

/* Every path loses many packets, so the rotation is at its floor and bad EVs come back in exchange.
   For each EV, events report every change of state and nothing else. */
TEST(test_events__of_each_ev_alternate) {
  PAIR p = open_pair(.planes = 2, .paths = 4, .path.loss_ppm = 300000);
  int end = open_qp(p, .memory_bytes = 400 * MTU, .retry_exp = 25);
  uint8_t states[8] = {0};
  WRITE_AND_WAIT(p, end, 400 * MTU, 100 * SECOND);
  for (int i = 0; i < p->hosts[0].n_events; i++) {
    const struct mrc_event *event = &p->hosts[0].events[i];
    if (event->type != MRC_EVENT_EV_STATE) continue;
    CHECK_ROW(i);
    CHECK_EQ(event->status,
             states[event->ev_index] == MRC_EV_GOOD ? MRC_EV_ASSUMED_BAD : MRC_EV_GOOD);
    states[event->ev_index] = event->status;
  }
  struct mrc_ev_info infos[8];
  CHECK_EQ(mrc_qp_query_evs(p->hosts[0].engine, p->ends[end]->qpn, infos, 8), 8);
  for (int i = 0; i < 8; i++)
    CHECK_EQ(infos[i].state, states[i]);
  CHECK(n_events(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD) > 8);
}
