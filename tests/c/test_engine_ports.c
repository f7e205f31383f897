/* SPDX-License-Identifier: Apache-2.0 */
/* Port status: the messages a host sends to its peers when its ports go down and up, and how the
   peers act on them. Without messages, peers only detect the silence of the dead links. */
#include <errno.h>

#include "core/endpoint.h"
#include "core/engine.h"
#include "core/loss.h"
#include "core/wire.h"
#include "pair/connect.h"
#include "scenario.h"

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
  struct mrc_pair *p = open_pair(.planes = 4, .paths = 2, .port_out.rate_bps = RATE);
  const int end = open_qp(p, .memory_bytes = 16u << 20, .mpr = 4096);
  for (int i = 0; i < 16; i++)
    CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
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
  mrc_pair_destroy(p);
}

/* All other planes are suspended: the QP may still use them, but not the plane where the peer's
   port is down. */
TEST(test_status__is_no_last_resort) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 1u << 18);
  mrc_pair_port_up(p, 1, 2, false);
  run_for(p, 1 * MS);
  mrc_engine *engine = p->hosts[0].engine;
  struct mrc_qp *qp = mrc_engine_qp(engine, p->ends[end]->qpn);
  mrc_health_suspend_plane(&engine->services, qp, 0, MRC_REASON_SILENCE, p->now_ns);
  CHECK_EQ(mrc_qp_eligible_planes(&engine->services, qp), 1);
  CHECK_EQ(mrc_pair_write(p, end, 1u << 18), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(p->hosts[0].plane_bytes[1], 0);
  mrc_pair_destroy(p);
}

/* The port is up again: the peer probes the plane at once, marks it good and gives it its share. */
TEST(test_status__the_way_back) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = RATE);
  const int end = open_qp(p, .memory_bytes = 16u << 20);
  for (int i = 0; i < 16; i++)
    CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
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
  mrc_pair_destroy(p);
}

/* After the local timeout the QP tries every plane again, except the one with the port down. */
TEST(test_status__outlasts_the_local_timeout) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
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
  mrc_pair_destroy(p);
}

/* One message for each peer, however many QPs there are. */
TEST(test_status__one_message_for_each_peer) {
  struct mrc_pair *p = open_pair(.hosts = 3, .planes = 2, .paths = 2);
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
  mrc_pair_destroy(p);
}

TEST(test_status__the_same_again_is_no_news) {
  struct mrc_pair *p = open_pair(.planes = 2);
  open_qp(p, .memory_bytes = 0);
  mrc_pair_port_up(p, 0, 2, true);
  run_for(p, 10 * MS);
  CHECK_EQ(told(p, 0), 0);
  mrc_pair_destroy(p);
}

/* Messages or answers are lost: the host repeats the message. It repeats it once more when no older
   message can still be on its way. */
TEST(test_status__is_repeated_until_answered) {
  for (int answers = 0; answers < 2; answers++) {
    CHECK_ROW(answers);
    struct mrc_pair *p = open_pair(.planes = 3, .paths = 2);
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
    mrc_pair_destroy(p);
  }
}

/* A change before a repetition is due replaces the repetition: no further message leaves at that
   time. */
TEST(test_status__a_change_takes_the_place_of_a_repetition) {
  struct mrc_pair *p = open_pair(.planes = 3, .paths = 2);
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
  mrc_pair_destroy(p);
}

/* The peer is gone: the interval between messages grows. */
TEST(test_status__backs_off) {
  struct mrc_pair *p = open_pair(.planes = 2);
  open_qp(p, .memory_bytes = 0);
  mrc_pair_silence(p, 1, true);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 10 * SECOND);
  CHECK(told(p, 0) > 10 && told(p, 0) < 20); /* 5 ms doubling to a second, then one a second */
  mrc_pair_destroy(p);
}

/* The port is down and up again before the peer answers: the peer ends with the true state, also
   when the old message arrives last. */
TEST(test_status__old_news_do_not_stay) {
  struct mrc_pair *p = open_pair(.planes = 3, .paths = 2);
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
  mrc_pair_destroy(p);
}

/* An answer to the message before a change confirms nothing and is not counted. */
TEST(test_status__an_old_answer_confirms_nothing) {
  struct mrc_pair *p = open_pair(.planes = 4, .paths = 2);
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
  mrc_pair_destroy(p);
}

/* The last QP of a peer is destroyed while a repetition is pending: the timer is cleared. */
TEST(test_status__ends_with_the_peer) {
  struct mrc_pair *p = open_pair(.planes = 3, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 0);
  const mrc_engine *engine = p->hosts[0].engine;
  lose_messages(p, 2);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 113 * MS); /* two are lost, then answered: a repetition is due */
  CHECK(mrc_timers_next(&engine->endpoint.statuses.timers) != MRC_NEVER);
  mrc_pair_destroy_qp(p, end);
  CHECK_EQ(mrc_timers_next(&engine->endpoint.statuses.timers), MRC_NEVER);
  mrc_pair_destroy(p);
}

/* QPs created while a port is down, the first one to the peer and later ones. */
TEST(test_status__new_qps_start_with_what_is_true) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  mrc_pair_port_up(p, 0, 2, false);
  for (int i = 0; i < 2; i++) {
    CHECK_ROW(i);
    const int end = open_qp(p, .memory_bytes = 1u << 20);
    CHECK(suspended(p, end, 2));
    run_for(p, 1 * MS);
    CHECK(peer_down(p, peer_of(p, end), 2) && suspended(p, peer_of(p, end), 2));
    CHECK_EQ(mrc_pair_write(p, end, 1u << 19), 0);
    CHECK_EQ(mrc_pair_write(p, peer_of(p, end), 1u << 19), 0);
    CHECK(mrc_pair_finish(p, 100 * MS));
    CHECK_EQ(told(p, 0), 1);
    CHECK_EQ(p->hosts[1].plane_bytes[1], 0);
    CHECK_EQ(mrc_pair_info(p, peer_of(p, end)).retransmitted_packets, 0);
  }
  mrc_pair_port_up(p, 0, 2, true);
  run_for(p, 20 * MS);
  for (int end = 0; end < 4; end++)
    CHECK(!suspended(p, end, 2) && !peer_down(p, end, 2));
  mrc_pair_destroy(p);
}

/* The QP that carried the message ends before the peer has answered: another QP carries the next
   message on time. */
TEST(test_status__survives_the_qp_that_speaks) {
  for (int destroy = 0; destroy < 2; destroy++) {
    CHECK_ROW(destroy);
    struct mrc_pair *p = open_pair(.planes = 3, .paths = 2);
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
    mrc_pair_destroy(p);
  }
}

/* After the last QP of a peer has failed, a new QP reports the changes since then. */
TEST(test_status__a_new_qp_takes_over_from_a_failed_one) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  const int first = open_qp(p, .memory_bytes = 0);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 1 * MS);
  mrc_pair_modify(p, first, MRC_QP_ERROR); /* the peer's end goes on */
  mrc_pair_port_up(p, 0, 2, true);
  run_for(p, 1 * MS);
  CHECK(peer_down(p, peer_of(p, first), 2));
  const int second = open_qp(p, .memory_bytes = 0);
  run_for(p, 20 * MS);
  CHECK(!peer_down(p, peer_of(p, first), 2) && !peer_down(p, peer_of(p, second), 2));
  mrc_pair_destroy(p);
}

/* The kernel refuses the message, or its plane is down by then: the host uses another plane. */
TEST(test_status__leaves_on_a_plane_that_works) {
  struct mrc_pair *p = open_pair(.planes = 3, .paths = 2);
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
  mrc_pair_destroy(p);
}

/* All working ports are blocked: the engine sleeps. The message leaves on the first port that is
   unblocked, at once, with the changes made meanwhile. */
TEST(test_status__waits_for_a_port_with_room) {
  struct mrc_pair *p = open_pair(.planes = 4, .paths = 2);
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
  mrc_pair_destroy(p);
}

/* The last QP ended while a port was down, and the peer's ends remained. The next QP is created
   with the port up: it sends the new status. */
TEST(test_status__a_new_peer_is_told_what_has_changed) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  const int first = open_qp(p, .memory_bytes = 0);
  const int other = peer_of(p, first);
  mrc_pair_port_up(p, 0, 2, false);
  run_for(p, 1 * MS);
  mrc_pair_destroy_qp(p, first);
  mrc_pair_port_up(p, 0, 2, true);
  run_for(p, 1 * MS);
  CHECK(peer_down(p, other, 2));
  const int second = open_qp(p, .memory_bytes = 0);
  run_for(p, 1 * MS);
  CHECK(!peer_down(p, other, 2) && !peer_down(p, peer_of(p, second), 2));
  mrc_pair_destroy(p);
}
