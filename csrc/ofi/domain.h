/* SPDX-License-Identifier: Apache-2.0 */
/* Fabrics and domains: they open other objects and hold nothing. */
#pragma once

#include <rdma/fabric.h>

int of_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
