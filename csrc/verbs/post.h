/* SPDX-License-Identifier: Apache-2.0 */
/* Posted work requests: checked, numbered, and given to the engine. */
#pragma once

#include "verbs/objects.h"

/* Of the table of a context; each takes the lock. 0, or a positive errno and in `bad` the first
   that was not posted. */
int vb_post_send(struct ibv_qp *qp, struct ibv_send_wr *list, struct ibv_send_wr **bad);
int vb_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *list, struct ibv_recv_wr **bad);
int vb_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *list, struct ibv_recv_wr **bad);

/* Under the lock. The QP is connected: posts what has waited for that. */
void vb_post_waiting(struct vb_qp *qp);
