/* SPDX-License-Identifier: Apache-2.0 */
/* The chains of messages stay short, whatever the keys of their members are. */
#include "msg/operations.h"

#include "check.h"
#include "msg/msg.h"
#include "msg_wire.h"

enum { POSTS = 512, LONGEST = 4 };

static int length(const struct mrc_node *chain) {
  int n = 0;
  for (const struct mrc_node *node = chain->next; node != chain; node = node->next)
    n++;
  return n;
}

static int longest(const struct mrc_msg_chains *chains) {
  int most = 0;
  for (uint32_t i = 0; i <= chains->mask; i++) {
    const int n = length(&chains->heads[i]);
    most = n > most ? n : most;
  }
  return most;
}

static void post(uint64_t cookie, uint32_t space) {
  const struct mrc_msg_post each = {
      .cookie = cookie, .space = space, .peer = MRC_MSG_ANY, .kind = MRC_MSG_RECV};
  CHECK_EQ(wire_post(&wire[0], &each), 1);
}

/* Receives whose cookies differ in nine bits, or whose spaces do; each is found. */
TEST(test_cookies__have_short_chains) {
  for (uint32_t shift = 0; shift <= 56; shift++) {
    CHECK_ROW(shift);
    wire_start(0, &(struct mrc_msg_config){0});
    for (uint64_t i = 0; i < POSTS; i++)
      shift == 56 ? post(7, (uint32_t)i) : post(i << shift, 3);
    CHECK(longest(&wire[0].msg->by_cookie) <= LONGEST);
    CHECK_EQ(mrc_msg_cancel(wire[0].msg, 4, POSTS), -ENOENT);
    for (uint64_t i = 0; i < POSTS; i++)
      CHECK_EQ(shift == 56 ? mrc_msg_cancel(wire[0].msg, (uint32_t)i, 7)
                           : mrc_msg_cancel(wire[0].msg, 3, i << shift),
               0);
    CHECK_EQ(longest(&wire[0].msg->by_cookie), 0);
    wire_stop();
  }
}

/* Of several operations with the same cookie, the oldest is cancelled. */
TEST(test_cookies__may_be_equal) {
  wire_start(0, &(struct mrc_msg_config){0});
  for (uint32_t i = 0; i < 3; i++)
    wire_post(&wire[0], &(struct mrc_msg_post){
                            .cookie = 9, .tag = i, .peer = MRC_MSG_ANY, .kind = MRC_MSG_RECV});
  for (uint32_t i = 0; i < 3; i++) {
    CHECK_EQ(mrc_msg_cancel(wire[0].msg, 0, 9), 0);
    CHECK_EQ(wire[0].n_done, i + 1);
    CHECK_EQ(wire[0].done[i].tag, i);
  }
  CHECK_EQ(mrc_msg_cancel(wire[0].msg, 0, 9), -ENOENT);
  wire_stop();
}

/* A number that is no power of two is rounded up. */
TEST(test_init__rounds_up) {
  static const uint32_t rows[][2] = {{1, 1}, {2, 2}, {3, 4}, {16, 16}, {17, 32}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_ROW(i);
    struct mrc_msg_chains chains;
    CHECK_EQ(mrc_msg_chains_init(&chains, rows[i][0]), 0);
    CHECK_EQ(chains.mask + 1, rows[i][1]);
    CHECK_EQ(longest(&chains), 0);
    CHECK(mrc_msg_chain(&chains, UINT64_MAX) == &chains.heads[chains.mask]);
    mrc_msg_chains_free(&chains);
  }
}
