/* SPDX-License-Identifier: Apache-2.0 */
/* The order of packets on each EV, as the SACK at hand shows it. Paths are FIFO: what left on an EV
   before something that arrived is lost. */
#ifndef MRC_CORE_ORDER_H
#define MRC_CORE_ORDER_H

#include "txwin.h"

/* The newest packet on an EV that a SACK shows as received. */
struct mrc_newest {
  uint32_t serial; /* of that SACK */
  uint16_t slot;   /* in the send window */
};

struct mrc_order {
  uint32_t serial;                       /* of the SACK at hand */
  struct mrc_newest newest[MRC_MAX_EVS]; /* by index of the EV */
};

/* Notes the newest packet of each EV among those that this SACK shows as received. */
void mrc_order_note(struct mrc_order *order, const struct mrc_txwin *win, uint32_t base,
                    uint64_t bitmap);
/* Whether one of those left after this packet, on the same EV. */
bool mrc_order_passed(const struct mrc_order *order, const struct mrc_txwin *win,
                      const struct mrc_txslot *slot);

#endif
