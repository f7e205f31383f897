/* SPDX-License-Identifier: Apache-2.0 */
/* What the objects of libfabric have in common: who needs whom, and functions that refuse. */
#pragma once

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

/* The beginning of every object: a handle is its address. */
struct of_object {
  union {
    struct fid fid;
    struct fid_fabric fabric;
    struct fid_domain domain;
    struct fid_av av;
    struct fid_cq cq;
    struct fid_eq eq;
    struct fid_ep ep;
    struct fid_mr mr;
    struct fid_cntr counter;
  };
  struct of_object *parent; /* which it was opened in; NULL: of a fabric */
  uint32_t users;           /* objects that need this one: it cannot be closed */
};

/* Allocates an object of so many bytes, which are 0, with its parent; NULL without memory. */
void *of_object_new(size_t bytes, struct fid *parent);
/* Under the lock. 0: it has left its parent, and the caller frees it; -FI_EBUSY: it has users. */
int of_object_leave(struct of_object *object);

int of_no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int of_no_control(struct fid *fid, int command, void *argument);
int of_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);
/* Of an object that has nothing else: they close it, and refuse the rest. */
extern struct fi_ops of_plain_ops;
