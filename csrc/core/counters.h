/* SPDX-License-Identifier: Apache-2.0 */
/* Names and numbers of the engine's counters, from counters.def. */
#ifndef MRC_CORE_COUNTERS_H
#define MRC_CORE_COUNTERS_H

enum mrc_counter {
#define X(name, meaning) MRC_COUNTER_##name,
#include "counters.def"
#undef X
  MRC_COUNTERS
};

#endif
