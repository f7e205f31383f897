/* SPDX-License-Identifier: Apache-2.0 */
#include "io/messages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/base/base.h"

enum { FIRST_CAPACITY = 64 };

void mrc_messages_init(struct mrc_messages *messages) {
  *messages = (struct mrc_messages){0};
  pthread_mutex_init(&messages->jobs_lock, NULL);
  pthread_mutex_init(&messages->spaces_lock, NULL);
  pthread_mutex_init(&messages->done_lock, NULL);
}

void mrc_messages_close(struct mrc_messages *messages) {
  if (messages->msg != NULL) mrc_msg_free(messages->msg);
  free(messages->jobs.items);
  free(messages->spaces.items);
  free(messages->done.items);
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

int mrc_messages_space(struct mrc_messages *messages, uint32_t space, mrc_msg_sink *sink,
                       void *user) {
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

int mrc_messages_close_space(struct mrc_messages *messages, uint32_t space) {
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

static void keep(struct mrc_messages *messages, const struct mrc_msg_done *done) {
  pthread_mutex_lock(&messages->done_lock);
  const bool room = reserve(&messages->done, 1, sizeof *done);
  mrc_assert(room); /* without its completion the program would wait for ever */
  struct mrc_msg_done *items = messages->done.items;
  items[messages->done.n++] = *done;
  messages->published = true;
  pthread_mutex_unlock(&messages->done_lock);
}

static void on_done(void *user, const struct mrc_msg_done *done) {
  struct mrc_messages *messages = user;
  pthread_mutex_lock(&messages->spaces_lock);
  const struct mrc_message_space *space = find_space(messages, done->space);
  if (space != NULL && space->sink != NULL)
    space->sink(space->user, done);
  else if (space != NULL)
    keep(messages, done);
  pthread_mutex_unlock(&messages->spaces_lock);
}

int mrc_messages_poll(struct mrc_messages *messages, struct mrc_msg_done *done, int n) {
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

static int add(struct mrc_messages *messages, const struct mrc_msg_post *posts, uint32_t n,
               bool cancel) {
  pthread_mutex_lock(&messages->jobs_lock);
  const bool room = reserve(&messages->jobs, n, sizeof(struct mrc_message_job));
  struct mrc_message_job *jobs = messages->jobs.items;
  for (uint32_t i = 0; room && i < n; i++)
    jobs[messages->jobs.n++] = (struct mrc_message_job){.post = posts[i], .cancel = cancel};
  atomic_store(&messages->has_jobs, messages->jobs.n > 0);
  pthread_mutex_unlock(&messages->jobs_lock);
  return room ? 0 : -ENOMEM;
}

int mrc_messages_post(struct mrc_messages *messages, const struct mrc_msg_post *posts, int n) {
  return n <= 0 ? 0 : add(messages, posts, (uint32_t)n, false);
}

int mrc_messages_cancel(struct mrc_messages *messages, uint32_t space, uint64_t cookie) {
  return add(messages, &(struct mrc_msg_post){.space = space, .cookie = cookie}, 1, true);
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

/* Takes the jobs away from the lock: a sink that one of them calls may add others. */
void mrc_messages_run(struct mrc_messages *messages, mrc_engine *engine, uint64_t now_ns) {
  if (messages->msg != NULL) mrc_msg_expire(messages->msg, now_ns);
  if (!mrc_messages_wait(messages)) return;
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

int mrc_messages_open(struct mrc_messages *messages, mrc_engine *engine, uint32_t qpn,
                      struct mrc_msg_opening *opening) {
  const int error = start_module(messages, engine);
  if (error != 0) return error;
  return mrc_msg_open(messages->msg, qpn, &opening->limits, &opening->inbox);
}

int mrc_messages_take(struct mrc_messages *messages, struct mrc_wc *wcs, int n, uint64_t now_ns) {
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

void mrc_messages_look(struct mrc_messages *messages, const struct mrc_event *events, int n,
                       uint64_t now_ns) {
  for (int i = 0; messages->msg != NULL && i < n; i++) {
    const bool timeout = events[i].status == MRC_WC_RETRY_EXC_ERR;
    if (events[i].type == MRC_EVENT_QP_ERROR)
      mrc_msg_fail_qp(messages->msg, events[i].qpn, timeout ? -ETIMEDOUT : -ECONNRESET, now_ns);
  }
}
