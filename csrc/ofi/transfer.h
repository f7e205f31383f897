/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives of the endpoint, with and without tags. */
#ifndef MRC_OFI_TRANSFER_H
#define MRC_OFI_TRANSFER_H

#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>

#include "ofi/cq.h"
#include "ofi/object.h"

enum { OF_INJECT_BYTES = 4096 };

/* The endpoint. */
struct of_ep {
  struct of_object object;
  struct fid *av;
  struct fid *eq; /* or NULL */
  struct of_cq *send_cq;
  struct of_cq *receive_cq;
  uint64_t caps;        /* FI_SEND, FI_RECV, FI_DIRECTED_RECV, as the program asked for */
  bool selective_sends; /* without FI_COMPLETION there is no completion */
  bool selective_receives;
  uint64_t send_flags; /* default op_flags */
  uint64_t receive_flags;
  bool enabled;
};

extern struct fi_ops_tagged of_tagged_ops;
extern struct fi_ops_msg of_untagged_ops;

ssize_t of_transfer_cancel(struct fid *fid, void *context);

#endif
