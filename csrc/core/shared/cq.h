/* SPDX-License-Identifier: Apache-2.0 */
/* The completion queue: a ring of fixed capacity. It cannot overflow, because the place of every
   completion is reserved before its work starts. */
#pragma once

#include "core/base/base.h"
#include "mrc.h"

struct mrc_cq {
  struct mrc_wc *wcs;
  uint32_t mask;     /* capacity - 1 */
  uint32_t head;     /* next to poll; free-running */
  uint32_t tail;     /* next to fill; free-running */
  uint32_t promised; /* places reserved for work that has not completed */
};

int mrc_cq_init(struct mrc_cq *cq, uint32_t capacity) MRC_MUST_CHECK;
void mrc_cq_free(struct mrc_cq *cq);
/* Reserve n places, or one; false if there are too few. Posted work leaves a quarter of the places
   to immediates from peers. Otherwise two hosts full of posted work would wait for each other for
   ever. */
bool mrc_cq_promise_post(struct mrc_cq *cq, uint32_t n) MRC_MUST_CHECK;
bool mrc_cq_promise_delivery(struct mrc_cq *cq) MRC_MUST_CHECK;
/* Fills a reserved place. */
void mrc_cq_push(struct mrc_cq *cq, const struct mrc_wc *wc);
/* Takes the oldest completion; false if there is none. `of_qp`: its QP still exists. */
bool mrc_cq_pop(struct mrc_cq *cq, struct mrc_wc *wc, bool *of_qp) MRC_MUST_CHECK;
/* The QP is destroyed: its completions must not count for a later QP with the same number. */
void mrc_cq_orphan(struct mrc_cq *cq, uint32_t qpn);
