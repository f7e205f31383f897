/* SPDX-License-Identifier: Apache-2.0 */
/* Memory regions that the program registers, under random keys. Under the lock. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* `access` is a set of enum mrc_access, `domain` that of its QPs or 0. Sets `key`, never to 0. 0;
   -EAGAIN: no random numbers; or an error of mrc_mr_register. */
int pr_memory_register(const void *address, size_t bytes, uint32_t access, uint32_t domain,
                       uint32_t *key);
