/* SPDX-License-Identifier: Apache-2.0 */
/* Memory regions that the program registers, under random keys. Under the lock. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether this process has the memory and can read it, and write it if it is `written`. It cannot
   read memory of a GPU, for example. Permissions are those of the first and the last page. */
bool pr_memory_is_usable(const void *address, size_t bytes, bool written);

/* `access` is a set of enum mrc_access, `domain` that of its QPs or 0. Sets `key`, never to 0. 0;
   -EAGAIN: no random numbers; or an error of mrc_mr_register. */
int pr_memory_register(const void *address, size_t bytes, uint32_t access, uint32_t domain,
                       uint32_t *key);
