/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs/mr.h"

#include <errno.h>
#include <stdlib.h>

#include "program/drive.h"
#include "program/memory.h"
#include "verbs/process.h"
#include "verbs/status.h"

static int register_memory(const void *address, size_t bytes, uint32_t access, uint32_t domain,
                           uint32_t *key) {
  const int error = pr_memory_register(address, bytes, access, domain, key);
  return error == -ENOSPC ? ENOMEM : vb_errno_of(error);
}

struct vb_mr *vb_mr_register(struct ibv_pd *pd, void *address, size_t bytes, int access) {
  const int served = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_REMOTE_ATOMIC;
  const bool writes = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  if (access & ~served & ~(int)IBV_ACCESS_OPTIONAL_RANGE) {
    errno = EOPNOTSUPP;
    return NULL;
  }
  const bool wraps = (uintptr_t)address > UINTPTR_MAX - bytes;
  if (bytes == 0 || wraps || (writes && !(access & IBV_ACCESS_LOCAL_WRITE))) {
    errno = EINVAL;
    return NULL;
  }
  if (!pr_memory_is_usable(address, bytes, access & IBV_ACCESS_LOCAL_WRITE)) {
    errno = EFAULT;
    return NULL;
  }
  struct vb_mr *mr = calloc(1, sizeof *mr);
  if (!mr) return NULL;
  uint32_t key;
  const uint32_t remote = access & IBV_ACCESS_REMOTE_WRITE ? MRC_ACCESS_REMOTE_WRITE : 0;
  const int error =
      register_memory(address, bytes, MRC_ACCESS_LOCAL_READ | remote, vb_domain_of(pd), &key);
  if (error != 0) {
    free(mr);
    errno = error;
    return NULL;
  }
  mr->mr = (struct ibv_mr){.context = pd->context,
                           .pd = pd,
                           .addr = address,
                           .length = bytes,
                           .handle = key,
                           .lkey = key,
                           .rkey = key};
  mr->access = access;
  ((struct vb_pd *)pd)->users++;
  vb_process_add_mr(mr);
  return mr;
}

int vb_mr_deregister(struct vb_mr *mr) {
  struct mrc_command command = {.op = MRC_COMMAND_MR_DEREGISTER, .key = mr->mr.lkey};
  const int error = pr_drive_call(&command);
  if (error != 0) return vb_errno_of(error);
  vb_process_remove_mr(mr);
  ((struct vb_pd *)mr->mr.pd)->users--;
  free(mr);
  return 0;
}

/* All memory: what the library sends from comes and goes with work requests. */
int vb_mr_register_own(void) {
  if (vb_objects.own_key != 0) return 0;
  uint32_t key;
  const int error =
      register_memory((const void *)1, UINTPTR_MAX - 1, MRC_ACCESS_LOCAL_READ, 0, &key);
  if (error == 0) vb_objects.own_key = key;
  return error;
}

int vb_mr_add_inbox(void *address, size_t bytes, const struct ibv_pd *pd, uint32_t *key) {
  uint32_t made = 0;
  const int error =
      register_memory(address, bytes, MRC_ACCESS_REMOTE_WRITE, vb_domain_of(pd), &made);
  if (error == 0) *key = made;
  return error;
}

void vb_mr_remove_inbox(uint32_t key) {
  pr_submit(
      &(struct mrc_command){.op = MRC_COMMAND_MR_DEREGISTER, .cookie = PR_COOKIE_CALL, .key = key});
}
