/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoint: a process has one at a time. */
#pragma once

#include <rdma/fi_domain.h>

int of_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
