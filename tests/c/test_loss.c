/* SPDX-License-Identifier: Apache-2.0 */
#include "core/engine.h"

#include "core/loss.h"
#include "pair/connect.h"
#include "scenario.h"

/* ---- packets ---- */

/* Packets lost, late, duplicated or damaged on the way: losses are exact, and the requester
   retransmits no more than was lost. */

/* The EV that carries the mark of one loss; fails when there is not exactly one. */
static struct mrc_ev_info find_lossy_ev(struct mrc_pair *p, int end, int *plane, int *path) {
  struct mrc_ev_info lossy = {0};
  int n = 0;
  for (int i = 1; i <= p->config.planes; i++) {
    for (int k = 0; k < p->config.paths; k++) {
      struct mrc_ev_info ev = mrc_pair_ev(p, end, i, k);
      if (ev.lost_packets == 0) continue;
      lossy = ev;
      *plane = i;
      *path = k;
      n++;
    }
  }
  CHECK_EQ(n, 1);
  return lossy;
}

static int n_active(struct mrc_pair *p, int end, int plane) {
  int n = 0;
  for (int k = 0; k < p->config.paths; k++)
    n += mrc_pair_ev(p, end, plane, k).active;
  return n;
}

/* One packet lost, one retransmission on another EV (the auditor checks that). A backup of the same
   plane replaces the lossy EV, which comes back after probes. */
TEST(test_loss__one_packet) {
  PAIR p = open_pair(.planes = 2, .paths = 4);
  int end = open_qp(p, .memory_bytes = 200 * MTU, .spray = 1, .ev_active_per_plane = 2);
  int plane = 1, path = 0;
  lose_data(p, 17, 1);
  WRITE_AND_WAIT(p, end, 200 * MTU, 5 * MS);
  CHECK_EQ(retransmitted(p, end), 1);
  CHECK_EQ(mrc_pair_info(p, end).spurious_packets, 0);
  struct mrc_ev_info lossy = find_lossy_ev(p, end, &plane, &path);
  CHECK_EQ(lossy.lost_packets, 1);
  CHECK_EQ(lossy.state, MRC_EV_ASSUMED_BAD);
  CHECK_EQ(lossy.active, 0);
  CHECK_EQ(n_active(p, end, 1), 2);
  CHECK_EQ(n_active(p, end, 2), 2);
  CHECK_EQ(n_reasons(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD, MRC_REASON_LOSS), 1);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_EV_STATE, MRC_PAIR_ANY), 1);
  run_for(p, 50 * MS);
  CHECK_EQ(mrc_pair_ev(p, end, plane, path).state, MRC_EV_GOOD);
  CHECK(mrc_pair_ev(p, end, plane, path).sent_probes >= 3);
  CHECK_EQ(n_reasons(p, 0, MRC_EVENT_EV_STATE, MRC_EV_GOOD, MRC_REASON_PROBES), 1);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_EV_STATE, MRC_PAIR_ANY), 2);
}

/* Any single packet of a write: the first, a middle one, or the last, which no packet follows. */
TEST(test_loss__any_one_packet_costs_one) {
  enum { N = 40 };
  EACH_OF(uint32_t, psn, 0, N) {
    PAIR p = open_pair(.planes = 2, .paths = 2);
    int end = open_qp(p, .memory_bytes = N * MTU, .spray = 1);
    lose_data(p, psn, 1);
    WRITE_IMM_AND_WAIT(p, end, N * MTU, 5 * MS);
    CHECK_EQ(retransmitted(p, end), 1);
  }
}

/* One path is silent while the QP is always busy: deliveries on the other paths show the loss. */
TEST(test_loss__is_found_while_the_qp_is_busy) {
  enum { N = 200 };
  PAIR p = open_pair(.planes = 1, .paths = 4);
  mrc_pair_path(p, 0, 1, 1, 2)->config.loss_mask = UINT64_MAX;
  int end = open_qp(p, .memory_bytes = N * MTU, .sq_depth = 2 * N, .spray = 1);
  for (int i = 0; i < N; i++) {
    CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
    run_for(p, 10 * US);
  }
  CHECK(counter(p, 0, MRC_COUNTER_LOST_BY_TIME) > 0);
  CHECK_EQ(mrc_pair_ev(p, end, 1, 2).state, MRC_EV_ASSUMED_BAD);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(mrc_pair_info(p, end).spurious_packets, 0);
}

/* The requester finds two holes of one path in one SACK at once, not a round trip apart. */
TEST(test_loss__by_order_finds_all_holes_at_once) {
  PAIR p = open_pair();
  int end = open_qp(p, .memory_bytes = 100 * MTU, .spray = 1);
  WRITE_AND_WAIT(p, end, 20 * MTU, 5 * MS);
  lose_data(p, 25, 1);
  lose_data(p, 30, 1);
  CHECK_EQ(mrc_pair_write(p, end, 20 * MTU), 0);
  run_for(p, 3 * PATH_DELAY);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_LOST_BY_ORDER), 2);
  CHECK(mrc_pair_finish(p, 5 * MS));
}

/* Writes a packet each 10 us until one was lost for this reason; returns how long that took. */
static uint64_t write_until_lost(struct mrc_pair *p, int end, enum mrc_counter why) {
  const uint64_t start_ns = p->now_ns;
  while (counter(p, 0, why) == 0 && p->now_ns < start_ns + 5 * MS) {
    CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
    run_for(p, 10 * US);
  }
  return p->now_ns - start_ns;
}

/* After a host has shown reordering, the requester waits for the plane's guard in addition. */
TEST(test_loss__waits_for_the_guards) {
  static const struct {
    uint64_t reorder_ns, spread_ns;
    enum mrc_counter why;
    uint64_t least_ns, most_ns;
  } rows[] = {
      {0, 0, MRC_COUNTER_LOST_BY_ORDER, 0, 40 * US},
      {200 * US, 0, MRC_COUNTER_LOST_BY_ORDER, 220 * US, 260 * US},
      {0, 0, MRC_COUNTER_LOST_BY_TIME, 500 * US, 560 * US},
      {0, 2 * MS, MRC_COUNTER_LOST_BY_TIME, 2500 * US, 2560 * US},
      {2 * MS, 0, MRC_COUNTER_LOST_BY_TIME, 2500 * US, 2560 * US},
  };
  EACH_ROW(i, rows) {
    const bool by_time = rows[i].why == MRC_COUNTER_LOST_BY_TIME;
    PAIR p = open_pair(.paths = 2);
    int end = open_qp(p, .memory_bytes = 1000 * MTU, .sq_depth = 1000, .spray = 1);
    WRITE_AND_WAIT(p, end, 10 * MTU, 5 * MS);
    struct mrc_plane *plane = &inside(p, end)->planes[0];
    plane->reorder = (struct mrc_guard){.ns = rows[i].reorder_ns, .since_ns = p->now_ns};
    plane->spread = (struct mrc_guard){.ns = rows[i].spread_ns, .since_ns = p->now_ns};
    if (by_time)
      mrc_pair_path(p, 0, 1, 1, 1)->config.silent = true;
    else
      lose_data(p, 10, 1);
    const uint64_t took_ns = write_until_lost(p, end, rows[i].why);
    CHECK(took_ns >= rows[i].least_ns && took_ns <= rows[i].most_ns);
    CHECK(mrc_pair_finish(p, 20 * MS));
  }
}

TEST(test_loss__the_only_packet) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p);
  lose_data(p, 0, 1);
  WRITE_IMM_AND_WAIT(p, end, 0, 10 * MS); /* no round trip is known yet, so the timeout is longer */
  CHECK_EQ(retransmitted(p, end), 1);
}

/* No answer comes from the start: the first reliability probe leaves after 5 ms, because no round
   trip is known, and each next one after one and a half times the time. */
TEST(test_loss__probes_back_off) {
  static const uint32_t at_us[] = {5000, 12500, 23750, 40625};
  PAIR p = open_pair();
  int end = open_qp(p, .memory_bytes = MTU, .timeout = 18);
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
  const uint64_t start_ns = p->now_ns;
  EACH_ROW(i, at_us) {
    mrc_pair_run(p, start_ns + at_us[i] * US - 1);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_TX_PROBES), i);
    mrc_pair_run(p, start_ns + at_us[i] * US);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_TX_PROBES), i + 1);
  }
}

/* Two retransmissions are lost too: three different EVs, three more packets. */
TEST(test_loss__of_retransmissions) {
  PAIR p = open_pair(.planes = 2, .paths = 4);
  int end = open_qp(p, .memory_bytes = 400 * MTU, .spray = 1);
  mrc_pair_lose(p, (struct mrc_pair_rule){
                       .host = 0, .plane = MRC_PAIR_ANY, .psn = 9, .n_psns = 1, .times = 3});
  WRITE_AND_WAIT(p, end, 400 * MTU, 20 * MS);
  CHECK_EQ(retransmitted(p, end), 3);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD), 3);
}

/* The packets of one burst are lost together: many are retransmitted, one EV is blamed. */
TEST(test_loss__of_a_burst_is_one_event) {
  PAIR p = open_pair(.planes = 2, .paths = 4);
  int end = open_qp(p, .memory_bytes = 400 * MTU, .spray = 16);
  lose_data(p, 32, 16);
  WRITE_AND_WAIT(p, end, 400 * MTU, 10 * MS);
  CHECK_EQ(retransmitted(p, end), 16);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD), 1);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PLANE, MRC_PAIR_ANY), 0);
}

/* Each path drops three of 64 data packets by mask. The requester retransmits a lost packet once,
   or twice when the mask drops it again, and never a packet that arrived. */
TEST(test_loss__by_mask_on_every_path) {
  PAIR p = open_pair(.planes = 2, .paths = 4);
  for (int plane = 1; plane <= 2; plane++)
    for (int path = 0; path < 4; path++)
      mrc_pair_path(p, 0, 1, plane, path)->config.loss_mask = 1ull << 3 | 3ull << 40;
  int end = open_qp(p, .memory_bytes = 2000 * MTU);
  WRITE_IMM_AND_WAIT(p, end, 2000 * MTU, 500 * MS);
  CHECK_EQ(mrc_pair_info(p, end).spurious_packets, 0);
  CHECK(retransmitted(p, end) <= 2000 * 3 / 64 * 2);
}

/* SACKs are lost: the next ones repeat the news, and nothing is retransmitted. */
TEST(test_loss__of_sacks_in_mid_stream) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 1000 * MTU, .mpr = 128);
  run_for(p, MS);
  mrc_pair_path(p, 1, 0, 1, 0)->config.lose_n = 1;
  mrc_pair_path(p, 1, 0, 1, 0)->config.lose_of = 3;
  WRITE_AND_WAIT(p, end, 1000 * MTU, 100 * MS);
  CHECK_EQ(retransmitted(p, end), 0);
  CHECK_EQ(mrc_pair_info(p, end).timeouts, 0);
}

/* All answers to the only packet are lost: a reliability probe leaves long before the timeout. */
TEST(test_loss__of_the_last_answers) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = MTU, .timeout = 15);
  lose_kind(p, 1, MRC_OP_SACK, 1);
  lose_kind(p, 1, MRC_OP_ACK, 1);
  WRITE_AND_WAIT(p, end, MTU, 20 * MS);
  CHECK(counter(p, 0, MRC_COUNTER_TX_PROBES) >= 1);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 0);
  CHECK(retransmitted(p, end) <= 1);
}

/* The answers are once later than the local timeout, because the peer was late. No plane waits
   longer for the next loss, no EV is blamed, and the window stays as it was. */
TEST(test_loss__by_a_timeout_that_proves_wrong) {
  PAIR p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 200 * MTU, .timeout = 10);
  WRITE_AND_WAIT(p, end, 100 * MTU, 5 * MS);
  const uint64_t cwnd_bytes = mrc_pair_info(p, end).cwnd_bytes;
  for (int plane = 1; plane <= 2; plane++)
    mrc_pair_path(p, 1, 0, plane, 0)->config.delay_ns = 2 * MS;
  WRITE_AND_WAIT(p, end, 10 * MTU, 5 * MS);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_LOST_BY_TIMEOUT), 10);
  CHECK(mrc_pair_info(p, end).spurious_packets > 0);
  CHECK(mrc_pair_info(p, end).cwnd_bytes >= cwnd_bytes);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_EV_STATE, MRC_PAIR_ANY), 0);
  const struct mrc_qp *qp = inside(p, end);
  for (int i = 0; i < 2; i++) {
    CHECK_EQ(qp->planes[i].reorder.ns, 0);
    CHECK_EQ(qp->planes[i].spread.ns, 0);
  }
}

/* Only transport ACKs are lost: SACKs acknowledge all packets, and the write must still complete.
 */
TEST(test_loss__of_transport_acks) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 100 * MTU);
  lose_kind(p, 1, MRC_OP_ACK, 4);
  for (int i = 0; i < 10; i++)
    CHECK_EQ(mrc_pair_write_imm(p, end, 10 * MTU), 0);
  CHECK(mrc_pair_finish(p, 200 * MS));
  CHECK_EQ(succeeded(p, end), 10);
}

/* Planes of 10, 200 and 1000 us: reordering between them is no loss. */
TEST(test_delay__skew_between_planes_is_no_loss) {
  PAIR p = open_pair(.planes = 3, .paths = 2);
  static const uint64_t delays[] = {10 * US, 200 * US, 1000 * US};
  for (int plane = 1; plane <= 3; plane++)
    for (int path = 0; path < 2; path++) {
      mrc_pair_path(p, 0, 1, plane, path)->config.delay_ns = delays[plane - 1];
      mrc_pair_path(p, 1, 0, plane, path)->config.delay_ns = delays[plane - 1];
    }
  int end = open_qp(p, .memory_bytes = 8u << 20, .mpr = 4096, .timeout = 14);
  write_many(p, end, 1u << 20, 8);
  CHECK(mrc_pair_finish(p, 300 * MS));
  CHECK_EQ(retransmitted(p, end), 0);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PLANE, MRC_PAIR_ANY), 0);
}

/* The paths of one plane differ too: one is 20 times as long. */
TEST(test_delay__skew_between_paths_of_a_plane) {
  PAIR p = open_pair(.planes = 1, .paths = 4);
  mrc_pair_path(p, 0, 1, 1, 2)->config.delay_ns = 20 * PATH_DELAY;
  int end = open_qp(p, .memory_bytes = 4u << 20, .timeout = 14);
  WRITE_AND_WAIT(p, end, 4u << 20, 300 * MS);
  CHECK(retransmitted(p, end) <= 40); /* a few, until the path's round trip is known */
}

/* Writes over two planes of two paths, of which one has a quarter of the port's rate: its queue
   grows until packets of the other path overtake its packets. */
static struct mrc_pair *write_over_a_slow_path(int *end, struct mrc_link_config **slow) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = 400000000);
  *slow = &mrc_pair_path(p, 0, 1, 1, 1)->config;
  (*slow)->rate_bps = 100000000;
  (*slow)->queue_bytes = 500000;
  *end = open_qp(p, .memory_bytes = 32u << 20, .mpr = 4096, .timeout = 16);
  write_many(p, *end, 1u << 20, 32);
  return p;
}

TEST(test_slow__path_is_not_dead) {
  int end;
  struct mrc_link_config *slow;
  PAIR p = write_over_a_slow_path(&end, &slow);
  CHECK(mrc_pair_finish(p, SECOND));
  CHECK_EQ(n_events(p, 0, MRC_EVENT_EV_STATE, MRC_PAIR_ANY), 0);
  const struct mrc_ev *evs = inside(p, end)->evset.evs;
  CHECK(evs[1].packets > evs[0].packets / 8); /* it carries what it can */
}

/* Packets wait on a slow path for long before it falls silent, so that takes some of its own round
   trips to tell. */
TEST(test_slow__path_that_dies) {
  int end;
  struct mrc_link_config *slow;
  PAIR p = write_over_a_slow_path(&end, &slow);
  run_for(p, 100 * MS);
  const int before = n_events(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD);
  const uint64_t silent_ns = p->now_ns, most_ns = 3ull * inside(p, end)->evset.evs[1].rtt_ns;
  slow->silent = true;
  while (n_events(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD) == before &&
         p->now_ns < silent_ns + most_ns)
    run_for(p, 1 * MS);
  CHECK(p->now_ns < silent_ns + most_ns);
  CHECK(mrc_pair_finish(p, SECOND));
}

TEST(test_duplicates__are_placed_once) {
  PAIR p =
      open_pair(.planes = 2, .paths = 2, .path.duplicate_ppm = 300000, .path.reorder_ns = 30 * US);
  int end = open_qp(p, .memory_bytes = 500 * MTU);
  for (int i = 0; i < 50; i++)
    CHECK_EQ(mrc_pair_write_imm(p, end, 10 * MTU), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(retransmitted(p, end), 0);
  CHECK(p->hosts[1].drops[MRC_DROP_DUPLICATE] > 50);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).received_bytes, 500 * MTU);
}

/* Packets overtake each other on one path, as softirqs can cause: a few are retransmitted
   needlessly until the guard has grown; a wrongly blamed EV comes back. */
TEST(test_reordering__on_a_path_is_learnt) {
  PAIR p =
      open_pair(.planes = 2, .paths = 2, .path.reorder_ppm = 20000, .path.reorder_ns = 20 * US);
  int end = open_qp(p, .memory_bytes = 8u << 20);
  write_many(p, end, 1u << 20, 8);
  CHECK(mrc_pair_finish(p, SECOND));
  uint64_t early = retransmitted(p, end);
  CHECK(early <= 400); /* of 8192 packets, 2 % of them late */
  CHECK(mrc_pair_info(p, end).spurious_packets <= early);
  run_for(p, 100 * MS);
  for (int plane = 1; plane <= 2; plane++)
    for (int path = 0; path < 2; path++)
      CHECK_EQ(mrc_pair_ev(p, end, plane, path).state, MRC_EV_GOOD);
}

/* A flipped bit loses the packet and never changes a byte of memory. */
TEST(test_corruption__is_a_loss) {
  PAIR p = open_pair(.planes = 2, .paths = 4, .path.corrupt_ppm = 20000);
  int end = open_qp(p, .memory_bytes = 2000 * MTU);
  WRITE_IMM_AND_WAIT(p, end, 2000 * MTU, SECOND);
  CHECK(p->hosts[1].drops[MRC_DROP_ICRC] > 10);
  CHECK(retransmitted(p, end) < 200);
}

/* A switch trims packets: NACKs name them at once, and the EVs only skip turns. */
TEST(test_trimming__nack_and_skip) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .path.trim = true, .path.rate_bps = 1000000000,
                     .path.queue_bytes = 5500);
  int end = open_qp(p, .memory_bytes = 32 * MTU, .spray = 1);
  WRITE_AND_WAIT(p, end, 32 * MTU, 5 * MS); /* 8 a path, room for 4 */
  CHECK(counter(p, 0, MRC_COUNTER_LOST_BY_NACK) >= 10);
  CHECK_EQ(retransmitted(p, end), counter(p, 0, MRC_COUNTER_LOST_BY_NACK));
  CHECK_EQ(n_events(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD), 0);
}

/* One path is slow and marks packets: its EV skips turns, so it carries less. */
TEST(test_ecn__skips_the_marked_ev) {
  PAIR p = open_pair(.planes = 1, .paths = 4);
  mrc_pair_path(p, 0, 1, 1, 2)->config.rate_bps = 500000000;
  mrc_pair_path(p, 0, 1, 1, 2)->config.ecn_bytes = 3000;
  int end = open_qp(p, .memory_bytes = 4u << 20, .spray = 1, .mpr = 128);
  WRITE_AND_WAIT(p, end, 4u << 20, 200 * MS);
  CHECK(counter(p, 1, MRC_COUNTER_RX_CE) > 0);
  CHECK(mrc_pair_ev(p, end, 1, 2).sent_packets < mrc_pair_ev(p, end, 1, 1).sent_packets * 9 / 10);
  CHECK_EQ(retransmitted(p, end), 0);
}

/* Three packets, one on each plane, get no answer: the first reliability probe leaves on the plane
   of the oldest packet. */
TEST(test_probe__goes_where_a_packet_is_most_overdue) {
  PAIR p = open_pair(.planes = 3);
  const int end = open_qp(p, .memory_bytes = 3 * MTU);
  const struct mrc_qp *qp = inside(p, end);
  for (int plane = 1; plane <= 3; plane++)
    mrc_pair_silence(p, plane, true);
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
    run_for(p, 1 * US);
  }
  for (uint32_t plane = 0; plane < 3; plane++)
    CHECK(qp->req.win.lists[plane].oldest != MRC_TX_NONE);
  const uint32_t first = qp->req.win.slots[0].plane;
  while (!qp->req.probe.outstanding)
    CHECK(mrc_pair_step(p, p->now_ns + SECOND));
  CHECK_EQ(qp->req.probe.plane, first);
}

/* Plane 2 loses a packet, and plane 1 delivers one that left later: the first reliability probe
   leaves on plane 1, and its answer proves the loss. */
TEST(test_probe__leaves_a_plane_that_may_be_silent) {
  PAIR p = open_pair(.planes = 2, .path.delay_ns = 5 * MS);
  const int end = open_qp(p, .memory_bytes = 100 * MTU, .timeout = 17, .spray = 1);
  const struct mrc_qp *qp = inside(p, end);
  WRITE_AND_WAIT(p, end, 20 * MTU, SECOND);
  mrc_pair_silence(p, 2, true);
  for (int i = 0; i < 3; i++) { /* on planes 1, 2 and 1 */
    CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
    run_for(p, 1 * US);
  }
  while (!qp->req.probe.outstanding)
    CHECK(mrc_pair_step(p, p->now_ns + SECOND));
  CHECK_EQ(qp->req.win.inflight_bytes, MTU);
  CHECK_EQ(qp->req.win.lists[1].bytes, MTU);
  CHECK_EQ(qp->req.probe.plane, 0);
  const uint16_t first = qp->req.probe.id;
  while (qp->req.win.lists[1].bytes > 0)
    CHECK(mrc_pair_step(p, p->now_ns + SECOND));
  CHECK_EQ(qp->req.probe.id, first);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_LOST_BY_SILENCE), 1);
}

/* Plane 2 has never been heard, so the answer over plane 1 proves nothing yet: the second probe for
   the same packet leaves on plane 2. */
TEST(test_probe__returns_to_the_most_overdue_plane) {
  PAIR p = open_pair(.planes = 2);
  const int end = open_qp(p, .memory_bytes = 3 * MTU, .spray = 1);
  const struct mrc_qp *qp = inside(p, end);
  mrc_pair_silence(p, 2, true);
  for (int i = 0; i < 3; i++) { /* on planes 1, 2 and 1 */
    CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
    run_for(p, 50 * US);
  }
  for (uint16_t id = 1; id <= 2; id++) {
    while (qp->req.probe.id < id)
      CHECK(mrc_pair_step(p, p->now_ns + SECOND));
    CHECK_EQ(qp->req.probe.plane, id - 1);
    CHECK_EQ(qp->req.win.lists[1].bytes, MTU);
  }
}

/* The last packet is lost, and probes too. The first answer shows that the path is alive, though
   not that a packet arrived: the next probe waits as long as the first one, and the short round
   trip of a probe is not that of an idle path. */
TEST(test_probe__an_answer_ends_the_back_off) {
  PAIR p = open_pair(.path.delay_ns = 1 * MS, .path.rate_bps = 10000000);
  const int end = open_qp(p, .memory_bytes = 100 * MTU, .timeout = 17);
  const struct mrc_qp *qp = inside(p, end);
  WRITE_AND_WAIT(p, end, MTU, SECOND);
  const uint64_t base_ns = qp->planes[0].rtt.base_ns, first_ns = qp->req.probe_wait_ns;
  mrc_pair_silence(p, 1, true);
  CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
  while (qp->req.probe_wait_ns < 4 * first_ns)
    CHECK(mrc_pair_step(p, p->now_ns + SECOND));
  mrc_pair_silence(p, 1, false);
  while (qp->req.win.n_tosend == 0 && qp->req.win.inflight_bytes == MTU &&
         qp->req.probe.outstanding)
    CHECK(mrc_pair_step(p, p->now_ns + SECOND));
  CHECK(qp->req.win.una_psn != qp->req.win.next_psn);
  CHECK(qp->req.probe_wait_ns <= 2 * first_ns);
  CHECK_EQ(qp->planes[0].rtt.base_ns, base_ns);
}

/* One path. PSNs 0 and 1 are lost, and the first retransmission of 0 is lost too. PSN 1's
   retransmission left after it and arrives, which shows that loss, although the larger PSNs of the
   same SACK left long before. */
TEST(test_loss__by_the_newest_whatever_its_psn) {
  PAIR p = open_pair();
  const int end = open_qp(p, .memory_bytes = 6 * MTU);
  prove_paths(p->hosts[0].engine, p->ends[end]->qpn);
  for (uint32_t psn = 0; psn < 2; psn++)
    mrc_pair_lose(p, (struct mrc_pair_rule){
                         .plane = MRC_PAIR_ANY, .psn = psn, .n_psns = 1, .times = 2 - psn});
  WRITE_AND_WAIT(p, end, 6 * MTU, 100 * MS);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_LOST_BY_ORDER), 3);
}

/* The peer is a busy host: it stands still for 20 ms, and then reads the socket of one plane later
   than the others, again for longer than a silent plane would be given. The SACKs of the others
   tell how long packets wait there. A plane that fails later is still found. */
TEST(test_delay__in_a_busy_host_is_no_silence) {
  PAIR p = open_pair(.planes = 4, .paths = 2, .port_out.rate_bps = 500000000);
  const int end = open_qp(p, .memory_bytes = 160u << 20, .mpr = 4096, .timeout = 16,
                          .sq_depth = 160, .path_mtu = 4096);
  write_many(p, end, 1u << 20, 160);
  for (int i = 0; i < 5; i++) {
    run_for(p, 10 * MS);
    p->hosts[1].unread = 15;
    run_for(p, 20 * MS);
    p->hosts[1].unread = 2;
    mrc_pair_kick(p, 1);
    run_for(p, 8 * MS);
    p->hosts[1].unread = 0;
    mrc_pair_kick(p, 1);
  }
  CHECK_EQ(counter(p, 0, MRC_COUNTER_LOST_BY_SILENCE), 0);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 0);
  mrc_pair_silence(p, 2, true);
  const uint64_t silent_ns = p->now_ns;
  while (!mrc_pair_info(p, end).planes[1].suspended && p->now_ns < silent_ns + 200 * MS)
    mrc_pair_step(p, p->now_ns + MS);
  CHECK(p->now_ns - silent_ns < 100 * MS);
  mrc_pair_silence(p, 2, false);
  CHECK(mrc_pair_finish(p, 2 * SECOND));
  CHECK_EQ(succeeded(p, end), 160);
}

/* ---- the end of the data ---- */

/* Planes that fall silent while the last packets of a message are on their way: no later packet
   shows that they are lost. */

#define MESSAGE (1u << 18)

/* One message, or one in each direction. Returns how long it took. */
static uint64_t exchange_ns(struct mrc_pair *p, int end, bool both, uint64_t silent_after_ns,
                            uint32_t silent_ports) {
  const uint64_t began_ns = p->now_ns;
  CHECK_EQ(mrc_pair_write(p, end, MESSAGE), 0);
  if (both) CHECK_EQ(mrc_pair_write(p, p->ends[end]->peer, MESSAGE), 0);
  run_for(p, silent_after_ns);
  MRC_EACH_BIT(port, silent_ports)
    mrc_pair_silence(p, (int)port, true);
  CHECK(mrc_pair_finish(p, SECOND));
  return p->now_ns - began_ns;
}

/* The planes fall silent at any moment of a message. It and the next ones never wait longer than a
   few times the minimum silence of 5 ms. */
static void check_all_moments(bool both, uint32_t silent_ports, uint64_t limit_ns) {
  EACH_OF(int, moment, 0, 18) {
    PAIR p = open_four_planes();
    const int end = open_qp(p, .memory_bytes = 8u << 20, .mpr = 4096, .sq_depth = 16);
    for (int i = 0; i < 5; i++) {
      exchange_ns(p, end, both, 0, 0);
      run_for(p, 2 * MS);
    }
    uint64_t longest_ns = exchange_ns(p, end, both, (uint64_t)moment * 100 * US, silent_ports);
    for (int i = 0; i < 5; i++)
      longest_ns = mrc_max_u64(longest_ns, exchange_ns(p, end, both, 0, 0));
    CHECK(longest_ns < limit_ns);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 0);
  }
}

TEST(test_tail__one_plane_silent) { check_all_moments(false, 1 << 1, 10 * MS); }

SLOW(test_tail__one_plane_silent_both_ways) { check_all_moments(true, 1 << 1, 10 * MS); }

/* A retransmission does not go to the other silent plane. */
TEST(test_tail__two_planes_silent) { check_all_moments(false, 1 << 1 | 1 << 3, 16 * MS); }

SLOW(test_tail__two_planes_silent_both_ways) { check_all_moments(true, 1 << 1 | 1 << 3, 16 * MS); }

/* ---- reinjection ---- */

/* A packet on a slow plane holds up all others: it is retransmitted on the fast plane. */

/* A round trip takes 2 ms on plane 1. On plane 2 it takes 2.6 ms at first, and 6.9 ms once it has
   carried data: then it is slow, and the answer still arrives soon after the retransmission. */
static struct mrc_pair *open_unequal(int *end) {
  struct mrc_pair *p = open_pair(.planes = 2, .path.delay_ns = MS);
  for (int host = 0; host < 2; host++)
    mrc_pair_path(p, host, 1 - host, 2, 0)->config.delay_ns = 1300 * US;
  *end = open_qp(p, .memory_bytes = 128u << 20, .probe = true);
  WRITE_AND_WAIT(p, *end, 1200 * MTU, 20 * MS);
  CHECK(mrc_pair_info(p, *end).planes[1].sent_bytes > 0);
  mrc_pair_path(p, 0, 1, 2, 0)->config.delay_ns += 4300 * US;
  return p;
}

/* Writes more than a window, until a packet was retransmitted: in the middle of a write the
   smoothed round trip of the plane has grown so far that the plane counts as slow. */
static void write_until_reinjected(struct mrc_pair *p, int end) {
  for (int i = 0; i < 40 && counter(p, 0, MRC_COUNTER_REINJECTED) == 0; i++)
    WRITE_AND_WAIT(p, end, 1200 * MTU, 20 * MS);
}

/* The originals arrive soon after: no EV, plane or guard changes, and no packet counts as lost. */
TEST(test_reinject__blames_nobody) {
  int end;
  PAIR p = open_unequal(&end);
  write_until_reinjected(p, end);
  const uint64_t reinjected = counter(p, 0, MRC_COUNTER_REINJECTED);
  CHECK(reinjected > 0);
  CHECK_EQ(mrc_pair_info(p, end).spurious_packets, reinjected);
  CHECK_EQ(retransmitted(p, end), reinjected);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].lost_packets, 0);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 0).state, MRC_EV_GOOD);
  const struct mrc_plane *slow = &inside(p, end)->planes[1];
  CHECK_EQ(slow->reorder.ns, 0);
  CHECK_EQ(slow->spread.ns, 0);
}

/* ---- wide areas ---- */

/* Paths outside data centres: long, slow, lossy, with small buffers. The QPs connect as in a real
   setup, where every EV is probed before data. */

/* The time to write `n` messages of `bytes` and have them acknowledged. */
static uint64_t time_of(struct mrc_pair *p, int end, uint32_t bytes, int n) {
  const uint64_t start_ns = p->now_ns;
  write_many(p, end, bytes, n);
  CHECK(mrc_pair_finish(p, 100 * SECOND));
  CHECK_EQ(succeeded(p, end), n);
  return p->now_ns - start_ns;
}

/* 40 ms is more than half a wrap of the 16-bit timestamps. */
TEST(test_wan__of_40_ms) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 20 * MS,
                     .port_out.rate_bps = 100000000, .port_out.queue_bytes = 2000000);
  int end = open_qp(p, .memory_bytes = 32u << 20, .path_mtu = 8844, .probe = true);
  const uint64_t ns = time_of(p, end, 1u << 20, 32);
  CHECK(ns < 1800 * MS); /* 1.34 s at 200 Mbit/s */
  CHECK_EQ(retransmitted(p, end), 0);
  CHECK(mrc_pair_info(p, end).rtt_ns > (int64_t)(40 * MS));
}

/* A round trip of 600 ms, nine times the local timeout. */
TEST(test_wan__longer_than_the_timeout) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 300 * MS);
  int end = open_qp(p, .memory_bytes = 8u << 20, .path_mtu = 8844, .timeout = 16, .probe = true);
  const uint64_t ns = time_of(p, end, 1u << 20, 8);
  CHECK(ns < 7 * 600 * MS);
  CHECK_EQ(retransmitted(p, end), 0);
}

/* Round trips of 2 ms and 600 ms: most samples come from the short one, and the window waits for
   packets on the long one. */
TEST(test_wan__one_plane_longer_than_the_timeout) {
  PAIR p = open_pair(.planes = 2, .path.delay_ns = 1 * MS);
  mrc_pair_path(p, 0, 1, 2, 0)->config.delay_ns = 300 * MS;
  mrc_pair_path(p, 1, 0, 2, 0)->config.delay_ns = 300 * MS;
  int end = open_qp(p, .memory_bytes = 64u << 20, .path_mtu = 8844, .timeout = 16, .probe = true,
                    .plane_shares = MRC_SHARES_EQUAL);
  time_of(p, end, 1u << 20, 64);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 0);
}

/* A jumbo frame takes 71 ms on the wire, and many wait before it. */
TEST(test_slow__link_of_1_mbit) {
  PAIR p = open_pair(.path.delay_ns = 1 * MS, .path.rate_bps = 1000000);
  int end = open_qp(p, .memory_bytes = 400000, .path_mtu = 8844, .timeout = 16, .retry_linear = 7,
                    .retry_exp = 6, .probe = true);
  const uint64_t ns = time_of(p, end, 100000, 4);
  CHECK(ns < 3600 * MS); /* 3.2 s at 1 Mbit/s */
  CHECK_EQ(retransmitted(p, end), 0);
}

/* A home line: low rate, small buffer. Overflow is congestion, not a dead path. */
TEST(test_slow__link_with_a_small_buffer) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .path.delay_ns = 5 * MS,
                     .port_out.rate_bps = 10000000, .port_out.queue_bytes = 64000);
  int end = open_qp(p, .memory_bytes = 4u << 20, .path_mtu = 1408, .timeout = 16, .probe = true);
  const uint64_t ns = time_of(p, end, 1u << 20, 4);
  CHECK(ns < 3 * SECOND); /* 1.8 s at 20 Mbit/s */
  CHECK(retransmitted(p, end) < 300);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PLANE, MRC_PAIR_ANY), 0);
}

/* 1 % of loss everywhere costs about the lost packets (T5, T6 of the papers: go-back-N collapses).
 */
TEST(test_lossy__one_percent_costs_little) {
  PAIR p = open_pair(.planes = 4, .paths = 2, .path.delay_ns = 50 * US, .path.loss_ppm = 10000,
                     .port_out.rate_bps = 500000000, .port_out.queue_bytes = 1000000);
  int end = open_qp(p, .memory_bytes = 64u << 20, .path_mtu = 8844, .timeout = 16, .probe = true);
  const uint64_t ns = time_of(p, end, 1u << 20, 64);
  CHECK(ns < 350 * MS);               /* 0.27 s at 2 Gbit/s */
  CHECK(retransmitted(p, end) < 120); /* of 7616 packets, 76 of them lost */
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PLANE, MRC_PAIR_ANY), 0);
}
