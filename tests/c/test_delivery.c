/* SPDX-License-Identifier: Apache-2.0 */
/* Flights on one plane, acknowledgement by acknowledgement. */
#include "core/paths.h"

#include "scenario.h"

#define KIB 1024u

static const struct mrc_rtt RTT = {.smooth_ns = 2 * MS, .base_ns = 2 * MS};

/* A flight of `n` acknowledgements of 16 KiB, all sent at `began_ns`: the first comes `first_ns`
   later, each other one `gap_ns` after the one before. Returns the time of the last. */
static uint64_t fly(struct mrc_delivery *delivery, uint64_t began_ns, int n, uint64_t first_ns,
                    uint64_t gap_ns) {
  mrc_delivery_on_flight(delivery, began_ns);
  for (int i = 0; i < n; i++)
    mrc_delivery_on_ack(delivery, 16 * KIB, began_ns, &RTT, began_ns + first_ns + i * gap_ns);
  return began_ns + first_ns + (n - 1) * gap_ns;
}

/* The next flight closes the books of the last one. */
static uint64_t takes_ns(struct mrc_delivery *delivery, uint64_t now_ns) {
  mrc_delivery_on_flight(delivery, now_ns);
  return mrc_delivery_takes_ns(delivery);
}

TEST(test_rate__of_what_comes_after_the_first_answer) {
  struct mrc_delivery delivery = {0};
  const uint64_t end_ns = fly(&delivery, SECOND, 11, 2 * MS, MS);
  CHECK_EQ(mrc_delivery_takes_ns(&delivery), 16 * MS); /* 160 KiB are enough while it lasts */
  CHECK_EQ(takes_ns(&delivery, end_ns), 16 * MS);
}

TEST(test_rate__a_delay_is_no_rate) {
  struct mrc_delivery delivery = {0};
  fly(&delivery, SECOND, 16, 9 * MS, 0);
  CHECK_EQ(takes_ns(&delivery, 2 * SECOND), 0);
}

/* Packets that leave one by one are answered one by one: no queue grew. */
TEST(test_rate__nothing_to_send_is_no_rate) {
  struct mrc_delivery delivery = {0};
  mrc_delivery_on_flight(&delivery, SECOND);
  for (uint64_t at = SECOND; at < SECOND + 13 * MS; at += MS)
    mrc_delivery_on_ack(&delivery, 16 * KIB, at, &RTT, at + 2 * MS);
  CHECK_EQ(takes_ns(&delivery, 2 * SECOND), 0);
}

TEST(test_rate__short_flights_tell_nothing_alone) {
  struct mrc_delivery delivery = {0};
  fly(&delivery, SECOND, 2, 2 * MS, 5 * MS);
  CHECK_EQ(takes_ns(&delivery, 2 * SECOND), 0);
}

/* Slower counts at once, faster bit by bit, and never faster than it was measured. */
TEST(test_rate__faster_bit_by_bit) {
  struct mrc_delivery delivery = {0};
  uint64_t now_ns = fly(&delivery, SECOND, 11, 2 * MS, MS), before_ns = 16 * MS;
  for (int i = 0; i < 8; i++) {
    now_ns = fly(&delivery, now_ns + MS, 16, 4 * MS, 0);
    const uint64_t now_takes_ns = takes_ns(&delivery, now_ns);
    CHECK(now_takes_ns < before_ns && now_takes_ns >= before_ns * 3 / 4);
    before_ns = now_takes_ns;
  }
  CHECK(before_ns >= 2 * MS && before_ns < 4 * MS); /* 256 KiB took 2 ms more than the base RTT */
  now_ns = fly(&delivery, now_ns + MS, 11, 2 * MS, MS);
  CHECK(takes_ns(&delivery, now_ns) > 12 * MS);
}

/* Short flights count together, so a plane that carries little is not slow for ever. */
TEST(test_rate__short_flights_together_show_that_it_is_faster) {
  struct mrc_delivery delivery = {0};
  uint64_t now_ns = fly(&delivery, SECOND, 11, 2 * MS, MS);
  for (int i = 0; i < 3; i++)
    now_ns = fly(&delivery, now_ns + MS, 1, 2 * MS + MS / 2, 0);
  const uint64_t after_ns = takes_ns(&delivery, now_ns);
  CHECK(after_ns < 16 * MS && after_ns >= 14 * MS);
}

/* A flight that never ends is measured in parts. */
TEST(test_rate__long_flights_in_parts) {
  struct mrc_delivery delivery = {0};
  fly(&delivery, SECOND, 17, 2 * MS, MS); /* 18 ms are more than 8 round trips */
  CHECK(delivery.is_part);
  CHECK_EQ(delivery.takes_ns, 16 * MS);
  CHECK(!mrc_delivery_began_with(&delivery, delivery.began_ns));
}

/* While packets wait that are then sent again elsewhere, the plane is as slow as what arrives. */
TEST(test_late__counts_once_something_arrived) {
  struct mrc_delivery delivery = {0};
  mrc_delivery_on_flight(&delivery, SECOND);
  mrc_delivery_on_late(&delivery, 256 * KIB, SECOND + 9 * MS);
  CHECK_EQ(mrc_delivery_takes_ns(&delivery), 0);
  fly(&delivery, 2 * SECOND, 1, 2 * MS, 0);
  mrc_delivery_on_late(&delivery, 256 * KIB, 2 * SECOND + 12 * MS);
  CHECK_EQ(mrc_delivery_takes_ns(&delivery), 160 * MS); /* in 10 ms less than one step of 16 KiB */
}

static void lose(struct mrc_delivery *delivery, int n, uint64_t *now_ns) {
  for (int i = 0; i < n; i++, *now_ns += 3 * MS)
    mrc_delivery_on_lost(delivery, *now_ns, &RTT);
}

TEST(test_loss__lossy_and_well_again) {
  struct mrc_delivery delivery = {0};
  uint64_t now_ns = SECOND;
  lose(&delivery, 2, &now_ns);
  CHECK(!mrc_delivery_is_lossy(&delivery)); /* two may be chance */
  lose(&delivery, 1, &now_ns);
  CHECK(mrc_delivery_is_lossy(&delivery));
  for (int i = 0; i < 16; i++)
    mrc_delivery_on_arrived(&delivery);
  CHECK(!mrc_delivery_is_lossy(&delivery));
}

/* One overflow loses many bursts. */
TEST(test_loss__once_a_round_trip) {
  struct mrc_delivery delivery = {0};
  for (uint64_t at = SECOND; at <= SECOND + RTT.smooth_ns; at += MS / 8)
    mrc_delivery_on_lost(&delivery, at, &RTT);
  CHECK(!mrc_delivery_is_lossy(&delivery));
}

TEST(test_loss__spurious_ones_are_taken_back) {
  struct mrc_delivery delivery = {0};
  uint64_t now_ns = SECOND;
  lose(&delivery, 3, &now_ns);
  for (int i = 0; i < 3; i++)
    mrc_delivery_on_spurious(&delivery);
  CHECK_EQ(delivery.losses, 0);
}

TEST(test_forget__once_in_a_while) {
  struct mrc_delivery delivery = {0};
  uint64_t now_ns = fly(&delivery, SECOND, 11, 2 * MS, MS);
  lose(&delivery, 9, &now_ns);
  takes_ns(&delivery, now_ns);
  const uint64_t began_ns = now_ns;
  mrc_delivery_forget(&delivery, SECOND, began_ns + SECOND - 1);
  CHECK_EQ(delivery.takes_ns, 16 * MS);
  mrc_delivery_forget(&delivery, SECOND, began_ns + SECOND);
  mrc_delivery_forget(&delivery, SECOND, began_ns + SECOND + MS);
  CHECK_EQ(delivery.takes_ns, 8 * MS);
  CHECK(!mrc_delivery_is_lossy(&delivery));
  mrc_delivery_on_lost(&delivery, began_ns + 2 * SECOND, &RTT);
  CHECK(mrc_delivery_is_lossy(&delivery));
}
