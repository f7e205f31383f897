/* SPDX-License-Identifier: Apache-2.0 */
/* Messages over QPs that always work: matching, order, both ways of transfer, cancel, limits. */
#include "msg/msg.h"

#include <errno.h>
#include <stdlib.h>

#include "check.h"
#include "core/base.h"
#include "fake_qps.h"
#include "msg/frame.h"

enum { EAGER = 4096, LONG = 100000, HUGE = 5 << 20 };

static struct fake_side sides[2];
static const struct mrc_msg_config plain = {0};

static uint8_t *pattern(size_t n, uint8_t seed) {
  uint8_t *made = malloc(n + 1);
  for (size_t i = 0; i < n; i++)
    made[i] = (uint8_t)(i * 31 + seed + (i >> 8));
  return made;
}

static int post(int side, uint8_t kind, void *at, size_t n, uint64_t tag, uint64_t cookie,
                bool exact) {
  const struct mrc_msg_post each = {.cookie = cookie,
                                    .address = (uintptr_t)at,
                                    .bytes = n,
                                    .tag = tag,
                                    .space = 5,
                                    .kind = kind,
                                    .exact = exact};
  return mrc_msg_post(sides[side].msg, &each, 1, 0);
}

static void check_done(int side, uint32_t i, uint64_t cookie, int result, uint64_t bytes) {
  CHECK(sides[side].n_done > i);
  const struct mrc_msg_done *done = &sides[side].done[i];
  CHECK_EQ(done->cookie, cookie);
  CHECK_EQ(done->result, result);
  if (result == 0) CHECK_EQ(done->bytes, bytes);
}

static void check_idle(void) {
  fake_run(sides);
  for (int i = 0; i < 2; i++)
    CHECK_EQ(sides[i].n_regions, 2); /* the two boxes */
}

/* Sizes on both sides of every limit; the receive comes first or last, and is exact or not. */
TEST(test_transfer__every_size_and_order) {
  static const size_t sizes[] = {
      0, 1, 7, 8, EAGER - 1, EAGER, 4097, LONG, 1 << 20, (1 << 20) + 1, HUGE, HUGE - 3};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    for (int how = 0; how < 6; how++) {
      CHECK_ROW(i * 10 + (size_t)how);
      fake_open(sides, &plain);
      const size_t n = sizes[i];
      uint8_t *from = pattern(n, (uint8_t)i), *to = calloc(1, n + 1);
      const bool exact = how & 1;
      if (how / 2 == 0) post(1, MRC_MSG_RECV, to, n, 3, 2, exact);
      if (how / 2 == 0) fake_run(sides);
      CHECK_EQ(post(0, MRC_MSG_SEND, from, n, 3, 1, false), 1);
      if (how / 2 == 1) fake_run(sides);
      if (how / 2 != 0) post(1, MRC_MSG_RECV, to, n, 3, 2, exact);
      fake_run(sides);
      check_done(0, 0, 1, 0, n);
      check_done(1, 0, 2, 0, n);
      CHECK_MEM_EQ(to, from, n);
      CHECK_EQ(sides[0].n_done, 1);
      CHECK_EQ(sides[1].n_done, 1);
      check_idle();
      free(from);
      free(to);
      fake_close(sides);
    }
  }
}

/* Messages of a tag arrive in the order of their sends, whatever their sizes. */
TEST(test_order__of_a_tag) {
  enum { N = 200 };
  static const size_t sizes[] = {10, LONG, 0, 5000, EAGER, 70000};
  fake_open(sides, &plain);
  uint8_t *from[N], *to[N];
  for (uint32_t i = 0; i < N; i++) {
    const size_t n = sizes[i % 6];
    from[i] = pattern(n, (uint8_t)i);
    to[i] = calloc(1, LONG + 1);
    post(0, MRC_MSG_SEND, from[i], n, i % 3, i, false);
    if (i % 5 == 0) fake_run(sides);
    if (i >= 7) post(1, MRC_MSG_RECV, to[i - 7], LONG, (i - 7) % 3, i - 7, false);
  }
  for (uint32_t i = N - 7; i < N; i++)
    post(1, MRC_MSG_RECV, to[i], LONG, i % 3, i, false);
  fake_run(sides);
  CHECK_EQ(sides[0].n_done, N);
  CHECK_EQ(sides[1].n_done, N);
  for (uint32_t i = 0; i < N; i++) {
    CHECK_MEM_EQ(to[i], from[i], sizes[i % 6]);
    free(from[i]);
    free(to[i]);
  }
  check_idle();
  fake_close(sides);
}

/* A receive by mask takes the oldest message that fits. */
TEST(test_match__by_mask_and_from_any_peer) {
  uint64_t from[3] = {1, 2, 3}, to[3] = {0};
  fake_open(sides, &plain);
  for (uint64_t i = 0; i < 3; i++)
    post(0, MRC_MSG_SEND, &from[i], 8, 0x100 + i, i, false);
  fake_run(sides);
  const struct mrc_msg_post any = {.cookie = 9,
                                   .address = (uintptr_t)&to[0],
                                   .bytes = 8,
                                   .tag = 0x1FF,
                                   .ignore = 0xFF,
                                   .space = 5,
                                   .peer = MRC_MSG_ANY,
                                   .kind = MRC_MSG_RECV};
  post(1, MRC_MSG_RECV, &to[2], 8, 0x102, 7, false);
  CHECK_EQ(mrc_msg_post(sides[1].msg, &any, 1, 0), 1);
  check_done(1, 0, 7, 0, 8);
  check_done(1, 1, 9, 0, 8);
  CHECK_EQ(sides[1].done[1].tag, 0x100);
  CHECK_EQ(sides[1].done[1].peer, 0);
  CHECK_EQ(to[0], 1);
  CHECK_EQ(to[2], 3);
  fake_close(sides);
}

/* A message that is too long ends both sides with an error, and nothing is written. */
TEST(test_room__too_little) {
  static const struct {
    size_t sent, room;
    bool exact, first;
  } rows[] = {{100, 99, false, false},   {100, 99, false, true},     {LONG, 5000, false, false},
              {LONG, 5000, false, true}, {LONG, 50000, true, false}, {LONG, 50000, true, true},
              {100, 5000, true, true}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    fake_open(sides, &plain);
    uint8_t *from = pattern(LONG, 1), *to = calloc(1, LONG);
    if (rows[i].first) post(1, MRC_MSG_RECV, to, rows[i].room, 1, 2, rows[i].exact);
    if (rows[i].first) fake_run(sides);
    post(0, MRC_MSG_SEND, from, rows[i].sent, 1, 1, false);
    fake_run(sides);
    if (!rows[i].first) post(1, MRC_MSG_RECV, to, rows[i].room, 1, 2, rows[i].exact);
    fake_run(sides);
    check_done(1, 0, 2, -EMSGSIZE, 0);
    check_done(0, 0, 1, rows[i].sent > EAGER ? -EMSGSIZE : 0, rows[i].sent);
    for (size_t k = 0; k < LONG; k++)
      CHECK_EQ(to[k], 0);
    check_idle();
    free(from);
    free(to);
    fake_close(sides);
  }
}

/* Cancelled at every step: each operation ends once, cancelled or with its message. */
TEST(test_cancel__at_every_step) {
  for (int what = 0; what < 4; what++) {
    for (int steps = 0; steps < 12; steps++) {
      CHECK_ROW(what * 100 + steps);
      fake_open(sides, &plain);
      uint8_t *from = pattern(LONG, 1), *to = calloc(1, LONG);
      const int side = what / 2; /* which one cancels */
      const bool exact = what & 1;
      post(1, MRC_MSG_RECV, to, LONG, 1, 2, exact);
      post(0, MRC_MSG_SEND, from, LONG, 1, 1, false);
      for (int i = 0; i < steps; i++) {
        mrc_msg_pump(sides[i & 1].msg, 0);
        fake_step(&sides[i & 1]);
      }
      const bool ended = sides[side].n_done > 0;
      CHECK_EQ(mrc_msg_cancel(sides[side].msg, 5, side == 0 ? 1 : 2), ended ? -ENOENT : 0);
      fake_run(sides);
      CHECK_EQ(sides[side].n_done, 1);
      const int result = sides[side].done[0].result;
      CHECK(result == 0 || result == -ECANCELED);
      if (result == 0) {
        check_done(1 - side, 0, side == 0 ? 2 : 1, 0, LONG);
        CHECK_MEM_EQ(to, from, LONG);
      } else {
        CHECK_EQ(sides[1 - side].n_done, 0); /* the other one waits for another message */
        for (size_t k = 0; k < LONG; k++)
          CHECK_EQ(to[k], 0);
        post(side, side == 0 ? MRC_MSG_SEND : MRC_MSG_RECV, side == 0 ? from : to, LONG, 1, 4,
             exact);
        fake_run(sides);
        CHECK_MEM_EQ(to, from, LONG);
      }
      check_idle();
      free(from);
      free(to);
      fake_close(sides);
    }
  }
}

/* Messages that nobody receives take a bounded heap; the sender waits, then all go on. */
TEST(test_heap__is_bounded_and_goes_on) {
  enum { N = 400 };
  const struct mrc_msg_config small = {.heap_bytes = 64 << 10};
  fake_open(sides, &small);
  uint8_t *from = pattern(EAGER, 3), *to = calloc(1, EAGER);
  for (uint64_t i = 0; i < N; i++)
    post(0, MRC_MSG_SEND, from, EAGER, 1, i, false);
  fake_run(sides);
  CHECK(sides[0].n_done < 128);
  CHECK(mrc_msg_counters(sides[1].msg)->stalls > 0);
  for (uint64_t i = 0; i < N; i++) {
    memset(to, 0, EAGER);
    post(1, MRC_MSG_RECV, to, EAGER, 1, i, false);
    fake_run(sides);
    CHECK_EQ(sides[1].n_done, i + 1);
    CHECK_MEM_EQ(to, from, EAGER);
  }
  CHECK_EQ(sides[0].n_done, N);
  free(from);
  free(to);
  fake_close(sides);
}

/* A QP that fails ends all operations of its peer, and later ones at once. */
/* A PEEK leaves the message; one that claims keeps it for the receive that names it. */
TEST(test_peek__and_claim) {
  static const size_t sizes[] = {8, LONG};
  for (size_t i = 0; i < 2; i++) {
    CHECK_ROW(i);
    fake_open(sides, &plain);
    const size_t n = sizes[i];
    uint8_t *from = pattern(n, 1), *to = calloc(1, n), *other = calloc(1, n);
    struct mrc_msg_post send = {.cookie = 1,
                                .address = (uintptr_t)from,
                                .bytes = n,
                                .tag = 3,
                                .space = 5,
                                .data = 0xfedcba98,
                                .kind = MRC_MSG_SEND};
    struct mrc_msg_post peek = {
        .cookie = 10, .tag = 3, .space = 5, .peer = MRC_MSG_ANY, .kind = MRC_MSG_PEEK};
    CHECK_EQ(mrc_msg_post(sides[1].msg, &peek, 1, 0), 1);
    check_done(1, 0, 10, -ENOMSG, 0);
    CHECK_EQ(mrc_msg_post(sides[0].msg, &send, 1, 0), 1);
    fake_run(sides);
    mrc_msg_post(sides[1].msg, &peek, 1, 0);
    check_done(1, 1, 10, 0, n);
    CHECK_EQ(sides[1].done[1].data, 0xfedcba98);
    peek.claim = 1;
    peek.cookie = 11;
    mrc_msg_post(sides[1].msg, &peek, 1, 0);
    check_done(1, 2, 11, 0, n);
    post(1, MRC_MSG_RECV, other, n, 3, 12, false); /* takes the next message */
    mrc_msg_post(sides[1].msg, &peek, 1, 0);
    check_done(1, 3, 11, -ENOMSG, 0);
    struct mrc_msg_post claim = {.cookie = 13,
                                 .address = (uintptr_t)to,
                                 .bytes = n,
                                 .tag = 11,
                                 .space = 5,
                                 .peer = MRC_MSG_ANY,
                                 .kind = MRC_MSG_RECV,
                                 .claim = 1};
    mrc_msg_post(sides[1].msg, &claim, 1, 0);
    fake_run(sides);
    check_done(1, 4, 13, 0, n);
    CHECK_EQ(sides[1].done[4].tag, 3);
    CHECK_EQ(sides[1].done[4].data, 0xfedcba98);
    CHECK_MEM_EQ(to, from, n);
    mrc_msg_post(sides[1].msg, &claim, 1, 0);
    check_done(1, 5, 13, -ENOMSG, 0);
    mrc_msg_post(sides[0].msg, &send, 1, 0);
    fake_run(sides);
    check_done(1, 6, 12, 0, n);
    CHECK_MEM_EQ(other, from, n);
    check_idle();
    free(from);
    free(to);
    free(other);
    fake_close(sides);
  }
}

TEST(test_failure__ends_everything) {
  for (int steps = 0; steps < 10; steps++) {
    CHECK_ROW(steps);
    fake_open(sides, &plain);
    uint8_t *from = pattern(HUGE, 1), *to = calloc(1, HUGE);
    post(1, MRC_MSG_RECV, to, HUGE, 1, 1, steps & 1);
    post(1, MRC_MSG_RECV, to, 100, 2, 2, false);
    post(0, MRC_MSG_SEND, from, HUGE, 1, 3, false);
    post(0, MRC_MSG_SEND, from, HUGE, 9, 4, false);
    for (int i = 0; i < steps; i++) {
      mrc_msg_pump(sides[i & 1].msg, 0);
      fake_step(&sides[i & 1]);
    }
    sides[0].failed = true;
    mrc_msg_fail(sides[0].msg, 0, -ETIMEDOUT, 0);
    mrc_msg_fail(sides[1].msg, 0, -ECONNRESET, 0);
    fake_run(sides);
    CHECK_EQ(sides[0].n_done, 2);
    CHECK_EQ(sides[1].n_done, 2);
    CHECK_EQ(sides[0].done[0].result, -ETIMEDOUT);
    CHECK_EQ(sides[1].done[0].result, -ECONNRESET);
    post(0, MRC_MSG_SEND, from, 1, 1, 5, false);
    check_done(0, 2, 5, -ETIMEDOUT, 0);
    free(from);
    free(to);
    fake_close(sides);
  }
}

/* More operations than the table holds are refused, without harm to the others. */
TEST(test_post__too_many) {
  const struct mrc_msg_config few = {.max_operations = 4};
  uint64_t value = 7, got[5] = {0};
  fake_open(sides, &few);
  for (uint64_t i = 0; i < 4; i++)
    CHECK_EQ(post(1, MRC_MSG_RECV, &got[i], 8, i, i, false), 1);
  CHECK_EQ(post(1, MRC_MSG_RECV, &got[4], 8, 4, 4, false), 0);
  post(0, MRC_MSG_SEND, &value, 8, 2, 9, false);
  fake_run(sides);
  CHECK_EQ(got[2], 7);
  CHECK_EQ(post(1, MRC_MSG_RECV, &got[4], 8, 4, 4, false), 1);
  fake_close(sides);
}

/* A peer that writes nonsense fails, and nobody else. */
TEST(test_violation__ends_the_peer) {
  static const struct {
    uint32_t imm, bytes;
    uint8_t frame[56];
  } rows[] = {
      {0xC0000000, 0, {0}},                                 /* an immediate without a meaning */
      {0x00010000, 0, {0}},                                 /* data that nobody asked for */
      {0x40000001, 16, {0}},                                /* not the next frame */
      {0x40000000, 4, {0}},                                 /* too short */
      {0x40000000, 8193, {0}},                              /* too long */
      {0x80000001, 0, {0}},                                 /* a credit for frames never sent */
      {0x40000000, 32, {[8] = 99}},                         /* no such record */
      {0x40000000, 31, {[8] = MRC_MSG_EAGER}},              /* half a record */
      {0x40000000, 32, {[8] = MRC_MSG_EAGER, [24] = 1}},    /* longer than its frame */
      {0x40000000, 40, {[8] = MRC_MSG_CANCELLED, [32] = 1}} /* an answer without a question */
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    fake_open(sides, &plain);
    uint64_t value = 0;
    post(1, MRC_MSG_RECV, &value, 8, 1, 1, false);
    for (uint32_t k = 0; k < sides[1].n_regions; k++)
      if (sides[1].regions[k].access == MRC_ACCESS_REMOTE_WRITE)
        memcpy((void *)(uintptr_t)sides[1].regions[k].address, rows[i].frame, sizeof rows[i].frame);
    fake_imm(&sides[1], rows[i].imm, rows[i].bytes);
    CHECK_EQ(mrc_msg_counters(sides[1].msg)->violations, 1);
    CHECK(sides[1].failed);
    check_done(1, 0, 1, -EPROTO, 0);
    fake_close(sides);
  }
}

static int several(uint64_t cookie, uint8_t *at, size_t n, uint32_t peer) {
  const struct mrc_msg_post each = {.cookie = cookie,
                                    .address = (uintptr_t)at,
                                    .bytes = n,
                                    .tag = 3,
                                    .space = 5,
                                    .peer = peer,
                                    .kind = MRC_MSG_RECV,
                                    .least = 6000};
  return mrc_msg_post(sides[1].msg, &each, 1, 0);
}

static void check_part(uint32_t i, uint64_t cookie, int result, const void *at, bool goes_on) {
  check_done(1, i, cookie, result, sides[1].done[i].bytes);
  if (at != NULL) CHECK_EQ(sides[1].done[i].address, (uintptr_t)at);
  CHECK_EQ(sides[1].done[i].goes_on, goes_on);
}

/* Messages take parts of the oldest receive, until too little is left of it. */
TEST(test_several__oldest_first) {
  static const struct {
    size_t bytes, at;
  } rows[] = {{100, 0}, {9000, 104}, {0, 9104}, {5000, 9112}, {300, 20000}, {LONG, 20304}};
  enum { N = sizeof rows / sizeof rows[0] };
  for (int how = 0; how < 4; how++) {
    CHECK_ROW(how);
    fake_open(sides, &plain);
    uint8_t *from = pattern(LONG, 1), *to = calloc(1, 20000 + 300000);
    const uint32_t peer = how & 1 ? MRC_MSG_ANY : 0;
    for (int turn = 0; turn < 2; turn++) {
      if (turn == how / 2) {
        several(1, to, 20000, peer);
        several(2, to + 20000, 300000, peer);
      } else {
        for (size_t i = 0; i < N; i++)
          post(0, MRC_MSG_SEND, from, rows[i].bytes, 3, i, false);
      }
      fake_run(sides);
    }
    CHECK_EQ(sides[1].n_done, N);
    int of_first = 0;
    for (uint32_t i = 0; i < N; i++) {
      const struct mrc_msg_done *done = &sides[1].done[i];
      const bool first = done->cookie == 1;
      size_t row = 0; /* short messages overtake long ones */
      while (row < N && done->address != (uintptr_t)(to + rows[row].at))
        row++;
      CHECK(row < N && done->bytes == rows[row].bytes && first == (row < 4));
      CHECK_MEM_EQ(to + rows[row].at, from, rows[row].bytes);
      of_first += first;
      CHECK_EQ(done->goes_on, !first || of_first < 4);
    }
    CHECK_EQ(mrc_msg_cancel(sides[1].msg, 5, 1), -ENOENT);
    CHECK_EQ(mrc_msg_cancel(sides[1].msg, 5, 2), 0);
    check_part(N, 2, -ECANCELED, NULL, false);
    check_idle();
    free(from);
    free(to);
    fake_close(sides);
  }
}

/* A receive of several with a long message on its way. */
static void start_several(uint8_t *to, uint8_t *from, uint32_t peer, uint32_t most) {
  fake_open(sides, &(struct mrc_msg_config){.max_operations = most});
  several(1, to, 200000, peer);
  post(0, MRC_MSG_SEND, from, LONG, 3, 7, false);
  mrc_msg_pump(sides[0].msg, 0);
  CHECK(fake_step(&sides[0])); /* the RTS */
  CHECK_EQ(sides[1].n_done, 0);
}

/* The memory belongs to the receive until the last message has come or failed. */
TEST(test_several__ends_with_its_last_message) {
  uint8_t *from = pattern(LONG, 1), *to = calloc(1, 200000);
  start_several(to, from, MRC_MSG_ANY, 0);
  CHECK_EQ(mrc_msg_cancel(sides[1].msg, 5, 1), 0);
  check_part(0, 1, -ECANCELED, NULL, true);
  fake_run(sides);
  check_part(1, 1, 0, to, false);
  check_idle();
  fake_close(sides);

  for (int any = 0; any < 2; any++) { /* a receive from any peer goes on after its error */
    start_several(to, from, any ? MRC_MSG_ANY : 0, 0);
    mrc_msg_fail(sides[1].msg, 0, -ETIMEDOUT, 0);
    check_part(0, 1, -ETIMEDOUT, NULL, true);
    if (!any) check_part(1, 1, -ETIMEDOUT, NULL, false);
    CHECK_EQ(mrc_msg_cancel(sides[1].msg, 5, 1), any ? 0 : -ENOENT);
    if (any) check_part(1, 1, -ECANCELED, NULL, false);
    CHECK_EQ(sides[1].n_done, 2);
    fake_close(sides);
  }

  start_several(to, from, 0, 2); /* no operation is left for another part */
  post(0, MRC_MSG_SEND, from, 8, 3, 8, false);
  mrc_msg_pump(sides[0].msg, 0);
  CHECK(fake_step(&sides[0]));
  check_part(0, 1, 0, to + LONG, true);
  fake_run(sides);
  check_part(1, 1, 0, to, false);
  CHECK_EQ(several(2, to, 200000, 0), 1);
  CHECK_EQ(several(3, to, 200000, 0), 1);
  fake_close(sides);
  free(from);
  free(to);
}

/* Eager messages of a peer that has failed are taken; then the receive ends. */
TEST(test_several__of_a_failed_peer) {
  uint8_t to[20000];
  fake_open(sides, &plain);
  for (uint64_t i = 0; i < 2; i++)
    post(0, MRC_MSG_SEND, to, 80, 3, i, false);
  fake_run(sides);
  mrc_msg_fail(sides[1].msg, 0, -ETIMEDOUT, 0);
  several(1, to, sizeof to, 0);
  check_part(0, 1, 0, to, true);
  check_part(1, 1, 0, to + 80, true);
  check_part(2, 1, -ETIMEDOUT, NULL, false);
  fake_close(sides);
}
