/* SPDX-License-Identifier: Apache-2.0 */
/* Atomic changes of one number in memory of other endpoints. */
#pragma once

#include <rdma/fi_atomic.h>

extern struct fi_ops_atomic of_atomic_ops;
/* The same question for a domain: fi_query_atomic. */
int of_atomic_query(struct fid_domain *domain, enum fi_datatype type, enum fi_op op,
                    struct fi_atomic_attr *attr, uint64_t flags);
