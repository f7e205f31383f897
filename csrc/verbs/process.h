/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of a process, under its lock. */
#pragma once

#include "program/process.h"
#include "verbs/objects.h"

enum { VB_QP_PLACES = 1024, VB_MR_PLACES = 1024 };

struct vb_ev_cq;

struct vb_objects {
  struct ibv_device *device; /* ours, once it was opened */
  struct vb_context *contexts;
  struct vb_ev_cq *ev_cqs;
  struct vb_qp *qps[VB_QP_PLACES];
  struct vb_mr *mrs[VB_MR_PLACES];
  struct vb_qp *touched; /* QPs with emulated RC that may have something to send */
  uint32_t own_key;      /* of the library's own memory */
  uint32_t n_pds;        /* ever made */
  uint32_t n_qps;        /* handles */
};

extern struct vb_objects vb_objects;

/* The handle with this QPN, or NULL. */
struct vb_qp *vb_process_qp(uint32_t qpn);
void vb_process_add_qp(struct vb_qp *qp);
void vb_process_remove_qp(struct vb_qp *qp);
/* Calls a function for each QP; it may not remove QPs. */
void vb_process_each_qp(void (*call)(struct vb_qp *qp));

/* Emulated RC of the QP sends what it can after this turn. */
void vb_process_touch(struct vb_qp *qp);
/* Takes the next one that was touched, or NULL. */
struct vb_qp *vb_process_touched(void);

/* The MR with this key, or NULL. */
struct vb_mr *vb_process_mr(uint32_t key);
void vb_process_add_mr(struct vb_mr *mr);
void vb_process_remove_mr(struct vb_mr *mr);

/* Whether a region of this PD covers a piece of memory, and has these rights (IBV_ACCESS_*). */
bool vb_process_covers(const struct ibv_pd *pd, const struct ibv_sge *sge, int access);

static inline uint64_t vb_post_cookie(uint32_t qpn, uint32_t place) {
  return PR_COOKIE_POST | (uint64_t)qpn << 32 | place;
}

/* The path MTU of the smallest plane, as verbs can say it. */
enum ibv_mtu vb_process_mtu(void);

/* Takes one event back from an eventfd that counts them. False: another thread has just read it and
   waits for the lock. */
bool vb_take_back(int fd);
