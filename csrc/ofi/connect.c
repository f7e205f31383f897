/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/ofi.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { SQ_DEPTH = 256, MAX_WIMM = 128, HEAP_BYTES = 64 << 20 };

static bool is_open;
static uint32_t n_qps;
static struct mrc_agent_endpoint own;

uint32_t of_connect_to(const struct of_peer *peer) { return peer->qps[0].number; }

uint32_t of_connect_from(const struct of_peer *peer) {
  return peer->qps[1].qpn != 0 ? peer->qps[1].number : peer->qps[0].number;
}

/* ---- Failures ---- */

static void fail(struct of_peer *peer, int error, const char *format, ...) {
  if (peer->error != 0) return;
  peer->error = error;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(peer->cause, sizeof peer->cause, format, arguments);
  va_end(arguments);
  for (int i = 0; i < 2; i++)
    if (peer->qps[i].qpn != 0)
      pr_submit(&(struct mrc_command){.op = MRC_COMMAND_MSG_FAIL,
                                      .cookie = PR_COOKIE_CALL,
                                      .value = peer->qps[i].number,
                                      .key = (uint32_t)-error});
}

static const char *host_of(const struct of_peer *peer) {
  static char text[INET6_ADDRSTRLEN]; /* under the lock */
  static const uint8_t mapped[12] = {[10] = 0xff, 0xff};
  const uint8_t *gid = peer->point.gid;
  if (memcmp(gid, mapped, sizeof mapped) == 0)
    inet_ntop(AF_INET, gid + sizeof mapped, text, sizeof text);
  else
    inet_ntop(AF_INET6, gid, text, sizeof text);
  return text;
}

/* ---- QPs ---- */

static void send_connect(struct of_peer *peer, struct of_qp *qp) {
  struct mrc_agent_connect connect = {.qpn = qp->qpn,
                                      .dest_qpn = qp->dest_qpn,
                                      .sq_depth = SQ_DEPTH,
                                      .max_wimm = MAX_WIMM,
                                      .ready = qp->connected,
                                      .messages = 1,
                                      .peer = qp->number,
                                      .rkey = qp->inbox.rkey,
                                      .address = qp->inbox.address};
  memcpy(connect.sgid, own.gid, sizeof connect.sgid);
  memcpy(connect.dgid, peer->point.gid, sizeof connect.dgid);
  qp->connect_sent = true;
  pr_tell(MRC_AGENT_CONNECT, 0, 0, &connect, sizeof connect, qp->resume,
          qp->connected ? qp->resume_bytes : 0);
}

static void send_request(struct of_peer *peer, struct of_qp *qp) {
  const struct mrc_agent_qp_request request = {.to = peer->point, .from = own, .qpn = qp->qpn};
  pr_tell(MRC_AGENT_QP_REQUEST, 0, 0, &request, sizeof request, NULL, 0);
}

static bool has_room(uint32_t more) { return n_qps + more <= OF_QPS; }

/* Gives a QP its place in csrc/msg, so that operations may be posted before it is connected. */
static int make(struct of_qp *qp, uint32_t qpn) {
  struct mrc_msg_opening opening = {
      .limits = {.sq_depth = SQ_DEPTH, .max_wimm = MAX_WIMM, .heap_bytes = HEAP_BYTES}};
  struct mrc_command command = {.op = MRC_COMMAND_MSG_OPEN, .qpn = qpn, .pointer = &opening};
  const int number = pr_engine_call(&command);
  if (number < 0) return number;
  *qp = (struct of_qp){.qpn = qpn, .number = (uint32_t)number, .inbox = opening.inbox};
  n_qps++;
  return 0;
}

/* This process itself: two QPs of it are connected with each other. */
static int use_own(struct of_peer *peer) {
  if (!has_room(2)) return -ENOSPC;
  const uint32_t qpns[2] = {pr_number(true), pr_number(true)};
  if (peer->qps[0].qpn != 0) return 0; /* another thread was first */
  if (qpns[0] == 0 || qpns[1] == 0) return -EAGAIN;
  for (int i = 0; i < 2; i++) {
    const int error = make(&peer->qps[i], qpns[i]);
    if (error != 0) return error;
    peer->qps[i].dest_qpn = qpns[1 - i];
  }
  send_connect(peer, &peer->qps[0]);
  send_connect(peer, &peer->qps[1]);
  return 0;
}

/* No two endpoints have the same token. */
static bool is_own(const struct mrc_agent_endpoint *point) {
  return memcmp(point->token, own.token, sizeof own.token) == 0;
}

int of_connect_use(struct of_peer *peer) {
  if (peer->error != 0 || peer->qps[0].qpn != 0) return peer->error;
  if (is_own(&peer->point)) return use_own(peer);
  if (!has_room(1)) return -ENOSPC;
  const uint32_t qpn = pr_number(true);
  if (peer->qps[0].qpn != 0) return peer->error;
  if (qpn == 0) return -EAGAIN;
  const int error = make(&peer->qps[0], qpn);
  if (error == 0) send_request(peer, &peer->qps[0]);
  return error;
}

/* ---- The endpoint ---- */

const struct mrc_agent_endpoint *of_connect_point(void) { return &own; }

int of_connect_open(void) {
  if (is_open) return -EBUSY;
  struct mrc_agent_endpoint made = {.number = pr_number(true)};
  if (made.number == 0) return -EAGAIN;
  if (getrandom(made.token, sizeof made.token, 0) != (ssize_t)sizeof made.token) return -EIO;
  memcpy(made.gid, pr_process.gids[0], sizeof made.gid);
  int error = mrc_ctx_msg_space(pr_process.ctx, OF_TAGGED_SPACE, NULL, NULL);
  if (error == 0) error = mrc_ctx_msg_space(pr_process.ctx, OF_UNTAGGED_SPACE, NULL, NULL);
  if (error != 0) return error;
  own = made;
  is_open = true;
  return 0;
}

static void release(struct of_peer *peer, struct of_qp *qp) {
  if (qp->leaving) return;
  pr_tell(MRC_AGENT_RELEASE, (int32_t)qp->qpn, 1, NULL, 0, NULL, 0);
  qp->leaving = true;
}

/* Its operations end with it. The next endpoint may find that the peer can be reached again. */
static void forget(struct of_peer *peer, struct of_qp *qp) {
  struct mrc_command command = {.op = MRC_COMMAND_MSG_CLOSE, .value = qp->number};
  pr_engine_call(&command);
  free(qp->resume);
  *qp = (struct of_qp){0};
  n_qps--;
  peer->error = 0;
  peer->said = false;
}

void of_connect_cancel(struct of_operation *operation) {
  const bool tagged = operation->flags & FI_TAGGED;
  mrc_ctx_msg_cancel(pr_process.ctx, tagged ? OF_TAGGED_SPACE : OF_UNTAGGED_SPACE,
                     operation->cookie);
}

/* A receive from any peer belongs to no QP, and must be cancelled. */
static void discard(struct of_operation *operation) {
  if (operation->ended) return;
  operation->cq = NULL;
  of_connect_cancel(operation);
}

void of_connect_close(void) {
  if (!is_open) return;
  of_peer_each_qp(release);
  pr_attach_linger(0);
  of_operation_each(discard);
  of_peer_each_qp(forget);
  pr_engine_turn(); /* csrc/msg ends them all */
  pr_tell(MRC_AGENT_RELEASE, (int32_t)own.number, 1, NULL, 0, NULL, 0);
  mrc_ctx_msg_close_space(pr_process.ctx, OF_TAGGED_SPACE);
  mrc_ctx_msg_close_space(pr_process.ctx, OF_UNTAGGED_SPACE);
  is_open = false;
}

/* ---- News of the agent ---- */

static uint32_t n_resumed;

/* Whether the next agent is told of the QP. */
static bool is_resumed(const struct of_peer *peer, const struct of_qp *qp) {
  return qp->connect_sent && !qp->leaving && peer->error == 0;
}

static void count(struct of_peer *peer, struct of_qp *qp) { n_resumed += is_resumed(peer, qp); }

static uint32_t to_resume(void) {
  n_resumed = 0;
  of_peer_each_qp(count);
  return n_resumed;
}

static void exists(uint32_t qpn, bool exists) {
  struct of_peer *peer;
  struct of_qp *qp = of_peer_qp(qpn, &peer);
  pr_process.n_exist += exists ? 1 : -1;
  if (qp) qp->exists = exists;
}

/* What the former agent had begun to connect begins again. */
static void tell(struct of_peer *peer, struct of_qp *qp) {
  if (!is_resumed(peer, qp)) return;
  if (qp->exists && !qp->connected) {
    pr_submit(&(struct mrc_command){
        .op = MRC_COMMAND_QP_DESTROY, .cookie = PR_COOKIE_CALL, .qpn = qp->qpn});
    exists(qp->qpn, false);
  }
  send_connect(peer, qp);
}

static void request_again(struct of_peer *peer, struct of_qp *qp) {
  if (!qp->connect_sent && !qp->leaving && peer->error == 0) send_request(peer, qp);
}

static void tell_all(void) {
  of_peer_each_qp(tell);
  if (is_open) pr_tell(MRC_AGENT_KEEP, (int32_t)own.number, 0, NULL, 0, NULL, 0);
  of_peer_each_qp(request_again);
}

static void release_all(void) { of_peer_each_qp(release); }

static void ready(const struct mrc_agent_ready *ready, const uint8_t *resume,
                  uint32_t resume_bytes) {
  struct of_peer *peer;
  struct of_qp *qp = of_peer_qp(ready->qpn, &peer);
  if (!qp) return;
  qp->connected = true;
  free(qp->resume);
  qp->resume = malloc(resume_bytes ? resume_bytes : 1);
  qp->resume_bytes = qp->resume ? resume_bytes : 0;
  if (qp->resume) memcpy(qp->resume, resume, resume_bytes);
}

static void failed(uint32_t qpn, const char *reason) {
  struct of_peer *peer;
  if (!of_peer_qp(qpn, &peer)) return;
  fail(peer, -ECONNREFUSED, "%s", reason);
}

static void gone(uint32_t qpn, const char *reason) {
  struct of_peer *peer;
  if (!of_peer_qp(qpn, &peer)) return;
  if (reason[0])
    fail(peer, -ECONNRESET, "the process at %s ended the connection: %s", host_of(peer), reason);
  else
    fail(peer, -ECONNRESET, "the process at %s has ended", host_of(peer));
}

static void admitted(uint32_t qpn, uint32_t dest_qpn) {
  struct of_peer *peer;
  struct of_qp *qp = of_peer_qp(qpn, &peer);
  if (!qp || qp->connect_sent) return;
  qp->dest_qpn = dest_qpn;
  send_connect(peer, qp);
}

/* Compares all bytes, whatever they are: who asks must not learn where they differ. */
static bool is_token(const uint8_t *token) {
  uint8_t differ = 0;
  for (size_t i = 0; i < sizeof own.token; i++)
    differ |= token[i] ^ own.token[i];
  return differ == 0;
}

/* The QP for an endpoint that asks; 0: there is no number for it now; or -errno. Whoever knows the
   token may ask under any number of addresses: only one that gets a QP enters the table. */
static int32_t admit(const struct mrc_agent_qp_request *request, struct of_peer **peer) {
  if (!is_open || request->to.number != own.number || !is_token(request->to.token)) return -ENOENT;
  if (is_own(&request->from)) return -ENOENT;
  *peer = of_peer_find(&request->from);
  if (*peer && ((*peer)->error != 0 || (*peer)->qps[0].leaving)) return -ENOENT;
  if (*peer && (*peer)->qps[0].qpn != 0) return (int32_t)(*peer)->qps[0].qpn;
  if (!has_room(1)) return -ENOSPC;
  const uint32_t qpn = pr_number(false);
  if (qpn == 0) return 0;
  if (!*peer) *peer = of_peer_of(&request->from);
  const int error = *peer ? make(&(*peer)->qps[0], qpn) : -ENOMEM;
  return error != 0 ? error : (int32_t)qpn;
}

static void peer_request(const struct mrc_agent_qp_request *request, uint64_t cookie) {
  struct of_peer *peer;
  const int32_t qpn = admit(request, &peer);
  pr_tell(MRC_AGENT_ADMIT, qpn, cookie, NULL, 0, NULL, 0);
  if (qpn <= 0 || peer->qps[0].connect_sent) return;
  peer->qps[0].dest_qpn = request->qpn;
  send_connect(peer, &peer->qps[0]);
}

/* ---- News of the engine ---- */

static void qp_error(uint32_t qpn, uint32_t status) {
  struct of_peer *peer;
  if (!of_peer_qp(qpn, &peer)) return;
  const bool timeout = status == MRC_WC_RETRY_EXC_ERR;
  fail(peer, timeout ? -ETIMEDOUT : -ECONNRESET, "%s %s",
       timeout ? "all paths are lost to" : "the connection failed to", host_of(peer));
  pr_tell(MRC_AGENT_RELEASE, (int32_t)qpn, 0, NULL, 0, NULL, 0); /* so the peer is told */
}

const char *const pr_name = "libmrc-fi";

/* Completions of QPs belong to csrc/msg. */
const struct pr_owner pr_owner = {
    .to_resume = to_resume,
    .tell_all = tell_all,
    .release_all = release_all,
    .ready = ready,
    .failed = failed,
    .gone = gone,
    .peer_request = peer_request,
    .admitted = admitted,
    .turned = of_cq_take,
    .watches = of_mr_is_written,
    .exists = exists,
    .qp_error = qp_error,
};
