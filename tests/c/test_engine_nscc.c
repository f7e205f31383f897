/* SPDX-License-Identifier: Apache-2.0 */
/* NSCC in engines that share a slow link: the link is busy, the queue short, the shares fair. */
#include "core/cc.h"
#include "core/engine.h"
#include "pair/connect.h"
#include "scenario.h"

#define RATE 500000000ull
#define BASE_RTT (400 * US)
#define QUEUE_BYTES(ns) ((ns) * RATE / 8 / SECOND)

static const struct mrc_cc_profile profile = {.link_bps = RATE, .base_rtt_ns = BASE_RTT};

/* Two hosts send to a third over its bottleneck link, which marks packets that wait longer than
   half of the target. */
static struct mrc_pair *open_incast(void) {
  return open_pair(.hosts = 3, .paths = 2, .path.delay_ns = BASE_RTT / 2 - 20 * US,
                   .port_in = {.rate_bps = RATE, .ecn_bytes = QUEUE_BYTES(BASE_RTT * 3 / 8)});
}

static int open_sender(struct mrc_pair *p, int from) {
  const int end = open_qp(p, .from = from, .to = 2, .memory_bytes = 32u << 20, .cc = MRC_CC_NSCC,
                          .cc_profile = profile);
  for (int i = 0; i < 32; i++)
    CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
  return end;
}

/* The bytes that two ends delivered in a period, and the bottleneck's average queue. */
struct outcome {
  uint64_t bytes[2];
  uint64_t queue_bytes;
};

static struct outcome watch(struct mrc_pair *p, const int *ends, uint64_t ns) {
  struct outcome outcome = {0};
  for (int i = 0; i < 2; i++)
    outcome.bytes[i] = 0 - mrc_pair_info(p, ends[i]).acknowledged_bytes;
  uint64_t looks = 0;
  for (const uint64_t end_ns = p->now_ns + ns; p->now_ns < end_ns; looks++) {
    run_for(p, 100 * US);
    outcome.queue_bytes += mrc_link_backlog(&p->port_in[2][0], p->now_ns);
  }
  outcome.queue_bytes /= looks;
  for (int i = 0; i < 2; i++)
    outcome.bytes[i] += mrc_pair_info(p, ends[i]).acknowledged_bytes;
  return outcome;
}

/* Jain's index of two shares, in thousandths. */
static uint64_t jain(const uint64_t bytes[2]) {
  const uint64_t a = bytes[0] / 1024, b = bytes[1] / 1024;
  return (a + b) * (a + b) * 1000 / (2 * (a * a + b * b));
}

/* 91% is the share of payloads of 1024 bytes after headers. */
static void check_busy(const struct outcome *outcome, uint64_t ns) {
  CHECK(outcome->bytes[0] + outcome->bytes[1] > QUEUE_BYTES(ns) * 90 / 100);
  CHECK(outcome->queue_bytes < QUEUE_BYTES(BASE_RTT * 3 / 4 + 100 * US));
}

TEST(test_nscc__two_senders_share_a_link) {
  struct mrc_pair *p = open_incast();
  const int ends[2] = {open_sender(p, 0), open_sender(p, 1)};
  run_for(p, 20 * MS);
  const struct outcome outcome = watch(p, ends, 100 * MS);
  CHECK(jain(outcome.bytes) >= 950);
  check_busy(&outcome, 100 * MS);
  CHECK_EQ(retransmitted(p, ends[0]) + retransmitted(p, ends[1]), 0);
  mrc_pair_destroy(p);
}

/* The second QP never sees an empty queue: the configured base RTT lets it measure the queue. */
TEST(test_nscc__a_latecomer_gets_its_share) {
  struct mrc_pair *p = open_incast();
  int ends[2] = {open_sender(p, 0)};
  run_for(p, 30 * MS);
  ends[1] = open_sender(p, 1);
  run_for(p, 50 * MS);
  const struct outcome outcome = watch(p, ends, 100 * MS);
  CHECK(jain(outcome.bytes) >= 950);
  check_busy(&outcome, 100 * MS);
  mrc_pair_destroy(p);
}

/* A short queue trims: the requester retransmits trimmed packets at once and blames no path, even
   when the headers of a whole window arrive at once. */
TEST(test_nscc__trims_are_no_failures) {
  for (uint64_t faster = 0; faster <= 8; faster += 8) {
    CHECK_ROW(faster);
    struct mrc_pair *p =
        open_pair(.hosts = 3, .paths = 2, .path.delay_ns = BASE_RTT / 2 - 20 * US,
                  .port_out.rate_bps = faster * RATE, /* 0: no limit */
                  .port_in = {
                      .rate_bps = RATE, .queue_bytes = QUEUE_BYTES(BASE_RTT / 2), .trim = true});
    const int ends[2] = {open_sender(p, 0), open_sender(p, 1)};
    const struct outcome outcome = watch(p, ends, 100 * MS);
    CHECK(outcome.bytes[0] + outcome.bytes[1] > QUEUE_BYTES(100 * MS) * 80 / 100);
    for (int host = 0; host < 2; host++) {
      CHECK(counter(p, host, MRC_COUNTER_LOST_BY_NACK) > 0);
      CHECK_EQ(counter(p, host, MRC_COUNTER_EVS_BAD), 0);
      CHECK_EQ(counter(p, host, MRC_COUNTER_TIMEOUTS), 0);
    }
    mrc_pair_destroy(p);
  }
}

/* Four paths of one plane; the caller sets what each path does to packets. */
static struct mrc_pair *open_paths(int *end) {
  struct mrc_pair *p = open_pair(.paths = 4, .engine.noise_ns = 2000,
                                 .port_out = {.rate_bps = 100 * RATE}, .path.rate_bps = 100 * RATE);
  *end = open_qp(p, .memory_bytes = 8u << 20, .spray = 1, .cc = MRC_CC_NSCC, .probe = true,
                 .cc_profile = {.link_bps = 100 * RATE, .base_rtt_ns = 20 * US});
  return p;
}

/* One path has a twentieth of the others' rate: packets in its queue are late, not lost. */
TEST(test_nscc__late_is_not_lost) {
  int end;
  struct mrc_pair *p = open_paths(&end);
  mrc_pair_path(p, 0, 1, 1, 2)->config.rate_bps = 5 * RATE;
  CHECK_EQ(mrc_pair_write(p, end, 4u << 20), 0);
  CHECK(mrc_pair_finish(p, 5 * MS)); /* 0.7 ms by the others alone; 3.4 ms with equal turns */
  CHECK_EQ(retransmitted(p, end), 0);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_LOST_BY_TIME), 0);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_EVS_BAD), 0);
  const struct mrc_ev_info slow = mrc_pair_ev(p, end, 1, 2), other = mrc_pair_ev(p, end, 1, 1);
  CHECK(slow.sent_packets < other.sent_packets / 4);
  mrc_pair_destroy(p);
}

/* A path that is silent, or loses one packet of five, is detected as on a fabric without trimming.
 */
TEST(test_nscc__lost_is_not_late) {
  for (int silent = 0; silent < 2; silent++) {
    CHECK_ROW(silent);
    int end;
    struct mrc_pair *p = open_paths(&end);
    CHECK_EQ(mrc_pair_write(p, end, 4u << 20), 0);
    run_for(p, 200 * US);
    struct mrc_link *path = mrc_pair_path(p, 0, 1, 1, 2);
    path->config.silent = silent;
    path->config.loss_mask = 0x1084210842108421;
    run_for(p, 400 * US); /* twenty round trips */
    CHECK_EQ(mrc_pair_ev(p, end, 1, 2).state, MRC_EV_ASSUMED_BAD);
    CHECK(mrc_pair_finish(p, 5 * MS));
    CHECK_EQ(mrc_pair_info(p, end).spurious_packets, 0);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 0);
    mrc_pair_destroy(p);
  }
}

/* The window is below the bytes after which the receiver sends a SACK: the requester requests one.
 */
TEST(test_nscc__small_windows_do_not_wait_for_the_sack_timer) {
  struct mrc_pair *p = open_pair(.path.delay_ns = 10 * US);
  const int end = open_qp(p, .memory_bytes = 256 * MTU, .cc = MRC_CC_NSCC,
                          .cc_profile = {.base_rtt_ns = 20 * US, .max_cwnd = 2 * MTU});
  CHECK_EQ(mrc_pair_write(p, end, 256 * MTU), 0);
  CHECK(mrc_pair_finish(p, 128 * 25 * US)); /* two packets a round trip, and no delay of 200 us */
  mrc_pair_destroy(p);
}

/* The largest window of a profile covers all planes together, however they share the load. */
TEST(test_nscc__the_largest_window_is_of_all_planes) {
  enum { LARGEST = 64 * MTU };
  for (int shares = MRC_SHARES_MEASURED; shares <= MRC_SHARES_EQUAL; shares++) {
    CHECK_ROW(shares);
    struct mrc_pair *p = open_pair(.planes = 4, .path.delay_ns = 500 * US);
    const int end = open_qp(p, .memory_bytes = 4u << 20, .cc = MRC_CC_NSCC, .probe = true,
                            .plane_shares = (uint8_t)shares, .cc_profile.max_cwnd = LARGEST);
    CHECK_EQ(mrc_pair_write(p, end, 4u << 20), 0);
    for (int i = 0; i < 20; i++) {
      run_for(p, MS);
      CHECK(mrc_pair_info(p, end).inflight_bytes <= LARGEST);
      CHECK(mrc_pair_info(p, end).inflight_bytes >= LARGEST / 2);
    }
    mrc_pair_destroy(p);
  }
}
