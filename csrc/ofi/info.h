/* SPDX-License-Identifier: Apache-2.0 */
/* What this provider offers. */
#pragma once

#include <rdma/fabric.h>

#define OF_PROVIDER "mrc"

/* Without side effects: -FI_ENODATA if the hints ask for more, or no agent runs on this host. */
int of_info(uint32_t version, const char *node, const char *service, uint64_t flags,
            const struct fi_info *hints, struct fi_info **info);
