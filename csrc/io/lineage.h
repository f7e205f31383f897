/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this process opened something itself, or inherited it from the process that forked it. A
   child has no datapath thread, and shares every descriptor with its parent. */
#ifndef MRC_IO_LINEAGE_H
#define MRC_IO_LINEAGE_H

#include "core/base.h"

/* The number of this process, never 0 and unlike those of the processes that it descends from; for
   mrc_lineage_is_own. 0 without memory. The first call must not race with another. */
uint64_t mrc_lineage_own(void) MRC_MUST_CHECK;
/* Whether the process with this number is the one that asks. A load; no system call. */
bool mrc_lineage_is_own(uint64_t number);

#endif
