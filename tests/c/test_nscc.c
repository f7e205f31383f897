/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stddef.h>

#include "check.h"
#include "core/cc.h"
#include "core/engine.h"
#include "pair/connect.h"
#include "scenario.h"

/* ---- the algorithm ---- */

/* NSCC in tables. Most tests use a link of 10 Gbit/s and a base RTT of 100 us: BDP 125000 bytes,
   a = 5/6, target 75 us. */

enum { PACKET = 4096, BASE = 100000, TARGET = 75000, MAX = 187500 };
#define PSN_WINDOW (16ull << 20)
#define START 1000000000ull /* any time that is not 0 */

static struct mrc_cc_config config_of(struct mrc_cc_profile profile) {
  return (struct mrc_cc_config){.kind = MRC_CC_NSCC,
                                .mtu_bytes = PACKET,
                                .max_bytes = PSN_WINDOW,
                                .planes = 1,
                                .profile = profile};
}

/* All defaults except this window. The first period starts at START; nothing happens before its
   end. */
static struct mrc_cc with_window(uint64_t cwnd_bytes) {
  struct mrc_cc cc;
  const struct mrc_cc_config config = config_of((struct mrc_cc_profile){0});
  CHECK_EQ(mrc_cc_init(&cc, &config), 0);
  cc.cwnd_bytes = cwnd_bytes;
  cc.nscc.adjusted_ns = START;
  return cc;
}

static struct mrc_cc_ack ack_of(uint64_t bytes, uint64_t delay_ns, bool ce) {
  return (struct mrc_cc_ack){.bytes = bytes,
                             .inflight_bytes = 100000,
                             .rtt_ns = BASE + delay_ns,
                             .base_rtt_ns = BASE,
                             .smooth_rtt_ns = BASE + delay_ns,
                             .ce = ce};
}

static void acked(struct mrc_cc *cc, uint64_t bytes, uint64_t delay_ns, bool ce, uint64_t now_ns) {
  const struct mrc_cc_ack ack = ack_of(bytes, delay_ns, ce);
  mrc_cc_on_ack(cc, &ack, now_ns);
}

static void lost(struct mrc_cc *cc, uint8_t cause, uint64_t now_ns) {
  mrc_cc_on_loss(
      cc, &(struct mrc_cc_loss){.cause = cause, .bytes = PACKET, .inflight_bytes = 90000}, now_ns);
}

/* ---- parameters ---- */

TEST(test_init__defaults_from_base_rtt_and_rate) {
  static const struct {
    uint64_t link_bps, base_rtt_ns;
    uint32_t planes, mtu;
    uint64_t max_cwnd, target_ns, alpha, fi, eta;
    uint32_t fi_scale;
  } rows[] = {
      {0, 0, 1, 4096, 187500, 75000, 85333, 17065, 511, 208333},
      /* the network of the UET specification: a = 1, b = 0.75 */
      {100000000000, 12000, 1, 4096, 225000, 9000, 12288, 20480, 614, 250000},
      {100000000000, 12000, 8, 4096, 1800000, 9000, 98304, 163840, 4915, 2000000},
      {500000000, 400000, 1, 1024, 37500, 300000, 17066, 850, 25, 41666},
  };
  EACH_ROW(i, rows) {
    struct mrc_cc_config config = config_of(
        (struct mrc_cc_profile){.link_bps = rows[i].link_bps, .base_rtt_ns = rows[i].base_rtt_ns});
    config.planes = rows[i].planes;
    config.mtu_bytes = rows[i].mtu;
    struct mrc_cc cc;
    CHECK_EQ(mrc_cc_init(&cc, &config), 0);
    const struct mrc_cc_profile *p = &cc.nscc.profile;
    CHECK_EQ(p->max_cwnd, rows[i].max_cwnd);
    CHECK_EQ(cc.max_bytes, rows[i].max_cwnd);
    CHECK_EQ(cc.cwnd_bytes, rows[i].max_cwnd);
    CHECK_EQ(cc.min_bytes, rows[i].mtu);
    CHECK_EQ(p->target_delay_ns, rows[i].target_ns);
    CHECK_EQ(cc.nscc.alpha, rows[i].alpha);
    CHECK_EQ(p->fi, rows[i].fi);
    CHECK_EQ(p->eta, rows[i].eta);
    CHECK_EQ(p->fi_scale, rows[i].fi_scale);
    CHECK_EQ(p->gamma, 800000);
    CHECK_EQ(p->max_md_jump, 500000);
    CHECK_EQ(p->adjust_period_threshold_ns, p->base_rtt_ns);
    CHECK_EQ(p->adjust_bytes_threshold, 8 * rows[i].mtu);
    CHECK_EQ(p->qa_gate, 3);
    CHECK_EQ(p->qa_threshold_ns, 4 * rows[i].target_ns);
    CHECK_EQ(p->md_threshold_ns, rows[i].target_ns * 11 / 10);
  }
}

TEST(test_init__keeps_what_is_given) {
  const struct mrc_cc_profile given = {.link_bps = 1000000000,
                                       .base_rtt_ns = 50 * US,
                                       .target_delay_ns = 20 * US,
                                       .max_cwnd = 50000,
                                       .fi = 11,
                                       .eta = 12,
                                       .adjust_period_threshold_ns = 13,
                                       .adjust_bytes_threshold = 14,
                                       .qa_threshold_ns = 21 * US,
                                       .md_threshold_ns = 22 * US,
                                       .qa_gate = 2,
                                       .fi_scale = 15,
                                       .gamma = 16,
                                       .max_md_jump = 17,
                                       .disable_qa = 1};
  struct mrc_cc cc;
  const struct mrc_cc_config config = config_of(given);
  CHECK_EQ(mrc_cc_init(&cc, &config), 0);
  CHECK_MEM_EQ(&cc.nscc.profile, &given, sizeof given);
  CHECK_EQ(cc.cwnd_bytes, 50000);
}

TEST(test_init__the_psn_window_bounds_all_steps) {
  struct mrc_cc cc;
  struct mrc_cc_config config = config_of((struct mrc_cc_profile){
      .link_bps = MRC_CC_MAX_BPS, .base_rtt_ns = MRC_CC_MAX_NS, .fi = MRC_CC_MAX_BYTES});
  config.planes = MRC_MAX_PORTS;
  CHECK_EQ(mrc_cc_init(&cc, &config), 0);
  CHECK_EQ(cc.cwnd_bytes, PSN_WINDOW);
  CHECK_EQ(cc.nscc.alpha, PSN_WINDOW);
  CHECK_EQ(cc.nscc.profile.fi, PSN_WINDOW);
  CHECK_EQ(cc.nscc.profile.eta, PSN_WINDOW);
  CHECK_EQ(cc.nscc.profile.fi_scale, MRC_CC_MAX_FI_SCALE);
}

TEST(test_init__refuses) {
  static const struct mrc_cc_profile rows[] = {
      {.link_bps = MRC_CC_MAX_BPS + 1},
      {.base_rtt_ns = MRC_CC_MIN_BASE_RTT_NS - 1},
      {.base_rtt_ns = MRC_CC_MAX_NS + 1},
      {.target_delay_ns = MRC_CC_MAX_NS + 1},
      {.adjust_period_threshold_ns = MRC_CC_MAX_NS + 1},
      {.qa_threshold_ns = MRC_CC_MAX_NS + 1},
      {.qa_threshold_ns = TARGET - 1}, /* below the target */
      {.md_threshold_ns = MRC_CC_MAX_NS + 1},
      {.md_threshold_ns = TARGET - 1}, /* below the target */
      {.max_cwnd = MRC_CC_MAX_BYTES + 1},
      {.max_cwnd = PACKET - 1},
      {.fi = MRC_CC_MAX_BYTES + 1},
      {.eta = MRC_CC_MAX_BYTES + 1},
      {.adjust_bytes_threshold = MRC_CC_MAX_BYTES + 1},
      {.fi_scale = MRC_CC_MAX_FI_SCALE + 1},
      {.gamma = MRC_CC_UNIT + 1},
      {.max_md_jump = MRC_CC_UNIT + 1},
      {.qa_gate = MRC_CC_MAX_QA_GATE + 1},
      {.disable_qa = 2},
  };
  EACH_ROW(i, rows) {
    struct mrc_cc cc;
    const struct mrc_cc_config config = config_of(rows[i]);
    CHECK_EQ(mrc_cc_init(&cc, &config), -EINVAL);
  }
}

TEST(test_init__takes_the_largest_values) {
  static const struct mrc_cc_profile rows[] = {
      {.link_bps = MRC_CC_MAX_BPS},
      {.base_rtt_ns = MRC_CC_MIN_BASE_RTT_NS},
      {.base_rtt_ns = MRC_CC_MAX_NS},
      {.target_delay_ns = MRC_CC_MAX_NS,
       .qa_threshold_ns = MRC_CC_MAX_NS,
       .md_threshold_ns = MRC_CC_MAX_NS},
      {.adjust_period_threshold_ns = MRC_CC_MAX_NS},
      {.qa_threshold_ns = TARGET, .md_threshold_ns = TARGET},
      {.max_cwnd = MRC_CC_MAX_BYTES},
      {.max_cwnd = PACKET},
      {.fi = MRC_CC_MAX_BYTES},
      {.eta = MRC_CC_MAX_BYTES},
      {.adjust_bytes_threshold = MRC_CC_MAX_BYTES},
      {.fi_scale = MRC_CC_MAX_FI_SCALE},
      {.gamma = MRC_CC_UNIT},
      {.max_md_jump = MRC_CC_UNIT},
      {.qa_gate = MRC_CC_MAX_QA_GATE},
      {.disable_qa = 1},
  };
  EACH_ROW(i, rows) {
    struct mrc_cc cc;
    const struct mrc_cc_config config = config_of(rows[i]);
    CHECK_EQ(mrc_cc_init(&cc, &config), 0);
  }
}

/* ---- the four cases ---- */

/* A window of 100000 bytes, partly acknowledged: the window at the end of the period in each of the
   four cases, eta of 511 bytes included. The average delay is 150 us, twice the target. */
TEST(test_on_ack__four_cases) {
  static const struct {
    uint64_t delay_ns;
    bool ce;
    uint64_t bytes;
    uint64_t cwnd_bytes;
  } rows[] = {
      {20 * US, false, 50000, 100000 + 511 + 62577 / 2}, /* alpha (75 - 20) / 75 = 62577 */
      {TARGET - 1, false, 50000, 100000 + 511},          /* the increase is nearly zero */
      {TARGET, false, 50000, 100000 + 511 + 17065 / 2},  /* fair increase: fi */
      {82500, false, 50000, 100000 + 511 + 17065 / 2},   /* the same for all delays of this case */
      {82501, false, 4096, 60226 + 511 + 232},           /* as if marked, and fi / 5 */
      {0, true, 50000, 100000 + 511},                    /* unchanged */
      {TARGET - 1, true, 50000, 100000 + 511},           /* unchanged */
      {150 * US, true, 4096, 60000 + 511},               /* 1 - 0.8 (150 - 75) / 150 = 0.6 */
  };
  EACH_ROW(i, rows) {
    struct mrc_cc cc = with_window(100000);
    cc.nscc.avg_delay_ns = 150 * US;
    cc.nscc.profile.disable_qa = 1;
    acked(&cc, rows[i].bytes, rows[i].delay_ns, rows[i].ce, START + BASE);
    CHECK_EQ(cc.cwnd_bytes, rows[i].cwnd_bytes);
  }
}

TEST(test_on_ack__without_a_sample_the_average_stands_in) {
  struct mrc_cc cc = with_window(100000);
  cc.nscc.avg_delay_ns = 80 * US;
  mrc_cc_on_ack(&cc, &(struct mrc_cc_ack){.bytes = 50000, .inflight_bytes = 100000}, START + BASE);
  CHECK_EQ(cc.cwnd_bytes, 100000 + 511 + 17065 / 2);
  CHECK_EQ(cc.nscc.avg_delay_ns, 80 * US);
}

TEST(test_on_ack__fast_increase_after_a_calm_window) {
  const uint64_t step = PACKET * 208333ull / 1000000;
  struct mrc_cc cc = with_window(16 * PACKET);
  cc.nscc.alpha = 0; /* disables the proportional increase */
  for (int i = 0; i < 15; i++)
    acked(&cc, PACKET, 0, false, START);
  CHECK_EQ(cc.cwnd_bytes, 16 * PACKET);
  acked(&cc, PACKET, 0, false, START);
  CHECK_EQ(cc.cwnd_bytes, 16 * PACKET + step);
  acked(&cc, PACKET, 8 * US, false, START); /* below base RTT / 12: counts as no delay */
  CHECK_EQ(cc.cwnd_bytes, 16 * PACKET + 2 * step);
  acked(&cc, PACKET, 10 * US, false, START); /* ends the calm period */
  CHECK_EQ(cc.nscc.calm_bytes, 0);
  acked(&cc, PACKET, 0, true, START);
  CHECK_EQ(cc.nscc.calm_bytes, 0);
}

/* The average may be old: only a sample shows that the calm has ended. */
TEST(test_on_ack__calm_lasts_without_a_sample) {
  struct mrc_cc cc = with_window(16 * PACKET);
  cc.nscc.avg_delay_ns = 80 * US;
  const struct mrc_cc_ack ack = {.bytes = PACKET, .inflight_bytes = 100000};
  mrc_cc_on_ack(&cc, &ack, START);
  CHECK_EQ(cc.nscc.calm_bytes, 0);
  acked(&cc, PACKET, 0, false, START);
  mrc_cc_on_ack(&cc, &ack, START);
  CHECK_EQ(cc.nscc.calm_bytes, 2 * PACKET);
}

TEST(test_on_ack__fast_increase_in_place_of_the_proportional) {
  struct mrc_cc cc = with_window(16 * PACKET);
  acked(&cc, 2 * PACKET, 0, false, START);
  const uint64_t gathered = cc.nscc.gathered;
  CHECK(gathered > 0);
  cc.nscc.calm_bytes = cc.max_bytes;
  acked(&cc, PACKET, 0, false, START);
  CHECK_EQ(cc.nscc.gathered, gathered);
}

TEST(test_on_ack__grows_to_the_largest_window_only) {
  struct mrc_cc cc = with_window(MAX - 1000);
  for (uint64_t i = 1; i < 100; i++)
    acked(&cc, 20 * PACKET, 0, false, START + i * BASE);
  CHECK_EQ(cc.cwnd_bytes, MAX);
}

/* An increase takes effect after 8 PACKET, or at the end of the period, which also adds eta. */
TEST(test_adjust__by_bytes_and_by_time) {
  struct mrc_cc cc = with_window(100000);
  acked(&cc, 7 * PACKET, TARGET, false, START + 1);
  CHECK_EQ(cc.cwnd_bytes, 100000);
  acked(&cc, PACKET, TARGET, false, START + 2);
  CHECK_EQ(cc.cwnd_bytes, 100000 + 17065 * 32768ull / 100000);
  const uint64_t before = cc.cwnd_bytes;
  acked(&cc, PACKET, TARGET, false, START + BASE);
  CHECK_EQ(cc.cwnd_bytes, before + 17065ull * PACKET / before + 511);
  acked(&cc, PACKET, TARGET, false, START + BASE + 1);
  CHECK_EQ(cc.cwnd_bytes, before + 17065ull * PACKET / before + 511);
}

/* A SACK for n packets counts as n samples of weight 1/80. */
TEST(test_average__by_packets) {
  struct mrc_cc cc = with_window(100000);
  acked(&cc, PACKET, 80 * US, false, START);
  CHECK_EQ(cc.nscc.avg_delay_ns, 1 * US);
  cc = with_window(100000);
  acked(&cc, 20 * PACKET, 99 * US, false, START);
  CHECK_EQ(cc.nscc.avg_delay_ns, 20 * US);
  cc = with_window(100000);
  acked(&cc, 100, 80 * US, false, START); /* a part of a packet counts as one */
  CHECK_EQ(cc.nscc.avg_delay_ns, 1 * US);
}

/* ---- decrease ---- */

TEST(test_decrease__once_in_a_base_rtt) {
  struct mrc_cc cc = with_window(100000);
  cc.nscc.profile.disable_qa = 1;
  cc.nscc.avg_delay_ns = 150 * US;
  acked(&cc, 0, 150 * US, true, START);
  CHECK_EQ(cc.cwnd_bytes, 60000);
  acked(&cc, 0, 150 * US, true, START + BASE - 1);
  CHECK_EQ(cc.cwnd_bytes, 60000);
  acked(&cc, 0, 150 * US, true, START + BASE);
  CHECK_EQ(cc.cwnd_bytes, 36000 + 511);
}

/* A decrease by delay alone happens once per round trip, the delay included. */
TEST(test_decrease__by_delay_once_in_a_round_trip) {
  struct mrc_cc cc = with_window(100000);
  cc.nscc.profile.disable_qa = 1;
  cc.nscc.avg_delay_ns = 400 * US;
  acked(&cc, 0, 400 * US, false, START);
  CHECK_EQ(cc.cwnd_bytes, 50000);
  cc.nscc.adjusted_ns = START + 2 * BASE;
  acked(&cc, 0, 400 * US, false, START + BASE + 400 * US - 1);
  CHECK(cc.cwnd_bytes >= 50000);
  cc.cwnd_bytes = 50000;
  acked(&cc, 0, 400 * US, false, START + BASE + 400 * US);
  CHECK_EQ(cc.cwnd_bytes, 25000);
}

TEST(test_decrease__only_when_the_average_is_high_too) {
  struct mrc_cc cc = with_window(100000);
  cc.nscc.profile.disable_qa = 1;
  cc.nscc.avg_delay_ns = TARGET - 2 * US;
  acked(&cc, 0, 150 * US, true, START); /* moves the average by 1/80 of the difference */
  CHECK_EQ(cc.cwnd_bytes, 100000);
  for (int i = 1; cc.nscc.avg_delay_ns <= TARGET; i++)
    acked(&cc, 0, 150 * US, true, START + (uint64_t)i);
  CHECK(cc.cwnd_bytes < 100000 && cc.cwnd_bytes > 98000); /* delay is just above target */
}

TEST(test_decrease__bounded) {
  struct mrc_cc cc = with_window(100000);
  cc.nscc.profile.disable_qa = 1;
  cc.nscc.avg_delay_ns = 100 * TARGET;
  acked(&cc, 0, 100 * TARGET, true, START);
  CHECK_EQ(cc.cwnd_bytes, 50000); /* max_md_jump */
  for (uint64_t i = 1; i < 20; i++) {
    cc.nscc.adjusted_ns = START + i * BASE;
    acked(&cc, 0, 100 * TARGET, true, START + i * BASE);
  }
  CHECK_EQ(cc.cwnd_bytes, PACKET);
}

/* ---- losses and trims ---- */

TEST(test_on_loss__costs_the_packet) {
  static const uint8_t causes[] = {MRC_CC_LOSS_PATH, MRC_CC_LOSS_OVERFLOW, MRC_CC_LOSS_TRIMMED};
  EACH_OF(size_t, i, 0, sizeof causes) {
    struct mrc_cc cc = with_window(100000);
    lost(&cc, causes[i], START);
    CHECK_EQ(cc.cwnd_bytes, 100000 - PACKET);
    /* A trim was evaluated at once; a failed path is no congestion. */
    CHECK(cc.nscc.qa_armed == (causes[i] == MRC_CC_LOSS_OVERFLOW));
    /* A trim stands for a delay of one base RTT. */
    CHECK_EQ(cc.nscc.avg_delay_ns, causes[i] == MRC_CC_LOSS_TRIMMED ? BASE / 80 : 0);
    for (int k = 0; k < 30; k++)
      lost(&cc, causes[i], START);
    CHECK_EQ(cc.cwnd_bytes, PACKET);
  }
}

/* Where there is no queue, nothing overflows: the path failed. */
TEST(test_on_loss__without_a_queue_costs_nothing) {
  struct mrc_cc cc = with_window(100000);
  acked(&cc, PACKET, 0, false, START);
  for (int k = 0; k < 30; k++)
    lost(&cc, MRC_CC_LOSS_PATH, START);
  CHECK_EQ(cc.cwnd_bytes, 100000);
  CHECK_EQ(cc.nscc.calm_bytes, PACKET);
  lost(&cc, MRC_CC_LOSS_OVERFLOW, START);
  CHECK_EQ(cc.cwnd_bytes, 100000 - PACKET);
  acked(&cc, PACKET, 0, false, START);
  acked(&cc, PACKET, 10 * US, false, START); /* a queue */
  lost(&cc, MRC_CC_LOSS_PATH, START);
  CHECK_EQ(cc.cwnd_bytes, 100000 - 2 * PACKET);
}

/* ---- quick adapt ---- */

/* One period of BASE + TARGET in which `achieved` bytes arrive, then an acknowledgement or a trim
   at its end. The gate is at MAX >> 3 = 23437 bytes. */
TEST(test_quick_adapt__fires_or_not) {
  static const struct {
    uint64_t achieved;
    uint64_t last_delay_ns;
    uint64_t at_ns;
    bool loss_before, trim_at_end, disabled;
    bool fires;
  } rows[] = {
      {20000, 301 * US, BASE + 301 * US, false, false, false, true},
      {20000, 300 * US, BASE + 301 * US, false, false, false, false},     /* the threshold itself */
      {20000, 301 * US, BASE + 301 * US - 1, false, false, false, false}, /* round trip not over */
      {20000, 301 * US, BASE + TARGET, true, false, false, true},         /* a loss suffices */
      {20000, 301 * US, BASE + TARGET - 1, true, false, false, false},    /* too early */
      {20000, 301 * US, BASE + 301 * US, false, false, true, false},
      {24000, 301 * US, BASE + 301 * US, false, false, false, false}, /* enough arrived */
      {20000, 0, BASE + TARGET, true, false, false, true},
      {20000, 0, BASE + TARGET, false, true, false, true},
      {24000, 0, BASE + TARGET, false, true, false, false},
      {100, 0, BASE + TARGET, true, false, false, true}, /* but not below one PACKET */
  };
  EACH_ROW(i, rows) {
    struct mrc_cc cc = with_window(MAX);
    cc.nscc.profile.disable_qa = rows[i].disabled;
    acked(&cc, 0, 0, false, START); /* the first period begins */
    if (rows[i].loss_before) lost(&cc, MRC_CC_LOSS_OVERFLOW, START + 1);
    const uint64_t last_bytes = rows[i].trim_at_end ? 0 : 100;
    acked(&cc, rows[i].achieved - last_bytes, 80 * US, false, START + 2);
    const uint64_t before = cc.cwnd_bytes;
    if (rows[i].trim_at_end)
      lost(&cc, MRC_CC_LOSS_TRIMMED, START + rows[i].at_ns);
    else
      acked(&cc, last_bytes, rows[i].last_delay_ns, false, START + rows[i].at_ns);
    if (rows[i].fires)
      CHECK_EQ(cc.cwnd_bytes, rows[i].achieved > PACKET ? rows[i].achieved : PACKET);
    else
      CHECK(cc.cwnd_bytes + PACKET >= before);
    CHECK_EQ(cc.nscc.ignore_bytes != 0, rows[i].fires);
  }
}

TEST(test_quick_adapt__not_in_the_first_period) {
  struct mrc_cc cc = with_window(MAX);
  acked(&cc, PACKET, 400 * US, false, START);
  CHECK_EQ(cc.cwnd_bytes, MAX);
  CHECK_EQ(cc.nscc.qa_end_ns, START + BASE + TARGET);
}

/* An idle QP has no measurement: the first trim after a pause does not trigger quick adapt. */
TEST(test_quick_adapt__not_after_a_pause) {
  struct mrc_cc cc = with_window(MAX);
  acked(&cc, 0, 0, false, START);
  acked(&cc, 100000, 0, false, START + 1); /* all that was in flight */
  lost(&cc, MRC_CC_LOSS_TRIMMED, START + 100 * BASE);
  CHECK_EQ(cc.cwnd_bytes, MAX - PACKET);
  lost(&cc, MRC_CC_LOSS_TRIMMED, START + 101 * BASE + TARGET); /* one period later a trim does */
  CHECK_EQ(cc.cwnd_bytes, PACKET);
}

/* Quick adapt already counted the bytes in flight at that time: only bytes sent later count again.
 */
TEST(test_quick_adapt__ignores_what_was_in_flight) {
  struct mrc_cc cc = with_window(MAX);
  acked(&cc, 0, 0, false, START);
  acked(&cc, 20000, 400 * US, false, START + BASE + 400 * US);
  CHECK_EQ(cc.cwnd_bytes, 20000);
  CHECK_EQ(cc.nscc.ignore_bytes, 80000);
  uint64_t now_ns = START + 10 * BASE;
  lost(&cc, MRC_CC_LOSS_TRIMMED, now_ns);
  lost(&cc, MRC_CC_LOSS_PATH, now_ns);
  acked(&cc, 60000, 400 * US, true, now_ns);
  acked(&cc, 80000 - 60000 - 2 * PACKET, 0, false, now_ns);
  CHECK_EQ(cc.cwnd_bytes, 20000);
  lost(&cc, MRC_CC_LOSS_PATH, now_ns);
  CHECK_EQ(cc.cwnd_bytes, 20000 - PACKET);
}

TEST(test_quick_adapt__never_raises_the_window) {
  struct mrc_cc cc = with_window(2 * PACKET);
  acked(&cc, 0, 0, true, START);
  acked(&cc, 20000, 400 * US, true, START + BASE + 400 * US);
  CHECK_EQ(cc.cwnd_bytes, 2 * PACKET);
}

/* ---- the receiver's penalty ---- */

TEST(test_penalty__from_what_is_in_flight) {
  static const struct {
    uint8_t penalty;
    uint64_t cwnd_bytes;
  } rows[] = {{0, 100000}, {64, 48000}, {127, 46032}};
  EACH_ROW(i, rows) {
    struct mrc_cc cc = with_window(100000);
    struct mrc_cc_ack ack = ack_of(4000, 50 * US, true);
    ack.inflight_bytes = 50000;
    ack.penalty = rows[i].penalty;
    mrc_cc_on_ack(&cc, &ack, START);
    CHECK_EQ(cc.cwnd_bytes, rows[i].cwnd_bytes);
  }
}

TEST(test_penalty__is_taken_back) {
  struct mrc_cc cc = with_window(100000);
  struct mrc_cc_ack ack = ack_of(4000, 50 * US, true);
  ack.inflight_bytes = 50000;
  ack.penalty = 127;
  mrc_cc_on_ack(&cc, &ack, START);
  mrc_cc_on_ack(&cc, &ack, START);
  CHECK(cc.cwnd_bytes < 50000);
  ack.penalty = 0;
  ack.restore_window = true;
  mrc_cc_on_ack(&cc, &ack, START);
  CHECK_EQ(cc.cwnd_bytes, 100000);
  cc.cwnd_bytes = 30000; /* once only */
  mrc_cc_on_ack(&cc, &ack, START);
  CHECK_EQ(cc.cwnd_bytes, 30000);
}

/* ---- timeouts, and when to request a SACK ---- */

TEST(test_on_timeout__starts_again_from_one_packet) {
  struct mrc_cc cc = with_window(100000);
  cc.nscc.ignore_bytes = 5000;
  mrc_cc_on_timeout(&cc);
  CHECK_EQ(cc.cwnd_bytes, PACKET);
  CHECK_EQ(cc.nscc.ignore_bytes, 0);
  mrc_cc_on_spurious_timeout(&cc);
  CHECK_EQ(cc.cwnd_bytes, 100000);
}

TEST(test_on_spurious_timeout__not_after_a_decrease) {
  struct mrc_cc cc = with_window(100000);
  mrc_cc_on_timeout(&cc);
  lost(&cc, MRC_CC_LOSS_OVERFLOW, START);
  mrc_cc_on_spurious_timeout(&cc);
  CHECK_EQ(cc.cwnd_bytes, PACKET);
}

TEST(test_asks_for_sack__when_it_must_wait) {
  static const struct {
    uint64_t cwnd_bytes, inflight_bytes, unasked_bytes;
    uint32_t sack_bytes;
    bool asks;
  } rows[] = {{100000, 100000 - PACKET, 0, 16384, false},
              {100000, 100000 - PACKET + 1, 16383, 16384, false}, /* other requests are in flight */
              {100000, 100000 - PACKET + 1, 16384, 16384, true},
              {32767, 32767 - PACKET, 0, 16384, false},
              {32767, 32767 - PACKET + 1, 0, 16384, true},
              {16384, 0, 0, 16384, false},
              {16383, 0, 0, 16384, true},       /* sack_bytes exceed the window */
              {100000, 0, 99999, 16384, false}, /* the receiver sends one by itself before that */
              {100000, 0, 16383, 16385, false},
              {100000, 0, 16384, 16385, true}};
  EACH_ROW(i, rows) {
    struct mrc_cc cc = with_window(rows[i].cwnd_bytes);
    cc.unasked_bytes = rows[i].unasked_bytes;
    CHECK_EQ(mrc_cc_asks_for_sack(&cc, rows[i].inflight_bytes, rows[i].sack_bytes, i % 2 != 0),
             rows[i].asks);
  }
}

TEST(test_is_congestion__by_its_own_target) {
  const struct mrc_cc cc = with_window(100000);
  CHECK(!mrc_cc_is_congestion(&cc, TARGET * 3 / 2));
  CHECK(mrc_cc_is_congestion(&cc, TARGET * 3 / 2 + 1));
}

/* ---- in engines ---- */

/* NSCC in engines that share a slow link: the link is busy, the queue short, the shares fair. */

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
  write_many(p, end, 1u << 20, 32);
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

/* The second QP never sees an empty queue: the configured base RTT lets it measure the queue. */
TEST(test_nscc__a_latecomer_gets_its_share) {
  PAIR p = open_incast();
  int ends[2] = {open_sender(p, 0)};
  run_for(p, 30 * MS);
  ends[1] = open_sender(p, 1);
  run_for(p, 50 * MS);
  const struct outcome outcome = watch(p, ends, 100 * MS);
  CHECK(jain(outcome.bytes) >= 950);
  /* 91% is the share of payloads of 1024 bytes after headers. */
  CHECK(outcome.bytes[0] + outcome.bytes[1] > QUEUE_BYTES(100 * MS) * 90 / 100);
  CHECK(outcome.queue_bytes < QUEUE_BYTES(BASE_RTT * 3 / 4 + 100 * US));
  CHECK_EQ(retransmitted(p, ends[0]) + retransmitted(p, ends[1]), 0);
}

/* A short queue trims: the requester retransmits trimmed packets at once and blames no path, even
   when the headers of a whole window arrive at once. */
TEST(test_nscc__trims_are_no_failures) {
  for (uint64_t faster = 0; faster <= 8; faster += 8) {
    CHECK_ROW(faster);
    PAIR p =
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
  PAIR p = open_paths(&end);
  mrc_pair_path(p, 0, 1, 1, 2)->config.rate_bps = 5 * RATE;
  WRITE_AND_WAIT(p, end, 4u << 20,
                 5 * MS); /* 0.7 ms by the others alone; 3.4 ms with equal turns */
  CHECK_EQ(retransmitted(p, end), 0);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_LOST_BY_TIME), 0);
  CHECK_EQ(counter(p, 0, MRC_COUNTER_EVS_BAD), 0);
  const struct mrc_ev_info slow = mrc_pair_ev(p, end, 1, 2), other = mrc_pair_ev(p, end, 1, 1);
  CHECK(slow.sent_packets < other.sent_packets / 4);
}

/* A path that is silent, or loses one packet of five, is detected as on a fabric without trimming.
 */
TEST(test_nscc__lost_is_not_late) {
  EACH_OF(int, silent, 0, 2) {
    int end;
    PAIR p = open_paths(&end);
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
  }
}

/* The window is below the bytes after which the receiver sends a SACK: the requester requests one.
 */
TEST(test_nscc__small_windows_do_not_wait_for_the_sack_timer) {
  PAIR p = open_pair(.path.delay_ns = 10 * US);
  const int end = open_qp(p, .memory_bytes = 256 * MTU, .cc = MRC_CC_NSCC,
                          .cc_profile = {.base_rtt_ns = 20 * US, .max_cwnd = 2 * MTU});
  WRITE_AND_WAIT(p, end, 256 * MTU,
                 128 * 25 * US); /* two packets a round trip, and no delay of 200 us */
}

/* The largest window of a profile covers all planes together, however they share the load. */
TEST(test_nscc__the_largest_window_is_of_all_planes) {
  enum { LARGEST = 64 * MTU };
  EACH_OF(int, shares, MRC_SHARES_MEASURED, MRC_SHARES_EQUAL + 1) {
    PAIR p = open_pair(.planes = 4, .path.delay_ns = 500 * US);
    const int end = open_qp(p, .memory_bytes = 4u << 20, .cc = MRC_CC_NSCC, .probe = true,
                            .plane_shares = (uint8_t)shares, .cc_profile.max_cwnd = LARGEST);
    CHECK_EQ(mrc_pair_write(p, end, 4u << 20), 0);
    for (int i = 0; i < 20; i++) {
      run_for(p, MS);
      CHECK(mrc_pair_info(p, end).inflight_bytes <= LARGEST);
      CHECK(mrc_pair_info(p, end).inflight_bytes >= LARGEST / 2);
    }
  }
}
