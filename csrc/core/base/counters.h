/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the engine's counters (counters.def), trace points (trace.def) and drop reasons of
   received packets (drops.def; MRC_DROP_NONE: the packet was accepted). */
#pragma once

enum mrc_counter {
#define X(name, meaning) MRC_COUNTER_##name,
#include "counters.def"
#undef X
  MRC_COUNTERS
};

enum mrc_drop {
  MRC_DROP_NONE,
#define X(name, meaning) MRC_DROP_##name,
#include "drops.def"
#undef X
  MRC_DROP_COUNT
};

enum mrc_trace_point {
#define X(name, a, b) MRC_TRACE_##name,
#include "trace.def"
#undef X
  MRC_TRACE_POINTS
};
