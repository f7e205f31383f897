/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "verbs/process.h"

#include <sys/uio.h>

struct vb_objects vb_objects;

static struct vb_qp **place_of(uint32_t qpn) { return &vb_objects.qps[qpn % VB_QP_PLACES]; }

struct vb_qp *vb_process_qp(uint32_t qpn) {
  struct vb_qp *qp = *place_of(qpn);
  while (qp && qp->ibv.qp.qp_num != qpn)
    qp = qp->next;
  return qp;
}

void vb_process_add_qp(struct vb_qp *qp) {
  struct vb_qp **place = place_of(qp->ibv.qp.qp_num);
  qp->next = *place;
  *place = qp;
  vb_objects.n_qps++;
}

void vb_process_touch(struct vb_qp *qp) {
  if (qp->touched) return;
  qp->touched = true;
  qp->next_touched = vb_objects.touched;
  vb_objects.touched = qp;
}

struct vb_qp *vb_process_touched(void) {
  struct vb_qp *qp = vb_objects.touched;
  if (!qp) return NULL;
  vb_objects.touched = qp->next_touched;
  qp->touched = false;
  return qp;
}

static void untouch(struct vb_qp *qp) {
  struct vb_qp **place = &vb_objects.touched;
  while (*place && *place != qp)
    place = &(*place)->next_touched;
  if (*place) *place = qp->next_touched;
}

void vb_process_remove_qp(struct vb_qp *qp) {
  untouch(qp);
  struct vb_qp **place = place_of(qp->ibv.qp.qp_num);
  while (*place != qp)
    place = &(*place)->next;
  *place = qp->next;
  vb_objects.n_qps--;
}

void vb_process_each_qp(void (*call)(struct vb_qp *qp)) {
  for (int i = 0; i < VB_QP_PLACES; i++)
    for (struct vb_qp *qp = vb_objects.qps[i]; qp; qp = qp->next)
      call(qp);
}

static struct vb_mr **mr_place_of(uint32_t key) { return &vb_objects.mrs[key % VB_MR_PLACES]; }

struct vb_mr *vb_process_mr(uint32_t key) {
  struct vb_mr *mr = *mr_place_of(key);
  while (mr && mr->mr.lkey != key)
    mr = mr->next;
  return mr;
}

void vb_process_add_mr(struct vb_mr *mr) {
  struct vb_mr **place = mr_place_of(mr->mr.lkey);
  mr->next = *place;
  *place = mr;
}

void vb_process_remove_mr(struct vb_mr *mr) {
  struct vb_mr **place = mr_place_of(mr->mr.lkey);
  while (*place != mr)
    place = &(*place)->next;
  *place = mr->next;
}

bool vb_process_covers(const struct ibv_pd *pd, const struct ibv_sge *sge, int access) {
  const struct vb_mr *mr = vb_process_mr(sge->lkey);
  if (!mr || mr->mr.pd != pd || (mr->access & access) != access) return false;
  const uint64_t first = (uint64_t)(uintptr_t)mr->mr.addr;
  /* In this order nothing wraps. */
  return sge->addr >= first && sge->length <= mr->mr.length &&
         sge->addr - first <= mr->mr.length - sge->length;
}

bool vb_take_back(int fd) {
  uint64_t taken;
  const struct iovec to = {.iov_base = &taken, .iov_len = sizeof taken};
  return preadv2(fd, &to, 1, -1, RWF_NOWAIT) == sizeof taken;
}

/* Bytes of headers of a packet on a link: SRv6, IPv6, UDP and MRC. */
enum { HEADER_BYTES = 64 + 40 + 8 + 44 };

enum ibv_mtu vb_process_mtu(void) {
  uint32_t least = UINT32_MAX;
  for (int i = 0; i < pr_process.n_ports; i++)
    if (pr_process.ports[i].mtu < least) least = pr_process.ports[i].mtu;
  enum ibv_mtu mtu = IBV_MTU_4096;
  while (mtu > IBV_MTU_256 && (128u << mtu) + HEADER_BYTES > least)
    mtu--;
  return mtu;
}
