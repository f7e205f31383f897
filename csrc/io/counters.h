/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of engine and driver as one list, the engine's first. It owns none of them. */
#ifndef MRC_IO_COUNTERS_H
#define MRC_IO_COUNTERS_H

#include "io/udp.h"

/* Returns the number of counters and fills up to `capacity`; mrc_counter_name names them. */
int mrc_counters_read(const mrc_engine *engine, const struct mrc_udp *udp, uint64_t *values,
                      int capacity);

#endif
