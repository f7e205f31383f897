/* SPDX-License-Identifier: Apache-2.0 */
#include "core/services.h"

#include "check.h"

TEST(test_promise__is_bounded_by_what_is_held) {
  struct mrc_cq cq;
  struct mrc_wc wc = {.wr_id = 1};
  bool of_qp;
  CHECK_EQ(mrc_cq_init(&cq, 2), 0);
  CHECK(mrc_cq_promise_delivery(&cq) && mrc_cq_promise_delivery(&cq));
  CHECK(!mrc_cq_promise_delivery(&cq));
  mrc_cq_push(&cq, &wc);
  CHECK(!mrc_cq_promise_delivery(&cq)); /* filled but not polled: the place stays taken */
  CHECK(mrc_cq_pop(&cq, &wc, &of_qp));
  CHECK(mrc_cq_promise_delivery(&cq));
  CHECK(!mrc_cq_promise_delivery(&cq));
  mrc_cq_free(&cq);
}

TEST(test_pop__first_in_first_out_over_the_edge) {
  struct mrc_cq cq;
  struct mrc_wc wc;
  bool of_qp;
  CHECK_EQ(mrc_cq_init(&cq, 3), 0); /* rounded up to 4 */
  CHECK(!mrc_cq_pop(&cq, &wc, &of_qp));
  for (uint64_t i = 0; i < 10; i++) {
    CHECK(mrc_cq_promise_delivery(&cq) && mrc_cq_promise_delivery(&cq));
    mrc_cq_push(&cq, &(struct mrc_wc){.wr_id = 2 * i});
    mrc_cq_push(&cq, &(struct mrc_wc){.wr_id = 2 * i + 1});
    for (uint64_t k = 0; k < 2; k++) {
      CHECK(mrc_cq_pop(&cq, &wc, &of_qp) && of_qp);
      CHECK_EQ(wc.wr_id, 2 * i + k);
    }
  }
  CHECK(!mrc_cq_pop(&cq, &wc, &of_qp));
  mrc_cq_free(&cq);
}

TEST(test_orphan__marks_what_the_qp_left) {
  struct mrc_cq cq;
  struct mrc_wc wc;
  bool of_qp;
  CHECK_EQ(mrc_cq_init(&cq, 4), 0);
  for (uint32_t i = 0; i < 4; i++) {
    if (i == 3) mrc_cq_orphan(&cq, 5);
    CHECK(mrc_cq_promise_delivery(&cq));
    mrc_cq_push(&cq, &(struct mrc_wc){.qpn = 5 + i % 2});
  }
  for (uint32_t i = 0; i < 4; i++) {
    CHECK_ROW(i);
    CHECK(mrc_cq_pop(&cq, &wc, &of_qp));
    CHECK_EQ(of_qp, wc.qpn == 6);
    CHECK_EQ(wc.reserved, 0);
  }
  mrc_cq_free(&cq);
}
