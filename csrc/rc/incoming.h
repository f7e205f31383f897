/* SPDX-License-Identifier: Apache-2.0 */
/* What comes from the peer: immediates, and frames of records. */
#pragma once

#include "rc/state.h"

/* Takes an immediate. False: the peer broke the protocol. */
bool mrc_rc_take(struct mrc_rc *rc, uint32_t imm, uint32_t bytes) MRC_MUST_CHECK;
