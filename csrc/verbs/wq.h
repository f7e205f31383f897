/* SPDX-License-Identifier: Apache-2.0 */
/* The work queues of QPs: receives, shared ones too, and how what was posted completes. Under the
   lock of the process. */
#pragma once

#include "verbs/objects.h"

/* `with_memory`: messages are copied to the memory of receives. 0 or ENOMEM. */
int vb_receives_init(struct vb_receives *receives, uint32_t most, uint32_t max_sge,
                     bool with_memory);
void vb_receives_free(struct vb_receives *receives);
static inline uint32_t vb_receives_n(const struct vb_receives *receives) {
  return receives->tail - receives->head;
}
/* Posts a list. 0, or a positive errno and in `bad` the first that was not posted. */
int vb_receives_post(struct vb_receives *receives, struct ibv_recv_wr *list,
                     struct ibv_recv_wr **bad);
/* Takes the oldest one, which must exist; copies its memory to `sges`, unless that is NULL. */
struct vb_receive vb_receives_take(struct vb_receives *receives, struct ibv_sge *sges);

/* ---- Shared receive queues, of QPs with emulated RC ---- */

/* A peer is granted a receive only for a message that it has posted, so none lies idle at a QP
   whose peer has nothing to send. */

/* NULL and errno. */
struct vb_srq *vb_srq_create(struct ibv_pd *pd, const struct ibv_srq_init_attr *attr);
/* Takes the lock; waits until the program has acknowledged its events. EBUSY: QPs use it. */
int vb_srq_destroy(struct vb_srq *srq);
/* A positive errno. */
int vb_srq_modify(struct vb_srq *srq, const struct ibv_srq_attr *attr, int mask);
/* 0, or a positive errno and in `bad` the first that was not posted. */
int vb_srq_post(struct vb_srq *srq, struct ibv_recv_wr *list, struct ibv_recv_wr **bad);
/* The peer of a QP has messages for so many receives more than it was granted. */
void vb_srq_want(struct vb_qp *qp, uint32_t n);
/* Takes a receive that was granted. */
struct vb_receive vb_srq_take(struct vb_qp *qp, struct ibv_sge *sges);
/* The QP has failed or is reset: what it has reserved is free for others. */
void vb_srq_leave(struct vb_qp *qp);

/* ---- From completions of the engine to those of verbs ---- */

/* A completion of the engine. */
void vb_complete(const struct mrc_wc *wc);
/* Completes work requests that the engine never sees, if it is their turn. */
void vb_complete_done(struct vb_qp *qp);
/* The oldest outstanding work request is done. */
void vb_complete_next(struct vb_qp *qp);
/* Moves the QP to ERROR in the engine, too. */
void vb_complete_fail_engine(struct vb_qp *qp);
/* The QP is in ERROR: the oldest outstanding work request completes with `status`, the others are
   flushed. */
void vb_complete_failed(struct vb_qp *qp, enum ibv_wc_status status);
/* A receive was posted. */
void vb_complete_held(struct vb_qp *qp);
/* The engine's event: a QP went to ERROR. */
void vb_complete_error(uint32_t qpn, uint32_t status);
