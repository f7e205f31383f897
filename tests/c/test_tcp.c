/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/tcp.h"

#include <string.h>

#include "check.h"
#include "core/base.h"

#define MS 1000000ull
#define RTT_NS (50 * MS)
#define PIPE 4096

/* Sends the segments that the window allows; returns their number. */
static int send_all(struct mrc_tcp_sender *sender, uint64_t now_ns) {
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

TEST(test_on_ack__slow_start_doubles) {
  struct mrc_tcp_sender sender;
  mrc_tcp_sender_init(&sender);
  uint64_t acked = 0;
  for (int round = 0; round < 5; round++) {
    CHECK_ROW(round);
    const uint64_t sent_ns = (uint64_t)round * RTT_NS;
    CHECK_EQ(send_all(&sender, sent_ns), 10 << round);
    for (int i = 0; i < 10 << round; i++, acked++)
      ack(&sender, acked + 1, acked, sent_ns, sent_ns + RTT_NS);
  }
  CHECK_EQ(sender.rtt.smooth_ns, RTT_NS);
  mrc_tcp_sender_free(&sender);
}

/* When the port has no room, the window is not used up and does not grow. */
TEST(test_on_ack__grows_only_when_the_window_was_full) {
  struct mrc_tcp_sender sender;
  mrc_tcp_sender_init(&sender);
  CHECK(mrc_tcp_may_send(&sender));
  mrc_tcp_on_sent(&sender, 0);
  ack(&sender, 1, 0, 0, RTT_NS);
  CHECK_EQ(send_all(&sender, RTT_NS), 10);
  mrc_tcp_sender_free(&sender);
}

/* The first two of 40 segments are lost. */
TEST(test_on_ack__one_decrease_for_a_window_of_losses) {
  struct mrc_tcp_sender sender;
  mrc_tcp_sender_init(&sender);
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
  mrc_tcp_sender_free(&sender);
}

/* The first loss is retransmitted at once, though more is in flight than the new window allows. */
TEST(test_may_send__the_first_loss_at_once) {
  struct mrc_tcp_sender sender;
  mrc_tcp_sender_init(&sender);
  CHECK_EQ(send_all(&sender, 0), 10);
  sender.sent_ns[0] = 0;
  for (uint64_t i = 1; i < 10; i++)
    sender.sent_ns[i] = 40 * MS;
  ack(&sender, 0, 1, 40 * MS, 40 * MS + RTT_NS);
  CHECK_EQ(sender.losses, 1);
  CHECK(sender.in_flight > sender.cubic.cwnd);
  CHECK(mrc_tcp_may_send(&sender));
  CHECK_EQ(mrc_tcp_on_sent(&sender, 90 * MS), 0);
  CHECK(!mrc_tcp_may_send(&sender));
  mrc_tcp_sender_free(&sender);
}

/* After k = cbrt(max * 0.3 / 0.4) seconds the curve is back at `max`, and flat there. */
TEST(test_on_ack__the_curve_is_cubic) {
  struct mrc_tcp_sender sender;
  mrc_tcp_sender_init(&sender);
  sender.cubic = (struct mrc_cubic){.cwnd = 700, .ssthresh = 700, .max = 1000};
  uint64_t now_ns = 0, acked = 0;
  uint64_t trace = 0;             /* of all windows, to the bit: the same on every processor */
  double at_half_k = 0, at_k = 0; /* k is 9.09 s */
  while (now_ns < 9085 * MS) {
    const int sent = send_all(&sender, now_ns);
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
  mrc_tcp_sender_free(&sender);
}

TEST(test_on_timeout__all_again_from_one) {
  struct mrc_tcp_sender sender;
  mrc_tcp_sender_init(&sender);
  CHECK_EQ(send_all(&sender, 0), 10);
  CHECK_EQ(sender.deadline_ns, 1000 * MS); /* no round trip is known yet */
  mrc_tcp_on_timeout(&sender);
  CHECK_EQ(sender.deadline_ns, MRC_NEVER);
  CHECK_EQ(send_all(&sender, 1000 * MS), 1);
  CHECK_EQ(sender.deadline_ns, 3000 * MS); /* the second timeout is twice as long */
  CHECK_EQ(sender.again, 1);
  ack(&sender, 1, 0, 1000 * MS, 1050 * MS);
  CHECK_EQ(send_all(&sender, 1050 * MS), 2);
  CHECK_EQ(sender.again, 3);
  CHECK_EQ(sender.deadline_ns, 1050 * MS + RTT_NS + 200 * MS);
  mrc_tcp_sender_free(&sender);
}

TEST(test_receive__any_order_once) {
  static const struct {
    uint64_t segment;
    bool is_new;
    uint64_t expected;
  } rows[] = {{0, true, 1}, {2, true, 1}, {3, true, 1}, {2, false, 1}, {1, true, 4}, {0, false, 4}};
  struct mrc_tcp_receiver receiver;
  mrc_tcp_receiver_init(&receiver);
  for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_tcp_receive(&receiver, rows[i].segment), rows[i].is_new);
    CHECK_EQ(receiver.expected, rows[i].expected);
  }
  CHECK_EQ(receiver.repeated, 2);
  mrc_tcp_receiver_free(&receiver);
}

/* A link of one segment a millisecond, a buffer of `room` segments, a round trip of 50 ms. */
TEST(test_link__is_filled_and_nothing_is_missing) {
  static const uint32_t rooms[] = {20, 50, 100};
  for (int row = 0; row < 3; row++) {
    CHECK_ROW(row);
    struct mrc_tcp_sender sender;
    struct mrc_tcp_receiver receiver;
    static uint64_t queue[PIPE], queued_ns[PIPE];
    static struct mrc_tcp_ack acks[PIPE];
    uint64_t first = 0, last = 0; /* positions in the queue */
    mrc_tcp_sender_init(&sender);
    mrc_tcp_receiver_init(&receiver);
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
    mrc_tcp_sender_free(&sender);
    mrc_tcp_receiver_free(&receiver);
  }
}
