/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/gbn.h"

#include "check.h"
#include "core/base.h"

#define US 1000ull

static struct mrc_gbn_sender open_sender(uint32_t window) {
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

static int send_all(struct mrc_gbn_sender *sender, uint64_t now_ns) {
  int n = 0;
  while (mrc_gbn_may_send(sender)) {
    mrc_gbn_on_sent(sender, now_ns);
    n++;
  }
  return n;
}

TEST(test_receive__takes_in_order_only) {
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
  for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
    CHECK_ROW(i);
    receiver.ack_due = receiver.nak_due = false;
    CHECK_EQ(mrc_gbn_receive(&receiver, rows[i].psn, i == 3), rows[i].taken);
    CHECK_EQ(receiver.ack_due, rows[i].ack_due);
    CHECK_EQ(receiver.nak_due, rows[i].nak_due);
    CHECK_EQ(receiver.expected, rows[i].expected);
    CHECK_EQ(receiver.ce, i >= 3);
  }
  CHECK_EQ(receiver.repeated, 1);
}

TEST(test_receive__psns_wrap) {
  struct mrc_gbn_receiver receiver = {.expected = MRC_PSN_MASK};
  CHECK(mrc_gbn_receive(&receiver, MRC_PSN_MASK, false));
  CHECK(mrc_gbn_receive(&receiver, 0, false));
  CHECK(!mrc_gbn_receive(&receiver, MRC_PSN_MASK, false));
  CHECK_EQ(receiver.expected, MRC_PSN_MASK + 2ull);
}

TEST(test_answer__opens_the_window) {
  struct mrc_gbn_sender sender = open_sender(8);
  CHECK_EQ(send_all(&sender, 0), 8);
  mrc_gbn_on_answer(&sender, 3, false, false, 10 * US);
  CHECK_EQ(send_all(&sender, 10 * US), 3);
  CHECK_EQ(sender.rtt.smooth_ns, 10 * US);
  CHECK_EQ(sender.deadline_ns, 110 * US);
  mrc_gbn_on_answer(&sender, 12, false, false, 20 * US); /* never sent */
  CHECK_EQ(sender.unacked, 3);
  mrc_gbn_on_answer(&sender, 11, false, false, 20 * US);
  CHECK_EQ(sender.deadline_ns, MRC_NEVER);
  mrc_gbn_sender_free(&sender);
}

TEST(test_answer__nak_goes_back) {
  struct mrc_gbn_sender sender = open_sender(8);
  send_all(&sender, 0);
  mrc_gbn_on_answer(&sender, 2, true, false, 10 * US);
  CHECK_EQ(sender.next, 2);
  CHECK_EQ(send_all(&sender, 10 * US), 8);
  CHECK_EQ(sender.again, 6); /* 2 to 7; 8 and 9 leave for the first time */
  CHECK_EQ(sender.went_back, 1);
  sender.rtt = (struct mrc_rtt){0};
  mrc_gbn_on_answer(&sender, 5, false, false, 20 * US);
  CHECK_EQ(sender.rtt.smooth_ns, 0); /* it is unknown which copy was answered */
  mrc_gbn_sender_free(&sender);
}

/* The sender went back after a timeout although all packets had arrived: the next answer moves it
   forward again. */
TEST(test_answer__after_going_back_too_far) {
  struct mrc_gbn_sender sender = open_sender(8);
  send_all(&sender, 0);
  CHECK(mrc_gbn_on_timeout(&sender));
  CHECK_EQ(sender.next, 0);
  mrc_gbn_on_answer(&sender, 8, false, false, 110 * US);
  CHECK_EQ(sender.next, 8);
  CHECK_EQ(sender.deadline_ns, MRC_NEVER);
  mrc_gbn_sender_free(&sender);
}

TEST(test_timeout__ends_after_the_last_retry) {
  struct mrc_gbn_sender sender = open_sender(8);
  for (uint64_t now_ns = 0; now_ns < 200 * US; now_ns += 100 * US) {
    CHECK_EQ(send_all(&sender, now_ns), 8);
    CHECK_EQ(sender.deadline_ns, now_ns + 100 * US);
    CHECK(mrc_gbn_on_timeout(&sender));
    CHECK_EQ(sender.deadline_ns, MRC_NEVER);
  }
  send_all(&sender, 200 * US);
  CHECK(!mrc_gbn_on_timeout(&sender));
  mrc_gbn_sender_free(&sender);
}
