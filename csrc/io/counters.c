/* SPDX-License-Identifier: Apache-2.0 */
#include "io/counters.h"

#include "core/counters.h"
#include "core/query.h"

static const char *const names[MRC_IO_COUNTERS] = {
#define X(name, meaning) [MRC_IO_##name] = #name,
#include "io/io_counters.def"
#undef X
};

int mrc_counters_read(const mrc_engine *engine, const struct mrc_udp *udp, uint64_t *values,
                      int capacity) {
  int n = mrc_engine_counters(engine, values, capacity);
  for (int i = 0; i < MRC_IO_COUNTERS; i++, n++)
    if (n < capacity) values[n] = udp->counters[i];
  return n;
}

const char *mrc_counter_name(int index) {
  if (index < MRC_COUNTERS) return mrc_engine_counter_name(index);
  return index - MRC_COUNTERS < MRC_IO_COUNTERS ? names[index - MRC_COUNTERS] : NULL;
}
