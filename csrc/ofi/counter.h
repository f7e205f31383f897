/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of operations that have ended. */
#pragma once

#include <rdma/fi_domain.h>
#include <stdbool.h>

struct of_counter;

int of_counter_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **counter,
                    void *context);
/* Under the lock. An operation has ended. */
void of_counter_add(struct of_counter *counter, bool good);
