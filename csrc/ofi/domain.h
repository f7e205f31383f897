/* SPDX-License-Identifier: Apache-2.0 */
/* Fabrics and domains: they open other objects and hold nothing. */
#ifndef MRC_OFI_DOMAIN_H
#define MRC_OFI_DOMAIN_H

#include <rdma/fabric.h>

int of_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);

#endif
