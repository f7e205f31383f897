/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/object.h"

#include <rdma/fi_errno.h>
#include <stdlib.h>

#include "agent/process.h"

void *of_object_new(size_t bytes, struct fid *parent) {
  struct of_object *made = calloc(1, bytes);
  if (!made || !parent) return made;
  pr_lock();
  made->parent = (struct of_object *)parent;
  made->parent->users++;
  pr_unlock();
  return made;
}

int of_object_leave(struct of_object *object) {
  if (object->users > 0) return -FI_EBUSY;
  if (object->parent) object->parent->users--;
  return 0;
}

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
  pr_lock();
  const int error = of_object_leave((struct of_object *)fid);
  pr_unlock();
  if (error == 0) free(fid);
  return error;
}

struct fi_ops of_plain_ops = {.size = sizeof of_plain_ops,
                              .close = close_plain,
                              .bind = of_no_bind,
                              .control = of_no_control,
                              .ops_open = of_no_ops_open};
