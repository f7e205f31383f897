/* SPDX-License-Identifier: Apache-2.0 */
/* Writes over perfect paths: every size, order of completions, bounds of queue and windows, shares.
 */
#include "core/engine.h"

#include <errno.h>

#include "pair/connect.h"
#include "scenario.h"

/* Each size as a write and as a write with immediate, over one path and over many. */
TEST(test_write__every_size) {
  static const uint32_t sizes[] = {
      0, 1, 2, 3, 4, MTU - 1, MTU, MTU + 1, 2 * MTU, 10 * MTU - 1, 64 * MTU + 1, 1u << 20};
  for (int paths = 1; paths <= 4; paths += 3) {
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
      CHECK_ROW(i);
      struct mrc_pair *p = open_pair(.planes = paths, .paths = paths);
      int end = open_qp(p, .memory_bytes = 2 * sizes[i]);
      const uint32_t writes = sizes[i] == 0 ? 1 : 2; /* a write needs bytes */
      if (writes == 2) CHECK_EQ(mrc_pair_write(p, end, sizes[i]), 0);
      CHECK_EQ(mrc_pair_write_imm(p, end, sizes[i]), 0);
      CHECK(mrc_pair_finish(p, 200 * MS));
      CHECK_EQ(succeeded(p, end), writes);
      CHECK_EQ(audit_of(p, end)->n_immediates, 1);
      CHECK_EQ(retransmitted(p, end), 0);
      uint32_t packets = sizes[i] == 0 ? 1 : (sizes[i] + MTU - 1) / MTU;
      CHECK_EQ(audit_of(p, end)->data_packets, writes * packets);
      mrc_pair_destroy(p);
    }
  }
}

TEST(test_write__counts_bytes_on_both_sides) {
  struct mrc_pair *p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 100000);
  CHECK_EQ(mrc_pair_write(p, end, 100000), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(mrc_pair_info(p, end).first_sent_bytes, 100000);
  CHECK_EQ(mrc_pair_info(p, end).acknowledged_bytes, 100000);
  CHECK_EQ(mrc_pair_info(p, end).inflight_bytes, 0);
  CHECK_EQ(mrc_pair_info(p, end).outstanding, 0);
  CHECK_EQ(mrc_pair_info(p, p->ends[end]->peer).received_bytes, 100000);
  mrc_pair_destroy(p);
}

/* More than one window of PSNs, across the wrap of the PSN space. */
TEST(test_write__longer_than_the_window_and_over_the_wrap) {
  static const uint32_t first_psns[] = {0, 0xFFFFFF, 0xFFFFFF - 200, 0x7FFF00};
  for (size_t i = 0; i < sizeof first_psns / sizeof first_psns[0]; i++) {
    CHECK_ROW(i);
    struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
    int end = open_qp(p, .memory_bytes = 1000 * MTU, .mpr = 128, .sq_psn = first_psns[i]);
    CHECK_EQ(mrc_pair_write(p, end, 1000 * MTU), 0);
    CHECK(mrc_pair_finish(p, 500 * MS));
    CHECK_EQ(retransmitted(p, end), 0);
    mrc_pair_destroy(p);
  }
}

/* Several rounds of the 24-bit space would take too long; message numbers wrap at 16 bits. */
TEST(test_write__more_messages_than_msns) {
  enum { N = 70000 };
  struct mrc_pair *p = open_pair(.path.delay_ns = 1 * US);
  int end = open_qp(p, .memory_bytes = N / 2, .mpr = 4096, .sq_depth = 4096, .max_wimm = 1024);
  for (int i = 0; i < N; i++) {
    int error = i % 2 ? mrc_pair_write_imm(p, end, 0) : mrc_pair_write(p, end, 1);
    if (error == 0) continue;
    CHECK_EQ(error, -ENOBUFS);
    CHECK(mrc_pair_finish(p, SECOND));
    i--;
  }
  CHECK(mrc_pair_finish(p, SECOND));
  CHECK_EQ(succeeded(p, end), N);
  CHECK_EQ(audit_of(p, end)->n_immediates, N / 2);
  mrc_pair_destroy(p);
}

TEST(test_write_imm__in_order_over_planes_of_different_delay) {
  struct mrc_pair *p = open_pair(.planes = 4, .paths = 2);
  for (int plane = 1; plane <= 4; plane++)
    for (int path = 0; path < 2; path++)
      mrc_pair_path(p, 0, 1, plane, path)->config.delay_ns = (uint64_t)plane * 50 * US;
  int end = open_qp(p, .memory_bytes = 200 * 3000, .sq_depth = 256, .max_wimm = 128);
  for (int i = 0; i < 200; i++) {
    uint32_t bytes = (uint32_t)((i + 1) * 37 % 3000);
    CHECK_EQ(i % 3 ? mrc_pair_write_imm(p, end, bytes) : mrc_pair_write(p, end, bytes), 0);
  }
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(audit_of(p, end)->n_immediates, 133); /* the auditor checks their order */
  CHECK_EQ(retransmitted(p, end), 0);
  mrc_pair_destroy(p);
}

/* More immediates than the peer accepts in flight: the requester waits and does not fail. */
TEST(test_write_imm__never_more_in_flight_than_agreed) {
  struct mrc_pair *p = open_pair(.planes = 2);
  int end = open_qp(p, .max_wimm = 1, .sq_depth = 64);
  for (int i = 0; i < 64; i++)
    CHECK_EQ(mrc_pair_write_imm(p, end, 0), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  CHECK_EQ(succeeded(p, end), 64);
  CHECK_EQ(audit_of(p, end)->n_immediates, 64);
  mrc_pair_destroy(p);
}

TEST(test_post__queue_full_then_free_again) {
  struct mrc_pair *p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 100 * MTU, .sq_depth = 4);
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 4; i++)
      CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
    CHECK_EQ(mrc_pair_write(p, end, MTU), -ENOBUFS);
    CHECK_EQ(mrc_pair_write_imm(p, end, 0), -ENOBUFS);
    CHECK_EQ(mrc_pair_info(p, end).outstanding, 4);
    CHECK(mrc_pair_finish(p, 10 * MS));
  }
  CHECK_EQ(succeeded(p, end), 12);
  mrc_pair_destroy(p);
}

TEST(test_write__both_ways_at_once) {
  struct mrc_pair *p = open_pair(.planes = 3, .paths = 2);
  int end = open_qp(p, .memory_bytes = 1u << 20);
  int peer = p->ends[end]->peer;
  for (int i = 0; i < 16; i++) {
    CHECK_EQ(mrc_pair_write_imm(p, end, 1u << 16), 0);
    CHECK_EQ(mrc_pair_write_imm(p, peer, 1u << 16), 0);
  }
  CHECK(mrc_pair_finish(p, 200 * MS));
  CHECK_EQ(succeeded(p, end) + succeeded(p, peer), 32);
  CHECK_EQ(retransmitted(p, end) + retransmitted(p, peer), 0);
  mrc_pair_destroy(p);
}

TEST(test_write__many_qps_and_hosts) {
  struct mrc_pair *p = open_pair(.hosts = 4, .planes = 2, .paths = 2);
  for (int from = 0; from < 4; from++) {
    for (int to = 0; to < 4; to++) {
      if (from == to) continue;
      int end = open_qp(p, .from = from, .to = to, .memory_bytes = 50000);
      CHECK_EQ(mrc_pair_write_imm(p, end, 50000), 0);
    }
  }
  CHECK(mrc_pair_finish(p, 200 * MS));
  for (int i = 0; i < p->n_ends; i++)
    CHECK_EQ(succeeded(p, i), audit_of(p, i)->n_wrs);
  mrc_pair_destroy(p);
}

TEST(test_write__over_ipv4) {
  struct mrc_pair *p = open_pair(.family = 4, .planes = 2, .paths = 4);
  int end = open_qp(p, .memory_bytes = 1u << 20);
  CHECK_EQ(mrc_pair_write_imm(p, end, 1u << 20), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  for (int plane = 1; plane <= 2; plane++)
    for (int path = 0; path < 4; path++)
      CHECK(mrc_pair_ev(p, end, plane, path).sent_packets > 0);
  mrc_pair_destroy(p);
}

TEST(test_write__without_icrc) {
  struct mrc_pair *p = open_pair(.planes = 2, .udp_checksum = true);
  int end = open_qp(p, .memory_bytes = 10 * MTU + 1, .integrity = MRC_INTEGRITY_UDP);
  CHECK_EQ(mrc_pair_write(p, end, 10 * MTU + 1), 0);
  CHECK(mrc_pair_finish(p, 10 * MS));
  mrc_pair_destroy(p);
}

/* Equal shares: after each MiB no plane is ahead of another by more than a burst. */
TEST(test_spray__planes_carry_equal_bytes) {
  static const uint32_t sprays[] = {0, 1, 4};
  for (size_t i = 0; i < 3; i++) {
    CHECK_ROW(i);
    struct mrc_pair *p = open_pair(.planes = 4, .paths = 2);
    int end = open_qp(p, .memory_bytes = 8u << 20, .spray = sprays[i], .mpr = 4096);
    for (int round = 0; round < 8; round++) {
      CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
      CHECK(mrc_pair_finish(p, 200 * MS));
      uint64_t least = UINT64_MAX, most = 0;
      for (int plane = 0; plane < 4; plane++) {
        uint64_t bytes = p->hosts[0].plane_bytes[plane];
        least = bytes < least ? bytes : least;
        most = bytes > most ? bytes : most;
      }
      CHECK(most - least <= 65215);
    }
    mrc_pair_destroy(p);
  }
}

/* spray = 1 is the spraying of the MRC specification: every packet takes another EV. */
TEST(test_spray__one_packet_an_ev) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 4);
  int end = open_qp(p, .memory_bytes = 160 * MTU, .spray = 1);
  CHECK_EQ(mrc_pair_write(p, end, 160 * MTU), 0);
  CHECK(mrc_pair_finish(p, 100 * MS));
  for (int plane = 1; plane <= 2; plane++)
    for (int path = 0; path < 4; path++) {
      struct mrc_ev_info ev = mrc_pair_ev(p, end, plane, path);
      CHECK(ev.sent_packets >= 19 && ev.sent_packets <= 21);
      CHECK_EQ(ev.sent_bytes, ev.sent_packets * MTU);
    }
  mrc_pair_destroy(p);
}

static uint64_t trace_of(uint64_t seed) {
  struct mrc_pair *p = open_pair(.seed = seed, .planes = 3, .paths = 3, .path.loss_ppm = 20000,
                                 .path.duplicate_ppm = 10000, .path.reorder_ppm = 50000,
                                 .path.reorder_ns = 100 * US, .driver.refuse_one_in = 7);
  int end = open_qp(p, .memory_bytes = 1u << 20);
  CHECK_EQ(mrc_pair_write_imm(p, end, 1u << 20), 0);
  CHECK(mrc_pair_finish(p, SECOND));
  uint64_t trace = p->trace;
  mrc_pair_destroy(p);
  return trace;
}

TEST(test_engine__same_seed_same_trace) {
  uint64_t first = trace_of(42);
  CHECK_EQ(trace_of(42), first);
  CHECK(trace_of(43) != first);
}
