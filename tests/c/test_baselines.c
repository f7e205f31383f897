/* SPDX-License-Identifier: Apache-2.0 */
/* The baselines, go-back-N and TCP: their state without a fabric, then their flows in one. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "core/base.h"
#include "sim/gbn.h"
#include "sim/numbers.h"
#include "sim/tcp.h"
#include "sim/traffic.h"
#include "sim_config.h"

/* ---- Go-back-N ---- */

#define GBN_SENDER FREED_BY(mrc_gbn_sender_free) struct mrc_gbn_sender
static struct mrc_gbn_sender open_gbn_sender(uint32_t window) {
  struct mrc_gbn_sender sender;
  const struct mrc_gbn_config config = {
      .cc = {.kind = MRC_CC_NULL, .mtu_bytes = 1000, .max_bytes = 1000 * window, .planes = 1},
      .timeout_ns = 100 * US,
      .retries = 2,
      .window = window};
  CHECK_EQ(mrc_gbn_sender_init(&sender, &config), 0);
  sender.end = 100;
  return sender;
}

static int send_gbn(struct mrc_gbn_sender *sender, uint64_t now_ns) {
  int n = 0;
  while (mrc_gbn_may_send(sender)) {
    mrc_gbn_on_sent(sender, now_ns);
    n++;
  }
  return n;
}

TEST(test_gbn_receive__takes_in_order_only) {
  static const struct {
    uint32_t psn;
    bool taken, ack_due, nak_due;
    uint64_t expected;
  } rows[] = {
      {0, true, true, false, 1},   {1, true, true, false, 2},
      {3, false, false, true, 2},                              /* 2 is missing: send a NAK */
      {4, false, false, false, 2},                             /* only one NAK */
      {2, true, true, false, 3},   {4, false, false, true, 3}, /* another gap */
      {1, false, true, false, 3}, /* arrived before: the answer may have been lost */
  };
  struct mrc_gbn_receiver receiver = {0};
  EACH_ROW(i, rows) {
    receiver.ack_due = receiver.nak_due = false;
    CHECK_EQ(mrc_gbn_receive(&receiver, rows[i].psn, i == 3), rows[i].taken);
    CHECK_EQ(receiver.ack_due, rows[i].ack_due);
    CHECK_EQ(receiver.nak_due, rows[i].nak_due);
    CHECK_EQ(receiver.expected, rows[i].expected);
    CHECK_EQ(receiver.ce, i >= 3);
  }
  CHECK_EQ(receiver.repeated, 1);
}

TEST(test_gbn_receive__psns_wrap) {
  struct mrc_gbn_receiver receiver = {.expected = MRC_PSN_MASK};
  CHECK(mrc_gbn_receive(&receiver, MRC_PSN_MASK, false));
  CHECK(mrc_gbn_receive(&receiver, 0, false));
  CHECK(!mrc_gbn_receive(&receiver, MRC_PSN_MASK, false));
  CHECK_EQ(receiver.expected, MRC_PSN_MASK + 2ull);
}

TEST(test_gbn_answer__opens_the_window) {
  GBN_SENDER sender = open_gbn_sender(8);
  CHECK_EQ(send_gbn(&sender, 0), 8);
  mrc_gbn_on_answer(&sender, 3, false, false, 10 * US);
  CHECK_EQ(send_gbn(&sender, 10 * US), 3);
  CHECK_EQ(sender.rtt.smooth_ns, 10 * US);
  CHECK_EQ(sender.deadline_ns, 110 * US);
  mrc_gbn_on_answer(&sender, 12, false, false, 20 * US); /* never sent */
  CHECK_EQ(sender.unacked, 3);
  mrc_gbn_on_answer(&sender, 11, false, false, 20 * US);
  CHECK_EQ(sender.deadline_ns, MRC_NEVER);
}

TEST(test_gbn_answer__nak_goes_back) {
  GBN_SENDER sender = open_gbn_sender(8);
  send_gbn(&sender, 0);
  mrc_gbn_on_answer(&sender, 2, true, false, 10 * US);
  CHECK_EQ(sender.next, 2);
  CHECK_EQ(send_gbn(&sender, 10 * US), 8);
  CHECK_EQ(sender.again, 6); /* 2 to 7; 8 and 9 leave for the first time */
  CHECK_EQ(sender.went_back, 1);
  sender.rtt = (struct mrc_rtt){0};
  mrc_gbn_on_answer(&sender, 5, false, false, 20 * US);
  CHECK_EQ(sender.rtt.smooth_ns, 0); /* it is unknown which copy was answered */
}

/* The sender went back after a timeout although all packets had arrived: the next answer moves it
   forward again. */
TEST(test_gbn_answer__after_going_back_too_far) {
  GBN_SENDER sender = open_gbn_sender(8);
  send_gbn(&sender, 0);
  CHECK(mrc_gbn_on_timeout(&sender));
  CHECK_EQ(sender.next, 0);
  mrc_gbn_on_answer(&sender, 8, false, false, 110 * US);
  CHECK_EQ(sender.next, 8);
  CHECK_EQ(sender.deadline_ns, MRC_NEVER);
}

TEST(test_gbn_timeout__ends_after_the_last_retry) {
  GBN_SENDER sender = open_gbn_sender(8);
  for (uint64_t now_ns = 0; now_ns < 200 * US; now_ns += 100 * US) {
    CHECK_EQ(send_gbn(&sender, now_ns), 8);
    CHECK_EQ(sender.deadline_ns, now_ns + 100 * US);
    CHECK(mrc_gbn_on_timeout(&sender));
    CHECK_EQ(sender.deadline_ns, MRC_NEVER);
  }
  send_gbn(&sender, 200 * US);
  CHECK(!mrc_gbn_on_timeout(&sender));
}

/* ---- Go-back-N on hosts ---- */

#define open_gbn(...)                                                                     \
  open_sim(.transport = MRC_SIM_GO_BACK_N, .routing = MRC_SIM_ECMP, .topology.planes = 2, \
           __VA_ARGS__)

TEST(test_gbn_run__one_path_at_line_rate) {
  SIM sim = open_gbn(.cc_base_rtt_ns = 8000, .cc = MRC_CC_NSCC);
  CHECK_EQ(add_flow(sim, .bytes = 1000001, .writes = 8), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  const struct mrc_sim_flow_info info = info_of(sim, 0);
  CHECK_EQ(info.received_bytes, 8000008);
  CHECK_EQ(info.completed, 8);
  CHECK_EQ(info.sent_packets, 8 * 245); /* none twice */
  /* one of two planes: 640 us of payload at 100 Gbit/s */
  CHECK(info.last_ns > 660 * US && info.last_ns < 720 * US);
}

TEST(test_gbn_run__goes_back_for_what_is_lost) {
  SIM sim = open_gbn(.cc = MRC_CC_NULL, .mpr = 128, .timeout = 6);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_ALL, .kind = MRC_SIM_LOSE, .a = 1, .b = 200), 0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 4), 0);
  CHECK_EQ(add_flow(sim, .bytes = 5, .writes = 40), 1);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  CHECK_EQ(info_of(sim, 0).received_bytes, 4 << 20);
  CHECK_EQ(info_of(sim, 1).received_bytes, 200);
  CHECK(info_of(sim, 0).retransmitted_packets > 20);
}

TEST(test_gbn_run__full_buffers_drop) {
  SIM sim = open_gbn(.cc = MRC_CC_NULL, .topology.buffer_bytes = 100000, .timeout = 6);
  for (uint32_t from = 1; from < 4; from++)
    CHECK_EQ(add_flow(sim, .from = from, .to = 0), (int)from - 1);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  const struct mrc_sim_stats stats = stats_of(sim);
  CHECK_EQ(stats.completed_writes, 3);
  CHECK(stats.dropped > 0);
  CHECK_EQ(stats.trimmed, 0); /* only MRC packets are trimmed */
}

TEST(test_gbn_run__no_path_ends_the_flow) {
  SIM sim = open_gbn(.retry_linear = 2, .timeout = 6);
  CHECK_EQ(add_fault(sim, .target = MRC_SIM_ALL, .at_ns = 5 * US), 0);
  CHECK_EQ(add_flow(sim, .writes = 20, .depth = 4), 0);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  CHECK_EQ(info_of(sim, 0).failed, 20);
  struct mrc_sim_event event;
  CHECK_EQ(mrc_sim_events(sim, &event, 1), 1);
  CHECK_EQ(event.type, MRC_SIM_QP_ERROR);
}

TEST(test_gbn_run__writes_wait_for_another_flow) {
  SIM sim = open_gbn(.cc = MRC_CC_NULL);
  CHECK_EQ(add_flow(sim, .from = 0, .to = 2, .writes = 3), 0);
  CHECK_EQ(add_flow(sim, .from = 2, .to = 0, .writes = 4, .after = 1), 1);
  CHECK_EQ(mrc_sim_run(sim, 500 * MS), 1);
  CHECK_EQ(info_of(sim, 1).completed, 4);
}

TEST(test_gbn_create__needs_ecmp) { CHECK_PTR_EQ(open_sim(.transport = MRC_SIM_GO_BACK_N), NULL); }

/* ---- TCP ---- */

#define RTT_NS (50 * MS)
#define PIPE 4096

#define TCP_SENDER FREED_BY(mrc_tcp_sender_free) struct mrc_tcp_sender
static struct mrc_tcp_sender open_tcp_sender(void) {
  struct mrc_tcp_sender sender;
  mrc_tcp_sender_init(&sender);
  return sender;
}

#define TCP_RECEIVER FREED_BY(mrc_tcp_receiver_free) struct mrc_tcp_receiver
static struct mrc_tcp_receiver open_tcp_receiver(void) {
  struct mrc_tcp_receiver receiver;
  mrc_tcp_receiver_init(&receiver);
  return receiver;
}

/* Sends the segments that the window allows; returns their number. */
static int send_tcp(struct mrc_tcp_sender *sender, uint64_t now_ns) {
  int n = 0;
  for (; mrc_tcp_may_send(sender); n++)
    mrc_tcp_on_sent(sender, now_ns);
  return n;
}

static void ack(struct mrc_tcp_sender *sender, uint64_t expected, uint64_t came, uint64_t sent_ns,
                uint64_t now_ns) {
  mrc_tcp_on_ack(sender,
                 &(struct mrc_tcp_ack){.expected = expected, .came = came, .sent_ns = sent_ns},
                 now_ns);
}

TEST(test_tcp_on_ack__slow_start_doubles) {
  TCP_SENDER sender = open_tcp_sender();
  uint64_t acked = 0;
  EACH_OF(int, round, 0, 5) {
    const uint64_t sent_ns = (uint64_t)round * RTT_NS;
    CHECK_EQ(send_tcp(&sender, sent_ns), 10 << round);
    for (int i = 0; i < 10 << round; i++, acked++)
      ack(&sender, acked + 1, acked, sent_ns, sent_ns + RTT_NS);
  }
  CHECK_EQ(sender.rtt.smooth_ns, RTT_NS);
}

/* When the port has no room, the window is not used up and does not grow. */
TEST(test_tcp_on_ack__grows_only_when_the_window_was_full) {
  TCP_SENDER sender = open_tcp_sender();
  CHECK(mrc_tcp_may_send(&sender));
  mrc_tcp_on_sent(&sender, 0);
  ack(&sender, 1, 0, 0, RTT_NS);
  CHECK_EQ(send_tcp(&sender, RTT_NS), 10);
}

/* The first two of 40 segments are lost. */
TEST(test_tcp_on_ack__one_decrease_for_a_window_of_losses) {
  TCP_SENDER sender = open_tcp_sender();
  sender.cubic.cwnd = 40;
  for (uint64_t i = 0; i < 40; i++) {
    CHECK(mrc_tcp_may_send(&sender));
    CHECK_EQ(mrc_tcp_on_sent(&sender, i * MS), i);
  }
  for (uint64_t i = 2; i < 40; i++)
    ack(&sender, 0, i, i * MS, i * MS + RTT_NS);
  CHECK_EQ(sender.losses, 2);
  CHECK_EQ((int)sender.cubic.cwnd, 28); /* 0.7 of 40, once */
  CHECK_EQ(mrc_tcp_on_sent(&sender, 100 * MS), 0);
  CHECK_EQ(mrc_tcp_on_sent(&sender, 100 * MS), 1);
  CHECK_EQ(mrc_tcp_on_sent(&sender, 100 * MS), 40);
  ack(&sender, 40, 1, 100 * MS, 100 * MS + RTT_NS);
  CHECK_EQ(sender.again, 2);
  CHECK_EQ(sender.in_flight, 1);
}

/* The first loss is retransmitted at once, though more is in flight than the new window allows. */
TEST(test_tcp_may_send__the_first_loss_at_once) {
  TCP_SENDER sender = open_tcp_sender();
  CHECK_EQ(send_tcp(&sender, 0), 10);
  sender.sent_ns[0] = 0;
  for (uint64_t i = 1; i < 10; i++)
    sender.sent_ns[i] = 40 * MS;
  ack(&sender, 0, 1, 40 * MS, 40 * MS + RTT_NS);
  CHECK_EQ(sender.losses, 1);
  CHECK(sender.in_flight > sender.cubic.cwnd);
  CHECK(mrc_tcp_may_send(&sender));
  CHECK_EQ(mrc_tcp_on_sent(&sender, 90 * MS), 0);
  CHECK(!mrc_tcp_may_send(&sender));
}

/* After k = cbrt(max * 0.3 / 0.4) seconds the curve is back at `max`, and flat there. */
TEST(test_tcp_on_ack__the_curve_is_cubic) {
  TCP_SENDER sender = open_tcp_sender();
  sender.cubic = (struct mrc_cubic){.cwnd = 700, .ssthresh = 700, .max = 1000};
  uint64_t now_ns = 0, acked = 0;
  uint64_t trace = 0;             /* of all windows, to the bit: the same on every processor */
  double at_half_k = 0, at_k = 0; /* k is 9.09 s */
  while (now_ns < 9085 * MS) {
    const int sent = send_tcp(&sender, now_ns);
    now_ns += RTT_NS;
    for (int i = 0; i < sent; i++, acked++)
      ack(&sender, acked + 1, acked, now_ns - RTT_NS, now_ns);
    if (at_half_k == 0 && now_ns >= 4542 * MS) at_half_k = sender.cubic.cwnd;
    at_k = sender.cubic.cwnd;
    uint64_t bits;
    memcpy(&bits, &at_k, sizeof bits);
    trace = trace * 31 + bits;
  }
  CHECK(at_half_k > 950 && at_half_k < 970); /* 1000 - 300 / 8 */
  CHECK(at_k > 995 && at_k < 1005);
  CHECK_EQ(trace, 0x3d9a84c904eee952);
}

TEST(test_tcp_on_timeout__all_again_from_one) {
  TCP_SENDER sender = open_tcp_sender();
  CHECK_EQ(send_tcp(&sender, 0), 10);
  CHECK_EQ(sender.deadline_ns, 1000 * MS); /* no round trip is known yet */
  mrc_tcp_on_timeout(&sender);
  CHECK_EQ(sender.deadline_ns, MRC_NEVER);
  CHECK_EQ(send_tcp(&sender, 1000 * MS), 1);
  CHECK_EQ(sender.deadline_ns, 3000 * MS); /* the second timeout is twice as long */
  CHECK_EQ(sender.again, 1);
  ack(&sender, 1, 0, 1000 * MS, 1050 * MS);
  CHECK_EQ(send_tcp(&sender, 1050 * MS), 2);
  CHECK_EQ(sender.again, 3);
  CHECK_EQ(sender.deadline_ns, 1050 * MS + RTT_NS + 200 * MS);
}

TEST(test_tcp_receive__any_order_once) {
  static const struct {
    uint64_t segment;
    bool is_new;
    uint64_t expected;
  } rows[] = {{0, true, 1}, {2, true, 1}, {3, true, 1}, {2, false, 1}, {1, true, 4}, {0, false, 4}};
  TCP_RECEIVER receiver = open_tcp_receiver();
  EACH_ROW(i, rows) {
    CHECK_EQ(mrc_tcp_receive(&receiver, rows[i].segment), rows[i].is_new);
    CHECK_EQ(receiver.expected, rows[i].expected);
  }
  CHECK_EQ(receiver.repeated, 2);
}

/* A link of one segment a millisecond, a buffer of `room` segments, a round trip of 50 ms. */
TEST(test_tcp_link__is_filled_and_nothing_is_missing) {
  static const uint32_t rooms[] = {20, 50, 100};
  EACH_OF(int, row, 0, 3) {
    TCP_SENDER sender = open_tcp_sender();
    TCP_RECEIVER receiver = open_tcp_receiver();
    static uint64_t queue[PIPE], queued_ns[PIPE];
    static struct mrc_tcp_ack acks[PIPE];
    uint64_t first = 0, last = 0; /* positions in the queue */
    for (uint64_t ms = 0; ms < 60000; ms++) {
      struct mrc_tcp_ack *slot = &acks[ms % 50];
      if (ms >= 50 && slot->sent_ns != MRC_NEVER) mrc_tcp_on_ack(&sender, slot, ms * MS);
      if (sender.deadline_ns <= ms * MS) mrc_tcp_on_timeout(&sender);
      while (mrc_tcp_may_send(&sender)) {
        const uint64_t segment = mrc_tcp_on_sent(&sender, ms * MS);
        if (last - first == rooms[row]) continue; /* no room: dropped */
        queue[last % PIPE] = segment;
        queued_ns[last++ % PIPE] = ms * MS;
      }
      slot->sent_ns = MRC_NEVER;
      if (first == last) continue;
      mrc_tcp_receive(&receiver, queue[first % PIPE]);
      *slot = (struct mrc_tcp_ack){.expected = receiver.expected,
                                   .came = queue[first % PIPE],
                                   .sent_ns = queued_ns[first % PIPE]};
      first++;
    }
    CHECK(sender.losses > 0);
    CHECK_EQ(receiver.repeated, 0);
    CHECK(receiver.expected > 54000); /* 90% of the link */
    CHECK(sender.packets - sender.losses <= receiver.expected + 50 + rooms[row]);
  }
}

/* ---- TCP on hosts ---- */

#define MBIT 1000000ull
#define SECOND (1000 * MS)

/* Slow enough for TCP: 1 Gbit/s to hosts, 200 Mbit/s between T0 and T1, a round trip of 10 ms. */
#define open_slow(...)                                                                       \
  open_sim(.topology.host_rate_bps = GBIT, .topology.fabric_rate_bps = 200 * MBIT,           \
           .topology.fabric_delay_ns = 2 * MS, .topology.ecn_high_bytes = 0,                 \
           .topology.ecn_low_bytes = 0, .wake_ns = 10 * US, .topology.buffer_bytes = 500000, \
           .noise_ns = MS, __VA_ARGS__)
#define add_tcp(sim, ...) add_flow(sim, .bytes = 1448, .tcp_plane = 1, __VA_ARGS__)

TEST(test_tcp_add__refuses_nonsense) {
  SIM sim = open_slow();
  CHECK_EQ(add_tcp(sim, .tcp_plane = 2), -EINVAL);
  CHECK_EQ(add_tcp(sim, .bytes = 0), -EINVAL);
  CHECK_EQ(add_tcp(sim, .paths = 1, .paths_until_ns = MS), -EINVAL);
  CHECK_EQ(add_tcp(sim, .paths = 4), -EINVAL); /* only paths 0 and 1 exist */
}

TEST(test_tcp_run__fills_its_path_and_never_ends) {
  SIM sim = open_slow();
  CHECK_EQ(add_tcp(sim, .paths = 2, .start_ns = 100 * MS), 0);
  CHECK_EQ(mrc_sim_run(sim, 5 * SECOND), 0);
  const struct mrc_sim_flow_info info = info_of(sim, 0);
  CHECK_EQ(info.first_ns, 100 * MS);
  CHECK(info.received_bytes > 4 * 200 * MBIT / 8 * 1448 / 1598);
  CHECK_EQ(info.retransmitted_packets, info.lost_packets);
  CHECK_EQ(info.repeated_packets, 0);
  CHECK_EQ(sim->whole.fabric.hops[mrc_topology_t0_up(&sim->whole.world.config.topology, 0, 0, 0)]
               .packets,
           0);
  CHECK(sim->whole.fabric.hops[mrc_topology_t0_up(&sim->whole.world.config.topology, 0, 0, 1)]
            .packets > 0);
}

/* The fabric neither marks nor trims TCP data: it drops it. */
TEST(test_tcp_run__full_buffers_drop) {
  SIM sim = open_slow(.topology.ecn_low_bytes = 1, .topology.ecn_high_bytes = 2);
  CHECK_EQ(add_tcp(sim), 0);
  CHECK_EQ(mrc_sim_run(sim, 2 * SECOND), 0);
  const struct mrc_sim_stats stats = stats_of(sim);
  CHECK(stats.dropped > 0);
  CHECK_EQ(stats.trimmed, 0);
  CHECK_EQ(stats.marked, 0);
}

SLOW(test_tcp_run__survives_what_links_do) {
  static const struct mrc_sim_fault faults[] = {
      {.kind = MRC_SIM_LOSS, .a = 10000},
      {.kind = MRC_SIM_CORRUPT, .a = 10000},
      {.kind = MRC_SIM_DUPLICATE, .a = 100000, .b = 5000},
      {.kind = MRC_SIM_REORDER, .a = 100000, .b = 5000},
      {.kind = MRC_SIM_SILENT, .at_ns = SECOND, .until_ns = 2 * SECOND},
  };
  EACH_ROW(i, faults) {
    SIM sim = open_slow();
    struct mrc_sim_fault fault = faults[i];
    if (fault.until_ns == 0) fault.until_ns = UINT64_MAX;
    CHECK_EQ(mrc_sim_add_fault(sim, &fault), 0);
    CHECK_EQ(add_tcp(sim), 0);
    CHECK_EQ(mrc_sim_run(sim, 3 * SECOND), 0);
    const uint64_t before = info_of(sim, 0).received_bytes;
    CHECK_EQ(mrc_sim_run(sim, 6 * SECOND), 0);
    CHECK(info_of(sim, 0).received_bytes - before > 1000000);
  }
}

/* An MRC write from the same host at the same time, checked by the auditors. */
TEST(test_tcp_run__beside_writes) {
  SIM sim = open_slow(.audit = 1, .cc = MRC_CC_DELAY);
  CHECK_EQ(add_tcp(sim, .paths = 1), 0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 8), 1);
  CHECK_EQ(mrc_sim_run(sim, 3 * SECOND), 0);
  CHECK_EQ(info_of(sim, 1).completed, 8);
  CHECK(info_of(sim, 0).received_bytes > 10000000);
}

/* Two flows share the port of one host: neither MRC nor TCP keeps the other out. */
TEST(test_tcp_run__shares_the_port_of_its_host) {
  SIM sim = open_slow(.topology.host_rate_bps = 100 * MBIT, .cc = MRC_CC_NULL, .mpr = 128);
  CHECK_EQ(add_tcp(sim), 0);
  CHECK_EQ(add_flow(sim, .bytes = 1 << 20, .writes = 100), 1);
  CHECK_EQ(mrc_sim_run(sim, 2 * SECOND), 0);
  const uint64_t all = 2 * 100 * MBIT / 8;
  CHECK(info_of(sim, 0).received_bytes > all / 4);
  CHECK(info_of(sim, 1).received_bytes > all / 4);
}
