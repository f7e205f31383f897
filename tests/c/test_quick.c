/* SPDX-License-Identifier: Apache-2.0 */
/* Which planes count as quick, slow or limited, and what then goes over them. */
#include "core/send.h"

#include "core/engine.h"
#include "pair/connect.h"
#include "scenario.h"

#define RATE_BPS 500000000ull
#define MESSAGE (1u << 18)
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
    CHECK_EQ(mrc_pair_write(p, end, MESSAGE), 0);
    CHECK(mrc_pair_finish(p, SECOND));
    uint64_t took_ns = p->now_ns - began_ns;
    int at = i;
    for (; at > 0 && times[at - 1] > took_ns; at--)
      times[at] = times[at - 1];
    times[at] = took_ns;
    run_for(p, 2 * MS);
  }
  return times[n * 9 / 10];
}

static void set_rate(struct mrc_pair *p, uint64_t rate_bps) {
  for (int host = 0; host < 2; host++)
    p->port_out[host][BAD - 1].config.rate_bps = rate_bps;
}

static uint64_t sent_bytes(const struct mrc_pair *p, int end) {
  return mrc_pair_info(p, end).planes[BAD - 1].sent_bytes;
}

/* Only planes with a measured round trip predict when an answer arrives. */
TEST(test_others_overdue__planes_that_were_measured) {
  struct mrc_pair *p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = 64 * MTU);
  struct mrc_services *services = &p->hosts[0].engine->services;
  struct mrc_qp *qp = inside(p, end);
  for (uint32_t plane = 0; plane < 2; plane++)
    qp->planes[plane].rtt = (struct mrc_rtt){0};
  CHECK_EQ(mrc_quick_others_overdue_ns(services, qp, 0), MRC_NEVER);
  CHECK_EQ(mrc_pair_write(p, end, 64 * MTU), 0);
  CHECK(mrc_pair_finish(p, 10 * MS));
  const uint64_t overdue_ns = mrc_quick_others_overdue_ns(services, qp, 0);
  CHECK(overdue_ns > 2 * PATH_DELAY && overdue_ns < 10 * MS);
  mrc_pair_destroy(p);
}

TEST(test_limited__no_plane_of_equal_ones) {
  struct mrc_pair *p = open_four_planes();
  const int end = open_end(p, 64u << 20);
  for (int i = 0; i < 10; i++) {
    message_ns(p, end, 10);
    CHECK_EQ(inside(p, end)->choice.quick.limited, 0);
  }
  mrc_pair_destroy(p);
}

/* Short messages nearly do without a plane that has a tenth of its rate. */
TEST(test_limited__messages_do_without_a_slow_plane) {
  struct mrc_pair *p = open_four_planes();
  const int end = open_end(p, 64u << 20);
  const uint64_t before_ns = message_ns(p, end, 50);
  set_rate(p, RATE_BPS / 10);
  message_ns(p, end, 50); /* while it is found out */
  CHECK(mrc_quick_is_limited(inside(p, end), BAD - 1));
  CHECK(mrc_quick_is_slow(inside(p, end), BAD - 1));
  CHECK(message_ns(p, end, 100) < before_ns * 16 / 10);
  mrc_pair_destroy(p);
}

/* The same for a plane that loses a fifth of its packets. */
TEST(test_limited__messages_do_without_a_lossy_plane) {
  struct mrc_pair *p = open_four_planes();
  const int end = open_end(p, 64u << 20);
  const uint64_t before_ns = message_ns(p, end, 50);
  for (int path = 0; path < 2; path++)
    mrc_pair_path(p, 0, 1, BAD, path)->config.loss_ppm = 200000;
  message_ns(p, end, 50);
  CHECK(mrc_quick_is_limited(inside(p, end), BAD - 1));
  CHECK(message_ns(p, end, 100) < before_ns * 16 / 10);
  mrc_pair_destroy(p);
}

SLOW(test_limited__a_plane_that_has_recovered_is_used_again) {
  struct mrc_pair *p = open_four_planes();
  const int end = open_end(p, 320u << 20);
  set_rate(p, RATE_BPS / 10);
  message_ns(p, end, 100);
  CHECK(mrc_quick_is_limited(inside(p, end), BAD - 1));
  set_rate(p, RATE_BPS);
  const uint64_t until_ns = p->now_ns + 3 * SECOND;
  while (p->now_ns < until_ns)
    message_ns(p, end, 50);
  CHECK(!mrc_quick_is_limited(inside(p, end), BAD - 1));
  const uint64_t sent = sent_bytes(p, end);
  message_ns(p, end, 100);
  CHECK(sent_bytes(p, end) - sent > 100 * MESSAGE / 8); /* half of its part, and more */
  mrc_pair_destroy(p);
}

/* A longer path is no lower rate: while messages are long enough, it is used. */
TEST(test_limited__not_a_longer_path) {
  struct mrc_pair *p = open_four_planes();
  const int end = open_end(p, 320u << 20);
  for (int path = 0; path < 2; path++)
    mrc_pair_path(p, 0, 1, BAD, path)->config.delay_ns = 7 * MS;
  for (int i = 0; i < 20; i++) {
    message_ns(p, end, 5);
    CHECK_EQ(inside(p, end)->choice.quick.limited, 0);
  }
  for (int i = 0; i < 16; i++)
    CHECK_EQ(mrc_pair_write(p, end, 16 * MESSAGE), 0);
  const uint64_t sent = sent_bytes(p, end);
  CHECK(mrc_pair_finish(p, 10 * SECOND));
  CHECK(sent_bytes(p, end) - sent > 16 * 16 * (uint64_t)MESSAGE / 16);
  mrc_pair_destroy(p);
}

/* Many QPs make each other's packets wait: a plane is not limited by what hosts waited lately. */
TEST(test_limited__not_by_the_waits_of_busy_hosts) {
  struct mrc_pair *p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = MTU);
  const struct mrc_services *services = &p->hosts[0].engine->services;
  struct mrc_qp *qp = inside(p, end);
  qp->req.host_waits = (struct mrc_guard){0};
  qp->planes[0].delivery = (struct mrc_delivery){.takes_ns = 1 * MS, .measured_ns = p->now_ns};
  qp->planes[1].delivery = (struct mrc_delivery){.takes_ns = 12 * MS, .measured_ns = p->now_ns};
  mrc_quick_compare(services, qp, p->now_ns);
  CHECK_EQ(qp->choice.quick.limited, 2);
  qp->choice.quick.limited = 0;
  mrc_guard_cover(&qp->req.host_waits, 2 * 8 * MS, p->now_ns);
  mrc_quick_compare(services, qp, p->now_ns);
  CHECK_EQ(qp->choice.quick.limited, 0);
  mrc_pair_destroy(p);
}

/* With equal shares no plane is left out. */
TEST(test_limited__not_with_equal_shares) {
  struct mrc_pair *p = open_pair(.planes = 2);
  const int end = open_qp(p, .plane_shares = MRC_SHARES_EQUAL);
  inside(p, end)->choice.quick.limited = 1;
  CHECK(!mrc_quick_is_limited(inside(p, end), 0));
  CHECK(!mrc_quick_is_slow(inside(p, end), 0));
  mrc_pair_destroy(p);
}

/* A queue drains while the plane is idle; a longer path stays longer, until it is tried again. */
TEST(test_answer__what_an_idle_plane_forgets) {
  struct mrc_pair *p = open_pair(.planes = 2);
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
  mrc_pair_destroy(p);
}
