/* SPDX-License-Identifier: Apache-2.0 */
/* The completion queue: a ring of fixed capacity that cannot overflow, because every completion is
   given its place before the work starts. */
#ifndef MRC_CORE_CQ_H
#define MRC_CORE_CQ_H

#include "../mrc.h"
#include "base.h"

struct mrc_cq {
  struct mrc_wc *wcs;
  uint32_t mask;     /* capacity - 1 */
  uint32_t head;     /* next to poll; free-running */
  uint32_t tail;     /* next to fill; free-running */
  uint32_t promised; /* places given to work that has not completed */
};

int mrc_cq_init(struct mrc_cq *cq, uint32_t capacity) MRC_MUST_CHECK;
void mrc_cq_free(struct mrc_cq *cq);
/* Sets a place aside; false when there is none. Work of our own leaves a quarter to what peers
   deliver: two ends full of posted work would otherwise wait for each other for ever. */
bool mrc_cq_promise_post(struct mrc_cq *cq) MRC_MUST_CHECK;
bool mrc_cq_promise_delivery(struct mrc_cq *cq) MRC_MUST_CHECK;
/* Fills a place that was set aside. */
void mrc_cq_push(struct mrc_cq *cq, const struct mrc_wc *wc);
/* `of_qp` tells whether the QP that it counts for still exists. */
bool mrc_cq_pop(struct mrc_cq *cq, struct mrc_wc *wc, bool *of_qp) MRC_MUST_CHECK;
/* The QP is gone: what it left here must not count for another that takes its number. */
void mrc_cq_orphan(struct mrc_cq *cq, uint32_t qpn);

#endif
