/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues: operations that have ended, until the program reads them. */
#pragma once

#include <rdma/fi_domain.h>

#include "ofi/operation.h"

/* Under the lock. Brings what csrc/msg has ended to the CQs. */
void of_cq_take(void);

int of_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
               void *context);
/* The CQ of a handle. */
struct of_cq *of_cq_of(struct fid *fid);
/* Under the lock. The addresses of senders, or NULL: there is no endpoint. */
void of_cq_name_by(struct of_cq *cq, const struct fid *av);
