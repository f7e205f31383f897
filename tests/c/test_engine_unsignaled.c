/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of work requests that share one completion. The auditor checks that the completion comes
   after all of them, and that every byte was placed once. */
#include "core/engine.h"

#include "pair/connect.h"
#include "scenario.h"

static const uint32_t sizes[] = {1, MTU, 5 * MTU + 3, 8, 64};
#define N (sizeof sizes / sizeof sizes[0])

TEST(test_list__completes_once_after_its_last) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 64 * MTU);
  lose_data(p, 2, 3);
  CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
  CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
  CHECK_EQ(mrc_pair_info(p, end).outstanding, 2 * N);
  CHECK(mrc_pair_finish(p, 50 * MS));
  CHECK_EQ(succeeded(p, end), 2 * N);
  CHECK_EQ(mrc_pair_info(p, end).outstanding, 0);
  mrc_pair_destroy(p);
}

/* The work request that the responder refuses has no completion of its own. */
TEST(test_list__reports_the_error_of_an_unsignaled_one) {
  struct mrc_pair *p = open_pair(.planes = 2, .paths = 2);
  int end = open_qp(p, .memory_bytes = 64 * MTU);
  struct mrc_pair_end *e = p->ends[end];
  CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
  CHECK(mrc_pair_finish(p, 50 * MS));
  e->rkey++;
  e->audit.unwatched = true;
  CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
  CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
  CHECK(mrc_pair_finish(p, 50 * MS));
  CHECK_EQ(e->audit.statuses[MRC_WC_REM_ACCESS_ERR], 1);
  CHECK_EQ(e->audit.statuses[MRC_WC_WR_FLUSH_ERR], 1);
  CHECK_EQ(succeeded(p, end), N);
  mrc_pair_destroy(p);
}

TEST(test_list__is_posted_whole_or_not_at_all) {
  struct mrc_pair *p = open_pair();
  int end = open_qp(p, .memory_bytes = 64 * MTU, .sq_depth = N);
  struct mrc_pair_end *e = p->ends[end];
  mrc_engine *engine = p->hosts[0].engine;
  const struct mrc_wr good = {.local = (uintptr_t)e->audit.source,
                              .va = (uintptr_t)e->audit.target,
                              .lkey = e->lkey,
                              .rkey = e->rkey,
                              .bytes = 8,
                              .unsignaled = 1};
  struct mrc_wr wrs[N + 1];
  for (size_t i = 0; i <= N; i++)
    wrs[i] = good;
  CHECK_EQ(mrc_qp_post(engine, e->qpn, wrs, N + 1, p->now_ns), -ENOBUFS);
  wrs[1].bytes = 64 * MTU + 1;
  CHECK_EQ(mrc_qp_post(engine, e->qpn, wrs, N, p->now_ns), -EACCES);
  wrs[1] = good;
  wrs[2].unsignaled = 2;
  CHECK_EQ(mrc_qp_post(engine, e->qpn, wrs, N, p->now_ns), -EINVAL);
  CHECK_EQ(mrc_pair_info(p, end).outstanding, 0);
  CHECK_EQ(mrc_mr_deregister(engine, e->lkey), 0); /* none of them holds the memory */
  mrc_pair_destroy(p);
}

/* An unsignaled work request frees its place when it completes, the last one when it is polled. */
TEST(test_list__frees_its_places) {
  struct mrc_pair *p = open_pair();
  int end = open_qp(p, .memory_bytes = 640 * MTU, .sq_depth = N);
  for (int i = 0; i < 5; i++) {
    CHECK_EQ(mrc_pair_write_list(p, end, sizes, N), 0);
    CHECK_EQ(mrc_pair_write_list(p, end, sizes, 1), -ENOBUFS);
    CHECK(mrc_pair_finish(p, 50 * MS));
  }
  CHECK_EQ(succeeded(p, end), 5 * N);
  mrc_pair_destroy(p);
}
