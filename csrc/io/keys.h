/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for keys: not in core dumps, zeros in a forked child, wiped at its end. */
#pragma once

#include <stddef.h>

/* Zeros, aligned to a page; NULL without memory, or on a kernel that cannot keep them secret. */
void *mrc_keys_reserve(size_t bytes);
void mrc_keys_release(void *memory, size_t bytes);
