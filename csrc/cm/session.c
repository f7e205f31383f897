/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "cm/cm.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/link.h"

/* ---- The table of ids ---- */

struct cm_process cm_process = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .link.fd = -1};

/* Only the name for lines on stderr: verbs and their engine are libmrc's. */
const char *const pr_name = "libmrc-cm";

static struct cm_id **place_of(uint32_t number) { return &cm_process.ids[number % CM_PLACES]; }

static struct cm_id *find(uint32_t number) {
  struct cm_id *id = *place_of(number);
  while (id && id->number != number)
    id = id->next;
  return id;
}

static void add(struct cm_id *id) {
  struct cm_id **place = place_of(id->number);
  id->next = *place;
  *place = id;
}

void cm_remove(struct cm_id *id) {
  struct cm_id **place = place_of(id->number);
  while (*place != id)
    place = &(*place)->next;
  *place = id->next;
}

enum { ANSWER_LOOKS = 10, AGAIN_MS = 200, FLUSH_MS = 10 };

/* A call without its answer. */
struct pending {
  struct pending *next;
  uint64_t cookie;
  bool done;
  bool lost; /* the agent has gone */
  int32_t value;
  struct mrc_agent_cm message;
};

static struct pending *all_pending;
static uint64_t last_cookie;

/* ---- Calls ---- */

static void send_call(enum mrc_agent_cm_call call, uint64_t cookie,
                      const struct mrc_agent_cm *message) {
  const struct mrc_agent_frame head = {
      .kind = MRC_AGENT_CM_CALL, .value = (int32_t)call, .cookie = cookie};
  pr_link_send(&cm_process.link, &head, message, sizeof *message, NULL, 0, false);
}

static void send_without_answer(enum mrc_agent_cm_call call, uint32_t number) {
  if (!cm_process.up) return;
  send_call(call, 0, &(struct mrc_agent_cm){.id = number});
}

static void forget_call(struct pending *pending) {
  struct pending **place = &all_pending;
  while (*place != pending)
    place = &(*place)->next;
  *place = pending->next;
}

/* Waits for a change, or the end of a look; false: there were ANSWER_LOOKS without a change. Looks
   are counted because nothing is late while the machine stands still. */
static bool wait_for_change(int *looks) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec++;
  if (pthread_cond_clockwait(&cm_process.changed, &cm_process.lock, CLOCK_MONOTONIC, &until) != 0)
    ++*looks;
  return *looks < ANSWER_LOOKS;
}

/* One attempt; ECONNRESET: the agent has gone meanwhile. */
static int ask(enum mrc_agent_cm_call call, struct mrc_agent_cm *message, int *looks) {
  while (!cm_process.up)
    if (!wait_for_change(looks)) return ENODEV;
  struct pending pending = {.next = all_pending, .cookie = ++last_cookie};
  all_pending = &pending;
  send_call(call, pending.cookie, message);
  bool late = false;
  while (!pending.done && !pending.lost && !late)
    late = !wait_for_change(looks);
  forget_call(&pending);
  if (pending.lost) return ECONNRESET;
  if (!pending.done) return ETIMEDOUT;
  *message = pending.message;
  return -pending.value;
}

int cm_session_call(enum mrc_agent_cm_call call, struct mrc_agent_cm *message) {
  if (cm_process.forked) return EIO;
  cm_lock();
  int error = ECONNRESET;
  int looks = 0;
  while (error == ECONNRESET)
    error = ask(call, message, &looks);
  cm_unlock();
  return error;
}

struct cm_id *cm_session_new_id(void) {
  struct cm_id *id = calloc(1, sizeof *id);
  if (!id) return NULL;
  cm_lock();
  do
    cm_process.last_number = (cm_process.last_number + 1) % MRC_AGENT_CM_CHILD;
  while (cm_process.last_number == 0 || find(cm_process.last_number));
  id->number = cm_process.last_number;
  add(id);
  cm_unlock();
  return id;
}

/* ---- Frames of the agent ---- */

static void take_answer(const struct pr_frame *frame) {
  for (struct pending *each = all_pending; each; each = each->next) {
    if (each->cookie != frame->head.cookie) continue;
    each->value = frame->head.value;
    memcpy(&each->message, frame->body, sizeof each->message);
    each->done = true;
  }
  pthread_cond_broadcast(&cm_process.changed);
}

/* The id that a peer's request makes. The program sees it when it takes the event. */
static struct cm_id *new_child(const struct cm_id *listener, const struct mrc_agent_cm *message) {
  struct cm_id *child = calloc(1, sizeof *child);
  if (!child) return NULL;
  child->id.channel = listener->id.channel;
  child->id.context = listener->id.context;
  child->id.ps = listener->id.ps;
  child->id.qp_type = listener->id.qp_type;
  child->number = message->child;
  child->state = CM_CONNECTING;
  child->own = message->own;
  child->own.port = listener->own.port;
  child->peer = message->peer;
  child->ack_timeout = listener->ack_timeout;
  child->responder_resources = message->responder_resources;
  child->initiator_depth = message->initiator_depth;
  child->retry_count = message->retry_count;
  child->rnr_retry_count = message->rnr_retry_count;
  add(child);
  return child;
}

static void take_event(const struct pr_frame *frame) {
  struct cm_event *event = calloc(1, sizeof *event);
  if (!event) return;
  memcpy(&event->message, frame->body, sizeof event->message);
  event->event.event = event->message.event;
  event->event.status = event->message.status;
  struct cm_id *id = find(event->message.id);
  const bool request = event->message.event == MRC_AGENT_CM_CONNECT_REQUEST;
  if (id && request) event->child = new_child(id, &event->message);
  if (!id || (request && !event->child)) {
    if (request) send_without_answer(MRC_AGENT_CM_DESTROY, event->message.child);
    free(event);
    return;
  }
  event->event.id = &id->id;
  cm_channel_put(id, event);
}

static void take_frame(const struct pr_frame *frame) {
  if (frame->head.kind == MRC_AGENT_REFUSED) {
    PR_SAY_ONCE("the agent of this host refuses: %.*s", (int)frame->bytes,
                (const char *)frame->body);
  } else if (frame->bytes >= sizeof(struct mrc_agent_cm)) {
    if (frame->head.kind == MRC_AGENT_ANSWER) take_answer(frame);
    if (frame->head.kind == MRC_AGENT_CM_EVENT) take_event(frame);
  }
}

/* ---- The agent ends, and the next one ---- */

/* Tells an agent of an id that it does not know. What was under way between two agents is lost. */
static void resume(struct cm_id *id) {
  struct mrc_agent_cm message = {
      .id = id->number, .own = id->own, .peer = id->peer, .option = id->reuse};
  if (id->state == CM_BOUND || id->state == CM_LISTENING) {
    send_call(MRC_AGENT_CM_BIND, 0, &message);
    message.option = (uint32_t)id->backlog;
    if (id->state == CM_LISTENING) send_call(MRC_AGENT_CM_LISTEN, 0, &message);
  } else if (id->state == CM_CONNECTED) {
    send_call(MRC_AGENT_CM_RESUME, 0, &message);
  } else if (id->state == CM_CONNECTING) {
    struct cm_event *event = calloc(1, sizeof *event);
    id->state = CM_ENDED;
    if (!event) return;
    event->event.event = RDMA_CM_EVENT_UNREACHABLE;
    event->event.status = -ECONNRESET;
    event->event.id = &id->id;
    cm_channel_put(id, event);
  }
}

static int attach(void) {
  const int error = pr_link_open(&cm_process.link);
  if (error != 0) return -error;
  const struct mrc_agent_frame head = {.kind = MRC_AGENT_CM_ATTACH, .value = MRC_AGENT_VERSION};
  pr_link_send(&cm_process.link, &head, NULL, 0, NULL, 0, false);
  for (int i = 0; i < CM_PLACES; i++)
    for (struct cm_id *id = cm_process.ids[i]; id; id = id->next)
      resume(id);
  cm_process.up = true;
  pthread_cond_broadcast(&cm_process.changed);
  return 0;
}

static void detach(void) {
  cm_process.up = false;
  pr_link_close(&cm_process.link);
  for (struct pending *each = all_pending; each; each = each->next)
    each->lost = true;
  pthread_cond_broadcast(&cm_process.changed);
}

static void take_all(void) {
  struct pr_frame frame;
  int found;
  pr_link_flush(&cm_process.link);
  while ((found = pr_link_receive(&cm_process.link, &frame)) == 1)
    take_frame(&frame);
  if (found < 0) detach();
}

static void *run(void *argument) {
  (void)argument;
  for (;;) {
    cm_lock();
    struct pollfd fd = {.fd = cm_process.link.fd, .events = POLLIN};
    const int wait_ms = fd.fd < 0 ? AGAIN_MS : cm_process.link.first ? FLUSH_MS : -1;
    cm_unlock();
    poll(&fd, 1, wait_ms);
    cm_lock();
    if (cm_process.link.fd >= 0)
      take_all();
    else
      attach();
    cm_unlock();
  }
  return NULL;
}

static void in_child(void) {
  cm_process.forked = true;
  pthread_mutex_init(&cm_process.lock, NULL);
  if (cm_process.link.fd >= 0) close(cm_process.link.fd);
  cm_process.link.fd = -1;
}

static int start_thread(void) {
  sigset_t all;
  sigset_t before;
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&thread, NULL, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error != 0) return error;
  pthread_setname_np(thread, "libmrc-cm");
  pthread_detach(thread);
  pthread_atfork(NULL, NULL, in_child);
  return 0;
}

int cm_session_start(void) {
  static bool started;
  if (cm_process.forked) return EIO;
  cm_lock();
  int error = started ? 0 : attach();
  if (!started && error == 0) error = start_thread();
  if (error == 0) started = true;
  cm_unlock();
  return error;
}
