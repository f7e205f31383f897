/* SPDX-License-Identifier: Apache-2.0 */
#include "cq.h"

#include <errno.h>
#include <stdlib.h>

#define ORPHAN 1 /* in the reserved field of a completion whose QP is gone; 0 when polled */

int mrc_cq_init(struct mrc_cq *cq, uint32_t capacity) {
  const uint32_t size = mrc_ceil_pow2(capacity);
  *cq = (struct mrc_cq){.wcs = malloc(size * sizeof *cq->wcs), .mask = size - 1};
  return cq->wcs == NULL ? -ENOMEM : 0;
}

void mrc_cq_free(struct mrc_cq *cq) {
  free(cq->wcs);
  *cq = (struct mrc_cq){0};
}

static bool promise(struct mrc_cq *cq, uint32_t n, uint32_t limit) {
  const uint32_t used = cq->tail - cq->head + cq->promised;
  if (used > limit || n > limit - used) return false;
  cq->promised += n;
  return true;
}

bool mrc_cq_promise_post(struct mrc_cq *cq, uint32_t n) {
  const uint32_t capacity = cq->mask + 1;
  return promise(cq, n, capacity - capacity / 4);
}

bool mrc_cq_promise_delivery(struct mrc_cq *cq) { return promise(cq, 1, cq->mask + 1); }

void mrc_cq_push(struct mrc_cq *cq, const struct mrc_wc *wc) {
  mrc_assert(cq->promised > 0);
  mrc_assert(cq->tail - cq->head <= cq->mask);
  cq->promised--;
  cq->wcs[cq->tail++ & cq->mask] = *wc;
}

bool mrc_cq_pop(struct mrc_cq *cq, struct mrc_wc *wc, bool *of_qp) {
  if (cq->head == cq->tail) return false;
  *wc = cq->wcs[cq->head++ & cq->mask];
  *of_qp = wc->reserved != ORPHAN;
  wc->reserved = 0;
  return true;
}

void mrc_cq_orphan(struct mrc_cq *cq, uint32_t qpn) {
  for (uint32_t i = cq->head; i != cq->tail; i++)
    if (cq->wcs[i & cq->mask].qpn == qpn) cq->wcs[i & cq->mask].reserved = ORPHAN;
}
