/* SPDX-License-Identifier: Apache-2.0 */
/* The congestion windows of a QP: which planes have one, and what acknowledgements change. */
#pragma once

#include "core/qp.h"

/* The QP moves to RTS, with a window of `psns`. Each plane has its own window. With NSCC and equal
   shares, the QP has one window, as in MRC. 0 or -EINVAL (a profile out of range). */
int mrc_windows_start(struct mrc_qp *qp, uint32_t psns) MRC_MUST_CHECK;
/* An acknowledgement was handled. `ack` has its data on one plane; newly_acked_bytes of each plane
   has the bytes that it newly acknowledged. */
void mrc_windows_on_ack(struct mrc_services *services, struct mrc_qp *qp, struct mrc_cc_ack *ack,
                        uint64_t now_ns);
