/* SPDX-License-Identifier: Apache-2.0 */
/* What the objects of libfabric have in common: who needs whom, and functions that refuse. */
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <stdbool.h>

#include "msg/messages.h"

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

/* ---- Operations ---- */

/* Operations of the endpoint: from their post until the program reads their completion. Under the
   lock. */

struct of_counter;
struct of_cq;

/* As many as csrc/msg takes at one time. */
enum { OF_OPERATIONS = 1 << 14 };

struct of_operation {
  struct of_operation *next;  /* in a CQ, or in the list of free ones */
  struct of_cq *cq;           /* for its completion; NULL: it has none */
  struct of_counter *counter; /* or NULL */
  bool silent;                /* it has one only if it fails */
  void *context;              /* of the program; NULL if silent */
  void *buffer;               /* of the program; NULL of a PEEK, which puts nothing there */
  void *copy;                 /* of an injected message; or NULL */
  uint64_t cookie;            /* never used twice; its low bits are the place of the operation */
  uint64_t flags;             /* FI_SEND or FI_RECV and FI_TAGGED or FI_MSG; or FI_RMA and FI_READ
                                 or FI_WRITE */
  bool sends;                 /* no receive or PEEK */
  bool multi;                 /* a receive with FI_MULTI_RECV */
  bool claims;                /* PEEK: it takes the message aside */
  bool discards;              /* RECV: nobody wants the content. PEEK: such a RECV follows */
  bool ended;                 /* it waits in its CQ */
  struct mrc_msg_done done;   /* once it has ended */
};

/* NULL: too many are in use. */
struct of_operation *of_operation_new(bool sends);
void of_operation_free(struct of_operation *operation);
/* A copy with the completion of one message of several, for the CQ only. */
struct of_operation *of_operation_note(const struct of_operation *operation);
/* Gives it another cookie: it goes on as another operation of csrc/msg. */
void of_operation_renew(struct of_operation *operation);
/* The operation with this cookie, or NULL. */
struct of_operation *of_operation_at(uint64_t cookie);
/* One that has this context and has not ended, or NULL. */
struct of_operation *of_operation_with(const void *context);
/* Calls a function for each operation that is in use; it may not begin others. */
void of_operation_each(void (*call)(struct of_operation *operation));
/* How many are in use; of these, sends and accesses to memory. */
uint32_t of_operations_running(void);
uint32_t of_operations_sending(void);
