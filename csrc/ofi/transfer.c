/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/ofi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

static int prepare(struct of_ep *ep, const struct of_call *call, struct of_operation *operation) {
  const bool selective = sends(call) ? ep->selective_sends : ep->selective_receives;
  const bool silent = selective && !(call->flags & FI_COMPLETION);
  if (!call->injects) operation->cq = sends(call) ? ep->send_cq : ep->receive_cq;
  const int reached = fetches(call) ? MRC_MSG_READ : MRC_MSG_WRITE; /* atomics count as these */
  operation->counter = ep->counters[reaches(call) ? reached : (int)call->kind];
  operation->silent = silent;
  operation->context = silent ? NULL : call->context;
  operation->buffer = call->flags & FI_PEEK ? NULL : call->buffer;
  operation->flags = cq_flags(call);
  operation->multi = call->flags & FI_MULTI_RECV;
  operation->claims = call->flags & FI_PEEK && call->flags & FI_CLAIM;
  operation->discards = call->flags & FI_DISCARD;
  /* csrc/msg sends one piece of memory, so several are copied. */
  const bool copies = call->flags & FI_INJECT || call->n_pieces > 0;
  return copies && call->kind != MRC_MSG_ATOMIC && call->bytes > 0 ? copy(call, operation) : 0;
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

static ssize_t transfer_run(struct fid_ep *fid, struct of_call call) {
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

/* The same with pieces of memory: one, or OF_PIECES of what is sent or written. -FI_EINVAL. */
static ssize_t transfer_run_pieces(struct fid_ep *ep, struct of_call call,
                                   const struct iovec *pieces, size_t count) {
  const bool gathers = call.kind == MRC_MSG_SEND || call.kind == MRC_MSG_WRITE;
  if (count > (gathers ? OF_PIECES : 1)) return -FI_EINVAL;
  call.buffer = count > 0 ? pieces->iov_base : NULL;
  for (size_t i = 0; i < count; i++)
    call.bytes += pieces[i].iov_len;
  call.pieces = pieces;
  call.n_pieces = count > 1 ? count : 0;
  return transfer_run(ep, call);
}

/* A piece of memory, or numbers of a program, until the end of the block. */
#define PIECE(buffer, bytes) \
  (&(struct iovec){.iov_base = (void *)(uintptr_t)(buffer), .iov_len = (bytes)})
#define NUMBERS(memory, n) (&(struct fi_ioc){.addr = (void *)(uintptr_t)(memory), .count = (n)})

static uint64_t send_flags(const struct fid_ep *ep) {
  return ((const struct of_ep *)ep)->send_flags;
}

static uint64_t receive_flags(const struct fid_ep *ep) {
  return ((const struct of_ep *)ep)->receive_flags;
}

static ssize_t run_receive(struct fid_ep *ep, const struct iovec *pieces, size_t count,
                           fi_addr_t peer, uint64_t tag, uint64_t ignore, void *context,
                           uint64_t flags, bool tagged) {
  return transfer_run_pieces(ep,
                             (struct of_call){.peer = peer,
                                              .tag = tag,
                                              .ignore = ignore,
                                              .context = context,
                                              .flags = flags,
                                              .kind = MRC_MSG_RECV,
                                              .tagged = tagged},
                             pieces, count);
}

static ssize_t run_send(struct fid_ep *ep, const struct iovec *pieces, size_t count, uint64_t data,
                        fi_addr_t peer, uint64_t tag, void *context, uint64_t flags, bool tagged) {
  return transfer_run_pieces(ep,
                             (struct of_call){.peer = peer,
                                              .tag = tag,
                                              .context = context,
                                              .data = data,
                                              .flags = flags,
                                              .kind = MRC_MSG_SEND,
                                              .tagged = tagged},
                             pieces, count);
}

static ssize_t run_inject(struct fid_ep *ep, const void *buffer, size_t bytes, uint64_t data,
                          fi_addr_t peer, uint64_t tag, bool tagged) {
  return transfer_run(ep, (struct of_call){.buffer = (void *)(uintptr_t)buffer,
                                           .bytes = bytes,
                                           .peer = peer,
                                           .tag = tag,
                                           .data = data,
                                           .flags = FI_INJECT,
                                           .kind = MRC_MSG_SEND,
                                           .tagged = tagged,
                                           .injects = true});
}

/* ---- With tags ---- */

static ssize_t tagged_recvv(struct fid_ep *ep, const struct iovec *pieces, void **desc,
                            size_t count, fi_addr_t peer, uint64_t tag, uint64_t ignore,
                            void *context) {
  if (count != 1) return -FI_EINVAL;
  return run_receive(ep, pieces, 1, peer, tag, ignore, context, receive_flags(ep) & ~FI_MULTI_RECV,
                     true);
}

static ssize_t tagged_recv(struct fid_ep *ep, void *buffer, size_t bytes, void *desc,
                           fi_addr_t peer, uint64_t tag, uint64_t ignore, void *context) {
  return tagged_recvv(ep, PIECE(buffer, bytes), NULL, 1, peer, tag, ignore, context);
}

static ssize_t tagged_recvmsg(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags) {
  const bool known = flags & FI_CLAIM && !(flags & FI_PEEK); /* which message it takes */
  if (flags & FI_CLAIM && !msg->context) return -FI_EINVAL;
  return run_receive(ep, msg->msg_iov, msg->iov_count, known ? FI_ADDR_UNSPEC : msg->addr, msg->tag,
                     msg->ignore, msg->context, flags, true);
}

static ssize_t tagged_senddata(struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
                               uint64_t data, fi_addr_t peer, uint64_t tag, void *context) {
  return run_send(ep, PIECE(buffer, bytes), 1, data, peer, tag, context, send_flags(ep), true);
}

static ssize_t tagged_send(struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
                           fi_addr_t peer, uint64_t tag, void *context) {
  return tagged_senddata(ep, buffer, bytes, desc, 0, peer, tag, context);
}

static ssize_t tagged_sendv(struct fid_ep *ep, const struct iovec *pieces, void **desc,
                            size_t count, fi_addr_t peer, uint64_t tag, void *context) {
  return run_send(ep, pieces, count, 0, peer, tag, context, send_flags(ep), true);
}

static ssize_t tagged_sendmsg(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags) {
  return run_send(ep, msg->msg_iov, msg->iov_count, flags & FI_REMOTE_CQ_DATA ? msg->data : 0,
                  msg->addr, msg->tag, msg->context, flags, true);
}

static ssize_t tagged_injectdata(struct fid_ep *ep, const void *buffer, size_t bytes, uint64_t data,
                                 fi_addr_t peer, uint64_t tag) {
  return run_inject(ep, buffer, bytes, data, peer, tag, true);
}

static ssize_t tagged_inject(struct fid_ep *ep, const void *buffer, size_t bytes, fi_addr_t peer,
                             uint64_t tag) {
  return run_inject(ep, buffer, bytes, 0, peer, tag, true);
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

static ssize_t untagged_recvv(struct fid_ep *ep, const struct iovec *pieces, void **desc,
                              size_t count, fi_addr_t peer, void *context) {
  if (count != 1) return -FI_EINVAL;
  return run_receive(ep, pieces, 1, peer, 0, 0, context, receive_flags(ep), false);
}

static ssize_t untagged_recv(struct fid_ep *ep, void *buffer, size_t bytes, void *desc,
                             fi_addr_t peer, void *context) {
  return untagged_recvv(ep, PIECE(buffer, bytes), NULL, 1, peer, context);
}

static ssize_t untagged_recvmsg(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags) {
  return run_receive(ep, msg->msg_iov, msg->iov_count, msg->addr, 0, 0, msg->context, flags, false);
}

static ssize_t untagged_senddata(struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
                                 uint64_t data, fi_addr_t peer, void *context) {
  return run_send(ep, PIECE(buffer, bytes), 1, data, peer, 0, context, send_flags(ep), false);
}

static ssize_t untagged_send(struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
                             fi_addr_t peer, void *context) {
  return untagged_senddata(ep, buffer, bytes, desc, 0, peer, context);
}

static ssize_t untagged_sendv(struct fid_ep *ep, const struct iovec *pieces, void **desc,
                              size_t count, fi_addr_t peer, void *context) {
  return run_send(ep, pieces, count, 0, peer, 0, context, send_flags(ep), false);
}

static ssize_t untagged_sendmsg(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags) {
  return run_send(ep, msg->msg_iov, msg->iov_count, flags & FI_REMOTE_CQ_DATA ? msg->data : 0,
                  msg->addr, 0, msg->context, flags, false);
}

static ssize_t untagged_injectdata(struct fid_ep *ep, const void *buffer, size_t bytes,
                                   uint64_t data, fi_addr_t peer) {
  return run_inject(ep, buffer, bytes, data, peer, 0, false);
}

static ssize_t untagged_inject(struct fid_ep *ep, const void *buffer, size_t bytes,
                               fi_addr_t peer) {
  return run_inject(ep, buffer, bytes, 0, peer, 0, false);
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
  pr_lock();
  struct of_operation *operation = context ? of_operation_with(context) : NULL;
  if (operation) {
    of_connect_cancel(operation);
    pr_engine_posted(true);
  }
  pr_unlock();
  return operation ? 0 : -FI_ENOENT;
}

/* ==== Reads and writes ==== */

static ssize_t run_rma(struct fid_ep *ep, enum mrc_msg_kind kind, const struct iovec *pieces,
                       size_t count, fi_addr_t peer, uint64_t address, uint64_t key,
                       void *context) {
  return transfer_run_pieces(
      ep,
      (struct of_call){.peer = peer,
                       .tag = address,
                       .ignore = key,
                       .context = context,
                       .flags = send_flags(ep) & ~(FI_REMOTE_CQ_DATA | FI_INJECT),
                       .kind = kind},
      pieces, count);
}

static ssize_t run_rma_msg(struct fid_ep *ep, enum mrc_msg_kind kind, const struct fi_msg_rma *msg,
                           uint64_t flags) {
  if (msg->rma_iov_count != 1) return -FI_EINVAL;
  size_t bytes = 0;
  for (size_t i = 0; i < msg->iov_count; i++)
    bytes += msg->msg_iov[i].iov_len;
  if (bytes != msg->rma_iov->len) return -FI_EINVAL;
  return transfer_run_pieces(ep,
                             (struct of_call){.peer = msg->addr,
                                              .tag = msg->rma_iov->addr,
                                              .ignore = msg->rma_iov->key,
                                              .context = msg->context,
                                              .flags = flags,
                                              .kind = kind},
                             msg->msg_iov, msg->iov_count);
}

static ssize_t read_memory(struct fid_ep *ep, void *buffer, size_t bytes, void *desc,
                           fi_addr_t peer, uint64_t address, uint64_t key, void *context) {
  return run_rma(ep, MRC_MSG_READ, PIECE(buffer, bytes), 1, peer, address, key, context);
}

static ssize_t read_v(struct fid_ep *ep, const struct iovec *pieces, void **desc, size_t count,
                      fi_addr_t peer, uint64_t address, uint64_t key, void *context) {
  return run_rma(ep, MRC_MSG_READ, pieces, count, peer, address, key, context);
}

static ssize_t read_msg(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags) {
  return run_rma_msg(ep, MRC_MSG_READ, msg, flags & ~FI_INJECT);
}

static ssize_t write_memory(struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
                            fi_addr_t peer, uint64_t address, uint64_t key, void *context) {
  return run_rma(ep, MRC_MSG_WRITE, PIECE(buffer, bytes), 1, peer, address, key, context);
}

static ssize_t rma_write_v(struct fid_ep *ep, const struct iovec *pieces, void **desc, size_t count,
                           fi_addr_t peer, uint64_t address, uint64_t key, void *context) {
  return run_rma(ep, MRC_MSG_WRITE, pieces, count, peer, address, key, context);
}

static ssize_t rma_write_msg(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags) {
  return run_rma_msg(ep, MRC_MSG_WRITE, msg, flags);
}

static ssize_t inject_write(struct fid_ep *ep, const void *buffer, size_t bytes, fi_addr_t peer,
                            uint64_t address, uint64_t key) {
  return transfer_run(ep, (struct of_call){.buffer = (void *)(uintptr_t)buffer,
                                           .bytes = bytes,
                                           .peer = peer,
                                           .tag = address,
                                           .ignore = key,
                                           .flags = FI_INJECT,
                                           .kind = MRC_MSG_WRITE,
                                           .injects = true});
}

/* The peer does not notice a write: nothing could bring it the data. */
OF_REFUSES(ssize_t, no_write_data, struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
           uint64_t data, fi_addr_t peer, uint64_t address, uint64_t key, void *context)
OF_REFUSES(ssize_t, no_inject_write_data, struct fid_ep *ep, const void *buffer, size_t bytes,
           uint64_t data, fi_addr_t peer, uint64_t address, uint64_t key)

struct fi_ops_rma of_rma_ops = {.size = sizeof of_rma_ops,
                                .read = read_memory,
                                .readv = read_v,
                                .readmsg = read_msg,
                                .write = write_memory,
                                .writev = rma_write_v,
                                .writemsg = rma_write_msg,
                                .inject = inject_write,
                                .writedata = no_write_data,
                                .injectdata = no_inject_write_data};

/* ==== Atomic changes ==== */

/* What a call gets back. */
enum result { NOTHING, BEFORE, COMPARED };

static size_t bytes_of(enum fi_datatype type) {
  switch (type) {
    case FI_INT32:
    case FI_UINT32:
      return 4;
    case FI_INT64:
    case FI_UINT64:
      return 8;
    default:
      return 0;
  }
}

static bool has_sign(enum fi_datatype type) { return type == FI_INT32 || type == FI_INT64; }

/* The change that an operation with such a result makes; -1: there is none. */
static int change_of(enum fi_datatype type, enum fi_op op, enum result result) {
  if (result == COMPARED) return op == FI_CSWAP ? MRC_MSG_COMPARE_SWAP : -1;
  switch (op) {
    case FI_MIN:
      return has_sign(type) ? MRC_MSG_SIGNED_MIN : MRC_MSG_MIN;
    case FI_MAX:
      return has_sign(type) ? MRC_MSG_SIGNED_MAX : MRC_MSG_MAX;
    case FI_SUM:
      return MRC_MSG_ADD;
    case FI_LOR:
      return MRC_MSG_LOGICAL_OR;
    case FI_LAND:
      return MRC_MSG_LOGICAL_AND;
    case FI_LXOR:
      return MRC_MSG_LOGICAL_XOR;
    case FI_BOR:
      return MRC_MSG_OR;
    case FI_BAND:
      return MRC_MSG_AND;
    case FI_BXOR:
      return MRC_MSG_XOR;
    case FI_ATOMIC_WRITE:
      return MRC_MSG_SWAP;
    case FI_ATOMIC_READ: /* adds 0 */
      return result == BEFORE ? MRC_MSG_ADD : -1;
    default:
      return -1;
  }
}

static int valid(enum fi_datatype type, enum fi_op op, size_t *count, enum result result) {
  if (bytes_of(type) == 0 || change_of(type, op, result) < 0) return -FI_EOPNOTSUPP;
  if (count) *count = 1;
  return 0;
}

/* One number of a program, of this type. */
static uint64_t number_at(const void *at, size_t bytes) {
  uint32_t narrow;
  uint64_t wide;
  if (bytes == sizeof wide) {
    memcpy(&wide, at, sizeof wide);
    return wide;
  }
  memcpy(&narrow, at, sizeof narrow);
  return narrow;
}

/* The pieces of a call of a program. */
struct change {
  const struct fi_ioc *operands, *compares;
  const struct fi_ioc *results;
  size_t n_operands, n_compares, n_results;
  struct fi_rma_ioc at;
  fi_addr_t peer;
  enum fi_datatype type;
  enum fi_op op;
  enum result result;
  void *context;
  uint64_t flags;
  bool injects;
};

static bool is_one(const struct fi_ioc *pieces, size_t n) { return n == 1 && pieces->count == 1; }

static ssize_t run_atomic(struct fid_ep *ep, const struct change *change) {
  const size_t bytes = bytes_of(change->type);
  const int how = change_of(change->type, change->op, change->result);
  if (bytes == 0 || how < 0) return -FI_EOPNOTSUPP;
  const bool reads = change->op == FI_ATOMIC_READ;
  if (change->at.count != 1 || (!reads && !is_one(change->operands, change->n_operands)) ||
      (change->result != NOTHING && !is_one(change->results, change->n_results)) ||
      (change->result == COMPARED && !is_one(change->compares, change->n_compares)) ||
      change->at.addr % bytes != 0)
    return -FI_EINVAL;
  return transfer_run(
      ep,
      (struct of_call){
          .buffer = change->result != NOTHING ? change->results->addr : NULL,
          .bytes = bytes,
          .peer = change->peer,
          .tag = change->at.addr,
          .ignore = change->at.key,
          .context = change->context,
          .flags = change->flags,
          .kind = MRC_MSG_ATOMIC,
          .injects = change->injects,
          .data = (uint64_t)how,
          .operand = reads ? 0 : number_at(change->operands->addr, bytes),
          .expected = change->result == COMPARED ? number_at(change->compares->addr, bytes) : 0});
}

/* ---- Calls ---- */

/* A change by calls that name each thing. */
static struct change named(const struct fid_ep *ep, fi_addr_t peer, uint64_t address, uint64_t key,
                           enum fi_datatype type, enum fi_op op, void *context) {
  return (struct change){.at = {.addr = address, .count = 1, .key = key},
                         .peer = peer,
                         .type = type,
                         .op = op,
                         .context = context,
                         .flags = send_flags(ep) & ~(FI_REMOTE_CQ_DATA | FI_INJECT)};
}

static ssize_t change_v(struct fid_ep *ep, const struct fi_ioc *operands, void **desc, size_t n,
                        fi_addr_t peer, uint64_t address, uint64_t key, enum fi_datatype type,
                        enum fi_op op, void *context) {
  struct change change = named(ep, peer, address, key, type, op, context);
  change.operands = operands, change.n_operands = n;
  return run_atomic(ep, &change);
}

static ssize_t write_one(struct fid_ep *ep, const void *operand, size_t count, void *desc,
                         fi_addr_t peer, uint64_t address, uint64_t key, enum fi_datatype type,
                         enum fi_op op, void *context) {
  return change_v(ep, NUMBERS(operand, count), NULL, 1, peer, address, key, type, op, context);
}

static ssize_t change_inject(struct fid_ep *ep, const void *operand, size_t count, fi_addr_t peer,
                             uint64_t address, uint64_t key, enum fi_datatype type, enum fi_op op) {
  struct change change = named(ep, peer, address, key, type, op, NULL);
  change.operands = NUMBERS(operand, count), change.n_operands = 1;
  change.injects = true;
  return run_atomic(ep, &change);
}

static ssize_t fetch_v(struct fid_ep *ep, const struct fi_ioc *operands, void **desc, size_t n,
                       struct fi_ioc *results, void **result_desc, size_t n_results, fi_addr_t peer,
                       uint64_t address, uint64_t key, enum fi_datatype type, enum fi_op op,
                       void *context) {
  struct change change = named(ep, peer, address, key, type, op, context);
  change.operands = operands, change.n_operands = n;
  change.results = results, change.n_results = n_results;
  change.result = BEFORE;
  return run_atomic(ep, &change);
}

static ssize_t fetch_one(struct fid_ep *ep, const void *operand, size_t count, void *desc,
                         void *result, void *result_desc, fi_addr_t peer, uint64_t address,
                         uint64_t key, enum fi_datatype type, enum fi_op op, void *context) {
  return fetch_v(ep, NUMBERS(operand, count), NULL, 1, NUMBERS(result, count), NULL, 1, peer,
                 address, key, type, op, context);
}

static ssize_t compare_v(struct fid_ep *ep, const struct fi_ioc *operands, void **desc, size_t n,
                         const struct fi_ioc *compares, void **compare_desc, size_t n_compares,
                         struct fi_ioc *results, void **result_desc, size_t n_results,
                         fi_addr_t peer, uint64_t address, uint64_t key, enum fi_datatype type,
                         enum fi_op op, void *context) {
  struct change change = named(ep, peer, address, key, type, op, context);
  change.operands = operands, change.n_operands = n;
  change.compares = compares, change.n_compares = n_compares;
  change.results = results, change.n_results = n_results;
  change.result = COMPARED;
  return run_atomic(ep, &change);
}

static ssize_t compare_one(struct fid_ep *ep, const void *operand, size_t count, void *desc,
                           const void *compare, void *compare_desc, void *result, void *result_desc,
                           fi_addr_t peer, uint64_t address, uint64_t key, enum fi_datatype type,
                           enum fi_op op, void *context) {
  return compare_v(ep, NUMBERS(operand, count), NULL, 1, NUMBERS(compare, count), NULL, 1,
                   NUMBERS(result, count), NULL, 1, peer, address, key, type, op, context);
}

/* ---- Calls with a message ---- */

static ssize_t run_atomic_msg(struct fid_ep *ep, const struct fi_msg_atomic *msg,
                              struct change change, uint64_t flags) {
  if (msg->rma_iov_count != 1) return -FI_EINVAL;
  change.operands = msg->msg_iov, change.n_operands = msg->iov_count;
  change.at = *msg->rma_iov;
  change.peer = msg->addr;
  change.type = msg->datatype;
  change.op = msg->op;
  change.context = msg->context;
  change.flags = flags;
  return run_atomic(ep, &change);
}

static ssize_t change_msg(struct fid_ep *ep, const struct fi_msg_atomic *msg, uint64_t flags) {
  return run_atomic_msg(ep, msg, (struct change){.result = NOTHING}, flags);
}

static ssize_t fetch_msg(struct fid_ep *ep, const struct fi_msg_atomic *msg, struct fi_ioc *results,
                         void **desc, size_t n, uint64_t flags) {
  const struct change change = {.results = results, .n_results = n, .result = BEFORE};
  return run_atomic_msg(ep, msg, change, flags);
}

static ssize_t compare_msg(struct fid_ep *ep, const struct fi_msg_atomic *msg,
                           const struct fi_ioc *compares, void **compare_desc, size_t n_compares,
                           struct fi_ioc *results, void **desc, size_t n, uint64_t flags) {
  const struct change change = {.compares = compares,
                                .n_compares = n_compares,
                                .results = results,
                                .n_results = n,
                                .result = COMPARED};
  return run_atomic_msg(ep, msg, change, flags);
}

/* ---- What there is ---- */

static int write_valid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count) {
  return valid(type, op, count, NOTHING);
}

static int fetch_valid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count) {
  return valid(type, op, count, BEFORE);
}

static int compare_valid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count) {
  return valid(type, op, count, COMPARED);
}

int of_atomic_query(struct fid_domain *domain, enum fi_datatype type, enum fi_op op,
                    struct fi_atomic_attr *attr, uint64_t flags) {
  if (flags & ~(FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC) ||
      flags == (FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC))
    return -FI_EBADFLAGS;
  enum result result = flags & FI_FETCH_ATOMIC ? BEFORE : NOTHING;
  if (flags & FI_COMPARE_ATOMIC) result = COMPARED;
  const int error = valid(type, op, &attr->count, result);
  if (error == 0) attr->size = bytes_of(type);
  return error;
}

struct fi_ops_atomic of_atomic_ops = {.size = sizeof of_atomic_ops,
                                      .write = write_one,
                                      .writev = change_v,
                                      .writemsg = change_msg,
                                      .inject = change_inject,
                                      .readwrite = fetch_one,
                                      .readwritev = fetch_v,
                                      .readwritemsg = fetch_msg,
                                      .compwrite = compare_one,
                                      .compwritev = compare_v,
                                      .compwritemsg = compare_msg,
                                      .writevalid = write_valid,
                                      .readwritevalid = fetch_valid,
                                      .compwritevalid = compare_valid};
