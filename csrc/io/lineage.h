/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this process opened an object itself, or inherited it from its parent by fork. A child
   has no datapath thread, and shares every descriptor with its parent. */
#pragma once

#include "core/base.h"

/* The number of this process for mrc_lineage_is_own; no ancestor has the same number. 0: no memory.
   The first call must not run concurrently with another. */
uint64_t mrc_lineage_own(void) MRC_MUST_CHECK;
/* Whether the calling process has this number. Costs one load and no system call. */
bool mrc_lineage_is_own(uint64_t number);
