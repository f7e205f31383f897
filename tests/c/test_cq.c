/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cq.h"

#include "check.h"

static void test_promise__is_bounded_by_what_is_held(void) {
  struct mrc_cq cq;
  struct mrc_wc wc = {.wr_id = 1};
  CHECK_EQ(mrc_cq_init(&cq, 2), 0);
  CHECK(mrc_cq_promise_delivery(&cq) && mrc_cq_promise_delivery(&cq));
  CHECK(!mrc_cq_promise_delivery(&cq));
  mrc_cq_push(&cq, &wc);
  CHECK(!mrc_cq_promise_delivery(&cq)); /* filled, not polled: the place is still taken */
  CHECK(mrc_cq_pop(&cq, &wc));
  CHECK(mrc_cq_promise_delivery(&cq));
  mrc_cq_release(&cq);
  CHECK(mrc_cq_promise_delivery(&cq));
  CHECK(!mrc_cq_promise_delivery(&cq));
  mrc_cq_free(&cq);
}

static void test_pop__first_in_first_out_over_the_edge(void) {
  struct mrc_cq cq;
  struct mrc_wc wc;
  CHECK_EQ(mrc_cq_init(&cq, 3), 0); /* rounded up to 4 */
  CHECK(!mrc_cq_pop(&cq, &wc));
  for (uint64_t i = 0; i < 10; i++) {
    CHECK(mrc_cq_promise_delivery(&cq) && mrc_cq_promise_delivery(&cq));
    mrc_cq_push(&cq, &(struct mrc_wc){.wr_id = 2 * i});
    mrc_cq_push(&cq, &(struct mrc_wc){.wr_id = 2 * i + 1});
    for (uint64_t k = 0; k < 2; k++) {
      CHECK(mrc_cq_pop(&cq, &wc));
      CHECK_EQ(wc.wr_id, 2 * i + k);
    }
  }
  CHECK(!mrc_cq_pop(&cq, &wc));
  mrc_cq_free(&cq);
}

CHECK_MAIN(RUN(test_promise__is_bounded_by_what_is_held),
           RUN(test_pop__first_in_first_out_over_the_edge))
