/* SPDX-License-Identifier: Apache-2.0 */
#include "program/steer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "msg/messages.h"
#include "program/owner.h"
#include "program/process.h"
#include "program/say.h"

#define ANSWER_NS 35000000000ull /* for the agent to answer a request */

/* ---- Commands ---- */

struct pr_command {
  struct pr_command *next;
  uint64_t cookie;
  uint32_t op;
  bool unheard; /* its agent has gone */
  size_t bytes;
  _Alignas(16) uint8_t memory[];
};

struct pr_request {
  struct pr_request *next;
  uint64_t cookie;
  void *result;
  size_t room;
  size_t bytes;
  int status;
  bool answered;
};

/* The memory behind the pointer of a command; -1: the agent may not give it. */
static ptrdiff_t memory_of(const struct mrc_command *command) {
  const size_t n = command->value;
  switch ((enum mrc_command_op)command->op) {
    case MRC_COMMAND_QP_CREATE:
      return sizeof(struct mrc_qp_create_attr);
    case MRC_COMMAND_QP_MODIFY:
      if (command->value == MRC_QP_RTR) return sizeof(struct mrc_qp_rtr_attr);
      return command->value == MRC_QP_RTS ? sizeof(struct mrc_qp_rts_attr) : 0;
    case MRC_COMMAND_QP_SET_EVS:
      return (ptrdiff_t)(n * sizeof(struct mrc_ev_attr));
    case MRC_COMMAND_QP_SET_PEER:
      return (ptrdiff_t)(n * sizeof(struct mrc_peer_source));
    case MRC_COMMAND_QP_SET_SEAL:
      return sizeof(struct mrc_seal_attr);
    case MRC_COMMAND_QP_QUERY:
      return sizeof(struct mrc_qp_info);
    case MRC_COMMAND_QP_QUERY_EVS:
      return (ptrdiff_t)(n * sizeof(struct mrc_ev_info));
    case MRC_COMMAND_COUNTERS:
    case MRC_COMMAND_DROPS:
      return (ptrdiff_t)(n * sizeof(uint64_t));
    case MRC_COMMAND_TRACE:
      return (ptrdiff_t)(n * sizeof(struct mrc_trace_entry));
    case MRC_COMMAND_PORT_OPEN:
      return sizeof(struct mrc_port_opening);
    case MRC_COMMAND_MSG_CONNECT:
      return sizeof(struct mrc_msg_inbox);
    case MRC_COMMAND_QP_DESTROY:
    case MRC_COMMAND_QP_PROBE_EV:
    case MRC_COMMAND_QP_SET_EV_STATE:
    case MRC_COMMAND_QP_SET_MPR:
    case MRC_COMMAND_PORT_UP:
    case MRC_COMMAND_PORT_CLOSE:
    case MRC_COMMAND_MSG_IDLE:
    case MRC_COMMAND_MSG_FAIL:
    case MRC_COMMAND_MSG_CLOSE:
      return 0;
    default:
      return -1;
  }
}

/* Whether the engine fills the memory, which the agent then gets. */
static bool is_filled(uint32_t op) {
  return op == MRC_COMMAND_QP_QUERY || op == MRC_COMMAND_QP_QUERY_EVS ||
         op == MRC_COMMAND_COUNTERS || op == MRC_COMMAND_DROPS || op == MRC_COMMAND_TRACE ||
         op == MRC_COMMAND_PORT_OPEN;
}

static int take_command(const struct pr_frame *frame) {
  struct mrc_command command;
  if (frame->bytes < sizeof command) return -EPROTO;
  memcpy(&command, frame->body, sizeof command);
  const size_t bytes = frame->bytes - sizeof command;
  const ptrdiff_t expected = memory_of(&command);
  if (expected < 0 || (size_t)expected != bytes || command.cookie & PR_COOKIE_OWN) return -EPROTO;
  struct pr_command *kept = malloc(sizeof *kept + bytes);
  if (!kept) return -ENOMEM;
  *kept = (struct pr_command){
      .next = pr_process.commands, .cookie = command.cookie, .op = command.op, .bytes = bytes};
  memcpy(kept->memory, frame->body + sizeof command, bytes);
  if (command.op == MRC_COMMAND_QP_SET_SEAL) explicit_bzero(frame->body, frame->bytes);
  pr_process.commands = kept;
  command.pointer = bytes > 0 ? kept->memory : NULL;
  if (command.op == MRC_COMMAND_QP_CREATE) { /* the agent does not know PDs */
    struct mrc_qp_create_attr *attr = command.pointer;
    attr->domain = pr_owner.domain(attr->qpn);
  }
  pr_submit(&command);
  return 0;
}

static struct pr_command *take_kept(uint64_t cookie) {
  struct pr_command **place = &pr_process.commands;
  while (*place && (*place)->cookie != cookie)
    place = &(*place)->next;
  struct pr_command *found = *place;
  if (found) *place = found->next;
  return found;
}

static void drop_kept(struct pr_command *kept) {
  if (kept->op == MRC_COMMAND_QP_SET_SEAL) explicit_bzero(kept->memory, kept->bytes);
  free(kept);
}

static void send_event(const struct mrc_event *event, const void *memory, size_t bytes,
                       bool may_lose) {
  const struct mrc_agent_frame head = {.kind = MRC_AGENT_EVENT};
  pr_link_send(&pr_process.link, &head, event, sizeof *event, memory, bytes, may_lose);
}

static void on_reply(const struct mrc_event *event) {
  struct pr_command *kept = take_kept(event->cookie);
  if (!kept) return;
  if (event->result >= 0) {
    if (kept->op == MRC_COMMAND_QP_CREATE) pr_owner.exists(event->qpn, true);
    if (kept->op == MRC_COMMAND_QP_DESTROY) pr_owner.exists(event->qpn, false);
  }
  if (kept->unheard) {
    drop_kept(kept);
    return;
  }
  const bool filled = is_filled(kept->op);
  send_event(event, filled ? kept->memory : NULL, filled ? kept->bytes : 0, false);
  drop_kept(kept);
}

void pr_steer_event(const struct mrc_event *event) {
  if (event->type == MRC_EVENT_REPLY) {
    on_reply(event);
    return;
  }
  if (pr_process.link.lost > 0 && !pr_link_waits(&pr_process.link)) {
    const struct mrc_event lost = {.type = MRC_EVENT_LOST, .cookie = pr_process.link.lost};
    pr_process.link.lost = 0;
    send_event(&lost, NULL, 0, false);
  }
  const bool may_lose = event->type != MRC_EVENT_QP_ERROR && event->type != MRC_EVENT_PROBE;
  send_event(event, NULL, 0, may_lose);
  /* The agent hears it first: the program may end because of it. */
  if (event->type == MRC_EVENT_QP_ERROR) pr_owner.qp_error(event->qpn, event->status);
}

void pr_steer_forget(void) {
  for (struct pr_command *each = pr_process.commands; each; each = each->next)
    each->unheard = true;
  for (struct pr_request *each = pr_process.requests; each; each = each->next) {
    if (!each->answered) each->status = -ECONNRESET;
    each->answered = true;
  }
  pthread_cond_broadcast(&pr_process.changed);
}

/* ---- Requests ---- */

int pr_steer_request(int function, const void *body, size_t body_bytes, void *result,
                     size_t *bytes) {
  const uint64_t until_ns = pr_now_ns() + ANSWER_NS;
  pr_lock();
  struct pr_request request = {.next = pr_process.requests,
                               .cookie = pr_process.next_cookie++,
                               .result = result,
                               .room = bytes ? *bytes : 0,
                               .status = -ETIMEDOUT};
  pr_process.requests = &request;
  const struct mrc_agent_frame head = {
      .kind = MRC_AGENT_REQUEST, .value = function, .cookie = request.cookie};
  if (pr_process.link.fd < 0) {
    request.status = -ENOTCONN;
    request.answered = true;
  }
  pr_link_send(&pr_process.link, &head, body, body_bytes, NULL, 0, false);
  while (!request.answered && pr_wait(until_ns))
    continue;
  struct pr_request **place = &pr_process.requests;
  while (*place != &request)
    place = &(*place)->next;
  *place = request.next;
  pr_unlock();
  if (bytes) *bytes = request.bytes;
  return request.status;
}

static void answer(const struct pr_frame *frame) {
  for (struct pr_request *each = pr_process.requests; each; each = each->next) {
    if (each->cookie != frame->head.cookie || each->answered) continue;
    each->answered = true;
    each->status = frame->head.value;
    each->bytes = frame->bytes < each->room ? frame->bytes : each->room;
    if (each->bytes > 0) memcpy(each->result, frame->body, each->bytes);
  }
  pthread_cond_broadcast(&pr_process.changed);
}

/* ---- Frames ---- */

static int take_numbers(const struct pr_frame *frame) {
  const size_t n = frame->bytes / sizeof(uint32_t);
  if (pr_process.n_numbers + n > PR_MAX_NUMBERS) return -EPROTO;
  memcpy(pr_process.numbers + pr_process.n_numbers, frame->body, n * sizeof(uint32_t));
  pr_process.n_numbers += (uint32_t)n;
  pr_process.asked = false;
  pthread_cond_broadcast(&pr_process.changed);
  return 0;
}

static int take_ready(const struct pr_frame *frame) {
  struct mrc_agent_ready ready;
  if (frame->bytes < sizeof ready) return -EPROTO;
  memcpy(&ready, frame->body, sizeof ready);
  pr_owner.ready(&ready, frame->body + sizeof ready, (uint32_t)(frame->bytes - sizeof ready));
  return 0;
}

/* A frame about a QP with a line of text. */
static void take_reason(const struct pr_frame *frame, void (*take)(uint32_t, const char *)) {
  char reason[MRC_AGENT_TEXT];
  snprintf(reason, sizeof reason, "%.*s", (int)frame->bytes, (const char *)frame->body);
  take((uint32_t)frame->head.value, reason);
}

static bool any_up(void) {
  for (int i = 0; i < pr_process.n_ports; i++)
    if (pr_process.ports[i].up) return true;
  return false;
}

static int take_ports(const struct pr_frame *frame) {
  const size_t n = frame->bytes / sizeof(struct mrc_agent_port);
  if (n > MRC_MAX_PORTS) return -EPROTO;
  const bool was_up = any_up();
  memcpy(pr_process.ports, frame->body, n * sizeof(struct mrc_agent_port));
  pr_process.n_ports = (int)n;
  if (any_up() != was_up && pr_owner.ports_changed) pr_owner.ports_changed(!was_up);
  return 0;
}

static int take_ev_event(const struct pr_frame *frame) {
  struct mrc_agent_ev_event event;
  if (frame->bytes < sizeof event) return -EPROTO;
  memcpy(&event, frame->body, sizeof event);
  if (pr_owner.ev_event) pr_owner.ev_event(&event);
  return 0;
}

static int take_visit(const struct pr_frame *frame) {
  struct mrc_agent_knock knock;
  if (frame->bytes < sizeof knock) return -EPROTO;
  memcpy(&knock, frame->body, sizeof knock);
  if (pr_owner.visit)
    pr_owner.visit(&knock, frame->head.cookie);
  else
    pr_tell(MRC_AGENT_ADMIT, -ENOENT, frame->head.cookie, NULL, 0, NULL, 0);
  return 0;
}

static int take_admitted(const struct pr_frame *frame) {
  uint32_t qpn;
  if (frame->bytes < sizeof qpn || !pr_owner.admitted) return -EPROTO;
  memcpy(&qpn, frame->body, sizeof qpn);
  pr_owner.admitted((uint32_t)frame->head.value, qpn);
  return 0;
}

int pr_steer_frame(const struct pr_frame *frame) {
  switch ((enum mrc_agent_kind)frame->head.kind) {
    case MRC_AGENT_COMMAND:
      return take_command(frame);
    case MRC_AGENT_GRANTED:
      return take_numbers(frame);
    case MRC_AGENT_READY:
      return take_ready(frame);
    case MRC_AGENT_FAILED:
      take_reason(frame, pr_owner.failed);
      return 0;
    case MRC_AGENT_GONE:
      take_reason(frame, pr_owner.gone);
      return 0;
    case MRC_AGENT_PORTS:
      return take_ports(frame);
    case MRC_AGENT_ANSWER:
      answer(frame);
      return 0;
    case MRC_AGENT_EV_EVENT:
      return take_ev_event(frame);
    case MRC_AGENT_VISIT:
      return take_visit(frame);
    case MRC_AGENT_ADMITTED:
      return take_admitted(frame);
    case MRC_AGENT_REFUSED: /* the next agent, which then closes the connection */
      PR_SAY_ONCE("the agent of this host refuses: %.*s", (int)frame->bytes,
                  (const char *)frame->body);
      return -EPROTO;
    default:
      return -EPROTO;
  }
}
