/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues and their channels, without the engine. Under the lock of the process. */
#pragma once

#include "agent/protocol.h"
#include "verbs/objects.h"

/* Tells the channel, if the program waits for it: after the completion of a message whose sender
   asks for an event. */
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
void vb_cq_forget_qp(struct vb_cq *cq, const struct vb_qp *qp);

struct vb_channel *vb_channel_create(struct ibv_context *context);
int vb_channel_destroy(struct vb_channel *channel);
/* The next CQ with an event; waits on the descriptor, without the lock. -1 and errno. */
int vb_channel_take(struct vb_channel *channel, struct ibv_cq **cq, void **cq_context);
void vb_cq_acknowledge(struct ibv_cq *cq, unsigned int events);

/* ---- Queues of the changes of EVs' states, on this host, in all its programs ---- */

/* NULL and errno. Without the lock. */
struct vb_cq *vb_ev_cq_create(struct ibv_context *context, int cqe, void *cq_context,
                              struct ibv_comp_channel *channel);
int vb_ev_cq_destroy(struct vb_cq *cq);
/* Under the lock. Puts an event into each queue; a full queue counts it instead. */
void vb_ev_cq_push(const struct mrc_agent_ev_event *event);
/* Under the lock. */
int vb_ev_cq_take(struct vb_cq *cq, int n, struct mrc_api_ev_event *events, size_t stride);

/* ---- The table of a context; each takes the lock ---- */

int vb_cq_poll(struct ibv_cq *cq, int n, struct ibv_wc *wcs);
int vb_cq_req_notify(struct ibv_cq *cq, int solicited_only);
struct ibv_cq_ex *vb_cq_create_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
