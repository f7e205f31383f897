/* SPDX-License-Identifier: Apache-2.0 */
/* What all handles of a process share: one engine, one lock, one connection to the agent. */
#ifndef MRC_VERBS_PROCESS_H
#define MRC_VERBS_PROCESS_H

#include <pthread.h>

#include "verbs/link.h"
#include "verbs/objects.h"

enum { VB_QP_PLACES = 1024, VB_MR_PLACES = 1024, VB_MAX_NUMBERS = 4 * MRC_AGENT_MAX_NUMBERS };

struct vb_command;
struct vb_ev_cq;

struct vb_process {
  pthread_mutex_t lock;   /* guards all below, all objects and all calls of the engine */
  pthread_cond_t changed; /* numbers, answers */
  mrc_ctx *ctx;           /* NULL: not attached yet */
  struct vb_link link;
  struct mrc_agent_opened opened; /* for the next agent */
  struct ibv_device *device;      /* ours */
  union ibv_gid gids[MRC_AGENT_MAX_GIDS];
  int n_gids;
  struct mrc_agent_port ports[MRC_MAX_PORTS];
  int n_ports;

  struct vb_context *contexts;
  struct vb_ev_cq *ev_cqs;
  struct vb_qp *qps[VB_QP_PLACES];
  struct vb_mr *mrs[VB_MR_PLACES];
  uint32_t own_key; /* of the library's own memory */
  uint32_t n_pds;   /* ever made */
  uint32_t n_qps;   /* handles */
  uint32_t n_exist; /* QPs in the engine, also those whose handles are destroyed */
  uint32_t n_gone;  /* QPs whose peers have ended and that are not in ERROR yet */
  uint32_t numbers[VB_MAX_NUMBERS];
  uint32_t n_numbers;
  bool asked; /* for numbers */

  struct vb_command *commands; /* of the agent, until their replies */
  uint64_t next_cookie;
  uint64_t call; /* cookie of the call that runs; 0: its reply has come */
  int call_result;
  struct vb_request *requests; /* of mrc_ctl.h, until their answers */

  uint64_t polled_ns; /* when the program last drove the engine */
  int wake_fd;        /* of the helper */
  pthread_t helper;
  bool stopping;
  uint64_t attached_ns; /* of the last attempt to find another agent */
  bool forked;          /* in a child: nothing works */
};

extern struct vb_process vb_process;

static inline void vb_lock(void) { pthread_mutex_lock(&vb_process.lock); }
static inline void vb_unlock(void) { pthread_mutex_unlock(&vb_process.lock); }

/* CLOCK_MONOTONIC */
uint64_t vb_now_ns(void);

/* The handle with this QPN, or NULL. */
struct vb_qp *vb_process_qp(uint32_t qpn);
void vb_process_add_qp(struct vb_qp *qp);
void vb_process_remove_qp(struct vb_qp *qp);
/* Calls a function for each QP; it may not remove QPs. */
void vb_process_each_qp(void (*call)(struct vb_qp *qp));

/* The MR with this key, or NULL. */
struct vb_mr *vb_process_mr(uint32_t key);
void vb_process_add_mr(struct vb_mr *mr);
void vb_process_remove_mr(struct vb_mr *mr);

/* Cookies of the library's own commands; the agent's have these bits 0. */
#define VB_COOKIE_POST (2ull << 62)
#define VB_COOKIE_CALL (3ull << 62)
#define VB_COOKIE_OWN (2ull << 62) /* set in both */

static inline uint64_t vb_post_cookie(uint32_t qpn, uint32_t place) {
  return VB_COOKIE_POST | (uint64_t)qpn << 32 | place;
}

/* The path MTU of the smallest plane, as verbs can say it. */
enum ibv_mtu vb_process_mtu(void);

/* Takes one event back from an eventfd that counts them. False: another thread has just read it and
   waits for the lock. */
bool vb_take_back(int fd);

/* Queues a command for the engine; makes room by running it. */
void vb_submit(const struct mrc_command *command);

#endif
