/* SPDX-License-Identifier: Apache-2.0 */
#include "core/endpoint.h"

#include <errno.h>

#include "check.h"
#include "core/base.h"
#include "core/crc.h"
#include "core/engine.h"
#include "core/loss.h"
#include "core/qp.h"
#include "core/wire.h"
#include "forge.h"
#include "pair/connect.h"
#include "scenario.h"

/* ---- port status ---- */

/* Port status: the messages a host sends to its peers when its ports go down and up, and how the
   peers act on them. Without messages, peers only detect the silence of the dead links. */

#define RATE 500000000

/* The number of answers that this host needs before it is certain of the peer's view. */
static int answers_wanted(const struct mrc_pair *p, int end) {
  const mrc_engine *engine = p->hosts[p->ends[end]->host].engine;
  return mrc_port_status_of(&engine->endpoint.statuses, inside(p, end)->peer)->answers_wanted;
}

static bool peer_down(const struct mrc_pair *p, int end, int plane) {
  return inside(p, end)->planes[plane - 1].peer_down;
}

static bool suspended(const struct mrc_pair *p, int end, int plane) {
  return mrc_pair_info(p, end).planes[plane - 1].suspended;
}

static uint64_t told(const struct mrc_pair *p, int host) {
  return counter(p, host, MRC_COUNTER_TX_PORT_STATUS);
}

static int peer_of(const struct mrc_pair *p, int end) { return p->ends[end]->peer; }

/* Loses messages of host 0; host 0 sends no other requests in these tests. */
static void lose_messages(struct mrc_pair *p, uint32_t times) {
  lose_kind(p, 0, MRC_OP_ENDPOINT_REQUEST, times);
}

static void set_delays(struct mrc_pair *p, uint64_t delay_ns) {
  for (int plane = 1; plane <= p->config.planes; plane++)
    for (int path = 0; path < p->config.paths; path++)
      mrc_pair_path(p, 0, 1, plane, path)->config.delay_ns = delay_ns;
}

/* The peer reports that a port is down: the sender sends no more data there and retransmits the
   packets in flight on the other planes, without a timer. It then sends a probe every 64 ms to
   check whether the port is still down. */
TEST(test_status__the_peer_leaves_the_plane_at_once) {
  PAIR p = open_pair(.planes = 4, .paths = 2, .port_out.rate_bps = RATE);
  const int end = open_qp(p, .memory_bytes = 16u << 20, .mpr = 4096);
  write_many(p, end, 1u << 20, 16);
  run_for(p, 20 * MS);
  mrc_pair_port_up(p, 1, 3, false);
  run_for(p, 3 * PATH_DELAY);
  CHECK(peer_down(p, end, 3) && suspended(p, end, 3));
  CHECK_EQ(inside(p, end)->req.win.lists[2].bytes, 0);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PORT, 0), 1);
  CHECK_EQ(n_reasons(p, 0, MRC_EVENT_PORT, 0, MRC_REASON_PEER_PORT), 1);
  CHECK_EQ(n_reasons(p, 0, MRC_EVENT_PLANE, 0, MRC_REASON_PEER_PORT), 1);
  CHECK_EQ(n_reasons(p, 1, MRC_EVENT_PORT, 0, MRC_REASON_OWN_PORT), 1);
  CHECK_EQ(n_reasons(p, 1, MRC_EVENT_PLANE, 0, MRC_REASON_OWN_PORT), 1);
  const uint64_t packets = p->hosts[0].plane_packets[2];
  const uint64_t acked = mrc_pair_info(p, end).acknowledged_bytes;
  run_for(p, 20 * MS);
  CHECK_EQ(p->hosts[0].plane_packets[2], packets); /* and no probe so far */
  CHECK(mrc_pair_info(p, end).acknowledged_bytes - acked >
        3000000); /* of 3.75 MB over three planes */
  CHECK_EQ(counter(p, 0, MRC_COUNTER_EVS_BAD), 0);
  CHECK_EQ(told(p, 1), 1);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_RX_PORT_STATUS), 1);
  const uint64_t bytes = p->hosts[0].plane_bytes[2];
  run_for(p, 640 * MS);
  const uint64_t probes = p->hosts[0].plane_packets[2] - packets;
  CHECK(probes >= 8 && probes <= 10);
  CHECK_EQ(p->hosts[0].plane_bytes[2], bytes);
  CHECK(peer_down(p, end, 3) && suspended(p, end, 3));
}

/* All other planes are suspended: the QP may still use them, but not the plane where the peer's
   port is down. */
TEST(test_status__is_no_last_resort) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 1u << 18);
  mrc_pair_port_up(p, 1, 2, false);
  run_for(p, 1 * MS);
  mrc_engine *engine = p->hosts[0].engine;
  struct mrc_qp *qp = mrc_qps_find(&engine->qps, p->ends[end]->qpn);
  mrc_health_suspend_plane(&engine->services, qp, 0, MRC_REASON_SILENCE, p->now_ns);
  CHECK_EQ(mrc_qp_eligible_planes(&engine->services, qp), 1);
  WRITE_AND_WAIT(p, end, 1u << 18, 100 * MS);
  CHECK_EQ(p->hosts[0].plane_bytes[1], 0);
}

/* The port is up again: the peer probes the plane at once, marks it good and gives it its share. */
TEST(test_status__the_way_back) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = RATE);
  const int end = open_qp(p, .memory_bytes = 16u << 20);
  write_many(p, end, 1u << 20, 16);
  mrc_pair_port_up(p, 1, 2, false);
  run_for(p, 50 * MS);
  mrc_pair_port_up(p, 1, 2, true);
  run_for(p, 10 * MS); /* three probes, 2 ms apart */
  CHECK(!peer_down(p, end, 2) && !suspended(p, end, 2));
  CHECK(!suspended(p, peer_of(p, end), 2));
  CHECK_EQ(n_reasons(p, 0, MRC_EVENT_PORT, 1, MRC_REASON_PEER_PORT), 1);
  CHECK_EQ(n_reasons(p, 1, MRC_EVENT_PORT, 1, MRC_REASON_OWN_PORT), 1);
  const uint64_t one = p->hosts[0].plane_bytes[0], two = p->hosts[0].plane_bytes[1];
  run_for(p, 20 * MS);
  const uint64_t more_one = p->hosts[0].plane_bytes[0] - one;
  const uint64_t more_two = p->hosts[0].plane_bytes[1] - two;
  CHECK(more_two > more_one * 9 / 10 && more_two < more_one * 11 / 10);
  CHECK_EQ(told(p, 1), 2);
}

/* After the local timeout the QP tries every plane again, except the one with the port down. */
TEST(test_status__outlasts_the_local_timeout) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 1u << 20, .timeout = 10, .retry_exp = 8);
  mrc_pair_port_up(p, 1, 2, false);
  run_for(p, 1 * MS);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
  run_for(p, 50 * MS);
  CHECK(counter(p, 0, MRC_COUNTER_TIMEOUTS) > 2);
  CHECK(suspended(p, end, 2));
  CHECK_EQ(p->hosts[0].plane_bytes[1], 0);
  mrc_pair_silence(p, 1, false);
  mrc_pair_port_up(p, 1, 2, true);
  CHECK(mrc_pair_finish(p, SECOND));
  run_for(p, 20 * MS);
  CHECK(!suspended(p, end, 2) && !suspended(p, peer_of(p, end), 2));
}

/* One message for each peer, however many QPs there are. */
TEST(test_status__one_message_for_each_peer) {
  PAIR p = open_pair(.hosts = 3, .planes = 2, .paths = 2);
  int ends[8];
  for (int i = 0; i < 8; i++)
    ends[i] = open_qp(p, .from = 0, .to = 1 + i % 2);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 200 * MS);
  CHECK_EQ(told(p, 0), 2);
  for (int i = 0; i < 8; i++)
    CHECK(peer_down(p, peer_of(p, ends[i]), 2));
  mrc_pair_port_up(p, 0, 2, true);
  run_for(p, 200 * MS);
  CHECK_EQ(told(p, 0), 4);
  for (int i = 0; i < 8; i++)
    CHECK(!peer_down(p, peer_of(p, ends[i]), 2));
}

TEST(test_status__the_same_again_is_no_news) {
  PAIR p = open_pair(.planes = 2);
  open_qp(p, .memory_bytes = 0);
  mrc_pair_port_up(p, 0, 2, true);
  run_for(p, 10 * MS);
  CHECK_EQ(told(p, 0), 0);
}

/* Messages or answers are lost: the host repeats the message. It repeats it once more when no older
   message can still be on its way. */
TEST(test_status__is_repeated_until_answered) {
  EACH_OF(int, answers, 0, 2) {
    PAIR p = open_pair(.planes = 3, .paths = 2);
    const int end = open_qp(p, .memory_bytes = 0);
    if (answers)
      lose_kind(p, 1, MRC_OP_ENDPOINT_RESPONSE, 3);
    else
      lose_messages(p, 3);
    mrc_pair_port_up(p, 0, 2, false);
    run_for(p, 40 * MS); /* 5 + 10 + 20 ms */
    CHECK(peer_down(p, peer_of(p, end), 2));
    CHECK_EQ(told(p, 0), 4);
    run_for(p, SECOND);
    CHECK_EQ(told(p, 0), 5);
    CHECK_EQ(answers_wanted(p, end), 0);
    CHECK_EQ(counter(p, 1, MRC_COUNTER_RX_PORT_STATUS), 1);
  }
}

/* A change before a repetition is due replaces the repetition: no further message leaves at that
   time. */
TEST(test_status__a_change_takes_the_place_of_a_repetition) {
  PAIR p = open_pair(.planes = 3, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 0);
  lose_messages(p, 2);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 113 * MS); /* answered after 5 + 10 ms: the repetition is due 100 ms later */
  CHECK_EQ(told(p, 0), 3);
  lose_messages(p, 1);
  mrc_pair_port_up(p, 0, 3, false);
  run_for(p, 4 * MS);
  CHECK_EQ(told(p, 0), 4);
  run_for(p, SECOND);
  CHECK_EQ(told(p, 0), 6);
  CHECK(peer_down(p, peer_of(p, end), 2) && peer_down(p, peer_of(p, end), 3));
}

/* The peer is gone: the interval between messages grows. */
TEST(test_status__backs_off) {
  PAIR p = open_pair(.planes = 2);
  open_qp(p, .memory_bytes = 0);
  mrc_pair_silence(p, 1, true);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 10 * SECOND);
  CHECK(told(p, 0) > 10 && told(p, 0) < 20); /* 5 ms doubling to a second, then one a second */
}

/* The port is down and up again before the peer answers: the peer ends with the true state, also
   when the old message arrives last. */
TEST(test_status__old_news_do_not_stay) {
  PAIR p = open_pair(.planes = 3, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 0);
  set_delays(p, 40 * MS);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 1 * MS);
  set_delays(p, PATH_DELAY);
  mrc_pair_port_up(p, 0, 2, true);
  run_for(p, 20 * MS);
  CHECK(!peer_down(p, peer_of(p, end), 2));
  run_for(p, 30 * MS);
  CHECK(peer_down(p, peer_of(p, end), 2)); /* the old message */
  run_for(p, 100 * MS);
  CHECK(!peer_down(p, peer_of(p, end), 2));
  CHECK_EQ(answers_wanted(p, end), 0);
}

/* An answer to the message before a change confirms nothing and is not counted. */
TEST(test_status__an_old_answer_confirms_nothing) {
  PAIR p = open_pair(.planes = 4, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 0);
  const mrc_engine *engine = p->hosts[0].engine;
  const struct mrc_port_status *status =
      mrc_port_status_of(&engine->endpoint.statuses, inside(p, end)->peer);
  const uint32_t before = status->confirmed;
  set_delays(p, 2 * MS);
  mrc_pair_port_up(p, 0, 2, false); /* sent on port 3 */
  run_for(p, 1 * MS);
  lose_messages(p, 1);
  mrc_pair_port_up(p, 0, 4, false);
  const int wanted = answers_wanted(p, end);
  run_for(p, 3 * MS); /* the first is answered, the second was lost */
  CHECK(peer_down(p, peer_of(p, end), 2));
  CHECK_EQ(told(p, 0), 2);
  CHECK_EQ(status->confirmed, before);
  CHECK_EQ(answers_wanted(p, end), wanted);
  run_for(p, SECOND);
  CHECK_EQ(status->confirmed, 5);
  CHECK_EQ(answers_wanted(p, end), 0);
}

/* The last QP of a peer is destroyed while a repetition is pending: the timer is cleared. */
TEST(test_status__ends_with_the_peer) {
  PAIR p = open_pair(.planes = 3, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 0);
  const mrc_engine *engine = p->hosts[0].engine;
  lose_messages(p, 2);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 113 * MS); /* two are lost, then answered: a repetition is due */
  CHECK(mrc_timers_next(&engine->endpoint.statuses.timers) != MRC_NEVER);
  mrc_pair_destroy_qp(p, end);
  CHECK_EQ(mrc_timers_next(&engine->endpoint.statuses.timers), MRC_NEVER);
}

/* QPs created while a port is down, the first one to the peer and later ones. */
TEST(test_status__new_qps_start_with_what_is_true) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  mrc_pair_port_up(p, 0, 2, false);
  EACH_OF(int, i, 0, 2) {
    const int end = open_qp(p, .memory_bytes = 1u << 20);
    CHECK(suspended(p, end, 2));
    run_for(p, 1 * MS);
    CHECK(peer_down(p, peer_of(p, end), 2) && suspended(p, peer_of(p, end), 2));
    CHECK_EQ(mrc_pair_write(p, end, 1u << 19), 0);
    WRITE_AND_WAIT(p, peer_of(p, end), 1u << 19, 100 * MS);
    CHECK_EQ(told(p, 0), 1);
    CHECK_EQ(p->hosts[1].plane_bytes[1], 0);
    CHECK_EQ(mrc_pair_info(p, peer_of(p, end)).retransmitted_packets, 0);
  }
  mrc_pair_port_up(p, 0, 2, true);
  run_for(p, 20 * MS);
  for (int end = 0; end < 4; end++)
    CHECK(!suspended(p, end, 2) && !peer_down(p, end, 2));
}

/* The QP that carried the message ends before the peer has answered: another QP carries the next
   message on time. */
TEST(test_status__survives_the_qp_that_speaks) {
  EACH_OF(int, destroy, 0, 2) {
    PAIR p = open_pair(.planes = 3, .paths = 2);
    const int first = open_qp(p, .memory_bytes = 0), second = open_qp(p, .memory_bytes = 0);
    lose_messages(p, 1);
    mrc_pair_port_up(p, 0, 2, false);
    run_for(p, 1 * MS);
    CHECK_EQ(told(p, 0), 1);
    CHECK(!peer_down(p, peer_of(p, second), 2));
    if (destroy)
      mrc_pair_destroy_qp(p, first);
    else
      mrc_pair_modify(p, first, MRC_QP_ERROR);
    run_for(p, 5 * MS);
    CHECK_EQ(told(p, 0), 2);
    CHECK(peer_down(p, peer_of(p, second), 2));
    mrc_pair_port_up(p, 0, 2, true);
    run_for(p, 200 * MS);
    CHECK(!peer_down(p, peer_of(p, second), 2));
    CHECK_EQ(answers_wanted(p, second), 0);
  }
}

/* The last QP of a peer has failed, or ended, and the peer's end remained: a new QP reports the
   changes since then. */
TEST(test_status__a_new_qp_tells_what_changed_after_the_last) {
  EACH_OF(int, destroy, 0, 2) {
    PAIR p = open_pair(.planes = 2, .paths = 2);
    const int first = open_qp(p, .memory_bytes = 0), other = peer_of(p, first);
    mrc_pair_port_up(p, 0, 2, false);
    run_for(p, 1 * MS);
    if (destroy)
      mrc_pair_destroy_qp(p, first);
    else
      mrc_pair_modify(p, first, MRC_QP_ERROR);
    mrc_pair_port_up(p, 0, 2, true);
    run_for(p, 1 * MS);
    CHECK(peer_down(p, other, 2));
    const int second = open_qp(p, .memory_bytes = 0);
    run_for(p, destroy ? 1 * MS : 20 * MS);
    CHECK(!peer_down(p, other, 2) && !peer_down(p, peer_of(p, second), 2));
  }
}

/* The kernel refuses the message, or its plane is down by then: the host uses another plane. */
TEST(test_status__leaves_on_a_plane_that_works) {
  PAIR p = open_pair(.planes = 3, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 0);
  p->hosts[0].errors[0] = -ENETUNREACH;
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 20 * MS);
  CHECK(peer_down(p, peer_of(p, end), 2));
  CHECK_EQ(p->hosts[0].plane_packets[1], 0);
  p->hosts[0].errors[0] = 0;
  mrc_pair_port_up(p, 0, 1, false);
  mrc_pair_port_up(p, 0, 3, false); /* no port is left for messages */
  run_for(p, 20 * MS);
  mrc_pair_port_up(p, 0, 1, true);
  run_for(p, 100 * MS);
  CHECK(!peer_down(p, peer_of(p, end), 1));
  CHECK(peer_down(p, peer_of(p, end), 2) && peer_down(p, peer_of(p, end), 3));
}

/* All working ports are blocked: the engine sleeps. The message leaves on the first port that is
   unblocked, at once, with the changes made meanwhile. */
TEST(test_status__waits_for_a_port_with_room) {
  PAIR p = open_pair(.planes = 4, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 0);
  mrc_engine *engine = p->hosts[0].engine;
  for (int port = 1; port <= 4; port++)
    mrc_engine_port_blocked(engine, port, true, p->now_ns);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 1 * MS);
  mrc_pair_port_up(p, 0, 3, false);
  run_for(p, 1 * MS);
  CHECK_EQ(told(p, 0), 0);
  CHECK(mrc_engine_deadline(engine) > p->now_ns + MS);
  mrc_engine_port_blocked(engine, 4, false, p->now_ns);
  CHECK_EQ(mrc_engine_deadline(engine), 0);
  mrc_pair_kick(p, 0);
  run_for(p, 2 * PATH_DELAY);
  CHECK(peer_down(p, peer_of(p, end), 2) && peer_down(p, peer_of(p, end), 3));
  CHECK_EQ(told(p, 0), 1);
  CHECK_EQ(p->hosts[0].plane_packets[3], 1);
}

/* ---- claims ---- */

/* A third host claims the source address of a peer: answers to the peer's requests still go to the
   peer. */

enum { CLAIM_QPN = 0x777 };

/* Opens a QP at host 1, plain or with a seal, whose sources are host 2's address and host 0's. The
   claimant is host 2, or host 0 with another set of interfaces. */
static int claim_sealed(struct mrc_pair *p, uint32_t qpn, int host, uint16_t udp_port,
                        bool sealed) {
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
  const struct mrc_seal_attr seal = {.mode = MRC_SEAL_AEAD, .peer_qpn = 3, .send = {1}};
  mrc_address_make(ev.src, 6, 1, 1, 0);
  mrc_address_make(ev.dst, 6, host, 1, 0);
  mrc_address_make(sources[0].address, 6, 0, 1, 0);
  mrc_address_make(sources[1].address, 6, 2, 1, 0);
  CHECK_EQ(mrc_qp_create(engine, &attr.create), 0);
  CHECK_EQ(mrc_qp_modify(engine, qpn, MRC_QP_INIT, NULL, NULL, p->now_ns), 0);
  if (sealed) CHECK_EQ(mrc_qp_set_seal(engine, qpn, &seal), 0);
  CHECK_EQ(mrc_qp_set_evs(engine, qpn, &ev, 1), 0);
  const int error = mrc_qp_set_peer(engine, qpn, sources, 2);
  if (error == 0) CHECK_EQ(mrc_qp_modify(engine, qpn, MRC_QP_RTR, &attr.rtr, NULL, p->now_ns), 0);
  return error;
}

static int claim(struct mrc_pair *p, uint32_t qpn, int host, uint16_t udp_port) {
  return claim_sealed(p, qpn, host, udp_port, false);
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
  EACH_OF(int, same, 0, 2) {
    PAIR p = open_pair(.hosts = 3);
    const int end = open_qp(p, .probe = true);
    CHECK_EQ(claim(p, CLAIM_QPN, 2, mrc_address_udp_port(same ? 0 : 2)), same ? 0 : -EADDRINUSE);
    for (int i = 0; i < 4; i++)
      CHECK_EQ(probe_result(p, end), 0);
    CHECK_EQ(mrc_qp_destroy(p->hosts[1].engine, CLAIM_QPN), 0);
  }
}

/* No source is proved yet: the answer goes to the address that sent the request. */
TEST(test_claim__of_what_is_not_proved) {
  EACH_OF(int, first, 0, 2) {
    PAIR p = open_pair(.hosts = 3);
    if (first) CHECK_EQ(claim(p, CLAIM_QPN, 2, mrc_address_udp_port(2)), 0);
    const int end = open_qp(p);
    if (!first) CHECK_EQ(claim(p, CLAIM_QPN, 2, mrc_address_udp_port(2)), 0);
    for (int i = 0; i < 4; i++)
      CHECK_EQ(probe_result(p, end), 0);
  }
}

/* Answers to a sealed QP go by the key of the request, so nobody else's claim draws them away. */
TEST(test_claim__draws_no_sealed_answers_away) {
  EACH_OF(int, row, 0, 4) {
    PAIR p = open_pair(.hosts = 3);
    if (row & 1) CHECK_EQ(claim_sealed(p, CLAIM_QPN, 2, mrc_address_udp_port(0), row & 2), 0);
    const int end = open_qp(p, .memory_bytes = 8 * MTU, .seal = MRC_SEAL_AEAD);
    if (!(row & 1)) CHECK_EQ(claim_sealed(p, CLAIM_QPN, 2, mrc_address_udp_port(0), row & 2), 0);
    for (int i = 0; i < 4; i++)
      CHECK_EQ(probe_result(p, end), 0);
    WRITE_AND_WAIT(p, end, 8 * MTU, 50 * MS);
    CHECK_EQ(mrc_qp_destroy(p->hosts[1].engine, CLAIM_QPN), 0);
    CHECK_EQ(probe_result(p, end), 0);
  }
}

/* An EV probe from host 0's source arrives at a port of host 1. */
static void ask(struct mrc_pair *p, uint8_t port) {
  struct forge forge = {.wire = {.opcode = MRC_OP_ENDPOINT_REQUEST,
                                 .dest_qpn = MRC_ENDPOINT_QPN,
                                 .endpoint = {.op = MRC_ENDPOINT_EV_PROBE}},
                        .meta = {.sport = mrc_address_sport(1, 0), .family = 6, .port = port}};
  mrc_address_make(forge.meta.src, 6, 0, 1, 0);
  mrc_address_make(forge.meta.dst, 6, 1, port, 0);
  CHECK_EQ(send_forge(p, &forge), 0);
}

/* The UDP port to which host 1 sends its next packet, an answer; 0: none. */
static uint16_t answered_port(struct mrc_pair *p) {
  struct mrc_burst burst = {0};
  return transmit(p, 1, &burst, 1, 1) == 0 ? 0 : burst.dport;
}

/* No source is proved. Among the claims whose answers go to the requesting host, the newest gets
   the answer: the host may have come back with another set of interfaces. */
TEST(test_claim__of_the_newest_counts) {
  PAIR p = open_pair(.hosts = 3);
  CHECK_EQ(claim(p, CLAIM_QPN, 0, 5001), 0);
  CHECK_EQ(claim(p, CLAIM_QPN + 1, 0, 5002), 0);
  CHECK_EQ(claim(p, CLAIM_QPN + 2, 2, 5003), 0); /* answers for it go to host 2 */
  ask(p, 1);
  CHECK_EQ(answered_port(p), 5002);
}

/* The engine checks a limited number of claims for one request, so that peers cannot make a request
   expensive. With more claims than that, the newest claim gets the answer. */
TEST(test_claim__only_so_many_are_looked_at) {
  EACH_OF(uint32_t, strangers, 3, 6) {
    PAIR p = open_pair(.hosts = 3);
    CHECK_EQ(claim(p, CLAIM_QPN, 0, 5000), 0);
    for (uint32_t i = 1; i <= strangers; i++)
      CHECK_EQ(claim(p, CLAIM_QPN + i, 2, (uint16_t)(5000 + i)), 0);
    ask(p, 1);
    CHECK_EQ(answered_port(p), strangers < 4 ? 5000 : 5000 + strangers);
  }
}

/* A request arrives at a port that none of its QP's planes has: it is answered from the port of the
   plane of that index. If that one is down, there is no answer; while it is full, the answer waits.
 */
TEST(test_answer__from_the_port_of_another_plane) {
  PAIR p = open_pair(.planes = 3);
  mrc_engine *engine = p->hosts[1].engine;
  const struct mrc_qp_attr attr = {
      .create = {.qpn = CLAIM_QPN, .sq_depth = 1, .mpr = 128, .max_wimm = 1},
      .rtr = {.dest_qpn = 3}};
  struct mrc_ev_attr ev = {.ev = 77, .dport = 5000, .port = 2, .plane = 3, .family = 6};
  struct mrc_peer_source source = {.sport = mrc_address_sport(1, 0)};
  mrc_address_make(ev.src, 6, 1, 2, 0);
  mrc_address_make(ev.dst, 6, 0, 1, 0);
  mrc_address_make(source.address, 6, 0, 1, 0);
  CHECK_EQ(mrc_qp_create(engine, &attr.create), 0);
  CHECK_EQ(mrc_qp_modify(engine, CLAIM_QPN, MRC_QP_INIT, NULL, NULL, p->now_ns), 0);
  CHECK_EQ(mrc_qp_set_evs(engine, CLAIM_QPN, &ev, 1), 0);
  CHECK_EQ(mrc_qp_set_peer(engine, CLAIM_QPN, &source, 1), 0);
  CHECK_EQ(mrc_qp_modify(engine, CLAIM_QPN, MRC_QP_RTR, &attr.rtr, NULL, p->now_ns), 0);
  ask(p, 3);
  CHECK_EQ(answered_port(p), 5000);
  mrc_engine_port_blocked(engine, 2, true, p->now_ns);
  ask(p, 3);
  CHECK_EQ(answered_port(p), 0);
  mrc_engine_port_blocked(engine, 2, false, p->now_ns);
  CHECK_EQ(answered_port(p), 5000);
  mrc_pair_port_up(p, 1, 2, false);
  ask(p, 3);
  CHECK_EQ(answered_port(p), 0);
}

/* ---- peers ---- */

#define PEER_TABLE FREED_BY(mrc_peers_free) struct mrc_peers
static struct mrc_peers open_peers(uint32_t qps, uint32_t sources) {
  struct mrc_peers peers;
  CHECK_EQ(mrc_peers_init(&peers, qps, sources, 1), 0);
  return peers;
}

static struct mrc_peer_source source(uint32_t address, uint16_t sport) {
  struct mrc_peer_source made = {.sport = sport};
  memcpy(made.address + 12, &address, sizeof address);
  return made;
}

static struct mrc_peer *find(const struct mrc_peers *peers, struct mrc_peer_source wanted) {
  const uint32_t entry = mrc_peers_find(peers, wanted.address, wanted.sport, false, 0);
  return entry == 0 ? NULL : mrc_peers_at(peers, entry);
}

static bool knows(const struct mrc_peers *peers, struct mrc_peer *peer,
                  struct mrc_peer_source from) {
  return mrc_peer_knows(peers, peer, from.address, from.sport);
}

static int n_claims(const struct mrc_peers *peers, struct mrc_peer_source wanted) {
  int n = 0;
  uint32_t entry = 0;
  while ((entry = mrc_peers_find(peers, wanted.address, wanted.sport, false, entry)) != 0)
    n++;
  return n;
}

/* The order of sources and repetitions make no difference; an additional or missing source does. */
TEST(test_join__the_same_set_is_the_same_peer) {
  const struct mrc_peer_source a = source(1, 1), b = source(1, 2), c = source(2, 1);
  const struct {
    struct mrc_peer_source sources[3];
    int n;
    bool same;
  } rows[] = {
      {{a, b}, 2, true},  {{b, a}, 2, true},     {{b, a, b}, 3, true}, {{a}, 1, false},
      {{a, a}, 2, false}, {{a, b, c}, 3, false}, {{b, c}, 2, false},   {{a, c}, 2, false},
  };
  EACH_ROW(i, rows) {
    PEER_TABLE peers = open_peers(2, 5);
    struct mrc_qp one = {0}, two = {0};
    CHECK_EQ(mrc_peer_join(&peers, &one, rows[0].sources, 2, 1), 0);
    CHECK_EQ(mrc_peer_join(&peers, &two, rows[i].sources, rows[i].n, 1), 0);
    CHECK_EQ(one.peer == two.peer, rows[i].same);
    CHECK_PTR_EQ(two.peer->qps, rows[i].same ? &one : &two);
    CHECK_EQ(n_claims(&peers, b), rows[i].same || i == 3 || i == 4 || i == 7 ? 1 : 2);
    mrc_peer_leave(&peers, &one);
    CHECK_PTR_EQ(two.peer->qps, &two);
    CHECK_PTR_EQ(find(&peers, rows[i].sources[0]), two.peer);
    mrc_peer_leave(&peers, &two);
    CHECK_EQ(n_claims(&peers, a) + n_claims(&peers, b) + n_claims(&peers, c), 0);
  }
}

/* A lookup matches the whole key and the peer: another peer's source does not match. */
TEST(test_knows__sources) {
  PEER_TABLE peers = open_peers(2, 8);
  struct mrc_qp qp = {0}, other = {0};
  const struct mrc_peer_source sources[] = {source(1, 1), source(1, 2), source(2, 1)};
  const struct mrc_peer_source theirs[] = {source(1, 1), source(3, 1)};
  CHECK(!knows(&peers, NULL, sources[0]));
  CHECK_EQ(mrc_peer_join(&peers, &qp, sources, 3, 1), 0);
  CHECK_EQ(mrc_peer_join(&peers, &other, theirs, 2, 1), 0);
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < 3; i++)
      CHECK(knows(&peers, qp.peer, sources[i]));
  CHECK(!knows(&peers, qp.peer, source(3, 1)));
  CHECK(!knows(&peers, qp.peer, source(2, 2)));
  CHECK(knows(&peers, other.peer, source(1, 1)) && knows(&peers, other.peer, source(3, 1)));
  CHECK(!knows(&peers, other.peer, source(1, 2)));
  CHECK_PTR_EQ(find(&peers, source(2, 1)), qp.peer);
  mrc_peer_leave(&peers, &qp);
  mrc_peer_leave(&peers, &other);
}

/* A source that has answered a probe belongs to that peer while the peer exists: a claim of another
   UDP port is refused, whatever its other sources are, and changes nothing. */
TEST(test_join__not_what_another_has_proved) {
  const struct mrc_peer_source a = source(1, 1), b = source(1, 2), c = source(2, 1);
  const struct {
    struct mrc_peer_source sources[2];
    int n;
    uint16_t udp_port;
    int error;
  } rows[] = {
      {{a, b}, 2, 9, -EADDRINUSE},                    /* the same set */
      {{c, a}, 2, 9, -EADDRINUSE},                    /* with another source */
      {{a}, 1, 9, -EADDRINUSE},    {{c, b}, 2, 9, 0}, /* b has not answered */
      {{a, b}, 2, 1, 0},                              /* the same process */
      {{c, a}, 2, 1, 0},                              /* the same process; one port up, one down */
  };
  EACH_ROW(i, rows) {
    PEER_TABLE peers = open_peers(2, 8);
    struct mrc_qp one = {0}, two = {0};
    CHECK_EQ(mrc_peer_join(&peers, &one, rows[4].sources, 2, 1), 0);
    CHECK(knows(&peers, one.peer, a));
    mrc_peer_prove(&peers, one.peer);
    const uint32_t entries = peers.n_entries;
    CHECK_EQ(mrc_peer_join(&peers, &two, rows[i].sources, rows[i].n, rows[i].udp_port),
             rows[i].error);
    CHECK_EQ(two.peer == NULL, rows[i].error != 0);
    CHECK_EQ(two.peer == one.peer, i == 4);
    if (rows[i].error != 0) {
      CHECK_EQ(n_claims(&peers, a), 1);
      CHECK_EQ(n_claims(&peers, c), 0);
      mrc_peer_leave(&peers, &one);
      CHECK_EQ(mrc_peer_join(&peers, &two, rows[i].sources, rows[i].n, rows[i].udp_port), 0);
      CHECK(peers.n_entries <= entries + 2);
    }
  }
}

/* The first peer that proves a source owns it until it leaves; then the next one that proves it. */
TEST(test_prove__has_one_owner) {
  const struct mrc_peer_source a = source(1, 1), b = source(1, 2);
  PEER_TABLE peers = open_peers(2, 8);
  struct mrc_qp one = {0}, two = {0};
  CHECK_EQ(mrc_peer_join(&peers, &one, (struct mrc_peer_source[]){a, b}, 2, 1), 0);
  CHECK_EQ(mrc_peer_join(&peers, &two, &a, 1, 1), 0);
  for (int round = 0; round < 2; round++) {
    struct mrc_peer *first = round == 0 ? one.peer : two.peer;
    CHECK(knows(&peers, first, a));
    mrc_peer_prove(&peers, first);
    int n_proved = 0;
    for (uint32_t i = 0; (i = mrc_peers_find(&peers, a.address, a.sport, false, i)) != 0;) {
      n_proved += peers.entries[i].proved;
      if (peers.entries[i].proved) CHECK_PTR_EQ(mrc_peers_at(&peers, i), one.peer);
    }
    CHECK_EQ(n_proved, 1);
  }
  mrc_peer_leave(&peers, &one);
  CHECK(knows(&peers, two.peer, a));
  mrc_peer_prove(&peers, two.peer);
  CHECK(peers.entries[mrc_peers_find(&peers, a.address, a.sport, false, 0)].proved);
}

/* A peer that does not fit leaves no entries behind, and released room is used again. */
TEST(test_join__full) {
  enum { SOURCES = 256, ROOM = 2 * SOURCES };
  PEER_TABLE peers = open_peers(8, ROOM);
  struct mrc_peer_source sources[SOURCES];
  struct mrc_qp qps[4] = {0};
  for (int q = 0; q < 4; q++) {
    for (int i = 0; i < SOURCES; i++)
      sources[i] = source((uint32_t)q, (uint16_t)i);
    CHECK_ROW(q);
    CHECK_EQ(mrc_peer_join(&peers, &qps[q], sources, SOURCES, 1), q < 3 ? 0 : -ENOSPC);
  }
  CHECK(qps[3].peer == NULL && find(&peers, sources[0]) == NULL);
  mrc_peer_leave(&peers, &qps[1]);
  CHECK_EQ(mrc_peer_join(&peers, &qps[3], sources, SOURCES, 1), 0);
  CHECK_PTR_EQ(find(&peers, sources[SOURCES - 1]), qps[3].peer);
  CHECK_EQ(qps[3].peer->n_sources, SOURCES);
}

/* Random joins and leaves, compared with a plain model of the sets. */
TEST(test_join__and_leave_at_random) {
  enum { QPS = 16, STEPS = 20000 };
  PEER_TABLE peers = open_peers(QPS, QPS * 4);
  struct mrc_qp qps[QPS] = {0};
  uint32_t sets[QPS] = {0}; /* bit i: source i of 6; 0: it has left */
  struct mrc_prng prng = {.state = 1};
  EACH_OF(int, step, 0, STEPS) {
    const uint32_t q = mrc_prng_below(&prng, QPS);
    struct mrc_peer_source sources[6];
    if (sets[q] != 0) {
      mrc_peer_leave(&peers, &qps[q]);
      sets[q] = 0;
    } else {
      sets[q] = 1 + mrc_prng_below(&prng, 63);
      int n = 0;
      for (uint32_t i = 0; i < 6; i++)
        if (sets[q] >> i & 1) sources[n++] = source(i / 2, (uint16_t)(i % 2));
      CHECK_EQ(mrc_peer_join(&peers, &qps[q], sources, n, 1), 0);
    }
    for (uint32_t i = 0; i < QPS; i++)
      if (sets[q] != 0 && sets[i] != 0) CHECK_EQ(qps[i].peer == qps[q].peer, sets[i] == sets[q]);
    uint32_t distinct = 0;
    for (uint32_t i = 0; i < QPS; i++) {
      bool first = sets[i] & 1;
      for (uint32_t k = 0; k < i; k++)
        first &= sets[k] != sets[i];
      distinct += first;
    }
    CHECK_EQ(n_claims(&peers, source(0, 0)), distinct);
  }
}

/* The table grows with the peers and still finds the earlier ones. */
TEST(test_join__grows_the_table) {
  enum { PEERS = 32, EACH = 256 };
  PEER_TABLE peers = open_peers(PEERS, PEERS * EACH);
  CHECK(peers.room_entries < PEERS * EACH);
  static struct mrc_qp qps[PEERS];
  for (uint32_t q = 0; q < PEERS; q++) {
    struct mrc_peer_source sources[EACH];
    for (uint32_t i = 0; i < EACH; i++)
      sources[i] = source(q, (uint16_t)i);
    CHECK_EQ(mrc_peer_join(&peers, &qps[q], sources, EACH, 1), 0);
    for (uint32_t before = 0; before <= q; before++)
      CHECK_PTR_EQ(find(&peers, source(before, EACH - 1)), qps[before].peer);
  }
  CHECK_EQ(n_claims(&peers, source(0, 0)), 1);
  for (uint32_t q = 0; q < PEERS; q++)
    mrc_peer_leave(&peers, &qps[q]);
  CHECK(find(&peers, source(0, 0)) == NULL);
}
