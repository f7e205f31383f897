/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/ep.h"

#include <errno.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>

#include "ofi/connect.h"
#include "ofi/object.h"
#include "ofi/transfer.h"
#include "program/enter.h"
#include "program/process.h"
#include "program/say.h"

/* ---- Set-up ---- */

static int bind_cq(struct of_ep *ep, struct of_cq *cq, uint64_t flags) {
  const bool selective = flags & FI_SELECTIVE_COMPLETION;
  if (flags & FI_SEND) {
    ep->send_cq = cq;
    ep->selective_sends = selective;
  }
  if (flags & FI_RECV) {
    ep->receive_cq = cq;
    ep->selective_receives = selective;
  }
  return 0;
}

static int bind_ep(struct fid *fid, struct fid *other, uint64_t flags) {
  switch (other->fclass) {
    case FI_CLASS_CQ:
      return bind_cq((struct of_ep *)fid, of_cq_of(other), flags);
    case FI_CLASS_AV: /* all have the same addresses */
    case FI_CLASS_EQ: /* which no event enters */
      return 0;
    default:
      return -FI_ENOSYS;
  }
}

static int enable(struct of_ep *ep) {
  if (ep->enabled) return 0;
  if (!ep->send_cq || !ep->receive_cq) return -FI_ENOCQ;
  pr_lock();
  int error = -pr_enter();
  if (error == 0) error = of_connect_open();
  pr_unlock();
  if (error == -EBUSY) pr_say("a process has one endpoint at a time: it is open already");
  ep->enabled = error == 0;
  return error;
}

static int control(struct fid *fid, int command, void *argument) {
  (void)argument;
  return command == FI_ENABLE ? enable((struct of_ep *)fid) : -FI_ENOSYS;
}

static int close_ep(struct fid *fid) {
  struct of_ep *ep = (struct of_ep *)fid;
  pr_lock();
  if (ep->enabled && !pr_process.forked) of_connect_close();
  pr_unlock();
  free(ep);
  return 0;
}

static struct fi_ops fid_ops = {.size = sizeof fid_ops,
                                .close = close_ep,
                                .bind = bind_ep,
                                .control = control,
                                .ops_open = of_no_ops_open};

/* ---- Name ---- */

static int get_name(struct fid *fid, void *address, size_t *bytes) {
  if (!((struct of_ep *)fid)->enabled) return -FI_EOPBADSTATE;
  const struct mrc_agent_point *own = of_connect_point();
  const size_t room = *bytes;
  *bytes = sizeof *own;
  if (room < sizeof *own) return -FI_ETOOSMALL;
  memcpy(address, own, sizeof *own);
  return 0;
}

static int set_name(struct fid *fid, void *address, size_t bytes) {
  (void)fid;
  (void)address;
  (void)bytes;
  return -FI_ENOSYS;
}

static struct fi_ops_cm cm_ops = {.size = sizeof cm_ops, .setname = set_name, .getname = get_name};

/* ---- Options ---- */

static int get_option(struct fid *fid, int level, int name, void *value, size_t *bytes) {
  (void)fid;
  (void)level;
  (void)name;
  (void)value;
  (void)bytes;
  return -FI_ENOPROTOOPT;
}

static int set_option(struct fid *fid, int level, int name, const void *value, size_t bytes) {
  (void)fid;
  (void)level;
  (void)name;
  (void)value;
  (void)bytes;
  return -FI_ENOPROTOOPT;
}

static struct fi_ops_ep ep_ops = {.size = sizeof ep_ops,
                                  .cancel = of_transfer_cancel,
                                  .getopt = get_option,
                                  .setopt = set_option};

int of_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context) {
  (void)domain;
  if (info->ep_attr && info->ep_attr->type != FI_EP_RDM && info->ep_attr->type != FI_EP_UNSPEC)
    return -FI_EINVAL;
  struct of_ep *made = calloc(1, sizeof *made);
  if (!made) return -FI_ENOMEM;
  made->ep = (struct fid_ep){.fid = {.fclass = FI_CLASS_EP, .context = context, .ops = &fid_ops},
                             .ops = &ep_ops,
                             .cm = &cm_ops,
                             .msg = &of_untagged_ops,
                             .tagged = &of_tagged_ops};
  if (info->tx_attr) made->send_flags = info->tx_attr->op_flags;
  if (info->rx_attr) made->receive_flags = info->rx_attr->op_flags;
  *ep = &made->ep;
  return 0;
}
