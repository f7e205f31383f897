/* SPDX-License-Identifier: Apache-2.0 */
#include "core/qp.h"

#include "core/engine.h"
#include "core/send.h"
#include "pair/connect.h"
#include "scenario.h"

/* ---- how much planes carry ---- */

/* Planes that carry less than the others: the verdict, and when an event reports it. */

/* One plane compared with three, period by period: percent, and whether it is slow afterwards. */
TEST(test_judge__two_periods_in_a_row) {
  static const struct {
    uint64_t bytes, others_bytes;
    uint32_t percent;
    bool changed, slow;
  } rows[] = {
      {100, 300, 100, false, false},
      {49, 300, 49, false, false},
      {60, 300, 60, false, false},
      {49, 300, 49, false, false}, /* the period between broke the row */
      {10, 300, 10, true, true},
      {0, 300, 0, false, true},
      {60, 300, 60, false, true}, /* neither slow nor fair: the verdict stays */
      {75, 300, 75, false, true},
      {76, 300, 76, false, true},
      {74, 300, 74, false, true},
      {80, 300, 80, false, true},
      {90, 300, 90, true, false},
      {50, 300, 50, false, false},
      {50, 300, 50, false, false},
      {5, 0, 10000, false, false},
  };
  struct mrc_share share = {0};
  CHECK(!share.compared);
  EACH_ROW(i, rows) {
    const bool changed = mrc_share_judge(&share, rows[i].bytes, rows[i].others_bytes, 3);
    CHECK_EQ(changed, rows[i].changed);
    CHECK_EQ(share.percent, rows[i].percent);
    CHECK_EQ(share.slow, rows[i].slow);
    CHECK(share.compared);
  }
}

TEST(test_is_bulk__enough_and_more_waiting) {
  static const struct {
    uint32_t n_planes;
    uint64_t packets, backed_packets;
    bool bulk;
  } rows[] = {
      {2, 128, 128, true},  {2, 127, 127, false}, {2, 128, 96, true},    {2, 128, 95, false},
      {3, 128, 128, false}, {3, 192, 192, true},  {2, 100000, 0, false},
  };
  EACH_ROW(i, rows) {
    const struct mrc_share_sum sum = {.bytes = rows[i].packets * MTU,
                                      .backed_bytes = rows[i].backed_packets * MTU};
    CHECK_EQ(mrc_share_is_bulk(&sum, rows[i].n_planes, MTU), rows[i].bulk);
  }
}

/* ---- over engines ---- */

#define RATE_BPS 25000000ull
#define MESSAGE (1u << 18)

/* Four planes of 25 Mbit/s. A field that a scenario names overrides the default here. */
#define open_planes(...)                                            \
  open_pair(.planes = 4, .paths = 2, .port_out.rate_bps = RATE_BPS, \
            .port_out.queue_bytes = 1000000, .driver.wake_ns = 50 * US, __VA_ARGS__)

static int open_bulk(struct mrc_pair *p, enum mrc_plane_shares shares) {
  return open_qp(p, .memory_bytes = 48u << 20, .mpr = 4096, .sq_depth = 16,
                 .plane_shares = (uint8_t)shares);
}

static void post_up_to(struct mrc_pair *p, int end, uint32_t bytes, uint32_t depth) {
  while (mrc_pair_info(p, end).outstanding < depth)
    CHECK_EQ(mrc_pair_write(p, end, bytes), 0);
}

/* Keeps `depth` messages posted until the time is over. */
static void write_for(struct mrc_pair *p, int end, uint32_t bytes, uint32_t depth, uint64_t ns) {
  const uint64_t end_ns = p->now_ns + ns;
  while (p->now_ns < end_ns) {
    post_up_to(p, end, bytes, depth);
    run_for(p, MS);
  }
}

static void set_rate(struct mrc_pair *p, int plane, uint64_t rate_bps) {
  for (int host = 0; host < 2; host++)
    p->port_out[host][plane - 1].config.rate_bps = rate_bps;
}

static int n_share(const struct mrc_pair *p, uint32_t status) {
  return n_events(p, 0, MRC_EVENT_PLANE_SHARE, status);
}

/* The newest share event. */
static struct mrc_event told(const struct mrc_pair *p) {
  struct mrc_event found = {0};
  for (int i = 0; i < p->hosts[0].n_events; i++)
    if (p->hosts[0].events[i].type == MRC_EVENT_PLANE_SHARE) found = p->hosts[0].events[i];
  return found;
}

static struct mrc_plane_info plane_of(struct mrc_pair *p, int end, int plane) {
  return mrc_pair_info(p, end).planes[plane - 1];
}

/* A plane at a tenth of its rate raises one event, and another when it has healed. */
TEST(test_event__a_slow_plane_that_heals) {
  PAIR p = open_planes(.seed = 1);
  const int end = open_bulk(p, MRC_SHARES_MEASURED);
  write_for(p, end, MESSAGE, 8, 500 * MS);
  CHECK_EQ(n_share(p, MRC_PAIR_ANY), 0);
  CHECK(plane_of(p, end, 2).share_percent >= 90 && plane_of(p, end, 2).share_percent <= 110);
  set_rate(p, 2, RATE_BPS / 10);
  write_for(p, end, MESSAGE, 8, SECOND);
  CHECK_EQ(n_share(p, 0), 1);
  CHECK_EQ(told(p).port, 2);
  CHECK_EQ(told(p).reason, MRC_REASON_DELIVERY);
  CHECK(told(p).result < 50);
  CHECK_EQ(plane_of(p, end, 2).slow, 1);
  CHECK(plane_of(p, end, 2).share_percent >= 5 && plane_of(p, end, 2).share_percent <= 12);
  CHECK(plane_of(p, end, 1).share_percent > 120);
  set_rate(p, 2, RATE_BPS);
  write_for(p, end, MESSAGE, 8, 2 * SECOND);
  CHECK_EQ(n_share(p, 0), 1);
  CHECK_EQ(n_share(p, 1), 1);
  CHECK_EQ(told(p).port, 2);
  CHECK(told(p).result > 75);
  CHECK_EQ(plane_of(p, end, 2).slow, 0);
}

TEST(test_event__two_slow_planes) {
  PAIR p = open_planes(.seed = 1);
  const int end = open_bulk(p, MRC_SHARES_MEASURED);
  set_rate(p, 2, RATE_BPS / 10);
  set_rate(p, 3, RATE_BPS / 5);
  write_for(p, end, MESSAGE, 8, SECOND);
  CHECK_EQ(n_share(p, MRC_PAIR_ANY), 2);
  EACH_OF(int, plane, 1, 5)
    CHECK_EQ(plane_of(p, end, plane).slow, plane == 2 || plane == 3);
}

/* Each of four QPs has its own shares of the planes; the verdict uses their sum. */
SLOW(test_event__qps_to_one_peer_are_summed_up) {
  enum { QPS = 4 };
  PAIR p = open_planes(.seed = 1, .port_out.rate_bps = 4 * RATE_BPS);
  int ends[QPS];
  for (int i = 0; i < QPS; i++)
    ends[i] = open_qp(p, .memory_bytes = 32u << 20, .mpr = 4096, .sq_depth = 16);
  for (int ms = 0; ms < 1500; ms++) {
    if (ms == 450) {
      CHECK_EQ(n_share(p, MRC_PAIR_ANY), 0);
      set_rate(p, 2, RATE_BPS);
    }
    for (int i = 0; i < QPS; i++)
      post_up_to(p, ends[i], MESSAGE, 4);
    run_for(p, MS);
  }
  CHECK_EQ(n_share(p, MRC_PAIR_ANY), QPS);
  CHECK_EQ(n_share(p, 0), QPS);
  uint32_t qpns = 0;
  for (int i = 0; i < QPS; i++) {
    CHECK_EQ(plane_of(p, ends[i], 2).slow, 1);
    CHECK_EQ(plane_of(p, ends[i], 2).share_percent, plane_of(p, ends[0], 2).share_percent);
    for (int k = 0; k < p->hosts[0].n_events; k++)
      if (p->hosts[0].events[k].type == MRC_EVENT_PLANE_SHARE &&
          p->hosts[0].events[k].qpn == mrc_pair_info(p, ends[i]).qpn)
        qpns |= 1u << i;
  }
  CHECK_EQ(qpns, (1u << QPS) - 1);
}

SLOW(test_event__equal_planes_raise_none) {
  EACH_OF(uint64_t, seed, 1, 9) {
    PAIR p = open_planes(.seed = seed, .path.loss_ppm = seed % 3 * 500,
                         .driver.stall_ppm = seed % 2 * 2000, .driver.stall_ns = 2 * MS);
    const int end = open_bulk(p, MRC_SHARES_MEASURED);
    write_for(p, end, MESSAGE, 8, 900 * MS);
    CHECK_EQ(n_share(p, MRC_PAIR_ANY), 0);
    for (int plane = 1; plane <= 4; plane++)
      CHECK(plane_of(p, end, plane).share_percent != 0);
  }
}

/* Equal shares stay equal on a slow plane too: a period only shows that its queue fills. */
TEST(test_event__equal_shares_raise_none) {
  PAIR p = open_planes(.seed = 1);
  const int end = open_bulk(p, MRC_SHARES_EQUAL);
  set_rate(p, 2, RATE_BPS / 10);
  write_for(p, end, MESSAGE, 8, SECOND);
  CHECK_EQ(n_share(p, MRC_PAIR_ANY), 0);
  CHECK_EQ(plane_of(p, end, 2).share_percent, 100);
}

/* Short messages avoid a long path on purpose; long messages use its share. */
TEST(test_event__short_messages_say_nothing) {
  PAIR p = open_planes(.seed = 1);
  const int end = open_bulk(p, MRC_SHARES_MEASURED);
  for (int path = 0; path < 2; path++)
    mrc_pair_path(p, 0, 1, 2, path)->config.delay_ns = 7 * MS;
  write_for(p, end, 64 << 10, 1, 900 * MS);
  CHECK_EQ(n_share(p, MRC_PAIR_ANY), 0);
  const struct mrc_qp_info info = mrc_pair_info(p, end);
  CHECK(4 * info.planes[1].sent_bytes < info.planes[0].sent_bytes); /* it was avoided */
  CHECK(info.acknowledged_bytes > 4 * 4 * 64 * MTU); /* each period had enough bytes to compare */
}

/* A slow plane that falls silent is no longer slow, without an event. When it is back, its verdict
   starts anew, and a second event is raised. */
TEST(test_event__a_suspended_plane_starts_afresh) {
  PAIR p = open_planes(.seed = 1);
  const int end = open_bulk(p, MRC_SHARES_MEASURED);
  start_at_plane_1(p, end); /* then plane 2 carries a packet when it falls silent */
  set_rate(p, 2, RATE_BPS / 10);
  write_for(p, end, MESSAGE, 8, SECOND);
  CHECK_EQ(plane_of(p, end, 2).slow, 1);
  mrc_pair_silence(p, 2, true);
  write_for(p, end, MESSAGE, 8, 1000 * MS);
  CHECK_EQ(plane_of(p, end, 2).suspended, 1);
  CHECK_EQ(plane_of(p, end, 2).slow, 0);
  CHECK_EQ(plane_of(p, end, 2).share_percent, 100);
  CHECK_EQ(n_share(p, MRC_PAIR_ANY), 1);
  mrc_pair_silence(p, 2, false);
  write_for(p, end, MESSAGE, 8, 2500 * MS);
  CHECK_EQ(plane_of(p, end, 2).slow, 1);
  CHECK_EQ(n_share(p, 0), 2);
  CHECK_EQ(n_share(p, 1), 0);
}

/* The period with an outage of the plane is not compared: only whole periods are. */
TEST(test_event__a_period_with_an_outage_is_not_compared) {
  PAIR p = open_planes(.seed = 1);
  const int end = open_bulk(p, MRC_SHARES_MEASURED);
  write_for(p, end, MESSAGE, 8, 500 * MS);
  mrc_pair_port_up(p, 0, 2, false);
  write_for(p, end, MESSAGE, 8, 50 * MS);
  CHECK_EQ(plane_of(p, end, 2).suspended, 1);
  mrc_pair_port_up(p, 0, 2, true);
  uint32_t least = 100;
  for (int ms = 0; ms < 600; ms++) {
    write_for(p, end, MESSAGE, 8, MS);
    least = mrc_min_u32(least, plane_of(p, end, 2).share_percent);
  }
  CHECK_EQ(plane_of(p, end, 2).suspended, 0);
  CHECK(least >= 90);
}

/* ---- quick planes ---- */

/* Which planes count as quick, slow or limited, and what then goes over them. */

#define QUICK_BPS 500000000ull
#define BAD 2 /* the port of the plane with the fault */

static int open_end(struct mrc_pair *p, uint32_t memory_bytes) {
  return open_qp(p, .memory_bytes = memory_bytes, .mpr = 4096, .sq_depth = 16, .timeout = 17);
}

/* Messages of 256 KiB, each posted 2 ms after the last one was done. Returns the time that most of
   them (nine of ten) did not exceed. */
static uint64_t message_ns(struct mrc_pair *p, int end, int n) {
  uint64_t times[100];
  CHECK(n <= 100);
  for (int i = 0; i < n; i++) {
    const uint64_t began_ns = p->now_ns;
    WRITE_AND_WAIT(p, end, MESSAGE, SECOND);
    uint64_t took_ns = p->now_ns - began_ns;
    int at = i;
    for (; at > 0 && times[at - 1] > took_ns; at--)
      times[at] = times[at - 1];
    times[at] = took_ns;
    run_for(p, 2 * MS);
  }
  return times[n * 9 / 10];
}

static uint64_t sent_bytes(const struct mrc_pair *p, int end) {
  return mrc_pair_info(p, end).planes[BAD - 1].sent_bytes;
}

static bool is_limited(const struct mrc_qp *qp, uint32_t plane) {
  return (qp->choice.quick.limited >> plane & 1) != 0;
}

/* Only planes with a measured round trip predict when an answer arrives, and only for a slow plane
   it matters. */
TEST(test_late_plane__planes_that_were_measured) {
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = 64 * MTU);
  struct mrc_services *services = &p->hosts[0].engine->services;
  struct mrc_qp *qp = inside(p, end);
  for (uint32_t plane = 0; plane < 2; plane++)
    qp->planes[plane].rtt = (struct mrc_rtt){0};
  qp->choice.quick = (struct mrc_quick){.planes = 2};
  CHECK_EQ(mrc_quick_late_ns(services, qp, 0), MRC_NEVER);
  WRITE_AND_WAIT(p, end, 64 * MTU, 10 * MS);
  qp->choice.quick = (struct mrc_quick){.planes = 2};
  const uint64_t late_ns = mrc_quick_late_ns(services, qp, 0);
  CHECK(late_ns > 2 * PATH_DELAY && late_ns < 10 * MS);
  qp->choice.quick = (struct mrc_quick){.planes = 3, .limited = 1};
  CHECK_EQ(mrc_quick_late_ns(services, qp, 0), late_ns);
  CHECK_EQ(mrc_quick_late_ns(services, qp, 1), MRC_NEVER);
  qp->choice.quick = (struct mrc_quick){0}; /* before the first comparison */
  CHECK_EQ(mrc_quick_late_ns(services, qp, 0), MRC_NEVER);
}

TEST(test_limited__no_plane_of_equal_ones) {
  PAIR p = open_four_planes();
  const int end = open_end(p, 64u << 20);
  for (int i = 0; i < 10; i++) {
    message_ns(p, end, 10);
    CHECK_EQ(inside(p, end)->choice.quick.limited, 0);
  }
}

/* Short messages nearly do without a plane that has a tenth of its rate. */
TEST(test_limited__messages_do_without_a_slow_plane) {
  PAIR p = open_four_planes();
  const int end = open_end(p, 64u << 20);
  const uint64_t before_ns = message_ns(p, end, 50);
  set_rate(p, BAD, QUICK_BPS / 10);
  message_ns(p, end, 50); /* while it is found out */
  CHECK(is_limited(inside(p, end), BAD - 1));
  CHECK(mrc_quick_late_ns(&p->hosts[0].engine->services, inside(p, end), BAD - 1) != MRC_NEVER);
  CHECK(message_ns(p, end, 100) < before_ns * 16 / 10);
}

/* The same for a plane that loses a fifth of its packets. */
TEST(test_limited__messages_do_without_a_lossy_plane) {
  PAIR p = open_four_planes();
  const int end = open_end(p, 64u << 20);
  const uint64_t before_ns = message_ns(p, end, 50);
  for (int path = 0; path < 2; path++)
    mrc_pair_path(p, 0, 1, BAD, path)->config.loss_ppm = 200000;
  message_ns(p, end, 50);
  CHECK(is_limited(inside(p, end), BAD - 1));
  CHECK(message_ns(p, end, 100) < before_ns * 16 / 10);
}

SLOW(test_limited__a_plane_that_has_recovered_is_used_again) {
  PAIR p = open_four_planes();
  const int end = open_end(p, 320u << 20);
  set_rate(p, BAD, QUICK_BPS / 10);
  message_ns(p, end, 100);
  CHECK(is_limited(inside(p, end), BAD - 1));
  set_rate(p, BAD, QUICK_BPS);
  const uint64_t until_ns = p->now_ns + 3 * SECOND;
  while (p->now_ns < until_ns)
    message_ns(p, end, 50);
  CHECK(!is_limited(inside(p, end), BAD - 1));
  const uint64_t sent = sent_bytes(p, end);
  message_ns(p, end, 100);
  CHECK(sent_bytes(p, end) - sent > 100 * MESSAGE / 8); /* half of its part, and more */
}

/* A longer path is no lower rate: while messages are long enough, it is used. */
TEST(test_limited__not_a_longer_path) {
  PAIR p = open_four_planes();
  const int end = open_end(p, 320u << 20);
  for (int path = 0; path < 2; path++)
    mrc_pair_path(p, 0, 1, BAD, path)->config.delay_ns = 7 * MS;
  for (int i = 0; i < 20; i++) {
    message_ns(p, end, 5);
    CHECK_EQ(inside(p, end)->choice.quick.limited, 0);
  }
  write_many(p, end, 16 * MESSAGE, 16);
  const uint64_t sent = sent_bytes(p, end);
  CHECK(mrc_pair_finish(p, 10 * SECOND));
  CHECK(sent_bytes(p, end) - sent > 16 * 16 * (uint64_t)MESSAGE / 16);
}

/* Many QPs make each other's packets wait: a plane is not limited by what hosts waited lately. */
TEST(test_limited__not_by_the_waits_of_busy_hosts) {
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = MTU);
  const struct mrc_services *services = &p->hosts[0].engine->services;
  struct mrc_qp *qp = inside(p, end);
  qp->req.host_waits = (struct mrc_guard){0};
  qp->planes[0].delivery = (struct mrc_delivery){.takes_ns = 1 * MS, .measured_ns = p->now_ns};
  qp->planes[1].delivery = (struct mrc_delivery){.takes_ns = 12 * MS, .measured_ns = p->now_ns};
  mrc_quick_compare(services, qp, p->now_ns);
  CHECK_EQ(qp->choice.quick.limited, 2);
  qp->choice.quick.limited = 0;
  qp->req.host_waits = (struct mrc_guard){.ns = 2 * 8 * MS, .since_ns = p->now_ns};
  mrc_quick_compare(services, qp, p->now_ns);
  CHECK_EQ(qp->choice.quick.limited, 0);
}

/* With equal shares no plane is left out. */
TEST(test_limited__not_with_equal_shares) {
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p, .plane_shares = MRC_SHARES_EQUAL, .memory_bytes = 64 * MTU);
  const struct mrc_services *services = &p->hosts[0].engine->services;
  struct mrc_qp *qp = inside(p, end);
  WRITE_AND_WAIT(p, end, 64 * MTU, 10 * MS); /* measures both planes */
  qp->req.host_waits = (struct mrc_guard){0};
  qp->planes[0].delivery = (struct mrc_delivery){.takes_ns = 12 * MS, .measured_ns = p->now_ns};
  qp->planes[1].delivery = (struct mrc_delivery){.takes_ns = 1 * MS, .measured_ns = p->now_ns};
  mrc_quick_compare(services, qp, p->now_ns);
  CHECK(!is_limited(qp, 0));
  qp->choice.quick = (struct mrc_quick){.planes = 2, .limited = 1};
  CHECK_EQ(mrc_quick_late_ns(services, qp, 0), MRC_NEVER);
}

/* A queue drains while the plane is idle; a longer path stays longer, until it is tried again. */
TEST(test_answer__what_an_idle_plane_forgets) {
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = 64 * MTU);
  struct mrc_qp *qp = inside(p, end);
  struct mrc_plane *plane = &qp->planes[0];
  plane->answer_ns = 8 * MS;
  plane->rtt.base_ns = 1 * MS;
  plane->empty_ns = 1 * MS;
  plane->heard_ns = p->now_ns;
  CHECK_EQ(mrc_quick_answer_ns(qp, 0, p->now_ns), 8 * MS);
  CHECK_EQ(mrc_quick_answer_ns(qp, 0, p->now_ns + 50 * MS), 4 * MS);
  CHECK_EQ(mrc_quick_answer_ns(qp, 0, p->now_ns + 200 * MS), 1 * MS);
  plane->empty_ns = 7 * MS;
  CHECK_EQ(mrc_quick_answer_ns(qp, 0, p->now_ns + 200 * MS), 7 * MS);
  CHECK_EQ(mrc_quick_answer_ns(qp, 0, p->now_ns + 501 * MS), 0);
}

/* ---- equal shares ---- */

/* Only eligible planes share equally, and a plane with a full socket is not one: it starts level
   when it comes back. */
TEST(test_level__only_of_planes_that_may_be_chosen) {
  PAIR p = open_pair(.planes = 3);
  const int end = open_qp(p, .plane_shares = MRC_SHARES_EQUAL);
  mrc_engine *engine = p->hosts[0].engine;
  struct mrc_qp *qp = inside(p, end);
  start_at_plane_1(p, end);
  mrc_engine_port_blocked(engine, 2, true, p->now_ns);
  mrc_engine_port_blocked(engine, 3, true, p->now_ns);
  mrc_spray_level(&engine->services, qp, 3);
  CHECK_EQ(qp->choice.sharing, 3); /* the second one's port has just become full */
  qp->planes[0].share_bytes += 5000;
  qp->planes[1].share_bytes += 4000;
  mrc_spray_level(&engine->services, qp, 7);
  CHECK_EQ(qp->choice.sharing, 7);
  CHECK_EQ(qp->planes[2].share_bytes, 4000);
  mrc_engine_port_blocked(engine, 2, false, p->now_ns);
  mrc_engine_port_blocked(engine, 3, false, p->now_ns);
}

/* The first packets of many QPs do not meet on one plane. */
TEST(test_start__of_many_qps_is_spread) {
  PAIR p = open_pair(.planes = 4);
  struct mrc_qp *qp = inside(p, open_qp(p));
  const struct mrc_services *services = &p->hosts[0].engine->services;
  const uint32_t qpn = qp->qpn;
  int first[4] = {0};
  for (qp->qpn = 0; qp->qpn < 128; qp->qpn += 2) {
    mrc_spray_start(qp);
    uint32_t given = 0;
    for (int i = 0; i < 4; i++) {
      const int plane = mrc_spray_choose(services, qp, 0xF, 64);
      CHECK(plane >= 0 && (given >> plane & 1) == 0);
      first[plane] += i == 0;
      given |= 1u << plane;
      qp->planes[plane].share_bytes += 64;
    }
  }
  for (int plane = 0; plane < 4; plane++)
    CHECK(first[plane] >= 8 && first[plane] <= 24); /* of 64 */
  qp->qpn = qpn;
}

/* The remaining window is the smaller of the peer's grant and the room in the send window. */
TEST(test_window_left__the_smaller_of_both) {
  struct mrc_requester req = {.peer_mpr = 48, .peer_next_psn = 0};
  CHECK_EQ(mrc_txwin_init(&req.win, 64, 1), 0);
  mrc_txwin_start(&req.win, 0);
  CHECK_EQ(mrc_requester_window_left(&req), 48);
  for (int i = 0; i < 10; i++)
    mrc_txwin_append(&req.win, 0, 1, 0, 0, 1);
  CHECK_EQ(mrc_requester_window_left(&req), 38);
  req.peer_mpr = 200;
  CHECK_EQ(mrc_requester_window_left(&req), 54);
  req.peer_mpr = 4; /* it granted more before */
  CHECK_EQ(mrc_requester_window_left(&req), 0);
  mrc_txwin_free(&req.win);
}

/* ---- flights: the rate of a plane ---- */

/* Flights on one plane, acknowledgement by acknowledgement. */

#define KIB 1024u

static const struct mrc_rtt RTT = {.smooth_ns = 2 * MS, .base_ns = 2 * MS};

/* A flight of `n` acknowledgements of 16 KiB, all sent at `began_ns`: the first comes `first_ns`
   later, each other one `gap_ns` after the one before. Returns the time of the last. */
static uint64_t fly(struct mrc_delivery *delivery, uint64_t began_ns, int n, uint64_t first_ns,
                    uint64_t gap_ns) {
  mrc_delivery_on_flight(delivery, began_ns);
  for (int i = 0; i < n; i++)
    mrc_delivery_on_ack(delivery, 16 * KIB, began_ns, &RTT, began_ns + first_ns + i * gap_ns);
  return began_ns + first_ns + (n - 1) * gap_ns;
}

/* The next flight closes the books of the last one. */
static uint64_t takes_ns(struct mrc_delivery *delivery, uint64_t now_ns) {
  mrc_delivery_on_flight(delivery, now_ns);
  return mrc_delivery_takes_ns(delivery);
}

TEST(test_rate__of_what_comes_after_the_first_answer) {
  struct mrc_delivery delivery = {0};
  const uint64_t end_ns = fly(&delivery, SECOND, 11, 2 * MS, MS);
  CHECK_EQ(mrc_delivery_takes_ns(&delivery), 16 * MS); /* 160 KiB are enough while it lasts */
  CHECK_EQ(takes_ns(&delivery, end_ns), 16 * MS);
}

TEST(test_rate__a_delay_is_no_rate) {
  struct mrc_delivery delivery = {0};
  fly(&delivery, SECOND, 16, 9 * MS, 0);
  CHECK_EQ(takes_ns(&delivery, 2 * SECOND), 0);
}

/* Packets that leave one by one are answered one by one: no queue grew. */
TEST(test_rate__nothing_to_send_is_no_rate) {
  struct mrc_delivery delivery = {0};
  mrc_delivery_on_flight(&delivery, SECOND);
  for (uint64_t at = SECOND; at < SECOND + 13 * MS; at += MS)
    mrc_delivery_on_ack(&delivery, 16 * KIB, at, &RTT, at + 2 * MS);
  CHECK_EQ(takes_ns(&delivery, 2 * SECOND), 0);
}

TEST(test_rate__short_flights_tell_nothing_alone) {
  struct mrc_delivery delivery = {0};
  fly(&delivery, SECOND, 2, 2 * MS, 5 * MS);
  CHECK_EQ(takes_ns(&delivery, 2 * SECOND), 0);
}

/* Slower counts at once, faster bit by bit, and never faster than it was measured. */
TEST(test_rate__faster_bit_by_bit) {
  struct mrc_delivery delivery = {0};
  uint64_t now_ns = fly(&delivery, SECOND, 11, 2 * MS, MS), before_ns = 16 * MS;
  for (int i = 0; i < 8; i++) {
    now_ns = fly(&delivery, now_ns + MS, 16, 4 * MS, 0);
    const uint64_t now_takes_ns = takes_ns(&delivery, now_ns);
    CHECK(now_takes_ns < before_ns && now_takes_ns >= before_ns * 3 / 4);
    before_ns = now_takes_ns;
  }
  CHECK(before_ns >= 2 * MS && before_ns < 4 * MS); /* 256 KiB took 2 ms more than the base RTT */
  now_ns = fly(&delivery, now_ns + MS, 11, 2 * MS, MS);
  CHECK(takes_ns(&delivery, now_ns) > 12 * MS);
}

/* Short flights count together, so a plane that carries little is not slow for ever. */
TEST(test_rate__short_flights_together_show_that_it_is_faster) {
  struct mrc_delivery delivery = {0};
  uint64_t now_ns = fly(&delivery, SECOND, 11, 2 * MS, MS);
  for (int i = 0; i < 3; i++)
    now_ns = fly(&delivery, now_ns + MS, 1, 2 * MS + MS / 2, 0);
  const uint64_t after_ns = takes_ns(&delivery, now_ns);
  CHECK(after_ns < 16 * MS && after_ns >= 14 * MS);
}

/* A flight that never ends is measured in parts. */
TEST(test_rate__long_flights_in_parts) {
  struct mrc_delivery delivery = {0};
  fly(&delivery, SECOND, 17, 2 * MS, MS); /* 18 ms are more than 8 round trips */
  CHECK(delivery.is_part);
  CHECK_EQ(delivery.takes_ns, 16 * MS);
  struct mrc_plane plane = {.delivery = delivery};
  mrc_plane_on_answer(&plane, delivery.began_ns, MS);
  CHECK_EQ(plane.empty_ns, 0); /* the flight did not begin with that packet */
}

/* While packets wait that are then sent again elsewhere, the plane is as slow as what arrives. */
TEST(test_late__counts_once_something_arrived) {
  struct mrc_delivery delivery = {0};
  mrc_delivery_on_flight(&delivery, SECOND);
  mrc_delivery_on_late(&delivery, 256 * KIB, SECOND + 9 * MS);
  CHECK_EQ(mrc_delivery_takes_ns(&delivery), 0);
  fly(&delivery, 2 * SECOND, 1, 2 * MS, 0);
  mrc_delivery_on_late(&delivery, 256 * KIB, 2 * SECOND + 12 * MS);
  CHECK_EQ(mrc_delivery_takes_ns(&delivery), 160 * MS); /* in 10 ms less than one step of 16 KiB */
}

static void lose(struct mrc_delivery *delivery, int n, uint64_t *now_ns) {
  for (int i = 0; i < n; i++, *now_ns += 3 * MS)
    mrc_delivery_on_lost(delivery, *now_ns, &RTT);
}

TEST(test_loss__lossy_and_well_again) {
  struct mrc_plane plane = {0};
  uint64_t now_ns = SECOND;
  lose(&plane.delivery, 2, &now_ns);
  CHECK(!mrc_delivery_is_lossy(&plane.delivery)); /* two may be chance */
  lose(&plane.delivery, 1, &now_ns);
  CHECK(mrc_delivery_is_lossy(&plane.delivery));
  for (int i = 0; i < 16; i++) /* each burst arrives in two packets, which count once */
    for (int packet = 0; packet < 2; packet++)
      mrc_plane_on_delivered(&plane, now_ns + (uint64_t)i, now_ns);
  CHECK(!mrc_delivery_is_lossy(&plane.delivery));
}

/* One overflow loses many bursts. */
TEST(test_loss__once_a_round_trip) {
  struct mrc_delivery delivery = {0};
  for (uint64_t at = SECOND; at <= SECOND + RTT.smooth_ns; at += MS / 8)
    mrc_delivery_on_lost(&delivery, at, &RTT);
  CHECK(!mrc_delivery_is_lossy(&delivery));
}

TEST(test_loss__spurious_ones_are_taken_back) {
  struct mrc_delivery delivery = {0};
  uint64_t now_ns = SECOND;
  lose(&delivery, 3, &now_ns);
  for (int i = 0; i < 3; i++)
    mrc_delivery_on_spurious(&delivery);
  CHECK_EQ(delivery.losses, 0);
}

TEST(test_forget__once_in_a_while) {
  struct mrc_delivery delivery = {0};
  uint64_t now_ns = fly(&delivery, SECOND, 11, 2 * MS, MS);
  lose(&delivery, 9, &now_ns);
  takes_ns(&delivery, now_ns);
  const uint64_t began_ns = now_ns;
  mrc_delivery_forget(&delivery, SECOND, began_ns + SECOND - 1);
  CHECK_EQ(delivery.takes_ns, 16 * MS);
  mrc_delivery_forget(&delivery, SECOND, began_ns + SECOND);
  mrc_delivery_forget(&delivery, SECOND, began_ns + SECOND + MS);
  CHECK_EQ(delivery.takes_ns, 8 * MS);
  CHECK(!mrc_delivery_is_lossy(&delivery));
  mrc_delivery_on_lost(&delivery, began_ns + 2 * SECOND, &RTT);
  CHECK(mrc_delivery_is_lossy(&delivery));
}
