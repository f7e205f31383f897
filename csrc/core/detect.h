/* SPDX-License-Identifier: Apache-2.0 */
/* Which packets are lost while others arrive: by send order on an EV, by time on a plane, by a
   plane's silence. */
#ifndef MRC_CORE_DETECT_H
#define MRC_CORE_DETECT_H

#include "qp.h"

#define MRC_LOSS_SKEW 32   /* a plane never heard may be so many times as long as those that were */
#define MRC_LOSS_STRIKES 3 /* bursts in a row that make a plane silent */

/* The holes that a SACK shows, against the order on their EVs. What proves a loss must stand in the
   same SACK: SACKs travel on several planes, and an old one knows less than a newer one that came
   first. */
void mrc_detect_holes(struct mrc_services *services, struct mrc_qp *qp, uint32_t base,
                      uint64_t bitmap, uint64_t now_ns);
/* Loss by time and by silence on every plane. To be called only when everything that has come in
   was taken. */
void mrc_detect_planes(struct mrc_services *services, struct mrc_qp *qp, uint64_t now_ns);
/* Whether that would find anything. */
bool mrc_detect_is_due(const struct mrc_qp *qp, uint64_t now_ns);

#endif
