/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/ep.h"

#include <errno.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/engine.h"
#include "agent/library.h"
#include "agent/process.h"
#include "ofi/atomic.h"
#include "ofi/connect.h"
#include "ofi/counter.h"
#include "ofi/rma.h"
#include "ofi/transfer.h"

enum { DEFAULT_LEAST_MULTI = 64 };

/* ---- Set-up ---- */

static void use(void *object) { ((struct of_object *)object)->users++; }

static void leave(void *object) {
  if (object) ((struct of_object *)object)->users--;
}

static int bind_cq(struct of_ep *ep, struct fid *fid, uint64_t flags) {
  const uint64_t both = FI_SEND | FI_RECV;
  struct of_cq *cq = of_cq_of(fid);
  if (flags & ~(both | FI_SELECTIVE_COMPLETION) || !(flags & both)) return -FI_EBADFLAGS;
  if ((flags & FI_SEND && ep->send_cq) || (flags & FI_RECV && ep->receive_cq)) return -FI_EINVAL;
  const bool selective = flags & FI_SELECTIVE_COMPLETION;
  if (flags & FI_SEND) {
    use(ep->send_cq = cq);
    ep->selective_sends = selective;
  }
  if (flags & FI_RECV) {
    use(ep->receive_cq = cq);
    ep->selective_receives = selective;
  }
  return 0;
}

static int bind_counter(struct of_ep *ep, struct fid *fid, uint64_t flags) {
  static const uint64_t bits[] = {[MRC_MSG_SEND] = FI_SEND,
                                  [MRC_MSG_RECV] = FI_RECV,
                                  [MRC_MSG_WRITE] = FI_WRITE,
                                  [MRC_MSG_READ] = FI_READ};
  const uint64_t known = FI_SEND | FI_RECV | FI_WRITE | FI_READ;
  if (flags & (FI_REMOTE_READ | FI_REMOTE_WRITE)) return -FI_ENOSYS;
  if (flags == 0 || flags & ~known) return -FI_EBADFLAGS;
  for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++)
    if (flags & bits[i] && ep->counters[i]) return -FI_EINVAL;
  for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++)
    if (flags & bits[i]) use(ep->counters[i] = (struct of_counter *)fid);
  return 0;
}

static int bind_one(struct fid **bound, struct fid *fid, uint64_t flags) {
  if (flags != 0) return -FI_EBADFLAGS;
  if (*bound) return -FI_EINVAL;
  use(*bound = fid);
  return 0;
}

static int bind_ep(struct fid *fid, struct fid *other, uint64_t flags) {
  struct of_ep *ep = (struct of_ep *)fid;
  if (ep->enabled) return -FI_EOPBADSTATE;
  pr_lock();
  int error = -FI_ENOSYS;
  if (other->fclass == FI_CLASS_CQ) error = bind_cq(ep, other, flags);
  if (other->fclass == FI_CLASS_AV) error = bind_one(&ep->av, other, flags);
  if (other->fclass == FI_CLASS_CNTR) error = bind_counter(ep, other, flags);
  if (other->fclass == FI_CLASS_EQ) error = bind_one(&ep->eq, other, flags);
  pr_unlock();
  return error;
}

static int enable(struct of_ep *ep) {
  if (ep->enabled) return 0;
  const uint64_t sends = FI_SEND | FI_READ | FI_WRITE;
  if ((ep->caps & sends && !ep->send_cq) || (ep->caps & FI_RECV && !ep->receive_cq))
    return -FI_ENOCQ;
  if (!ep->av) return -FI_ENOAV;
  pr_lock();
  int error = -pr_enter();
  if (error == 0) error = of_connect_open();
  if (error == 0 && ep->receive_cq) of_cq_name_by(ep->receive_cq, ep->av);
  ep->enabled = error == 0;
  pr_unlock();
  if (error == -EBUSY) pr_say("a process has one endpoint at a time: it is open already");
  return error;
}

static int op_flags(struct of_ep *ep, bool set, uint64_t *flags) {
  const uint64_t way = *flags & (FI_SEND | FI_RECV);
  if (way != FI_SEND && way != FI_RECV) return -FI_EINVAL;
  uint64_t *of_ep = way == FI_SEND ? &ep->send_flags : &ep->receive_flags;
  if (set) *of_ep = *flags & ~way;
  if (!set) *flags = *of_ep;
  return 0;
}

static int control(struct fid *fid, int command, void *argument) {
  struct of_ep *ep = (struct of_ep *)fid;
  if (command == FI_ENABLE) return enable(ep);
  if (command == FI_GETOPSFLAG || command == FI_SETOPSFLAG)
    return op_flags(ep, command == FI_SETOPSFLAG, argument);
  return -FI_ENOSYS;
}

static int close_ep(struct fid *fid) {
  struct of_ep *ep = (struct of_ep *)fid;
  pr_lock();
  if (ep->enabled && !pr_process.forked) of_connect_close();
  if (ep->enabled && ep->receive_cq) of_cq_name_by(ep->receive_cq, NULL);
  leave(ep->av);
  leave(ep->eq);
  leave(ep->send_cq);
  leave(ep->receive_cq);
  for (size_t i = 0; i < sizeof ep->counters / sizeof ep->counters[0]; i++)
    leave(ep->counters[i]);
  of_object_leave(&ep->object);
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
  const struct mrc_agent_endpoint *own = of_connect_point();
  const size_t room = *bytes;
  *bytes = sizeof *own;
  if (room > 0) memcpy(address, own, room < sizeof *own ? room : sizeof *own);
  return room < sizeof *own ? -FI_ETOOSMALL : 0;
}

static int set_name(struct fid *fid, void *address, size_t bytes) {
  (void)fid;
  (void)address;
  (void)bytes;
  return -FI_ENOSYS;
}

static int get_peer(struct fid_ep *ep, void *address, size_t *bytes) {
  (void)ep, (void)address, (void)bytes;
  return -FI_ENOSYS;
}

static int connect_ep(struct fid_ep *ep, const void *address, const void *data, size_t bytes) {
  (void)ep, (void)address, (void)data, (void)bytes;
  return -FI_ENOSYS;
}

static int accept_ep(struct fid_ep *ep, const void *data, size_t bytes) {
  return connect_ep(ep, NULL, data, bytes);
}

static int shut_down(struct fid_ep *ep, uint64_t flags) {
  (void)ep, (void)flags;
  return -FI_ENOSYS;
}

static struct fi_ops_cm cm_ops = {.size = sizeof cm_ops,
                                  .setname = set_name,
                                  .getname = get_name,
                                  .getpeer = get_peer,
                                  .connect = connect_ep,
                                  .accept = accept_ep,
                                  .shutdown = shut_down};

/* ---- Options ---- */

static int get_option(struct fid *fid, int level, int name, void *value, size_t *bytes) {
  const struct of_ep *ep = (struct of_ep *)fid;
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (*bytes < sizeof ep->least_multi) return -FI_ETOOSMALL;
  *bytes = sizeof ep->least_multi;
  memcpy(value, &ep->least_multi, *bytes);
  return 0;
}

static int set_option(struct fid *fid, int level, int name, const void *value, size_t bytes) {
  struct of_ep *ep = (struct of_ep *)fid;
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  size_t least;
  if (bytes != sizeof least) return -FI_EINVAL;
  memcpy(&least, value, bytes);
  ep->least_multi = least > 0 ? least : 1; /* full memory takes nothing */
  return 0;
}

static int tx_context(struct fid_ep *ep, int index, struct fi_tx_attr *attr, struct fid_ep **found,
                      void *context) {
  (void)ep, (void)index, (void)attr, (void)found, (void)context;
  return -FI_ENOSYS;
}

static int rx_context(struct fid_ep *ep, int index, struct fi_rx_attr *attr, struct fid_ep **found,
                      void *context) {
  (void)attr;
  return tx_context(ep, index, NULL, found, context);
}

static ssize_t size_left(struct fid_ep *ep) {
  (void)ep;
  pr_lock();
  const ssize_t left = (ssize_t)OF_OPERATIONS - of_operations_running();
  pr_unlock();
  return left;
}

static struct fi_ops_ep ep_ops = {.size = sizeof ep_ops,
                                  .cancel = of_transfer_cancel,
                                  .getopt = get_option,
                                  .setopt = set_option,
                                  .tx_ctx = tx_context,
                                  .rx_ctx = rx_context,
                                  .rx_size_left = size_left,
                                  .tx_size_left = size_left};

/* The attributes of each direction may ask for less than the endpoint. */
static uint64_t caps_of(const struct fi_info *info) {
  const uint64_t sends = info->tx_attr && info->tx_attr->caps ? info->tx_attr->caps : info->caps;
  const uint64_t receives = info->rx_attr && info->rx_attr->caps ? info->rx_attr->caps : info->caps;
  return info->caps & ((sends & (FI_SEND | FI_READ | FI_WRITE | FI_ATOMIC)) |
                       (receives & (FI_RECV | FI_DIRECTED_RECV)));
}

int of_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context) {
  if (info->ep_attr && info->ep_attr->type != FI_EP_RDM && info->ep_attr->type != FI_EP_UNSPEC)
    return -FI_EINVAL;
  struct of_ep *made = of_object_new(sizeof *made, &domain->fid);
  if (!made) return -FI_ENOMEM;
  made->object.ep =
      (struct fid_ep){.fid = {.fclass = FI_CLASS_EP, .context = context, .ops = &fid_ops},
                      .ops = &ep_ops,
                      .cm = &cm_ops,
                      .msg = &of_untagged_ops,
                      .rma = &of_rma_ops,
                      .atomic = &of_atomic_ops,
                      .tagged = &of_tagged_ops};
  made->caps = caps_of(info);
  made->least_multi = DEFAULT_LEAST_MULTI;
  if (info->tx_attr) made->send_flags = info->tx_attr->op_flags;
  if (info->rx_attr) made->receive_flags = info->rx_attr->op_flags;
  *ep = &made->object.ep;
  return 0;
}
