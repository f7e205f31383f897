/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/eq.h"

#include <poll.h>
#include <rdma/fi_errno.h>
#include <stdbool.h>
#include <stdio.h>

#include "ofi/object.h"

static ssize_t read_event(struct fid_eq *eq, uint32_t *event, void *buffer, size_t bytes,
                          uint64_t flags) {
  (void)eq, (void)event, (void)buffer, (void)bytes, (void)flags;
  return -FI_EAGAIN;
}

static ssize_t read_error(struct fid_eq *eq, struct fi_eq_err_entry *entry, uint64_t flags) {
  (void)eq, (void)entry, (void)flags;
  return -FI_EAGAIN;
}

static ssize_t write_event(struct fid_eq *eq, uint32_t event, const void *buffer, size_t bytes,
                           uint64_t flags) {
  (void)eq, (void)event, (void)buffer, (void)bytes, (void)flags;
  return -FI_ENOSYS;
}

/* A signal ends the wait too. */
static ssize_t wait_event(struct fid_eq *eq, uint32_t *event, void *buffer, size_t bytes,
                          int timeout_ms, uint64_t flags) {
  poll(NULL, 0, timeout_ms);
  return read_event(eq, event, buffer, bytes, flags);
}

static const char *error_text(struct fid_eq *eq, int prov_errno, const void *err_data, char *buffer,
                              size_t bytes) {
  (void)eq, (void)prov_errno, (void)err_data;
  static const char text[] = "nothing has failed";
  if (!buffer || bytes == 0) return text;
  snprintf(buffer, bytes, "%s", text);
  return buffer;
}

static struct fi_ops_eq eq_ops = {.size = sizeof eq_ops,
                                  .read = read_event,
                                  .readerr = read_error,
                                  .write = write_event,
                                  .sread = wait_event,
                                  .strerror = error_text};

int of_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq,
               void *context) {
  const enum fi_wait_obj wait = attr->wait_obj;
  const bool waits = wait == FI_WAIT_NONE || wait == FI_WAIT_UNSPEC || wait == FI_WAIT_YIELD;
  if (!waits || attr->flags & FI_WRITE) return -FI_ENOSYS;
  struct of_object *made = of_object_new(sizeof *made, &fabric->fid);
  if (!made) return -FI_ENOMEM;
  made->eq = (struct fid_eq){
      .fid = {.fclass = FI_CLASS_EQ, .context = context, .ops = &of_plain_ops}, .ops = &eq_ops};
  *eq = &made->eq;
  return 0;
}
