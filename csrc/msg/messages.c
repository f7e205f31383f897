/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a context: brings operations of any thread to the datapath, and their completions to
   sinks or to mrc_ctx_msg_poll. */
#include "msg/messages.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/base.h"
#include "io/ctx.h"
#include "msg/msg.h"

enum { FIRST_CAPACITY = 64 };

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

static void *open_state(void) {
  struct mrc_messages *messages = calloc(1, sizeof *messages);
  if (messages == NULL) return NULL;
  pthread_mutex_init(&messages->jobs_lock, NULL);
  pthread_mutex_init(&messages->spaces_lock, NULL);
  pthread_mutex_init(&messages->done_lock, NULL);
  return messages;
}

static void close_state(void *state) {
  struct mrc_messages *messages = state;
  if (messages->msg != NULL) mrc_msg_free(messages->msg);
  free(messages->jobs.items);
  free(messages->spaces.items);
  free(messages->done.items);
  free(messages);
}

/* Makes room for n more items; false without memory. */
static bool reserve(struct mrc_message_list *list, uint32_t n, size_t bytes) {
  uint32_t capacity = list->capacity > 0 ? list->capacity : FIRST_CAPACITY;
  while (capacity - list->n < n)
    capacity *= 2;
  if (capacity == list->capacity) return true;
  void *items = realloc(list->items, capacity * bytes);
  if (items == NULL) return false;
  list->items = items;
  list->capacity = capacity;
  return true;
}

/* ---- spaces ---- */

static struct mrc_message_space *find_space(struct mrc_messages *messages, uint32_t space) {
  struct mrc_message_space *spaces = messages->spaces.items;
  for (uint32_t i = 0; i < messages->spaces.n; i++)
    if (spaces[i].space == space) return &spaces[i];
  return NULL;
}

int mrc_ctx_msg_space(mrc_ctx *ctx, uint32_t space, mrc_msg_sink *sink, void *user) {
  struct mrc_messages *messages = mrc_ctx_extension(ctx);
  if (messages == NULL) return -ECHILD;
  pthread_mutex_lock(&messages->spaces_lock);
  int error = find_space(messages, space) != NULL ? -EEXIST : 0;
  if (error == 0 && !reserve(&messages->spaces, 1, sizeof(struct mrc_message_space)))
    error = -ENOMEM;
  if (error == 0) {
    struct mrc_message_space *spaces = messages->spaces.items;
    spaces[messages->spaces.n++] =
        (struct mrc_message_space){.space = space, .sink = sink, .user = user};
  }
  pthread_mutex_unlock(&messages->spaces_lock);
  return error;
}

int mrc_ctx_msg_close_space(mrc_ctx *ctx, uint32_t space) {
  struct mrc_messages *messages = mrc_ctx_extension(ctx);
  if (messages == NULL) return -ECHILD;
  pthread_mutex_lock(&messages->spaces_lock);
  struct mrc_message_space *found = find_space(messages, space);
  if (found != NULL) {
    struct mrc_message_space *spaces = messages->spaces.items;
    *found = spaces[--messages->spaces.n];
  }
  pthread_mutex_unlock(&messages->spaces_lock);
  return found != NULL ? 0 : -ENOENT;
}

/* ---- completions ---- */

static void on_done(void *user, const struct mrc_msg_done *done) {
  struct mrc_messages *messages = user;
  pthread_mutex_lock(&messages->spaces_lock);
  const struct mrc_message_space *space = find_space(messages, done->space);
  if (space != NULL && space->sink != NULL) {
    space->sink(space->user, done);
  } else if (space != NULL) {
    pthread_mutex_lock(&messages->done_lock);
    const bool room = reserve(&messages->done, 1, sizeof *done);
    mrc_assert(room); /* without its completion the program would wait for ever */
    struct mrc_msg_done *items = messages->done.items;
    items[messages->done.n++] = *done;
    messages->published = true;
    pthread_mutex_unlock(&messages->done_lock);
  }
  pthread_mutex_unlock(&messages->spaces_lock);
}

int mrc_ctx_msg_poll(mrc_ctx *ctx, struct mrc_msg_done *done, int n) {
  struct mrc_messages *messages = mrc_ctx_extension(ctx);
  if (messages == NULL) return -ECHILD;
  pthread_mutex_lock(&messages->done_lock);
  struct mrc_msg_done *items = messages->done.items;
  const uint32_t taken = mrc_min_u32(messages->done.n, n > 0 ? (uint32_t)n : 0);
  if (taken > 0) {
    memcpy(done, items, taken * sizeof *done);
    messages->done.n -= taken;
    memmove(items, items + taken, messages->done.n * sizeof *done);
  }
  pthread_mutex_unlock(&messages->done_lock);
  return (int)taken;
}

/* ---- operations ---- */

static int add(mrc_ctx *ctx, const struct mrc_msg_post *posts, uint32_t n, bool cancel) {
  struct mrc_messages *messages = mrc_ctx_extension(ctx);
  if (messages == NULL) return -ECHILD;
  pthread_mutex_lock(&messages->jobs_lock);
  const bool room = reserve(&messages->jobs, n, sizeof(struct mrc_message_job));
  struct mrc_message_job *jobs = messages->jobs.items;
  for (uint32_t i = 0; room && i < n; i++)
    jobs[messages->jobs.n++] = (struct mrc_message_job){.post = posts[i], .cancel = cancel};
  atomic_store(&messages->has_jobs, messages->jobs.n > 0);
  pthread_mutex_unlock(&messages->jobs_lock);
  mrc_ctx_wake(ctx);
  return room ? 0 : -ENOMEM;
}

int mrc_ctx_msg_post(mrc_ctx *ctx, const struct mrc_msg_post *posts, int n) {
  return add(ctx, posts, n > 0 ? (uint32_t)n : 0, false);
}

int mrc_ctx_msg_cancel(mrc_ctx *ctx, uint32_t space, uint64_t cookie) {
  return add(ctx, &(struct mrc_msg_post){.space = space, .cookie = cookie}, 1, true);
}

static int start_module(struct mrc_messages *messages, mrc_engine *engine) {
  if (messages->msg != NULL) return 0;
  struct mrc_msg_config config = {.engine = engine, .done = on_done, .user = messages};
  if (getrandom(config.seed, sizeof config.seed, 0) != (ssize_t)sizeof config.seed) return -EIO;
  messages->msg = mrc_msg_new(&config);
  return messages->msg == NULL ? -ENOMEM : 0;
}

static void refuse(struct mrc_messages *messages, const struct mrc_msg_post *post, int error) {
  const struct mrc_msg_done done = {.cookie = post->cookie,
                                    .tag = post->tag,
                                    .space = post->space,
                                    .peer = post->peer,
                                    .result = error,
                                    .kind = post->kind};
  on_done(messages, &done);
}

static void run_job(struct mrc_messages *messages, const struct mrc_message_job *job,
                    uint64_t now_ns) {
  const struct mrc_msg_post *post = &job->post;
  if (job->cancel) {
    mrc_msg_cancel(messages->msg, post->space, post->cookie); /* or it has ended */
    return;
  }
  const int taken = mrc_msg_post(messages->msg, post, 1, now_ns);
  if (taken < 1) refuse(messages, post, taken == 0 ? -ENOBUFS : taken);
}

static bool waits(const void *state) {
  const struct mrc_messages *messages = state;
  return atomic_load(&messages->has_jobs);
}

/* Takes the jobs away from the lock: a sink that one of them calls may add others. */
static void run(void *state, mrc_engine *engine, uint64_t now_ns) {
  struct mrc_messages *messages = state;
  if (messages->msg != NULL) mrc_msg_expire(messages->msg, now_ns);
  if (!waits(messages)) return;
  pthread_mutex_lock(&messages->jobs_lock);
  struct mrc_message_list jobs = messages->jobs;
  messages->jobs = (struct mrc_message_list){0};
  atomic_store(&messages->has_jobs, false);
  pthread_mutex_unlock(&messages->jobs_lock);
  const int error = start_module(messages, engine);
  const struct mrc_message_job *items = jobs.items;
  for (uint32_t i = 0; i < jobs.n; i++) {
    if (error == 0)
      run_job(messages, &items[i], now_ns);
    else if (!items[i].cancel)
      refuse(messages, &items[i].post, error);
  }
  free(jobs.items);
  if (error == 0) mrc_msg_pump(messages->msg, now_ns);
}

/* ---- the engine ---- */

static bool is_used(const void *state) {
  const struct mrc_messages *messages = state;
  return messages->msg != NULL;
}

static uint64_t deadline(const void *state) {
  const struct mrc_messages *messages = state;
  return messages->msg == NULL ? UINT64_MAX : mrc_msg_deadline(messages->msg);
}

static int take(void *state, struct mrc_wc *wcs, int n, uint64_t now_ns) {
  struct mrc_messages *messages = state;
  if (messages->msg == NULL) return n;
  int left = 0;
  for (int i = 0; i < n; i++) {
    if (mrc_msg_owns(messages->msg, wcs[i].qpn))
      mrc_msg_take(messages->msg, &wcs[i], now_ns);
    else
      wcs[left++] = wcs[i];
  }
  mrc_msg_pump(messages->msg, now_ns); /* completions of others make room for refused posts too */
  return left;
}

static void look(void *state, const struct mrc_event *events, int n, uint64_t now_ns) {
  struct mrc_messages *messages = state;
  for (int i = 0; messages->msg != NULL && i < n; i++) {
    const bool timeout = events[i].status == MRC_WC_RETRY_EXC_ERR;
    if (events[i].type == MRC_EVENT_QP_ERROR)
      mrc_msg_fail_qp(messages->msg, events[i].qpn, timeout ? -ETIMEDOUT : -ECONNRESET, now_ns);
  }
}

static bool has_published(void *state) {
  struct mrc_messages *messages = state;
  const bool published = messages->published;
  messages->published = false;
  return published;
}

static int command_of(void *state, mrc_engine *engine, const struct mrc_command *command,
                      uint64_t now_ns) {
  struct mrc_messages *messages = state;
  struct mrc_msg_opening *opening = command->pointer;
  int error = command->op == MRC_COMMAND_MSG_OPEN ? start_module(messages, engine) : 0;
  struct mrc_msg *msg = messages->msg;
  if (error != 0) return error;
  switch (command->op) {
    case MRC_COMMAND_MSG_OPEN:
      return mrc_msg_open(msg, command->qpn, &opening->limits, &opening->inbox);
    case MRC_COMMAND_MSG_CONNECT:
      if (msg == NULL) return -EINVAL;
      error = mrc_msg_connect(msg, command->value, command->pointer);
      mrc_msg_pump(msg, now_ns);
      return error;
    case MRC_COMMAND_MSG_IDLE:
      return msg == NULL || mrc_msg_is_idle(msg, command->value);
    case MRC_COMMAND_MSG_FAIL:
      if (msg == NULL || command->key == 0 || command->key > INT_MAX) return -EINVAL;
      mrc_msg_fail(msg, command->value, -(int)command->key, now_ns);
      return 0;
    case MRC_COMMAND_MSG_CLOSE:
      if (msg != NULL) mrc_msg_close(msg, command->value);
      return 0;
    default:
      return -EINVAL;
  }
}

const struct mrc_extension mrc_messages_extension = {.open = open_state,
                                                     .close = close_state,
                                                     .waits = waits,
                                                     .deadline = deadline,
                                                     .is_used = is_used,
                                                     .run = run,
                                                     .take = take,
                                                     .look = look,
                                                     .has_published = has_published,
                                                     .command = command_of};
