/* SPDX-License-Identifier: Apache-2.0 */
/* What programs reach through the table of a context. Each takes the lock. */
#pragma once

#include "verbs/objects.h"

int vb_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wcs);
int vb_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int vb_ops_post_send(struct ibv_qp *qp, struct ibv_send_wr *list, struct ibv_send_wr **bad);
int vb_ops_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *list, struct ibv_recv_wr **bad);
int vb_ops_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *list, struct ibv_recv_wr **bad);
/* With the memory for inline data. NULL and errno. */
/* Under the lock; without the checks of verbs' masks. */
int vb_ops_modify_qp(struct vb_qp *qp, const struct ibv_qp_attr *attr, int mask);
struct ibv_qp *vb_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
