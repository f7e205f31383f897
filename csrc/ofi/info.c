/* SPDX-License-Identifier: Apache-2.0 */
#include "ofi/info.h"

#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/process.h"
#include "agent/protocol.h"
#include "ofi/operation.h"
#include "ofi/transfer.h"

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
static const struct fi_ep_attr ep = {
    .type = FI_EP_RDM,
    .protocol = PROTOCOL,
    .protocol_version = PROTOCOL_VERSION,
    .max_msg_size = MAX_BYTES,
    .mem_tag_format = 0xaaaaaaaaaaaaaaaa, /* all bits are one field */
    .tx_ctx_cnt = 1,
    .rx_ctx_cnt = 1};
static const struct fi_domain_attr domain = {.threading = FI_THREAD_SAFE,
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

/* Whoever asks for less gets it by name, and more in fact. */
static void narrow_domain(struct fi_domain_attr *offer, const struct fi_domain_attr *hints) {
  offer->av_type = hints->av_type;
  if (hints->threading) offer->threading = hints->threading;
  if (hints->control_progress) offer->control_progress = hints->control_progress;
  if (hints->data_progress) offer->data_progress = hints->data_progress;
  if (hints->resource_mgmt) offer->resource_mgmt = hints->resource_mgmt;
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
  if (hints && hints->domain_attr) narrow_domain(info->domain_attr, hints->domain_attr);
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
  info->ep_attr = copy_of(&ep, sizeof ep);
  info->domain_attr = copy_of(&domain, sizeof domain);
  info->fabric_attr = copy_of(&fabric, sizeof fabric);
  if (info->domain_attr) info->domain_attr->name = strdup(DOMAIN);
  if (info->fabric_attr) info->fabric_attr->name = strdup(FABRIC);
  if (is_complete(info) && narrow(info, version, hints)) return info;
  free_offer(info);
  return NULL;
}

int of_info(uint32_t version, const char *node, const char *service, uint64_t flags,
            const struct fi_info *hints, struct fi_info **info) {
  const bool names_own_service = flags & FI_SOURCE && !node; /* the agent chooses it */
  if ((node || service) && !names_own_service) return -FI_ENODATA;
  if (!fits(version, hints, flags)) return -FI_ENODATA;
  if (!pr_process.ctx && !pr_link_is_there()) return -FI_ENODATA;
  *info = offer(version, hints);
  return *info ? 0 : -FI_ENOMEM;
}
