/* SPDX-License-Identifier: Apache-2.0 */
/* For how long this process has run without a stop: SIGSTOP, or no core. During a stop packets wait
   in its sockets, so the time proves nothing about a peer. */
#pragma once

#include <stdint.h>

#define PR_STOP_NS 100000000ull /* between two looks */

struct pr_runs {
  uint64_t looked_ns, since_ns; /* of the last look; when the last stop has ended */
};

/* A look. Returns since when the process runs. */
static inline uint64_t pr_runs_since(struct pr_runs *runs, uint64_t now_ns) {
  if (now_ns - runs->looked_ns > PR_STOP_NS) runs->since_ns = now_ns;
  runs->looked_ns = now_ns;
  return runs->since_ns;
}
