/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects behind the handles of a program that uses rdma_cm, and what they share. Each begins
 * with the public struct. One lock guards all fields but those of the public structs, which belong
 * to the program. No function of verbs is called under it.
 */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>

#include "program/link.h"

enum { CM_PLACES = 1024 };

struct cm_id;

struct cm_event {
  struct rdma_cm_event event;
  struct cm_id *id;      /* that counts it until the program acknowledges it */
  struct cm_id *child;   /* of a CONNECT_REQUEST that the program has not taken */
  struct cm_event *next; /* in the channel */
  struct mrc_agent_cm said;
};

struct cm_channel {
  struct rdma_event_channel channel;
  struct cm_event *first;
  struct cm_event *last;
};

enum cm_state {
  CM_IDLE,
  CM_BOUND,
  CM_LISTENING,
  CM_CONNECTING, /* it calls or was called, and both ends are not up yet */
  CM_CONNECTED,
  CM_ENDED
};

struct cm_id {
  struct rdma_cm_id id;
  struct cm_id *next; /* in its place of the table */
  uint32_t number;
  enum cm_state state;
  bool sync;      /* it has a channel of its own, and its calls wait for their events */
  bool resolved;  /* the route is known */
  uint32_t taken; /* events */
  uint32_t acknowledged;
  int backlog;
  bool reuse;
  uint8_t ack_timeout;
  uint8_t gid_index; /* of the device */
  struct mrc_agent_cm_end own;
  struct mrc_agent_cm_end peer;
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t retry_count;
  uint8_t rnr_retry_count;
  uint8_t connect_bytes; /* private data of rdma_create_ep */
  uint8_t connect_data[MRC_AGENT_CM_PRIVATE];
  bool has_attr; /* `attr` and `attr_pd` are for the ids that peers make (rdma_create_ep) */
  struct ibv_qp_init_attr attr;
  struct ibv_sa_path_rec path;
};

struct cm_process {
  pthread_mutex_t lock;
  pthread_cond_t changed; /* answers, acknowledged events, the agent */
  struct pr_link link;
  bool up;     /* the agent knows all ids */
  bool forked; /* in a child: nothing works */
  uint32_t last_number;
  struct cm_id *ids[CM_PLACES];
  struct ibv_context *verbs; /* of mrc0, once it was opened */
  struct ibv_pd *pd;         /* for programs that name none */
  uint8_t most_resources;    /* READs and ATOMICs of a QP without an answer */
};

extern struct cm_process cm_process;

static inline void cm_lock(void) { pthread_mutex_lock(&cm_process.lock); }
static inline void cm_unlock(void) { pthread_mutex_unlock(&cm_process.lock); }

static inline struct cm_id *cm_id_of(struct rdma_cm_id *id) { return (struct cm_id *)id; }

/* What the functions of rdma_cm return: 0 or -1 with errno. `error` is positive. */
static inline int cm_result(int error) {
  if (error == 0) return 0;
  errno = error;
  return -1;
}

/* The table of ids, under the lock. */
struct cm_id *cm_find(uint32_t number);
void cm_add(struct cm_id *id);
void cm_remove(struct cm_id *id);
