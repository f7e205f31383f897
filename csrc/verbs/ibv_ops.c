/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "program/drive.h"
#include "verbs/cq.h"
#include "verbs/gather.h"
#include "verbs/ibv_ops.h"
#include "verbs/mr.h"
#include "verbs/post.h"
#include "verbs/process.h"
#include "verbs/qp.h"
#include "verbs/srq.h"

int vb_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wcs) {
  struct vb_cq *ours = vb_cq_of(cq);
  if (pr_process.forked) return -1;
  pr_lock();
  int taken = vb_cq_take(ours, n, wcs);
  if (taken == 0) {
    pr_drive_poll();
    taken = vb_cq_take(ours, n, wcs);
  } else {
    pr_drive_polled();
  }
  pr_unlock();
  return taken;
}

int vb_req_notify_cq(struct ibv_cq *cq, int solicited_only) {
  if (pr_process.forked) return EIO;
  pr_lock();
  vb_cq_arm(vb_cq_of(cq), solicited_only);
  pr_drive_leave(); /* the program will sleep */
  pr_unlock();
  return 0;
}

int vb_ops_post_send(struct ibv_qp *qp, struct ibv_send_wr *list, struct ibv_send_wr **bad) {
  struct vb_qp *ours = vb_qp_of(qp);
  if (pr_process.forked) {
    if (bad) *bad = list;
    return EIO;
  }
  struct vb_copies copies;
  int error = vb_gather(&copies, ours, list);
  if (error != 0) {
    if (bad) *bad = list;
    return error;
  }
  pr_lock();
  const bool idle = ours->sq_ended == ours->sq_tail;
  error = vb_post_send(ours, list, &copies, bad);
  if (ours->connected) pr_drive_posted(idle);
  pr_unlock();
  vb_gather_end(&copies);
  return error;
}

int vb_ops_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *list, struct ibv_recv_wr **bad) {
  if (pr_process.forked) {
    if (bad) *bad = list;
    return EIO;
  }
  pr_lock();
  const int error = vb_post_recv(vb_qp_of(qp), list, bad);
  if (vb_qp_of(qp)->touched) pr_drive_owed();
  pr_unlock();
  return error;
}

int vb_ops_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *list, struct ibv_recv_wr **bad) {
  if (pr_process.forked) {
    if (bad) *bad = list;
    return EIO;
  }
  pr_lock();
  const int error = vb_srq_post((struct vb_srq *)srq, list, bad);
  if (vb_objects.touched) pr_drive_owed();
  pr_unlock();
  return error;
}

int vb_ops_modify_qp(struct vb_qp *qp, const struct ibv_qp_attr *attr, int mask) {
  const int error = vb_qp_modify(qp, attr, mask);
  pr_drive_turn();
  return error;
}

struct ibv_qp *vb_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  if (pr_process.forked) {
    errno = EIO;
    return NULL;
  }
  pr_lock();
  const int error = vb_mr_register_own();
  if (error != 0) errno = error;
  struct vb_qp *qp = error == 0 ? vb_qp_create(pd, attr) : NULL;
  pr_unlock();
  return qp ? &qp->ibv.qp : NULL;
}
