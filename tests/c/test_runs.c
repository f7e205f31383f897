/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/process.h"

#include "check.h"

#define MS 1000000ull

TEST(since__the_first_look_if_no_other_is_late) {
  struct pr_runs runs = {0};
  for (uint64_t now_ns = 5000 * MS; now_ns <= 5300 * MS; now_ns += 50 * MS)
    CHECK_EQ(pr_runs_since(&runs, now_ns), 5000 * MS);
}

TEST(since__a_late_look_comes_after_a_stop) {
  struct pr_runs runs = {0};
  CHECK_EQ(pr_runs_since(&runs, 5000 * MS), 5000 * MS);
  CHECK_EQ(pr_runs_since(&runs, 5100 * MS), 5000 * MS);
  CHECK_EQ(pr_runs_since(&runs, 5301 * MS), 5301 * MS);
  CHECK_EQ(pr_runs_since(&runs, 5351 * MS), 5301 * MS);
}
