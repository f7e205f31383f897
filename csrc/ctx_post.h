/* SPDX-License-Identifier: Apache-2.0 */
/* The shortest way of a work request, for C programs that drive a polled context themselves. */
#pragma once

#include "mrc.h"

/* Posts a work request at once, before commands that wait. `idle`: nothing of the QP may be
   outstanding, so its timers begin now; else the time of the last turn does. 0, or -errno as in the
   reply to a refused MRC_COMMAND_QP_POST. */
int mrc_ctx_post(mrc_ctx *ctx, uint32_t qpn, const struct mrc_wr *wr, bool idle);
