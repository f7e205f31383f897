/* SPDX-License-Identifier: Apache-2.0 */
/* Backups: planes whose links have a price. They are ready when they are needed, and carry next to
   nothing before. */
#include "core/engine.h"
#include "scenario.h"

/* A transfer that lasts, over plane 1 with plane 2 as backup, at both hosts. */
static struct mrc_pair *open_with_backup(int *end) {
  struct mrc_pair *p =
      open_pair(.planes = 2, .paths = 2, .backups = 2, .port_out.rate_bps = 20000000);
  mrc_pair_path(p, 0, 1, 2, 0)->config.delay_ns = 30 * MS;
  mrc_pair_path(p, 0, 1, 2, 1)->config.delay_ns = 30 * MS;
  *end = open_qp(p, .memory_bytes = 64u << 20, .path_mtu = 4096, .timeout = 16);
  return p;
}

static uint64_t packets_on_backup(const struct mrc_pair *p, int host) {
  return p->hosts[host].plane_packets[1];
}

/* A probe each second measures the backup while the QP carries data. Nothing else leaves there, in
   either direction; and nothing at all while the QP is idle. */
TEST(test_probes__once_a_second_while_data_flows) {
  int end;
  PAIR p = open_with_backup(&end);
  run_for(p, 5 * SECOND);
  CHECK_EQ(packets_on_backup(p, 0), 0);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].rtt_ns, -1);
  write_many(p, end, 1u << 20, 24); /* takes 10 s */
  run_for(p, 9 * SECOND);
  CHECK(mrc_pair_info(p, end).planes[1].rtt_ns > 30000000);
  CHECK(packets_on_backup(p, 0) >= 9 && packets_on_backup(p, 0) <= 10);
  CHECK(packets_on_backup(p, 0) - packets_on_backup(p, 1) <= 1); /* the answers */
  CHECK(mrc_pair_finish(p, 3 * SECOND));
  run_for(p, SECOND);
  const uint64_t before = packets_on_backup(p, 0);
  CHECK(before <= 12);
  run_for(p, 10 * SECOND);
  CHECK_EQ(packets_on_backup(p, 0), before);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].sent_packets, 0);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
}

/* A backup that is dead is suspended long before it is needed, and costs a probe a second then; one
   that returns is found in a few seconds. */
TEST(test_probes__find_a_dead_backup) {
  int end;
  PAIR p = open_with_backup(&end);
  write_many(p, end, 1u << 20, 48);
  run_for(p, 2 * SECOND);
  mrc_pair_silence(p, 2, true);
  run_for(p, 2 * SECOND);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 1);
  CHECK_EQ(n_reasons(p, 0, MRC_EVENT_PLANE, 0, MRC_REASON_SILENCE), 1);
  const uint64_t before = packets_on_backup(p, 0);
  run_for(p, 8 * SECOND);
  CHECK(packets_on_backup(p, 0) - before <= 9);
  mrc_pair_silence(p, 2, false);
  run_for(p, 2 * SECOND);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
  CHECK_EQ(mrc_pair_info(p, end).planes[0].suspended, 0);
  CHECK(mrc_pair_finish(p, 15 * SECOND));
}

/* A lost probe or two do not suspend a backup. */
TEST(test_probes__may_get_lost) {
  int end;
  PAIR p = open_with_backup(&end);
  write_many(p, end, 1u << 20, 10);
  run_for(p, 100 * MS);
  mrc_pair_lose(p, (struct mrc_pair_rule){
                       .host = 0, .plane = 2, .opcode = MRC_OP_ENDPOINT_REQUEST, .times = 2});
  CHECK(mrc_pair_finish(p, 8 * SECOND));
  CHECK_EQ(p->rules[0].times, 0);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 0);
  CHECK_EQ(n_events(p, 0, MRC_EVENT_PLANE, MRC_PAIR_ANY), 0);
}

/* A backup that was dead for long is tried again at once when the other plane dies. */
TEST(test_probes__are_quick_when_the_backup_is_needed) {
  int end;
  PAIR p = open_with_backup(&end);
  write_many(p, end, 1u << 20, 10);
  mrc_pair_silence(p, 2, true);
  run_for(p, 3 * SECOND);
  CHECK_EQ(mrc_pair_info(p, end).planes[1].suspended, 1);
  mrc_pair_silence(p, 2, false);
  mrc_pair_port_up(p, 0, 1, false);
  run_for(p, 400 * MS);
  CHECK(mrc_pair_info(p, end).planes[1].sent_packets > 0);
  CHECK(mrc_pair_finish(p, 15 * SECOND));
}

/* The way back of one of two planes in use is dead for a while: the other one carries the answers
   of both. */
TEST(test_answers__take_a_backup_only_without_another_plane) {
  PAIR p = open_pair(.planes = 3, .paths = 2, .backups = 1, .port_out.rate_bps = 20000000);
  int end = open_qp(p, .memory_bytes = 8u << 20, .path_mtu = 4096, .timeout = 16);
  write_many(p, end, 1u << 20, 4);
  run_for(p, 200 * MS);
  EACH_OF(int, path, 0, 2)
    mrc_pair_path(p, 1, 0, 2, path)->config.silent = true;
  run_for(p, 600 * MS);
  CHECK(p->hosts[1].plane_packets[0] <= 3); /* answers to probes */
  CHECK_EQ(mrc_pair_info(p, end).planes[0].sent_packets, 0);
  EACH_OF(int, path, 0, 2)
    mrc_pair_path(p, 1, 0, 2, path)->config.silent = false;
  CHECK(mrc_pair_finish(p, 5 * SECOND));
}
