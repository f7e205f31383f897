/* SPDX-License-Identifier: Apache-2.0 */
/* Shared receive queues, of QPs with emulated RC. A peer is granted a receive only for a message
   that it has posted, so none lies idle at a QP whose peer has nothing to send. Under the lock. */
#pragma once

#include "verbs/objects.h"

/* NULL and errno. */
struct vb_srq *vb_srq_create(struct ibv_pd *pd, const struct ibv_srq_init_attr *attr);
/* Takes the lock; waits until the program has acknowledged its events. EBUSY: QPs use it. */
int vb_srq_destroy(struct vb_srq *srq);
/* A positive errno. */
int vb_srq_modify(struct vb_srq *srq, const struct ibv_srq_attr *attr, int mask);
/* As vb_post_recv. */
int vb_srq_post(struct vb_srq *srq, struct ibv_recv_wr *list, struct ibv_recv_wr **bad);
/* The peer of a QP has messages for so many receives more than it was granted. */
void vb_srq_want(struct vb_qp *qp, uint32_t n);
/* Takes a receive that was granted. */
struct vb_receive vb_srq_take(struct vb_qp *qp, struct ibv_sge *sges);
/* The QP has failed or is reset: what it has reserved is free for others. */
void vb_srq_leave(struct vb_qp *qp);
