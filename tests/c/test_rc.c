/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated RC: what is sent arrives, in order and once; what may not go waits or is refused. */
#include "rc/rc.h"

#include "rc_pair.h"

static struct pair_end ends[2];

static void start(void) {
  pair_start(ends);
  for (int i = 0; i < 2; i++)
    pair_connect(&ends[i], MRC_RC_ANSWERS);
}

static void stop(void) {
  for (int i = 0; i < 2; i++)
    pair_stop(&ends[i]);
}

static struct mrc_rc_request send_of(uint32_t bytes) {
  return (struct mrc_rc_request){.kind = MRC_RC_DO_SEND, .bytes = bytes};
}

static struct mrc_rc_request read_of(uint64_t va, uint32_t bytes) {
  return (struct mrc_rc_request){.kind = MRC_RC_DO_READ, .va = va, .bytes = bytes};
}

static const struct mrc_rc_request add = {
    .kind = MRC_RC_DO_FETCH_ADD, .bytes = sizeof(uint64_t), .value = 5};

/* ---- Sends ---- */

TEST(test_send__of_any_size_with_and_without_an_immediate) {
  const uint32_t sizes[] = {0, 1, 8, 65535, 65536, 65537, 3 << 20};
  start();
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    CHECK_ROW(i);
    pair_grant(&ends[1], 2);
    pair_request(&ends[0], send_of(sizes[i]));
    struct mrc_rc_request with = send_of(sizes[i]);
    with.with_imm = with.solicited = true;
    with.imm = 0x80000000u + (uint32_t)i;
    pair_request(&ends[0], with);
    pair_run(ends);
    CHECK_EQ(ends[0].done, 2 * (i + 1));
    CHECK_EQ(ends[0].n_received, 2 * (i + 1));
  }
  stop();
}

TEST(test_send__waits_for_a_receive_and_so_do_all_later_requests) {
  start();
  pair_request(&ends[0], send_of(10));
  pair_request(&ends[0], add);
  pair_run(ends);
  CHECK(mrc_rc_is_starved(&ends[0].rc));
  CHECK_EQ(ends[0].done, 0);
  CHECK_EQ(ends[1].counter, 0);
  pair_grant(&ends[1], 1);
  pair_run(ends);
  CHECK(!mrc_rc_is_starved(&ends[0].rc));
  CHECK_EQ(ends[0].done, 2);
  CHECK_EQ(ends[1].counter, 5);
  stop();
}

TEST(test_send__to_shared_receives_asks_for_as_many_as_it_needs) {
  pair_start(ends);
  ends[1].shared = true;
  for (int i = 0; i < 2; i++)
    pair_connect(&ends[i], 1);
  for (int i = 0; i < 3; i++)
    pair_request(&ends[0], send_of(100));
  pair_run(ends);
  CHECK_EQ(ends[1].wanted, 3);
  ends[1].pool = 2;
  pair_serve(&ends[1]);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 2);
  CHECK_EQ(ends[1].granted, 0);
  ends[1].pool = 9;
  pair_serve(&ends[1]);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 3);
  CHECK_EQ(ends[1].pool, 8);
  stop();
}

TEST(test_send__completes_when_the_peer_has_it) {
  start();
  pair_grant(&ends[1], 1);
  mrc_rc_send(&ends[1].rc);
  while (pair_deliver(&ends[1]))
    continue;
  pair_request(&ends[0], send_of(10));
  mrc_rc_send(&ends[0].rc);
  CHECK(pair_deliver(&ends[0]));
  CHECK_EQ(ends[0].n_received, 1);
  CHECK_EQ(ends[0].done, 0);
  CHECK(pair_complete(&ends[0]));
  CHECK_EQ(ends[0].done, 1);
  stop();
}

TEST(test_send__without_registered_memory_fails_when_it_is_the_oldest) {
  start();
  pair_grant(&ends[1], 3);
  pair_request(&ends[0], read_of(0, 100));
  pair_run(ends);
  pair_request(&ends[0], read_of(0, 100));
  mrc_rc_send(&ends[0].rc);
  ends[0].no_memory = true;
  pair_request(&ends[0], send_of(10));
  mrc_rc_send(&ends[0].rc);
  CHECK_EQ(ends[0].failed, 0);
  ends[0].no_memory = false;
  pair_run(ends);
  CHECK_EQ(ends[0].done, 2);
  CHECK_EQ(ends[0].failed, MRC_WC_LOC_PROT_ERR);
  CHECK_EQ(ends[0].n_received, 0);
  stop();
}

TEST(test_send__that_does_not_fit_fails_the_sender_too) {
  start();
  ends[1].no_room = true;
  pair_grant(&ends[1], 2);
  pair_request(&ends[0], send_of(10));
  pair_request(&ends[0], send_of(10));
  pair_run(ends);
  CHECK_EQ(ends[0].failed, MRC_WC_REM_INV_REQ_ERR);
  CHECK_EQ(ends[0].n_received, 0);
  CHECK(ends[1].rc.ended);
  stop();
}

TEST(test_frame__stays_until_the_engine_is_done_with_it) {
  start();
  pair_grant(&ends[1], 100);
  mrc_rc_send(&ends[1].rc);
  for (int i = 0; i < 50; i++) {
    pair_request(&ends[0], send_of(10));
    mrc_rc_send(&ends[0].rc);
    while (pair_deliver(&ends[0]))
      continue;
    mrc_rc_send(&ends[1].rc);
    while (pair_deliver(&ends[1]) || pair_complete(&ends[1]))
      continue;
  }
  CHECK_EQ(ends[0].n_acks, MRC_RC_SLOTS);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 50);
  stop();
}

TEST(test_prod__changes_nothing_at_the_peer) {
  start();
  pair_request(&ends[0], send_of(10));
  pair_run(ends);
  CHECK(mrc_rc_waits(&ends[0].rc));
  mrc_rc_prod(&ends[0].rc);
  mrc_rc_prod(&ends[0].rc); /* one is on its way */
  CHECK_EQ(ends[0].n_queue, 1);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 0);
  pair_grant(&ends[1], 1);
  pair_run(ends);
  CHECK(!mrc_rc_waits(&ends[0].rc));
  CHECK_EQ(ends[0].done, 1);
  stop();
}

/* ---- WRITEs ---- */

TEST(test_write__is_in_place_before_the_message_after_it) {
  start();
  pair_grant(&ends[1], 4);
  for (uint32_t i = 0; i < 2; i++) {
    pair_request(&ends[0],
                 (struct mrc_rc_request){.kind = MRC_RC_DO_WRITE, .bytes = 5000, .imm = 40 + i});
    pair_request(
        &ends[0],
        (struct mrc_rc_request){
            .kind = MRC_RC_DO_WRITE, .bytes = 6000 * i, .imm = 0xC0000000u + i, .with_imm = true});
  }
  pair_request(&ends[0], (struct mrc_rc_request){.kind = MRC_RC_DO_WRITE}); /* of no bytes */
  pair_run(ends);
  CHECK_EQ(ends[0].done, 5);
  CHECK_EQ(ends[0].n_received, 2);
  stop();
}

/* Its data may be in place while the frame that tells of it is still on its way. */
TEST(test_write_imm__is_done_with_its_frame) {
  start();
  pair_grant(&ends[1], 1);
  pair_run(ends);
  pair_request(&ends[0],
               (struct mrc_rc_request){.kind = MRC_RC_DO_WRITE, .bytes = 8, .with_imm = true});
  mrc_rc_send(&ends[0].rc);
  CHECK(pair_deliver(&ends[0]));
  CHECK(pair_complete(&ends[0]));
  CHECK_EQ(ends[0].done, 0);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 1);
  stop();
}

TEST(test_write__that_the_engine_refuses_fails_after_those_before_it) {
  start();
  pair_request(&ends[0], add);
  mrc_rc_send(&ends[0].rc);
  pair_request(&ends[0], (struct mrc_rc_request){.kind = MRC_RC_DO_WRITE, .bytes = 8});
  mrc_rc_send(&ends[0].rc);
  ends[0].n_queue--;
  mrc_rc_fail(&ends[0].rc, 1, MRC_WC_LOC_PROT_ERR);
  pair_request(&ends[0], add);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 1);
  CHECK_EQ(ends[0].failed, MRC_WC_LOC_PROT_ERR);
  CHECK_EQ(ends[1].counter, 5); /* the later one did not go */
  stop();
}

/* ---- READs and ATOMICs ---- */

TEST(test_read__of_any_size) {
  const uint32_t sizes[] = {0, 1, 65535, 65536, 65537, PAIR_MEMORY};
  start();
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    CHECK_ROW(i);
    pair_request(&ends[0], read_of(PAIR_MEMORY - sizes[i], sizes[i]));
    pair_run(ends);
    CHECK_EQ(ends[0].done, i + 1);
  }
  stop();
}

TEST(test_read__at_most_so_many_at_a_time) {
  start();
  for (int i = 0; i < 40; i++)
    pair_request(&ends[0], i % 2 == 0 ? read_of(0, 100) : add);
  mrc_rc_send(&ends[0].rc);
  CHECK_EQ(ends[0].rc.asking_tail - ends[0].rc.asking_head, MRC_RC_ANSWERS);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 40);
  CHECK_EQ(ends[1].counter, 20 * 5);
  stop();
}

TEST(test_read__does_not_need_that_its_reader_posts_receives) {
  start();
  pair_request(&ends[1], send_of(10)); /* no receive: it waits for ever */
  pair_request(&ends[0], read_of(0, PAIR_MEMORY));
  pair_request(&ends[0], add);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 2);
  CHECK_EQ(ends[1].done, 0);
  stop();
}

TEST(test_read__is_refused_where_the_peer_may_not) {
  const struct {
    struct mrc_rc_request request;
    uint8_t status;
  } rows[] = {
      {read_of(PAIR_MEMORY - 10, 11), MRC_WC_REM_ACCESS_ERR},
      {read_of(UINT64_MAX, 2), MRC_WC_REM_ACCESS_ERR},
      {{.kind = MRC_RC_DO_READ, .bytes = 1, .rkey = 8}, MRC_WC_REM_ACCESS_ERR},
      {{.kind = MRC_RC_DO_FETCH_ADD, .bytes = 8, .rkey = 8}, MRC_WC_REM_ACCESS_ERR},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    start();
    pair_request(&ends[0], read_of(0, 10));
    pair_request(&ends[0], rows[i].request);
    pair_request(&ends[0], read_of(0, 10));
    pair_run(ends);
    CHECK_EQ(ends[0].done, 1);
    CHECK_EQ(ends[0].failed, rows[i].status);
    CHECK_EQ(ends[1].failed, 0);
    stop();
  }
}

TEST(test_read__of_memory_that_goes_away_meanwhile_is_refused) {
  start();
  for (uint32_t i = 0; i < MRC_RC_ANSWERS; i++) /* more than all slots hold */
    pair_request(&ends[0], read_of(0, PAIR_MEMORY));
  mrc_rc_send(&ends[0].rc);
  while (pair_deliver(&ends[0]))
    continue;
  mrc_rc_send(&ends[1].rc);
  ends[1].no_reading = true;
  pair_run(ends);
  CHECK(ends[0].done > 0 && ends[0].done < MRC_RC_ANSWERS);
  CHECK_EQ(ends[0].failed, MRC_WC_REM_ACCESS_ERR);
  stop();
}

TEST(test_read__into_memory_that_is_not_registered_fails) {
  start();
  pair_request(&ends[0], read_of(0, 100000));
  mrc_rc_send(&ends[0].rc);
  ends[0].no_memory = true;
  pair_run(ends);
  CHECK_EQ(ends[0].failed, MRC_WC_LOC_PROT_ERR);
  stop();
}

TEST(test_fence__waits_for_answers) {
  start();
  struct mrc_rc_request fenced = {.kind = MRC_RC_DO_WRITE, .bytes = 8, .fenced = true};
  pair_request(&ends[0], read_of(0, 10));
  pair_request(&ends[0], fenced);
  mrc_rc_send(&ends[0].rc);
  CHECK_EQ(ends[0].n_queue, 1);
  pair_run(ends);
  CHECK_EQ(ends[0].done, 2);
  stop();
}
