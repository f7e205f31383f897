/* SPDX-License-Identifier: Apache-2.0 */
/* Memory regions. Under the lock. */
#pragma once

#include "verbs/objects.h"

/* NULL and errno: EFAULT if the process has no such memory, or may not write it as `access` says;
   EOPNOTSUPP for access that is not served. */
struct vb_mr *vb_mr_register(struct ibv_pd *pd, void *address, size_t bytes, int access);
/* A positive errno: EBUSY while work requests use it. */
int vb_mr_deregister(struct vb_mr *mr);
/* Before vb_objects.own_key is used: the key of memory that the library itself sends from. A
   positive errno. */
int vb_mr_register_own(void);

/* Lets the peers of this PD's QPs write to memory of the library. A positive errno. */
int vb_mr_add_inbox(void *address, size_t bytes, const struct ibv_pd *pd, uint32_t *key);
/* Ends that before the engine receives anything more. */
void vb_mr_remove_inbox(uint32_t key);
