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

#include "agent/link.h"
#include "core/base.h"

enum { CM_PLACES = 1024 };

struct cm_id;

struct cm_event {
  struct rdma_cm_event event;
  struct cm_id *id;     /* that counts it until the program acknowledges it */
  struct cm_id *child;  /* of a CONNECT_REQUEST that the program has not taken */
  struct mrc_node node; /* in the channel */
  struct mrc_agent_cm message;
};

struct cm_channel {
  struct rdma_event_channel channel;
  struct mrc_node events;
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

static inline void cm_set_state(struct cm_id *id, enum cm_state state) {
  cm_lock();
  id->state = state;
  cm_unlock();
}

/* ---- session.c: ids and the agent; a thread takes its events ---- */

/* Attaches the process, unless it is; a positive errno. Without the lock. */
int cm_session_start(void);
/* Asks the agent, and waits for its answer, also for the next agent. `message` gets the answer. A
   positive errno. Without the lock. */
int cm_session_call(enum mrc_agent_cm_call call, struct mrc_agent_cm *message);
/* A new id of the program, which has no channel yet. NULL: no memory. Without the lock. */
struct cm_id *cm_session_new_id(void);

/* ---- id.c ---- */

/* The address of a GID, with a port in host order. */
void cm_address_of_gid(const uint8_t gid[16], uint16_t port, struct sockaddr_storage *address);

/* ---- qp.c: the device mrc0 of libmrc, to which all ids belong; the QP of an id ---- */

/* Opens the device, and attaches the process to the agent; a positive errno. */
int cm_device_open(void);
/* Binds an id to the device, and to its GID of this family (AF_INET, AF_INET6); a positive errno.
 */
int cm_device_take(struct cm_id *id, int family);
/* The GID of an id at the device. */
int cm_device_gid(const struct cm_id *id, uint8_t gid[16]);

/* Moves the QP of an id, if it has one, to RTS, with the peer that the id knows; a positive errno.
 */
int cm_qp_connect(struct cm_id *id);
/* Moves it to ERROR: what is posted there ends. */
void cm_qp_fail(struct cm_id *id);

/* ---- session.c: event channels, queues with a descriptor that is readable while they hold events;
   events as programs get them ---- */

struct cm_channel *cm_channel_create(void);
void cm_channel_destroy(struct cm_channel *channel);

/* Appends an event that this library makes itself to the id's channel. False: no memory. */
bool cm_channel_raise(struct cm_id *id, enum rdma_cm_event_type type, int status);
/* Moves the events of an id to another channel. Under the lock. */
void cm_channel_move(struct cm_id *id, struct cm_channel *to);
/* Ids without a channel wait here for the event of their call; returns 0 or -1 with errno. */
int cm_events_await(struct cm_id *id);
/* Gives an id that a peer made a channel of its own; a positive errno. */
int cm_events_own_channel(struct cm_id *id);
