/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/object.h"

#include <rdma/fi_errno.h>
#include <stdlib.h>

int of_no_bind(struct fid *fid, struct fid *other, uint64_t flags) {
  (void)fid;
  (void)other;
  (void)flags;
  return -FI_ENOSYS;
}

int of_no_control(struct fid *fid, int command, void *argument) {
  (void)fid;
  (void)command;
  (void)argument;
  return -FI_ENOSYS;
}

int of_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) {
  (void)fid;
  (void)name;
  (void)flags;
  (void)ops;
  (void)context;
  return -FI_ENOSYS;
}

static int close_plain(struct fid *fid) {
  free(fid); /* a handle is the beginning of its object */
  return 0;
}

struct fi_ops of_plain_ops = {.size = sizeof of_plain_ops,
                              .close = close_plain,
                              .bind = of_no_bind,
                              .control = of_no_control,
                              .ops_open = of_no_ops_open};
