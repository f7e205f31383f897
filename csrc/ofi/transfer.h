/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives of the endpoint, with and without tags. */
#pragma once

#include <rdma/fi_atomic.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "ofi/cq.h"
#include "ofi/object.h"

enum { OF_INJECT_BYTES = 4096, OF_PIECES = 4 };

/* One call of a program. */
struct of_call {
  void *buffer;
  size_t bytes;
  const struct iovec *pieces; /* that are sent as one, in place of a buffer; or NULL */
  size_t n_pieces;
  fi_addr_t peer;
  uint64_t tag;    /* READ, WRITE, ATOMIC: address at the peer */
  uint64_t ignore; /* and its key */
  void *context;
  uint64_t data;              /* ATOMIC: enum mrc_msg_atomic */
  uint64_t operand, expected; /* of an ATOMIC; its `buffer` gets the number before, unless NULL */
  uint64_t flags;
  enum mrc_msg_kind kind;
  bool tagged;
  bool injects; /* no completion, not even of a failure */
};

/* The endpoint. */
struct of_ep {
  struct of_object object;
  struct fid *av;
  struct fid *eq; /* or NULL */
  struct of_cq *send_cq;
  struct of_cq *receive_cq;
  struct of_counter *counters[MRC_MSG_READ + 1]; /* of each enum mrc_msg_kind, or NULL */
  uint64_t caps; /* FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_ATOMIC, FI_DIRECTED_RECV, as the program
                    asked */
  size_t least_multi;   /* room that a receive with FI_MULTI_RECV keeps for a message */
  bool selective_sends; /* without FI_COMPLETION there is no completion */
  bool selective_receives;
  uint64_t send_flags; /* default op_flags */
  uint64_t receive_flags;
  bool enabled;
};

extern struct fi_ops_tagged of_tagged_ops;
extern struct fi_ops_msg of_untagged_ops;

ssize_t of_transfer_cancel(struct fid *fid, void *context);

/* ---- Memory of other endpoints ---- */

/* Reads and writes of memory of other endpoints. */

extern struct fi_ops_rma of_rma_ops;

/* Atomic changes of one number in memory of other endpoints. */

extern struct fi_ops_atomic of_atomic_ops;
/* The same question for a domain: fi_query_atomic. */
int of_atomic_query(struct fid_domain *domain, enum fi_datatype type, enum fi_op op,
                    struct fi_atomic_attr *attr, uint64_t flags);
