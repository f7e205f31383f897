/* SPDX-License-Identifier: Apache-2.0 */
/* Planes of one QP that share the links of interfaces: together they carry what the links can,
   which is the maximum flow over the pairs of interfaces. */
#include "core/cc.h"

#include <errno.h>
#include <string.h>

#include "core/qp.h"
#include "pair/connect.h"
#include "scenario.h"

enum { MOST_PLANES = 6, MOST_LINKS = 3 };

struct wiring {
  const char *name;
  int planes;
  uint8_t ports[2][MOST_PLANES]; /* of each plane, at the sender and at the receiver */
  uint64_t units[2][MOST_LINKS]; /* rates of the links there */
  uint32_t yielding;             /* bit n - 1: plane n */
  uint64_t most_units;           /* that all planes carry together */
};

static const struct wiring wirings[] = {
    {"alone", 1, {{1}, {1}}, {{10}, {10}}, 0, 10},
    {"two uplinks", 2, {{1, 2}, {1, 1}}, {{10, 20}, {40}}, 0, 30},
    /* Each usual pair is limited by its slower link: a crossing has what they leave. */
    {"a crossing gains",
     4,
     {{1, 2, 1, 2}, {1, 2, 2, 1}},
     {{15, 10}, {10, 30}},
     1 << 2 | 1 << 3,
     25},
    /* The first plane passes two full links, each of which another one fills alone. */
    {"a usual pair is in the way", 3, {{1, 2, 1}, {1, 1, 2}}, {{10, 20}, {15, 10}}, 1 << 0, 25},
    {"a crossing is in the way",
     4,
     {{1, 2, 1, 1}, {1, 2, 3, 2}},
     {{30, 10}, {20, 10, 20}},
     1 << 3,
     40},
    /* The first plane stays, although only those that yield can carry everything without it. */
    {"the first plane leaves its links",
     5,
     {{1, 2, 3, 1, 2}, {1, 2, 3, 3, 1}},
     {{30, 50, 15}, {30, 20, 50}},
     1 << 3 | 1 << 4,
     95},
};

static void open_links(struct mrc_pair *p, const struct wiring *wiring, uint64_t unit_bps) {
  for (int port = 0; port < MOST_LINKS; port++) {
    p->port_out[0][port].config.rate_bps = wiring->units[0][port] * unit_bps;
    p->port_in[1][port].config.rate_bps = wiring->units[1][port] * unit_bps;
  }
}

/* Keeps messages posted until the time is over. Returns the bytes that were acknowledged. */
static uint64_t carried(struct mrc_pair *p, int end, uint32_t bytes, uint64_t ns) {
  const uint64_t end_ns = p->now_ns + ns, before = mrc_pair_info(p, end).acknowledged_bytes;
  while (p->now_ns < end_ns) {
    while (mrc_pair_info(p, end).outstanding < 8)
      CHECK_EQ(mrc_pair_write(p, end, bytes), 0);
    run_for(p, ns / 200);
  }
  return mrc_pair_info(p, end).acknowledged_bytes - before;
}

/* At all rates, and whatever the planes began with: at least nine tenths of the maximum flow. Less
   where two packets, the smallest window, take longer on these links than the target of the queue.
 */
TEST(test_coupled__carry_the_maximum_flow) {
  static const struct {
    uint64_t unit_bps, settle_ns, time_ns, seeds;
    uint32_t mtu, least_percent;
  } rates[] = {{1000000, 3 * SECOND, 2 * SECOND, 2, 1408, 90},
               {1000000, 3 * SECOND, 2 * SECOND, 1, 8908, 75},
               {10000000, 300 * MS, 200 * MS, 1, 1408, 90}};
  EACH_ROW(i, wirings) {
    const struct wiring *wiring = &wirings[i];
    EACH_ROW(j, rates) {
      EACH_OF(uint64_t, seed, 1, rates[j].seeds + 1) {
        struct mrc_pair_config config = {.seed = seed,
                                         .planes = wiring->planes,
                                         .paths = 2,
                                         .path.delay_ns = PATH_DELAY,
                                         .port_out.queue_bytes = 300000 + rates[j].unit_bps / 80,
                                         .port_in.queue_bytes = 300000 + rates[j].unit_bps / 80,
                                         .driver.wake_ns = 50 * US};
        memcpy(config.ports[0], wiring->ports[0], sizeof wiring->ports[0]);
        memcpy(config.ports[1], wiring->ports[1], sizeof wiring->ports[1]);
        PAIR p = mrc_pair_create(&config);
        open_links(p, wiring, rates[j].unit_bps);
        const int end = open_qp(p, .memory_bytes = 96u << 20, .mpr = 4096, .sq_depth = 16,
                                .path_mtu = rates[j].mtu);
        CHECK_EQ(
            mrc_qp_set_yielding(p->hosts[0].engine, p->ends[end]->qpn, wiring->yielding, p->now_ns),
            0);
        carried(p, end, 1 << 18, rates[j].settle_ns);
        const uint64_t bytes = carried(p, end, 1 << 18, rates[j].time_ns);
        const uint64_t most =
            wiring->most_units * rates[j].unit_bps / 8 * rates[j].time_ns / SECOND;
        const uint64_t percent = bytes * 100 * (rates[j].mtu + 92) / rates[j].mtu / most;
        if (percent < rates[j].least_percent)
          printf("%s, %u: %d%% of the maximum flow\n", wiring->name, rates[j].mtu, (int)percent);
        CHECK(percent >= rates[j].least_percent && percent <= 101);
      }
    }
  }
}

/* Another flow keeps a queue at a link that coupled planes share. They drain together, find that it
   is not theirs, and take their part of the link. */
TEST(test_coupled__beside_another_flow) {
  uint64_t bytes[2]; /* without and with planes that share links */
  EACH_OF(int, coupled, 0, 2) {
    PAIR p = open_pair(.hosts = 3, .planes = 4, .ports = {{1, 2, 1, 2}, {1, 2, 2, 1}},
                       .port_in.rate_bps = 20000000, .port_in.queue_bytes = 100000,
                       .driver.wake_ns = 50 * US);
    const int end =
        open_qp(p, .memory_bytes = 48u << 20, .mpr = 4096, .sq_depth = 16, .path_mtu = 1408);
    const int foreign = open_qp(p, .from = 2, .memory_bytes = 48u << 20, .mpr = 128, .sq_depth = 48,
                                .path_mtu = 1408, .cc = MRC_CC_NULL);
    if (coupled)
      CHECK_EQ(mrc_qp_set_yielding(p->hosts[0].engine, p->ends[end]->qpn, 0xc, p->now_ns), 0);
    write_many(p, foreign, 1 << 20, 40);
    carried(p, end, 1 << 18, SECOND);
    bytes[coupled] = carried(p, end, 1 << 18, 2 * SECOND);
    CHECK(mrc_pair_info(p, foreign).outstanding > 0);
  }
  CHECK(bytes[1] >= bytes[0] * 2 / 3);
}

/* All ways become longer. The windows shrink to the smallest, since the delay stays, and drains
   find out why, although these windows together are much on such links. */
TEST(test_coupled__ways_that_become_longer) {
  EACH_OF(uint64_t, mbit, 1, 3) {
    PAIR p = open_pair(.planes = 4, .ports = {{1, 2, 1, 2}, {1, 2, 2, 1}}, .paths = 2,
                       .port_out.rate_bps = mbit * 10000000, .port_out.queue_bytes = 300000,
                       .port_in.rate_bps = mbit * 10000000, .port_in.queue_bytes = 300000,
                       .driver.wake_ns = 50 * US);
    const int end = open_qp(p, .memory_bytes = 96u << 20, .mpr = 4096, .sq_depth = 16,
                            .path_mtu = 1408, .timeout = 16);
    CHECK_EQ(mrc_qp_set_yielding(p->hosts[0].engine, p->ends[end]->qpn, 0xc, p->now_ns), 0);
    carried(p, end, 1 << 18, SECOND);
    EACH_OF(int, path, 0, 8) {
      mrc_pair_path(p, 0, 1, 1 + path / 2, path % 2)->config.delay_ns = 25 * MS;
      mrc_pair_path(p, 1, 0, 1 + path / 2, path % 2)->config.delay_ns = 25 * MS;
    }
    carried(p, end, 1 << 18, 10 * SECOND);
    CHECK(carried(p, end, 1 << 18, 2 * SECOND) > mbit * 2 * 2 * 10000000 / 8 * 8 / 10);
  }
}

TEST(test_set_yielding__of_no_qp) {
  PAIR p = open_pair(.planes = 2);
  CHECK_EQ(mrc_qp_set_yielding(p->hosts[0].engine, 77, 1, p->now_ns), -ENOENT);
}
