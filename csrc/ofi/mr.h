/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that peers may read or write. Only such memory needs a region: csrc/msg registers what
   operations of this process use. */
#pragma once

#include <rdma/fi_domain.h>
#include <stdbool.h>

extern struct fi_ops_mr of_mr_ops;

/* Under the lock. Whether there is memory that peers may write. */
bool of_mr_is_written(void);
