/* SPDX-License-Identifier: Apache-2.0 */
/* The effect of one lost packet, or of one wrongly declared lost, on the window, the EV, the plane
   and congestion control. detect.c and timeout.c decide which packets are lost. */
#ifndef MRC_CORE_LOSS_H
#define MRC_CORE_LOSS_H

#include "core/qp/qp.h"

/* Minimum times, our choice: below them the scheduling noise of a host would look like loss. */
#define MRC_LOSS_REORDER_FLOOR_NS 500000ull  /* minimum spread of one plane */
#define MRC_LOSS_SILENCE_FLOOR_NS 5000000ull /* minimum silence of a plane */

/* Declares one packet lost; `why` is one of the LOST_BY counters. */
void mrc_loss_mark(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn,
                   enum mrc_counter why, uint64_t now_ns);
/* A packet was declared lost, but its original arrived. */
void mrc_loss_on_spurious(struct mrc_services *services, struct mrc_qp *qp,
                          const struct mrc_txslot *slot, uint32_t psn);

#endif
