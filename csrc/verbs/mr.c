/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "verbs/mr.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "program/drive.h"
#include "program/memory.h"
#include "verbs/process.h"
#include "verbs/status.h"

enum {
  /* On Arm the kernel ignores the upper byte of an address: the end of a longer region would seem
     readable. */
  ADDRESS_BITS = 55
};

/* Whether this process can read a byte: memory of a GPU, for example, it cannot. */
static bool is_readable(const uint8_t *address) {
  uint8_t byte;
  const struct iovec to = {.iov_base = &byte, .iov_len = 1};
  const struct iovec from = {.iov_base = (void *)(uintptr_t)address, .iov_len = 1};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 || errno == EPERM || errno == ENOSYS;
}

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
  const bool too_long = bytes >> ADDRESS_BITS != 0;
  if (too_long || !is_readable(address) || !is_readable((const uint8_t *)address + bytes - 1)) {
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
