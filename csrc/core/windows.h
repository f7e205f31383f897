/* SPDX-License-Identifier: Apache-2.0 */
/* The congestion windows of a QP: who has one, and what an acknowledgement means for each. */
#ifndef MRC_CORE_WINDOWS_H
#define MRC_CORE_WINDOWS_H

#include "qp.h"

/* The QP moves to RTS, with a window of `psns`. Each plane has a window of its own; with equal
   shares NSCC has one for the QP, as MRC has it. 0 or -EINVAL (a profile out of range). */
int mrc_windows_start(struct mrc_qp *qp, uint32_t psns) MRC_MUST_CHECK;
/* An acknowledgement was taken: `ack` has what it says of one plane, each plane has what was newly
   acknowledged there. */
void mrc_windows_on_ack(struct mrc_services *services, struct mrc_qp *qp, struct mrc_cc_ack *ack,
                        uint64_t now_ns);

#endif
