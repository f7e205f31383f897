/* SPDX-License-Identifier: Apache-2.0 */
/* What the objects of libfabric have in common: functions that refuse. */
#ifndef MRC_OFI_OBJECT_H
#define MRC_OFI_OBJECT_H

#include <rdma/fabric.h>

int of_no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int of_no_control(struct fid *fid, int command, void *argument);
int of_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);
/* Of an object that has nothing else: they free it, and refuse the rest. */
extern struct fi_ops of_plain_ops;

#endif
