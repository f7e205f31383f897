/* SPDX-License-Identifier: Apache-2.0 */
/* Event queues. Nothing here happens in the background, so no event ever enters one: they exist
   for programs that open one for every endpoint. */
#pragma once

#include <rdma/fi_eq.h>

int of_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq,
               void *context);
