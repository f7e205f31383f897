/* SPDX-License-Identifier: Apache-2.0 */
#include "core/paths.h"

#include "check.h"

enum { MS = 1000000 };

TEST(test_on_success__trust_needs_a_row) {
  struct mrc_probation p;
  mrc_probation_init(&p);
  CHECK_EQ(p.next_ns, MRC_NEVER);
  mrc_probation_on_failure(&p, MRC_NOISE_NS, 100 * MS);
  CHECK_EQ(p.next_ns, 102 * MS);
  mrc_probation_on_probe(&p);
  CHECK_EQ(p.next_ns, MRC_NEVER); /* one probe out at a time */
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 103 * MS));
  CHECK_EQ(p.next_ns, 105 * MS);
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 106 * MS));
  mrc_probation_on_timeout(&p, MRC_NOISE_NS,
                           110 * MS); /* a failure breaks the row and doubles the spacing */
  CHECK_EQ(p.next_ns, 114 * MS);
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 115 * MS));
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 117 * MS));
  CHECK(mrc_probation_on_success(&p, MRC_NOISE_NS, 119 * MS));
  CHECK_EQ(p.next_ns, MRC_NEVER);
}

TEST(test_on_timeout__spacing_doubles_to_a_limit) {
  static const uint64_t spacing_ms[] = {4, 8, 16, 32, 64, 64, 64};
  struct mrc_probation p;
  mrc_probation_init(&p);
  mrc_probation_on_failure(&p, MRC_NOISE_NS, 0);
  for (size_t i = 0; i < sizeof spacing_ms / sizeof spacing_ms[0]; i++) {
    CHECK_ROW(i);
    mrc_probation_on_timeout(&p, MRC_NOISE_NS, 0);
    CHECK_EQ(p.next_ns, spacing_ms[i] * MS);
  }
}

/* It fails repeatedly soon after it came back: each time it stays away twice as long. */
TEST(test_on_failure__relapses_double_the_wait) {
  struct mrc_probation p;
  uint64_t now_ns = 1000ull * MS;
  mrc_probation_init(&p);
  for (unsigned relapse = 0; relapse < 12; relapse++) {
    CHECK_ROW(relapse);
    const unsigned doublings = relapse < 9 ? relapse : 9;
    mrc_probation_on_failure(&p, MRC_NOISE_NS, now_ns);
    CHECK_EQ(p.next_ns - now_ns, (2ull * MS) << doublings);
    for (int i = 0; i < MRC_PROBATION_SUCCESSES; i++) {
      CHECK_EQ(mrc_probation_interval_ns(&p, MRC_NOISE_NS), (2ull * MS) << doublings);
      CHECK_EQ(mrc_probation_on_success(&p, MRC_NOISE_NS, now_ns),
               i == MRC_PROBATION_SUCCESSES - 1);
    }
    now_ns += MS;
  }
  now_ns += MRC_PROBATION_CALM_NS; /* long after the return, a failure is no relapse */
  mrc_probation_on_failure(&p, MRC_NOISE_NS, now_ns);
  CHECK_EQ(p.next_ns - now_ns, 2 * MS);
}

/* The cause of the failure has ended: probes begin at once, and three successes are needed at the
   spacing that the relapses set. */
TEST(test_on_mend__probes_begin_at_once) {
  struct mrc_probation p;
  mrc_probation_init(&p);
  mrc_probation_on_failure(&p, MRC_NOISE_NS, 0);
  for (int i = 0; i < 5; i++)
    mrc_probation_on_timeout(&p, MRC_NOISE_NS, 0);
  mrc_probation_on_probe(&p);
  mrc_probation_on_mend(&p, 7 * MS);
  CHECK_EQ(p.next_ns, 7 * MS);
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 8 * MS));
  CHECK_EQ(p.next_ns, 10 * MS);
  CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 10 * MS));
  CHECK(mrc_probation_on_success(&p, MRC_NOISE_NS, 12 * MS));
}

TEST(test_spacing__follows_the_noise_of_hosts) {
  const uint32_t noise_ns = 1000; /* the minimum that an engine accepts */
  struct mrc_probation p;
  mrc_probation_init(&p);
  mrc_probation_on_failure(&p, noise_ns, 0);
  CHECK_EQ(p.next_ns, 4000);
  mrc_probation_on_timeout(&p, noise_ns, 0);
  CHECK_EQ(p.next_ns, 8000);
  for (int i = 0; i < 20; i++)
    mrc_probation_on_timeout(&p, noise_ns, 0);
  CHECK_EQ(p.next_ns, 64 * MS); /* the wire is no faster, so the spacing stays */
}

/* A path that answers some probes and loses others, as when its MTU shrank: an answer brings the
   next probe soon, but the long spacing goes on after each loss. */
TEST(test_spacing__of_a_path_that_answers_now_and_then) {
  struct mrc_probation p;
  mrc_probation_init(&p);
  mrc_probation_on_failure(&p, MRC_NOISE_NS, 0);
  for (uint64_t spacing_ms = 4; spacing_ms < 200; spacing_ms *= 2) {
    CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 0));
    CHECK(!mrc_probation_on_success(&p, MRC_NOISE_NS, 0));
    CHECK_EQ(p.next_ns, 2 * MS);
    CHECK(!mrc_probation_is_in_doubt(&p));
    mrc_probation_on_timeout(&p, MRC_NOISE_NS, 0);
    CHECK(mrc_probation_is_in_doubt(&p));
    CHECK_EQ(p.next_ns, mrc_min_u64(spacing_ms, 64) * MS);
  }
}
