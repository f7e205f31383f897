/* SPDX-License-Identifier: Apache-2.0 */
/* What goes to the peer: WRITEs, frames of records, credits. */
#pragma once

#include "rc/state.h"

/* Sends what can be sent. */
void mrc_rc_send(struct mrc_rc *rc);
/* Sends something in any case, so that the engine finds out whether the peer still acknowledges. */
void mrc_rc_prod(struct mrc_rc *rc);
/* A work request has completed. */
void mrc_rc_sent(struct mrc_rc *rc, uint64_t wr_id);
/* Ends requests in their order, as far as they are done. */
void mrc_rc_settle(struct mrc_rc *rc);
