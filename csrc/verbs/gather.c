/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/gather.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/process.h"

bool vb_gather_is_needed(const struct vb_qp *qp, const struct ibv_send_wr *wr) {
  const bool writes = wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  return (writes || !qp->emulated) && wr->num_sge > 1 &&
         (uint32_t)wr->num_sge <= qp->cap.max_send_sge && !(wr->send_flags & IBV_SEND_INLINE);
}

static void check(struct vb_copy *copy, const struct ibv_pd *pd, const struct ibv_send_wr *wr) {
  uint64_t sum = 0;
  for (int i = 0; i < wr->num_sge && copy->error == 0; i++) {
    const struct ibv_sge *sge = &wr->sg_list[i];
    if (sge->length > 0 && !vb_process_covers(pd, sge, 0)) copy->error = EACCES;
    sum += sge->length;
  }
  if (copy->error == 0 && sum > UINT32_MAX) copy->error = EINVAL;
  if (copy->error == 0) copy->bytes = (uint32_t)sum;
}

static void fill(struct vb_copy *copy, const struct ibv_send_wr *wr) {
  if (copy->bytes == 0) return;
  copy->data = malloc(copy->bytes);
  if (!copy->data) {
    copy->error = ENOMEM;
    return;
  }
  uint8_t *at = copy->data;
  for (int i = 0; i < wr->num_sge; at += wr->sg_list[i].length, i++)
    if (wr->sg_list[i].length > 0)
      memcpy(at, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
}

/* The next of a list, from this one on, that has several pieces; NULL at the end. */
static const struct ibv_send_wr *next_of(const struct vb_qp *qp, const struct ibv_send_wr *wr) {
  while (wr && !vb_gather_is_needed(qp, wr))
    wr = wr->next;
  return wr;
}

int vb_gather(struct vb_copies *copies, struct vb_qp *qp, const struct ibv_send_wr *list) {
  const struct ibv_send_wr *wr = next_of(qp, list);
  *copies = (struct vb_copies){0};
  for (; wr && copies->n < qp->cap.max_send_wr; wr = next_of(qp, wr->next))
    copies->n++;
  if (copies->n == 0) return 0;
  copies->first = calloc(copies->n, sizeof *copies->first);
  if (!copies->first) return ENOMEM;
  pr_lock();
  wr = next_of(qp, list);
  for (uint32_t i = 0; i < copies->n; i++, wr = next_of(qp, wr->next))
    check(&copies->first[i], qp->ibv.qp.pd, wr);
  pr_unlock();
  wr = next_of(qp, list);
  for (uint32_t i = 0; i < copies->n; i++, wr = next_of(qp, wr->next))
    fill(&copies->first[i], wr);
  return 0;
}

void vb_gather_end(struct vb_copies *copies) {
  for (uint32_t i = copies->taken; i < copies->n; i++)
    free(copies->first[i].data);
  free(copies->first);
}
