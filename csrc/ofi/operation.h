/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of the endpoint: from their post until the program reads their completion. Under the
   lock. */
#pragma once

#include <rdma/fabric.h>
#include <stdbool.h>

#include "msg/messages.h"

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
