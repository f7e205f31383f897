/* SPDX-License-Identifier: Apache-2.0 */
#include "core/services.h"

#include <errno.h>

#include "check.h"

/* ---- timers ---- */

static uint64_t earliest(const uint64_t *deadlines, uint32_t n) {
  uint64_t first = MRC_NEVER;
  for (uint32_t id = 0; id < n; id++)
    first = mrc_min_u64(first, deadlines[id]);
  return first;
}

/* Random sets, clears and pops, compared with a plain array. */
TEST(test_set__keeps_the_order_of_an_array) {
  enum { IDS = 37, STEPS = 20000 };
  struct mrc_timers timers;
  uint64_t model[IDS];
  struct mrc_prng prng = {.state = 2};
  struct mrc_timer_cell cells[IDS];
  mrc_timers_init(&timers, cells, IDS);
  for (uint32_t id = 0; id < IDS; id++)
    model[id] = MRC_NEVER;
  for (int step = 0; step < STEPS; step++) {
    const uint32_t id = mrc_prng_below(&prng, IDS), kind = mrc_prng_below(&prng, 4);
    if (kind < 3) {
      model[id] = kind == 0 ? MRC_NEVER : mrc_prng_below(&prng, 50);
      mrc_timers_set(&timers, id, model[id]);
    } else {
      const uint32_t popped = mrc_timers_pop(&timers, 25);
      CHECK_EQ(popped == UINT32_MAX, earliest(model, IDS) > 25);
      if (popped == UINT32_MAX) continue;
      CHECK_EQ(model[popped], earliest(model, IDS));
      model[popped] = MRC_NEVER;
    }
    CHECK_EQ(mrc_timers_next(&timers), earliest(model, IDS));
    CHECK_EQ(mrc_timers_at(&timers, id), model[id]);
  }
}

/* ---- completions ---- */

#define CQ FREED_BY(mrc_cq_free) struct mrc_cq
static struct mrc_cq open_cq(uint32_t depth) {
  struct mrc_cq cq;
  CHECK_EQ(mrc_cq_init(&cq, depth), 0);
  return cq;
}

TEST(test_promise__is_bounded_by_what_is_held) {
  CQ cq = open_cq(2);
  struct mrc_wc wc = {.wr_id = 1};
  bool of_qp;
  CHECK(mrc_cq_promise(&cq, 1, false) && mrc_cq_promise(&cq, 1, false));
  CHECK(!mrc_cq_promise(&cq, 1, false));
  mrc_cq_push(&cq, &wc);
  CHECK(!mrc_cq_promise(&cq, 1, false)); /* filled but not polled: the place stays taken */
  CHECK(mrc_cq_pop(&cq, &wc, &of_qp));
  CHECK(mrc_cq_promise(&cq, 1, false));
  CHECK(!mrc_cq_promise(&cq, 1, false));
}

TEST(test_pop__first_in_first_out_over_the_edge) {
  CQ cq = open_cq(3); /* rounded up to 4 */
  struct mrc_wc wc;
  bool of_qp;
  CHECK(!mrc_cq_pop(&cq, &wc, &of_qp));
  for (uint64_t i = 0; i < 10; i++) {
    CHECK(mrc_cq_promise(&cq, 1, false) && mrc_cq_promise(&cq, 1, false));
    mrc_cq_push(&cq, &(struct mrc_wc){.wr_id = 2 * i});
    mrc_cq_push(&cq, &(struct mrc_wc){.wr_id = 2 * i + 1});
    for (uint64_t k = 0; k < 2; k++) {
      CHECK(mrc_cq_pop(&cq, &wc, &of_qp) && of_qp);
      CHECK_EQ(wc.wr_id, 2 * i + k);
    }
  }
  CHECK(!mrc_cq_pop(&cq, &wc, &of_qp));
}

TEST(test_orphan__marks_what_the_qp_left) {
  CQ cq = open_cq(4);
  struct mrc_wc wc;
  bool of_qp;
  for (uint32_t i = 0; i < 4; i++) {
    if (i == 3) mrc_cq_orphan(&cq, 5);
    CHECK(mrc_cq_promise(&cq, 1, false));
    mrc_cq_push(&cq, &(struct mrc_wc){.qpn = 5 + i % 2});
  }
  EACH_OF(uint32_t, i, 0, 4) {
    CHECK(mrc_cq_pop(&cq, &wc, &of_qp));
    CHECK_EQ(of_qp, wc.qpn == 6);
    CHECK_EQ(wc.reserved, 0);
  }
}

/* ---- registered memory ---- */

#define MR_TABLE FREED_BY(mrc_mr_table_free) struct mrc_mr_table
static struct mrc_mr_table open_table(uint32_t room) {
  struct mrc_mr_table table;
  CHECK_EQ(mrc_mr_table_init(&table, room), 0);
  return table;
}

TEST(test_add__refuses) {
  static const struct {
    uint64_t address, bytes;
    uint32_t key, access;
    int error;
  } rows[] = {
      {0x1000, 0, 1, MRC_ACCESS_LOCAL_READ, -EINVAL},
      {0, 16, 1, MRC_ACCESS_LOCAL_READ, -EINVAL},
      {UINT64_MAX - 15, 17, 1, MRC_ACCESS_LOCAL_READ, -EINVAL}, /* wraps around */
      {0x1000, 16, 1, 0, -EINVAL},
      {0x1000, 16, 1, 8, -EINVAL}, /* no such right */
      {0x1000, 16, 1, MRC_ACCESS_LOCAL_READ, 0},
      {0x2000, 16, 1, MRC_ACCESS_LOCAL_READ, -EEXIST},
      {0x1000, 16, 0, MRC_ACCESS_REMOTE_WRITE, 0}, /* the same memory twice, and key 0, are fine */
      {0x3000, 16, 3, MRC_ACCESS_LOCAL_READ, -ENOSPC},
  };
  MR_TABLE table = open_table(2);
  EACH_ROW(i, rows)
    CHECK_EQ(
        mrc_mr_table_add(&table, rows[i].address, rows[i].bytes, rows[i].key, rows[i].access, 0),
        rows[i].error);
}

/* Key 7 opens [0x1000, 0x1100) for remote writes. */
TEST(test_find__bounds_and_rights) {
  static const struct {
    uint32_t key;
    uint64_t address, bytes;
    uint32_t access;
    bool found;
  } rows[] = {
      {7, 0x1000, 0x100, MRC_ACCESS_REMOTE_WRITE, true},
      {7, 0x10FF, 1, MRC_ACCESS_REMOTE_WRITE, true},
      {7, 0x1100, 0, MRC_ACCESS_REMOTE_WRITE, true}, /* no bytes at the very end */
      {7, 0x1101, 0, MRC_ACCESS_REMOTE_WRITE, false},
      {7, 0x10FF, 2, MRC_ACCESS_REMOTE_WRITE, false}, /* one byte too far */
      {7, 0x0FFF, 1, MRC_ACCESS_REMOTE_WRITE, false}, /* one byte too early */
      {7, 0x0FFF, 0x102, MRC_ACCESS_REMOTE_WRITE, false},
      {7, 0x1000, 0x101, MRC_ACCESS_REMOTE_WRITE, false},
      {7, 0x1001, UINT64_MAX, MRC_ACCESS_REMOTE_WRITE, false}, /* the sum wraps */
      {7, UINT64_MAX, 0x1101, MRC_ACCESS_REMOTE_WRITE, false},
      {7, 0x1000, 0x100, MRC_ACCESS_LOCAL_READ, false},
      {7, 0x1000, 0x100, MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE, false},
      {8, 0x1000, 0x100, MRC_ACCESS_REMOTE_WRITE, false}, /* no such key */
  };
  MR_TABLE table = open_table(4);
  CHECK_EQ(mrc_mr_table_add(&table, 0x1000, 0x100, 7, MRC_ACCESS_REMOTE_WRITE, 0), 0);
  EACH_ROW(i, rows)
    CHECK_EQ(
        mrc_mr_find(&table, rows[i].key, rows[i].address, rows[i].bytes, rows[i].access, 0) != NULL,
        rows[i].found);
}

/* An MR without a domain is open to all, one with a domain to those of the same. */
TEST(test_find__domain) {
  static const struct {
    uint32_t domain, other;
    bool found;
  } rows[] = {{0, 0, true}, {0, 5, true}, {5, 5, true}, {5, 0, false}, {5, 6, false}};
  MR_TABLE table = open_table(1);
  EACH_ROW(i, rows) {
    CHECK_EQ(mrc_mr_table_add(&table, 0x1000, 16, 7, MRC_ACCESS_LOCAL_READ, rows[i].domain), 0);
    CHECK_EQ(mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_LOCAL_READ, rows[i].other) != NULL,
             rows[i].found);
    CHECK_EQ(mrc_mr_table_remove(&table, 7), 0);
  }
}

TEST(test_remove__refuses_while_in_use_and_frees_the_entry) {
  MR_TABLE table = open_table(1);
  const uint32_t all = MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_WRITE | MRC_ACCESS_REMOTE_READ;
  CHECK_EQ(mrc_mr_table_add(&table, 0x1000, 16, 7, all, 0), 0);
  struct mrc_mr *mr = mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_LOCAL_READ, 0);
  CHECK(mr != NULL);
  mr->refs = 1;
  CHECK_EQ(mrc_mr_table_remove(&table, 7), -EBUSY);
  CHECK(mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_REMOTE_WRITE, 0) == NULL);
  CHECK(mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_REMOTE_READ, 0) == NULL);
  mr->refs = 0;
  CHECK_EQ(mrc_mr_table_remove(&table, 8), -ENOENT);
  CHECK_EQ(mrc_mr_table_remove(&table, 7), 0);
  CHECK_EQ(mrc_mr_table_remove(&table, 7), -ENOENT);
  CHECK(mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_LOCAL_READ, 0) == NULL);
  CHECK_EQ(mrc_mr_table_add(&table, 0x2000, 16, 9, MRC_ACCESS_LOCAL_READ, 0), 0);
}

/* A reused entry is not given away twice, so no write reaches another live region. */
TEST(test_remove__keeps_the_others) {
  MR_TABLE table = open_table(3);
  CHECK_EQ(mrc_mr_table_add(&table, 0x1000, 16, 7, MRC_ACCESS_LOCAL_READ, 0), 0);
  CHECK_EQ(mrc_mr_table_add(&table, 0x2000, 16, 8, MRC_ACCESS_LOCAL_READ, 0), 0);
  CHECK_EQ(mrc_mr_table_remove(&table, 8), 0);
  CHECK_EQ(mrc_mr_table_add(&table, 0x3000, 16, 9, MRC_ACCESS_LOCAL_READ, 0), 0);
  CHECK_EQ(mrc_mr_table_add(&table, 0x4000, 16, 10, MRC_ACCESS_LOCAL_READ, 0), 0);
  CHECK(mrc_mr_find(&table, 7, 0x1000, 16, MRC_ACCESS_LOCAL_READ, 0) != NULL);
  CHECK(mrc_mr_find(&table, 9, 0x3000, 16, MRC_ACCESS_LOCAL_READ, 0) != NULL);
}

/* ---- endpoint requests ---- */

/* Slots of endpoint requests, without an engine. */

static struct mrc_probes *open_probes(void) {
  static struct mrc_probes probes;
  static struct mrc_probe_room room;
  mrc_probes_init(&probes, &room, 1);
  return &probes;
}

static const struct mrc_ev_probe *start(struct mrc_probes *probes, struct mrc_probe_user *user,
                                        enum mrc_ev_probe_purpose purpose) {
  return mrc_probes_start(probes, user, &(struct mrc_ev_probe){.purpose = (uint8_t)purpose});
}

/* QPs that use all slots allowed to them leave exactly 64 to port status, which may use every slot.
 */
TEST(test_start__keeps_slots_for_port_status) {
  enum { KEPT = 64 };
  static struct mrc_probe_user users[MRC_MAX_EV_PROBES], status;
  struct mrc_probes *probes = open_probes();
  for (int i = 0; i < MRC_MAX_EV_PROBES - KEPT; i++)
    CHECK(start(probes, &users[i], MRC_EV_PROBE_EV) != NULL);
  CHECK_EQ(probes->n, MRC_MAX_EV_PROBES - KEPT);
  CHECK(start(probes, &users[MRC_MAX_EV_PROBES - KEPT], MRC_EV_PROBE_EV) == NULL);
  CHECK(start(probes, &users[0], MRC_EV_PROBE_COMMAND) == NULL);
  for (int i = 0; i < KEPT; i++)
    CHECK(start(probes, &status, MRC_EV_PROBE_PORT_STATUS) != NULL);
  CHECK(start(probes, &status, MRC_EV_PROBE_PORT_STATUS) == NULL);
  CHECK_EQ(probes->n, MRC_MAX_EV_PROBES);
}

/* Requests leave in the order in which they came; requests that could not leave go to the end. */
TEST(test_queue__first_come_first_served) {
  static struct mrc_probe_user user;
  struct mrc_probes *probes = open_probes();
  const struct mrc_ev_probe *first = start(probes, &user, MRC_EV_PROBE_PORT_STATUS);
  const struct mrc_ev_probe *second = start(probes, &user, MRC_EV_PROBE_PORT_STATUS);
  CHECK(first->id != second->id);
  CHECK_PTR_EQ(mrc_probes_find(probes, first->id), first);
  CHECK_PTR_EQ(mrc_probes_dequeue(probes), first);
  mrc_probes_enqueue(probes, mrc_probes_find(probes, first->id));
  CHECK_PTR_EQ(mrc_probes_dequeue(probes), second);
  CHECK_PTR_EQ(mrc_probes_dequeue(probes), first);
  CHECK_EQ(probes->n_unsent, 0);
  mrc_probes_end(probes, mrc_probes_find(probes, first->id));
  CHECK(mrc_probes_find(probes, first->id) == NULL);
  CHECK_EQ(probes->n, 1);
}

/* When a QP ends, its queued and sent requests are dropped, and no others. */
TEST(test_drop__forgets_those_of_one_user) {
  static struct mrc_probe_user gone, stays;
  struct mrc_probes *probes = open_probes();
  for (int i = 0; i < 3; i++) {
    start(probes, &gone, MRC_EV_PROBE_COMMAND);
    start(probes, &stays, MRC_EV_PROBE_COMMAND);
  }
  CHECK_EQ(gone.n_commanded, 3);
  mrc_probes_dequeue(probes);
  CHECK_EQ(mrc_probes_drop(probes, &gone), 3);
  CHECK_EQ(gone.n_commanded, 0);
  CHECK_EQ(probes->n, 3);
  CHECK_EQ(probes->n_commanded, 3);
  CHECK_EQ(probes->n_unsent, 3);
  for (int i = 0; i < 3; i++)
    CHECK_PTR_EQ(mrc_probes_dequeue(probes)->user, &stays);
}
