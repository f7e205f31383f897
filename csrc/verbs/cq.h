/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues and their channels, without the engine. Under the lock of the process. */
#pragma once

#include "verbs/objects.h"

/* The same for memory of the caller; -1 and errno. */
int vb_cq_init(struct vb_cq *cq, struct ibv_context *context, int cqe, void *cq_context,
               struct ibv_comp_channel *channel);
/* Under the lock. Tells the channel, if the program waits for it. */
void vb_cq_tell(struct vb_cq *cq);
/* `cqe` places; NULL and errno. */
struct vb_cq *vb_cq_create(struct ibv_context *context, int cqe, void *cq_context,
                           struct ibv_comp_channel *channel);
/* Waits until the program has acknowledged the events of the CQ; takes the lock. EBUSY: QPs use
   it. */
int vb_cq_destroy(struct vb_cq *cq);
/* EINVAL: fewer than it holds. */
int vb_cq_resize(struct vb_cq *cq, int cqe);
/* `place` is the first place of the send queue that is free once the program has the completion.
   It frees none if `qp` is NULL. */
void vb_cq_push(struct vb_cq *cq, const struct ibv_wc *wc, struct vb_qp *qp, uint32_t place);
/* Up to `n` completions, the oldest first. -1: completions were lost. */
int vb_cq_take(struct vb_cq *cq, int n, struct ibv_wc *wcs);
void vb_cq_forget_qp(struct vb_cq *cq, const struct vb_qp *qp);
void vb_cq_arm(struct vb_cq *cq, bool solicited_only);
/* The completion pushed last is of a message whose sender asks for an event. */
void vb_cq_solicit(struct vb_cq *cq);

struct vb_channel *vb_channel_create(struct ibv_context *context);
int vb_channel_destroy(struct vb_channel *channel);
/* The next CQ with an event; waits on the descriptor, without the lock. -1 and errno. */
int vb_channel_take(struct vb_channel *channel, struct ibv_cq **cq, void **cq_context);
void vb_cq_acknowledge(struct ibv_cq *cq, unsigned int events);
