/* SPDX-License-Identifier: Apache-2.0 */
/* A context for an extension of the datapath, from any thread; and which process may use one. */
#pragma once

#include "io/datapath.h"

/* The state of the extension; NULL in a child of fork, where the parent's thread may have left it
   in any state. */
void *mrc_ctx_extension(mrc_ctx *ctx);
/* Wakes the thread to read its rings, and what was posted. Has no effect when polled. */
void mrc_ctx_wake(mrc_ctx *ctx);

/* Whether this process opened an object itself, or inherited it from its parent by fork. A child
   has no datapath thread, and shares every descriptor with its parent. */

/* The number of this process for mrc_lineage_is_own; no ancestor has the same number. 0: no memory.
   The first call must not run concurrently with another. */
uint64_t mrc_lineage_own(void) MRC_MUST_CHECK;
/* Whether the calling process has this number. Costs one load and no system call. */
bool mrc_lineage_is_own(uint64_t number);
