/* SPDX-License-Identifier: Apache-2.0 */
/* When the program last drove the engine. The helper thread reads it without the lock. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

struct pr_polled {
  _Atomic uint64_t ns; /* 0: the program waits, and the helper drives */
};

static inline uint64_t pr_polled_ns(const struct pr_polled *polled) {
  return atomic_load_explicit(&polled->ns, memory_order_relaxed);
}

static inline void pr_polled_set(struct pr_polled *polled, uint64_t ns) {
  atomic_store_explicit(&polled->ns, ns, memory_order_relaxed);
}
