/* SPDX-License-Identifier: Apache-2.0 */
#include "order.h"

/* What a SACK shows of an original says nothing about the EV on which that packet was sent again.
 */
void mrc_order_note(struct mrc_order *order, const struct mrc_txwin *win, uint32_t base,
                    uint64_t bitmap) {
  order->serial++;
  for (uint64_t bits = bitmap; bits != 0; bits &= bits - 1) {
    const uint32_t psn = mrc_psn_add(base, (uint32_t)__builtin_ctzll(bits));
    if (!mrc_txwin_holds(win, psn)) continue;
    const struct mrc_txslot *slot = mrc_txwin_slot(win, psn);
    if (slot->state != MRC_TX_ACKED || slot->of_original) continue;
    struct mrc_newest *newest = &order->newest[slot->ev];
    if (newest->serial == order->serial && !mrc_txslot_after(slot, &win->slots[newest->slot]))
      continue;
    *newest = (struct mrc_newest){.serial = order->serial, .slot = (uint16_t)(slot - win->slots)};
  }
}

bool mrc_order_passed(const struct mrc_order *order, const struct mrc_txwin *win,
                      const struct mrc_txslot *slot) {
  const struct mrc_newest *newest = &order->newest[slot->ev];
  return newest->serial == order->serial && mrc_txslot_after(&win->slots[newest->slot], slot);
}
