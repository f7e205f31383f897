/* SPDX-License-Identifier: Apache-2.0 */
/* Planes that carry less than the others: the verdict, and when an event reports it. */
#include "core/qp.h"

#include "pair/connect.h"
#include "scenario.h"

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
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
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
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
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
  struct mrc_pair *p = open_planes(.seed = 1);
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
  mrc_pair_destroy(p);
}

TEST(test_event__two_slow_planes) {
  struct mrc_pair *p = open_planes(.seed = 1);
  const int end = open_bulk(p, MRC_SHARES_MEASURED);
  set_rate(p, 2, RATE_BPS / 10);
  set_rate(p, 3, RATE_BPS / 5);
  write_for(p, end, MESSAGE, 8, SECOND);
  CHECK_EQ(n_share(p, MRC_PAIR_ANY), 2);
  for (int plane = 1; plane <= 4; plane++) {
    CHECK_ROW(plane);
    CHECK_EQ(plane_of(p, end, plane).slow, plane == 2 || plane == 3);
  }
  mrc_pair_destroy(p);
}

/* Each of four QPs has its own shares of the planes; the verdict uses their sum. */
SLOW(test_event__qps_to_one_peer_are_summed_up) {
  enum { QPS = 4 };
  struct mrc_pair *p = open_planes(.seed = 1, .port_out.rate_bps = 4 * RATE_BPS);
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
  mrc_pair_destroy(p);
}

SLOW(test_event__equal_planes_raise_none) {
  for (uint64_t seed = 1; seed <= 8; seed++) {
    CHECK_ROW(seed);
    struct mrc_pair *p =
        open_planes(.seed = seed, .path.loss_ppm = seed % 3 * 500,
                    .driver.stall_ppm = seed % 2 * 2000, .driver.stall_ns = 2 * MS);
    const int end = open_bulk(p, MRC_SHARES_MEASURED);
    write_for(p, end, MESSAGE, 8, 900 * MS);
    CHECK_EQ(n_share(p, MRC_PAIR_ANY), 0);
    for (int plane = 1; plane <= 4; plane++)
      CHECK(plane_of(p, end, plane).share_percent != 0);
    mrc_pair_destroy(p);
  }
}

/* Equal shares stay equal on a slow plane too: a period only shows that its queue fills. */
TEST(test_event__equal_shares_raise_none) {
  struct mrc_pair *p = open_planes(.seed = 1);
  const int end = open_bulk(p, MRC_SHARES_EQUAL);
  set_rate(p, 2, RATE_BPS / 10);
  write_for(p, end, MESSAGE, 8, SECOND);
  CHECK_EQ(n_share(p, MRC_PAIR_ANY), 0);
  CHECK_EQ(plane_of(p, end, 2).share_percent, 100);
  mrc_pair_destroy(p);
}

/* Short messages avoid a long path on purpose; long messages use its share. */
TEST(test_event__short_messages_say_nothing) {
  struct mrc_pair *p = open_planes(.seed = 1);
  const int end = open_bulk(p, MRC_SHARES_MEASURED);
  for (int path = 0; path < 2; path++)
    mrc_pair_path(p, 0, 1, 2, path)->config.delay_ns = 7 * MS;
  write_for(p, end, 64 << 10, 1, 900 * MS);
  CHECK_EQ(n_share(p, MRC_PAIR_ANY), 0);
  const struct mrc_qp_info info = mrc_pair_info(p, end);
  CHECK(4 * info.planes[1].sent_bytes < info.planes[0].sent_bytes); /* it was avoided */
  CHECK(info.acknowledged_bytes > 4 * 4 * 64 * MTU); /* each period had enough bytes to compare */
  mrc_pair_destroy(p);
}

/* A slow plane that falls silent is no longer slow, without an event. When it is back, its verdict
   starts anew, and a second event is raised. */
TEST(test_event__a_suspended_plane_starts_afresh) {
  struct mrc_pair *p = open_planes(.seed = 1);
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
  mrc_pair_destroy(p);
}

/* The period with an outage of the plane is not compared: only whole periods are. */
TEST(test_event__a_period_with_an_outage_is_not_compared) {
  struct mrc_pair *p = open_planes(.seed = 1);
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
  mrc_pair_destroy(p);
}
