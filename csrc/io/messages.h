/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a context: brings operations of any thread to the datapath, and their completions to
   sinks or to mrc_ctx_msg_poll. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "msg/msg.h"

struct mrc_message_job {
  struct mrc_msg_post post; /* cancel: only space and cookie */
  bool cancel;
};

struct mrc_message_space {
  uint32_t space;
  mrc_msg_sink *sink; /* or NULL */
  void *user;
};

/* An array that grows. */
struct mrc_message_list {
  void *items;
  uint32_t n, capacity;
};

struct mrc_messages {
  struct mrc_msg *msg; /* NULL until the first peer or space */
  pthread_mutex_t jobs_lock;
  struct mrc_message_list jobs; /* posted, not seen by the datapath */
  atomic_bool has_jobs;
  pthread_mutex_t spaces_lock; /* held while a sink runs */
  struct mrc_message_list spaces;
  pthread_mutex_t done_lock;
  struct mrc_message_list done; /* for mrc_ctx_msg_poll */
  bool published;               /* something entered `done` in this turn */
};

void mrc_messages_init(struct mrc_messages *messages);
/* When the datapath runs no longer. */
void mrc_messages_close(struct mrc_messages *messages);

/* ---- Any thread ---- */

int mrc_messages_space(struct mrc_messages *messages, uint32_t space, mrc_msg_sink *sink,
                       void *user);
int mrc_messages_close_space(struct mrc_messages *messages, uint32_t space);
int mrc_messages_post(struct mrc_messages *messages, const struct mrc_msg_post *posts, int n);
int mrc_messages_cancel(struct mrc_messages *messages, uint32_t space, uint64_t cookie);
int mrc_messages_poll(struct mrc_messages *messages, struct mrc_msg_done *done, int n);
static inline bool mrc_messages_wait(const struct mrc_messages *messages) {
  return atomic_load(&messages->has_jobs);
}

/* ---- The datapath ---- */

int mrc_messages_open(struct mrc_messages *messages, mrc_engine *engine, uint32_t qpn,
                      struct mrc_msg_opening *opening);
static inline uint64_t mrc_messages_deadline(const struct mrc_messages *messages) {
  return messages->msg == NULL ? UINT64_MAX : mrc_msg_deadline(messages->msg);
}
/* Starts the operations that were posted, and does what it is time for. */
void mrc_messages_run(struct mrc_messages *messages, mrc_engine *engine, uint64_t now_ns);
/* Takes completions of its QPs out of an array, and returns how many are left. */
int mrc_messages_take(struct mrc_messages *messages, struct mrc_wc *wcs, int n, uint64_t now_ns);
/* Looks at the events of the engine: a QP of it may have failed. */
void mrc_messages_look(struct mrc_messages *messages, const struct mrc_event *events, int n,
                       uint64_t now_ns);
