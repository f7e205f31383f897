/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <errno.h>
#include <rdma/fi_cm.h>
#include <rdma/providers/fi_prov.h>
#include <stdlib.h>
#include <string.h>

#include "ofi/ofi.h"

#define FABRIC "mrc"
#define DOMAIN "mrc0"
#define TX_MEMORY (FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE)
#define RX_MEMORY (FI_RMA | FI_ATOMIC | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define MEMORY (TX_MEMORY | RX_MEMORY)
#define REACHES (FI_RMA | FI_ATOMIC)
#define TX_CAPS (FI_MSG | FI_TAGGED | FI_SEND | TX_MEMORY)
#define RX_CAPS \
  (FI_MSG | FI_TAGGED | FI_RECV | FI_SOURCE | FI_DIRECTED_RECV | FI_MULTI_RECV | RX_MEMORY)
#define DOMAIN_CAPS (FI_LOCAL_COMM | FI_REMOTE_COMM)
#define CAPS (TX_CAPS | RX_CAPS | DOMAIN_CAPS | FI_REMOTE_CQ_DATA)
#define OP_FLAGS \
  (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)
/* Peers name memory by its address and a key that was drawn at random. */
#define MR_MODE (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

/* Marks a value that only one provider defines. libfabric 2 has no name for this bit. */
#define OF_SPECIFIC (1u << 31)
#define ADDRESS_FORMAT (OF_SPECIFIC | 0x4d5243)
#define PROTOCOL (OF_SPECIFIC | 0x4d5243)

#define MAX_BYTES (1ull << 40)

enum { PROTOCOL_VERSION = 1, CQ_DATA_BYTES = 4, COUNTERS = 1024, REGIONS = 8192 };

/* A later libfabric has longer structs and frees them as its own: zeros follow ours. */
enum { LATER_BYTES = 256 };

/* ---- Hints ---- */

static bool fits_domain(const struct fi_domain_attr *hints) {
  if (!hints) return true;
  if (hints->name && strcmp(hints->name, DOMAIN) != 0) return false;
  if (hints->ep_cnt > 1 || hints->max_ep_tx_ctx > 1 || hints->max_ep_rx_ctx > 1) return false;
  if (hints->max_ep_stx_ctx || hints->max_ep_srx_ctx || hints->auth_key_size) return false;
  if (hints->cntr_cnt > COUNTERS || hints->mr_cnt > REGIONS || hints->mr_iov_limit > 1)
    return false;
  return (hints->caps & ~DOMAIN_CAPS) == 0 && hints->cq_data_size <= CQ_DATA_BYTES;
}

static bool fits_endpoint(const struct fi_ep_attr *hints) {
  if (!hints) return true;
  if (hints->type != FI_EP_UNSPEC && hints->type != FI_EP_RDM) return false;
  if (hints->protocol != FI_PROTO_UNSPEC && hints->protocol != PROTOCOL) return false;
  if (hints->protocol_version > PROTOCOL_VERSION || hints->max_msg_size > MAX_BYTES) return false;
  return hints->tx_ctx_cnt <= 1 && hints->rx_ctx_cnt <= 1 && hints->auth_key_size == 0;
}

static bool fits_transfer(const struct fi_info *hints, uint64_t caps) {
  const struct fi_tx_attr *tx = hints->tx_attr;
  const struct fi_rx_attr *rx = hints->rx_attr;
  if (tx && (tx->caps & ~caps || tx->op_flags & ~OP_FLAGS || tx->inject_size > OF_INJECT_BYTES ||
             tx->iov_limit > OF_PIECES || tx->rma_iov_limit > 1 || tx->size > OF_OPERATIONS ||
             tx->msg_order & ~FI_ORDER_SAS || tx->comp_order != 0))
    return false;
  return !rx || (!(rx->caps & ~caps) && !(rx->op_flags & ~(FI_COMPLETION | FI_MULTI_RECV)) &&
                 rx->iov_limit <= 1 && rx->size <= OF_OPERATIONS &&
                 !(rx->msg_order & ~FI_ORDER_SAS) && rx->comp_order == 0);
}

static const struct mrc_agent_endpoint anywhere;

/* The address of an endpoint has a secret, so no name leads to it: it comes from fi_getname. And
   the agent chooses it, so the only source address is 0. */
static bool fits_address(const struct fi_info *hints, uint64_t flags) {
  const uint32_t format = hints->addr_format;
  if (format != FI_FORMAT_UNSPEC && format != ADDRESS_FORMAT) return false;
  if (hints->dest_addr && hints->dest_addrlen != sizeof anywhere) return false;
  if (!hints->src_addr || flags & FI_SOURCE) return true;
  return hints->src_addrlen == sizeof anywhere &&
         memcmp(hints->src_addr, &anywhere, sizeof anywhere) == 0;
}

/* FI_MR_UNSPEC and FI_MR_BASIC. Headers of libfabric 2 call these names deprecated; programs do
   not. */
enum { MR_UNSPEC = 0, MR_BASIC = 1 };

/* The mode of memory regions; 0: the program does not know ours. Before version 1.5 none means any,
   and one bit stands for all. */
static int mr_mode(uint32_t version, const struct fi_info *hints) {
  const bool old = FI_VERSION_LT(version, FI_VERSION(1, 5));
  if (!hints || !hints->domain_attr) return old ? MR_BASIC : MR_MODE;
  const int known = hints->domain_attr->mr_mode;
  if (known == MR_BASIC || (old && known == MR_UNSPEC)) return MR_BASIC;
  return (known & MR_MODE) == MR_MODE ? MR_MODE : 0;
}

/* What an endpoint gets: what the program asks for, with what that implies and what costs nothing.
   Nothing asked for: all but atomics, since only some types and operations have them. */
static uint64_t caps_for(uint32_t version, const struct fi_info *hints) {
  const uint64_t wanted = hints ? hints->caps : 0;
  if (wanted == 0) return CAPS & ~(mr_mode(version, hints) ? FI_ATOMIC : MEMORY);
  uint64_t caps = wanted;
  if (wanted & REACHES && !(wanted & MEMORY & ~REACHES)) caps |= MEMORY & ~REACHES;
  if (wanted & (FI_MSG | FI_TAGGED) && !(wanted & (FI_SEND | FI_RECV))) caps |= FI_SEND | FI_RECV;
  if (!(wanted & DOMAIN_CAPS)) caps |= DOMAIN_CAPS;
  return caps;
}

static bool fits(uint32_t version, const struct fi_info *hints, uint64_t flags) {
  if (!hints) return true;
  if (hints->caps & ~CAPS || !fits_address(hints, flags)) return false;
  if (hints->caps & REACHES && !mr_mode(version, hints)) return false;
  const struct fi_fabric_attr *fabric = hints->fabric_attr;
  if (fabric && fabric->name && strcmp(fabric->name, FABRIC) != 0) return false;
  return fits_domain(hints->domain_attr) && fits_endpoint(hints->ep_attr) &&
         fits_transfer(hints, caps_for(version, hints));
}

/* ---- The offer ---- */

static void *copy_of(const void *from, size_t bytes) {
  void *made = calloc(1, bytes + LATER_BYTES);
  if (made) memcpy(made, from, bytes);
  return made;
}

static const struct fi_tx_attr tx = {.msg_order = FI_ORDER_SAS,
                                     .inject_size = OF_INJECT_BYTES,
                                     .size = OF_OPERATIONS,
                                     .iov_limit = OF_PIECES,
                                     .rma_iov_limit = 1};
static const struct fi_rx_attr rx = {
    .msg_order = FI_ORDER_SAS, .size = OF_OPERATIONS, .iov_limit = 1};
static const struct fi_ep_attr ep_attr = {
    .type = FI_EP_RDM,
    .protocol = PROTOCOL,
    .protocol_version = PROTOCOL_VERSION,
    .max_msg_size = MAX_BYTES,
    .mem_tag_format = 0xaaaaaaaaaaaaaaaa, /* all bits are one field */
    .tx_ctx_cnt = 1,
    .rx_ctx_cnt = 1};
static const struct fi_domain_attr domain_attr = {.threading = FI_THREAD_SAFE,
                                                  .control_progress = FI_PROGRESS_AUTO,
                                                  .data_progress = FI_PROGRESS_AUTO,
                                                  .resource_mgmt = FI_RM_ENABLED,
                                                  .av_type = FI_AV_UNSPEC,
                                                  .cq_data_size = CQ_DATA_BYTES,
                                                  .cq_cnt = 1024,
                                                  .ep_cnt = 1,
                                                  .tx_ctx_cnt = 1,
                                                  .rx_ctx_cnt = 1,
                                                  .max_ep_tx_ctx = 1,
                                                  .max_ep_rx_ctx = 1,
                                                  .cntr_cnt = COUNTERS,
                                                  .mr_key_size = sizeof(uint64_t),
                                                  .mr_cnt = REGIONS,
                                                  .mr_iov_limit = 1,
                                                  .caps = DOMAIN_CAPS};

static bool is_complete(const struct fi_info *info) {
  return info->src_addr && info->tx_attr && info->rx_attr && info->ep_attr && info->domain_attr &&
         info->domain_attr->name && info->fabric_attr && info->fabric_attr->name;
}

static void free_offer(struct fi_info *info) {
  if (info->domain_attr) free(info->domain_attr->name);
  if (info->fabric_attr) free(info->fabric_attr->name);
  free(info->src_addr);
  free(info->dest_addr);
  free(info->tx_attr);
  free(info->rx_attr);
  free(info->ep_attr);
  free(info->domain_attr);
  free(info->fabric_attr);
  free(info);
}

/* Of one direction, unless only the other one is asked for. */
static uint64_t narrowed(uint64_t caps, uint64_t other, uint64_t of_direction, uint64_t hint) {
  if ((caps & (FI_SEND | FI_RECV)) == other) return 0;
  return caps & of_direction & (hint ? hint : ~0ull);
}

/* An unset field of the hints takes all there is. False without memory. */
static bool narrow(struct fi_info *info, uint32_t version, const struct fi_info *hints) {
  const struct fi_tx_attr *tx_hint = hints ? hints->tx_attr : NULL;
  const struct fi_rx_attr *rx_hint = hints ? hints->rx_attr : NULL;
  info->caps = caps_for(version, hints);
  info->domain_attr->mr_mode = info->caps & REACHES ? mr_mode(version, hints) : 0;
  info->tx_attr->caps = narrowed(info->caps, FI_RECV, TX_CAPS, tx_hint ? tx_hint->caps : 0);
  info->rx_attr->caps = narrowed(info->caps, FI_SEND, RX_CAPS, rx_hint ? rx_hint->caps : 0);
  if (tx_hint) info->tx_attr->op_flags = tx_hint->op_flags;
  if (rx_hint) info->rx_attr->op_flags = rx_hint->op_flags;
  if (hints && hints->domain_attr) {
    /* Whoever asks for less gets it by name, and more in fact. */
    struct fi_domain_attr *offered = info->domain_attr;
    const struct fi_domain_attr *hint = hints->domain_attr;
    offered->av_type = hint->av_type;
    if (hint->threading) offered->threading = hint->threading;
    if (hint->control_progress) offered->control_progress = hint->control_progress;
    if (hint->data_progress) offered->data_progress = hint->data_progress;
    if (hint->resource_mgmt) offered->resource_mgmt = hint->resource_mgmt;
  }
  if (!hints || !hints->dest_addr) return true;
  info->dest_addr = copy_of(hints->dest_addr, hints->dest_addrlen);
  info->dest_addrlen = info->dest_addr ? hints->dest_addrlen : 0;
  return info->dest_addr;
}

static struct fi_info *offer(uint32_t version, const struct fi_info *hints) {
  const struct fi_info plain = {.addr_format = ADDRESS_FORMAT, .src_addrlen = sizeof anywhere};
  const struct fi_fabric_attr fabric = {.api_version = version}; /* libfabric names the provider */
  struct fi_info *info = copy_of(&plain, sizeof plain);
  if (!info) return NULL;
  info->src_addr = copy_of(&anywhere, sizeof anywhere);
  info->tx_attr = copy_of(&tx, sizeof tx);
  info->rx_attr = copy_of(&rx, sizeof rx);
  info->ep_attr = copy_of(&ep_attr, sizeof ep_attr);
  info->domain_attr = copy_of(&domain_attr, sizeof domain_attr);
  info->fabric_attr = copy_of(&fabric, sizeof fabric);
  if (info->domain_attr) info->domain_attr->name = strdup(DOMAIN);
  if (info->fabric_attr) info->fabric_attr->name = strdup(FABRIC);
  if (is_complete(info) && narrow(info, version, hints)) return info;
  free_offer(info);
  return NULL;
}

/* Without side effects: -FI_ENODATA if the hints ask for more, or no agent runs on this host. */
static int info_for(uint32_t version, const char *node, const char *service, uint64_t flags,
                    const struct fi_info *hints, struct fi_info **info) {
  const bool names_own_service = flags & FI_SOURCE && !node; /* the agent chooses it */
  if ((node || service) && !names_own_service) return -FI_ENODATA;
  if (!fits(version, hints, flags)) return -FI_ENODATA;
  if (!pr_process.ctx && !pr_link_is_there()) return -FI_ENODATA;
  *info = offer(version, hints);
  return *info ? 0 : -FI_ENOMEM;
}

/* ==== The endpoint: a process has one at a time ==== */

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

OF_REFUSES(int, set_name, struct fid *fid, void *address, size_t bytes)
OF_REFUSES(int, get_peer, struct fid_ep *ep, void *address, size_t *bytes)
OF_REFUSES(int, connect_ep, struct fid_ep *ep, const void *address, const void *data, size_t bytes)
OF_REFUSES(int, accept_ep, struct fid_ep *ep, const void *data, size_t bytes)
OF_REFUSES(int, shut_down, struct fid_ep *ep, uint64_t flags)

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

OF_REFUSES(int, tx_context, struct fid_ep *ep, int index, struct fi_tx_attr *attr,
           struct fid_ep **found, void *context)
OF_REFUSES(int, rx_context, struct fid_ep *ep, int index, struct fi_rx_attr *attr,
           struct fid_ep **found, void *context)

static ssize_t size_left(struct fid_ep *ep) {
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

static int open_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep,
                   void *context) {
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

/* ==== Fabrics and domains: they open other objects and hold nothing ==== */

/* ---- What a domain refuses ---- */

OF_REFUSES(int, no_scalable_ep, struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep,
           void *context)
OF_REFUSES(int, no_poll, struct fid_domain *domain, struct fi_poll_attr *attr,
           struct fid_poll **set)
OF_REFUSES(int, no_shared_tx, struct fid_domain *domain, struct fi_tx_attr *attr,
           struct fid_stx **stx, void *context)
OF_REFUSES(int, no_shared_rx, struct fid_domain *domain, struct fi_rx_attr *attr,
           struct fid_ep **ep, void *context)

static struct fi_ops_domain domain_ops = {.size = sizeof domain_ops,
                                          .av_open = of_av_open,
                                          .cq_open = of_cq_open,
                                          .endpoint = open_ep,
                                          .scalable_ep = no_scalable_ep,
                                          .cntr_open = of_counter_open,
                                          .poll_open = no_poll,
                                          .stx_ctx = no_shared_tx,
                                          .srx_ctx = no_shared_rx,
                                          .query_atomic = of_atomic_query};

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
                       void *context) {
  struct of_object *made = of_object_new(sizeof *made, &fabric->fid);
  if (!made) return -FI_ENOMEM;
  made->domain = (struct fid_domain){
      .fid = {.fclass = FI_CLASS_DOMAIN, .context = context, .ops = &of_plain_ops},
      .ops = &domain_ops,
      .mr = &of_mr_ops};
  *domain = &made->domain;
  return 0;
}

/* ---- Fabrics ---- */

OF_REFUSES(int, no_passive_ep, struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **ep,
           void *context)
OF_REFUSES(int, no_wait, struct fid_fabric *fabric, struct fi_wait_attr *attr,
           struct fid_wait **set)
OF_REFUSES(int, no_try, struct fid_fabric *fabric, struct fid **fids, int count)

static struct fi_ops_fabric fabric_ops = {.size = sizeof fabric_ops,
                                          .domain = open_domain,
                                          .passive_ep = no_passive_ep,
                                          .eq_open = of_eq_open,
                                          .wait_open = no_wait,
                                          .trywait = no_try};

static int open_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) {
  struct of_object *made = of_object_new(sizeof *made, NULL);
  if (!made) return -FI_ENOMEM;
  made->fabric = (struct fid_fabric){
      .fid = {.fclass = FI_CLASS_FABRIC, .context = context, .ops = &of_plain_ops},
      .ops = &fabric_ops,
      .api_version = attr->api_version};
  *fabric = &made->fabric;
  return 0;
}

/* ==== Where libfabric finds the provider ==== */

/* Where libfabric finds the provider. */

enum { MAJOR = 1, MINOR = 0 };

static void clean_up(void) {}

static struct fi_provider provider = {.version = FI_VERSION(MAJOR, MINOR),
                                      .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
                                      .name = "mrc",
                                      .getinfo = info_for,
                                      .fabric = open_fabric,
                                      .cleanup = clean_up};

/* The version of the library that calls us, which may have no name that we know. It passes over
   providers of an earlier one, but what they use has not changed since. */
static uint32_t version_of(void *caller) {
  Dl_info found;
  if (dladdr(caller, &found) == 0) return provider.fi_version;
  void *library = dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return provider.fi_version;
  uint32_t (*version)(void);
  *(void **)&version = dlsym(library, "fi_version");
  const uint32_t result = version ? version() : provider.fi_version;
  dlclose(library);
  return result;
}

EXPORT struct fi_provider *fi_prov_ini(void) {
  provider.fi_version = version_of(__builtin_return_address(0));
  return &provider;
}

/* ======== Memory that peers may use ======== */

#define ACCESS (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

struct of_mr {
  struct of_object object;
  uint32_t key; /* 0: no peer may use the memory */
  bool written; /* peers may write it */
};

static uint32_t n_written;

bool of_mr_is_written(void) { return n_written > 0; }

/* A peer may still read from it: no further read begins, and this one ends soon. */
static int end_region(uint32_t key) {
  int error;
  do {
    struct mrc_command command = {.op = MRC_COMMAND_MR_DEREGISTER, .key = key};
    error = pr_engine_call(&command);
  } while (error == -EBUSY);
  return error;
}

static int close_mr(struct fid *fid) {
  struct of_mr *mr = (struct of_mr *)fid;
  pr_lock();
  int error = of_object_leave(&mr->object);
  if (error == 0 && mr->key != 0 && !pr_process.forked) error = end_region(mr->key);
  if (error == 0) n_written -= mr->written;
  pr_unlock();
  if (error == 0) free(mr);
  return error;
}

static int enable_mr(struct fid *fid, int command, void *argument) {
  return command == FI_ENABLE ? 0 : -FI_ENOSYS;
}

static struct fi_ops mr_fid_ops = {.size = sizeof mr_fid_ops,
                                   .close = close_mr,
                                   .bind = of_no_bind,
                                   .control = enable_mr,
                                   .ops_open = of_no_ops_open};

static int begin_region(const void *buffer, size_t bytes, uint64_t wanted, uint32_t *key) {
  const bool written = wanted & FI_REMOTE_WRITE;
  uint32_t access = written ? MRC_ACCESS_REMOTE_WRITE : 0;
  if (wanted & FI_REMOTE_READ) access |= MRC_ACCESS_LOCAL_READ | MRC_ACCESS_REMOTE_READ;
  *key = 0;
  if (access == 0 || bytes == 0) return 0;
  pr_lock();
  int error = -pr_enter();
  if (error == 0)
    error = pr_memory_register(buffer, bytes, written ? PR_MEMORY_WRITTEN : PR_MEMORY_READ, access,
                               0, key);
  pr_unlock();
  return error == -ENOSPC ? -FI_ENOMEM : error;
}

/* Addresses are virtual, and keys are ours. */
static int open_mr(struct fid *domain, const void *buffer, size_t bytes, uint64_t access,
                   uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr,
                   void *context) {
  if (flags & ~FI_RMA_PMEM) return -FI_EBADFLAGS;
  if (access & ~ACCESS) return -FI_EINVAL;
  uint32_t own_key;
  const int error = begin_region(buffer, bytes, access, &own_key);
  if (error != 0) return error;
  struct of_mr *made = of_object_new(sizeof *made, domain);
  if (!made) return -FI_ENOMEM;
  made->key = own_key;
  made->written = own_key != 0 && access & FI_REMOTE_WRITE;
  pr_lock();
  n_written += made->written;
  pr_unlock();
  made->object.mr =
      (struct fid_mr){.fid = {.fclass = FI_CLASS_MR, .context = context, .ops = &mr_fid_ops},
                      .mem_desc = made,
                      .key = own_key};
  *mr = &made->object.mr;
  return 0;
}

static int open_mr_v(struct fid *domain, const struct iovec *pieces, size_t count, uint64_t access,
                     uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr,
                     void *context) {
  if (count != 1) return -FI_EINVAL;
  return open_mr(domain, pieces->iov_base, pieces->iov_len, access, offset, key, flags, mr,
                 context);
}

/* The fields behind these, for memory of a GPU, exist in later versions only. */
static int open_mr_attr(struct fid *domain, const struct fi_mr_attr *attr, uint64_t flags,
                        struct fid_mr **mr) {
  return open_mr_v(domain, attr->mr_iov, attr->iov_count, attr->access, attr->offset,
                   attr->requested_key, flags, mr, attr->context);
}

struct fi_ops_mr of_mr_ops = {
    .size = sizeof of_mr_ops, .reg = open_mr, .regv = open_mr_v, .regattr = open_mr_attr};
