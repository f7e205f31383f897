/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "cm/cm.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

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

static struct cm_event *event_of(struct mrc_node *node) {
  return MRC_NODE_OWNER(node, struct cm_event, node);
}

/* Appends an event of an id to its channel; the event is freed with the program's acknowledgement.
   Under the lock. */
static void put(struct cm_id *id, struct cm_event *event) {
  event->id = id;
  mrc_list_append(&((struct cm_channel *)id->id.channel)->events, &event->node);
  eventfd_write(id->id.channel->fd, 1);
}

/* The same for one that this library makes itself. False: no memory. */
static bool put_new(struct cm_id *id, enum rdma_cm_event_type type, int status) {
  struct cm_event *event = calloc(1, sizeof *event);
  if (!event) return false;
  event->event = (struct rdma_cm_event){.id = &id->id, .event = type, .status = status};
  put(id, event);
  return true;
}

enum { ANSWER_LOOKS = 10, AGAIN_MS = 200, FLUSH_MS = 10 };

/* A call without its answer. */
struct pending {
  struct mrc_node node;
  uint64_t cookie;
  bool done;
  bool lost; /* the agent has gone */
  int32_t value;
  struct mrc_agent_cm message;
};

static struct mrc_node all_pending = {&all_pending, &all_pending};
static uint64_t last_cookie;

/* ---- Calls ---- */

static void send_call(enum mrc_agent_cm_call call, uint64_t cookie,
                      const struct mrc_agent_cm *message) {
  const struct mrc_agent_frame head = {
      .kind = MRC_AGENT_CM_CALL, .value = (int32_t)call, .cookie = cookie};
  pr_link_send(&cm_process.link, &head, message, sizeof *message, NULL, 0, false);
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
  struct pending pending = {.cookie = ++last_cookie};
  mrc_list_append(&all_pending, &pending.node);
  send_call(call, pending.cookie, message);
  bool late = false;
  while (!pending.done && !pending.lost && !late)
    late = !wait_for_change(looks);
  mrc_node_leave(&pending.node);
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
  for (struct mrc_node *node = all_pending.next; node != &all_pending; node = node->next) {
    struct pending *each = MRC_NODE_OWNER(node, struct pending, node);
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
    const struct mrc_agent_cm child = {.id = event->message.child};
    if (request && cm_process.up) send_call(MRC_AGENT_CM_DESTROY, 0, &child);
    free(event);
    return;
  }
  event->event.id = &id->id;
  put(id, event);
}

static int take_frame(const struct pr_frame *frame) {
  if (frame->head.kind == MRC_AGENT_REFUSED) {
    PR_SAY_ONCE("the agent of this host refuses: %.*s", (int)frame->bytes,
                (const char *)frame->body);
  } else if (frame->bytes >= sizeof(struct mrc_agent_cm)) {
    if (frame->head.kind == MRC_AGENT_ANSWER) take_answer(frame);
    if (frame->head.kind == MRC_AGENT_CM_EVENT) take_event(frame);
  }
  return 0;
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
    id->state = CM_ENDED;
    put_new(id, RDMA_CM_EVENT_UNREACHABLE, -ECONNRESET);
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

static void *run(void *argument) {
  (void)argument;
  for (;;) {
    cm_lock();
    struct pollfd fd = {.fd = cm_process.link.fd, .events = POLLIN};
    const int wait_ms = fd.fd < 0 ? AGAIN_MS : cm_process.link.n_waiting > 0 ? FLUSH_MS : -1;
    cm_unlock();
    poll(&fd, 1, wait_ms);
    cm_lock();
    if (cm_process.link.fd < 0) {
      attach();
    } else if (pr_link_take(&cm_process.link, take_frame) != 0) { /* the agent has gone */
      cm_process.up = false;
      for (struct mrc_node *node = all_pending.next; node != &all_pending; node = node->next)
        MRC_NODE_OWNER(node, struct pending, node)->lost = true;
      pthread_cond_broadcast(&cm_process.changed);
    }
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

/* ======== Event channels ======== */

/* ---- Channels ---- */

struct cm_channel *cm_channel_create(void) {
  struct cm_channel *channel = calloc(1, sizeof *channel);
  if (!channel) return NULL;
  mrc_list_init(&channel->events);
  channel->channel.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (channel->channel.fd >= 0) return channel;
  free(channel);
  return NULL;
}

void cm_channel_destroy(struct cm_channel *channel) {
  close(channel->channel.fd);
  while (!mrc_list_is_empty(&channel->events)) {
    struct cm_event *first = event_of(channel->events.next);
    mrc_node_leave(&first->node);
    free(first);
  }
  free(channel);
}

bool cm_channel_raise(struct cm_id *id, enum rdma_cm_event_type type, int status) {
  cm_lock();
  const bool raised = put_new(id, type, status);
  cm_unlock();
  return raised;
}

/* The next event; waits, unless the program has made the descriptor O_NONBLOCK. NULL: errno.
   Without the lock. */
static struct cm_event *take_first(struct cm_channel *channel) {
  for (;;) {
    eventfd_t one;
    if (eventfd_read(channel->channel.fd, &one) != 0) return NULL;
    cm_lock();
    struct cm_event *event =
        mrc_list_is_empty(&channel->events) ? NULL : event_of(channel->events.next);
    if (event) {
      mrc_node_leave(&event->node);
      event->id->taken++;
    }
    cm_unlock();
    if (event) return event; /* otherwise its id was destroyed after the read */
  }
}

/* Moves the events of an id from its channel to a list. Under the lock. */
static void take_events_of(struct cm_id *id, struct mrc_node *taken) {
  struct mrc_node *events = &((struct cm_channel *)id->id.channel)->events, *next;
  uint64_t one;
  const struct iovec to = {.iov_base = &one, .iov_len = sizeof one};
  mrc_list_init(taken);
  for (struct mrc_node *node = events->next; node != events; node = next) {
    next = node->next;
    if (event_of(node)->id != id) continue;
    mrc_node_leave(node);
    mrc_list_append(taken, node);
    /* The descriptor counts one event less, unless a thread has just read it and waits for the
       lock. */
    preadv2(id->id.channel->fd, &to, 1, -1, RWF_NOWAIT);
  }
}

void cm_channel_move(struct cm_id *id, struct cm_channel *to) {
  struct mrc_node moved;
  take_events_of(id, &moved);
  id->id.channel = &to->channel;
  while (!mrc_list_is_empty(&moved)) {
    struct mrc_node *node = moved.next;
    mrc_node_leave(node);
    put(id, event_of(node));
  }
}

/* ---- What an event changes ---- */

/* The pointer is never NULL, as on RoCE: behind what the peer has sent are zeros. */
static void copy_params(struct cm_event *event) {
  const struct mrc_agent_cm *message = &event->message;
  event->event.param.conn =
      (struct rdma_conn_param){.private_data = message->private_data,
                               .private_data_len = message->private_bytes,
                               .responder_resources = message->responder_resources,
                               .initiator_depth = message->initiator_depth,
                               .flow_control = message->flow_control,
                               .retry_count = message->retry_count,
                               .rnr_retry_count = message->rnr_retry_count,
                               .srq = message->srq,
                               .qp_num = message->peer.qpn};
}

/* Gives the program the id that the peer's request has made. False: it cannot have one. */
static bool take_request(struct cm_event *event) {
  struct cm_id *child = event->child;
  const struct mrc_agent_cm *message = &event->message;
  struct rdma_addr *address = &child->id.route.addr;
  cm_address_of_gid(message->own.gid, child->own.port, &address->src_storage);
  cm_address_of_gid(message->peer.gid, message->peer.port, &address->dst_storage);
  int error = cm_device_take(child, address->src_addr.sa_family);
  if (error == 0) error = cm_device_gid(child, address->addr.ibaddr.sgid.raw);
  if (error == 0 && event->id->sync) error = cm_events_own_channel(child);
  memcpy(address->addr.ibaddr.dgid.raw, message->peer.gid, sizeof message->peer.gid);
  event->child = NULL; /* from now on the program's */
  if (error != 0) {
    rdma_destroy_id(&child->id);
    return false;
  }
  event->event.id = &child->id;
  event->event.listen_id = &event->id->id;
  copy_params(event);
  return true;
}

/* The peer has accepted: the QP is ready before the peer hears of it. */
static void take_response(struct cm_event *event) {
  struct cm_id *id = event->id;
  copy_params(event);
  cm_lock();
  id->peer = event->message.peer;
  memcpy(id->own.token, event->message.own.token, sizeof id->own.token);
  id->rnr_retry_count = event->message.rnr_retry_count; /* each side says it for the other */
  cm_unlock();
  if (id->responder_resources > event->message.responder_resources)
    id->responder_resources = event->message.responder_resources;
  if (id->initiator_depth > event->message.initiator_depth)
    id->initiator_depth = event->message.initiator_depth;
  if (!id->id.qp) return; /* the program connects its own, then calls rdma_establish */
  int error = cm_qp_connect(id);
  struct mrc_agent_cm message = {.id = id->number};
  if (error == 0) error = cm_session_call(MRC_AGENT_CM_ESTABLISH, &message);
  event->event.event = error == 0 ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_CONNECT_ERROR;
  event->event.status = -error;
  cm_set_state(id, error == 0 ? CM_CONNECTED : CM_ENDED);
  if (error == 0) return;
  message = (struct mrc_agent_cm){.id = id->number};
  cm_session_call(MRC_AGENT_CM_REJECT, &message);
}

/* The agent puts it in place of private data, which such an event has not. */
static void say_why(struct mrc_agent_cm *message) {
  if (message->private_bytes > 0)
    pr_say("%.*s", (int)message->private_bytes, (const char *)message->private_data);
  memset(message->private_data, 0, sizeof message->private_data);
  message->private_bytes = 0;
}

/* False: the program does not get the event. */
static bool take(struct cm_event *event) {
  switch (event->event.event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      return take_request(event);
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      take_response(event);
      break;
    case RDMA_CM_EVENT_ESTABLISHED:
      cm_set_state(event->id, CM_CONNECTED);
      break;
    case RDMA_CM_EVENT_UNREACHABLE:
      say_why(&event->message);
      /* fall through */
    case RDMA_CM_EVENT_REJECTED:
      copy_params(event);
      cm_qp_fail(event->id);
      cm_set_state(event->id, CM_ENDED);
      break;
    case RDMA_CM_EVENT_DISCONNECTED:
      cm_set_state(event->id, CM_ENDED);
      break;
    default:
      break;
  }
  return true;
}

/* ---- For programs ---- */

static void acknowledge(struct cm_event *event) {
  cm_lock();
  event->id->acknowledged++;
  pthread_cond_broadcast(&cm_process.changed);
  cm_unlock();
  free(event);
}

EXPORT int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event) {
  if (!channel || !event) return cm_result(EINVAL);
  for (;;) {
    struct cm_event *found = take_first((struct cm_channel *)channel);
    if (!found) return -1;
    if (take(found)) {
      *event = &found->event;
      return 0;
    }
    acknowledge(found);
  }
}

EXPORT int rdma_ack_cm_event(struct rdma_cm_event *event) {
  if (!event) return cm_result(EINVAL);
  acknowledge((struct cm_event *)event);
  return 0;
}

EXPORT struct rdma_event_channel *rdma_create_event_channel(void) {
  const int error = cm_device_open();
  if (error != 0) {
    errno = error;
    return NULL;
  }
  return (struct rdma_event_channel *)cm_channel_create();
}

EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *channel) {
  cm_channel_destroy((struct cm_channel *)channel);
}

/* ---- For the other functions ---- */

static void drop_former(struct cm_id *id) {
  if (id->id.event) rdma_ack_cm_event(id->id.event);
  id->id.event = NULL;
}

int cm_events_await(struct cm_id *id) {
  if (!id->sync) return 0;
  drop_former(id);
  if (rdma_get_cm_event(id->id.channel, &id->id.event) != 0) return -1;
  const int status = id->id.event->status;
  if (status == 0) return 0;
  if (id->id.event->event == RDMA_CM_EVENT_REJECTED) return cm_result(ECONNREFUSED);
  return cm_result(status < 0 ? -status : status);
}

/* An id is no more: drops its events, and waits until the program has acknowledged those that it
   has taken. */
static void forget(struct cm_id *id) {
  drop_former(id);
  cm_lock();
  struct cm_id **place = place_of(id->number);
  while (*place != id)
    place = &(*place)->next;
  *place = id->next;
  struct mrc_node left;
  take_events_of(id, &left);
  while (id->acknowledged != id->taken)
    pthread_cond_wait(&cm_process.changed, &cm_process.lock);
  cm_unlock();
  while (!mrc_list_is_empty(&left)) {
    struct cm_event *first = event_of(left.next);
    mrc_node_leave(&first->node);
    if (first->child) rdma_destroy_id(&first->child->id);
    free(first);
  }
  if (id->sync) rdma_destroy_event_channel(id->id.channel);
}

/* Here and not beside rdma_create_id: the events of an id hold the ids that peers have made. */
EXPORT int rdma_destroy_id(struct rdma_cm_id *id) {
  struct cm_id *own = cm_id_of(id);
  struct mrc_agent_cm message = {.id = own->number};
  if (own->state != CM_IDLE) cm_session_call(MRC_AGENT_CM_DESTROY, &message);
  forget(own);
  free(own);
  return 0;
}

int cm_events_own_channel(struct cm_id *id) {
  struct cm_channel *channel = cm_channel_create();
  if (!channel) return errno;
  cm_lock();
  cm_channel_move(id, channel);
  id->sync = true;
  cm_unlock();
  return 0;
}
