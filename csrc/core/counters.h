/* SPDX-License-Identifier: Apache-2.0 */
/* Names and numbers of the engine's counters and trace points, from their .def lists. */
#ifndef MRC_CORE_COUNTERS_H
#define MRC_CORE_COUNTERS_H

#include <stdbool.h>
#include <stdint.h>

#include "../mrc.h"

enum mrc_counter {
#define X(name, meaning) MRC_COUNTER_##name,
#include "counters.def"
#undef X
  MRC_COUNTERS
};

enum mrc_trace_point {
#define X(name, a, b) MRC_TRACE_##name,
#include "trace.def"
#undef X
  MRC_TRACE_POINTS
};

/* 0 past the end. */
const char *mrc_engine_counter_name(int index);

/* Whether what is placed for a QP counts as RX_RECORDED too; -ENOENT. */
int mrc_qp_record(mrc_engine *engine, uint32_t qpn, bool recorded);

/* The ports that EVs of any QP name, bit n - 1 for port n. */
uint32_t mrc_engine_ports_used(const mrc_engine *engine);

#endif
