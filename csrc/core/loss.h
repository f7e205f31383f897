/* SPDX-License-Identifier: Apache-2.0 */
/* One packet is lost, or was wrongly taken for lost: what that means for the window, the EV, the
   plane and congestion control. Which packets are lost is decided in detect.c and timeout.c. */
#ifndef MRC_CORE_LOSS_H
#define MRC_CORE_LOSS_H

#include "qp.h"

/* Choices of ours: floors below which scheduling noise of a host would look like loss. */
#define MRC_LOSS_REORDER_FLOOR_NS 500000ull  /* spread of send times on one plane */
#define MRC_LOSS_SILENCE_FLOOR_NS 5000000ull /* a plane must be silent for so long */

/* Takes one packet for lost; `why` is one of the LOST_BY counters. */
void mrc_loss_mark(struct mrc_services *services, struct mrc_qp *qp, uint32_t psn,
                   enum mrc_counter why, uint64_t now_ns);
/* A packet taken for lost had arrived after all. */
void mrc_loss_on_spurious(struct mrc_services *services, struct mrc_qp *qp,
                          const struct mrc_txslot *slot, uint32_t psn);

#endif
