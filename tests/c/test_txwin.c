/* SPDX-License-Identifier: Apache-2.0 */
#include "core/windows.h"

#include "check.h"

enum { FIRST = 0xFFFFFE, MTU = 1000 };

/* A window of 8 PSNs. The first n are opened and sent: PSN i at time i + 1 on EV i, plane i % 2. */
static struct mrc_txwin sent_window(uint32_t n) {
  struct mrc_txwin win;
  CHECK_EQ(mrc_txwin_init(&win, 8, 2), 0);
  mrc_txwin_start(&win, FIRST);
  for (uint32_t i = 0; i < n; i++)
    CHECK_EQ(mrc_txwin_open(&win, 0, MTU), mrc_psn_add(FIRST, i));
  for (uint32_t i = 0; i < n; i++)
    mrc_txwin_on_send(&win, mrc_txwin_first_tosend(&win), (uint16_t)i, i % 2, i + 1);
  return win;
}

static struct mrc_txslot slot_of(const struct mrc_txwin *win, uint32_t i) {
  return *mrc_txwin_slot(win, mrc_psn_add(FIRST, i));
}

TEST(test_open__is_unsent_until_sent) {
  struct mrc_txwin win = sent_window(0);
  CHECK_EQ(mrc_txwin_outstanding(&win), 0);
  CHECK(!mrc_txwin_holds(&win, FIRST));
  CHECK_EQ(mrc_txwin_open(&win, 5, MTU), FIRST);
  CHECK_EQ(slot_of(&win, 0).state, MRC_TX_UNSENT);
  CHECK_EQ(slot_of(&win, 0).wqe, 5);
  CHECK_EQ(win.n_tosend, 1);
  CHECK_EQ(win.inflight_bytes, 0);
  mrc_txwin_on_send(&win, FIRST, 3, 1, 77);
  CHECK_EQ(slot_of(&win, 0).state, MRC_TX_INFLIGHT);
  CHECK_EQ(slot_of(&win, 0).tries, 1);
  CHECK_EQ(slot_of(&win, 0).sent_ns, 77);
  CHECK_EQ(win.n_tosend, 0);
  CHECK_EQ(win.inflight_bytes, MTU);
  CHECK_EQ(win.lists[1].bytes, MTU);
  CHECK_EQ(win.lists[0].bytes, 0);
  mrc_txwin_free(&win);
}

TEST(test_on_refused__takes_the_sending_back) {
  struct mrc_txwin win = sent_window(2);
  mrc_txwin_on_refused(&win, FIRST);
  CHECK_EQ(slot_of(&win, 0).state, MRC_TX_UNSENT); /* never sent: no retransmission later */
  CHECK_EQ(slot_of(&win, 0).tries, 0);
  CHECK_EQ(win.inflight_bytes, MTU);
  CHECK_EQ(mrc_txwin_first_tosend(&win), FIRST); /* it is still the first to send */
  mrc_txwin_on_lost(&win, mrc_psn_add(FIRST, 1));
  mrc_txwin_on_send(&win, mrc_psn_add(FIRST, 1), 5, 0, 9);
  mrc_txwin_on_refused(&win, mrc_psn_add(FIRST, 1));
  CHECK_EQ(slot_of(&win, 1).state, MRC_TX_LOST); /* was sent before */
  CHECK_EQ(slot_of(&win, 1).ev_lost, 1);
  mrc_txwin_free(&win);
}

/* The number of tries saturates: a packet sent many times still counts as sent more than once. */
TEST(test_on_send__tries_saturate) {
  struct mrc_txwin win = sent_window(1);
  for (uint32_t tries = 2; tries < 3 * MRC_TX_MAX_TRIES; tries++) {
    mrc_txwin_on_lost(&win, FIRST);
    mrc_txwin_on_send(&win, FIRST, 0, 0, tries);
    CHECK_EQ(slot_of(&win, 0).tries, mrc_min_u32(tries, MRC_TX_MAX_TRIES));
  }
  mrc_txwin_free(&win);
}

TEST(test_on_lost__is_sent_again_oldest_first) {
  struct mrc_txwin win = sent_window(4);
  mrc_txwin_on_lost(&win, mrc_psn_add(FIRST, 3));
  mrc_txwin_on_lost(&win, mrc_psn_add(FIRST, 1));
  CHECK_EQ(win.n_tosend, 2);
  CHECK_EQ(win.inflight_bytes, 2 * MTU);
  CHECK_EQ(win.lists[1].bytes, 0);
  CHECK_EQ(win.lists[1].oldest, MRC_TX_NONE);
  CHECK_EQ(win.lists[1].newest, MRC_TX_NONE);
  CHECK_EQ(mrc_txwin_first_tosend(&win), mrc_psn_add(FIRST, 1));
  CHECK_EQ(slot_of(&win, 1).ev_lost, 1);
  mrc_txwin_on_send(&win, mrc_psn_add(FIRST, 1), 7, 0, 9);
  CHECK_EQ(slot_of(&win, 1).tries, 2);
  CHECK_EQ(slot_of(&win, 1).ev, 7);
  CHECK_EQ(win.lists[0].bytes, 3 * MTU);
  CHECK_EQ(mrc_txwin_psn_of(&win, win.lists[0].newest), mrc_psn_add(FIRST, 1));
  CHECK_EQ(mrc_txwin_psn_of(&win, win.lists[0].oldest), FIRST);
  CHECK_EQ(mrc_txwin_first_tosend(&win), mrc_psn_add(FIRST, 3));
  mrc_txwin_free(&win);
}

/* PSNs 0 to 3 are sent, 2 is lost; acknowledgements in this order, and the counts after each. */
TEST(test_on_acked__truth_table) {
  static const struct {
    uint32_t psn;
    enum mrc_tx_state before;
    uint32_t una, n_tosend, inflight;
  } rows[] = {
      {1, MRC_TX_INFLIGHT, 0, 1, 2 * MTU},
      {1, MRC_TX_ACKED, 0, 1, 2 * MTU}, /* again: nothing changes */
      {2, MRC_TX_LOST, 0, 0, 2 * MTU},  /* it had arrived after all */
      {0, MRC_TX_INFLIGHT, 3, 0, MTU},  /* the window moves over all three */
      {3, MRC_TX_INFLIGHT, 4, 0, 0},
  };
  struct mrc_txwin win = sent_window(4);
  mrc_txwin_on_lost(&win, mrc_psn_add(FIRST, 2));
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    CHECK_EQ(mrc_txwin_on_acked(&win, mrc_psn_add(FIRST, rows[i].psn)), rows[i].before);
    CHECK_EQ(win.una_psn, mrc_psn_add(FIRST, rows[i].una));
    CHECK_EQ(win.n_tosend, rows[i].n_tosend);
    CHECK_EQ(win.inflight_bytes, rows[i].inflight);
    CHECK_EQ(win.lists[0].bytes + win.lists[1].bytes, rows[i].inflight);
  }
  CHECK(!mrc_txwin_holds(&win, FIRST));
  mrc_txwin_free(&win);
}

TEST(test_clear__forgets_all_but_the_next_psn) {
  struct mrc_txwin win = sent_window(4);
  mrc_txwin_on_lost(&win, FIRST);
  mrc_txwin_clear(&win);
  CHECK_EQ(mrc_txwin_outstanding(&win), 0);
  CHECK_EQ(win.inflight_bytes, 0);
  CHECK_EQ(win.n_tosend, 0);
  CHECK_EQ(mrc_txwin_open(&win, 0, 1), mrc_psn_add(FIRST, 4));
  mrc_txwin_free(&win);
}

TEST(test_after__is_by_time_then_by_order) {
  struct mrc_txwin win = sent_window(0);
  win.next_order = UINT16_MAX; /* wraps between the first and the second */
  for (uint32_t i = 0; i < 3; i++) {
    CHECK_EQ(mrc_txwin_open(&win, 0, MTU), mrc_psn_add(FIRST, i));
    mrc_txwin_on_send(&win, mrc_psn_add(FIRST, i), 0, 0, i / 2);
  }
  win.next_order += 1 << 15; /* half of all orders were used in the meantime */
  CHECK_EQ(mrc_txwin_open(&win, 0, MTU), mrc_psn_add(FIRST, 3));
  mrc_txwin_on_send(&win, mrc_psn_add(FIRST, 3), 0, 0, 2);
  for (uint32_t a = 0; a < 4; a++)
    for (uint32_t b = 0; b < 4; b++) {
      const struct mrc_txslot slots[] = {slot_of(&win, a), slot_of(&win, b)};
      CHECK_EQ(mrc_txslot_after(&slots[0], &slots[1]), a > b);
    }
  mrc_txwin_free(&win);
}
