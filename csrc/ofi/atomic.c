/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/atomic.h"

#include <rdma/fi_errno.h>
#include <string.h>

#include "ofi/transfer.h"

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

static ssize_t run(struct fid_ep *ep, const struct change *change) {
  const size_t bytes = bytes_of(change->type);
  const int how = change_of(change->type, change->op, change->result);
  if (bytes == 0 || how < 0) return -FI_EOPNOTSUPP;
  const bool reads = change->op == FI_ATOMIC_READ;
  if (change->at.count != 1 || (!reads && !is_one(change->operands, change->n_operands)) ||
      (change->result != NOTHING && !is_one(change->results, change->n_results)) ||
      (change->result == COMPARED && !is_one(change->compares, change->n_compares)) ||
      change->at.addr % bytes != 0)
    return -FI_EINVAL;
  return of_transfer_run(
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

static uint64_t flags_of(const struct fid_ep *ep) {
  return ((const struct of_ep *)ep)->send_flags & ~(FI_REMOTE_CQ_DATA | FI_INJECT);
}

static struct fi_ioc ioc(const void *memory, size_t count) {
  return (struct fi_ioc){.addr = (void *)(uintptr_t)memory, .count = count};
}

/* A change by calls that name each thing. */
static struct change named(const struct fid_ep *ep, fi_addr_t peer, uint64_t address, uint64_t key,
                           enum fi_datatype type, enum fi_op op, void *context) {
  return (struct change){.at = {.addr = address, .count = 1, .key = key},
                         .peer = peer,
                         .type = type,
                         .op = op,
                         .context = context,
                         .flags = flags_of(ep)};
}

static ssize_t write_v(struct fid_ep *ep, const struct fi_ioc *operands, void **desc, size_t n,
                       fi_addr_t peer, uint64_t address, uint64_t key, enum fi_datatype type,
                       enum fi_op op, void *context) {
  (void)desc;
  struct change change = named(ep, peer, address, key, type, op, context);
  change.operands = operands, change.n_operands = n;
  return run(ep, &change);
}

static ssize_t write_one(struct fid_ep *ep, const void *operand, size_t count, void *desc,
                         fi_addr_t peer, uint64_t address, uint64_t key, enum fi_datatype type,
                         enum fi_op op, void *context) {
  (void)desc;
  const struct fi_ioc operands = ioc(operand, count);
  return write_v(ep, &operands, NULL, 1, peer, address, key, type, op, context);
}

static ssize_t inject(struct fid_ep *ep, const void *operand, size_t count, fi_addr_t peer,
                      uint64_t address, uint64_t key, enum fi_datatype type, enum fi_op op) {
  const struct fi_ioc operands = ioc(operand, count);
  struct change change = named(ep, peer, address, key, type, op, NULL);
  change.operands = &operands, change.n_operands = 1;
  change.injects = true;
  return run(ep, &change);
}

static ssize_t fetch_v(struct fid_ep *ep, const struct fi_ioc *operands, void **desc, size_t n,
                       struct fi_ioc *results, void **result_desc, size_t n_results, fi_addr_t peer,
                       uint64_t address, uint64_t key, enum fi_datatype type, enum fi_op op,
                       void *context) {
  (void)desc, (void)result_desc;
  struct change change = named(ep, peer, address, key, type, op, context);
  change.operands = operands, change.n_operands = n;
  change.results = results, change.n_results = n_results;
  change.result = BEFORE;
  return run(ep, &change);
}

static ssize_t fetch_one(struct fid_ep *ep, const void *operand, size_t count, void *desc,
                         void *result, void *result_desc, fi_addr_t peer, uint64_t address,
                         uint64_t key, enum fi_datatype type, enum fi_op op, void *context) {
  (void)desc, (void)result_desc;
  const struct fi_ioc operands = ioc(operand, count);
  struct fi_ioc results = ioc(result, count);
  return fetch_v(ep, &operands, NULL, 1, &results, NULL, 1, peer, address, key, type, op, context);
}

static ssize_t compare_v(struct fid_ep *ep, const struct fi_ioc *operands, void **desc, size_t n,
                         const struct fi_ioc *compares, void **compare_desc, size_t n_compares,
                         struct fi_ioc *results, void **result_desc, size_t n_results,
                         fi_addr_t peer, uint64_t address, uint64_t key, enum fi_datatype type,
                         enum fi_op op, void *context) {
  (void)desc, (void)compare_desc, (void)result_desc;
  struct change change = named(ep, peer, address, key, type, op, context);
  change.operands = operands, change.n_operands = n;
  change.compares = compares, change.n_compares = n_compares;
  change.results = results, change.n_results = n_results;
  change.result = COMPARED;
  return run(ep, &change);
}

static ssize_t compare_one(struct fid_ep *ep, const void *operand, size_t count, void *desc,
                           const void *compare, void *compare_desc, void *result, void *result_desc,
                           fi_addr_t peer, uint64_t address, uint64_t key, enum fi_datatype type,
                           enum fi_op op, void *context) {
  (void)desc, (void)compare_desc, (void)result_desc;
  const struct fi_ioc operands = ioc(operand, count), compares = ioc(compare, count);
  struct fi_ioc results = ioc(result, count);
  return compare_v(ep, &operands, NULL, 1, &compares, NULL, 1, &results, NULL, 1, peer, address,
                   key, type, op, context);
}

/* ---- Calls with a message ---- */

static ssize_t run_msg(struct fid_ep *ep, const struct fi_msg_atomic *msg, struct change change,
                       uint64_t flags) {
  if (msg->rma_iov_count != 1) return -FI_EINVAL;
  change.operands = msg->msg_iov, change.n_operands = msg->iov_count;
  change.at = *msg->rma_iov;
  change.peer = msg->addr;
  change.type = msg->datatype;
  change.op = msg->op;
  change.context = msg->context;
  change.flags = flags;
  return run(ep, &change);
}

static ssize_t write_msg(struct fid_ep *ep, const struct fi_msg_atomic *msg, uint64_t flags) {
  return run_msg(ep, msg, (struct change){.result = NOTHING}, flags);
}

static ssize_t fetch_msg(struct fid_ep *ep, const struct fi_msg_atomic *msg, struct fi_ioc *results,
                         void **desc, size_t n, uint64_t flags) {
  (void)desc;
  const struct change change = {.results = results, .n_results = n, .result = BEFORE};
  return run_msg(ep, msg, change, flags);
}

static ssize_t compare_msg(struct fid_ep *ep, const struct fi_msg_atomic *msg,
                           const struct fi_ioc *compares, void **compare_desc, size_t n_compares,
                           struct fi_ioc *results, void **desc, size_t n, uint64_t flags) {
  (void)compare_desc, (void)desc;
  const struct change change = {.compares = compares,
                                .n_compares = n_compares,
                                .results = results,
                                .n_results = n,
                                .result = COMPARED};
  return run_msg(ep, msg, change, flags);
}

/* ---- What there is ---- */

static int write_valid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count) {
  (void)ep;
  return valid(type, op, count, NOTHING);
}

static int fetch_valid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count) {
  (void)ep;
  return valid(type, op, count, BEFORE);
}

static int compare_valid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count) {
  (void)ep;
  return valid(type, op, count, COMPARED);
}

int of_atomic_query(struct fid_domain *domain, enum fi_datatype type, enum fi_op op,
                    struct fi_atomic_attr *attr, uint64_t flags) {
  (void)domain;
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
                                      .writev = write_v,
                                      .writemsg = write_msg,
                                      .inject = inject,
                                      .readwrite = fetch_one,
                                      .readwritev = fetch_v,
                                      .readwritemsg = fetch_msg,
                                      .compwrite = compare_one,
                                      .compwritev = compare_v,
                                      .compwritemsg = compare_msg,
                                      .writevalid = write_valid,
                                      .readwritevalid = fetch_valid,
                                      .compwritevalid = compare_valid};
