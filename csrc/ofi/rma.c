/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/rma.h"

#include <rdma/fi_errno.h>

#include "ofi/transfer.h"

static uint64_t flags_of(const struct fid_ep *ep) { return ((const struct of_ep *)ep)->send_flags; }

static ssize_t run(struct fid_ep *ep, enum mrc_msg_kind kind, const struct iovec *pieces,
                   size_t count, fi_addr_t peer, uint64_t address, uint64_t key, void *context) {
  return of_transfer_run_pieces(
      ep,
      (struct of_call){.peer = peer,
                       .tag = address,
                       .ignore = key,
                       .context = context,
                       .flags = flags_of(ep) & ~(FI_REMOTE_CQ_DATA | FI_INJECT),
                       .kind = kind},
      pieces, count);
}

static ssize_t run_msg(struct fid_ep *ep, enum mrc_msg_kind kind, const struct fi_msg_rma *msg,
                       uint64_t flags) {
  if (msg->rma_iov_count != 1) return -FI_EINVAL;
  size_t bytes = 0;
  for (size_t i = 0; i < msg->iov_count; i++)
    bytes += msg->msg_iov[i].iov_len;
  if (bytes != msg->rma_iov->len) return -FI_EINVAL;
  return of_transfer_run_pieces(ep,
                                (struct of_call){.peer = msg->addr,
                                                 .tag = msg->rma_iov->addr,
                                                 .ignore = msg->rma_iov->key,
                                                 .context = msg->context,
                                                 .flags = flags,
                                                 .kind = kind},
                                msg->msg_iov, msg->iov_count);
}

static struct iovec piece(const void *buffer, size_t bytes) {
  return (struct iovec){.iov_base = (void *)(uintptr_t)buffer, .iov_len = bytes};
}

static ssize_t read_memory(struct fid_ep *ep, void *buffer, size_t bytes, void *desc,
                           fi_addr_t peer, uint64_t address, uint64_t key, void *context) {
  (void)desc;
  const struct iovec whole = piece(buffer, bytes);
  return run(ep, MRC_MSG_READ, &whole, 1, peer, address, key, context);
}

static ssize_t read_v(struct fid_ep *ep, const struct iovec *pieces, void **desc, size_t count,
                      fi_addr_t peer, uint64_t address, uint64_t key, void *context) {
  (void)desc;
  return run(ep, MRC_MSG_READ, pieces, count, peer, address, key, context);
}

static ssize_t read_msg(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags) {
  return run_msg(ep, MRC_MSG_READ, msg, flags & ~FI_INJECT);
}

static ssize_t write_memory(struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
                            fi_addr_t peer, uint64_t address, uint64_t key, void *context) {
  (void)desc;
  const struct iovec whole = piece(buffer, bytes);
  return run(ep, MRC_MSG_WRITE, &whole, 1, peer, address, key, context);
}

static ssize_t write_v(struct fid_ep *ep, const struct iovec *pieces, void **desc, size_t count,
                       fi_addr_t peer, uint64_t address, uint64_t key, void *context) {
  (void)desc;
  return run(ep, MRC_MSG_WRITE, pieces, count, peer, address, key, context);
}

static ssize_t write_msg(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags) {
  return run_msg(ep, MRC_MSG_WRITE, msg, flags);
}

static ssize_t inject_write(struct fid_ep *ep, const void *buffer, size_t bytes, fi_addr_t peer,
                            uint64_t address, uint64_t key) {
  return of_transfer_run(ep, (struct of_call){.buffer = (void *)(uintptr_t)buffer,
                                              .bytes = bytes,
                                              .peer = peer,
                                              .tag = address,
                                              .ignore = key,
                                              .flags = FI_INJECT,
                                              .kind = MRC_MSG_WRITE,
                                              .injects = true});
}

/* The peer does not notice a write: nothing could bring it the data. */
static ssize_t no_write_data(struct fid_ep *ep, const void *buffer, size_t bytes, void *desc,
                             uint64_t data, fi_addr_t peer, uint64_t address, uint64_t key,
                             void *context) {
  (void)ep, (void)buffer, (void)bytes, (void)desc, (void)data, (void)peer, (void)address;
  (void)key, (void)context;
  return -FI_ENOSYS;
}

static ssize_t no_inject_write_data(struct fid_ep *ep, const void *buffer, size_t bytes,
                                    uint64_t data, fi_addr_t peer, uint64_t address, uint64_t key) {
  return no_write_data(ep, buffer, bytes, NULL, data, peer, address, key, NULL);
}

struct fi_ops_rma of_rma_ops = {.size = sizeof of_rma_ops,
                                .read = read_memory,
                                .readv = read_v,
                                .readmsg = read_msg,
                                .write = write_memory,
                                .writev = write_v,
                                .writemsg = write_msg,
                                .inject = inject_write,
                                .writedata = no_write_data,
                                .injectdata = no_inject_write_data};
