/* SPDX-License-Identifier: Apache-2.0 */
#include "core/engine.h"

#include <errno.h>

#include "pair/connect.h"
#include "scenario.h"

/* ---- planes ---- */

/* Planes and ports that fail and heal, packets that the kernel refuses, queues that fill. */

static uint64_t acked_bytes(struct mrc_pair *p, int end) {
  return mrc_pair_info(p, end).acknowledged_bytes;
}

/* A plane goes silent under load: suspended as a whole in a few round trips, no QP error, and
   resumed by itself after it heals. */
TEST(test_silence__of_one_plane) {
  PAIR p = open_pair(.planes = 4, .paths = 2, .port_out.rate_bps = 500000000);
  int end = open_qp(p, .memory_bytes = 32u << 20, .mpr = 4096, .timeout = 14, .path_mtu = 4096);
  write_many(p, end, 1u << 20, 32);
  run_for(p, 20 * MS);
  mrc_pair_silence(p, 2, true);
  uint64_t silent_ns = p->now_ns;
  while (!mrc_pair_info(p, end).planes[1].suspended && p->now_ns < silent_ns + 100 * MS)
    mrc_pair_step(p, p->now_ns + MS);
  CHECK(p->now_ns - silent_ns < 30 * MS);
  CHECK_EQ(n_reasons(p, 0, MRC_EVENT_PLANE, 0, MRC_REASON_SILENCE), 1);
  uint64_t before = acked_bytes(p, end);
  run_for(p, 40 * MS); /* three planes carry 7.5 MB in this time */
  CHECK(acked_bytes(p, end) - before > 6000000);
  mrc_pair_silence(p, 2, false);
  run_for(p, 100 * MS);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
  CHECK_EQ(n_reasons(p, 0, MRC_EVENT_PLANE, 1, MRC_REASON_PROBES), 1);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PLANE, MRC_PAIR_ANY), 2);
  CHECK(mrc_pair_finish(p, 200 * MS));
  CHECK_EQ(succeeded(p, end), 32);
  CHECK_EQ(mrc_pair_info(p, end).spurious_packets, 0);
}

/* The local timeout expires before the silence is detected: the engine still suspends the plane,
   by the deliveries of the other planes between the timeouts. */
TEST(test_silence__with_a_short_timeout) {
  PAIR p = open_pair(.planes = 4, .paths = 2, .port_out.rate_bps = 500000000);
  int end = open_qp(p, .memory_bytes = 16u << 20, .mpr = 128, .timeout = 10, .retry_linear = 7,
                    .retry_exp = 8, .path_mtu = 4096);
  write_many(p, end, 1u << 20, 16);
  run_for(p, 20 * MS);
  mrc_pair_silence(p, 2, true);
  run_for(p, 60 * MS); /* at most a strike each 10 ms or so, not one a timeout */
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 1);
  uint64_t before = acked_bytes(p, end);
  run_for(p, 10 * MS);
  CHECK(acked_bytes(p, end) - before > 1000000); /* three planes carry 1.8 MB in this time */
  mrc_pair_silence(p, 2, false);
  CHECK(mrc_pair_finish(p, 500 * MS));
  CHECK_EQ(succeeded(p, end), 16);
}

/* Plane 2 is silent. The packets that it loses left after all packets that plane 1 delivered, so
   the timeouts do not show that plane 2 has failed. */
TEST(test_timeout__blames_no_plane_for_what_left_last) {
  PAIR p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 100 * MTU, .timeout = 9, .spray = 1);
  WRITE_AND_WAIT(p, end, 20 * MTU, 5 * MS);
  EACH_OF(int, i, 0, 5) {
    mrc_pair_path(p, 0, 1, 2, 0)->config.silent = true;
    WRITE_AND_WAIT(p, end, 2 * MTU, 5 * MS);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), i + 1);
  }
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PLANE, MRC_PAIR_ANY), 0);
}

/* Plane 1 delivers packets sent after the ones that plane 2 lost: after three timeouts plane 2 is
   suspended, long before its silence alone would suspend it. */
TEST(test_timeout__blames_the_plane_that_falls_behind) {
  PAIR p = open_pair(.planes = 2);
  int end = open_qp(p, .memory_bytes = 100 * MTU, .timeout = 9, .spray = 1);
  WRITE_AND_WAIT(p, end, 20 * MTU, 5 * MS);
  const uint64_t start_ns = p->now_ns;
  mrc_pair_path(p, 0, 1, 2, 0)->config.silent = true;
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
    CHECK_EQ(mrc_pair_write(p, end, 2 * MTU), 0);
    run_for(p, 50 * US);
    WRITE_AND_WAIT(p, end, 4 * MTU, 5 * MS);
  }
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 1);
  CHECK(p->now_ns - start_ns < 5 * MS);
}

/* Plane 2 is silent, and has the smallest share before and after its packet. One timeout is enough:
   the packet is sent again on plane 1, not over the other path of plane 2. */
TEST(test_timeout__sends_again_on_another_plane) {
  EACH_OF(uint8_t, shares, MRC_SHARES_MEASURED, MRC_SHARES_EQUAL + 1) {
    PAIR p = open_pair(.planes = 2, .paths = 2);
    int end = open_qp(p, .memory_bytes = 2 * MTU, .timeout = 9, .plane_shares = shares);
    prove_paths(p->hosts[0].engine, p->ends[end]->qpn);
    WRITE_AND_WAIT(p, end, MTU, 5 * MS); /* on plane 1 */
    mrc_pair_silence(p, 2, true);
    WRITE_AND_WAIT(p, end, 4, 50 * MS);
    CHECK_EQ(mrc_pair_info(p, end).planes[1].lost_packets, 1);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_LOST_BY_TIMEOUT), 1);
    CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 1);
    CHECK_EQ(retransmitted(p, end), 1);
  }
}

/* Further posts do not postpone the local timeout. */
TEST(test_timeout__counts_from_the_last_progress) {
  PAIR p = open_pair();
  int end = open_qp(p, .memory_bytes = 200 * MTU, .timeout = 11, .retry_linear = 7);
  mrc_pair_silence(p, 1, true);
  for (int i = 0; i < 100; i++) {
    CHECK_EQ(mrc_pair_write(p, end, MTU), 0);
    run_for(p, 100 * US);
  }
  CHECK_EQ(counter(p, 0, MRC_COUNTER_TIMEOUTS), 4); /* one each 2.1 ms, for 10 ms */
}

/* Only one direction of the plane is dead: data arrives, answers do not, or the other way. */
TEST(test_silence__of_one_direction) {
  EACH_OF(int, from, 0, 2) {
    PAIR p = open_pair(.planes = 3, .paths = 2, .port_out.rate_bps = 500000000);
    int end = open_qp(p, .memory_bytes = 8u << 20, .timeout = 14);
    write_many(p, end, 1u << 20, 8);
    run_for(p, 10 * MS);
    for (int path = 0; path < 2; path++)
      mrc_pair_path(p, from, 1 - from, 2, path)->config.silent = true;
    CHECK(mrc_pair_finish(p, 400 * MS));
    CHECK_EQ(succeeded(p, end), 8);
  }
}

/* Silent from the first packet on, so the round trip of the plane is unknown. */
TEST(test_silence__from_the_start) {
  PAIR p = open_pair(.planes = 4, .paths = 2);
  int end = open_qp(p, .memory_bytes = 1u << 20, .timeout = 14);
  mrc_pair_silence(p, 3, true);
  WRITE_IMM_AND_WAIT(p, end, 1u << 20, 100 * MS);
  CHECK_EQ(succeeded(p, end), 1);
}

/* A plane is suspended while its one working path is ASSUMED_BAD and the paths of its rotation are
   dead. The probes of the plane find that path too. */
TEST(test_silence__of_the_rotation_alone) {
  PAIR p = open_pair(.planes = 2, .paths = 4, .port_out.rate_bps = 500000000);
  const int end = open_qp(p, .memory_bytes = 32u << 20, .mpr = 4096, .timeout = 14);
  write_many(p, end, 1u << 20, 32);
  run_for(p, 10 * MS);
  const uint32_t alone = 4; /* the first EV of plane 2 */
  distrust(p, end, alone);
  for (int path = 0; path < 4; path++)
    mrc_pair_path(p, 0, 1, 2, path)->config.silent = true;
  run_for(p, 50 * MS);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 1);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 0).state, MRC_EV_ASSUMED_BAD);
  mrc_pair_path(p, 0, 1, 2, 0)->config.silent = false;
  run_for(p, 500 * MS);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 0).state, MRC_EV_GOOD);
}

/* A plane returns with few of its paths, never three in a row. */
TEST(test_silence__ends_on_some_paths) {
  PAIR p = open_pair(.planes = 2, .paths = 8, .port_out.rate_bps = 500000000);
  const int end = open_qp(p, .memory_bytes = 32u << 20, .mpr = 4096, .timeout = 14);
  write_many(p, end, 1u << 20, 8);
  run_for(p, 10 * MS);
  mrc_pair_silence(p, 2, true);
  run_for(p, 100 * MS);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 1);
  for (int path = 0; path < 8; path++) {
    mrc_pair_path(p, 0, 1, 2, path)->config.silent = path % 3 != 2;
    mrc_pair_path(p, 1, 0, 2, path)->config.silent = false;
  }
  run_for(p, SECOND);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
  const uint64_t sent = mrc_pair_ev(p, end, 2, 2).sent_packets;
  write_many(p, end, 1u << 20, 8);
  CHECK(mrc_pair_finish(p, SECOND));
  CHECK(mrc_pair_ev(p, end, 2, 2).sent_packets > sent);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
}

static int set_retries(struct mrc_pair *p, int end, uint32_t timeout, uint32_t linear,
                       uint32_t exponential) {
  const struct mrc_pair_end *e = p->ends[end];
  mrc_engine *engine = p->hosts[e->host].engine;
  return mrc_qp_set_retries(engine, e->qpn, timeout, linear, exponential, p->now_ns);
}

/* A QP that runs gets other patience. */
TEST(test_retries__change_in_rts) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  const int end = open_qp(p, .memory_bytes = 64 * MTU, .timeout = 20, .retry_linear = 7);
  WRITE_AND_WAIT(p, end, 10 * MTU, 10 * MS);
  CHECK_EQ(set_retries(p, end, 0, 3, 0), -EINVAL);
  CHECK_EQ(set_retries(p, end, 25, 3, 0), -EINVAL);
  CHECK_EQ(set_retries(p, end, 10, 8, 0), -EINVAL);
  CHECK_EQ(set_retries(p, end, 10, 3, 26), -EINVAL);
  CHECK_EQ(mrc_qp_set_retries(p->hosts[0].engine, 1, 10, 3, 0, p->now_ns), -ENOENT);
  CHECK_EQ(set_retries(p, end, 10, 3, 0), 0); /* 3 times 1.05 ms, and once more */
  for (int plane = 1; plane <= 2; plane++)
    mrc_pair_silence(p, plane, true);
  const uint64_t silent_ns = p->now_ns;
  WRITE_AND_WAIT(p, end, 10 * MTU, SECOND);
  CHECK(p->now_ns - silent_ns >= 3 * MS && p->now_ns - silent_ns <= 7 * MS);
  CHECK_EQ(mrc_pair_info(p, end).status, MRC_WC_RETRY_EXC_ERR);
  CHECK_EQ(set_retries(p, end, 10, 3, 0), -EINVAL);
}

/* All planes silent: the QP fails after linear * T + (2 + 4 + ...) * T, and no later. */
TEST(test_silence__of_all_planes_ends_the_qp) {
  static const struct {
    uint8_t timeout, linear, exponential;
    uint64_t least_ms, most_ms; /* T = 1.024 us << timeout */
  } rows[] = {
      {10, 1, 0, 1, 4}, /* 1.05 ms */
      {10, 3, 0, 3, 7},
      {10, 3, 4, 33, 45}, /* 3 + 2 + 4 + 8 + 16 times 1.05 ms */
      {12, 7, 2, 54, 70}, /* 7 + 2 + 4 times 4.2 ms */
  };
  EACH_ROW(i, rows) {
    PAIR p = open_pair(.planes = 3, .paths = 2);
    int end = open_qp(p, .memory_bytes = 300 * MTU, .timeout = rows[i].timeout,
                      .retry_linear = rows[i].linear, .retry_exp = rows[i].exponential);
    WRITE_AND_WAIT(p, end, 10 * MTU, 10 * MS);
    for (int plane = 1; plane <= 3; plane++)
      mrc_pair_silence(p, plane, true);
    uint64_t silent_ns = p->now_ns;
    for (int k = 0; k < 10; k++)
      CHECK_EQ(mrc_pair_write(p, end, 20 * MTU), 0);
    CHECK(mrc_pair_finish(p, SECOND));
    CHECK(p->now_ns - silent_ns >= rows[i].least_ms * MS);
    CHECK(p->now_ns - silent_ns <= rows[i].most_ms * MS);
    CHECK_EQ(audit_of(p, end)->statuses[MRC_WC_RETRY_EXC_ERR], 1); /* the oldest */
    CHECK_EQ(audit_of(p, end)->statuses[MRC_WC_WR_FLUSH_ERR], 9);
    CHECK_EQ(mrc_pair_info(p, end).state, MRC_QP_ERROR);
    CHECK_EQ(mrc_pair_info(p, end).status, MRC_WC_RETRY_EXC_ERR);
    CHECK_EQ(n_events(p, 0, MRC_EVENT_QP_ERROR, MRC_WC_RETRY_EXC_ERR), 1);
    uint64_t packets = audit_of(p, end)->data_packets;
    run_for(p, 100 * MS); /* and then it is quiet */
    CHECK_EQ(audit_of(p, end)->data_packets, packets);
  }
}

/* All planes silent for less time than the retries take: the transfer resumes. */
TEST(test_silence__of_all_planes_for_a_while) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 1u << 20, .timeout = 10, .retry_linear = 7, .retry_exp = 8);
  CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
  mrc_pair_silence(p, 1, true);
  mrc_pair_silence(p, 2, true);
  run_for(p, 40 * MS);
  CHECK_EQ(succeeded(p, end), 0);
  mrc_pair_silence(p, 1, false);
  mrc_pair_silence(p, 2, false);
  CHECK(mrc_pair_finish(p, 300 * MS));
  CHECK_EQ(succeeded(p, end), 1);
}

/* A plane dies and heals every 50 ms: each relapse doubles its probation, so after a few it stays
   suspended and costs nothing any more. */
TEST(test_silence__of_a_flapping_plane) {
  PAIR p = open_pair(.planes = 4, .paths = 2, .port_out.rate_bps = 25000000);
  int end = open_qp(p, .memory_bytes = 40u << 20, .path_mtu = 4096);
  write_many(p, end, 1u << 20, 40);
  uint64_t lost[2] = {0};
  for (int part = 0; part < 2; part++) {
    for (int i = 0; i < (part == 0 ? 60 : 20); i++) {
      mrc_pair_silence(p, 2, i % 2 == 0);
      run_for(p, 50 * MS);
    }
    lost[part] = mrc_pair_info(p, end).planes[1].lost_packets;
  }
  CHECK(lost[0] > 0);
  CHECK_EQ(lost[1], lost[0]);
  CHECK(counter(p, 0, MRC_COUNTER_PLANES_SUSPENDED) <= 8);
  CHECK(acked_bytes(p, end) > 3 * 9375000 / 100 * 95); /* three planes of 3.1 MB/s for 3 s */
}

/* Packets that the kernel refuses were never sent: no loss, no retransmission, every byte in place.
 */
TEST(test_refused__is_not_lost) {
  EACH_OF(int, every, 2, 6) {
    PAIR p = open_pair(.planes = 2, .paths = 2, .driver.refuse_one_in = every);
    int end = open_qp(p, .memory_bytes = 500 * MTU);
    for (int i = 0; i < 25; i++)
      CHECK_EQ(mrc_pair_write_imm(p, end, 20 * MTU), 0);
    CHECK(mrc_pair_finish(p, 100 * MS));
    CHECK(p->hosts[0].refused > 0);
    CHECK(counter(p, 0, MRC_COUNTER_TX_REFUSED) > 0);
    CHECK_EQ(retransmitted(p, end), 0);
    CHECK_EQ(mrc_pair_info(p, end).sent_packets, 500);
    CHECK_EQ(n_events(p, 0, MRC_EVENT_EV_STATE, MRC_PAIR_ANY), 0);
  }
}

/* A batch of one burst a call, as from a driver with little room. */
TEST(test_transmit__one_burst_at_a_time) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .driver.capacity = 1);
  int end = open_qp(p, .memory_bytes = 500 * MTU);
  WRITE_IMM_AND_WAIT(p, end, 500 * MTU, 100 * MS);
  CHECK_EQ(retransmitted(p, end), 0);
}

/* Sockets fill repeatedly: a blocked port gets no packets (the auditor checks), others go on. */
TEST(test_blocked__ports_wait_for_their_socket) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = 1000000000,
                     .driver.sndbuf_bytes = 30000);
  int end = open_qp(p, .memory_bytes = 4u << 20);
  write_many(p, end, 1u << 20, 4);
  CHECK(mrc_pair_finish(p, 200 * MS));
  CHECK(p->hosts[0].refused > 0);
  CHECK_EQ(retransmitted(p, end), 0);
}

/* One port stays blocked: its share waits or moves to other ports; nothing is lost or hangs. */
TEST(test_blocked__one_port_for_long) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 1u << 20);
  mrc_engine_port_blocked(p->hosts[0].engine, 1, true, p->now_ns);
  p->hosts[0].blocked = 1;
  WRITE_AND_WAIT(p, end, 1u << 20, 100 * MS);
  CHECK_EQ(p->hosts[0].plane_packets[0], 0);
}

/* A packet that the local timeout declares lost avoids its plane and its EV, but it does not wait
   for a socket that stays full. */
TEST(test_blocked__a_lost_packet_does_not_wait_for_the_port) {
  static const struct {
    uint32_t paths;
    uint32_t opcode; /* of the packets that get lost, with all their answers */
  } rows[] = {{1, MRC_PAIR_DATA}, {2, MRC_PAIR_DATA}, {1, MRC_PAIR_ANY}, {2, MRC_PAIR_ANY}};
  EACH_ROW(row, rows) {
    PAIR p = open_pair(.planes = 2, .paths = rows[row].paths);
    int end = open_qp(p, .memory_bytes = MTU);
    mrc_engine_port_blocked(p->hosts[0].engine, 1, true, p->now_ns);
    p->hosts[0].blocked = 1;
    mrc_pair_lose(p, (struct mrc_pair_rule){
                         .plane = 2, .opcode = rows[row].opcode, .times = 2 + 4 * (row / 2)});
    WRITE_AND_WAIT(p, end, MTU, 1000 * MS);
    CHECK_EQ(p->hosts[0].plane_packets[0], 0);
    CHECK(retransmitted(p, end) > 0);
    CHECK(row < 2 || counter(p, 0, MRC_COUNTER_LOST_BY_TIMEOUT) > 0);
  }
}

/* A port's link goes down during a transfer: the others carry all; when it is up, it takes its
   share again. */
TEST(test_port__down_and_up) {
  PAIR p = open_pair(.planes = 4, .paths = 2, .port_out.rate_bps = 500000000);
  int end = open_qp(p, .memory_bytes = 32u << 20, .timeout = 14, .mpr = 4096);
  write_many(p, end, 1u << 20, 32);
  run_for(p, 20 * MS);
  mrc_pair_port_up(p, 0, 3, false);
  uint64_t at_down = acked_bytes(p, end);
  run_for(p, 20 * MS);
  CHECK(acked_bytes(p, end) - at_down > 2500000); /* of 3.75 MB in 20 ms over three planes */
  uint64_t on_plane = p->hosts[0].plane_bytes[2];
  mrc_pair_port_up(p, 0, 3, true);
  CHECK(mrc_pair_finish(p, 500 * MS));
  CHECK(p->hosts[0].plane_bytes[2] > on_plane + (1u << 20));
  CHECK_EQ(succeeded(p, end), 32);
}

TEST(test_port__all_down_and_one_up) {
  PAIR p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 1u << 20, .timeout = 10, .retry_linear = 7, .retry_exp = 8);
  mrc_pair_port_up(p, 0, 1, false);
  mrc_pair_port_up(p, 0, 2, false);
  CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
  run_for(p, 20 * MS);
  mrc_pair_port_up(p, 0, 2, true);
  CHECK(mrc_pair_finish(p, 300 * MS));
  CHECK_EQ(succeeded(p, end), 1);
}

/* A link of 500 Mbit/s with a buffer of 1 MB, as a tbf: the standing queue stays short, so the
   buffer does not overflow and no EV is declared dead; the link stays busy. */
TEST(test_queue__stays_short_on_a_slow_link) {
  PAIR p = open_pair(.planes = 4, .paths = 2, .port_out.rate_bps = 500000000,
                     .port_out.queue_bytes = 1000000);
  int end = open_qp(p, .memory_bytes = 64u << 20, .mpr = 4096, .path_mtu = 8192, .timeout = 14);
  write_many(p, end, 1u << 20, 64);
  run_for(p, 50 * MS); /* slow start is over */
  uint64_t start_ns = p->now_ns, start = acked_bytes(p, end);
  uint64_t longest = 0;
  while (p->now_ns < start_ns + 150 * MS && mrc_pair_step(p, start_ns + 150 * MS))
    for (int plane = 0; plane < 4; plane++) {
      uint64_t backlog = mrc_link_backlog(&p->port_out[0][plane], p->now_ns);
      longest = backlog > longest ? backlog : longest;
    }
  CHECK(longest < 500000); /* 8 ms; the target is 2 */
  /* 95 % of the payload that 150 ms of four planes can carry */
  CHECK(acked_bytes(p, end) - start > 37500000 / 100 * 95);
  CHECK(mrc_pair_finish(p, 300 * MS));
  CHECK_EQ(retransmitted(p, end), 0);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD), 0);
}

/* Two QPs share the links: the first keeps its share, although the second counts the standing queue
   as part of the path. */
TEST(test_queue__is_shared_by_two_qps) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = 500000000,
                     .port_out.queue_bytes = 1000000);
  int first = open_qp(p, .memory_bytes = 32u << 20, .mpr = 4096, .path_mtu = 4096, .timeout = 14);
  write_many(p, first, 1u << 20, 32);
  run_for(p, 30 * MS);
  int second = open_qp(p, .memory_bytes = 32u << 20, .mpr = 4096, .path_mtu = 4096, .timeout = 14);
  write_many(p, second, 1u << 20, 32);
  run_for(p, 100 * MS);
  uint64_t a = acked_bytes(p, first), b = acked_bytes(p, second);
  run_for(p, 80 * MS);
  a = acked_bytes(p, first) - a;
  b = acked_bytes(p, second) - b;
  CHECK(a > (a + b) / 100 && b > (a + b) / 100);
  CHECK(mrc_pair_finish(p, 2 * SECOND));
  CHECK_EQ(n_events(p, 0, MRC_EVENT_EV_STATE, MRC_EV_ASSUMED_BAD), 0);
}

/* Bytes acknowledged in the next `ns`. */
static uint64_t goodput(struct mrc_pair *p, int end, uint64_t ns) {
  const uint64_t before = acked_bytes(p, end);
  run_for(p, ns);
  return acked_bytes(p, end) - before;
}

/* The demonstration in virtual time: four planes of 500 Mbit/s, jumbo frames, late hosts. A plane
   falls silent and heals: goodput hardly falls below the others' rate, and recovers fully. */
SLOW(test_silence__costs_hardly_any_goodput) {
  enum { BIN_MS = 20, PLANE_BYTES = 500000 / 8 * BIN_MS }; /* a plane's share of a bin */
  PAIR p =
      open_pair(.planes = 4, .paths = 2, .path.delay_ns = 30 * US, .port_out.rate_bps = 500000000,
                .port_out.queue_bytes = 2000000, .driver.wake_ns = 50 * US);
  int end = open_qp(p, .memory_bytes = 160u << 20, .path_mtu = 8844, .sq_depth = 160);
  write_many(p, end, 1u << 20, 160);
  run_for(p, 40 * MS);
  for (int i = 0; i < 4; i++)
    CHECK(goodput(p, end, BIN_MS * MS) >= 4 * PLANE_BYTES / 100 * 95);
  mrc_pair_silence(p, 2, true);
  EACH_OF(int, i, 0, 10)
    CHECK(goodput(p, end, BIN_MS * MS) >= 3 * PLANE_BYTES / 100 * (i == 0 ? 85 : 95));
  mrc_pair_silence(p, 2, false);
  run_for(p, 80 * MS); /* up to 64 ms to the next probe, then three answers */
  for (int i = 0; i < 4; i++)
    CHECK(goodput(p, end, BIN_MS * MS) >= 4 * PLANE_BYTES / 100 * 95);
  CHECK(retransmitted(p, end) <= 100); /* what was in flight on the plane */
  CHECK(mrc_pair_finish(p, SECOND));
  CHECK_EQ(mrc_pair_info(p, end).spurious_packets, 0);
}

/* ---- the way back ---- */

/* A QP that only receives probes its reverse EVs and answers on EVs that work. */

#define RATE 500000000

static uint64_t probes(const struct mrc_pair *p, int host) {
  return counter(p, host, MRC_COUNTER_TX_EV_PROBES);
}

/* The path from host 1 to host 0 on one plane. */
static void silence_back(struct mrc_pair *p, int plane, bool silent) {
  for (int path = 0; path < p->config.paths; path++)
    mrc_pair_path(p, 1, 0, plane, path)->config.silent = silent;
}

static int start_writing(struct mrc_pair *p, int n) {
  const int end = open_qp(p, .memory_bytes = (uint64_t)n << 20, .mpr = 128, .probe = true);
  write_many(p, end, 1u << 20, n);
  return end;
}

/* The receiving side sends about one probe a round trip while it receives, but none more often than
   the hosts' noise allows. */
TEST(test_probes__once_a_round_trip_while_receiving) {
  static const struct {
    uint32_t noise_ns;
    uint64_t delay_ns;
    uint64_t most_in_10_ms;
  } rows[] = {{2000, 50 * US, 100}, {500000, 50 * US, 20}, {2000, 500 * US, 10}};
  EACH_ROW(i, rows) {
    PAIR p = open_pair(.planes = 2, .paths = 2, .engine.noise_ns = rows[i].noise_ns,
                       .path.delay_ns = rows[i].delay_ns); /* no queues: the window is the limit */
    start_writing(p, 32);
    run_for(p, 5 * MS);
    const uint64_t before = probes(p, 1);
    run_for(p, 10 * MS);
    const uint64_t sent = probes(p, 1) - before;
    CHECK(sent <= rows[i].most_in_10_ms + 1);
    CHECK(sent >= rows[i].most_in_10_ms / 2);
    CHECK_EQ(probes(p, 0), 4); /* at connecting */
    CHECK(mrc_pair_finish(p, SECOND));
    run_for(p, 5 * MS);
    const uint64_t at_end = probes(p, 1);
    run_for(p, SECOND);
    CHECK_EQ(probes(p, 1), at_end); /* idle */
  }
}

/* Many QPs that receive together send few more probes than one. */
TEST(test_probes__together_few_of_many_qps) {
  uint64_t sent[2];
  for (int many = 0; many < 2; many++) {
    PAIR p =
        open_pair(.planes = 2, .paths = 2, .engine.noise_ns = 500000, .path.delay_ns = 50 * US);
    for (int i = 0; i < (many ? MRC_MOST_CROWD : 1); i++)
      start_writing(p, 8);
    run_for(p, 2 * MS);
    const uint64_t before = probes(p, 1);
    run_for(p, 3 * MS);
    sent[many] = probes(p, 1) - before;
  }
  CHECK(sent[0] > 0);
  CHECK(sent[1] <= 3 * sent[0]);
}

/* Both sides send: their SACKs show which EVs work, so neither side probes. */
TEST(test_probes__none_when_data_goes_both_ways) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = RATE);
  const int end = open_qp(p, .memory_bytes = 4u << 20);
  for (int i = 0; i < 4; i++) {
    CHECK_EQ(mrc_pair_write(p, end, 1u << 20), 0);
    CHECK_EQ(mrc_pair_write(p, p->ends[end]->peer, 1u << 20), 0);
  }
  run_for(p, 20 * MS);
  CHECK_EQ(probes(p, 0) + probes(p, 1), 0);
}

/* The receiving side writes a little now and then, as small requests for data. Where its packets
   arrive it needs no probe, so it sends far fewer. */
TEST(test_probes__few_when_small_writes_tell) {
  uint64_t sent[2];
  for (int requests = 0; requests < 2; requests++) {
    PAIR p =
        open_pair(.planes = 2, .paths = 2, .engine.noise_ns = 500000, .path.delay_ns = 50 * US);
    const int end = start_writing(p, 32);
    run_for(p, 5 * MS);
    const uint64_t before = probes(p, 1);
    for (int i = 0; i < 40; i++) {
      if (requests) CHECK_EQ(mrc_pair_write(p, p->ends[end]->peer, 64), 0);
      run_for(p, MS / 4);
    }
    sent[requests] = probes(p, 1) - before;
    CHECK(mrc_pair_finish(p, SECOND));
  }
  CHECK(sent[0] >= 10);
  CHECK(sent[1] <= 1);
}

/* The return path is dead on one plane: answers leave the plane and come back to it when it heals;
   data goes on in both cases. */
TEST(test_answers__leave_a_plane_whose_way_back_is_dead) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = RATE);
  const int end = start_writing(p, 16);
  const int peer = p->ends[end]->peer;
  run_for(p, 5 * MS);
  silence_back(p, 2, true);
  run_for(p, 20 * MS);
  CHECK(!mrc_reverse_works(inside(p, peer), 1) && mrc_reverse_works(inside(p, peer), 0));
  CHECK_EQ(inside(p, peer)->planes[1].reverse_ev, MRC_EV_NONE);
  const uint64_t packets = p->hosts[1].plane_packets[1], before = probes(p, 1);
  const uint64_t by_plane_2 = p->hosts[0].plane_bytes[1];
  run_for(p, 20 * MS);
  CHECK(p->hosts[1].plane_packets[1] - packets <= probes(p, 1) - before); /* probes only */
  CHECK(p->hosts[0].plane_bytes[1] - by_plane_2 > 1000000);               /* of 1.25 MB */
  CHECK(!mrc_pair_info(p, end).planes[1].suspended);
  silence_back(p, 2, false);
  run_for(p, 20 * MS);
  CHECK(mrc_reverse_works(inside(p, peer), 1));
  CHECK(mrc_pair_finish(p, SECOND));
  CHECK_EQ(mrc_pair_info(p, end).timeouts, 0);
}

/* One EV of a plane is dead on the return path: after its probe failed, answers use the others. */
TEST(test_answers__use_evs_that_answered) {
  PAIR p = open_pair(.paths = 4, .port_out.rate_bps = RATE, .engine.noise_ns = 20000);
  const int end = start_writing(p, 8);
  const int peer = p->ends[end]->peer;
  run_for(p, 5 * MS);
  mrc_pair_path(p, 1, 0, 1, 3)->config.silent = true;
  run_for(p, 10 * MS);
  const struct mrc_link *dead = mrc_pair_path(p, 1, 0, 1, 3);
  const uint64_t on_dead = dead->entered, probed = probes(p, 1);
  for (int i = 0; i < 30; i++) {
    run_for(p, 1 * MS);
    const uint16_t ev = inside(p, peer)->planes[0].reverse_ev;
    CHECK(ev < 3);
  }
  CHECK(dead->entered - on_dead <= probes(p, 1) - probed); /* its probes, and no answers */
  CHECK(mrc_pair_finish(p, SECOND));
}

/* A transfer over two planes whose answers have found EV 8, the only one of plane 2 that is not
   dead on the return path. */
static struct mrc_pair *open_with_one_reverse_ev(int *end) {
  struct mrc_pair *p =
      open_pair(.planes = 2, .paths = 8, .port_out.rate_bps = RATE, .engine.noise_ns = 20000);
  *end = start_writing(p, 16);
  const struct mrc_qp *receiver = inside(p, p->ends[*end]->peer);
  run_for(p, 5 * MS);
  for (int path = 1; path < 8; path++)
    mrc_pair_path(p, 1, 0, 2, path)->config.silent = true;
  while (receiver->planes[1].reverse_ev != 8)
    CHECK(mrc_pair_step(p, p->now_ns + SECOND));
  return p;
}

/* Most EVs of a plane are dead on the return path: probes of two of them in a row do not show that
   the plane has failed. */
TEST(test_answers__stay_on_a_plane_with_one_ev_that_works) {
  int end;
  PAIR p = open_with_one_reverse_ev(&end);
  const struct mrc_qp *receiver = inside(p, p->ends[end]->peer);
  for (int i = 0; i < 40; i++) {
    run_for(p, MS);
    CHECK(mrc_reverse_works(receiver, 1));
  }
  CHECK(mrc_pair_finish(p, SECOND));
}

/* Likewise for answers to the probes of an EV: they show the state of that EV, and not of the EV
   that the answer happens to take. */
TEST(test_answers__to_ev_probes_use_evs_that_answered) {
  int end;
  PAIR p = open_with_one_reverse_ev(&end);
  distrust(p, end, 8);
  run_for(p, 5 * MS);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 0).state, MRC_EV_GOOD);
  CHECK_EQ(mrc_pair_ev(p, end, 2, 0).sent_probes, 1 + 3); /* one at the connect */
  CHECK(mrc_pair_finish(p, SECOND));
}

/* The EV that carries all answers may die with the window full. Then the sender only sends
   reliability probes: from the second one on, answers use any EV. */
TEST(test_answers__leave_their_ev_when_the_peer_asks_again) {
  PAIR p = open_pair(.paths = 8, .port_out.rate_bps = RATE);
  const int end = start_writing(p, 8);
  struct mrc_qp *receiver = inside(p, p->ends[end]->peer);
  run_for(p, 5 * MS);
  const uint16_t ev = receiver->planes[0].reverse_ev;
  CHECK(ev != MRC_EV_NONE);
  mrc_reverse_on_request(receiver);
  CHECK_EQ(receiver->planes[0].reverse_ev, ev);
  mrc_reverse_on_request(receiver); /* and nothing arrived since */
  CHECK_EQ(receiver->planes[0].reverse_ev, MRC_EV_NONE);
  CHECK(mrc_pair_finish(p, SECOND));
}

/* Every return path is dead for a while: answers use any EV, and the transfer recovers. */
TEST(test_answers__try_all_when_none_works) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = RATE);
  const int end = start_writing(p, 8);
  run_for(p, 5 * MS);
  silence_back(p, 1, true);
  silence_back(p, 2, true);
  run_for(p, 200 * MS);
  CHECK(!mrc_reverse_works(inside(p, p->ends[end]->peer), 0));
  silence_back(p, 1, false);
  silence_back(p, 2, false);
  CHECK(mrc_pair_finish(p, 2 * SECOND));
}

/* ---- planes are pairs of ports ---- */

/* Host 0 has one port, host 1 two: two planes share the port of host 0. Each host follows its own
   ports and those of the other one. */
TEST(test_ports__two_that_face_one) {
  PAIR p = open_pair(.planes = 2, .ports = {{1, 1}, {1, 2}}, .port_in.rate_bps = 100000000);
  int end = open_qp(p, .memory_bytes = 32u << 20, .mpr = 1024, .path_mtu = 4096);
  write_many(p, end, 1u << 20, 8);
  write_many(p, p->ends[end]->peer, 1u << 20, 8);
  run_for(p, 100 * MS);
  const struct mrc_qp_info info = mrc_pair_info(p, end);
  EACH_OF(int, plane, 0, 2) {
    CHECK(info.planes[plane].sent_bytes > 600000);
    CHECK(info.planes[plane].received_bytes > 200000);
  }
  /* The second port of host 1 goes down: the port of host 0 is up. */
  mrc_pair_port_up(p, 1, 2, false);
  run_for(p, 20 * MS);
  CHECK_EQ(mrc_pair_info(p, end).planes[0].suspended, 0);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 1);
  CHECK_EQ(n_reasons(p, 0, MRC_EVENT_PORT, 0, MRC_REASON_PEER_PORT), 1);
  mrc_pair_port_up(p, 1, 2, true);
  CHECK(mrc_pair_finish(p, 3000 * MS));
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
  CHECK_EQ(succeeded(p, end), 8);
}

/* The ports have other numbers at the peer: a port status names the port that went down. */
TEST(test_ports__with_other_numbers_there) {
  PAIR p = open_pair(.planes = 3, .ports = {{1, 2, 3}, {3, 1, 2}});
  int end = open_qp(p, .memory_bytes = 4u << 20);
  WRITE_AND_WAIT(p, end, 1u << 20, 100 * MS);
  mrc_pair_port_up(p, 1, 1, false);
  run_for(p, 20 * MS);
  const struct mrc_qp_info info = mrc_pair_info(p, end);
  CHECK_EQ(info.planes[0].suspended, 0);
  CHECK_EQ(info.planes[1].suspended, 1);
  CHECK_EQ(info.planes[2].suspended, 0);
  CHECK_EQ(p->hosts[0].drops[MRC_DROP_PORT_STATUS], 0);
}

/* A backup carries data while no other plane can, and a few round trips after the others fell
   silent. */
TEST(test_backup__carries_while_no_other_plane_can) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .backups = 2, .port_out.rate_bps = 500000000);
  int end = open_qp(p, .memory_bytes = 64u << 20, .path_mtu = 4096, .timeout = 16);
  write_many(p, end, 1u << 20, 30);
  run_for(p, 100 * MS);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].sent_packets, 0);
  mrc_pair_silence(p, 1, true);
  const uint64_t silent_ns = p->now_ns;
  while (mrc_pair_info(p, end).planes[1].sent_packets == 0 && p->now_ns < silent_ns + 100 * MS)
    mrc_pair_step(p, p->now_ns + MS);
  CHECK(p->now_ns - silent_ns < 25 * MS);
  const uint64_t before = acked_bytes(p, end);
  run_for(p, 100 * MS);
  CHECK(acked_bytes(p, end) - before > 4000000);
  mrc_pair_silence(p, 1, false);
  run_for(p, 50 * MS);
  const uint64_t on_backup = mrc_pair_info(p, end).planes[1].sent_packets;
  run_for(p, 50 * MS);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].sent_packets, on_backup);
  CHECK(mrc_pair_finish(p, 1000 * MS));
  CHECK_EQ(succeeded(p, end), 30);
}

/* A plane of weight 25 carries a quarter of what the other one carries, and all while that is down.
 */
TEST(test_weight__limits_what_a_plane_carries) {
  PAIR p = open_pair(.planes = 2, .paths = 2, .port_out.rate_bps = 500000000);
  int end = open_qp(p, .memory_bytes = 64u << 20, .path_mtu = 4096);
  CHECK_EQ(mrc_qp_set_weight(p->hosts[0].engine, p->ends[end]->qpn, 2, 25, p->now_ns), 0);
  CHECK_EQ(mrc_qp_set_weight(p->hosts[0].engine, p->ends[end]->qpn, 2, 101, p->now_ns), -EINVAL);
  write_many(p, end, 1u << 20, 40);
  run_for(p, 200 * MS);
  const struct mrc_qp_info info = mrc_pair_info(p, end);
  CHECK(info.planes[0].sent_bytes > 11000000);
  CHECK(info.planes[1].sent_bytes * 4 > info.planes[0].sent_bytes * 9 / 10);
  CHECK(info.planes[1].sent_bytes * 4 < info.planes[0].sent_bytes * 11 / 10);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PLANE_SHARE, MRC_PAIR_ANY), 0); /* that is not slow */
  mrc_pair_port_up(p, 0, 1, false);
  run_for(p, 50 * MS);
  CHECK(mrc_pair_info(p, end).planes[1].sent_bytes - info.planes[1].sent_bytes > 2500000);
  mrc_pair_port_up(p, 0, 1, true);
  CHECK(mrc_pair_finish(p, 2000 * MS));
}

/* EVs that join a running QP: nothing is sent on them before they are proven. */
TEST(test_evs__join_a_running_qp) {
  PAIR p = open_pair(.planes = 2, .paths = 1, .port_out.rate_bps = 100000000);
  int end = open_qp(p, .memory_bytes = 32u << 20, .path_mtu = 4096);
  mrc_engine *engine = p->hosts[0].engine;
  const uint32_t qpn = p->ends[end]->qpn;
  write_many(p, end, 1u << 20, 8);
  CHECK_EQ(mrc_qp_set_ev_state(engine, qpn, 1, MRC_EV_UNPROVEN, p->now_ns), 0);
  run_for(p, 50 * MS);
  const uint64_t sent = mrc_pair_info(p, end).planes[1].sent_packets;
  run_for(p, 50 * MS);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].sent_packets, sent);
  const struct mrc_probe_attr probe = {.qpn = qpn, .ev_index = 1, .timeout_ns = 100 * MS};
  CHECK_EQ(mrc_engine_probe_evs(engine, &probe, 1, p->now_ns), 1);
  run_for(p, 20 * MS);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PROBE, MRC_PAIR_ANY), 1);
  CHECK_EQ(mrc_qp_set_ev_state(engine, qpn, 1, MRC_EV_GOOD, p->now_ns), 0);
  run_for(p, 50 * MS);
  CHECK(mrc_pair_info(p, end).planes[1].sent_packets > sent + 50);
  CHECK(mrc_pair_finish(p, 1000 * MS));
}
