/* SPDX-License-Identifier: Apache-2.0 */
#include "core/order.h"

#include "check.h"

enum { PSNS = 64, EV = 3 };

static struct mrc_order order;

/* A window whose first packets left at these times on one EV; those of the bits are acknowledged.
 */
static struct mrc_txwin make_window(const uint64_t *sent_ns, uint32_t n, uint64_t acked) {
  struct mrc_txwin win;
  order = (struct mrc_order){0};
  CHECK_EQ(mrc_txwin_init(&win, PSNS, 1), 0);
  mrc_txwin_start(&win, 0);
  for (uint32_t psn = 0; psn < n; psn++) {
    CHECK_EQ(mrc_txwin_open(&win, 0, 100), psn);
    win.slots[psn].ev = EV;
    win.slots[psn].sent_ns = sent_ns[psn];
    win.slots[psn].state = (acked >> psn & 1) != 0 ? MRC_TX_ACKED : MRC_TX_INFLIGHT;
  }
  return win;
}

/* The first was sent again, after all others: it shows as lost what left between, and the second
   does not hide it. */
static void test_passed__by_the_newest_whatever_its_psn(void) {
  static const uint64_t sent_ns[] = {50, 10, 30, 60};
  struct mrc_txwin win = make_window(sent_ns, 4, 3);
  mrc_order_note(&order, &win, 0, 3);
  CHECK(mrc_order_passed(&order, &win, &win.slots[2]));
  CHECK(!mrc_order_passed(&order, &win, &win.slots[3]));
  mrc_txwin_free(&win);
}

/* What arrived of the original says nothing of the EV on which it was sent again. */
static void test_passed__not_by_an_original(void) {
  static const uint64_t sent_ns[] = {50, 10, 30};
  struct mrc_txwin win = make_window(sent_ns, 3, 3);
  win.slots[0].of_original = true;
  mrc_order_note(&order, &win, 0, 3);
  CHECK(!mrc_order_passed(&order, &win, &win.slots[2]));
  mrc_txwin_free(&win);
}

/* Each SACK stands for itself, and EVs have each their own order. */
static void test_passed__by_this_sack_and_on_this_ev(void) {
  static const uint64_t sent_ns[] = {50, 10, 30};
  struct mrc_txwin win = make_window(sent_ns, 3, 1);
  mrc_order_note(&order, &win, 0, 1);
  CHECK(mrc_order_passed(&order, &win, &win.slots[1]));
  win.slots[1].ev = EV + 1;
  CHECK(!mrc_order_passed(&order, &win, &win.slots[1]));
  win.slots[1].ev = EV;
  mrc_order_note(&order, &win, 0, 0);
  CHECK(!mrc_order_passed(&order, &win, &win.slots[1]));
  mrc_txwin_free(&win);
}

CHECK_MAIN(RUN(test_passed__by_the_newest_whatever_its_psn), RUN(test_passed__not_by_an_original),
           RUN(test_passed__by_this_sack_and_on_this_ev))
