/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/mr.h"

#include <errno.h>
#include <rdma/fi_errno.h>
#include <stdlib.h>

#include "agent/process.h"
#include "ofi/object.h"

#define ACCESS (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

struct of_mr {
  struct of_object object;
  uint32_t key; /* 0: no peer may use the memory */
  bool written; /* peers may write it */
};

static uint32_t n_written;

bool of_mr_is_written(void) { return n_written > 0; }

/* A peer may still read from it: no further read begins, and this one ends soon. */
static int end_region(uint32_t key) {
  int error;
  do {
    struct mrc_command command = {.op = MRC_COMMAND_MR_DEREGISTER, .key = key};
    error = pr_engine_call(&command);
  } while (error == -EBUSY);
  return error;
}

static int close_mr(struct fid *fid) {
  struct of_mr *mr = (struct of_mr *)fid;
  pr_lock();
  int error = of_object_leave(&mr->object);
  if (error == 0 && mr->key != 0 && !pr_process.forked) error = end_region(mr->key);
  if (error == 0) n_written -= mr->written;
  pr_unlock();
  if (error == 0) free(mr);
  return error;
}

static int control(struct fid *fid, int command, void *argument) {
  (void)fid, (void)argument;
  return command == FI_ENABLE ? 0 : -FI_ENOSYS;
}

static struct fi_ops fid_ops = {.size = sizeof fid_ops,
                                .close = close_mr,
                                .bind = of_no_bind,
                                .control = control,
                                .ops_open = of_no_ops_open};

static uint32_t access_of(uint64_t wanted) {
  uint32_t access = wanted & FI_REMOTE_WRITE ? MRC_ACCESS_REMOTE_WRITE : 0;
  if (wanted & FI_REMOTE_READ) access |= MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_READ;
  return access;
}

static int begin_region(const void *buffer, size_t bytes, uint64_t wanted, uint32_t *key) {
  const uint32_t access = access_of(wanted);
  *key = 0;
  if (access == 0 || bytes == 0) return 0;
  if (!pr_memory_is_usable(buffer, bytes, wanted & FI_REMOTE_WRITE)) return -FI_EFAULT;
  pr_lock();
  int error = -pr_enter();
  if (error == 0) error = pr_memory_register(buffer, bytes, access, 0, key);
  pr_unlock();
  return error == -ENOSPC ? -FI_ENOMEM : error;
}

static int open_mr(struct fid *domain, const void *buffer, size_t bytes, uint64_t access,
                   uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr,
                   void *context) {
  (void)offset, (void)key; /* addresses are virtual, and keys are ours */
  if (flags & ~FI_RMA_PMEM) return -FI_EBADFLAGS;
  if (access & ~ACCESS) return -FI_EINVAL;
  uint32_t own_key;
  const int error = begin_region(buffer, bytes, access, &own_key);
  if (error != 0) return error;
  struct of_mr *made = of_object_new(sizeof *made, domain);
  if (!made) return -FI_ENOMEM;
  made->key = own_key;
  made->written = own_key != 0 && access & FI_REMOTE_WRITE;
  pr_lock();
  n_written += made->written;
  pr_unlock();
  made->object.mr =
      (struct fid_mr){.fid = {.fclass = FI_CLASS_MR, .context = context, .ops = &fid_ops},
                      .mem_desc = made,
                      .key = own_key};
  *mr = &made->object.mr;
  return 0;
}

static int open_mr_v(struct fid *domain, const struct iovec *pieces, size_t count, uint64_t access,
                     uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr,
                     void *context) {
  if (count != 1) return -FI_EINVAL;
  return open_mr(domain, pieces->iov_base, pieces->iov_len, access, offset, key, flags, mr,
                 context);
}

/* The fields behind these, for memory of a GPU, exist in later versions only. */
static int open_mr_attr(struct fid *domain, const struct fi_mr_attr *attr, uint64_t flags,
                        struct fid_mr **mr) {
  return open_mr_v(domain, attr->mr_iov, attr->iov_count, attr->access, attr->offset,
                   attr->requested_key, flags, mr, attr->context);
}

struct fi_ops_mr of_mr_ops = {
    .size = sizeof of_mr_ops, .reg = open_mr, .regv = open_mr_v, .regattr = open_mr_attr};
