/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which packets are lost while others arrive: by send order on an EV, by time on a plane,
   or because a plane is silent. */
#pragma once

#include "core/qp.h"

#define MRC_LOSS_SKEW 32   /* a plane never heard from may take up to 32 times the others' RTT */
#define MRC_LOSS_STRIKES 3 /* bursts lost in a row after which a plane counts as silent */

/* Loss by order: checks the holes that a SACK shows. The evidence must be in the same SACK, because
   SACKs travel on several planes and an older SACK may arrive after a newer one. */
void mrc_detect_holes(struct mrc_services *services, struct mrc_qp *qp, uint32_t base,
                      uint64_t bitmap, uint64_t now_ns);
/* Loss by time and by silence on every plane. Call it only after all input has been processed. */
void mrc_detect_planes(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* When a plane counts as silent that has not delivered `oldest`, its oldest packet in flight: a
   packet that leaves on another plane from then on, and arrives, proves it. */
uint64_t mrc_detect_silent_ns(const struct mrc_qp *qp, const struct mrc_txslot *oldest,
                              uint64_t now_ns);
/* Whether mrc_detect_planes would find a lost or late packet. */
bool mrc_detect_is_due(const struct mrc_qp *qp, uint64_t now_ns);
