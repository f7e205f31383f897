/* SPDX-License-Identifier: Apache-2.0 */
/* Which QPs may have something to send, as lists, and when each QP is due. This module identifies a
   QP by its nodes and its index. */
#ifndef MRC_CORE_READY_H
#define MRC_CORE_READY_H

#include "core/base/list.h"
#include "core/base/timer.h"

/* The heads of the lists. */
struct mrc_ready {
  struct mrc_node ready;        /* may have something to send: round robin */
  struct mrc_node answering;    /* the QPs of `ready` that owe an answer */
  struct mrc_node port_waiting; /* they have a blocked port, or one that is down */
  struct mrc_node cq_waiting;   /* their cumulative PSN waits for room in the CQ */
  struct mrc_node slot_waiting; /* their EV probes wait for a slot, in turn */
  struct mrc_timers timers;     /* one for each QP */
};

/* The nodes of one QP. */
struct mrc_ready_nodes {
  struct mrc_node ready;
  struct mrc_node answering;
  struct mrc_node port_waiting;
  struct mrc_node cq_waiting;
  struct mrc_node slot_waiting;
};

/* 0 or -ENOMEM. */
int mrc_ready_init(struct mrc_ready *ready, uint32_t max_qps) MRC_MUST_CHECK;
void mrc_ready_free(struct mrc_ready *ready);

/* The QP owes its peer an answer. Answers leave before the data of all QPs. */
static inline void mrc_ready_touch_to_answer(struct mrc_ready *ready,
                                             struct mrc_ready_nodes *nodes) {
  mrc_list_append(&ready->ready, &nodes->ready);
  mrc_list_append(&ready->answering, &nodes->answering);
}
/* A port can send again: each QP that waited for it gets a turn. Answers that are due leave first,
   because data would fill a small socket again each time. */
void mrc_ready_wake_port_waiting(struct mrc_ready *ready);
/* The QP is about to be freed. */
void mrc_ready_forget(struct mrc_ready *ready, struct mrc_ready_nodes *nodes, uint32_t qp);

#endif
