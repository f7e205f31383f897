/* SPDX-License-Identifier: Apache-2.0 */
/* The histogram of the benchmarks: percentiles of known samples, over its whole range. */
#include "../../bench/job.h"

#include "check.h"

static struct latency latency;

static void add(uint64_t ns, int times) {
  for (int i = 0; i < times; i++)
    latency_add(&latency, ns);
}

TEST(test_bucket_of__known_to_four_in_a_thousand) {
  for (uint64_t ns = 1; ns < 1ull << 46; ns += 1 + ns / 7) {
    uint64_t shown = latency_ns_of(latency_bucket_of(ns));
    CHECK((shown > ns ? shown - ns : ns - shown) * 256 <= ns);
  }
}

TEST(test_bucket_of__neighbours_do_not_overlap) {
  for (uint32_t bucket = 1; bucket < LATENCY_BUCKETS; bucket++) {
    CHECK(latency_ns_of(bucket) > latency_ns_of(bucket - 1));
    CHECK_EQ(latency_bucket_of(latency_ns_of(bucket)), bucket);
  }
  CHECK_EQ(latency_bucket_of(UINT64_MAX), LATENCY_BUCKETS - 1);
}

TEST(test_at__ranks) {
  CHECK_EQ(latency_at(&latency, 500), 0);
  add(10, 500);
  add(20, 490);
  add(200, 9);
  add(250, 1);
  CHECK_EQ(latency_at(&latency, 0), 10);
  CHECK_EQ(latency_at(&latency, 500), 10);
  CHECK_EQ(latency_at(&latency, 501), 20);
  CHECK_EQ(latency_at(&latency, 990), 20);
  CHECK_EQ(latency_at(&latency, 999), 200);
  CHECK_EQ(latency_at(&latency, 1000), 250);
}
