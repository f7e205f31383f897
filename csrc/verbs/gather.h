/* SPDX-License-Identifier: Apache-2.0 */
/* Several pieces of memory, copied into one: the engine sends from one MR. Large copies take long,
   so they are made without the lock, before their list is posted. */
#pragma once

#include "verbs/objects.h"

/* Of a work request with several pieces of memory that are not inline. */
struct vb_copy {
  uint8_t *data; /* NULL: no bytes */
  uint32_t bytes;
  int error; /* a positive errno: EACCES if no MR of the PD covers a piece, EINVAL if they are too
                long together, ENOMEM */
};

/* In the order of the list; no more than a QP can take. */
struct vb_copies {
  struct vb_copy *first;
  uint32_t n;
  uint32_t taken;
};

bool vb_gather_is_needed(const struct vb_qp *qp, const struct ibv_send_wr *wr);
/* Without the lock. 0 or ENOMEM. */
int vb_gather(struct vb_copies *copies, struct vb_qp *qp, const struct ibv_send_wr *list);
/* Frees the copies that nobody has taken. */
void vb_gather_end(struct vb_copies *copies);
