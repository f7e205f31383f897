/* SPDX-License-Identifier: Apache-2.0 */
/* What an endpoint reports to: counters, completion queues, event queues. Counters of operations
   that have ended. */
#pragma once

#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>
#include <stdbool.h>

#include "ofi/object.h"

struct of_counter;

int of_counter_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **counter,
                    void *context);

/* ---- Completion queues ---- */

/* Completion queues: operations that have ended, until the program reads them. */

/* Under the lock. Brings what csrc/msg has ended to the CQs. */
void of_cq_take(void);

int of_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
               void *context);
/* The CQ of a handle. */
struct of_cq *of_cq_of(struct fid *fid);
/* Under the lock. The addresses of senders, or NULL: there is no endpoint. */
void of_cq_name_by(struct of_cq *cq, const struct fid *av);

/* ---- Event queues ---- */

/* Event queues. Nothing here happens in the background, so no event ever enters one: they exist
   for programs that open one for every endpoint. */

int of_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq,
               void *context);
