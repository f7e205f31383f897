/* SPDX-License-Identifier: Apache-2.0 */
/* Posted work requests: checked, numbered, and given to the engine. Under the lock. */
#pragma once

#include "verbs/objects.h"

struct vb_copies;

/* Posts a list. 0, or a positive errno and in `bad` the first that was not posted. */
int vb_post_send(struct vb_qp *qp, struct ibv_send_wr *list, struct vb_copies *copies,
                 struct ibv_send_wr **bad);
int vb_post_recv(struct vb_qp *qp, struct ibv_recv_wr *list, struct ibv_recv_wr **bad);
/* The QP is connected: posts what has waited for that. */
void vb_post_waiting(struct vb_qp *qp);
