/* SPDX-License-Identifier: Apache-2.0 */
/* A QP that only receives probes its reverse EVs and answers on EVs that work. */
#include "core/engine.h"
#include "core/reverse.h"
#include "pair/connect.h"
#include "scenario.h"

#define RATE 500000000

static uint64_t probes(const struct mrc_pair *p, int host) {
  return counter(p, host, MRC_COUNTER_TX_EV_PROBES);
}

/* The path from host 1 to host 0 on one plane. */
static void silence_back(struct mrc_pair *p, int plane, bool silent) {
  for (int path = 0; path < p->config.paths; path++)
    mrc_pair_path(p, 1, 0, plane, path)->config.silent = silent;
}

static int start_writing(struct mrc_pair *p, int n) {
  const int end = open_qp(p, .memory_bytes = (uint64_t)n << 20, .mpr = 128, .probe = true);
  for (int i = 0; i < n; i++)
    CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
  return end;
}

/* The receiving side sends about one probe a round trip while it receives, but none more often than
   the hosts' noise allows. */
TEST(test_probes__once_a_round_trip_while_receiving) {
  static const struct {
    uint32_t noise_ns;
    uint64_t delay_ns;
    uint64_t most_in_10_ms;
  } rows[] = {{2000, 50 * US, 100}, {500000, 50 * US, 20}, {2000, 500 * US, 10}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct mrc_pair *p =
        open_pair(.planes = 2, .paths = 2, .engine.noise_ns = rows[i].noise_ns,
                  .path.delay_ns = rows[i].delay_ns); /* no queues: the window is the limit */
    start_writing(p, 32);
    run_for(p, 5 * MS);
    const uint64_t before = probes(p, 1);
    run_for(p, 10 * MS);
    const uint64_t sent = probes(p, 1) - before;
    CHECK(sent <= rows[i].most_in_10_ms + 1);
    CHECK(sent >= rows[i].most_in_10_ms / 2);
    CHECK_EQ(probes(p, 0), 4); /* at connecting */
    CHECK(mrc_pair_finish(p, SECOND));
    run_for(p, 5 * MS);
    const uint64_t at_end = probes(p, 1);
    run_for(p, SECOND);
    CHECK_EQ(probes(p, 1), at_end); /* idle */
    mrc_pair_destroy(p);
  }
}

/* Many QPs that receive together send few more probes than one. */
TEST(test_probes__together_few_of_many_qps) {
  uint64_t sent[2];
  for (int many = 0; many < 2; many++) {
    struct mrc_pair *p =
        open_pair(.planes = 2, .paths = 2, .engine.noise_ns = 500000, .path.delay_ns = 50 * US);
    for (int i = 0; i < (many ? MRC_MOST_CROWD : 1); i++)
      start_writing(p, 8);
    run_for(p, 2 * MS);
    const uint64_t before = probes(p, 1);
    run_for(p, 3 * MS);
    sent[many] = probes(p, 1) - before;
    mrc_pair_destroy(p);
  }
  CHECK(sent[0] > 0);
  CHECK(sent[1] <= 3 * sent[0]);
}

/* Both sides send: their SACKs show which EVs work, so neither side probes. */
TEST(test_probes__none_when_data_goes_both_ways) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = RATE);
  const int end = open_qp(p, .memory_bytes = 4u << 20);
  for (int i = 0; i < 4; i++) {
    CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
    CHECK_EQ(mrc_pair_write(p, p->ends[end]->peer, 1u << 20), 0);
  }
  run_for(p, 20 * MS);
  CHECK_EQ(probes(p, 0) + probes(p, 1), 0);
  mrc_pair_destroy(p);
}

/* The receiving side writes a little now and then, as small requests for data. Where its packets
   arrive it needs no probe, so it sends far fewer. */
TEST(test_probes__few_when_small_writes_tell) {
  uint64_t sent[2];
  for (int requests = 0; requests < 2; requests++) {
    struct mrc_pair *p =
        open_pair(.planes = 2, .paths = 2, .engine.noise_ns = 500000, .path.delay_ns = 50 * US);
    const int end = start_writing(p, 32);
    run_for(p, 5 * MS);
    const uint64_t before = probes(p, 1);
    for (int i = 0; i < 40; i++) {
      if (requests) CHECK_EQ(mrc_pair_write(p, p->ends[end]->peer, 64), 0);
      run_for(p, MS / 4);
    }
    sent[requests] = probes(p, 1) - before;
    CHECK(mrc_pair_finish(p, SECOND));
    mrc_pair_destroy(p);
  }
  CHECK(sent[0] >= 10);
  CHECK(sent[1] <= 1);
}

/* The return path is dead on one plane: answers leave the plane and come back to it when it heals;
   data goes on in both cases. */
TEST(test_answers__leave_a_plane_whose_way_back_is_dead) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = RATE);
  const int end = start_writing(p, 16);
  const int peer = p->ends[end]->peer;
  run_for(p, 5 * MS);
  silence_back(p, 2, true);
  run_for(p, 20 * MS);
  CHECK(!mrc_reverse_works(inside(p, peer), 1) && mrc_reverse_works(inside(p, peer), 0));
  CHECK_EQ(inside(p, peer)->planes[1].reverse_ev, MRC_EV_NONE);
  const uint64_t packets = p->hosts[1].plane_packets[1], before = probes(p, 1);
  const uint64_t by_plane_2 = p->hosts[0].plane_bytes[1];
  run_for(p, 20 * MS);
  CHECK(p->hosts[1].plane_packets[1] - packets <= probes(p, 1) - before); /* probes only */
  CHECK(p->hosts[0].plane_bytes[1] - by_plane_2 > 1000000);               /* of 1.25 MB */
  CHECK(!mrc_pair_info(p, end).planes[1].suspended);
  silence_back(p, 2, false);
  run_for(p, 20 * MS);
  CHECK(mrc_reverse_works(inside(p, peer), 1));
  CHECK(mrc_pair_finish(p, SECOND));
  CHECK_EQ(mrc_pair_info(p, end).timeouts, 0);
  mrc_pair_destroy(p);
}

/* One EV of a plane is dead on the return path: after its probe failed, answers use the others. */
TEST(test_answers__use_evs_that_answered) {
  struct mrc_pair *p = open_pair(.paths = 4, .port_out.rate_bps = RATE, .engine.noise_ns = 20000);
  const int end = start_writing(p, 8);
  const int peer = p->ends[end]->peer;
  run_for(p, 5 * MS);
  mrc_pair_path(p, 1, 0, 1, 3)->config.silent = true;
  run_for(p, 10 * MS);
  const struct mrc_link *dead = mrc_pair_path(p, 1, 0, 1, 3);
  const uint64_t on_dead = dead->entered, probed = probes(p, 1);
  for (int i = 0; i < 30; i++) {
    run_for(p, 1 * MS);
    const uint16_t ev = inside(p, peer)->planes[0].reverse_ev;
    CHECK(ev < 3);
  }
  CHECK(dead->entered - on_dead <= probes(p, 1) - probed); /* its probes, and no answers */
  CHECK(mrc_pair_finish(p, SECOND));
  mrc_pair_destroy(p);
}

/* Most EVs of a plane are dead on the return path: probes of two of them in a row do not show that
   the plane has failed. */
TEST(test_answers__stay_on_a_plane_with_one_ev_that_works) {
  struct mrc_pair *p =
      open_pair(.planes = 2, .paths = 8, .port_out.rate_bps = RATE, .engine.noise_ns = 20000);
  const int end = start_writing(p, 16);
  const struct mrc_qp *receiver = inside(p, p->ends[end]->peer);
  run_for(p, 5 * MS);
  for (int path = 1; path < 8; path++)
    mrc_pair_path(p, 1, 0, 2, path)->config.silent = true;
  while (receiver->planes[1].reverse_ev != 8)
    CHECK(mrc_pair_step(p, p->now_ns + SECOND));
  for (int i = 0; i < 40; i++) {
    run_for(p, MS);
    CHECK(mrc_reverse_works(receiver, 1));
  }
  CHECK(mrc_pair_finish(p, SECOND));
  mrc_pair_destroy(p);
}

/* Likewise for answers to the probes of an EV: they show the state of that EV, and not of the EV
   that the answer happens to take. */
TEST(test_answers__to_ev_probes_use_evs_that_answered) {
  struct mrc_pair *p =
      open_pair(.planes = 2, .paths = 8, .port_out.rate_bps = RATE, .engine.noise_ns = 20000);
  const int end = start_writing(p, 16);
  const struct mrc_qp *receiver = inside(p, p->ends[end]->peer);
  run_for(p, 5 * MS);
  for (int path = 1; path < 8; path++)
    mrc_pair_path(p, 1, 0, 2, path)->config.silent = true;
  while (receiver->planes[1].reverse_ev != 8)
    CHECK(mrc_pair_step(p, p->now_ns + SECOND));
  CHECK_EQ(
      mrc_qp_set_ev_state(p->hosts[0].engine, p->ends[end]->qpn, 8, MRC_EV_ASSUMED_BAD, p->now_ns),
      0);
  run_for(p, 5 * MS);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 0).state, MRC_EV_GOOD);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 0).sent_probes, 1 + 3); /* one at the connect */
  CHECK(mrc_pair_finish(p, SECOND));
  mrc_pair_destroy(p);
}

/* The EV that carries all answers may die with the window full. Then the sender only sends
   reliability probes: from the second one on, answers use any EV. */
TEST(test_answers__leave_their_ev_when_the_peer_asks_again) {
  struct mrc_pair *p = open_pair(.paths = 8, .port_out.rate_bps = RATE);
  const int end = start_writing(p, 8);
  struct mrc_qp *receiver = inside(p, p->ends[end]->peer);
  run_for(p, 5 * MS);
  const uint16_t ev = receiver->planes[0].reverse_ev;
  CHECK(ev != MRC_EV_NONE);
  mrc_reverse_on_request(receiver);
  CHECK_EQ(receiver->planes[0].reverse_ev, ev);
  mrc_reverse_on_request(receiver); /* and nothing arrived since */
  CHECK_EQ(receiver->planes[0].reverse_ev, MRC_EV_NONE);
  CHECK(mrc_pair_finish(p, SECOND));
  mrc_pair_destroy(p);
}

/* Every return path is dead for a while: answers use any EV, and the transfer recovers. */
TEST(test_answers__try_all_when_none_works) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = RATE);
  const int end = start_writing(p, 8);
  run_for(p, 5 * MS);
  silence_back(p, 1, true);
  silence_back(p, 2, true);
  run_for(p, 200 * MS);
  CHECK(!mrc_reverse_works(inside(p, p->ends[end]->peer), 0));
  silence_back(p, 1, false);
  silence_back(p, 2, false);
  CHECK(mrc_pair_finish(p, 2 * SECOND));
  mrc_pair_destroy(p);
}
