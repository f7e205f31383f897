/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/transfer.h"

#include <errno.h>
#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/engine.h"
#include "ofi/av.h"
#include "ofi/connect.h"

/* ---- Posts ---- */

/* The default completion of a receive is the strictest. */
#define SEND_FLAGS                                                                             \
  (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_REMOTE_CQ_DATA | \
   FI_DELIVERY_COMPLETE | FI_MORE)
#define MEMORY_FLAGS (SEND_FLAGS & ~FI_REMOTE_CQ_DATA)
#define RECEIVE_FLAGS \
  (FI_COMPLETION | FI_MORE | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)
#define SEARCH_FLAGS (FI_PEEK | FI_CLAIM | FI_DISCARD)

static bool reaches(const struct of_call *call) {
  return call->kind == MRC_MSG_WRITE || call->kind == MRC_MSG_READ || call->kind == MRC_MSG_ATOMIC;
}

/* Whether it gets something back from the memory of a peer. */
static bool fetches(const struct of_call *call) {
  return call->kind == MRC_MSG_READ || (call->kind == MRC_MSG_ATOMIC && call->buffer);
}

/* Whether its completion is one of a transmission. */
static bool sends(const struct of_call *call) {
  return call->kind == MRC_MSG_SEND || reaches(call);
}

static bool known_flags(const struct of_call *call) {
  if (reaches(call)) return !(call->flags & ~MEMORY_FLAGS);
  if (sends(call)) return !(call->flags & ~SEND_FLAGS);
  if (call->flags & FI_DISCARD && !(call->flags & (FI_PEEK | FI_CLAIM))) return false;
  return !(call->flags & ~(RECEIVE_FLAGS | (call->tagged ? SEARCH_FLAGS : FI_MULTI_RECV)));
}

static bool is_silent(const struct of_ep *ep, const struct of_call *call) {
  const bool selective = sends(call) ? ep->selective_sends : ep->selective_receives;
  return selective && !(call->flags & FI_COMPLETION);
}

/* csrc/msg sends one piece of memory, so several are copied. */
static bool copies(const struct of_call *call) {
  return call->kind != MRC_MSG_ATOMIC && (call->flags & FI_INJECT || call->n_pieces > 0);
}

static int copy(const struct of_call *call, struct of_operation *operation) {
  char *at = operation->copy = malloc(call->bytes);
  if (!at) return -FI_ENOMEM;
  if (call->n_pieces == 0) memcpy(at, call->buffer, call->bytes);
  for (size_t i = 0; i < call->n_pieces; i++) {
    if (call->pieces[i].iov_len > 0) memcpy(at, call->pieces[i].iov_base, call->pieces[i].iov_len);
    at += call->pieces[i].iov_len;
  }
  return 0;
}

static uint64_t cq_flags(const struct of_call *call) {
  if (reaches(call))
    return (call->kind == MRC_MSG_ATOMIC ? FI_ATOMIC : FI_RMA) |
           (fetches(call) ? FI_READ : FI_WRITE);
  return (sends(call) ? FI_SEND : FI_RECV) | (call->tagged ? FI_TAGGED : FI_MSG);
}

/* Atomics count as reads or writes. */
static int counted_as(const struct of_call *call) {
  if (!reaches(call)) return call->kind;
  return fetches(call) ? MRC_MSG_READ : MRC_MSG_WRITE;
}

static int prepare(struct of_ep *ep, const struct of_call *call, struct of_operation *operation) {
  const bool silent = is_silent(ep, call);
  if (!call->injects) operation->cq = sends(call) ? ep->send_cq : ep->receive_cq;
  operation->counter = ep->counters[counted_as(call)];
  operation->silent = silent;
  operation->context = silent ? NULL : call->context;
  operation->buffer = call->flags & FI_PEEK ? NULL : call->buffer;
  operation->flags = cq_flags(call);
  operation->multi = call->flags & FI_MULTI_RECV;
  operation->claims = call->flags & FI_PEEK && call->flags & FI_CLAIM;
  operation->discards = call->flags & FI_DISCARD;
  return copies(call) && call->bytes > 0 ? copy(call, operation) : 0;
}

static struct mrc_msg_post post_of(const struct of_ep *ep, const struct of_call *call,
                                   const struct of_operation *operation,
                                   const struct of_peer *peer) {
  const bool peek = call->flags & FI_PEEK;
  const bool discard = call->flags & FI_DISCARD;
  const bool claim = call->flags & FI_CLAIM || (peek && discard);
  const void *memory = operation->copy ? operation->copy : call->buffer;
  const bool atomic = call->kind == MRC_MSG_ATOMIC;
  struct mrc_msg_post post = {
      .cookie = operation->cookie,
      .address = atomic ? call->operand : (uintptr_t)memory,
      .bytes = peek || discard ? 0 : call->bytes,
      .tag = call->tag,
      .ignore = call->ignore,
      .space = call->tagged ? OF_TAGGED_SPACE : OF_UNTAGGED_SPACE,
      .peer = MRC_MSG_ANY,
      .kind = (uint8_t)(peek ? MRC_MSG_PEEK : call->kind),
      .delivered = call->flags & FI_DELIVERY_COMPLETE ? 1 : 0,
      .claim = claim,
      .data = (uint32_t)call->data,
      .least = call->flags & FI_MULTI_RECV ? ep->least_multi : call->expected};
  if (peer) post.peer = sends(call) ? of_connect_to(peer) : of_connect_from(peer);
  if (claim && !peek) post.tag = (uintptr_t)((struct fi_context *)call->context)->internal[1];
  return post;
}

/* Under the lock. */
static ssize_t start(struct of_ep *ep, const struct of_call *call) {
  struct of_peer *peer = NULL;
  if (sends(call) || (ep->caps & FI_DIRECTED_RECV && call->peer != FI_ADDR_UNSPEC)) {
    peer = of_av_peer(ep->av, call->peer);
    if (!peer) return -FI_EINVAL;
    const int error = of_connect_use(peer);
    if (error != 0 && peer->error == 0) return error;
  }
  struct of_operation *operation = of_operation_new(sends(call));
  if (!operation) {
    pr_engine_turn(); /* what ends makes room, once the program reads its completions */
    return -FI_EAGAIN;
  }
  const bool idle = (sends(call) ? of_operations_sending() : of_operations_running()) == 1;
  const int error = prepare(ep, call, operation);
  if (error != 0) {
    of_operation_free(operation);
    return error;
  }
  const struct mrc_msg_post post = post_of(ep, call, operation, peer);
  const int refused = mrc_ctx_msg_post(pr_process.ctx, &post, 1);
  if (refused != 0) {
    of_operation_free(operation);
    return refused;
  }
  const bool is_here = post.kind == MRC_MSG_PEEK || post.claim; /* its message; or never */
  pr_engine_posted(idle || is_here);
  return 0;
}

static uint64_t cap_of(const struct of_call *call) {
  switch (call->kind) {
    case MRC_MSG_SEND:
      return FI_SEND;
    case MRC_MSG_WRITE:
      return FI_WRITE;
    case MRC_MSG_READ:
      return FI_READ;
    case MRC_MSG_ATOMIC:
      return FI_ATOMIC;
    default:
      return FI_RECV;
  }
}

ssize_t of_transfer_run(struct fid_ep *fid, struct of_call call) {
  struct of_ep *ep = (struct of_ep *)fid;
  if (!ep->enabled) return -FI_EOPBADSTATE;
  if (!(ep->caps & cap_of(&call))) return -FI_EOPNOTSUPP;
  if (!known_flags(&call)) return -FI_EBADFLAGS;
  if (call.flags & FI_INJECT && call.bytes > OF_INJECT_BYTES) return -FI_EINVAL;
  if (call.flags & FI_CLAIM && !call.context) return -FI_EINVAL;
  pr_lock();
  const ssize_t result = pr_process.forked ? -FI_EIO : start(ep, &call);
  pr_unlock();
  return result;
}

ssize_t of_transfer_run_pieces(struct fid_ep *ep, struct of_call call, const struct iovec *pieces,
                               size_t count) {
  const bool gathers = call.kind == MRC_MSG_SEND || call.kind == MRC_MSG_WRITE;
  if (count > (gathers ? OF_PIECES : 1)) return -FI_EINVAL;
  call.buffer = count > 0 ? pieces->iov_base : NULL;
  for (size_t i = 0; i < count; i++)
    call.bytes += pieces[i].iov_len;
  call.pieces = pieces;
  call.n_pieces = count > 1 ? count : 0;
  return of_transfer_run(ep, call);
}

static void *plain(const void *buffer) { return (void *)(uintptr_t)buffer; }

static uint64_t send_flags(const struct fid_ep *ep) {
  return ((const struct of_ep *)ep)->send_flags;
}

static uint64_t receive_flags(const struct fid_ep *ep) {
  return ((const struct of_ep *)ep)->receive_flags;
}

/* ---- With tags ---- */

static ssize_t tagged_recv(struct fid_ep *ep, void *buffer, size_t bytes, void *desc,
                           fi_addr_t peer, uint64_t tag, uint64_t ignore, void *context) {
  (void)desc;
  return of_transfer_run(ep, (struct of_call){.buffer = buffer,
                                              .bytes = bytes,
                                              .peer = peer,
                                              .tag = tag,
                                              .ignore = ignore,
                                              .context = context,
                                              .flags = receive_flags(ep) & ~FI_MULTI_RECV,
                                              .kind = MRC_MSG_RECV,
                                              .tagged = true});
}

static ssize_t tagged_recvv(struct fid_ep *ep, const struct iovec *pieces, void **desc,
                            size_t count, fi_addr_t peer, uint64_t tag, uint64_t ignore,
                            void *context) {
  (void)desc;
  if (count != 1) return -FI_EINVAL;
  return tagged_recv(ep, pieces->iov_base, pieces->iov_len, NULL, peer, tag, ignore, context);
}

static ssize_t tagged_recvmsg(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags) {
  struct of_call call = {.peer = msg->addr,
                         .tag = msg->tag,
                         .ignore = msg->ignore,
                         .context = msg->context,
                         .flags = flags,
                         .kind = MRC_MSG_RECV,
                         .tagged = true};
  if (flags & FI_CLAIM && !msg->context) return -FI_EINVAL;
  if (flags & FI_CLAIM && !(flags & FI_PEEK)) call.peer = FI_ADDR_UNSPEC; /* it is known which */
  return of_transfer_run_pieces(ep, call, msg->msg_iov, msg->iov_count);
}

static ssize_t tagged_senddata(struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
                               uint64_t data, fi_addr_t peer, uint64_t tag, void *context) {
  (void)desc;
  return of_transfer_run(ep, (struct of_call){.buffer = plain(buffer),
                                              .bytes = bytes,
                                              .peer = peer,
                                              .tag = tag,
                                              .context = context,
                                              .data = data,
                                              .flags = send_flags(ep),
                                              .tagged = true,
                                              .kind = MRC_MSG_SEND});
}

static ssize_t tagged_send(struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
                           fi_addr_t peer, uint64_t tag, void *context) {
  return tagged_senddata(ep, buffer, bytes, desc, 0, peer, tag, context);
}

static ssize_t tagged_sendv(struct fid_ep *ep, const struct iovec *pieces, void **desc,
                            size_t count, fi_addr_t peer, uint64_t tag, void *context) {
  (void)desc;
  return of_transfer_run_pieces(ep,
                                (struct of_call){.peer = peer,
                                                 .tag = tag,
                                                 .context = context,
                                                 .flags = send_flags(ep),
                                                 .tagged = true,
                                                 .kind = MRC_MSG_SEND},
                                pieces, count);
}

static ssize_t tagged_sendmsg(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags) {
  struct of_call call = {.peer = msg->addr,
                         .tag = msg->tag,
                         .context = msg->context,
                         .data = flags & FI_REMOTE_CQ_DATA ? msg->data : 0,
                         .flags = flags,
                         .tagged = true,
                         .kind = MRC_MSG_SEND};
  return of_transfer_run_pieces(ep, call, msg->msg_iov, msg->iov_count);
}

static ssize_t inject(struct fid_ep *ep, struct of_call call) {
  call.flags = FI_INJECT;
  call.kind = MRC_MSG_SEND;
  call.injects = true;
  return of_transfer_run(ep, call);
}

static ssize_t tagged_injectdata(struct fid_ep *ep, const void *buffer, size_t bytes, uint64_t data,
                                 fi_addr_t peer, uint64_t tag) {
  return inject(ep, (struct of_call){.buffer = plain(buffer),
                                     .bytes = bytes,
                                     .peer = peer,
                                     .tag = tag,
                                     .data = data,
                                     .tagged = true});
}

static ssize_t tagged_inject(struct fid_ep *ep, const void *buffer, size_t bytes, fi_addr_t peer,
                             uint64_t tag) {
  return tagged_injectdata(ep, buffer, bytes, 0, peer, tag);
}

struct fi_ops_tagged of_tagged_ops = {.size = sizeof of_tagged_ops,
                                      .recv = tagged_recv,
                                      .recvv = tagged_recvv,
                                      .recvmsg = tagged_recvmsg,
                                      .send = tagged_send,
                                      .sendv = tagged_sendv,
                                      .sendmsg = tagged_sendmsg,
                                      .inject = tagged_inject,
                                      .senddata = tagged_senddata,
                                      .injectdata = tagged_injectdata};

/* ---- Without ---- */

static ssize_t untagged_recv(struct fid_ep *ep, void *buffer, size_t bytes, void *desc,
                             fi_addr_t peer, void *context) {
  (void)desc;
  return of_transfer_run(ep, (struct of_call){.buffer = buffer,
                                              .bytes = bytes,
                                              .peer = peer,
                                              .context = context,
                                              .flags = receive_flags(ep),
                                              .kind = MRC_MSG_RECV});
}

static ssize_t untagged_recvv(struct fid_ep *ep, const struct iovec *pieces, void **desc,
                              size_t count, fi_addr_t peer, void *context) {
  (void)desc;
  if (count != 1) return -FI_EINVAL;
  return untagged_recv(ep, pieces->iov_base, pieces->iov_len, NULL, peer, context);
}

static ssize_t untagged_recvmsg(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags) {
  struct of_call call = {
      .peer = msg->addr, .context = msg->context, .flags = flags, .kind = MRC_MSG_RECV};
  return of_transfer_run_pieces(ep, call, msg->msg_iov, msg->iov_count);
}

static ssize_t untagged_senddata(struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
                                 uint64_t data, fi_addr_t peer, void *context) {
  (void)desc;
  return of_transfer_run(ep, (struct of_call){.buffer = plain(buffer),
                                              .bytes = bytes,
                                              .peer = peer,
                                              .context = context,
                                              .data = data,
                                              .flags = send_flags(ep),
                                              .kind = MRC_MSG_SEND});
}

static ssize_t untagged_send(struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
                             fi_addr_t peer, void *context) {
  return untagged_senddata(ep, buffer, bytes, desc, 0, peer, context);
}

static ssize_t untagged_sendv(struct fid_ep *ep, const struct iovec *pieces, void **desc,
                              size_t count, fi_addr_t peer, void *context) {
  (void)desc;
  return of_transfer_run_pieces(
      ep,
      (struct of_call){
          .peer = peer, .context = context, .flags = send_flags(ep), .kind = MRC_MSG_SEND},
      pieces, count);
}

static ssize_t untagged_sendmsg(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags) {
  struct of_call call = {.peer = msg->addr,
                         .context = msg->context,
                         .data = flags & FI_REMOTE_CQ_DATA ? msg->data : 0,
                         .flags = flags,
                         .kind = MRC_MSG_SEND};
  return of_transfer_run_pieces(ep, call, msg->msg_iov, msg->iov_count);
}

static ssize_t untagged_injectdata(struct fid_ep *ep, const void *buffer, size_t bytes,
                                   uint64_t data, fi_addr_t peer) {
  return inject(
      ep, (struct of_call){.buffer = plain(buffer), .bytes = bytes, .peer = peer, .data = data});
}

static ssize_t untagged_inject(struct fid_ep *ep, const void *buffer, size_t bytes,
                               fi_addr_t peer) {
  return untagged_injectdata(ep, buffer, bytes, 0, peer);
}

struct fi_ops_msg of_untagged_ops = {.size = sizeof of_untagged_ops,
                                     .recv = untagged_recv,
                                     .recvv = untagged_recvv,
                                     .recvmsg = untagged_recvmsg,
                                     .send = untagged_send,
                                     .sendv = untagged_sendv,
                                     .sendmsg = untagged_sendmsg,
                                     .inject = untagged_inject,
                                     .senddata = untagged_senddata,
                                     .injectdata = untagged_injectdata};

/* ---- Cancel ---- */

ssize_t of_transfer_cancel(struct fid *fid, void *context) {
  (void)fid;
  pr_lock();
  struct of_operation *operation = context ? of_operation_with(context) : NULL;
  if (operation) {
    of_connect_cancel(operation);
    pr_engine_posted(true);
  }
  pr_unlock();
  return operation ? 0 : -FI_ENOENT;
}
